"""Any spec without a figure module of its own: average and P90 latency over what it sweeps."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from analysis import style
from analysis.results import Results

METRICS = [("latency_per_token_mean_s", "average latency (s/token)"),
           ("latency_per_token_p90_s", "P90 latency (s/token)")]
AXES = {"rate": "arrival rate (requests/s)", "requests": "requests", "count": "adapters"}


def draw(results: Results, out: Path) -> list[Path]:
    """One panel per metric, one curve per technique."""
    sweep = results.sweep()[len("sweep."):]
    figure, panels = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.6))
    for axes, (metric, label) in zip(panels, METRICS):
        for technique in results.techniques:
            style.draw_curve(axes, results.curve(metric, technique, sweep))
        name = sweep.split(".")[-1]
        style.category_axis(axes, results.x_values(sweep), AXES.get(name, name.replace("_", " ")))
        axes.set_ylabel(label)
        style.scale_y(axes)
    style.finish(figure, results, panels[0].get_legend_handles_labels()[0],
                 columns=min(len(results.techniques), 4))
    return style.save(figure, out, results.spec_id.split("/")[-1])
