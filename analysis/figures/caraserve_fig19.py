"""CaraServe Fig. 19: the share of requests that keep the SLO on the time per token, and its
distribution, by routing policy; a row for each kernel, named in brackets. The SLO is 1.5 times what
`peft`, a merged model on a server of its own, takes in the same results."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from analysis import service, slo_limits, stats, style
from analysis.figures import _cdfs
from analysis.figures._cdfs import Row
from analysis.results import Results

ALONE = "peft"
TIMES, SIMULATORS_SLO_S = 1.5, 0.04
OURS = "rank-aware"


def slo_s(results: Results) -> float:
    alone = results.columns["technique"] == ALONE
    return TIMES * float(np.nanmean(results.metric(_cdfs.PER_TOKEN.metric)[alone]))


def attained(row: Row, technique: str, limit_s: float) -> stats.Estimate:
    """Percent of all requests, over the seeds."""
    own = np.flatnonzero(row.results.columns["technique"] == technique)
    limits = slo_limits.parse(f"latency_per_token={limit_s!r}")
    return stats.mean_ci([100 * service.slo_value(row.results, int(index), "slo_attainment", limits)
                          for index in own])


def rows_of(results: Results) -> list[Row]:
    return _cdfs.rows_of(results, without=(ALONE,))


def claim_value(results: Results, value: str) -> float:
    """`attained <kernel>`: percent of requests within the SLO under rank-aware routing; `highest
    <kernel>`: that over the most under another policy."""
    what, kernel = value.split()
    limit_s = slo_s(results)
    row = next(row for row in rows_of(results)
               if all(_cdfs.variant_of(one) == kernel for one in row.techniques))
    share = {_cdfs.base_of(one): attained(row, one, limit_s).value for one in row.techniques}
    ours = share.pop(OURS)
    return {"attained": ours, "highest": ours / max(share.values())}[what]


def draw_bars(axes: Axes, row: Row, limit_s: float) -> None:
    shares = [attained(row, technique, limit_s) for technique in row.techniques]
    for at, (technique, share) in enumerate(zip(row.techniques, shares)):
        look = style.look(technique)
        axes.bar(at, share.value, 0.7, color=look.color, hatch=look.hatch, edgecolor="white",
                 linewidth=0.4, yerr=share.half_width,
                 error_kw={"elinewidth": 0.8})
        axes.annotate(f"{share.value:.1f}", (at, share.value + np.nan_to_num(share.half_width)),
                      ha="center", va="bottom", fontsize=6.5)
    axes.set_xticks(range(len(row.techniques)),
                    [style.look(one).label for one in row.techniques])
    top = max([100.0] + [share.value + np.nan_to_num(share.half_width) for share in shares])
    axes.set(ylabel="within the SLO (%)", ylim=(0, 1.12 * top), yticks=range(0, 101, 25))
    style.panel_label(axes, style.plain(row.title))


def table_of(results: Results, rows: list[Row], limit_s: float) -> str:
    width = max(len(one) for row in rows for one in row.techniques)
    lines = [f"{results.spec_id}: SLO {1e3 * limit_s:.1f} ms per token, {TIMES:g} x "
             f"{1e3 * limit_s / TIMES:.1f} ms; means over {len(results.seeds)} seeds",
             f"{'':{width}} {'within the SLO %':>17} {'within 40 ms %':>15} "
             f"{'time per token ms':>18} {'rank-aware below %':>19}"]
    for row in rows:
        values = 1e3 * row.results.metric(_cdfs.PER_TOKEN.metric)
        mean = {one: float(values[row.results.columns["technique"] == one].mean())
                for one in row.techniques}
        ours = next((mean[one] for one in row.techniques if _cdfs.base_of(one) == OURS), np.nan)
        lines.append(row.title)
        lines += [f"{one:{width}} {attained(row, one, limit_s).value:17.2f} "
                  f"{attained(row, one, SIMULATORS_SLO_S).value:15.2f} {mean[one]:18.2f} "
                  f"{100 * (1 - ours / mean[one]):19.1f}" for one in row.techniques]
    return "\n".join(lines) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    rows, limit_s = rows_of(results), slo_s(results)
    figure, grid = plt.subplots(len(rows), 2, squeeze=False, width_ratios=(1, 1.2),
                                figsize=(style.TWO_COLUMNS_IN, 0.9 + 1.6 * len(rows)))
    drawn: list[np.ndarray] = []
    for (bars, curves), row in zip(grid, rows):
        draw_bars(bars, row, limit_s)
        drawn += _cdfs.draw_panel(curves, row, _cdfs.PER_TOKEN)
        curves.axvline(1e3 * limit_s, color=style.GREY, linewidth=0.8, linestyle=(0, (4, 2)),
                       zorder=1, label=f"SLO, {1e3 * limit_s:.1f} ms")
        curves.set_ylabel("share of requests")
    low, high = (pick(np.percentile(values, share) for values in drawn)
                 for pick, share in ((min, 0), (max, 99.5)))
    for axes in grid[:, 1]:
        axes.set(xscale="log", xlim=(low / 1.05, high * 1.05), ylim=(0, 1.02))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 7)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="x")
    grid[-1, 1].set_xlabel(_cdfs.PER_TOKEN.label)
    by_label = {handle.get_label(): handle for axes in grid[:, 1]
                for handle in axes.get_legend_handles_labels()[0]}
    style.finish(figure, results, list(by_label.values()),
                 note="error bars: 95 % CI over seeds; markers: means; the axis ends at P99.5")
    return style.save(figure, out, results.spec_id.split("/")[-1]) + [
        style.write_text(out, "table.txt", table_of(results, rows, limit_s))]
