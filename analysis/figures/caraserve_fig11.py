"""CaraServe Fig. 11: distributions of what a prefill and a decode step take."""
from __future__ import annotations

from pathlib import Path

from analysis.figures import _cdfs
from analysis.results import Results


def draw(results: Results, out: Path) -> list[Path]:
    return _cdfs.draw(results, out, _cdfs.STEPS, lambda settings: "",
                      unnamed="each system's own copies")
