"""The largest rate that a system serves within a latency limit, from a sweep over the rate.

    found = max_rate(results, "latency_per_token_mean_s", "dlora", "workload.arrivals.rate", 0.5)
    print(found.estimate.value, found.beyond)

By seed: the last grid point within the limit, and from there a straight line on log-log axes to the
next one. A system that is within the limit at the last rate, or at none, is beyond the grid: its
value is that end of the grid and a bound, and `beyond` says so. Nothing is extrapolated.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import numpy as np

from analysis import stats
from analysis.results import Results
from analysis.slo_limits import SLO_S  # noqa: F401: figures take it from here

Crossings = dict[int, tuple[float, str]]  # seed -> rate and bound, as crossing() gives them
BOUNDS = ">, < and ?: a sweep ends before the limit is crossed; the value is a bound, or unknown"


@dataclass(frozen=True)
class Rate:
    """Mean over seeds. `bound` is "", or ">" or "<" for a value that the true one is beyond, or "?"
    where not even that is known; `beyond` says why, for people."""

    estimate: stats.Estimate
    bound: str = ""
    beyond: str = ""


def crossing(rates: Sequence[float], values: Sequence[float], limit: float) -> tuple[float, str]:
    """The rate at which the values cross the limit for the last time, and "", ">" (still within it
    at the last rate) or "<" (never within it). Positions without a finite value do not count."""
    x, y = np.asarray(rates, dtype=float), np.asarray(values, dtype=float)
    known = np.isfinite(y)
    order = np.argsort(x[known])
    x, y = x[known][order], y[known][order]
    if x.size == 0:
        return math.nan, ""
    within = np.flatnonzero(y <= limit)
    if within.size == 0:
        return float(x[0]), "<"
    last = int(within[-1])
    if last == x.size - 1:
        return float(x[-1]), ">"
    if min(y[last], x[last]) <= 0:
        return float(x[last]), ""
    share = math.log(limit / y[last]) / math.log(y[last + 1] / y[last])
    return float(x[last] * (x[last + 1] / x[last]) ** share), ""


def by_seed(results: Results, metric: str, technique: str, sweep: str,
            limit: float) -> Crossings:
    """The crossing of each seed of a technique."""
    rows = results.columns["technique"] == technique
    rates, values = results.columns[results.sweep(sweep)], results.metric(metric)
    seeds = results.columns["seed"]
    return {int(seed): crossing(rates[rows & (seeds == seed)], values[rows & (seeds == seed)],
                                limit)
            for seed in np.unique(seeds[rows])}


def max_rate(results: Results, metric: str, technique: str, sweep: str, limit: float) -> Rate:
    """The largest rate within the limit."""
    return rate_of(technique, by_seed(results, metric, technique, sweep, limit))


def rate_of(technique: str, found: Crossings) -> Rate:
    """The mean over seeds of what by_seed found."""
    return Rate(stats.mean_ci([rate for rate, _ in found.values()]), _bound(found),
                _beyond(technique, found))


def rate_ratio(results: Results, metric: str, a: str, b: str, sweep: str, limit: float) -> Rate:
    """The largest rate of `a` over that of `b`, over the seeds that both have."""
    return ratio_of(a, by_seed(results, metric, a, sweep, limit),
                    b, by_seed(results, metric, b, sweep, limit))


def ratio_of(a: str, of: Crossings, b: str, over: Crossings) -> Rate:
    """What by_seed found for `a` over what it found for `b`."""
    common = sorted(of.keys() & over.keys())
    ratio = stats.ratio_ci(*([side[seed][0] for seed in common] for side in (of, over)))
    reasons = [text for text in (_beyond(a, of), _beyond(b, over)) if text]
    opposite = {"": "", ">": "<", "<": ">", "?": "?"}
    bounds = {_bound(of), opposite[_bound(over)]} - {""}
    return Rate(ratio, bounds.pop() if len(bounds) == 1 else "?" if bounds else "",
                "; ".join(reasons))


def _bound(found: Crossings) -> str:
    signs = {bound for _, bound in found.values()} - {""}
    return signs.pop() if len(signs) == 1 else "?" if signs else ""


def _beyond(technique: str, found: Crossings) -> str:
    for sign, text in ((">", "is within the limit at the last rate"),
                       ("<", "is beyond the limit at the first rate")):
        rates = [rate for rate, bound in found.values() if bound == sign]
        if rates:
            return f"{technique} {text}, {rates[0]:g}"
    return ""
