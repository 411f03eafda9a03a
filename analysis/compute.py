"""How a claim's value is computed from results: the `compute` map of experiments/claims.yaml.

    {kind: factor, metric: latency_per_token_mean_s, of: slora, over: dlora, reduce: max}

Every kind gives a value for each position of the sweep that `where` leaves; `reduce` picks one of
them: max, min, or every (the one that speaks most against the claim).

    value        mean of `metric` over the seeds of `of`; the geometric one with `scale: log`
    factor       metric of `of` over metric of `over`, a label or a list of them, by paired seeds;
                 `across` names swept settings in which the two sides may differ
    increase     by how many percent the metric of `of` is above that of `over`; decrease: below
    fall, rise   the metric's first value over its last along a swept setting, and the other way
    rate         the largest value of `along` at which the metric is within `limit`
    rate-factor  that of `of` over that of `over`, a label or a list, by paired seeds
    linear-fit   R2 of a straight line through the means along a swept setting
    figure       what the figure's module computes: its claim_value(results, value)
"""
from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

import numpy as np

from analysis import slo, stats
from analysis.results import Results

Params = dict[str, Any]


class Missing(Exception):
    """The results lack what a claim needs; the text says what."""


@dataclass(frozen=True)
class Found:
    """A value at one position. `beyond` is "" or why the value is only a bound."""

    estimate: stats.Estimate
    at: str = ""
    beyond: str = ""


def found_values(results: Results, params: Params) -> list[Found]:
    """A value for every position; raises Missing or ResultsError."""
    chosen = results.select(**params.get("where", {}))
    if not len(chosen.columns["key"]):
        raise Missing(f"no point has {_text(tuple(params['where'].items()))}")
    for side in labels_of(params):
        if side not in chosen.techniques:
            raise Missing(f"no point of {side}")
    found = KINDS[params["kind"]].values(chosen, params)
    found = [one for one in found if math.isfinite(one.estimate.value)]
    if not found:
        raise Missing(f"no point has a value of {params.get('metric', params.get('value'))}")
    return found


def reduced(found: list[Found], how: str, compare: str) -> Found:
    """The one that `reduce` picks; for `every`, the worst beside a claim of that comparison."""
    if how == "every":
        high = compare == "at-most"
        bound = [one.estimate.low if high else one.estimate.high for one in found]
        bound = [one.estimate.value if math.isnan(edge) else edge
                 for one, edge in zip(found, bound)]
        return found[int(np.argmax(bound) if high else np.argmin(bound))]
    if how == "" and len(found) > 1:
        raise Missing(f"{len(found)} positions of the sweep; the claim needs `reduce` or `where`")
    return (min if how == "min" else max)(found, key=lambda one: one.estimate.value)


def labels_of(params: Params) -> list[str]:
    """The techniques that a claim compares."""
    over = params.get("over", [])
    return ([params["of"]] if "of" in params else []) + (
        over if isinstance(over, list) else [over])


def is_used(results: Results, params: Params) -> np.ndarray:
    """A mask over the columns: the points that a claim's value comes from."""
    keep = results.mask(params.get("where", {}))
    labels = labels_of(params)
    return keep & np.isin(results.columns["technique"], labels) if labels else keep


def _cells(results: Results, labels: list[str], apart: set[str]) -> dict[tuple, dict]:
    """By position (the swept settings outside `apart`): label -> seed -> index."""
    names = [name for name in results.sweep_columns if name not in apart]
    cells: dict[tuple, dict[str, dict[int, int]]] = {}
    for index, label in enumerate(results.columns["technique"].tolist()):
        if label not in labels:
            continue
        where = tuple((name.split(".")[-1], results.columns[name].tolist()[index])
                      for name in names)
        seeds = cells.setdefault(where, {}).setdefault(label, {})
        seed = int(results.columns["seed"][index])
        if seed in seeds:
            raise Missing(f"several points of {label} with seed {seed} at {_text(where)}")
        seeds[seed] = index
    return cells


def _text(where: tuple) -> str:
    return " ".join(f"{name}={value}" for name, value in where)


def _values(results: Results, params: Params) -> list[Found]:
    metric, label = results.metric(params["metric"]), params["of"]
    found = []
    for where, cell in _cells(results, [label], set()).items():
        values = metric[list(cell[label].values())]
        mean = stats.geometric_ci if params.get("scale") == "log" else stats.mean_ci
        found.append(Found(mean(values[np.isfinite(values)]), _text(where)))
    return _shortened(found)


def _factors(results: Results, params: Params) -> list[Found]:
    metric = results.metric(params["metric"])
    across = {results.sweep(name) for name in params.get("across", [])}
    labels = labels_of(params)
    found = []
    for where, cell in _cells(results, labels, across).items():
        for over in labels[1:]:
            sides = [{seed: metric[index] for seed, index in cell.get(label, {}).items()
                      if math.isfinite(metric[index])} for label in (labels[0], over)]
            common = sorted(sides[0].keys() & sides[1].keys())
            ratio = stats.ratio_ci(*([side[seed] for seed in common] for side in sides))
            name = f"{over} " if len(labels) > 2 else ""
            found.append(Found(ratio, name + _text(where)))
    return _shortened(found)


def _percent(results: Results, params: Params, sign: int) -> list[Found]:
    """Factors as percent above (sign 1) or below (-1) the other side."""
    found = []
    for one in _factors(results, params):
        value, *ends = (100 * sign * (edge - 1) for edge in
                        (one.estimate.value, one.estimate.low, one.estimate.high))
        found.append(replace(one, estimate=stats.Estimate(value, *ends[::sign], one.estimate.n)))
    return found


def _groups(results: Results, along: str) -> list[tuple[str, Results]]:
    """The results by the swept settings other than `along`, with their position as text."""
    names = [name for name in results.sweep_columns if name != results.sweep(along)]
    rows = [tuple((name.split(".")[-1], results.columns[name].tolist()[index]) for name in names)
            for index in range(len(results.columns["key"]))]
    return [(_text(where), results.subset(np.array([row == where for row in rows])))
            for where in dict.fromkeys(rows)]


def _ends(results: Results, params: Params, is_fall: bool) -> list[Found]:
    metric_of = params["metric"]
    found = []
    for text, group in _groups(results, params["along"]):
        metric, column = group.metric(metric_of), group.columns[group.sweep(params["along"])]
        own = group.columns["technique"] == params["of"]
        if not own.any():
            continue
        ends = [{int(group.columns["seed"][i]): metric[i] for i in
                 np.flatnonzero(own & (column == end)) if math.isfinite(metric[i])}
                for end in (column[own].min(), column[own].max())]
        common = sorted(ends[0].keys() & ends[1].keys())
        over, below = (ends if is_fall else ends[::-1])
        ratio = stats.ratio_ci([over[seed] for seed in common], [below[seed] for seed in common])
        found.append(Found(ratio, text))
    return _shortened(found)


def _rates(results: Results, params: Params) -> list[Found]:
    label, *others = labels_of(params)
    along, limit = params["along"], params["limit"]
    found = []
    for text, group in _groups(results, along):
        if not {label, *others} <= set(group.techniques):
            continue
        if not others:
            rate = slo.max_rate(group, params["metric"], label, along, limit)
            found.append(Found(rate.estimate, text, rate.beyond))
        for over in others:
            rate = slo.rate_ratio(group, params["metric"], label, over, along, limit)
            name = f"{over} " if len(others) > 1 else ""
            found.append(Found(rate.estimate, name + text, rate.beyond))
    return _shortened(found)


def _linear_fits(results: Results, params: Params) -> list[Found]:
    found = []
    for text, group in _groups(results, params["along"]):
        if params["of"] not in group.techniques:
            continue
        curve = group.curve(params["metric"], params["of"], params["along"])
        x, y = curve.x[np.isfinite(curve.mean)], curve.mean[np.isfinite(curve.mean)]
        if x.size < 3 or np.var(y) == 0:
            continue
        slope, start = np.polyfit(x.astype(float), y, 1)
        r2 = float(1 - np.var(y - slope * x - start) / np.var(y))
        seeds = min(estimate.n for estimate in curve.estimates)
        found.append(Found(stats.Estimate(r2, math.nan, math.nan, seeds), text))
    return _shortened(found)


def figure_path(figure: str) -> Path:
    """Where the module of a figure such as dlora/fig10 is, if it has one."""
    name = figure.replace("/", "_").replace("-", "_")
    return Path(__file__).with_name("figures") / f"{name}.py"


def _of_figure(results: Results, params: Params) -> list[Found]:
    module = importlib.import_module(f"analysis.figures.{figure_path(params['figure']).stem}")
    try:
        value = module.claim_value(results, params["value"])
    except (ArithmeticError, LookupError, StopIteration, TypeError, ValueError) as error:
        # a spec may borrow a figure, and sweep other settings than its code needs
        raise Missing(f"the code of {params['figure']} cannot compute {params['value']} from these "
                      f"results: {type(error).__name__} {error}".strip()) from None
    return [Found(stats.Estimate(float(value), math.nan, math.nan, len(results.seeds)))]


def _shortened(found: list[Found]) -> list[Found]:
    """Positions without the settings that all of them share."""
    words = [set(one.at.split(" ")) for one in found]
    shared = set.intersection(*words) if words else set()
    return [replace(one, at=" ".join(word for word in one.at.split(" ")
                                     if word not in shared or len(found) == 1))
            for one in found]


@dataclass(frozen=True)
class Kind:
    values: Callable[[Results, Params], list[Found]]
    needs: tuple[str, ...]
    may_have: tuple[str, ...] = ()
    neutral: float | None = None  # the value that means "no effect"
    has_interval: bool = True     # else one number, whatever the seeds


KINDS = {
    "value": Kind(_values, ("metric", "of"), ("scale",)),
    "factor": Kind(_factors, ("metric", "of", "over"), ("across",), neutral=1),
    "increase": Kind(lambda r, p: _percent(r, p, 1), ("metric", "of", "over"), ("across",),
                     neutral=0),
    "decrease": Kind(lambda r, p: _percent(r, p, -1), ("metric", "of", "over"), ("across",),
                     neutral=0),
    "fall": Kind(lambda r, p: _ends(r, p, True), ("metric", "of", "along"), neutral=1),
    "rise": Kind(lambda r, p: _ends(r, p, False), ("metric", "of", "along"), neutral=1),
    "rate": Kind(_rates, ("metric", "of", "along", "limit")),
    "rate-factor": Kind(_rates, ("metric", "of", "over", "along", "limit"), neutral=1),
    "linear-fit": Kind(_linear_fits, ("metric", "of", "along"), has_interval=False),
    "figure": Kind(_of_figure, ("figure", "value"), has_interval=False),
}
COMMON = ("kind", "where", "reduce")
REDUCE = ("", "max", "min", "every")
