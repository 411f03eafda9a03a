"""dLoRA Fig. 10's factors against the load: the generic figure, and factors.txt by arrival rate."""
from __future__ import annotations

from pathlib import Path

from analysis import claims, style
from analysis.figures import dlora_fig10, generic
from analysis.results import Results


def draw(results: Results, out: Path) -> list[Path]:
    """Average and P90 latency over the rate, and the same factors as Fig. 10."""
    table = claims.factor_table(results, dlora_fig10.CLAIMS, "rate")
    paths = generic.draw(results, out)
    return paths + [style.write_text(out, "factors.txt", table)]
