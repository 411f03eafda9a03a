"""How a run served its clients and its adapters: SLOs, fairness, starvation, from /requests.

For request i: a_i its scheduled arrival, s_i when it first entered a step, f_i and l_i the stamps
of its first and last output token, p_i its prompt, o_i the output tokens that it got and O_i those
that it needs; F the finished requests, T the end of the run. Everything is vectorised: a million
requests take about two seconds.
"""
from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Callable

import numpy as np

from analysis.point import Points
from analysis.slo_limits import Limits

STARVED = 0.9  # a system, or an adapter, that gets less of its incoming tokens per second starves
FINISHED, REJECTED = 1, 2  # codes of /requests/status
COLUMNS = ("adapter", "admitted", "first_token", "last_token", "output_tokens", "prompt_tokens",
           "scheduled", "status")


@dataclass(frozen=True)
class Requests:
    """One entry per request; seconds since the run's start, NaN for what never happened."""

    adapter: np.ndarray  # index among the run's tenants, 0..: its adapters, and the base model
    arrival_s: np.ndarray
    admitted_s: np.ndarray
    first_s: np.ndarray
    last_s: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    needed: np.ndarray   # output tokens that finish it
    finished: np.ndarray
    rejected: np.ndarray
    end_s: float         # T
    window_s: float      # clients send requests until then

    @property
    def tenants(self) -> int:
        return int(self.adapter.max(initial=-1)) + 1

    def by_tenant(self, values: np.ndarray, of: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Sums of the values of the chosen requests."""
        return np.bincount(self.adapter[of], values[of], self.tenants)


def requests_of(results: Points, index: int) -> Requests:
    """Those of a point. Points of older results do not say what an unfinished request needs: it
    counts as the mean of the finished ones, or what it got if that is more."""
    point = results.point(index)
    raw = point.read_several([f"requests/{name}" for name in COLUMNS],
                             optional=["requests/output_tokens_true", "spec/effective"])
    of = {name: raw[f"requests/{name}"] for name in COLUMNS}
    finished = of["status"] == FINISHED
    output = of["output_tokens"].astype(float)
    needed = raw.get("requests/output_tokens_true")
    if needed is None:
        mean = float(output[finished].mean()) if finished.any() else 0.0
        needed = np.where(finished, output, np.maximum(output, mean))
    tenants, adapter = np.unique(of["adapter"], return_inverse=True)
    arrival_s = of["scheduled"] / 1e9
    return Requests(adapter, arrival_s, _seconds(of["admitted"]), _seconds(of["first_token"]),
                    _seconds(of["last_token"]), of["prompt_tokens"].astype(float), output,
                    needed.astype(float), finished, of["status"] == REJECTED,
                    float(results.metric("duration_s")[index]),
                    _window_s(raw.get("spec/effective"), arrival_s))


def _seconds(stamps: np.ndarray) -> np.ndarray:
    return np.where(stamps >= 0, stamps / 1e9, np.nan)


def _window_s(effective: np.ndarray | None, arrival_s: np.ndarray) -> float:
    """workload.duration_s where there is one, else the last arrival."""
    try:
        workload = json.loads(effective.item())["workload"]  # type: ignore[union-attr]
        declared = float(workload.get("duration_s", 0))
    except (AttributeError, KeyError, TypeError, ValueError):
        declared = 0.0
    return declared or float(arrival_s.max(initial=0.0))


def meets(requests: Requests, limits: Limits) -> np.ndarray:
    """Which requests finished within every limit. A limit on the time between tokens is met by a
    request of one token."""
    within = requests.finished.copy()
    latency = requests.last_s - requests.arrival_s
    with np.errstate(invalid="ignore", divide="ignore"):
        values = {"ttft": requests.first_s - requests.arrival_s,
                  "tpot": np.where(requests.output > 1, (requests.last_s - requests.first_s)
                                   / (requests.output - 1), 0.0),
                  "latency": latency,
                  "latency_per_token": latency / requests.output,
                  "queueing": requests.admitted_s - requests.arrival_s}
        for name, limit in limits:
            within &= values[name] <= limit
    return within


def slo_attainment(requests: Requests, limits: Limits) -> float:
    """Share of all requests, rejected and unfinished ones included, that meet the SLO."""
    return float(meets(requests, limits).mean()) if requests.adapter.size else math.nan


def goodput_per_s(requests: Requests, limits: Limits) -> float:
    """Requests that meet the SLO, over T."""
    return int(meets(requests, limits).sum()) / requests.end_s if requests.end_s > 0 else math.nan


def jain(values: np.ndarray) -> float:
    """(sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything (Jain, Chiu and
    Hawe 1984). NaN values are left out."""
    x = values[np.isfinite(values)]
    square = float((x * x).sum())
    return float(x.sum()) ** 2 / (x.size * square) if square > 0 else math.nan


def jain_served(requests: Requests) -> float:
    """Jain's index over tenants of tokens served / tokens offered: sum over its requests of
    p_i [f_i happened] + o_i, over that of p_i + O_i."""
    served = np.where(np.isnan(requests.first_s), 0.0, requests.prompt) + requests.output
    return jain(requests.by_tenant(served)
                / requests.by_tenant(requests.prompt + requests.needed))


def jain_latency(requests: Requests) -> float:
    """Jain's index over tenants of sum over F of (l_i - a_i) / sum over F of o_i. A tenant of which
    nothing finished has none, and is left out."""
    of = requests.finished
    with np.errstate(invalid="ignore", divide="ignore"):
        return jain(requests.by_tenant(requests.last_s - requests.arrival_s, of)
                    / requests.by_tenant(requests.output, of))


def ttft_p99_worst_over_median(requests: Requests) -> float:
    """The largest of the tenants' P99 TTFTs over their median; over F."""
    of = requests.finished
    p99 = percentile_by_group((requests.first_s - requests.arrival_s)[of], requests.adapter[of],
                              0.99)
    median = float(np.median(p99)) if p99.size else 0.0
    return float(p99.max()) / median if median > 0 else math.nan


def percentile_by_group(values: np.ndarray, group: np.ndarray, q: float) -> np.ndarray:
    """Percentile q in [0, 1] of every group that has values, as numpy interpolates."""
    order = np.lexsort((values, group))
    ordered = values[order]
    _, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    position = q * (counts - 1)
    below = np.floor(position).astype(int)
    above = np.minimum(below + 1, counts - 1)
    low, high = ordered[starts + below], ordered[starts + above]
    return low + (position - below) * (high - low)


def served_in_window(requests: Requests) -> np.ndarray:
    """Per request the tokens that it got by the end of the arrivals, W: its prompt when f_i <= W,
    and its output tokens, as if those between f_i and l_i came evenly."""
    window = requests.window_s
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (window - requests.first_s) / (requests.last_s - requests.first_s)
        tokens = 1 + (requests.output - 1) * np.clip(np.nan_to_num(share, nan=1.0), 0.0, 1.0)
        return np.where(requests.first_s <= window, requests.prompt + tokens, 0.0)


def served_share(requests: Requests) -> float:
    """Throughput while clients send, over the incoming token rate: tokens served by W over those
    offered."""
    offered = float((requests.prompt + requests.needed).sum())
    return float(served_in_window(requests).sum()) / offered if offered > 0 else math.nan


def starved_adapters_share(requests: Requests) -> float:
    """Share of the tenants that are served less than STARVED of what they offer by W."""
    if not requests.tenants:
        return math.nan
    share = (requests.by_tenant(served_in_window(requests))
             / requests.by_tenant(requests.prompt + requests.needed))
    return float((share < STARVED).mean())


def longest_wait_s(requests: Requests) -> float:
    """Largest of s_i - a_i; of a request that never entered a step, T - a_i. Rejected ones are left
    out: they are counted."""
    until = np.where(np.isnan(requests.admitted_s), np.maximum(requests.end_s, requests.arrival_s),
                     requests.admitted_s)
    waits = (until - requests.arrival_s)[~requests.rejected]
    return float(waits.max()) if waits.size else math.nan


METRICS: dict[str, Callable[[Requests], float]] = {
    "jain_served": jain_served,
    "jain_latency": jain_latency,
    "ttft_p99_worst_over_median": ttft_p99_worst_over_median,
    "served_share": served_share,
    "starved": lambda requests: float(served_share(requests) < STARVED),
    "starved_adapters_share": starved_adapters_share,
    "longest_wait_s": longest_wait_s,
}
SLO_METRICS: dict[str, Callable[[Requests, Limits], float]] = {
    "slo_attainment": slo_attainment,
    "goodput_per_s": goodput_per_s,
}


def value(results: Points, index: int, name: str) -> float:
    """One of METRICS of a point. All are computed when the first is asked for, so that no point's
    requests stay in memory."""
    def all_of_them() -> dict[str, float]:
        requests = requests_of(results, index)
        return {known: value_of(requests) for known, value_of in METRICS.items()}
    return results.point(index).once("service", all_of_them)[name]


def slo_value(results: Points, index: int, name: str, limits: Limits) -> float:
    """One of SLO_METRICS of a point."""
    def all_of_them() -> dict[str, float]:
        requests = requests_of(results, index)
        return {known: value_of(requests, limits) for known, value_of in SLO_METRICS.items()}
    return results.point(index).once(f"service {limits}", all_of_them)[name]
