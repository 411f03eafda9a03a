"""dLoRA Fig. 2(b): queueing by replica under a static placement and a bursty trace.

Replicas from the most to the least delayed, in each run: which one a model lives on is arbitrary.
The artifact's points are the share of queueing in the latency of a replica's requests, and the
paper's factor of 8.0 is that of the largest over the smallest share; the delay itself differs more.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import metrics, published, stats, style
from analysis.figures import _replicas
from analysis.results import Results

FIGURE = "dlora/fig02b"
SHARE, DELAY = "queueing_share_max_over_min", "queueing_delay_max_over_min"


def sorted_queueing(results: Results, index: int, part: int) -> np.ndarray:
    """Delay (part 0, s) or share (part 1, %) by replica, the largest first."""
    return -np.sort(-metrics.queueing_by_replica(results, index)[part])


def table_of(results: Results) -> str:
    lines = [f"{results.spec_id}: queueing by replica, mean over {len(results.seeds)} seeds",
             f"{'technique':16} {'place':>7} {'delay (s)':>10} {'share of latency (%)':>21}"]
    for technique in results.techniques:
        delay, share = (_replicas.by_replica(
            results, technique, lambda index, part=part: sorted_queueing(results, index, part))
            for part in (0, 1))
        lines += [f"{technique:16} {replica:>7} {a.value:10.2f} {b.value:21.1f}"
                  for replica, (a, b) in enumerate(zip(delay, share))]
        own = results.columns["technique"] == technique
        for name, metric in (("share", SHARE), ("delay", DELAY)):
            values = results.metric(metric)[own]
            found = stats.geometric_ci(values[np.isfinite(values)])
            note = f" (paper: {published.claim('dlora/fig02b-imbalance'):g}x)" * (name == "share")
            lines.append(f"{technique}: largest {name} over smallest, {found.n} of {own.sum()} "
                         f"seeds: {_replicas.ratio_text(found)}{note}")
    return "\n".join(lines) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    """(a) Mean queueing delay by replica, (b) its share of the latency beside the artifact's."""
    figure, (delays, shares) = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.3))
    techniques = results.techniques
    for place, technique in enumerate(techniques):
        for axes, part, of in ((delays, 0, len(techniques)), (shares, 1, len(techniques) + 1)):
            _replicas.bars(axes, _replicas.by_replica(
                results, technique, lambda index, part=part: sorted_queueing(results, index, part)
            ), technique, place, of)
            ticks = axes.get_xticks()
            axes.set_xticks(ticks, [f"{tick + 1:g}" for tick in ticks])
            axes.set_xlabel("replica, most delayed first")
    shown = -np.sort(-published.curve(FIGURE, "queueing_share_percent", techniques[0])[1])
    width = 0.8 / (len(techniques) + 1)
    shares.bar(np.arange(len(shown)) + len(techniques) / 2 * width, shown, width, color="white",
               edgecolor=style.GREY,
               linewidth=0.7, label="published (artifact)")
    delays.set_ylabel("mean queueing delay (s)")
    shares.set_ylabel("share of the latency (%)")
    delays.set_ylim(bottom=0)
    shares.set_ylim(0, 100)
    style.panel_label(delays, "(a) Queueing delay")
    style.panel_label(shares, "(b) Queueing delay, share of the latency")
    style.finish(figure, results, shares.get_legend_handles_labels()[0])
    return style.save(figure, out, "fig02b") + [
        style.write_text(out, "table.txt", table_of(results))]
