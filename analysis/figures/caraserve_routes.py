"""Who routes, under which system: the share of requests that keep the SLO on the time per token,
and the mean time per token, by routing policy and system (named in brackets); a column of panels by
how many servers have an adapter. The SLO is taken as in caraserve_fig19."""
from __future__ import annotations

from pathlib import Path
from typing import Callable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from analysis import stats, style
from analysis.figures import _cdfs, caraserve_fig19
from analysis.figures._cdfs import Row
from analysis.results import Results

COLORS = {"rank-aware": style.VERMILION, "rank-aware-artifact": style.ORANGE,
          "first-fit": style.PURPLE, "random": style.GREEN, "least-loaded": style.BLUE,
          "round-robin": style.SKY}
HATCHES = {"rank-aware-artifact": "..", "first-fit": "++", "random": "\\\\", "least-loaded": "//",
           "round-robin": "xx"}


def copies_of(row: Row) -> int:
    """Servers that have an adapter; 0: all."""
    return int(row.settings["repository_copies"])


def per_token_ms(row: Row, technique: str) -> stats.Estimate:
    own = row.results.columns["technique"] == technique
    return stats.mean_ci(1e3 * row.results.metric(_cdfs.PER_TOKEN.metric)[own])


def draw_bars(axes: Axes, rows: list[Row],
              value_of: Callable[[Row, str], stats.Estimate]) -> None:
    width = 0.86 / len(COLORS)
    for at, row in enumerate(rows):
        for technique in row.techniques:
            policy, value = _cdfs.base_of(technique), value_of(row, technique)
            place = at + (list(COLORS).index(policy) - (len(COLORS) - 1) / 2) * width
            axes.bar(place, value.value, width, color=COLORS[policy],
                     hatch=HATCHES.get(policy, ""), edgecolor="white", linewidth=0.3,
                     yerr=value.half_width, error_kw={"elinewidth": 0.7, "capsize": 1.2})
    axes.set_xticks(range(len(rows)),
                    [style.look(_cdfs.variant_of(row.techniques[0])).label for row in rows])


def table_of(results: Results, rows: list[Row], limit_s: float) -> str:
    lines = [f"{results.spec_id}: SLO {1e3 * limit_s:.1f} ms per token; means over "
             f"{len(results.seeds)} seeds, and half of the 95 % interval",
             f"{'servers with the adapter':>24} {'':31} {'within the SLO %':>17} {'+-':>6} "
             f"{'time per token ms':>18} {'+-':>6}"]
    for row in rows:
        where = str(copies_of(row) or "all")
        for technique in row.techniques:
            share = caraserve_fig19.attained(row, technique, limit_s)
            time = per_token_ms(row, technique)
            lines.append(f"{where:>24} {technique:31} {share.value:17.2f} {share.half_width:6.2f} "
                         f"{time.value:18.2f} {time.half_width:6.2f}")
    return "\n".join(lines) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    limit_s = caraserve_fig19.slo_s(results)
    rows = _cdfs.rows_of(results, without=(caraserve_fig19.ALONE,))
    places = list(dict.fromkeys(copies_of(row) for row in rows))
    figure, grid = plt.subplots(2, len(places), squeeze=False, sharey="row",
                                figsize=(style.TWO_COLUMNS_IN, 3.9))
    for (upper, lower), copies in zip(grid.T, places):
        own = [row for row in rows if copies_of(row) == copies]
        draw_bars(upper, own, lambda row, one: caraserve_fig19.attained(row, one, limit_s))
        draw_bars(lower, own, per_token_ms)
        lower.axhline(1e3 * limit_s, color=style.GREY, linewidth=0.8, linestyle=(0, (4, 2)))
        style.panel_label(upper, f"each adapter on {copies} servers" if copies else
                          "every adapter on every server")
        upper.set(ylim=(0, 105), yticks=range(0, 101, 25))
    grid[0, 0].set_ylabel("within the SLO (%)")
    grid[1, 0].set_ylabel(_cdfs.PER_TOKEN.label)
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=color, hatch=HATCHES.get(policy, ""),
                             edgecolor="white", label=policy) for policy, color in COLORS.items()]
    handles.append(plt.Line2D([], [], color=style.GREY, linewidth=0.8, linestyle=(0, (4, 2)),
                              label=f"SLO, {1e3 * limit_s:.1f} ms"))
    style.finish(figure, results, handles, columns=4)
    return style.save(figure, out, results.spec_id.split("/")[-1]) + [
        style.write_text(out, "table.txt", table_of(results, rows, limit_s))]
