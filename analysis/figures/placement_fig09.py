"""Placement paper Fig. 9: non-stationary arrivals, and running and waiting requests over time."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.figures import _twin
from analysis.results import Results

SHOWN_ADAPTERS = 4
COLORS = [style.BLUE, style.VERMILION, style.GREEN, style.PURPLE]


def draw_arrivals(axes: plt.Axes, results: Results, index: int, bin_s: float) -> None:
    """Requests per second of the busiest adapters, in bins as long as a process lasts."""
    point = results.point(index)
    at, adapter = point.read("requests/scheduled") / 1e9, point.read("requests/adapter")
    edges = np.arange(0, at.max() + bin_s, bin_s)
    busiest = np.argsort(-np.bincount(adapter[adapter >= 0]), kind="stable")[:SHOWN_ADAPTERS]
    for number, color in zip(sorted(busiest.tolist()), COLORS):
        counts, _ = np.histogram(at[adapter == number], edges)
        axes.stairs(counts / bin_s, edges, color=color, label=f"adapter {number}", linewidth=1.1)
    axes.set_ylabel("requests/s")
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])  # room for the legend above the lines
    axes.legend(ncols=2, fontsize=6, loc="upper center")


def claim_value(results: Results, level: str) -> float:
    """Correlation of the twin's and the engine's running or waiting requests over the bins; a bin
    without a step has none."""
    pair = _twin.pairs(results)[0]
    read = [results.point(index) for index in (pair.engine, pair.twin)]
    starts = [point.read("series/start") for point in read]
    bins = np.unique(np.concatenate(starts))
    values = np.zeros((2, len(bins)))
    for row, (point, start) in enumerate(zip(read, starts)):
        values[row, np.searchsorted(bins, start)] = point.read(f"series/{level}")
    return float(np.corrcoef(values)[0, 1])


def draw(results: Results, out: Path) -> list[Path]:
    pair = _twin.pairs(results)[0]
    figure, (arrivals, running, waiting) = plt.subplots(
        1, 3, figsize=(style.TWO_COLUMNS_IN, 2.4), width_ratios=[1, 1.1, 1.1])
    process = results.spec.get("workload", {}).get("arrivals", {})
    draw_arrivals(arrivals, results, pair.engine, float(process.get("update_s", 1)))
    style.panel_label(arrivals, "(a) Arrivals")
    lines = [f"{results.spec_id}: levels at the end of each bin"]
    for axes, level, title in ((running, "num_requests_running", "(b) Running requests"),
                               (waiting, "num_requests_waiting", "(c) Waiting requests")):
        for index, name, color, line in ((pair.engine, "engine", style.BLUE, "-"),
                                         (pair.twin, "twin", style.VERMILION, "--")):
            point = results.point(index)
            values = point.read(f"series/{level}")
            axes.plot(point.read("series/start") / 1e9, values, line, color=color, label=name)
            lines.append(f"{level.removeprefix('num_requests_'):8} {name:7} mean "
                         f"{values.mean():7.2f}  max {values.max():4d}")
        style.panel_label(axes, title)
        axes.set_ylabel("requests")
        axes.set_ylim(bottom=0)
    for axes in (arrivals, running, waiting):
        axes.set_xlabel("time (s)")
    for name in _twin.METRICS:
        lines.append(f"{name} SMAPE {_twin.mean_error(results, name, [pair]):.2f} %")
    style.finish(figure, results, running.get_legend_handles_labels()[0],
                 note=f"the {SHOWN_ADAPTERS} busiest adapters are shown")
    return style.save(figure, out, "fig09") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
