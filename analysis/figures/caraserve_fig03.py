"""CaraServe Fig. 3: left, the share of cold starts in the time in which a request is served, by the
rate of requests, over all requests of a rate; right, the time to load one adapter, by rank. Where
the spec sweeps engine.load_path, the shares have a panel for each path, and loads a bar."""
from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from analysis import published, steps, style
from analysis.results import Results

COLORS = [style.BLUE, style.ORANGE, style.VERMILION, style.GREEN]
PATHS = [style.SKY, style.PURPLE, style.GREY, style.BLACK]
PAPERS_RATES = (3, 6, 9)  # requests/s
DASHED = {"linewidth": 0.8, "linestyle": (0, (4, 2))}


def rank_of(text: object) -> int:
    """The largest rank of a swept list, [64] as text."""
    found = json.loads(str(text))
    return int(max(found)) if isinstance(found, list) else int(found)


def positions(results: Results) -> tuple[np.ndarray, np.ndarray]:
    """Rate and rank of every point."""
    columns = results.columns
    return (columns[results.sweep("rate")].astype(float),
            np.array([rank_of(value) for value in columns[results.sweep("ranks")]]))


def share_rates(rate: np.ndarray, rank: np.ndarray) -> list[float]:
    """The rates of the left panel: those with adapters of the largest rank only, where the right
    one has a rate of its own."""
    widest = {float(one) for one in rate[rank == rank.max()]}
    alone = {one for one in widest if set(rank[rate == one].tolist()) == {int(rank.max())}}
    return sorted(alone or widest)


def by_path(results: Results) -> dict[str, Results]:
    """The results by how adapters come over; all of them under "" where that is not swept."""
    if not any(name.endswith(".load_path") for name in results.sweep_columns):
        return {"": results}
    return {str(path): results.select(load_path=path) for path in results.x_values("load_path")}


def draw_shares(axes: Axes, results: Results, path: str) -> list[str]:
    rate, rank = positions(results)
    share = results.metric("cold_start_share_percent")
    lines = [f"{'requests/s':>12}{'mean %':>9}{'median %':>10}{'P99 %':>8}"]
    for number, one in enumerate(share_rates(rate, rank)):
        own = np.flatnonzero((rate == one) & (rank == rank.max()))
        every = np.sort(np.concatenate([steps.cold_start_shares(results, i) for i in own]))
        if not every.size:
            continue
        mean, color = float(np.nanmean(share[own])), COLORS[number % len(COLORS)]
        axes.plot(every, np.arange(1, len(every) + 1) / len(every), color=color,
                  label=f"{one:g} requests/s: mean {mean:.3g} %")
        if one in PAPERS_RATES:
            axes.axvline(published.claim(f"caraserve/fig03-share-{one:g}"), color=color, **DASHED)
        middle, high = np.percentile(every, [50, 99])
        lines.append(f"{one:12g}{mean:9.2f}{middle:10.2f}{high:8.2f}")
    axes.set(xlabel="share of latency (%)" if path else "cold starts in a request's latency (%)",
             ylabel="share of requests", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    style.panel_label(axes, style.plain(path) or "cold-start share")
    return [path] * bool(path) + lines


def draw_loads(axes: Axes, paths: dict[str, Results]) -> list[str]:
    """At the lowest rate, where loads seldom wait for each other."""
    width, lines = 0.6 if len(paths) == 1 else 0.8 / len(paths), []
    for number, (path, results) in enumerate(paths.items()):
        rate, rank = positions(results)
        load = results.metric("adapter_load_mean_s")
        ranks = sorted(set(rank[rate == rate.min()].tolist()))
        ms = [1e3 * float(np.nanmean(load[(rank == one) & (rate == rate.min())]))
              for one in ranks]
        bars = axes.bar(np.arange(len(ranks)) + (number - (len(paths) - 1) / 2) * width, ms, width,
                        color=(style.BLUE if not path else PATHS[number % len(PATHS)]),
                        label=style.plain(path))
        if len(paths) == 1:
            axes.bar_label(bars, fmt="%.2f", fontsize=6.5)
        lines += [path] * bool(path) + [f"{'rank':>12}{'load ms':>9}"] + [
            f"{one:12d}{value:9.2f}" for one, value in zip(ranks, ms)]
    if len(paths) > 1:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(top=axes.get_ylim()[1] * 5 ** (len(paths) / 2))
        axes.legend(loc="upper left", borderpad=0, handlelength=1.2)
    axes.set_xticks(range(len(ranks)), [str(one) for one in ranks])
    axes.set(xlabel="rank", ylabel="mean load (ms)")
    style.panel_label(axes, "load time")
    return lines


def draw(results: Results, out: Path) -> list[Path]:
    paths = by_path(results)
    figure, (*shares, loads) = plt.subplots(1, len(paths) + 1,
                                            figsize=(style.TWO_COLUMNS_IN, 2.3))
    lines = [results.spec_id]
    for axes, (path, own) in zip(shares, paths.items()):
        lines += draw_shares(axes, own, path)
    lines += draw_loads(loads, paths)
    handles = shares[0].get_legend_handles_labels()[0]
    if len(paths) > 1:  # the means differ: they are in the table
        for handle in handles:
            handle.set_label(handle.get_label().partition(":")[0])
    handles.append(plt.Line2D([], [], color=style.GREY, label="mean in the paper", **DASHED))
    style.finish(figure, results, handles, note="distributions over the requests of all seeds")
    return style.save(figure, out, "fig03") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
