"""dLoRA Fig. 14: average latency over skewness, S-LoRA against dLoRA."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from analysis import claims, published, style
from analysis.results import Results

METRIC = "latency_per_token_mean_s"
PANELS = [("slora", "dlora", "(a) batch limit 16"),
          ("slora (batch 256)", "dlora (batch 256)", "(b) batch limit 256")]
CLAIMS = [claims.FactorClaim(f"mean {baseline} / dlora", METRIC, baseline, ours,
                             published.claim("dlora/fig14-slora"))
          for baseline, ours, _ in PANELS]


def draw(results: Results, out: Path) -> list[Path]:
    """A panel for each batch limit, its largest factor on its face, and factors.txt."""
    made = CLAIMS[:1] + [claim for claim in CLAIMS[1:]
                         if {claim.a, claim.b} <= set(results.techniques)]
    table = claims.factor_table(results, made, "skewness")
    panels = [panel for panel in PANELS if set(panel[:2]) <= set(results.techniques)]
    figure, drawn = plt.subplots(1, len(panels), squeeze=False,
                                 figsize=(style.ONE_COLUMN_IN * len(panels), 2.5))
    for axes, (baseline, ours, title) in zip(drawn[0], panels):
        for technique in (baseline, ours):
            style.draw_curve(axes, results.curve(METRIC, technique, "skewness"))
        best = claims.max_ratio(results, METRIC, baseline, ours, "skewness")
        style.category_axis(axes, results.x_values("skewness"), "skewness")
        axes.set_ylabel("average latency (s/token)")
        style.scale_y(axes)
        axes.set_title(f"{title}: up to {best.ratio.value:.2f}x (paper: {CLAIMS[0].published:g}x)",
                       loc="left", fontsize=6.8)
    style.finish(figure, results, drawn[0][0].get_legend_handles_labels()[0])
    paths = style.save(figure, out, "fig14")
    return paths + [style.write_text(out, "factors.txt", table)]
