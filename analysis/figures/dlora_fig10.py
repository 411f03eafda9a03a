"""dLoRA Fig. 10: average and P90 latency over skewness, dynamic batching against its strawmen.

The paper defines the average as sum of latencies / sum of output tokens; its artifact computes, and
its published points are, the mean over requests of latency / output tokens. Both are drawn, the
published points where the definition is theirs; factors.txt has the factors of each.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from analysis import claims, published, style
from analysis.results import Results

FIGURE = "dlora/fig10"
TECHNIQUES = ["merged-only", "unmerged-only", "dlora", "dlora-artifact"]
MEAN, P90 = "latency_per_token_mean_s", "latency_per_token_p90_s"
ARTIFACT_MEAN = "latency_per_token_mean_of_ratios_s"
PANELS = [(MEAN, "(a) Average, paper's definition", r"$\sum$ latency / $\sum$ tokens (s/token)"),
          (ARTIFACT_MEAN, "(b) Average, artifact's", "mean of latency / tokens (s/token)"),
          (P90, "(c) P90", "P90 of latency / tokens (s/token)")]
CLAIMS = [claims.FactorClaim(f"{label} {base} / dlora", metric, base, "dlora",
                             published.claim(f"dlora/fig10-{base.split('-')[0]}-{claimed}"))
          for metric, claimed, label in ((MEAN, "mean", "mean"), (P90, "p90", "P90"),
                                         (ARTIFACT_MEAN, "mean", "mean of ratios"))
          for base in ("merged-only", "unmerged-only")]


def draw(results: Results, out: Path) -> list[Path]:
    """Three panels, ours over the artifact's points, and factors.txt with the maximum factors."""
    table = claims.factor_table(
        results, [claim for claim in CLAIMS if f"summary.{claim.metric}" in results.columns],
        "skewness")
    for metric in (MEAN, ARTIFACT_MEAN):
        shape = claims.shape_lines(results, metric, "dlora", ["merged-only", "unmerged-only"],
                                   "skewness")
        table += "\n" + "\n".join([f"{metric}:"] + [f"  {line}" for line in shape]) + "\n"
    # The times of a small model on a CPU say nothing beside a 7B's on a GPU.
    at_paper_scale = results.attributes.get("backend") != "cpu"
    shown = [technique for technique in TECHNIQUES if technique in results.techniques]
    figure, panels = plt.subplots(1, 3, figsize=(style.TWO_COLUMNS_IN, 2.6))
    for axes, (metric, title, label) in zip(panels, PANELS):
        for technique in shown:
            if metric != MEAN and at_paper_scale:
                style.draw_published(axes, technique, *published.curve(FIGURE, metric, technique))
            style.draw_curve(axes, results.curve(metric, technique, "skewness"))
        style.panel_label(axes, title)
        style.category_axis(axes, results.x_values("skewness"), "skewness")
        axes.set_ylabel(label)
        style.scale_y(axes)
    handles = panels[0].get_legend_handles_labels()[0]
    if at_paper_scale:
        handles.append(style.published_handle())
    style.finish(figure, results, handles, columns=5)
    paths = style.save(figure, out, "fig10")
    return paths + [style.write_text(out, "factors.txt", table)]
