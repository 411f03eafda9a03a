"""Placement paper Fig. 12: GPUs used of four, throughput and ITL, over the served adapters."""
from __future__ import annotations

from pathlib import Path

from analysis.figures import _placements
from analysis.results import Results

ROWS = [("GPUs", _placements.metric("gpus_used")),
        ("tokens/s", _placements.metric("total_tokens_per_s")),
        ("ITL (s)", _placements.metric("itl_mean_s"))]


def draw(results: Results, out: Path) -> list[Path]:
    return _placements.draw(results, out, "fig12", ROWS)
