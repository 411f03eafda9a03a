"""Placement paper Fig. 10: one GPU, throughput and A_max, over the served adapters."""
from __future__ import annotations

from pathlib import Path

from analysis.figures import _placements
from analysis.results import Results

ROWS = [("tokens/s", _placements.metric("total_tokens_per_s")),
        ("A_max", _placements.most_slots)]


def draw(results: Results, out: Path) -> list[Path]:
    return _placements.draw(results, out, "fig10", ROWS)
