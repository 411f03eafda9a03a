"""What single steps say, from /steps (record.steps) and /events: iterations with prompts and
without, the loads of adapters, and what requests are held back by them.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from analysis.results import Results

PARTS = ("attention", "collective", "dense", "host", "load_wait", "lora", "swap", "switching")


def _has_steps(results: Results, index: int) -> bool:
    point = results.point(index)
    return bool(point.once("has steps", lambda: point.has("steps/end")))


def step_mean_s(results: Results, index: int, prefill: bool) -> float:
    """Mean time of a step with prompts in it (or without any), from its plan to its end: with what
    it waited for loads. NaN without such steps, or without record.steps."""
    if not _has_steps(results, index):
        return float("nan")
    read = results.point(index).read_several(
        ["steps/prompt_tokens", *(f"steps/parts/{part}" for part in PARTS)])
    own = (read["steps/prompt_tokens"] > 0) == prefill
    if not own.any():
        return float("nan")
    return float(sum(read[f"steps/parts/{part}"][own].mean() for part in PARTS)) / 1e9


def load_mean_s(results: Results, index: int) -> float:
    """Mean time from the decision to load an adapter until it is there; NaN without a load."""
    point = results.point(index)
    read = point.read_several(["events/code", "events/value"])
    codes = point.codes("events/code") or ["load"]
    loads = read["events/value"][read["events/code"] == codes.index("load")]
    return float(loads.mean()) if loads.size else float("nan")


def cold_start_shares(results: Results, index: int) -> np.ndarray:
    """Per finished request, the part of its latency in which its replica's step was held back by a
    load, of its own adapter or another's (%): the cold starts that delay it, CaraServe 2.3. Empty
    without record.steps."""
    if not _has_steps(results, index):
        return np.empty(0)
    read = results.point(index).read_several(
        ["requests/scheduled", "requests/last_token", "requests/status", "requests/replica",
         "steps/end", "steps/replica", *(f"steps/parts/{part}" for part in PARTS)])
    done = read["requests/status"] == 1
    begin, end = read["requests/scheduled"][done], read["requests/last_token"][done]
    held = np.zeros(int(done.sum()))
    waits = read["steps/parts/load_wait"]
    planned = read["steps/end"] - sum(read[f"steps/parts/{part}"] for part in PARTS)
    for replica in np.unique(read["steps/replica"]):
        waiting = (read["steps/replica"] == replica) & (waits > 0)
        own = read["requests/replica"][done] == replica
        held[own] = overlap(begin[own], end[own], planned[waiting],
                            planned[waiting] + waits[waiting])
    return 100 * held / np.maximum(end - begin, 1)


def overlap(begin: np.ndarray, end: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """How much of each [begin, end) the disjoint intervals [start, stop) cover."""
    if not start.size:
        return np.zeros(len(begin))
    order = np.argsort(start)
    start, stop = start[order], stop[order]
    total = np.concatenate([[0], np.cumsum(stop - start)])

    def covered_until(time: np.ndarray) -> np.ndarray:
        last = np.searchsorted(start, time, side="right")  # intervals that began by then
        beyond = np.where(last > 0, np.maximum(stop[np.maximum(last - 1, 0)] - time, 0), 0)
        return total[last] - beyond

    return covered_until(end) - covered_until(begin)


def cold_start_share(results: Results, index: int) -> float:
    """Mean over the finished requests; NaN without any, or without record.steps."""
    shares = cold_start_shares(results, index)
    return float(shares.mean()) if shares.size else float("nan")
