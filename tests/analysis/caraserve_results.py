"""Synthetic results of CaraServe's figures, step by step."""
from __future__ import annotations

from pathlib import Path
from typing import Any

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


def fig03(spec: Any) -> Path:
    for rate, rank in ((3, 64), (6, 64), (9, 64), (1, 8), (1, 64)):
        for seed in range(2):
            rng = np.random.default_rng([rate, rank, seed])
            at = np.sort(rng.uniform(0, 60_000, 20 * rate))
            wait = 0.5 * rank
            ends = 100.0 * np.arange(1, 700)
            waits = np.where(np.isin(np.arange(1, 700), (at // 100).astype(int)), wait, 0.0)
            spec.add("ondmd", seed, {"workload.arrivals.rate": rate,
                                     "workload.adapters.ranks": f"[{rank}]"}, {},
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
