"""dLoRA Fig. 11(a): queueing delay over the rate, with round robin, proactive dispatch and dLoRA.

Per token, the delays' sum over the tokens', so that the paper's SLO applies to it; per token as the
artifact's logs have it, the mean of ratios; and in seconds.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from analysis import published, slo, style
from analysis.figures import _replicas
from analysis.results import Results

OURS = "dlora"
PER_TOKEN = ("queueing_per_token_mean_s", "queueing_per_token_mean_of_ratios_s")
PANELS = [(PER_TOKEN[0], "(a) Per token", "queueing delay (s/token)"),
          (PER_TOKEN[1], "(b) Per token, artifact's", "mean of ratios (s/token)"),
          ("queueing_mean_s", "(c) Mean", "queueing delay (s)")]
LEAST = 1e-5  # s; a system without any queueing is drawn here


def table_of(results: Results) -> str:
    lines = []
    for metric in PER_TOKEN:
        lines += [f"{results.spec_id}: largest rate (requests/s) with {metric} <= {slo.SLO_S:g} s, "
                  f"mean over {len(results.seeds)} seeds, 95 % CI",
                  f"{'technique':12} {'largest rate':>16}   dLoRA's over it"]
        for technique in results.techniques:
            rate = slo.max_rate(results, metric, technique, "rate", slo.SLO_S)
            line = f"{technique:12} {_replicas.rate_text(rate):>16}"
            if technique != OURS:
                ratio = slo.rate_ratio(results, metric, OURS, technique, "rate", slo.SLO_S)
                line += f"   {_replicas.ratio_text(ratio.estimate, ratio.bound)}"
                line += f" (paper: {published.claim(f'dlora/fig11a-{technique}'):g}x)"
            lines.append(line)
        lines.append("")
    lines += [f"{'rate':>8}" + "".join(f"{name:>14}" for name in results.techniques)
              + "   mean queueing delay (s)"]
    for value in results.x_values("rate"):
        cells = [results.select(rate=value).curve("queueing_mean_s", name, "rate").mean
                 for name in results.techniques]
        lines.append(f"{value:>8g}" + "".join(f"{cell[0]:14.3f}" if cell.size else f"{'-':>14}"
                                              for cell in cells))
    return "\n".join([*lines, "", slo.BOUNDS]) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    """Three panels, logarithmic both ways, and table.txt."""
    figure, panels = plt.subplots(1, 3, figsize=(style.TWO_COLUMNS_IN, 2.5))
    for axes, (metric, title, label) in zip(panels, PANELS):
        style.log_axes(axes, results.x_values("rate"))
        for technique in results.techniques:
            style.draw_curve(axes, results.curve(metric, technique, "rate"))
        if metric in PER_TOKEN:
            style.limit_line(axes, slo.SLO_S, f"SLO, {slo.SLO_S:g} s/token")
        axes.set_ylim(bottom=max(axes.get_ylim()[0], LEAST))
        axes.set_xlabel("arrival rate (requests/s)")
        axes.set_ylabel(label)
        style.panel_label(axes, title)
    style.finish(figure, results, panels[0].get_legend_handles_labels()[0])
    return style.save(figure, out, "fig11a") + [
        style.write_text(out, "table.txt", table_of(results))]
