"""dLoRA Fig. 15: shares of ILP solving, switching and inference by rate, beside the artifact's.

Ours: solving counts once, switching and inference are means over the replicas, which work at the
same time. The artifact's notebook has the times of switching, of solving, and in total.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from analysis import metrics, published, style
from analysis.results import Curve, Results

FIGURE, TECHNIQUE = "dlora/fig15", "dlora"
UNCHARGED = "; the solver was charged NO time: its share is not a result"
PARTS = [("inference", "#bdbdbd", ""), ("switching", style.BLUE, "//"),
         ("ILP solving", style.VERMILION, "\\\\")]

def published_shares() -> tuple[np.ndarray, list[np.ndarray]]:
    """The artifact's rates and shares in percent, in the order of PARTS."""
    rates, switching = published.curve(FIGURE, "adjust_time_s", TECHNIQUE)
    solver, total = (published.curve(FIGURE, name, TECHNIQUE)[1]
                     for name in ("solver_time_s", "tot_time_s"))
    return rates, [100 * (total - switching - solver) / total, 100 * switching / total,
                   100 * solver / total]


def stack(axes: Axes, rates: list, shares: list[np.ndarray]) -> None:
    """Stacked bars, one for each rate."""
    bottom = np.zeros(len(rates))
    for (label, color, hatch), share in zip(PARTS, shares):
        axes.bar(range(len(rates)), share, 0.7, bottom, color=color, hatch=hatch, label=label,
                 edgecolor="white", linewidth=0.4, zorder=2)
        bottom = bottom + share
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes.set_xlabel("arrival rate (requests/s)")
    axes.set_ylabel("share of the time (%)")


def share_curves(results: Results) -> list[Curve]:
    """Ours over the rate, in the order of PARTS."""
    return [results.curve_of(lambda index, part=part: metrics.overhead_shares(results, index)[part],
                             TECHNIQUE, "rate") for part in (2, 1, 0)]


def table_of(results: Results) -> str:
    lines = [f"{results.spec_id}: percent of the time, mean over {len(results.seeds)} seeds",
             f"{'rate':>8} {'inference':>10} {'switching':>10} {'solving':>8} {'decisions':>10} "
             f"{'ms/decision':>12} {'migrations':>11}"]
    curves = share_curves(results) + [
        results.curve(name, TECHNIQUE, "rate")
        for name in ("rebalances", "solver_time_per_rebalance_s", "migrations")]
    for position, rate in enumerate(curves[0].x):
        inference, switching, solver, count, time_s, moved = (
            curve.mean[position] for curve in curves)
        lines.append(f"{rate:8g} {inference:10.2f} {switching:10.2f} {solver:8.2f} {count:10.1f} "
                     f"{1e3 * time_s:12.2f} {moved:11.1f}")
    lines += [] if metrics.is_solver_charged(results) else ["", UNCHARGED.removeprefix("; ")]
    lines += ["", "published (artifact's notebook):"]
    rates, shares = published_shares()
    lines += [f"{rate:8g} {inference:10.2f} {switching:10.2f} {solver:8.2f}"
              for rate, inference, switching, solver in zip(rates, *shares)]
    return "\n".join(lines) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    """(a) ours and (b) the artifact's, from 90 % or below on; table.txt."""
    curves = share_curves(results)
    rates, shares = published_shares()
    figure, panels = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.3), sharey=True)
    stack(panels[0], curves[0].x.tolist(), [curve.mean for curve in curves])
    stack(panels[1], rates.tolist(), shares)
    least = np.nanmin([np.nanmin(curves[0].mean), shares[0].min()])
    limit = published.claim("dlora/fig15-inference")
    for axes, title in zip(panels, ("(a) servelab", "(b) published (artifact)")):
        line = style.limit_line(axes, limit, f"paper: inference at least {limit:g} %")
        line.set_zorder(3)
        axes.set_ylim(min(90.0, np.floor(least / 10) * 10), 100)
        axes.tick_params(labelleft=True)
        style.panel_label(axes, title)
    style.finish(figure, results, panels[0].get_legend_handles_labels()[0],
                 note="the axis starts far above zero" + (
                     "" if metrics.is_solver_charged(results) else UNCHARGED))
    return style.save(figure, out, "fig15") + [
        style.write_text(out, "table.txt", table_of(results))]
