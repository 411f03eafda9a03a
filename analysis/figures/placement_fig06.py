"""Placement paper Fig. 6: time to load an adapter, from disk and from host memory, relative to the
latency of a request, TPOT x (output tokens - 1), for three lengths of request."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, style
from analysis.figures import _parts
from analysis.results import Results

NAMES = ["small", "medium", "large"]
COLORS = {"host": style.BLUE, "disk": style.ORANGE}


def load_ms(results: Results, index: int) -> float:
    """Median over the run's loads."""
    point = results.point(index)
    loads = point.read("events/value")[point.read("events/code") == 0]
    return 1e3 * float(np.median(loads)) if loads.size else float("nan")


def request_ms(results: Results, index: int) -> float:
    outputs = results.point(index).read("requests/output_tokens")
    return 1e3 * float(results.metric("tpot_mean_s")[index]) * (float(outputs.mean()) - 1)


def times_ms(results: Results) -> dict[tuple, tuple[float, float]]:
    """(storage, size, prompt tokens) -> time of a load, latency of a request."""
    names = [results.sweep(name) for name in ("adapter_store", "ranks", "prompt")]
    return {where: (load_ms(results, index), request_ms(results, index))
            for index, where in enumerate(zip(*(results.columns[name].tolist()
                                                for name in names)))}


def disk_over_host(times: dict[tuple, tuple[float, float]]) -> float:
    """By how many percent loads from disk take longer than from host memory, on average."""
    disk, host = (np.mean([load for (store, *_), (load, _) in times.items() if store == name])
                  for name in ("disk", "host"))
    return float(100 * (disk / host - 1))


def claim_value(results: Results, value: str) -> float:
    """short-least, short-most: share of a load from host memory in the latency of the shortest
    request, over the sizes (%); long: the largest share for longer ones; disk: disk_over_host."""
    times = times_ms(results)
    if value == "disk":
        return disk_over_host(times)
    shortest = min(prompt for _, _, prompt in times)
    shares = [100 * load / whole for (store, _, prompt), (load, whole) in times.items()
              if store == "host" and (prompt > shortest) == (value == "long")]
    return min(shares) if value == "short-least" else max(shares)


def draw(results: Results, out: Path) -> list[Path]:
    times = times_ms(results)
    lengths = sorted({prompt for _, _, prompt in times})
    sizes = list(dict.fromkeys(rank for _, rank, _ in times))
    stores = [store for store in COLORS if store in {store for store, _, _ in times}]
    figure, panels = plt.subplots(1, len(lengths), figsize=(style.TWO_COLUMNS_IN, 2.3))
    lines = [f"{results.spec_id}: {'request':8}{'size':>6}{'store':>6}{'load ms':>9}"
             f"{'request ms':>11}{'share %':>9}"]
    for axes, length, name in zip(np.atleast_1d(panels), lengths, NAMES):
        for number, store in enumerate(stores):
            heights = []
            for rank in sizes:
                load, whole = times[store, rank, length]
                heights.append(100 * load / whole)
                lines.append(f"{'':{len(results.spec_id)}}  {name:8}"
                             f"{_parts.ranks_label(rank)[5:]:>6}{store:>6}{load:9.2f}{whole:11.1f}"
                             f"{heights[-1]:9.2f}")
            axes.bar(np.arange(len(sizes)) + (number - (len(stores) - 1) / 2) * 0.38, heights, 0.36,
                     color=COLORS[store], label={"host": "host memory", "disk": "disk"}[store],
                     hatch="" if store == "host" else "//", edgecolor="white", linewidth=0.4)
        axes.set_xticks(range(len(sizes)), [_parts.ranks_label(rank)[5:] for rank in sizes])
        axes.set(xlabel="adapter size (rank)", ylabel="load / request latency (%)")
        style.panel_label(axes, f"{name} ({length} in)")
    if len(stores) > 1:
        lines.append(f"disk over host: {disk_over_host(times):.0f} % slower "
                     f"(paper: {published.claim('placement/fig06-disk'):g} %)")
    style.finish(figure, results, np.atleast_1d(panels)[0].get_legend_handles_labels()[0],
                 note="one request at a time, each with a new adapter; medians")
    return style.save(figure, out, "fig06") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
