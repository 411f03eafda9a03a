"""dLoRA Fig. 11(b): average latency over the length scale ratio, round robin to dLoRA."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from analysis import claims, published, slo, style
from analysis.results import Results

METRIC = "latency_per_token_mean_s"
CLAIMS = [claims.FactorClaim(f"{a} / {b}", METRIC, a, b, published.claim(f"dlora/{name}"))
          for name, a, b in (("fig11b-rr", "rr", "dlora"),
                             ("fig11b-proactive", "proactive", "dlora"),
                             ("fig11b-rr-proactive", "rr", "proactive"))]


def draw(results: Results, out: Path) -> list[Path]:
    """One panel, and factors.txt."""
    table = claims.factor_table(results, CLAIMS, "scale_ratio")
    figure, axes = plt.subplots(figsize=(style.ONE_COLUMN_IN, 2.5))
    for technique in results.techniques:
        style.draw_curve(axes, results.curve(METRIC, technique, "scale_ratio"))
    style.category_axis(axes, results.x_values("scale_ratio"), "scale of prompts and outputs")
    axes.set_ylabel("average latency (s/token)")
    style.scale_y(axes)
    style.limit_line(axes, slo.SLO_S, "SLO")
    style.finish(figure, results, axes.get_legend_handles_labels()[0])
    return style.save(figure, out, "fig11b") + [style.write_text(out, "factors.txt", table)]
