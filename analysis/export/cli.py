"""servelab export: a run as another tool's file.

  benchmark-report  llm-d's Benchmark Report v0.2 (.json, or YAML where the file ends in .yaml)
  mooncake          the requests as Mooncake's JSON lines, with adapters, ranks, sessions, SLOs
  openmetrics       the series as vLLM's Prometheus metrics, in OpenMetrics text with stamps
  measured-rows     runs and, with record.steps, steps, as `calibrate --from` and `validate
                    --measured` take them: one file of all points

A spec of several points otherwise makes a file of each: --out is then a folder. Exit codes: 0; 1
when a disk fails; 2 for bad input.
"""
from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Callable, Iterable

from analysis import selection, verb
from analysis.errors import shown
from analysis.point import Point
from analysis.verb import OK, VerbError


def _mooncake(point: Point, _: Path) -> Iterable[str]:
    from analysis.export import mooncake
    return mooncake.lines(point)


def _benchmark_report(point: Point, out: Path) -> Iterable[str]:
    from analysis.export import benchmark_report
    return benchmark_report.lines(point, out)


def _openmetrics(point: Point, _: Path) -> Iterable[str]:
    from analysis.export import openmetrics
    return openmetrics.lines(point)


FORMATS: dict[str, tuple[str, Callable[[Point, Path], Iterable[str]]]] = {
    "benchmark-report": (".json", _benchmark_report),
    "mooncake": (".jsonl", _mooncake),
    "openmetrics": (".om", _openmetrics),
}
ROWS = "measured-rows"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = verb.Parser(prog="servelab export", description=__doc__,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
    selection.add_arguments(parser)
    parser.add_argument("--format", required=True, choices=sorted([*FORMATS, ROWS]))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE",
                        help="a new file; a folder where there are several points")
    return parser.parse_args(arguments)


def command(options: argparse.Namespace) -> int:
    chosen = selection.choose(options.points, options.results)
    for one in chosen:
        if options.out.exists() and options.out.samefile(one.point.path):
            raise VerbError(f"{shown(options.out)}: is what is to be exported; --out needs a new "
                            "file")
    if options.format == ROWS:
        from analysis.export import measured_rows
        _write(options.out, measured_rows.lines([one.point for one in chosen]))
        print(f"{shown(options.out)}: {len(chosen)} points")
        return OK
    ending, lines = FORMATS[options.format]
    several = len(chosen) > 1 or options.out.is_dir()
    if several and options.out.exists() and not options.out.is_dir():
        raise VerbError(f"{shown(options.out)}: is a file; {len(chosen)} points need a folder")
    for one in chosen:
        name = f"{one.point.attribute('key', one.point.path.stem)}{ending}"
        out = options.out / name if several else options.out
        _write(out, lines(one.point, out))
        print(f"{shown(out)}: {one.label}")
    if options.format == "mooncake":
        from analysis.export import mooncake
        print(mooncake.how_to_replay(chosen[0].point, "FILE" if several else shown(options.out)))
    return OK


def _write(path: Path, lines: Iterable[str]) -> None:
    """All or nothing: the file gets its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.servelab-tmp")
    try:
        with open(half, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(line + "\n" for line in lines)
        os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    return verb.run(arguments, parse, command)
