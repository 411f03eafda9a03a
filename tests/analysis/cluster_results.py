"""Synthetic results of dLoRA's cluster figures, near what the twin gives."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import numpy as np

MEAN, ARTIFACT_MEAN = "latency_per_token_mean_s", "latency_per_token_mean_of_ratios_s"
CAPACITY = {"vllm-uniform": 20.0, "peft": 10.0, "dlora": 100.0, "rr": 30.0, "proactive": 70.0}
RATES = [2, 4, 8, 16, 32, 64, 128, 256]


def noise(*parts: object) -> float:
    return float(np.random.default_rng(list("".join(map(str, parts)).encode())).normal(1, 0.04))


def latency(technique: str, rate: float, seed: int, scale: float = 1) -> dict[str, float]:
    """Flat below the capacity, then growing with the rate."""
    capacity = CAPACITY.get(technique, 60.0) * scale * noise(technique, seed)
    mean = 0.015 + 0.5 * (rate / capacity) ** 2
    queueing = max(mean - 0.02, 1e-4) * 200
    return {MEAN: mean, ARTIFACT_MEAN: 1.5 * mean, "latency_mean_s": 200 * mean,
            "queueing_mean_s": queueing, "requests_per_s": min(rate, capacity),
            "queueing_per_token_mean_of_ratios_s": 1.5 * queueing / 200}


def fig09(spec: Any) -> None:
    for model, scale in (("llama-2-7b", 1.0), ("llama-2-13b", 0.5)):
        for trace in ("maf1-d01", "maf2"):
            for technique in ("vllm-uniform", "peft", "dlora"):
                rates = RATES[2:] if technique == "dlora" else RATES[:-2]
                for rate in rates:
                    for seed in range(3):
                        spec.add(technique, seed, {"model": model, "workload.arrivals.trace": trace,
                                                   "workload.arrivals.rate": rate},
                                 latency(technique, rate, seed, scale))


def over_rates(spec: Any, techniques: list[str], swept: str = "workload.arrivals.rate") -> None:
    for rate in RATES:
        for technique in techniques:
            for seed in range(3):
                spec.add(technique, seed, {swept: rate}, latency(technique, rate, seed))


def differences(spec: Any) -> None:
    usual = {"lora.targets": '["q","k","v","o"]', "workload.adapters.ranks": "[8]",
             "workload.arrivals.correlated": "false"}
    other = usual | {"workload.adapters.ranks": "[16]", "workload.arrivals.correlated": "true"}
    for settings, techniques in ((usual, ["dlora", "batching", "dlora-artifact", "rr"]),
                                 (other, ["dlora"])):
        for rate in RATES:
            for technique in techniques:
                for seed in range(3):
                    spec.add(technique, seed, settings | {"workload.arrivals.rate": rate},
                             latency(technique, rate, seed))


def queueing_datasets(seed: int, replicas: int = 8, each: int = 20) -> dict[str, Any]:
    """Requests whose queueing takes 10 % of the latency on replica 0, and up to 80 % on the last;
    one request more that never finished."""
    replica = np.append(np.repeat(np.arange(replicas), each), 0)
    share = 0.1 + 0.1 * replica * noise(seed)
    scheduled = np.arange(len(replica)) * 10**8
    admitted = scheduled + (share * 10e9).astype(int)
    return {"requests/replica": replica, "requests/status": np.append(np.ones(replicas * each), 0),
            "requests/scheduled": scheduled, "requests/admitted": admitted,
            "requests/last_token": scheduled + 10 * 10**9,
            "replicas/busy": np.full(replicas, 10**9)}


def utilisation_datasets(technique: str, seed: int, replicas: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng([seed, len(technique)])
    bins = np.repeat(np.arange(60), replicas)
    level = 60 + 20 * np.sin(bins / 10) if technique == "dlora" else np.full(len(bins), 80.0)
    return {"replicas/busy": (90e9 + rng.normal(0, 1e9, replicas)).astype(int),
            "replicas/host": np.full(replicas, 5 * 10**9),
            "replicas/device_bytes": np.full(replicas, 100 * 2**30),
            "replicas/weight_bytes": np.full(replicas, 25 * 2**30),
            "replicas/kv_block_bytes": np.full(replicas, 2**28),
            "series/start": bins * 10**9, "series/replica": np.tile(np.arange(replicas), 60),
            "series/steps": np.full(len(bins), 40),
            "series/batch_requests": np.full(len(bins), 560),
            "series/num_requests_running": np.full(len(bins), 57 if technique == "dlora" else 15),
            "series/kv_blocks_used": (level + rng.normal(0, 5, len(bins))).astype(int)}


def fig02b(spec: Any) -> None:
    for seed in range(5):
        spec.add("vllm-uniform", seed, {}, {"duration_s": 100.0},
                 datasets=queueing_datasets(seed))


def fig12(spec: Any) -> None:
    for count in (16, 32, 64, 128):
        for technique, power in (("vllm-uniform", 0.5), ("peft", 0.2), ("dlora", 0.0)):
            for seed in range(3):
                spec.add(technique, seed, {"workload.adapters.count": count},
                         {"requests_per_s": 20 * (16 / count) ** power * noise(technique, seed)})


def fig13(spec: Any) -> None:
    for technique, count in (("dlora", 32), ("optimum", 1)):
        for seed in range(3):
            spec.add(technique, seed, {"workload.adapters.count": count}, {"duration_s": 100.0},
                     datasets=utilisation_datasets(technique, seed))


def fig15(spec: Any, solver_s: float = 0.05) -> None:
    for rate in (8, 32, 96):
        for seed in range(3):
            spec.add("dlora", seed, {"workload.arrivals.rate": rate},
                     {"solver_time_s": solver_s * rate, "switching_time_s": 8 * 2.0,
                      "busy_time_s": 8 * 100.0, "rebalances": 10.0, "migrations": 4.0 * rate},
                     datasets={"replicas/busy": np.full(8, 100 * 10**9)})


def placements(spec: Any, techniques: list[str]) -> None:
    """Four GPUs' worth of adapters at two sets of rates; the last method starves one GPU at the
    end."""
    for weights, counts in (("[0.6,0.3]", (32, 64, 128)), ("[0.075,0.0375]", (96, 192, 384))):
        for count in counts:
            for order, technique in enumerate(techniques):
                bad = order == 2 and count == counts[-1]
                gpus = min(4, 1 + order + count // counts[1])
                unit = {"off": False, "adapter_slots": count // gpus, "devices": [0]}
                spec.add(technique, 0, {"workload.popularity.weights": weights,
                                        "workload.adapters.count": count},
                         {"gpus_used": float(gpus), "infeasible_placements": float(bad),
                          "feasible_tokens_per_s": float("nan") if bad else 30.0 * count,
                          "total_tokens_per_s": 30.0 * count, "itl_mean_s": 0.02 + 0.005 * order},
                         datasets={"context": json.dumps({"deployment": [unit] * gpus})})


def all_sets(spec: Any) -> None:
    """Two models, sets of rates and of sizes; the last placement starves, one is not made."""
    for model in ("llama-3.1-8b", "qwen2.5-7b"):
        for weights in ("[0.6,0.3]", "[0.075,0.0375]"):
            for ranks in ("[32]", "[8,16,32]"):
                for count in (64, 128):
                    nothing = count == 128 and ranks == "[32]"
                    spec.add("proposed", 0,
                             {"model": model, "workload.popularity.weights": weights,
                              "workload.adapters.ranks": ranks, "workload.adapters.count": count},
                             {"gpus_used": float("nan") if nothing else count / 64,
                              "infeasible_placements": float(count == 128)})


def servers(spec: Any) -> None:
    """A point for each of the two servers whose models are in the table."""
    for model in ("llama-3.1-8b", "qwen2.5-7b"):
        spec.add("vllm-lora", 0, {"model": model}, {"total_tokens_per_s": 3000.0})


FILLERS: dict[str, Callable[[Any], None]] = {
    "dlora/fig02b": fig02b,
    "dlora/fig09": fig09,
    "dlora/fig09_draws": lambda spec: over_rates(spec, ["peft", "dlora"]),
    "dlora/fig11a": lambda spec: over_rates(spec, ["rr", "proactive", "dlora"]),
    "dlora/fig11b": lambda spec: over_rates(spec, ["rr", "proactive", "dlora"],
                                            "workload.lengths.scale_ratio"),
    "dlora/fig11_differences": differences,
    "dlora/fig12": fig12,
    "dlora/fig13": fig13,
    "dlora/fig15": fig15,
    "placement/fig10": lambda spec: placements(spec, ["proposed", "maxbase", "maxbase*"]),
    "placement/fig11": lambda spec: placements(spec, ["proposed", "proposed-fast", "maxbase"]),
    "placement/fig11_all": lambda spec: all_sets(spec),
    **{f"placement/{name}": servers for name in ("tab03", "tab04", "figC14")},
    "placement/fig12": lambda spec: placements(spec, ["proposed", "proposed-lat",
                                                      "dlora-proactive"]),
}


def filled(make_spec: Callable[[Path, str], Any], spec_id: str) -> Callable[[Path], Path]:
    """A maker of the spec's results."""
    def make(root: Path) -> Path:
        spec = make_spec(root, spec_id)
        FILLERS[spec_id](spec)
        return spec.write()
    return make
