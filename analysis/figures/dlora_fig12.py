"""dLoRA Fig. 12: throughput over the number of adapters at a constant rate."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from analysis import compute, published, style
from analysis.figures import _replicas
from analysis.results import Results

METRIC = "requests_per_s"
PUBLISHED = {"vllm-uniform": "dlora/fig12-vllm", "peft": "dlora/fig12-peft",
             "dlora": "dlora/fig12-dlora"}


def table_of(results: Results) -> str:
    counts = results.x_values("count")
    lines = [f"{results.spec_id}: finished requests/s by number of adapters, mean over seeds",
             f"{'technique':14}" + "".join(f"{count:>9}" for count in counts)
             + "   first over last, 95 % CI"]
    for technique in results.techniques:
        curve = results.curve(METRIC, technique, "count")
        means = dict(zip(curve.x.tolist(), curve.mean))
        fall = compute.found_values(results, {"kind": "fall", "metric": METRIC, "of": technique,
                                              "along": "count"})[0].estimate
        paper = (f" (paper: {published.claim(PUBLISHED[technique]):g}x)"
                 if technique in PUBLISHED else "")
        lines.append(f"{technique:14}" + "".join(f"{means.get(count, float('nan')):9.2f}"
                                                 for count in counts)
                     + f"   {_replicas.ratio_text(fall)}{paper}")
    return "\n".join(lines) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    """One panel, and table.txt."""
    figure, axes = plt.subplots(figsize=(style.ONE_COLUMN_IN, 2.5))
    for technique in results.techniques:
        style.draw_curve(axes, results.curve(METRIC, technique, "count"))
    style.category_axis(axes, results.x_values("count"), "adapters")
    axes.set_ylabel("throughput (requests/s)")
    axes.set_ylim(bottom=0)
    style.finish(figure, results, axes.get_legend_handles_labels()[0])
    return style.save(figure, out, "fig12") + [
        style.write_text(out, "table.txt", table_of(results))]
