"""Synthetic results of CaraServe's figures, step by step."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

PARTS = ("attention", "collective", "dense", "host", "load_wait", "lora", "swap", "switching")
MS = 10**6


def steps(ends_ms: list[float], prompt_tokens: list[int], **parts_ms: list[float]) -> dict:
    """/steps of one replica; parts that are not given are 0."""
    return {"steps/end": np.array(ends_ms) * MS, "steps/prompt_tokens": prompt_tokens,
            "steps/replica": np.zeros(len(ends_ms), dtype=int),
            **{f"steps/parts/{part}": np.array(parts_ms.get(part, [0] * len(ends_ms))) * MS
               for part in PARTS}}


def requests(scheduled_ms: list[float], last_ms: list[float],
             status: list[int] | None = None) -> dict[str, Any]:
    count = len(scheduled_ms)
    return {"requests/scheduled": np.array(scheduled_ms) * MS,
            "requests/last_token": np.array(last_ms) * MS,
            "requests/status": np.ones(count, dtype=int) if status is None else np.array(status),
            "requests/replica": np.zeros(count, dtype=int)}


def loads(seconds: list[float], others: int = 2) -> dict[str, Any]:
    """/events with those loads, and as many evictions."""
    return {"events/code": [0] * len(seconds) + [1] * others,
            "events/value": [*seconds, *[0.0] * others]}


def fig03(spec: Any, place: dict[str, Any] | None = None) -> Path:
    for rate, rank in ((3, 64), (6, 64), (9, 64), (1, 8), (1, 64)):
        for seed in range(2):
            rng = np.random.default_rng([rate, rank, seed])
            at = np.sort(rng.uniform(0, 60_000, 20 * rate))
            wait = 0.5 * rank
            ends = 100.0 * np.arange(1, 700)
            waits = np.where(np.isin(np.arange(1, 700), (at // 100).astype(int)), wait, 0.0)
            spec.add("ondmd", seed, {"workload.arrivals.rate": rate,
                                     "workload.adapters.ranks": f"[{rank}]", **(place or {})}, {},
                     datasets={**steps(ends.tolist(), [0] * 699, load_wait=waits.tolist(),
                                       dense=[40.0] * 699),
                               **requests(at.tolist(), (at + 2000).tolist()),
                               **loads([wait / 1e3] * 5)})
    return spec.write()


def fig16(spec: Any) -> Path:
    for tokens in (16, 64, 256):
        for label, more in (("fused", 1.0), ("native", 1.2), ("ondmd", 1.3)):
            for seed in range(2):
                spec.add(label, seed, {"workload.lengths.prompt": tokens}, {},
                         datasets=steps([50, 100], [tokens] * 2,
                                        dense=[more * (30 + tokens / 10)] * 2))
    return spec.write()


TECHNIQUES = {"cached": 1.0, "ondmd": 1.5, "slora": 2.0, "caraserve": 1.1}


def served(more: float, seed: int, count: int = 60) -> tuple[dict[str, float], dict[str, Any]]:
    """Summary and /requests of requests that take `more` times as long as with cached adapters."""
    rng = np.random.default_rng(seed)
    scheduled = np.sort(rng.uniform(0, 60_000, count))
    tokens = rng.integers(2, 100, count)
    ttft = more * rng.uniform(40, 80, count)
    last = scheduled + ttft + more * 35 * (tokens - 1)
    return ({"ttft_mean_s": float(ttft.mean()) / 1e3,
             "latency_mean_s": float((last - scheduled).mean()) / 1e3,
             "latency_per_token_mean_of_ratios_s": float(
                 ((last - scheduled) / tokens).mean()) / 1e3,
             "duration_s": 70.0},
            {**requests(scheduled.tolist(), last.tolist()), "requests/output_tokens": tokens,
             "requests/first_token": (scheduled + ttft) * MS, "requests/prompt_tokens": tokens,
             "requests/admitted": scheduled * MS, "requests/adapter": np.arange(count)})


def cdfs(spec: Any, places: list[dict[str, Any]] | None = None,
         techniques: dict[str, float] | None = None) -> Path:
    """Requests and steps of every technique at every place."""
    for place in places or [{}]:
        for label, more in (techniques or TECHNIQUES).items():
            for seed in range(3):
                summary, datasets = served(more, seed)
                datasets |= steps([50, 100, 150, 200], [20, 0, 20, 0],
                                  dense=[30 * more, 35, 32 * more, 36])
                spec.add(label, seed, place, summary, datasets=datasets)
    return spec.write()


def fig05(spec: Any) -> Path:
    """Steps as the paper's lines through the stated latencies have them."""
    for requests_, ranks in ((24, [32]), (25, [64] + [32] * 24), (16, [64]), (17, [64])):
        total = 64 + 24 * 32 if len(ranks) > 1 else requests_ * ranks[0]
        for kernel, load, slope, start in (("bgmv", requests_ * max(ranks), 0.0036, 32.07),
                                           ("mbgmv", total, 0.0023, 33.5)):
            spec.add(kernel, 0, {"workload.requests": requests_,
                                 "workload.adapters.ranks": str(ranks)},
                     {"itl_p50_s": (start + slope * load) / 1e3})
    return spec.write()


def fig12(spec: Any) -> Path:
    for count in (10, 20):
        calls = np.repeat(np.arange(count), 2 ** np.arange(count // 2)[::-1].repeat(2))
        spec.add("null", 0, {"workload.adapters.count": count}, {}, datasets={
            "requests/adapter": calls,
            "spec/effective": f'{{"workload": {{"adapters": {{"count": {2 * count}}}}}}}'})
    return spec.write()


def loads_by_path(spec: Any) -> Path:
    """Three times as long on demand, one and a half with the host's help, as with all cached."""
    for rate in (2, 8):
        for label, more in (("cached", 1.0), ("ondmd, rebuild", 3.0), ("caraserve, layers", 1.5)):
            spec.add(label, 0, {"workload.arrivals.rate": rate},
                     {"ttft_mean_s": more * rate, "latency_mean_s": 10.0 * more})
    return spec.write()


def a10g(spec: Any) -> Path:
    """Two of S-LoRA's settings, the second saturated, and PEFT in the second: the throughput that
    was measured, latencies 10 % more."""
    for technique, ranks, adapters, trace, offered, measured in (
            ("slora", "[8]", 200, "rate1_cv1", 522.0, (503.031, 11.4885, 0.280173)),
            ("slora", "[64,32,16,8]", 1, "rate2_cv1", 1030.0, (901.46, 24.194, 8.16385)),
            ("peft-2023", "[64,32,16,8]", 1, "rate2_cv1", 1030.0, (131.714, 1029.64, 1015.65))):
        for seed in range(2):
            spec.add(technique, seed, {
                "workload.adapters.ranks": ranks, "workload.adapters.count": adapters,
                "workload.arrivals.trace": f"data/slora/{trace}.csv",
                "workload.popularity.exponent": 1.0},
                {"total_tokens_per_s": measured[0], "latency_mean_s": 1.1 * measured[1],
                 "ttft_mean_s": 1.1 * measured[2]},
                datasets={"requests/scheduled": np.linspace(0, 1e9 * 300 * 500 / offered, 300),
                          "requests/prompt_tokens": np.full(300, 240),
                          "requests/output_tokens": np.full(300, 260)})
    return spec.write()


def hosted(spec: Any, place: dict[str, Any], compute_ms: float, data_ms: float | None) -> None:
    """Prompts of two layers whose LoRA workers compute; without data the engine does."""
    own = steps([100, 200], [16, 16], lora=[2 * compute_ms] * 2)
    own |= {"steps/host_layers": [2, 2], "context": '{"processors": 16}'}
    if data_ms is not None:
        own |= {"steps/host_data": [int(2 * data_ms * MS)] * 2,
                "steps/host_compute": [int(2 * compute_ms * MS)] * 2}
    for seed in range(2):
        spec.add("caraserve", seed, place, {}, datasets=own)


def fig17(spec: Any) -> Path:
    """Sockets take 0.2 ms for each process, shared memory 0.1 ms whatever their number."""
    for count in range(1, 9):
        for transport, data_ms in (("shared", 0.1), ("sockets", 0.2 * count)):
            hosted(spec, {"runtime.host_lora_transport": transport,
                          "runtime.host_lora_workers": count,
                          "workload.lengths.prompt": 16 * count}, 0.3, data_ms)
    return spec.write()


def fig18(spec: Any) -> Path:
    """0.01 ms for each token; processes are one and a half times as fast as threads."""
    def place(tokens: int, by: str, processes: int, rows: int, threads: int) -> dict[str, Any]:
        return {"workload.lengths.prompt": tokens, "runtime.host_lora": by,
                "runtime.host_lora_workers": processes, "runtime.host_lora_rows": rows,
                "runtime.threads": threads}
    for tokens in (16, 64, 256):
        hosted(spec, place(tokens, "processes", 1, 512, 1), 0.01 * tokens, 0.0)
    for count in (1, 2, 4, 8):
        hosted(spec, place(128, "processes", count, 128 // count, 1), 1.2 / count, 0.08 / count)
        hosted(spec, place(128, "inline", 1, 512, count), 1.92 / count, None)
    return spec.write()


ROUTED = {"rank-aware (bgmv)": 1.2, "most-idle (bgmv)": 1.4, "random (bgmv)": 1.45,
          "first-fit (bgmv)": 1.9}


def fig19(spec: Any) -> Path:
    cdfs(spec, [{"cluster.replicas": 1}], {"peft": 1.0})
    return cdfs(spec, [{"cluster.replicas": 60}],
                ROUTED | {label.replace("bgmv", "mbgmv"): more for label, more in ROUTED.items()})


def routes(spec: Any) -> Path:
    """Random routing takes 1.4 times rank-aware's time, and 1.2 times as long between two servers
    as among all."""
    cdfs(spec, [{"cluster.replicas": 1, "cluster.repository_copies": 0}], {"peft": 1.0})
    for copies, more in ((0, 1.0), (2, 1.2)):
        cdfs(spec, [{"cluster.replicas": 8, "cluster.repository_copies": copies}],
             {f"{policy} ({system})": more * times
              for policy, times in (("rank-aware", 1.0), ("random", 1.4))
              for system in ("slora", "caraserve")})
    return spec.write()


# What systems declare; adapters in a step; what of a load of 10 ms passes before a prefill starts,
# none where nothing is loaded; whether the SLO sends requests elsewhere.
CAPABLE = {"hf-peft": ("cold-start-free", 0, None, False), "slora": ("GPU-efficient", 6, 10, False),
           "punica": ("GPU-efficient", 5, 9, False),
           "caraserve": ("GPU-efficient, cold-start-free, SLO-aware", 4, 1, True)}


def tab01(spec: Any, capable: dict[str, tuple] | None = None) -> Path:
    from conftest import edited  # which imports this module
    count = 8
    for label, (declares, adapters, wait_ms, moves) in (CAPABLE | (capable or {})).items():
        for rate, slo in ((0.05, 50), (60, 50), (60, 38)):
            for seed in range(2):
                at = 100.0 * np.arange(count)
                start = at + (wait_ms or 0)
                replica = np.arange(count) % 4
                if moves and slo == 38:
                    replica[::2] += 4
                spec.add(label, seed, {"workload.arrivals.rate": rate,
                                       "cluster.route_with.slo_ms": slo}, {},
                         attributes={"declares": declares}, datasets={
                             **requests(at.tolist(), (at + 90).tolist()),
                             "requests/replica": replica, "requests/prefill_start": start * MS,
                             "requests/load_start": at * MS if wait_ms else np.full(count, -1),
                             "requests/load_end": (at + 10) * MS if wait_ms else np.full(count, -1),
                             "steps/adapters": np.array([1, adapters, 7]),
                             "steps/exec": np.array([0, 0, 1])})
    path = spec.write()
    for point in sorted((spec.folder / "points").glob("*.h5")):
        with edited(point) as file:
            file["steps/exec"].attrs["codes"] = ["unmerged", "merged"]
    return path


FIGURES = {
    "caraserve/fig03": fig03, "caraserve/fig05": fig05, "caraserve/fig10": cdfs,
    "caraserve/fig11": cdfs, "caraserve/fig10_cpu": lambda spec: cdfs(spec, [
        {"workload.arrivals.rate": rate} for rate in (3.5, 7.0)]),
    "caraserve/fig12": fig12,
    "caraserve/fig13": lambda spec: cdfs(spec, [
        {"workload.arrivals.rate": 9, "workload.adapters.ranks": "[32]"},
        {"workload.arrivals.rate": 6, "workload.adapters.ranks": "[64]"}]),
    "caraserve/fig14": lambda spec: cdfs(spec, [
        {"workload.adapters.count": count, "workload.popularity.trace": f"caraserve-{count}"}
        for count in (128, 512)]),
    "caraserve/fig15": lambda spec: cdfs(spec, [
        {"model": "llama-2-13b", "hardware": "a10-24g"}]),
    "caraserve/a10g": a10g, "caraserve/fig16": fig16, "caraserve/fig17": fig17,
    "caraserve/fig18": fig18, "caraserve/fig19": fig19,
    "caraserve/routes": routes, "caraserve/tab01": tab01, "caraserve/loads": loads_by_path,
}
