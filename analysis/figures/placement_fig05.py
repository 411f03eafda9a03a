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


def draw(results: Results, out: Path) -> list[Path]:
    figure, (slowdown, overhead) = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.4))
    columns = results.columns
    counts, ranks = columns[results.sweep("count")], columns[results.sweep("ranks")]
    backends = columns["sweep.backend"] if "sweep.backend" in columns else np.array(
        [results.attributes.get("backend", "")] * len(ranks), dtype=object)
    tokens, gap = results.metric("output_tokens_per_s"), results.metric("itl_p50_s")
    lines = [f"{results.spec_id}: {'run':8}{'size':>6}{'adapters':>9}{'slowdown':>10}{'ITL +%':>8}"]
    for number, rank in enumerate(dict.fromkeys(ranks.tolist())):
        for backend in dict.fromkeys(backends.tolist()):
            own = np.flatnonzero((ranks == rank) & (backends == backend))
            line, filled, name = LOOKS[backend]
            x = np.unique(counts[own])
            typical = {metric: np.array([np.median(values[own][counts[own] == count])
                                         for count in x])
                       for metric, values in (("tokens", tokens), ("gap", gap))}
            bare = (counts == 0) & (backends == backend)  # no adapter: their size means nothing
            typical["tokens"][x == 0] = base_tokens = np.median(tokens[bare])
            typical["gap"][x == 0] = base_gap = np.median(gap[bare])
            look = {"color": COLORS[number % 3], "marker": MARKERS[number % 3], "linestyle": line,
                    "markerfacecolor": COLORS[number % 3] if filled else "white"}
            slow = base_tokens / typical["tokens"]
            more = 100 * (typical["gap"] / base_gap - 1)
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
    style.finish(figure, results, handles, note=f"medians; {batch} requests decode together")
    return style.save(figure, out, "fig05") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
