"""Placement paper Fig. 5: throughput slowdown and ITL overhead against adapters in the batch, by
adapter size, relative to backbone-only execution; engine and twin. Medians over seeds, which
repeat the same requests, of throughput and of the median ITL."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.figures import _parts
from analysis.results import Results

COLORS = [style.BLUE, style.ORANGE, style.VERMILION]
MARKERS = ["o", "s", "^"]
LOOKS = {"cpu": ("-", True, "engine"), "cuda": ("-", True, "engine"), "twin": ("--", False, "twin")}


def relative(results: Results, rank: object, backend: str) -> tuple[np.ndarray, ...]:
    """Adapters in the batch, slowdown of throughput and ITL overhead (%) over backbone-only."""
    columns = results.columns
    counts, ranks = columns[results.sweep("count")], columns[results.sweep("ranks")]
    here = backends_of(results) == backend
    x = np.unique(counts[(ranks == rank) & here])
    typical = []
    for metric in ("output_tokens_per_s", "itl_p50_s"):
        values = results.metric(metric)
        # without an adapter their size means nothing, unless slots are reserved for it
        typical.append(np.array([np.median(values[here & (counts == count) & (
            (ranks == rank) | ((count == 0) & (not reserves_slots(results))))]) for count in x]))
    tokens, gap = typical
    return x, tokens[x == 0] / tokens, 100 * (gap / gap[x == 0] - 1)


def reserves_slots(results: Results) -> bool:
    return "sweep.engine.slot_rank" in results.columns


def backends_of(results: Results) -> np.ndarray:
    """The backend of each point."""
    if "sweep.backend" in results.columns:
        return results.columns["sweep.backend"]
    return np.array([results.attributes.get("backend", "")] * len(results.columns["key"]),
                    dtype=object)


def claim_value(results: Results, value: str) -> float:
    """On the engine, or the twin alone, the least of the sizes. jump: slowdown by the first adapter
    over the slope from there on; linear: R2 of the slowdown from one adapter on."""
    found = []
    engine = max(backends_of(results).tolist(), key=lambda name: LOOKS[name][1])
    for rank in dict.fromkeys(results.columns[results.sweep("ranks")].tolist()):
        x, slow, _ = relative(results, rank, engine)
        x, slow = x[x > 0], slow[x > 0]
        slope = np.polyfit(x.astype(float), slow, 1)[0]
        found.append(float((slow[0] - 1) / slope) if value == "jump" else
                     _parts.r_squared(x, slow))
    return float(np.nanmin(found))


def draw(results: Results, out: Path) -> list[Path]:
    figure, (slowdown, overhead) = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.4))
    columns = results.columns
    ranks, backends = columns[results.sweep("ranks")], backends_of(results)
    lines = [f"{results.spec_id}: {'run':8}{'size':>6}{'adapters':>9}{'slowdown':>10}{'ITL +%':>8}"]
    for number, rank in enumerate(dict.fromkeys(ranks.tolist())):
        for backend in dict.fromkeys(backends.tolist()):
            line, filled, name = LOOKS[backend]
            x, slow, more = relative(results, rank, backend)
            look = {"color": COLORS[number % 3], "marker": MARKERS[number % 3], "linestyle": line,
                    "markerfacecolor": COLORS[number % 3] if filled else "white"}
            slowdown.plot(x, slow, **look)
            overhead.plot(x, more, **look)
            lines += [f"{'':{len(results.spec_id)}}  {name:8}{_parts.ranks_label(rank)[5:]:>6}"
                      f"{count:9d}{a:10.3f}{b:8.1f}" for count, a, b in
                      zip(x.tolist(), slow, more)]
    for axes, title, label in ((slowdown, "(a) Throughput slowdown", "times backbone-only"),
                               (overhead, "(b) ITL overhead", "% over backbone-only")):
        axes.set(xlabel="adapters in the batch", ylabel=label)
        style.panel_label(axes, title)
    handles = [plt.Line2D([], [], color=COLORS[n % 3], marker=MARKERS[n % 3],
                          label=_parts.ranks_label(rank).replace("rank", "size"))
               for n, rank in enumerate(dict.fromkeys(ranks.tolist()))]
    handles += [plt.Line2D([], [], color="black", linestyle=LOOKS[b][0], label=LOOKS[b][2])
                for b in dict.fromkeys(backends.tolist())]
    batch = results.spec.get("workload", {}).get("requests", "?")
    style.finish(figure, results, handles, note=f"medians; {batch} requests from the start")
    return style.save(figure, out, "fig05") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
