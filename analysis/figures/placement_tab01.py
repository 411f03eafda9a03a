"""Placement paper Table 1: SMAPE of the twin against the engine, in percent.

One row for each twin (the fitted model, the paper's own) and kind of lengths, over all points and
by load regime; a regime beyond the limits of `servelab validate` is marked unsupported. The paper's
rows are those of Llama-3.1-8B and Qwen-2.5-7B on H100. Results without an engine's points are set
against the runs of vLLM that the paper's authors published.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, style
from analysis.figures import _twin
from analysis.results import Results

PUBLISHED = {  # throughput, ITL, TTFT
    "predictable": {"Llama, original": (2.25, 7.09, 18.83), "Llama, mean": (4.18, 9.63, 17.44),
                    "Qwen, original": (2.59, 7.18, 18.95), "Qwen, mean": (5.08, 9.07, 17.92)},
    "unpredictable": {"Llama, original": (1.00, 3.55, 13.92), "Llama, mean": (2.06, 9.87, 21.28),
                      "Qwen, original": (1.71, 3.54, 12.26), "Qwen, mean": (4.29, 5.60, 21.49)},
}
SETTING = ("engine.adapter_slots", "engine.slot_rank", "workload.adapters.count",
           "workload.adapters.ranks", "workload.popularity.weights")
MEASURED = {"throughput": ("measured.tokens_per_s", 1), "ITL": ("measured.itl_ms", 1e-3),
            "TTFT": ("measured.ttft_ms", 1e-3)}
COLUMNS = ["twin", "lengths", "regime", "points", *(f"{name} %" for name in _twin.METRICS), ""]


def arrivals_of(results: Results) -> str:
    process = results.spec.get("workload", {}).get("arrivals", {}).get("process", "poisson")
    return "unpredictable" if process == "switching" else "predictable"


@dataclass(frozen=True)
class Compared:
    """A point's value of each metric on the engine and on a twin of it."""

    model: str    # fitted or placement
    lengths: str  # original or mean
    regime: str
    values: dict[str, tuple[float, float]]


def is_published(results: Results) -> bool:
    """Whether the engine's side is what was published of it."""
    return "sweep.backend" not in results.columns


def compared(results: Results) -> list[Compared]:
    if is_published(results):
        return with_published(results)
    values = {name: results.metric(metric) for name, metric in _twin.METRICS.items()}
    return [Compared(pair.model, pair.lengths, _twin.regime(results, pair.engine),
                     {name: (of[pair.engine], of[pair.twin]) for name, of in values.items()})
            for pair in _twin.pairs(results) if valid(results, pair.engine, pair.twin)]


def valid(results: Results, *points: int) -> bool:
    return all(results.columns["status"][index] == "VALID" for index in points)


def with_published(results: Results) -> list[Compared]:
    """Every point whose setting was measured. The regime is by the engine's throughput; how busy
    it was below saturation only the twin says."""
    rows = published.table(f"vllm_{results.attributes['model'].lower()}_h100")
    measured = {tuple(setting_of(row[name]) for name in SETTING): row for row in rows}
    columns = [results.columns[f"sweep.{name}"] for name in SETTING]
    lengths = results.columns["sweep.workload.lengths"]
    values = {name: results.metric(metric) for name, metric in _twin.METRICS.items()}
    found = []
    for index in range(len(lengths)):
        row = measured.get(tuple(setting_of(str(column[index])) for column in columns))
        if row is None or not valid(results, index):
            continue
        engine = {name: float(row[column]) * factor
                  for name, (column, factor) in MEASURED.items()}
        found.append(Compared(
            "fitted", "original" if "sharegpt" in str(lengths[index]) else "mean",
            _twin.regime(results, index, engine["throughput"]),
            {name: (engine[name], float(of[index])) for name, of in values.items()}))
    return found


def setting_of(text: str) -> tuple[float, ...]:
    """(8, 16) of "[8 16]", "[8,16]" and (8,) of "8"."""
    return tuple(float(item) for item in text.strip("[]").replace(",", " ").split())


def smape(points: list[Compared], metric: str) -> float:
    """Mean over the points, in percent."""
    found = np.array([_twin.symmetric_error(*point.values[metric]) for point in points])
    found = found[np.isfinite(found)]
    return float(found.mean()) if found.size else float("nan")


def rows_of(results: Results) -> list[list[str]]:
    """The table's cells, ours and then the paper's."""
    points = compared(results)
    rows = []
    for model in ("fitted", "placement"):
        for lengths in ("original", "mean"):
            for regime in ("all", *_twin.REGIMES):
                chosen = [point for point in points if (point.model, point.lengths) ==
                          (model, lengths) and regime in ("all", point.regime)]
                if not chosen:
                    continue
                found = {name: smape(chosen, name) for name in _twin.METRICS}
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
    points = [point for point in compared(results) if point.model == "fitted"]
    return max(smape([point for point in points if point.lengths == lengths], metric)
               for lengths in {point.lengths for point in points})


LOOKS = {"fitted": (style.BLUE, "o", "fitted twin"),
         "placement": (style.VERMILION, "x", "the paper's model, K1..K7")}


def scatter(axes: plt.Axes, points: list[Compared], metric: str, scale: float) -> None:
    """Twin over engine, one mark a point, on the diagonal where they agree."""
    seen = []
    for point in points:
        color, marker, _ = LOOKS[point.model]
        engine, twin = (value * scale for value in point.values[metric])
        axes.plot(engine, twin, linestyle="none", marker=marker, color=color, markersize=3.2,
                  markeredgewidth=0.8, alpha=0.85)
        seen += [engine, twin]
    _twin.diagonal(axes, seen)


def draw(results: Results, out: Path) -> list[Path]:
    """Three scatter plots over the table, and the table as text."""
    rows = rows_of(results)
    figure, panels = plt.subplot_mosaic(
        [["throughput", "ITL", "TTFT"], ["table"] * 3], height_ratios=[2.2, 0.19 * len(rows) + 0.3],
        figsize=(style.TWO_COLUMNS_IN, 2.9 + 0.17 * len(rows)))
    units = {"throughput": (1, "tokens/s"), "ITL": (1e3, "ms"), "TTFT": (1e3, "ms")}
    points = [point for point in compared(results) if point.lengths == "original"]
    engine = "vLLM, published" if is_published(results) else "engine"
    for title, (scale, unit) in units.items():
        scatter(panels[title], points, title, scale)
        panels[title].set_xlabel(f"{engine} ({unit})")
        panels[title].set_ylabel(f"twin ({unit})")
        style.panel_label(panels[title], title)
    style.cell_table(panels["table"], rows, COLUMNS,
                     [0.21, 0.11, 0.12, 0.09, 0.14, 0.1, 0.1, 0.13],
                     red=[bool(row[-1]) for row in rows],
                     grey=[row[0].startswith("published") for row in rows])
    handles = [plt.Line2D([], [], linestyle="none", color=color, marker=marker, label=label)
               for color, marker, label in (LOOKS[model] for model in LOOKS
                                            if model in {point.model for point in points})]
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
