"""Placement paper Fig. 4: batch size and throughput over loaded adapters, ITL over batch size.

Requests are backbone-only, so that adapters cost nothing but memory. Crosses: the slots leave no
room for a single request.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.figures import _parts
from analysis.results import Results

COLORS = {8: style.BLUE, 16: style.ORANGE, 32: style.VERMILION}
MARKERS = ["o", "s", "^", "D"]


def claim_value(results: Results, value: str) -> float:
    """itl: R2 of ITL over the batch; plateau: the fall of throughput over that of the batch, from
    the fewest slots to the most, the largest of the sizes."""
    slots, ranks = (results.columns[results.sweep(name)] for name in ("adapter_slots", "ranks"))
    tokens, gap = results.metric("total_tokens_per_s"), results.metric("itl_p50_s")
    fits = np.array([i for i in range(len(gap))
                     if _parts.is_valid(results, i) and np.isfinite(gap[i])])
    batch = np.array([_parts.mean_batch(results, i) for i in fits])
    if value == "itl":
        return _parts.r_squared(batch, gap[fits])
    falls = []
    for rank in dict.fromkeys(ranks[fits].tolist()):
        own = np.flatnonzero(ranks[fits] == rank)
        own = own[np.argsort(slots[fits][own], kind="stable")]
        falls.append(float(tokens[fits][own[0]] / tokens[fits][own[-1]]
                           / (batch[own[0]] / batch[own[-1]])))
    return max(falls)


def draw(results: Results, out: Path) -> list[Path]:
    figure, (batch, throughput, itl) = plt.subplots(1, 3, figsize=(style.TWO_COLUMNS_IN, 2.3))
    slots, ranks = (results.columns[results.sweep(name)] for name in ("adapter_slots", "ranks"))
    tokens, gap = results.metric("total_tokens_per_s"), results.metric("itl_p50_s") * 1e3
    lines = [f"{results.spec_id}: {'size':>8} {'slots':>6} {'batch':>7} {'tokens/s':>9} "
             f"{'ITL ms':>7}"]
    seen_x, seen_y = [], []
    for number, rank in enumerate(dict.fromkeys(ranks.tolist())):
        fits = [_parts.is_valid(results, i) and np.isfinite(gap[i]) for i in range(len(gap))]
        own = [i for i in np.flatnonzero(ranks == rank) if fits[i]]
        failed = [i for i in np.flatnonzero(ranks == rank) if not fits[i]]
        look = {"color": list(COLORS.values())[number % 3], "marker": MARKERS[number % 4],
                "label": _parts.ranks_label(rank).replace("rank", "size")}
        sizes = np.array([_parts.mean_batch(results, i) for i in own])
        batch.plot(slots[own], sizes, **look)
        throughput.plot(slots[own], tokens[own], **look)
        itl.plot(sizes, gap[own], linestyle="none", **look)
        seen_x += sizes.tolist()
        seen_y += gap[own].tolist()
        for axes, values in ((batch, sizes), (throughput, tokens[own])):
            if failed and len(values):
                axes.plot(slots[failed], np.full(len(failed), values[-1]), linestyle="none",
                          marker="x", color=look["color"], markersize=6)
        lines += [f"{'':{len(results.spec_id)}}  {look['label']:>8} {slots[i]:6d} {size:7.1f} "
                  f"{tokens[i]:9.0f} {gap[i]:7.1f}" for i, size in zip(own, sizes)]
        lines += [f"{'':{len(results.spec_id)}}  {look['label']:>8} {slots[i]:6d}  out of memory"
                  for i in failed]
    slope, start = np.polyfit(seen_x, seen_y, 1)
    edges = np.array([min(seen_x), max(seen_x)])
    fit = _parts.r_squared(np.array(seen_x), np.array(seen_y))
    itl.plot(edges, slope * edges + start, color=style.GREY, linestyle="--", linewidth=0.9)
    itl.text(0.04, 0.95, f"{slope:.2f} ms x B {start:+.1f} ms, $R^2$ {fit:.3f}", va="top",
             transform=itl.transAxes, fontsize=6.5)
    lines.append(f"ITL = {slope:.3f} ms x batch {start:+.2f} ms, R2 {fit:.3f}")
    for axes, title, x, y in ((batch, "(a) Batch size", "adapter slots", "mean requests in a step"),
                              (throughput, "(b) Throughput", "adapter slots", "tokens/s"),
                              (itl, "(c) ITL", "batch size", "median ITL (ms)")):
        axes.set(xlabel=x, ylabel=y)
        axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
        style.panel_label(axes, title)
    handles = batch.get_legend_handles_labels()[0]
    if results.invalid_count:
        handles.append(plt.Line2D([], [], linestyle="none", marker="x", color=style.GREY,
                                  label="out of memory"))
    style.finish(figure, results, handles, note="backbone-only requests, oversaturated")
    return style.save(figure, out, "fig04") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
