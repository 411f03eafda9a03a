"""A point's /summary from its datasets, by the definitions of engine/record/summary.h: what
`archive verify` compares with what a point says of itself. tests/analysis/test_derive.py compares
both implementations, to rounding, on runs of ten techniques.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analysis.errors import ResultsError
from analysis.point import Point
from analysis.summary import requests, windows
from analysis.summary.dialects import servelab
from analysis.summary.dialects._rows import NAN, ratio

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
TIMES = ("dense", "attention", "lora", "collective", "host", "switching", "load_wait", "swap",
         "busy", "scheduling")
PER_STEP = ("base", "dense", "lora")
QUEUE_FULL = 4  # /requests/reject_reason
ARRIVAL = "arrival"  # in the codes of /delivered/kind
# Stamps by which T is known: every event but a look of the cluster policy leaves one.
STAMPS = ("admitted", "load_start", "load_end", "prefill_start", "first_token", "last_token")
# engine/serve/recorder.h, LatencyHistogram
BINS_PER_DOUBLING, DOUBLINGS, LOWEST_NS = 64, 40, 1024.0
EDGES_NS = np.array([LOWEST_NS * (1 + i % BINS_PER_DOUBLING / BINS_PER_DOUBLING)
                     * 2.0 ** (i // BINS_PER_DOUBLING)
                     for i in range(BINS_PER_DOUBLING * DOUBLINGS + 1)])


@dataclass
class Derived:
    """Metrics that follow exactly, and the least and the most of those that follow in part."""

    exact: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)


def derive(point: Point) -> Derived:
    """Raises ResultsError where a dataset is absent or damaged."""
    r = requests.read(point, tokens=False)
    found = Derived()
    table = servelab.table(windows.whole(r))
    found.exact = {row.name: row.value for row in table if not row.name.startswith("itl_")}
    tokens = _tokens(point) if point.has("tokens") else None
    _duration(point, r, tokens, found)
    _itl(point, r, tokens, found)
    found.exact["preemptions"] = float(point.read("requests/preemptions").sum(dtype=np.int64))
    _replicas(point, found)
    _cluster(point, r, found)
    return found


@dataclass
class _Tokens:
    gaps_ns: int  # all gaps between consecutive tokens of a request together
    last_ns: int


def _tokens(point: Point) -> _Tokens:
    """Of the stamps of tokens, of which there may be more than memory holds: a request's gaps add
    up to its last stamp less its first."""
    offsets = point.read("tokens/offsets").astype(np.int64)
    counts = np.diff(offsets)
    if not len(offsets) or offsets[0] != 0 or np.any(counts < 0):
        raise ResultsError(point.path, "has /tokens/offsets that lead nowhere", "")
    begins, ends = offsets[:-1][counts > 0], offsets[1:][counts > 0] - 1
    span = np.zeros(len(begins), dtype=np.int64)
    at = last = 0
    for block in point.blocks("tokens/times"):
        stop = at + len(block)
        for places, sign in ((begins, -1), (ends, 1)):
            low, high = np.searchsorted(places, (at, stop))
            span[low:high] += sign * block[places[low:high] - at].astype(np.int64)
        at, last = stop, max(last, int(block.max()))
    if at != offsets[-1]:
        raise ResultsError(point.path, f"has {at} /tokens/times for {offsets[-1]} tokens", "")
    return _Tokens(int(span.sum()), last)


def _last_stamp(point: Point, r: requests.Requests, tokens: _Tokens | None) -> int:
    stamps = [point.read(f"requests/{name}") for name in STAMPS]
    codes = point.codes("events/code")
    is_look = (point.read("events/code") == codes.index("rebalance") if "rebalance" in codes
               else np.zeros(len(point.read("events/code")), dtype=bool))
    stamps += [point.read("events/time")[~is_look], r.arrival[r.status != requests.UNFINISHED]]
    if point.has("steps/end"):
        stamps.append(point.read("steps/end"))
    return max([tokens.last_ns if tokens else 0,
                *(int(values.max()) for values in stamps if values.size)])


def _duration(point: Point, r: requests.Requests, tokens: _Tokens | None,
              found: Derived) -> None:
    """T is the last stamp where every request came to an end; else it may be the end of a step
    that gave no token, or an arrival."""
    last = _last_stamp(point, r, tokens) / 1e9
    del found.exact["duration_s"]
    if len(r) and not np.any(r.status == requests.UNFINISHED):
        found.exact = {"duration_s": last, **found.exact}
    else:
        found.bounds["duration_s"] = (last, float("inf"))


def _itl(point: Point, r: requests.Requests, tokens: _Tokens | None, found: Derived) -> None:
    count = point.read("itl/count").astype(np.int64)
    total = int(count.sum())
    seen, edges = np.cumsum(count.astype(float)), EDGES_NS
    for name, q in QUANTILES.items():
        if total == 0:
            found.exact[f"itl_{name}_s"] = NAN
            continue
        at = int(np.argmax((count > 0) & (seen >= q * total)))
        inside = (q * total - (seen[at] - count[at])) / count[at]
        found.exact[f"itl_{name}_s"] = (edges[at] + inside * (edges[at + 1] - edges[at])) / 1e9
    if tokens is not None:
        found.exact["itl_mean_s"] = ratio(tokens.gaps_ns / 1e9, total)
    elif not np.any((r.status != requests.FINISHED) & (r.output > 1)):
        gaps = (r.last - r.first)[r.status == requests.FINISHED]
        found.exact["itl_mean_s"] = ratio(int(gaps.sum()) / 1e9, total)
    elif total:
        low, high = (float((count * edge).sum()) / total / 1e9
                     for edge in (np.where(count > 0, edges[:-1], 0) * (edges[:-1] > LOWEST_NS),
                                  edges[1:]))
        found.bounds["itl_mean_s"] = (low, high)


def _replicas(point: Point, found: Derived) -> None:
    def total(name: str) -> int:
        return int(point.read(f"replicas/{name}").sum(dtype=np.int64))

    times = {name: total(name) for name in TIMES}
    times["base"] = sum(times[name] for name in ("dense", "attention", "collective", "host"))
    steps = total("steps")
    found.exact |= {"steps": float(steps), "switches": float(total("switches")),
                    "adapter_loads": float(total("loads")),
                    "merged_step_share": ratio(float(total("merged_steps")), float(steps)),
                    **{f"{name}_time_s": value / 1e9 for name, value in times.items()},
                    **{f"{name}_time_per_step_s": ratio(times[name] / 1e9, float(steps))
                       for name in PER_STEP}}


def _cluster(point: Point, r: requests.Requests, found: Derived) -> None:
    codes, code = point.codes("events/code"), point.read("events/code")

    def events(name: str) -> np.ndarray:
        return (code == codes.index(name) if name in codes else np.zeros(len(code), dtype=bool))

    decided = events("rebalance")
    failed = decided & (point.read("events/subject") < 0)
    charged = np.rint(point.read("events/value")[decided] * 1e9).astype(np.int64)
    found.exact |= {"rebalances": float(np.count_nonzero(decided & ~failed)),
                    "solver_failures": float(np.count_nonzero(failed)),
                    "solver_time_s": int(charged.sum()) / 1e9,
                    "migrations": float(point.read("requests/migrations").sum(dtype=np.int64)),
                    "arrival_lag_max_s": _arrival_lag(point, r)}
    summary = point.summary()
    if "requests_turned_away" in summary:
        reasons = point.read("requests/reject_reason")
        entered = int(np.count_nonzero(events("enter")))
        outside = (r.status == requests.UNFINISHED) & (point.read("requests/replica") < 0)
        found.exact["requests_turned_away"] = float(np.count_nonzero(reasons == QUEUE_FULL))
        found.bounds["requests_held_back"] = (entered, entered + int(np.count_nonzero(outside)))


def _arrival_lag(point: Point, r: requests.Requests) -> float:
    """Longest time from a scheduled arrival to its entry: none in virtual time, which keeps no
    /delivered."""
    if not point.has("delivered/at"):
        return 0.0
    kinds = point.codes("delivered/kind")
    at = point.read("delivered/kind") == kinds.index(ARRIVAL)
    lag = point.read("delivered/at")[at] - r.arrival[point.read("delivered/subject")[at]]
    return max(0, int(lag.max(initial=0))) / 1e9


def check(point: Point) -> tuple[list[str], list[str]]:
    """What /summary says that the datasets do not, one phrase for each metric; and metrics that
    this version does not know how to derive."""
    derived, said = derive(point), point.summary()
    found = []
    for name, value in derived.exact.items():
        if name in said and not _same(said[name], value):
            found.append(f"{name} is {said[name]:.9g}, its datasets give {value:.9g}")
    for name, (low, high) in derived.bounds.items():
        if name in said and not low * (1 - 1e-12) <= said[name] <= high * (1 + 1e-12):
            found.append(f"{name} is {said[name]:.9g}, its datasets allow {low:.9g} to {high:.9g}")
    return found, sorted(set(said) - set(derived.exact) - set(derived.bounds))


def _same(a: float, b: float) -> bool:
    """Equal but for the rounding of another compiler."""
    return a == b or (a != a and b != b) or abs(a - b) <= 1e-12 * max(abs(a), abs(b))
