"""CaraServe Figs. 10 and 11 of one run: distributions of what requests and steps take."""
from __future__ import annotations

from pathlib import Path

from analysis.figures import _cdfs
from analysis.results import Results


def draw(results: Results, out: Path) -> list[Path]:
    return _cdfs.draw(results, out, _cdfs.REQUESTS + _cdfs.STEPS, lambda settings: "")
