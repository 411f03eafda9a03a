"""Placement paper Table 1: SMAPE of the twin against the engine, in percent.

One row for each twin (the fitted model, the paper's own) and kind of lengths, over all points and
by load regime; a regime beyond the limits of `servelab validate` is marked unsupported. The paper's
rows are those of Llama-3.1-8B and Qwen-2.5-7B on H100.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from analysis import style
from analysis.figures import _twin
from analysis.results import Results

PUBLISHED = {  # throughput, ITL, TTFT
    "predictable": {"Llama, original": (2.25, 7.09, 18.83), "Llama, mean": (4.18, 9.63, 17.44),
                    "Qwen, original": (2.59, 7.18, 18.95), "Qwen, mean": (5.08, 9.07, 17.92)},
    "unpredictable": {"Llama, original": (1.00, 3.55, 13.92), "Llama, mean": (2.06, 9.87, 21.28),
                      "Qwen, original": (1.71, 3.54, 12.26), "Qwen, mean": (4.29, 5.60, 21.49)},
}
COLUMNS = ["twin", "lengths", "regime", "points", *(f"{name} %" for name in _twin.METRICS), ""]


def arrivals_of(results: Results) -> str:
    process = results.spec.get("workload", {}).get("arrivals", {}).get("process", "poisson")
    return "unpredictable" if process == "switching" else "predictable"


def rows_of(results: Results) -> list[list[str]]:
    """The table's cells, ours and then the paper's."""
    pairs = _twin.pairs(results)
    regimes = {pair.engine: _twin.regime(results, pair.engine) for pair in pairs}
    rows = []
    for model in ("fitted", "placement"):
        for lengths in ("original", "mean"):
            own = [pair for pair in pairs if (pair.model, pair.lengths) == (model, lengths)]
            for regime in ("all", *_twin.REGIMES):
                chosen = [pair for pair in own if regime in ("all", regimes[pair.engine])]
                if not chosen:
                    continue
                found = {name: _twin.mean_error(results, name, chosen) for name in _twin.METRICS}
                good = all(found[name] <= limit for name, limit in _twin.LIMITS.items())
                rows.append([_twin.MODELS[model], lengths, regime, str(len(chosen)),
                             *(f"{value:.2f}" for value in found.values()),
                             "" if good else "unsupported"])
    for name, values in PUBLISHED[arrivals_of(results)].items():
        rows.append([f"published: {name.split(',')[0]}", name.split(", ")[1], "all", "-",
                     *(f"{value:.2f}" for value in values), ""])
    return rows


def claim_value(results: Results, metric: str) -> float:
    """The fitted twin's SMAPE of a metric, the larger of those with original and mean lengths."""
    pairs = [pair for pair in _twin.pairs(results) if pair.model == "fitted"]
    return max(_twin.mean_error(results, metric,
                                [pair for pair in pairs if pair.lengths == lengths])
               for lengths in {pair.lengths for pair in pairs})


def scatter(axes: plt.Axes, results: Results, metric: str, scale: float) -> None:
    """Twin over engine, one mark a point, on the diagonal where they agree."""
    values = results.metric(_twin.METRICS[metric]) * scale
    looks = {"fitted": (style.BLUE, "o"), "placement": (style.VERMILION, "x")}
    seen = []
    for pair in _twin.pairs(results):
        if pair.lengths != "original":
            continue
        color, marker = looks[pair.model]
        axes.plot(values[pair.engine], values[pair.twin], linestyle="none", marker=marker,
                  color=color, markersize=3.2, markeredgewidth=0.8, alpha=0.85)
        seen += [values[pair.engine], values[pair.twin]]
    _twin.diagonal(axes, seen)


def draw(results: Results, out: Path) -> list[Path]:
    """Three scatter plots over the table, and the table as text."""
    rows = rows_of(results)
    figure, panels = plt.subplot_mosaic(
        [["throughput", "ITL", "TTFT"], ["table"] * 3], height_ratios=[2.2, 0.19 * len(rows) + 0.3],
        figsize=(style.TWO_COLUMNS_IN, 2.9 + 0.17 * len(rows)))
    units = {"throughput": (1, "tokens/s"), "ITL": (1e3, "ms"), "TTFT": (1e3, "ms")}
    for title, (scale, unit) in units.items():
        scatter(panels[title], results, title, scale)
        panels[title].set_xlabel(f"engine ({unit})")
        panels[title].set_ylabel(f"twin ({unit})")
        style.panel_label(panels[title], title)
    style.cell_table(panels["table"], rows, COLUMNS,
                     [0.21, 0.11, 0.12, 0.09, 0.14, 0.1, 0.1, 0.13],
                     red=[bool(row[-1]) for row in rows],
                     grey=[row[0].startswith("published") for row in rows])
    handles = [plt.Line2D([], [], linestyle="none", color=color, marker=marker, label=label)
               for color, marker, label in ((style.BLUE, "o", "fitted twin"),
                                            (style.VERMILION, "x", "the paper's model, K1..K7"))]
    style.finish(figure, results, handles,
                 note=f"{arrivals_of(results)} arrivals; plots: original lengths; SMAPE as the "
                      "paper's, unsupported: beyond 5 / 10 / 20 %")
    lines = [f"{results.spec_id}: SMAPE of the twin against the engine, {arrivals_of(results)} "
             "arrivals"]
    lines += ["  ".join(f"{cell:>{width}}" for cell, width in
                        zip(row, (22, 9, 10, 6, 12, 7, 7, 12)))
              for row in [COLUMNS, *rows]]
    return style.save(figure, out, "tab01") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
