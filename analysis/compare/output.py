"""A comparison as text for a terminal, as CSV, and as one HTML file without scripts. The same
comparison gives the same bytes."""
from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis import slo_limits, stats
from analysis.compare.comparing import (ALONE, BETTER, EQUAL, UNCLEAR, WORSE, Comparison,
                                        Metric, Row, position_text)
from analysis.compare.sentences import interval, number, percent, unit_of

WIDTH = 100
SHOWN = {UNCLEAR: "?", ALONE: ""}  # verdicts that are not shown as they are
NAME = "compare"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[:width - 3] + "..."


def headings(comparison: Comparison) -> list[str]:
    """What was compared, on what, and how to read it."""
    facts = ", ".join(f"{name} {value}" for name, value in comparison.facts if value)
    many = comparison.seeds > 1
    return [
        f"{', '.join(comparison.techniques)}: differences to {comparison.baseline}, on the same "
        f"requests, {comparison.seeds} seed{'s' if many else ''}",
        facts,
        f"SLO: {slo_limits.text(comparison.limits)} (seconds, per request)",
        *(["better, worse: distinguishable at 5 % among all comparisons (Benjamini and Hochberg); "
           "?: cannot be told apart; intervals: 95 %, paired over seeds (bootstrap-t or Student's "
           "t, whichever is wider), of the column before"] if many else
          ["one seed: no intervals, and nothing can be called distinguishable"])]


def cells(row: Row) -> list[str]:
    """Value, difference, what is judged with its unit and its interval, and verdict, as text."""
    shown = [f"{row.bound} {number(row.value.value, 4)}".lstrip()]
    if row.difference is None:
        return [*shown, "", "", "", ""]
    return [*shown, _signed(row.difference.value, number),
            f"{_signed(row.shown.value, percent)} {unit_of(row)}".rstrip(),
            interval(row.shown) if row.shown.value else "", SHOWN.get(row.verdict, row.verdict)]


def _signed(value: float, text_of: Callable[[float], str]) -> str:
    return ("+" if value > 0 else "") + text_of(value)


def wrapped(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(indent) + len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return lines + ([indent + line] if line else [])


def table(comparison: Comparison) -> str:
    """Every metric, WIDTH columns wide, then the sentences."""
    rows = [(row, _where(row), cells(row)) for row in comparison.rows]
    widths = [max([len(title)] + [len(text[at]) for _, _, text in rows])
              for at, title in enumerate(("value", "difference", "", "95 % interval"))]
    named = WIDTH - sum(widths) - 2 * len(widths) - max(map(len, (BETTER, WORSE, EQUAL))) - 2
    longest = max([len(where) for _, where, _ in rows] + [9])
    metric_width = min(max([len(metric.heading) for metric in comparison.metrics] + [6]),
                       max(named - 2 - longest, named // 3))
    where_width = min(longest, named - 2 - metric_width)

    def line(metric: str, where: str, values: list[str]) -> str:
        return "  ".join([_cut(metric, metric_width).ljust(metric_width),
                          _cut(where, where_width).ljust(where_width),
                          *(text.rjust(width) for text, width in zip(values, widths)),
                          values[4]]).rstrip()

    lines = [text for heading in headings(comparison) for text in wrapped(heading)]
    lines += ["", line("metric", "technique", ["value", "difference", "", "95 % interval", ""])]
    before: Metric | None = None
    for row, where, values in rows:
        lines.append(line(row.metric.heading if row.metric is not before else "", where, values))
        before = row.metric
    lines.append("")
    for text in comparison.says:
        lines += wrapped(text)
    return "\n".join(lines) + "\n"


def _where(row: Row) -> str:
    return " ".join(filter(None, [row.technique, position_text(row.position)]))


def csv_text(comparison: Comparison) -> str:
    """One row per metric, position and technique, with all numbers in full."""
    swept = list(dict.fromkeys(name for position in comparison.positions for name, _ in position))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["metric", "unit", "source", "better", *swept, "technique", "baseline", "seeds",
                     "value", "value_low", "value_high", "difference", "difference_low",
                     "difference_high", "percent", "percent_low", "percent_high", "p", "p_adjusted",
                     "verdict", "bound", "note"])
    for row in comparison.rows:
        settings = dict(row.position)
        writer.writerow([row.metric.title, row.metric.unit, row.metric.source,
                         "higher" if row.metric.higher_is_better else "lower",
                         *(settings.get(name, "") for name in swept), row.technique,
                         comparison.baseline, row.value.n, *_numbers(row.value),
                         *_numbers(row.difference), *_numbers(row.percent), _number(row.p),
                         _number(row.p_adjusted), row.verdict, row.bound, row.note])
    for one in comparison.excluded:
        settings = dict(one.position or ())
        writer.writerow(["", "", "", "", *(settings.get(name, "") for name in swept),
                         one.technique, comparison.baseline, 0, *[""] * 11, "excluded", "",
                         one.reason])
    return out.getvalue()


def _number(value: float) -> str:
    return f"{value:.9g}" if math.isfinite(value) else ""


def _numbers(estimate: stats.Estimate | None) -> list[str]:
    if estimate is None:
        return ["", "", ""]
    return [_number(value) for value in (estimate.value, estimate.low, estimate.high)]


@dataclass(frozen=True)
class Mark:
    """One row of a plot, in the units of its view box."""

    y: float
    label: str
    dot: float
    low: float
    high: float
    verdict: str
    shown: str


@dataclass(frozen=True)
class Plot:
    """Differences to the baseline of one metric, as an SVG draws them."""

    metric: Metric
    marks: list[Mark]
    height: int
    zero: float
    left: str
    right: str


PLOT_LEFT, PLOT_RIGHT, ROW_HEIGHT = 4.0, 336.0, 34


def plot(comparison: Comparison, metric: Metric) -> Plot | None:
    """None where nothing is compared. In percent where every row has them, else in units."""
    rows = [row for row in comparison.select(metric=metric) if row.difference is not None]
    if not rows:
        return None
    in_percent = all(row.percent is not None for row in rows)
    values = [row.shown if in_percent else row.difference for row in rows]
    ends = [end for v in values for end in (v.low, v.high, v.value) if math.isfinite(end)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    if low == high:
        low, high = -1.0, 1.0

    def at(value: float) -> float:
        inside = PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * (value - low) / (high - low)
        return round(inside, 2)

    marks = []
    for index, (row, value) in enumerate(zip(rows, values)):
        ends_known = math.isfinite(value.low) and math.isfinite(value.high)
        _, difference, share, _, verdict = cells(row)
        marks.append(Mark(ROW_HEIGHT * index + 24, _where(row), at(value.value),
                          at(value.low if ends_known else value.value),
                          at(value.high if ends_known else value.value), row.verdict,
                          f"{share if in_percent else difference} {verdict}".rstrip()))
    unit = f" {unit_of(rows[0])}".rstrip()
    return Plot(metric, marks, ROW_HEIGHT * len(rows) + 18, at(0.0),
                f"{percent(low)}{unit}", f"{percent(high)}{unit}")


def html(comparison: Comparison) -> str:
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True,
                              undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                              keep_trailing_newline=True)
    sections = [(metric, plot(comparison, metric),
                 [(_where(row), cells(row), row.verdict)
                  for row in comparison.select(metric=metric)]) for metric in comparison.metrics]
    return environment.get_template("page.html").render(
        title=comparison.title, headings=headings(comparison), sentences=comparison.says,
        sections=sections)


def write(comparison: Comparison, folder: Path, name: str = NAME) -> list[Path]:
    """Writes <name>.csv, .html and .txt; returns their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, text in (("csv", csv_text(comparison)), ("html", html(comparison)),
                         ("txt", table(comparison))):
        paths.append(folder / f"{name}.{suffix}")
        paths[-1].write_text(text, encoding="utf-8")
    return paths
