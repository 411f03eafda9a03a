"""Which part of a run is summarised: all of it, what comes after a warm-up, or the steady part.

A window [A, B) takes the requests that arrive in it, A <= a_i < B, whenever they finish: latencies
of requests that were chosen by their end would leave out the slow ones. Its rates count what
happens inside it, whoever asked for it: tokens by their stamps, and requests by their end, over B
- A.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.summary.requests import FINISHED, Requests
from analysis.verb import VerbError

SLOTS, BATCH = 500, 5  # of the steady rule: observations, and how many make one batch
STEADY_REQUESTS_MIN = 100
MACRO_BATCHES, GROWTH_MAX, SIGNIFICANCE = 10, 0.25, 0.01


@dataclass(frozen=True)
class Window:
    """[start, end) in ns since the start of the run, and how it was chosen."""

    start: int
    end: int
    text: str

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


class NotSteady(Exception):
    """Why a run has no steady part, or none that can be told."""


def parse_warm_up(text: str) -> tuple[float, int]:
    """Seconds and requests of --warm-up, one of them 0: "30", "100-requests"."""
    number, unit, rest = text.partition("-request")
    try:
        if unit and rest in ("", "s"):
            requests = int(number)
            if requests >= 0:
                return 0.0, requests
        elif not unit and 0 <= float(text) < float("inf"):
            return float(text), 0
    except ValueError:
        pass
    raise VerbError(f"--warm-up {text}: must be seconds, such as 30, or a count, such as "
                    "100-requests")


def parse_window(text: str) -> tuple[float, float | None]:
    """Seconds of --window A:B; an empty A is 0, an empty B the end of the run (None)."""
    start, colon, end = text.partition(":")
    try:
        a = float(start) if start else 0.0
        b = float(end) if end else None
        if colon and 0 <= a < float("inf") and (b is None or a < b < float("inf")):
            return a, b
    except ValueError:
        pass
    raise VerbError(f"--window {text}: must be A:B in seconds with A < B, such as 30:120, 30: or "
                    ":120")


def after_warm_up(requests: Requests, seconds: float, count: int) -> Window:
    """From `seconds`, or from the arrival of request `count` (the first is 0), to the end."""
    if count >= len(requests):
        raise VerbError(f"--warm-up {count}-requests: the run has {len(requests)} requests")
    start = round(seconds * 1e9) if count == 0 else int(requests.arrival[count])
    if start > requests.run_end:
        raise VerbError(f"--warm-up {seconds:g}: the run ends after {requests.run_end / 1e9:g} s")
    what = f"after {count} requests" if count else f"after {seconds:g} s"
    return Window(start, requests.run_end, f"{what}, to the end at {requests.run_end / 1e9:g} s")


def between(requests: Requests, start_s: float, end_s: float | None) -> Window:
    end = requests.run_end if end_s is None else min(round(end_s * 1e9), requests.run_end)
    start = round(start_s * 1e9)
    if start >= end:
        raise VerbError(f"--window: the run ends after {requests.run_end / 1e9:g} s")
    return Window(start, end, f"{start / 1e9:g} s to {end / 1e9:g} s")


def in_system(requests: Requests, end: int) -> np.ndarray:
    """N: requests that have arrived and not ended, as means over SLOTS equal slots of [0, end)."""
    edges = np.linspace(0, end, SLOTS + 1)

    def passed(stamps: np.ndarray) -> np.ndarray:
        """Integral over [0, t] of how many stamps lie before t, at every edge."""
        ordered = np.sort(stamps).astype(float)
        count = np.searchsorted(ordered, edges)
        return count * edges - np.concatenate([[0.0], np.cumsum(ordered)])[count]

    return np.diff(passed(requests.arrival) - passed(requests.end)) / np.diff(edges)


def mser5(values: np.ndarray) -> int:
    """How many values MSER-5 (White, Cobb and Spratt 2000) cuts off as initial transient, a
    multiple of 5: the truncation, up to half of them, that makes the standard error of the mean of
    the rest smallest, over means of batches of 5."""
    batches = values[:len(values) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    count = len(batches)
    rest = np.arange(count, 0, -1)
    centred = batches - batches.mean()
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum((centred ** 2)[::-1])[::-1]
    variance = np.maximum(squares / rest - (sums / rest) ** 2, 0)
    return int(np.argmin((variance / rest)[:count // 2 + 1])) * BATCH


def steady(requests: Requests) -> Window:
    """From the end of the initial transient, by MSER-5 of the requests in the system, to the last
    arrival, after which the system only empties. Raises NotSteady where what is left still grows or
    shrinks, as it does when the transient lasts longer than half the run: Kendall's tau over ten
    batch means has p < 0.01, and their trend (Theil and Sen) is more than a quarter of the mean."""
    requests = requests.sent
    if len(requests) < STEADY_REQUESTS_MIN:
        raise NotSteady(f"{len(requests)} requests are too few to tell; at least "
                        f"{STEADY_REQUESTS_MIN}")
    last_arrival = int(requests.arrival.max())
    if last_arrival <= 0:
        raise NotSteady("all requests arrive at once")
    level = in_system(requests, last_arrival)
    cut = mser5(level)
    means = np.array([part.mean() for part in np.array_split(level[cut:], MACRO_BATCHES)])
    trend = stats.kendalltau(np.arange(MACRO_BATCHES), means)
    growth = stats.theilslopes(means).slope * MACRO_BATCHES
    start = round(last_arrival * cut / SLOTS)
    if trend.pvalue < SIGNIFICANCE and abs(growth) > GROWTH_MAX * means.mean():
        way = "grow" if growth > 0 else "fall"
        raise NotSteady(f"the requests in the system {way} all along, from {means[0]:.3g} after "
                        f"{start / 1e9:.3g} s to {means[-1]:.3g} at the last arrival")
    return Window(start, last_arrival, f"steady from {start / 1e9:.3f} s (MSER-5) to the last "
                  f"arrival at {last_arrival / 1e9:.3f} s")


@dataclass(frozen=True)
class Part:
    """What a dialect computes from: the requests that count, and what happened meanwhile."""

    requests: Requests
    window: Window | None  # None: the whole run, where a dialect has its own idea of duration
    completed: int = 0  # requests that finished inside the window
    generated: float = 0.0  # tokens produced inside it
    prefilled: int = 0  # prompt tokens whose first output token came inside it
    is_exact: bool = True  # tokens were counted by their stamps


def whole(requests: Requests) -> Part:
    return Part(requests, None)


def inside(requests: Requests, window: Window) -> Part:
    """Raises VerbError for a window without an arrival."""
    arrives = (requests.arrival >= window.start) & (requests.arrival < window.end)
    if not arrives.any():
        raise VerbError(f"no request arrives in the window ({window.text})")
    # the stamp of the run's last event belongs to a window that lasts to the end
    stop = window.end + (1 if window.end == requests.run_end else 0)

    def happens(stamps: np.ndarray) -> np.ndarray:
        return (stamps >= window.start) & (stamps < stop)

    if requests.token_times is not None:
        generated = float(np.count_nonzero(happens(requests.token_times)))
    else:
        generated = _spread_evenly(requests, window.start, stop)
    return Part(requests.select(arrives), window,
                completed=int(np.count_nonzero(happens(requests.last)
                                               & (requests.status == FINISHED))),
                generated=generated,
                prefilled=int(requests.prompt[happens(requests.first)].sum()),
                is_exact=requests.has_tokens)


def _spread_evenly(requests: Requests, start: int, stop: int) -> float:
    """Tokens in [start, stop), as if a request's tokens after the first came at equal distances."""
    some = requests.first >= 0
    first, last = requests.first[some].astype(float), requests.last[some].astype(float)
    # a request that did not finish has produced its tokens by the end of the run at the latest
    last = np.where(last >= first, last, requests.end[some])
    later = requests.output[some] - 1
    span = np.maximum(last - first, 1)
    share = np.clip(np.minimum(last, stop) - np.maximum(first, start), 0, None) / span
    at_once = (last == first) & (first >= start) & (first < stop)
    return float(((first >= start) & (first < stop)).sum()
                 + (later * np.where(last == first, at_once, share)).sum())
