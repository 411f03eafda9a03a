"""The twin's A10 beside S-LoRA's own runs on an A10G, of the same requests: throughput, latency per
output token and time to first token, and how far apart they are, by load regime.

A run is saturated where S-LoRA's throughput is below 90 % of the rate at which requests came. The
error of throughput is the SMAPE of the placement paper, that of latencies |twin / measured - 1|;
what is beyond the limits is marked.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, style
from analysis.figures import _twin
from analysis.results import Results

COLUMNS = {"throughput": ("requests_per_s", "requests_per_s"),  # ours, published
           "latency per output token": ("latency_per_token_mean_of_ratios_s",
                                        "latency_per_output_token_s"),
           "TTFT": ("ttft_mean_s", "ttft_s")}
UNITS = {"throughput": (1, "requests/s"), "latency per output token": (1e3, "ms"), "TTFT": (1, "s")}
LIMITS = {"throughput": 5.0, "latency per output token": 20.0}  # percent
SETTINGS = {"[8]": ("S1: rank 8", style.BLUE, "o"),
            "[64,32,16,8]": ("S2: ranks 64 to 8", style.VERMILION, "^")}
REGIMES = ("not saturated", "saturated")
HEADS = ["load", "runs", "throughput: SMAPE %", "latency per output token: mean %", "most %",
         "TTFT: mean %", ""]


@dataclass(frozen=True)
class Run:
    """One of S-LoRA's settings: what it measured, and the twin's mean over seeds."""

    ranks: str
    adapters: int
    exponent: float
    trace: str
    offered_per_s: float
    measured: dict[str, float]
    twin: dict[str, float]

    @property
    def regime(self) -> str:
        return REGIMES[self.measured["throughput"] < _twin.STARVED * self.offered_per_s]

    def error(self, name: str) -> float:
        """Percent."""
        if name == "throughput":
            return _twin.symmetric_error(self.twin[name], self.measured[name])
        return 100 * abs(self.twin[name] / self.measured[name] - 1)


def _published() -> dict[tuple, dict[str, float]]:
    """S-LoRA's values by setting, the mean of rows that share one."""
    rows: dict[tuple, list[published.Row]] = {}
    for row in published.table("slora_a10g"):
        trace = f"rate{row['rate']}_cv{row['cv']}"
        rows.setdefault((row["ranks"], int(row["adapters"]), float(row["exponent"]), trace),
                        []).append(row)
    return {place: {name: float(np.mean([float(row[theirs]) for row in same]))
                    for name, (_, theirs) in COLUMNS.items()} for place, same in rows.items()}


def runs(results: Results) -> list[Run]:
    """The spec's positions that S-LoRA measured, in the spec's order."""
    columns = [results.columns[results.sweep(name)].tolist()
               for name in ("ranks", "count", "exponent", "trace")]
    known, at = _published(), {}
    for index, (ranks, count, exponent, trace) in enumerate(zip(*columns)):
        place = (str(ranks), int(count), float(exponent), Path(str(trace)).stem)
        if place in known and results.columns["status"][index] == "VALID":
            at.setdefault(place, []).append(index)
    if not at:
        raise results.error("none of its points is a setting of analysis/published/slora_a10g.csv")
    found = []
    for place, indices in at.items():
        scheduled = results.point(indices[0]).read("requests/scheduled")
        twin = {name: float(np.mean(results.metric(ours)[indices]))
                for name, (ours, _) in COLUMNS.items()}
        offered = len(scheduled) / (float(scheduled.max()) / 1e9)
        found.append(Run(*place, offered, known[place], twin))
    return found


def rows_of(found: list[Run]) -> list[list[str]]:
    """The table's cells: a row for each load, and one for all."""
    rows = []
    for regime in (*REGIMES, "all"):
        own = [run for run in found if regime in (run.regime, "all")]
        if not own:
            continue
        errors = {name: [run.error(name) for run in own] for name in COLUMNS}
        good = all(np.mean(errors[name]) <= limit for name, limit in LIMITS.items())
        latency = errors["latency per output token"]
        rows.append([regime, str(len(own)), f"{np.mean(errors['throughput']):.2f}",
                     f"{np.mean(latency):.1f}", f"{max(latency):.1f}",
                     f"{np.mean(errors['TTFT']):.1f}", "" if good else "beyond the limits"])
    return rows


def table_of(results: Results, found: list[Run]) -> str:
    lines = [f"{results.spec_id}: twin / S-LoRA's own, and the error in %",
             "".join(f"{head:>{width}}" for head, width in zip(HEADS, (14, 6, 22, 34, 8, 14, 19)))]
    lines += ["".join(f"{cell:>{width}}" for cell, width in zip(row, (14, 6, 22, 34, 8, 14, 19)))
              for row in rows_of(found)]
    heads = "".join(f"{name + ', ' + unit:>38}" for name, (_, unit) in UNITS.items())
    lines += ["", f"{'ranks':14}{'adapters':>9}{'exponent':>9}  {'requests':12}{'load':14}{heads}"]
    for run in found:
        cells = [f"{scale * run.twin[name]:.4g} / {scale * run.measured[name]:.4g}"
                 f" ({100 * (run.twin[name] / run.measured[name] - 1):+.1f})"
                 for name, (scale, _) in UNITS.items()]
        lines.append(f"{run.ranks:14}{run.adapters:9d}{run.exponent:9g}  {run.trace:12}"
                     f"{run.regime:14}" + "".join(f"{cell:>38}" for cell in cells))
    return "\n".join(lines) + "\n"


def scatter(axes: plt.Axes, found: list[Run], name: str) -> None:
    """Twin over measured, hollow where saturated."""
    scale, unit = UNITS[name]
    for run in found:
        _, color, marker = SETTINGS[run.ranks]
        hollow = run.regime == "saturated"
        axes.plot(scale * run.measured[name], scale * run.twin[name], linestyle="none",
                  marker=marker, markersize=3.6, color=color, markeredgewidth=0.8,
                  markerfacecolor="white" if hollow else color)
    _twin.diagonal(axes, [scale * side[name] for run in found for side in (run.measured, run.twin)])
    axes.set(xlabel=f"S-LoRA on an A10G ({unit})", ylabel=f"twin ({unit})")
    style.panel_label(axes, name)


def draw(results: Results, out: Path) -> list[Path]:
    """Three scatter plots over the table of errors; every run in the text."""
    found = runs(results)
    cells = rows_of(found)
    figure, panels = plt.subplot_mosaic([list(UNITS), ["table"] * len(UNITS)],
                                        height_ratios=[2.2, 0.22 * len(cells) + 0.22],
                                        figsize=(style.TWO_COLUMNS_IN, 3.5))
    for name in UNITS:
        scatter(panels[name], found, name)
    style.cell_table(panels["table"], cells, HEADS, [0.13, 0.07, 0.18, 0.28, 0.1, 0.13, 0.17],
                     red=[bool(row[-1]) for row in cells])
    handles = [plt.Line2D([], [], linestyle="none", color=color, marker=marker, markersize=3.6,
                          label=text) for text, color, marker in SETTINGS.values()]
    handles += [plt.Line2D([], [], linestyle="none", color=style.GREY, marker="s", markersize=3.6,
                           markerfacecolor=face, label=text)
                for text, face in zip(REGIMES, (style.GREY, "white"))]
    style.finish(figure, results, handles, note="twin: means over seeds, which draw the adapters; "
                 f"saturated: S-LoRA served below {100 * _twin.STARVED:g} % of the rate; limits: "
                 "5 % of throughput, 20 % of latency per output token")
    return style.save(figure, out, results.spec_id.split("/")[-1]) + [
        style.write_text(out, "table.txt", table_of(results, found))]
