"""dLoRA Fig. 9: average latency over the rate, end to end, a panel for each model and trace.

Drawn twice: with the paper's average (sum of latencies over sum of tokens), and with the artifact's
(mean of ratios), of which its points of the MAF1, 7B panel are. table.txt has the largest rates
within the SLO and their factors by both.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from analysis import published, slo, style
from analysis.figures import _replicas
from analysis.results import Results

FIGURE = "dlora/fig09"
OURS, BASELINES = "dlora", ("vllm-uniform", "peft")
MEAN, ARTIFACT_MEAN = "latency_per_token_mean_s", "latency_per_token_mean_of_ratios_s"
PICTURES = {"fig09": (MEAN, "average latency (s/token)"),
            "fig09_artifact": (ARTIFACT_MEAN, "mean of ratios (s/token)")}
PUBLISHED_PANEL = ("llama-2-7b", "maf1-d01")


def panels_of(results: Results) -> list[tuple[str, str, Results]]:
    """Model, trace and the points of each panel, trace by trace."""
    return [(model, trace, results.select(model=model, trace=trace))
            for trace in results.x_values("trace") for model in results.x_values("model")]


def title(model: str, trace: str) -> str:
    return f"{model.split('-')[-1].upper()}, {trace.split('-')[0].upper()}"


def factors(points: Results, metric: str) -> list[tuple[str, slo.Rate]]:
    """dLoRA's largest rate within the SLO over that of each baseline."""
    return [(base, slo.rate_ratio(points, metric, OURS, base, "rate", slo.SLO_S))
            for base in BASELINES if {OURS, base} <= set(points.techniques)]


def draw_panel(axes: Axes, points: Results, metric: str) -> None:
    style.log_axes(axes)
    for technique in points.techniques:
        style.draw_curve(axes, points.curve(metric, technique, "rate"))
    style.limit_line(axes, slo.SLO_S, f"SLO, {slo.SLO_S:g} s/token")
    lines = [f"{rate.bound and rate.bound + ' '}{rate.estimate.value:.1f}x "
             f"{style.look(base).label}'s rate" for base, rate in factors(points, metric)]
    axes.text(0.03, 0.97, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=6)


def table_of(results: Results) -> str:
    lines = []
    for metric, _ in PICTURES.values():
        lines += [f"{results.spec_id}: largest rate (requests/s) with {metric} <= {slo.SLO_S:g} s, "
                  f"mean over {len(results.seeds)} seeds, 95 % CI",
                  f"{'panel':14} {'technique':14} {'largest rate':>16}   dLoRA's over it"]
        for model, trace, points in panels_of(results):
            ratios = dict(factors(points, metric))
            for technique in points.techniques:
                rate = slo.max_rate(points, metric, technique, "rate", slo.SLO_S)
                ratio = ratios.get(technique)
                factor = _replicas.ratio_text(ratio.estimate, ratio.bound) if ratio else ""
                lines.append(f"{title(model, trace):14} {technique:14} "
                             f"{_replicas.rate_text(rate):>16}   {factor}".rstrip())
        lines.append("")
    return "\n".join([*lines, slo.BOUNDS]) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    """Six panels for each of the two averages, and table.txt."""
    models, traces = results.x_values("model"), results.x_values("trace")
    paths = []
    for name, (metric, label) in PICTURES.items():
        figure, grid = plt.subplots(len(traces), len(models), squeeze=False, sharex="col",
                                    sharey=True,
                                    figsize=(style.TWO_COLUMNS_IN, 0.7 + 1.9 * len(traces)))
        for number, (axes, (model, trace, points)) in enumerate(
                zip(grid.flat, panels_of(results))):
            draw_panel(axes, points, metric)
            if metric == ARTIFACT_MEAN and (model, trace) == PUBLISHED_PANEL:
                for technique in points.techniques:
                    style.draw_published(axes, technique,
                                         *published.curve(FIGURE, metric, technique))
            style.panel_label(axes, f"({chr(ord('a') + number)}) {title(model, trace)}")
        for axes in grid[-1]:
            axes.set_xlabel("arrival rate (requests/s)")
        for axes in grid[:, 0]:
            axes.set_ylabel(label)
        handles = {handle.get_label(): handle for axes in grid.flat
                   for handle in axes.get_legend_handles_labels()[0]}
        shown = list(handles.values())
        if metric == ARTIFACT_MEAN:
            shown.append(style.published_handle())
        style.finish(figure, results, shown,
                     note="error bars: 95 % CI over seeds; in the panels: dLoRA's largest rate "
                          "within the SLO over the baseline's; >, < and ?: the sweep ends before")
        paths += style.save(figure, out, name)
    return paths + [style.write_text(out, "table.txt", table_of(results))]
