"""Values by replica, and text of estimates, for the cluster figures."""
from __future__ import annotations

import math
from typing import Callable

import numpy as np
from matplotlib.axes import Axes

from analysis import slo, stats, style
from analysis.results import Results


def by_replica(results: Results, technique: str,
               values_of: Callable[[int], np.ndarray]) -> list[stats.Estimate]:
    """For each replica the mean over a technique's points (its seeds) of a value of the point."""
    rows = np.flatnonzero(results.columns["technique"] == technique)
    table = np.array([values_of(index) for index in rows], dtype=float)
    return [stats.mean_ci(column[np.isfinite(column)]) for column in table.T]


def bars(axes: Axes, estimates: list[stats.Estimate], technique: str, place: int, of: int,
         label: str = "") -> None:
    """A bar with its 95 % CI for each replica; bar `place` of the `of` that stand side by side."""
    look, width = style.look(technique), 0.8 / of
    at = np.arange(len(estimates)) + (place - (of - 1) / 2) * width
    axes.bar(at, [one.value for one in estimates], width, color=look.color, hatch=look.hatch,
             edgecolor="white", linewidth=0.4, label=label or look.label, zorder=2,
             yerr=np.nan_to_num([one.half_width for one in estimates]),
             error_kw={"elinewidth": 0.8})
    axes.set_xticks(range(len(estimates)))
    axes.set_xlabel("replica")


def ratio_text(estimate: stats.Estimate, bound: str = "") -> str:
    """'3.61x [3.20, 4.07]'; '> 3.61x' for a bound."""
    if not math.isfinite(estimate.value):
        return "-"
    if bound:
        return f"{bound} {estimate.value:.2f}x"
    interval = f" [{estimate.low:.2f}, {estimate.high:.2f}]" if math.isfinite(estimate.low) else ""
    return f"{estimate.value:.2f}x{interval}"


def rate_text(rate: slo.Rate) -> str:
    """'41.2 +-3.1', with > or < where the sweep ends before the limit is crossed."""
    found = rate.estimate
    if not math.isfinite(found.value):
        return "-"
    if rate.bound:
        return f"{rate.bound} {found.value:.3g}"
    half = f" +-{found.half_width:.2g}" if math.isfinite(found.half_width) else ""
    return f"{found.value:.3g}{half}"
