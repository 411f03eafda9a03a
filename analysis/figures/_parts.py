"""Where the time of a point went, for the CPU figures."""
from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.results import Results


def replica_sum(results: Results, index: int, part: str) -> float:
    """A column of /replicas, summed: steps as a number, times in seconds."""
    total = float(np.sum(results.point(index).read(f"replicas/{part}")))
    return total if part in ("steps", "loads") else total / 1e9


def per_step_ms(results: Results, index: int, part: str) -> float:
    steps = replica_sum(results, index, "steps")
    return replica_sum(results, index, part) / steps * 1e3 if steps else float("nan")


def has_lora_times(results: Results) -> bool:
    """Whether steps were taken apart: the CUDA engine does not, unless runtime.measure_parts."""
    return any(per_step_ms(results, i, "lora") > 0 for i in range(len(results.columns["seed"])))


def mean_batch(results: Results, index: int) -> float:
    """Requests in a step, over all steps of the run."""
    point = results.point(index)
    steps = float(np.sum(point.read("series/steps")))
    return float(np.sum(point.read("series/batch_requests"))) / steps if steps else float("nan")


def ranks_label(value: object) -> str:
    """'rank 8' for [8], 'ranks 8, 64' for several."""
    ranks = json.loads(str(value)) if str(value).startswith("[") else [value]
    if len(set(ranks)) == 1:
        return f"rank {float(ranks[0]):g}"
    counts = {rank: ranks.count(rank) for rank in sorted(set(ranks))}
    if len(set(counts.values())) == 1:
        return "ranks " + ", ".join(f"{rank:g}" for rank in counts)
    return "ranks " + ", ".join(f"{count}x{rank:g}" for rank, count in counts.items())


def r_squared(x: np.ndarray, y: np.ndarray) -> float:
    """Of the least-squares line; NaN below three points."""
    if len(x) < 3:
        return float("nan")
    slope, start = np.polyfit(np.asarray(x, dtype=float), y, 1)
    return float(1 - np.var(y - slope * x - start) / np.var(y))


def is_valid(results: Results, index: int) -> bool:
    return str(results.columns["status"][index]) == "VALID"


def draw_table(results: Results, out: Path, name: str, heads: list[str], rows: list[list[str]],
               note: str, widths: list[float] | None = None) -> list[Path]:
    """The table as a picture, published rows grey, and as text."""
    figure, axes = plt.subplots(figsize=(style.TWO_COLUMNS_IN, 0.7 + 0.19 * len(rows)))
    style.cell_table(axes, rows, heads, widths or [0.96 / len(heads)] * len(heads),
                     red=[False] * len(rows), grey=["paper" in row[0] for row in rows])
    style.finish(figure, results, note=note)
    lines = ["".join(f"{cell:>22}" for cell in row).rstrip() for row in [heads, *rows]]
    return style.save(figure, out, name) + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
