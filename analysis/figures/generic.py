"""Any spec without a figure module of its own: average and P90 latency over what it sweeps, as bars
when it sweeps nothing, and the same numbers as a table."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from analysis import stats, style
from analysis.results import Results

METRICS = [("latency_per_token_mean_s", "average latency (s/token)"),
           ("latency_per_token_p90_s", "P90 latency (s/token)")]
AXES = {"rate": "arrival rate (requests/s)", "requests": "requests", "count": "adapters"}


def draw_bars(axes: Axes, results: Results) -> None:
    """A group of bars per metric, one bar per technique: mean over seeds, 95 % CI."""
    techniques = results.techniques
    width = 0.8 / len(techniques)
    for number, technique in enumerate(techniques):
        look = style.look(technique)
        rows = results.columns["technique"] == technique
        found = [stats.mean_ci(values[np.isfinite(values)])
                 for values in (results.metric(metric)[rows] for metric, _ in METRICS)]
        at = np.arange(len(METRICS)) + (number - (len(techniques) - 1) / 2) * width
        heights = np.nan_to_num([estimate.value for estimate in found])
        axes.bar(at, heights, width, color=look.color, hatch=look.hatch, edgecolor="white",
                 linewidth=0.4, label=look.label, error_kw={"elinewidth": 0.8},
                 yerr=[estimate.half_width for estimate in found])  # NaN, so none, for one seed
        if np.any(results.columns["status"][rows] != "VALID"):
            style.mark_invalid(axes, at, heights)
    axes.set_xticks(range(len(METRICS)), [label for _, label in METRICS])
    axes.set_ylabel("latency (s/token)")
    axes.set_ylim(bottom=0)


def draw_sweep(panels: list[Axes], results: Results) -> None:
    """One panel per metric, one curve per technique over the swept setting."""
    sweep = results.sweep()[len("sweep."):]
    name = sweep.split(".")[-1]
    for axes, (metric, label) in zip(panels, METRICS):
        for technique in results.techniques:
            style.draw_curve(axes, results.curve(metric, technique, sweep))
        style.category_axis(axes, results.x_values(sweep),
                            AXES.get(name, style.plain(name.replace("_", " "))))
        axes.set_ylabel(label)
        style.scale_y(axes)


def table_of(results: Results) -> str:
    """Mean over seeds and 95 % half width of each metric, a line per technique and sweep value."""
    swept = results.sweep_columns
    positions = results.x_values() if swept else [None]
    lines = [f"{results.spec_id}: mean over seeds +- half of the 95 % interval, s/token",
             f"{'technique':32} {results.sweep() if swept else '':>38} {'average':>18} {'P90':>18}"]
    for technique in results.techniques:
        for position in positions:
            rows = results.rows(technique, **({results.sweep(): position} if swept else {}))
            cells = [stats.mean_ci(rows[f"summary.{metric}"].astype(float))
                     for metric, _ in METRICS]
            text = [f"{cell.value:9.4g} +-{cell.half_width:7.2g}" for cell in cells]
            lines.append(f"{technique:32} {'' if position is None else position!s:>38} "
                         + " ".join(f"{cell:>18}" for cell in text))
    return "\n".join(lines) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    """Two panels of curves, or one of bars without a sweep; the numbers in table.txt."""
    table = table_of(results)
    if results.sweep_columns:
        results.sweep()  # one swept setting, or the reason why not, before anything is drawn
        figure, panels = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.6))
        draw_sweep(list(panels), results)
    else:
        figure, panels = plt.subplots(1, 1, squeeze=False, figsize=(style.TWO_COLUMNS_IN, 2.6))
        panels = panels[0]
        draw_bars(panels[0], results)
    style.finish(figure, results, panels[0].get_legend_handles_labels()[0],
                 columns=min(len(results.techniques), 4))
    paths = style.save(figure, out, results.spec_id.split("/")[-1])
    return paths + [style.write_text(out, "table.txt", table)]
