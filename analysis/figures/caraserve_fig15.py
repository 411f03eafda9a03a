"""CaraServe Fig. 15: Figure 10's distributions on two and on four devices."""
from __future__ import annotations

from pathlib import Path

import numpy as np

from analysis.figures import _cdfs
from analysis.results import Results


def claim_value(results: Results, value: str) -> float:
    """`cold-start`: the percentage of the cold starts' cost, in mean latency over that with all
    adapters cached, that CaraServe takes away; the smallest of the models that it runs on."""
    saved = []
    for row in _cdfs.rows_of(results):
        latency = row.results.metric("latency_mean_s")
        mean = {_cdfs.base_of(one): float(np.nanmean(latency[
            row.results.columns["technique"] == one])) for one in row.techniques}
        if {"cached", "ondmd", "caraserve"} <= mean.keys():
            saved.append(100 * (mean["ondmd"] - mean["caraserve"])
                         / (mean["ondmd"] - mean["cached"]))
    return {"cold-start": min(saved)}[value]


def draw(results: Results, out: Path) -> list[Path]:
    return _cdfs.draw(results, out, _cdfs.REQUESTS, lambda settings: "")
