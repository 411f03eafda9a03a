"""dLoRA Fig. 13: SM and memory utilisation by replica, beside the optimum.

SM utilisation is the share of the run in which the device executes kernels; memory is weights, KV
and adapters over the device's memory, the mean over the seconds with a step, and over time for the
first seed. The optimum serves the same requests, all of one type, merged.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from analysis import metrics, stats, style
from analysis.figures import _replicas
from analysis.results import Results

PARTS = [("SM", metrics.sm_by_replica), ("memory", metrics.memory_by_replica)]
METRICS = {"SM": "sm_utilisation", "memory": "memory_utilisation"}


def draw_over_time(axes: Axes, results: Results, technique: str) -> None:
    """Mean over the replicas with a step in each bin, and the band from least to most."""
    index = int(np.flatnonzero(results.columns["technique"] == technique)[0])
    start_s, _, percent = metrics.memory_over_time(results, index)
    bins, at = np.unique(start_s, return_inverse=True)
    groups = [percent[at == number] for number in range(len(bins))]
    look = style.look(technique)
    axes.plot(bins, [group.mean() for group in groups], color=look.color, linestyle=look.line,
              label=look.label)
    axes.fill_between(bins, [group.min() for group in groups], [group.max() for group in groups],
                      color=look.color, alpha=0.2, linewidth=0)


def held_and_batch(results: Results, index: int) -> tuple[float, float]:
    """Requests that hold KV on the device, and requests in a step: means over the steps."""
    point = results.point(index)
    steps = point.read("series/steps")
    held = np.average(point.read("series/num_requests_running"), weights=steps)
    return float(held), float(point.read("series/batch_requests").sum() / steps.sum())


def table_of(results: Results) -> str:
    lines = [f"{results.spec_id}: utilisation in percent, mean over {len(results.seeds)} seeds, "
             "95 % CI", f"{'technique':12} {'':8} {'mean':>14} {'least to most':>16} "
             f"{'most over least':>22}"]
    for technique in results.techniques:
        own = results.columns["technique"] == technique
        for name, values_of in PARTS:
            mean = stats.mean_ci(results.metric(f"{METRICS[name]}_percent")[own])
            balance = stats.geometric_ci(results.metric(f"{METRICS[name]}_max_over_min")[own])
            replicas = [one.value for one in _replicas.by_replica(
                results, technique, lambda index: values_of(results, index))]
            half = f" +-{mean.half_width:.1f}" if np.isfinite(mean.half_width) else ""
            lines.append(f"{technique:12} {name:8} {f'{mean.value:.1f}{half}':>14} "
                         f"{f'{min(replicas):.1f} to {max(replicas):.1f}':>16} "
                         f"{_replicas.ratio_text(balance):>22}")
        held, batch = np.mean([held_and_batch(results, index) for index in np.flatnonzero(own)],
                              axis=0)
        lines.append(f"{technique:12} requests that hold KV: {held:.1f}; in a step: {batch:.1f}")
    return "\n".join(lines) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    """(a) SM and (b) memory utilisation by replica, (c) memory over time."""
    figure, panels = plt.subplots(1, 3, figsize=(style.TWO_COLUMNS_IN, 2.3), sharey=True)
    techniques = results.techniques
    for axes, (name, values_of) in zip(panels, PARTS):
        for place, technique in enumerate(techniques):
            _replicas.bars(axes, _replicas.by_replica(
                results, technique, lambda index: values_of(results, index)),
                technique, place, len(techniques))
        axes.set_ylabel(f"{name} utilisation (%)")
    for technique in techniques:
        draw_over_time(panels[2], results, technique)
    panels[2].set_xlabel("time (s)")
    panels[2].set_ylabel("memory utilisation (%)")
    for axes, title in zip(panels, ("(a) SM", "(b) Memory", "(c) Memory over time")):
        style.panel_label(axes, title)
        axes.set_ylim(0, 100)
        axes.tick_params(labelleft=True)
    style.finish(figure, results, panels[0].get_legend_handles_labels()[0],
                 note=f"error bars: 95 % CI over seeds; (c): seed {results.seeds[0]}, mean over "
                      "the replicas, band from least to most")
    return style.save(figure, out, "fig13") + [
        style.write_text(out, "table.txt", table_of(results))]
