"""dLoRA Fig. 6: the switching thresholds over |R_merge| / |B_fcfs|, as tuned over time.

One run of replica 0 for each technique and sweep value (first seed): gauges alpha_switch,
beta_switch and merge_ratio, with the time in merged mode shaded.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from analysis import style
from analysis.point import Gauge, Point
from analysis.results import Results

REPLICA = 0
MOST_PANELS = 4
POINTS, SHADE = "#6f6f6f", "#fbe3d3"


def gauge_of_replica(point: Point, name: str) -> Gauge:
    gauge = point.gauge(name)
    keep = gauge.replica == REPLICA
    return Gauge(gauge.time_s[keep], gauge.value[keep], gauge.replica[keep])


def merged_spans(point: Point) -> list[tuple[float, float]]:
    """Stretches of time (s) in which most steps of a bin were merged, adjacent bins joined."""
    keep = point.read("series/replica") == REPLICA
    start_s = point.read("series/start")[keep] / 1e9
    steps, merged = point.read("series/steps")[keep], point.read("series/merged_steps")[keep]
    if start_s.size < 2:
        return []
    bin_s = float(np.min(np.diff(start_s)))
    spans: list[tuple[float, float]] = []
    for at, share in zip(start_s, merged / np.maximum(steps, 1)):
        if share <= 0.5:
            continue
        if spans and abs(spans[-1][1] - at) < 0.01 * bin_s:
            spans[-1] = (spans[-1][0], float(at + bin_s))
        else:
            spans.append((float(at), float(at + bin_s)))
    return spans


def draw_point(axes: Axes, point: Point) -> None:
    """The axis ends a little above the thresholds; ratios beyond it are triangles at its edge."""
    for begin, end in merged_spans(point):
        axes.axvspan(begin, end, color=SHADE, linewidth=0, zorder=0)
    top = 1.25
    for name, color, line in (("alpha_switch", style.BLUE, "-"),
                              ("beta_switch", style.VERMILION, "--")):
        gauge = gauge_of_replica(point, name)
        axes.step(gauge.time_s, gauge.value, where="post", color=color, linestyle=line, zorder=3)
        top = max(top, 1.15 * np.nanmax(gauge.value, initial=0))
    ratio = gauge_of_replica(point, "merge_ratio")
    beyond = ratio.value > top
    axes.plot(ratio.time_s[~beyond], ratio.value[~beyond], linestyle="none", marker=".",
              markersize=2.5, color=POINTS, zorder=2)
    axes.plot(ratio.time_s[beyond], np.full(np.count_nonzero(beyond), top), linestyle="none",
              marker="^", markersize=2.5, markeredgewidth=0, color=POINTS, zorder=2)
    axes.set_ylabel("ratio")
    axes.set_ylim(0, 1.03 * top)
    axes.margins(x=0)


def draw(results: Results, out: Path) -> list[Path]:
    """One panel per technique and sweep value, at most four."""
    chosen: dict[tuple, int] = {}
    for index, technique in enumerate(results.columns["technique"]):
        where = (style.look(technique).label,) + tuple(
            style.plain(f"{column.split('.')[-1]} {results.columns[column].tolist()[index]}")
            for column in results.sweep_columns)
        chosen.setdefault(where, index)
    places = list(chosen.items())[:MOST_PANELS]
    figure, panels = plt.subplots(len(places), 1, sharex=True, squeeze=False,
                                  figsize=(style.TWO_COLUMNS_IN, 0.9 + 1.25 * len(places)))
    for axes, (where, index) in zip(panels[:, 0], places):
        draw_point(axes, results.point(index))
        style.panel_label(axes, ", ".join(where))
    panels[-1, 0].set_xlabel("time since the start of the run (s)")
    handles = [plt.Line2D([], [], color=style.BLUE, label=r"$\alpha_{switch}$ (to merged)"),
               plt.Line2D([], [], color=style.VERMILION, linestyle="--",
                          label=r"$\beta_{switch}$ (to unmerged)"),
               plt.Line2D([], [], color=POINTS, marker=".", linestyle="none",
                          label=r"$|R_{merge}|\,/\,|B_{fcfs}|$"),
               plt.Line2D([], [], color=POINTS, marker="^", markersize=2.5, linestyle="none",
                          label="beyond the axis"),
               Patch(color=SHADE, label="mostly merged steps")]
    style.finish(figure, results, handles, note=f"seed {int(results.columns['seed'][places[0][1]])}"
                 f" shown, replica {REPLICA}")
    return style.save(figure, out, "fig06")
