"""What figures and claims derive from a point, beside the metrics in /summary.

DERIVED maps a metric's name to a function of the results; Results.metric knows them all, and those
of an SLO besides, such as slo_attainment[ttft=1,tpot=0.1]. Values by replica come from the point
files: /requests, /replicas and /series.
"""
from __future__ import annotations

import json
from typing import Callable

import numpy as np

from analysis import service, slo_limits, steps
from analysis.point import Points


def queueing_by_replica(results: Points, index: int) -> tuple[np.ndarray, np.ndarray]:
    """By replica: mean queueing delay (s), and its share of the latency (%), both over finished
    requests; NaN for a replica without any."""
    point = results.point(index)
    read = {name: point.read(f"requests/{name}")
            for name in ("replica", "status", "scheduled", "admitted", "last_token")}
    done = (read["status"] == 1) & (read["replica"] >= 0)
    replica = read["replica"][done].astype(int)
    queueing_s = (read["admitted"] - read["scheduled"])[done] / 1e9
    latency_s = (read["last_token"] - read["scheduled"])[done] / 1e9
    count = len(point.read("replicas/busy"))
    total, waited, spent = (np.bincount(replica, weights, count)
                            for weights in (None, queueing_s, latency_s))
    with np.errstate(invalid="ignore", divide="ignore"):
        return waited / total, 100 * waited / spent


def sm_by_replica(results: Points, index: int) -> np.ndarray:
    """Share of the run in which a replica's device executes kernels, in percent: step time less
    the host's part, which the device waits for."""
    point = results.point(index)
    working_ns = (point.read("replicas/busy") - point.read("replicas/host")).astype(float)
    return 100 * working_ns / 1e9 / float(results.metric("duration_s")[index])


def memory_over_time(results: Points, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per bin of /series: its start (s), replica, and device memory in use (%): weights, KV and
    adapters, which take KV blocks."""
    point = results.point(index)
    size, weights, block = (point.read(f"replicas/{name}").astype(float)
                            for name in ("device_bytes", "weight_bytes", "kv_block_bytes"))
    replica = point.read("series/replica").astype(int)
    used = weights[replica] + point.read("series/kv_blocks_used") * block[replica]
    return point.read("series/start") / 1e9, replica, 100 * used / size[replica]


def memory_by_replica(results: Points, index: int) -> np.ndarray:
    """Mean over the bins in which a replica had a step, in percent; NaN without any."""
    _, replica, percent = memory_over_time(results, index)
    count = len(results.point(index).read("replicas/busy"))
    with np.errstate(invalid="ignore"):
        return (np.bincount(replica, percent, count) / np.bincount(replica, minlength=count))


def overhead_shares(results: Points, index: int) -> tuple[float, float, float]:
    """ILP solving, switching and inference in percent of their sum. Switching and inference are
    means over the replicas, which work at the same time; the solver counts once."""
    replicas = len(results.point(index).read("replicas/busy"))
    solver, switching, busy = (float(results.metric(name)[index]) for name in
                               ("solver_time_s", "switching_time_s", "busy_time_s"))
    parts = np.array([solver, switching / replicas, (busy - switching) / replicas])
    total = parts.sum()
    return tuple(100 * parts / total) if total > 0 else (float("nan"),) * 3


def is_solver_charged(results: Points) -> bool:
    """Whether migration was decided at all, or its solver's time was charged."""
    return bool(results.metric("solver_time_s").sum() > 0
                or not results.metric("rebalances").sum() > 0)


def threshold_changes(results: Points, index: int) -> float:
    """How often alpha_switch or beta_switch took another value, all replicas."""
    point = results.point(index)
    changes = 0
    for name in ("alpha_switch", "beta_switch"):
        gauge = point.gauge(name)
        for replica in np.unique(gauge.replica):
            changes += int(np.count_nonzero(np.diff(gauge.value[gauge.replica == replica])))
    return float(changes)


def arrival_dispersion(results: Points, index: int, bin_s: float) -> float:
    """Variance over mean of the arrivals per bin; 1 for a Poisson process of constant rate."""
    times_s = results.point(index).read("requests/scheduled") / 1e9
    if times_s.size == 0:
        return float("nan")
    counts = np.bincount((times_s // bin_s).astype(int))[:-1]  # the last bin is cut
    return float(counts.var() / counts.mean()) if counts.size > 1 else float("nan")


def calls_by_adapter(results: Points, index: int) -> np.ndarray:
    """Requests to each adapter of the workload, most invoked first, those without any included."""
    read = results.point(index).read_several(["requests/adapter"], optional=["spec/effective"])
    used = read["requests/adapter"][read["requests/adapter"] >= 0].astype(int)
    count = 0
    if "spec/effective" in read:
        count = json.loads(read["spec/effective"].item())["workload"]["adapters"]["count"]
    return np.sort(np.bincount(used, minlength=count))[::-1]


def top_tenth_share(results: Points, index: int) -> float:
    """Percent of the requests to adapters that go to the tenth of these that is invoked most."""
    calls = calls_by_adapter(results, index)
    top = int(np.ceil(calls.size / 10))
    return 100 * float(calls[:top].sum()) / calls.sum() if calls.sum() else float("nan")


def tokens_by_replica(results: Points, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output tokens per replica that clients asked for, and those that were processed;
    requests that no replica got are of none."""
    point = results.point(index)
    read = {name: point.read(f"requests/{name}") for name in
            ("replica", "prompt_tokens", "output_tokens", "output_tokens_true", "first_token")}
    count = len(point.read("replicas/busy"))
    routed = read["replica"] >= 0
    replica = read["replica"][routed].astype(int)
    prompt = np.where(read["first_token"] >= 0, read["prompt_tokens"], 0)
    asked, done = (np.bincount(replica, values[routed], count) for values in
                   (read["prompt_tokens"] + read["output_tokens_true"],
                    prompt + read["output_tokens"]))
    return asked, done


def _units(results: Points, index: int) -> list[dict]:
    """The deployment's units that are on."""
    units = results.point(index).context().get("deployment", [])
    return [unit for unit in units if not unit["off"]]


def gpus_used(results: Points, index: int) -> float:
    """Devices of units that are on; NaN where the run had no deployment."""
    units = _units(results, index)
    return float(sum(len(unit["devices"]) for unit in units)) if units else float("nan")


def infeasible_placements(results: Points, index: int) -> float:
    """Devices in use whose unit processed less than 90 % of its incoming tokens; all of them where
    the deployment does not fit the devices. NaN where there was none."""
    units = _units(results, index)
    if not units:
        return float("nan")
    devices = np.array([len(unit["devices"]) for unit in units])
    if results.point(index).attribute("reasons").startswith("does not fit"):
        return float(devices.sum())
    asked, done = tokens_by_replica(results, index)
    return float(devices[done < service.STARVED * asked].sum())


def feasible_tokens_per_s(results: Points) -> np.ndarray:
    """Prompt and output tokens per second of placements that are feasible; else NaN."""
    feasible = _each(infeasible_placements)(results) == 0
    return np.where(feasible, results.metric("total_tokens_per_s"), np.nan)


def max_over_min(values: np.ndarray) -> float:
    """Over the replicas; NaN when one has no value or none at all is positive."""
    least = float(np.min(values, initial=np.inf))
    return float(np.max(values)) / least if np.isfinite(least) and least > 0 else float("nan")


def _each(value_of: Callable[[Points, int], float]) -> Callable[[Points], np.ndarray]:
    return lambda results: np.array([value_of(results, index)
                                     for index in range(len(results.columns["key"]))])


def _over(above: str, below: str, scale: float = 1) -> Callable[[Points], np.ndarray]:
    def ratio(results: Points) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return scale * results.metric(above) / results.metric(below)
    return ratio


def _if_solver_charged(
        values_of: Callable[[Points], np.ndarray]) -> Callable[[Points], np.ndarray]:
    """NaN for results whose solver took no time although it decided: there is nothing to say."""
    return lambda results: values_of(results) * (1 if is_solver_charged(results) else np.nan)


def _queueing_per_token(results: Points) -> np.ndarray:
    """Sum of queueing delays over sum of output tokens, as dLoRA's average latency is defined."""
    return (results.metric("queueing_mean_s") * results.metric("latency_per_token_mean_s")
            / results.metric("latency_mean_s"))


def queueing_per_token(results: Points, index: int) -> float:
    """Mean over finished requests of queueing delay over output tokens (s), as dLoRA's artifact
    logs it, but for pauses between a request's steps, which count as queueing there."""
    point = results.point(index)
    read = {name: point.read(f"requests/{name}")
            for name in ("status", "scheduled", "admitted", "output_tokens")}
    done = (read["status"] == 1) & (read["output_tokens"] > 0)
    waited_s = (read["admitted"] - read["scheduled"])[done] / 1e9
    return float(np.mean(waited_s / read["output_tokens"][done])) if done.any() else float("nan")


def _service(name: str) -> Callable[[Points], np.ndarray]:
    return _each(lambda r, i: service.value(r, i, name))


def _of_slo(name: str, limits: slo_limits.Limits) -> Callable[[Points], np.ndarray]:
    return _each(lambda r, i: service.slo_value(r, i, name, limits))


def with_slo(name: str) -> Callable[[Points], np.ndarray] | None:
    """The function of a metric of an SLO, `slo_attainment[ttft=1]`; None for other names. Raises
    ValueError for a bad SLO."""
    metric, bracket, limits = name.removesuffix("]").partition("[")
    if metric not in service.SLO_METRICS or not bracket:
        return None
    return _of_slo(metric, slo_limits.parse(limits))


DERIVED: dict[str, Callable[[Points], np.ndarray]] = {
    "queueing_per_token_mean_s": _queueing_per_token,
    "queueing_per_token_mean_of_ratios_s": _each(queueing_per_token),
    "queueing_share_max_over_min": _each(lambda r, i: max_over_min(queueing_by_replica(r, i)[1])),
    "queueing_delay_max_over_min": _each(lambda r, i: max_over_min(queueing_by_replica(r, i)[0])),
    "sm_utilisation_percent": _each(lambda r, i: float(np.mean(sm_by_replica(r, i)))),
    "sm_utilisation_max_over_min": _each(lambda r, i: max_over_min(sm_by_replica(r, i))),
    "memory_utilisation_percent": _each(lambda r, i: float(np.mean(memory_by_replica(r, i)))),
    "memory_utilisation_max_over_min": _each(lambda r, i: max_over_min(memory_by_replica(r, i))),
    "inference_share_percent": _if_solver_charged(_each(lambda r, i: overhead_shares(r, i)[2])),
    "solver_time_per_rebalance_s": _if_solver_charged(_over("solver_time_s", "rebalances")),
    "lora_over_dense_percent": _over("lora_time_s", "dense_time_s", 100),
    "prefill_step_mean_s": _each(lambda r, i: steps.mean_s(r, i, prefill=True)),
    "decode_step_mean_s": _each(lambda r, i: steps.mean_s(r, i, prefill=False)),
    "top_tenth_share_percent": _each(top_tenth_share),
    "threshold_changes": _each(threshold_changes),
    "arrival_dispersion_1s": _each(lambda r, i: arrival_dispersion(r, i, 1)),
    "arrival_dispersion_1h": _each(lambda r, i: arrival_dispersion(r, i, 3600)),
    "gpus_used": _each(gpus_used),
    "infeasible_placements": _each(infeasible_placements),
    "feasible_tokens_per_s": feasible_tokens_per_s,
    "adapter_load_mean_s": _each(steps.load_mean_s),
    "cold_start_share_percent": _each(steps.cold_start_share),
    **{name: _service(name) for name in service.METRICS},
    **{name: _of_slo(name, slo_limits.DEFAULT) for name in service.SLO_METRICS},
}
