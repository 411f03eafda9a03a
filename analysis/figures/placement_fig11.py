"""Placement paper Fig. 11: GPUs used of four, over the served adapters."""
from __future__ import annotations

from pathlib import Path

from analysis.figures import _placements
from analysis.results import Results

ROWS = [("GPUs", _placements.metric("gpus_used"))]


def draw(results: Results, out: Path) -> list[Path]:
    return _placements.draw(results, out, "fig11", ROWS)
