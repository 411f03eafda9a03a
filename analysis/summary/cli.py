"""servelab summary: a run's metrics as servelab and four other tools define and name them.

Windows: --warm-up and --window take the requests that arrive in the window, whenever they finish,
and rates of what happens inside it; --steady finds the window by MSER-5, to the last arrival.
Exit codes: 0; 1 when --steady finds that a run is not steady, or a disk fails; 2 for bad input.
"""
from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any

from analysis import selection, verb
from analysis.verb import FAILED, OK

DIALECTS = ("servelab", "vllm", "guidellm", "aiperf", "mlperf")
FORMATS = ("table", "csv", "json")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = verb.Parser(prog="servelab summary", description=__doc__,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
    selection.add_arguments(parser)
    parser.add_argument("--dialect", choices=DIALECTS, default="servelab",
                        help="whose definitions and names (default: servelab)")
    window = parser.add_mutually_exclusive_group()
    window.add_argument("--warm-up", metavar="SECONDS|N-requests",
                        help="leave out the first seconds, or the first N requests")
    window.add_argument("--window", metavar="A:B", help="seconds A to B; either may be left out")
    window.add_argument("--steady", action="store_true", help="the steady part of each run")
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    return parser.parse_args(arguments)


@dataclass
class Column:
    """One point's values by row; `window` says what they are of, `refusal` why there are none."""

    label: str
    path: str
    status: str
    window: str = "whole run"
    refusal: str = ""
    rows: list[Any] = field(default_factory=list)  # dialects._rows.Row


def command(options: argparse.Namespace) -> int:
    from analysis.summary.dialects import TABLES
    columns = [_column(one, options) for one in selection.choose(options.points, options.results)]
    printers = {"table": _print_table, "csv": _print_csv, "json": _print_json}
    printers[options.format](TABLES[options.dialect][0], options.dialect, columns)
    return FAILED if any(column.refusal for column in columns) else OK


def _column(chosen: selection.Chosen, options: argparse.Namespace) -> Column:
    from analysis.summary import requests, windows
    from analysis.summary.dialects import TABLES
    column = Column(chosen.label, str(chosen.point.path), chosen.point.attribute("status"))
    all_of_it = requests.read(chosen.point)
    part = windows.whole(all_of_it)
    try:
        window = None
        if options.warm_up is not None:
            window = windows.after_warm_up(all_of_it, *windows.parse_warm_up(options.warm_up))
        elif options.window is not None:
            window = windows.between(all_of_it, *windows.parse_window(options.window))
        elif options.steady:
            window = windows.steady(all_of_it)
        if window is not None:
            part, column.window = windows.inside(all_of_it, window), window.text
    except windows.NotSteady as reason:
        column.window, column.refusal = "none", f"not steady: {reason}"
        return column
    if options.dialect == "servelab" and part.window is None:
        column.rows = _own_summary(chosen, part)
    else:
        column.rows = list(TABLES[options.dialect][1](part))
    return column


def _own_summary(chosen: selection.Chosen, part: Any) -> list[Any]:
    """The run's /summary as it was written, in the order of the computed table; what requests do
    not define (steps, times, switches) comes after."""
    from analysis.summary.dialects import Row, servelab
    stored = chosen.point.summary()
    computed = [row.key for row in servelab.table(part)]
    order = [key for key in computed if key in stored]
    order += [key for key in stored if key not in computed]
    return [Row(key, key, stored[key]) for key in order]


def _text(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{int(value)}" if float(value).is_integer() else f"{value:.6g}"


def _print_table(title: str, _: str, columns: list[Column]) -> None:
    print(title)
    for number, column in enumerate(columns, 1):
        status = "" if column.status == "VALID" else f" ({column.status})"
        print(f"  [{number}] {column.label}{status}: {column.refusal or column.window}")
    shown = [(number, column) for number, column in enumerate(columns, 1) if column.rows]
    if not shown:
        return
    names = _names(columns)
    width = max(len(name) for name in names.values())
    cells = {key: [_text(_value(column, key)) for _, column in shown] for key in names}
    wide = max(10, *(len(cell) for row in cells.values() for cell in row)) + 2
    print(" " * width + "".join(f"[{number}]".rjust(wide) for number, _ in shown))
    for key, name in names.items():
        print(name.ljust(width) + "".join(cell.rjust(wide) for cell in cells[key]))
    for note in dict.fromkeys(row.note for column in columns for row in column.rows if row.note):
        marked = [row.name for row in shown[0][1].rows if row.note == note]
        print(f"{', '.join(marked[:2])}{', ...' if len(marked) > 2 else ''}: {note}")


def _names(columns: list[Column]) -> dict[str, str]:
    """Row names by key, in order; points may differ in what they have."""
    return {row.key: row.name for column in columns for row in column.rows}


def _value(column: Column, key: str) -> float:
    return next((float(row.value) for row in column.rows if row.key == key), math.nan)


def _print_csv(_: str, dialect: str, columns: list[Column]) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["point", "label", "status", "window", "dialect", "key", "name", "value", "note"])
    for column in columns:
        head = [column.path, column.label, column.status, column.window, dialect]
        if column.refusal:
            out.writerow([*head, "", "", "", column.refusal])
        for row in column.rows:
            value = "" if math.isnan(row.value) else repr(float(row.value))
            out.writerow([*head, row.key, row.name, value, row.note])


def _print_json(title: str, dialect: str, columns: list[Column]) -> None:
    points = [{"point": column.path, "label": column.label, "status": column.status,
               "window": column.window, **({"refusal": column.refusal} if column.refusal else {}),
               "values": {row.key: float(row.value) if math.isfinite(row.value) else None
                          for row in column.rows},
               "notes": {row.key: row.note for row in column.rows if row.note}}
              for column in columns]
    print(json.dumps({"dialect": dialect, "title": title, "points": points}, indent=2))


def main(arguments: list[str] | None = None) -> int:
    return verb.run(arguments, parse, command)
