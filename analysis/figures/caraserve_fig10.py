"""CaraServe Fig. 10: distributions of TTFT, time per token and latency; a row for each position
that the spec sweeps."""
from __future__ import annotations

from pathlib import Path

from analysis.figures import _cdfs
from analysis.results import Results


def draw(results: Results, out: Path) -> list[Path]:
    return _cdfs.draw(results, out, _cdfs.REQUESTS, lambda settings: "caraserve/fig10",
                      unnamed="each system's own copies")
