"""CaraServe Fig. 13: Figure 10's distributions at a lower rank and at a lower rate."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.figures import _cdfs
from analysis.results import Results


def claims_of(settings: dict[str, Any]) -> str:
    if settings.get("ranks") == "[32]":
        return "caraserve/fig13-rank32"
    return "caraserve/fig13-rate6" if settings.get("rate") == 6 else ""


def draw(results: Results, out: Path) -> list[Path]:
    return _cdfs.draw(results, out, _cdfs.REQUESTS, claims_of)
