"""CaraServe Fig. 14: Figure 10's distributions by the number of adapters, under MAF's calls."""
from __future__ import annotations

from pathlib import Path

from analysis.figures import _cdfs
from analysis.results import Results


def draw(results: Results, out: Path) -> list[Path]:
    return _cdfs.draw(results, out, _cdfs.REQUESTS,
                      lambda settings: f"caraserve/fig14-{settings.get('count')}")
