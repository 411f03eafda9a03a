"""CaraServe Fig. 12: how often each adapter is invoked, most invoked first, on logarithmic axes."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import metrics, style
from analysis.results import Results

LOOKS = [(style.BLUE, "-"), (style.VERMILION, "--"), (style.GREEN, "-."), (style.BLACK, ":")]


def draw(results: Results, out: Path) -> list[Path]:
    figure, (single, mass) = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.3))
    counts = results.columns[results.sweep("count")]
    lines = [f"{results.spec_id}: {'adapters':>9}{'requests':>10}{'most %':>8}{'top tenth %':>12}"]
    for number, count in enumerate(np.unique(counts)):
        index = int(np.flatnonzero(counts == count)[0])
        calls = metrics.calls_by_adapter(results, index)
        share = calls / calls.sum()
        color, line = LOOKS[number % len(LOOKS)]
        rank = np.arange(1, share.size + 1)
        single.plot(rank[share > 0], share[share > 0], color=color, linestyle=line,
                    label=f"{count} adapters")
        mass.plot(100 * rank / share.size, 100 * np.cumsum(share), color=color, linestyle=line)
        lines.append(f"{'':{len(results.spec_id)}}  {count:9d}{int(calls.sum()):10d}"
                     f"{100 * share[0]:8.2f}{metrics.top_tenth_share(results, index):12.2f}")
    single.set(xscale="log", yscale="log", xlabel="adapter, most invoked first",
               ylabel="invocation probability")
    single.xaxis.set_major_formatter("{x:g}")
    mass.set(xlabel="adapters, most invoked first (%)", ylabel="invocations (%)", xlim=(0, 100),
             ylim=(0, 102))
    style.panel_label(single, "by adapter")
    style.panel_label(mass, "together")
    style.finish(figure, results, single.get_legend_handles_labels()[0],
                 note=f"counted over {int(calls.sum()):,} requests")
    return style.save(figure, out, results.spec_id.split("/")[-1]) + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
