"""Points of a real engine beside the twins of the same requests, and how far apart they are."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatterSciNotation, LogLocator

from analysis import style
from analysis.results import Results

ENGINES = ("cpu", "cuda")
METRICS = {"throughput": "total_tokens_per_s", "ITL": "itl_mean_s", "TTFT": "ttft_mean_s"}
REGIMES = ("low", "high", "saturated")
LIMITS = {"throughput": 5.0, "ITL": 10.0, "TTFT": 20.0}  # percent, as of servelab validate
STARVED, BUSY = 0.9, 0.5
MODELS = {"fitted": "fitted", "placement": "the paper's K1..K7"}


@dataclass(frozen=True)
class Pair:
    """Indices into the columns: a point on the engine, and a twin of it."""

    engine: int
    twin: int
    model: str    # fitted or placement
    lengths: str  # original or mean


def is_variant(column: str) -> bool:
    """Settings in which a twin may differ from its engine's point."""
    return column in ("sweep.backend", "sweep.hardware") or column.startswith(
        "sweep.workload.lengths")


def pairs(results: Results) -> list[Pair]:
    """Every twin with its engine's point: same technique, seed and other settings."""
    columns = results.columns
    common = ["technique", "seed"] + [name for name in results.sweep_columns
                                      if not is_variant(name)]
    engines, found = {}, []
    where = [tuple(str(columns[name][i]) for name in common)
             for i in range(len(columns["key"]))]
    for index, backend in enumerate(columns["sweep.backend"].tolist()):
        if backend in ENGINES:
            engines[where[index]] = index
    for index, backend in enumerate(columns["sweep.backend"].tolist()):
        engine = engines.get(where[index])
        if backend in ENGINES or engine is None:
            continue
        hardware = str(columns.get("sweep.hardware", [""] * (index + 1))[index])
        model = "placement" if hardware.endswith("-placement") else "fitted"
        lengths = all(columns[name][index] == columns[name][engine]
                      for name in results.sweep_columns
                      if name.startswith("sweep.workload.lengths"))
        found.append(Pair(engine, index, model, "original" if lengths else "mean"))
    if not found:
        raise results.error("the figure needs points on an engine and on its twin")
    return found


def symmetric_error(a: float, b: float) -> float:
    """100 |a - b| / (|a| + |b|): the paper's SMAPE of one point, in percent."""
    return 0.0 if a == b else 100 * abs(a - b) / (abs(a) + abs(b))


def incoming_tokens_per_s(results: Results, index: int) -> float:
    """Prompt and output tokens that clients ask for, per second of arrivals. An unfinished
    request counts with the mean output of the finished ones."""
    point = results.point(index)
    done = point.read("requests/status") == 1
    outputs = point.read("requests/output_tokens")
    mean = float(outputs[done].mean()) if done.any() else 0.0
    tokens = float(point.read("requests/prompt_tokens").sum()) + float(
        np.where(done, outputs, np.maximum(outputs, mean)).sum())
    span = results.spec.get("workload", {}).get("duration_s", 0) or float(
        point.read("requests/scheduled").max()) / 1e9
    return tokens / span if span else float("inf")


def regime(results: Results, index: int, throughput: float | None = None) -> str:
    """How loaded the engine was in one of its points, or at another `throughput` than there."""
    if throughput is None:
        throughput = float(results.metric("total_tokens_per_s")[index])
    if throughput < STARVED * incoming_tokens_per_s(results, index):
        return "saturated"
    busy = results.metric("busy_time_s")[index] / results.metric("duration_s")[index]
    return "low" if busy < BUSY else "high"


def errors(results: Results, metric: str, chosen: list[Pair]) -> np.ndarray:
    """The symmetric error of each pair, NaN where a side has no value or is INVALID."""
    values, valid = results.metric(METRICS[metric]), results.columns["status"] == "VALID"
    return np.array([symmetric_error(values[p.engine], values[p.twin])
                     if valid[p.engine] and valid[p.twin] else np.nan for p in chosen])


def mean_error(results: Results, metric: str, chosen: list[Pair]) -> float:
    found = errors(results, metric, chosen)
    found = found[np.isfinite(found)]
    return float(found.mean()) if found.size else float("nan")


def diagonal(axes: Axes, drawn: list[float]) -> None:
    """The line where both agree, on logarithmic axes that just hold what was drawn."""
    shown = np.array([value for value in drawn if np.isfinite(value) and value > 0])
    low, high = shown.min() / 1.15, shown.max() * 1.15
    axes.plot([low, high], [low, high], color=style.GREY, linewidth=0.7, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    wide = high / low > 1e3  # then a label a decade
    few = (1, 3) if high / low > 30 else (1, 2, 5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1,) if wide else few))
        axis.set_major_formatter(LogFormatterSciNotation() if wide else "{x:g}")
        axis.set_minor_formatter("")
