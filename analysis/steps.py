"""What a run's steps took, from /steps (`record.steps: true`), and loads that hold them back."""
from __future__ import annotations

import numpy as np

from analysis.point import Point, Points

PARTS = ("attention", "collective", "dense", "host", "load_wait", "lora", "swap", "switching")
_PARTS = [f"steps/parts/{part}" for part in PARTS]


def times_s(results: Points, index: int, prefill: bool) -> np.ndarray:
    """Times of the steps that compute prompts, or of those that only decode, from plan to end:
    with what they waited for loads, as CaraServe's Figure 11 has it."""
    read = results.point(index).read_several(["steps/prompt_tokens", *_PARTS])
    own = (read.pop("steps/prompt_tokens") > 0) == prefill
    return sum(read.values())[own] / 1e9


def mean_s(results: Points, index: int, prefill: bool) -> float:
    """Their mean; NaN without any."""
    times = times_s(results, index, prefill)
    return float(times.mean()) if times.size else float("nan")


def host_lora_s(results: Points, index: int) -> tuple[float, float]:
    """LoRA on the host of a prompt's layer: until inputs have come to workers and results back, and
    the slowest worker's computing; medians over the prompts' steps. Where the engine computes it by
    itself the first is 0."""
    read = results.point(index).read_several(
        ["steps/prompt_tokens", "steps/host_layers", "steps/parts/lora"],
        optional=["steps/host_data", "steps/host_compute"])
    prompts = read["steps/prompt_tokens"] > 0

    def by_layer(name: str) -> float:
        layers = np.maximum(read["steps/host_layers"][prompts], 1)
        return float(np.median(read[name][prompts] / layers)) / 1e9

    if "steps/host_data" not in read:
        return 0.0, by_layer("steps/parts/lora")
    return by_layer("steps/host_data"), by_layer("steps/host_compute")


def load_mean_s(results: Points, index: int) -> float:
    return mean_load_s(results.point(index))


def mean_load_s(point: Point) -> float:
    """Mean time from the decision to load an adapter until it is there, from /events; NaN without
    a load."""
    read = point.read_several(["events/code", "events/value"])
    codes = point.codes("events/code") or ["load"]
    loads = read["events/value"][read["events/code"] == codes.index("load")]
    return float(loads.mean()) if loads.size else float("nan")


def cold_start_shares(results: Points, index: int) -> np.ndarray:
    """Per finished request, the part of its latency in which its replica's step was held back by a
    load, of its own adapter or another's (%): the cold starts that delay it, CaraServe 2.3."""
    read = results.point(index).read_several(
        ["requests/scheduled", "requests/last_token", "requests/status", "requests/replica",
         "steps/end", "steps/replica", *_PARTS])
    done = read["requests/status"] == 1
    begin, end = read["requests/scheduled"][done], read["requests/last_token"][done]
    held = np.zeros(int(done.sum()))
    waits = read["steps/parts/load_wait"]
    planned = read["steps/end"] - sum(read[part] for part in _PARTS)
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


def cold_start_share(results: Points, index: int) -> float:
    """Mean over the finished requests; NaN without any."""
    shares = cold_start_shares(results, index)
    return float(shares.mean()) if shares.size else float("nan")
