"""CaraServe Fig. 9: linear models of a decode step under BGMV (rows x the largest rank) and MBGMV
(sum of ranks), with R2; and of the LoRA part alone. On a GPU the rest of a step hardly depends on
the batch; on a CPU it does, so that the model of the whole step leaves more unexplained."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, style
from analysis.figures import _parts
from analysis.results import Results

PUBLISHED_R2 = published.claim("caraserve/fig09-bgmv")
COLORS = {"bgmv": style.BLUE, "mbgmv": style.VERMILION}


def work_of(results: Results, index: int, kernel: str) -> float:
    """What the kernel's model counts, of one step with every request."""
    ranks = results.point(index).read("requests/rank").astype(float)
    return float(len(ranks) * ranks.max() if kernel == "bgmv" else ranks.sum())


def line_of(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Slope, start and R2 of the least-squares line."""
    slope, start = np.polyfit(x, y, 1)
    return float(slope), float(start), float(1 - np.var(y - slope * x - start) / np.var(y))


def claim_value(results: Results, kernel: str) -> float:
    """R2 of a kernel's model of the whole decode step."""
    own = np.flatnonzero(results.columns["technique"] == kernel)
    work = np.array([work_of(results, index, kernel) for index in own])
    return line_of(work, results.metric("itl_p50_s")[own])[2]


def draw(results: Results, out: Path) -> list[Path]:
    parts = ["decode step"] + ["LoRA part"] * _parts.has_lora_times(results)
    figure, panels = plt.subplots(1, 2 * len(parts), figsize=(style.TWO_COLUMNS_IN, 2.3))
    step = results.metric("itl_p50_s") * 1e3
    lines = [f"{results.spec_id}: y = alpha x work + beta, published R2 {PUBLISHED_R2}"]
    batches = results.columns[results.sweep("requests")]
    for position, kernel in enumerate(results.techniques[:2]):
        own = np.flatnonzero(results.columns["technique"] == kernel)
        work = np.array([work_of(results, i, kernel) for i in own])
        lora = np.array([_parts.per_step_ms(results, i, "lora") for i in own])
        for number, (values, name) in enumerate(zip((step[own], lora), parts)):
            axes = panels[2 * number + position]
            slope, start, fit = line_of(work, values)
            axes.scatter(work, values, s=10 + 0.6 * batches[own], color=COLORS[kernel],
                         linewidths=0, alpha=0.8)
            edges = np.array([0, work.max()])
            axes.plot(edges, slope * edges + start, color=style.GREY, linestyle="--")
            axes.text(0.04, 0.96, f"{1e3 * slope:.2f} us x work\n+ {start:.2f} ms\n$R^2$ {fit:.2f} "
                      f"(paper {PUBLISHED_R2})", va="top", transform=axes.transAxes, fontsize=6)
            axes.set(xlabel="rows x largest rank" if kernel == "bgmv" else "sum of ranks",
                     ylabel=f"{name} (ms)")
            axes.set_ylim(0, 1.35 * values.max())
            style.panel_label(axes, f"{kernel.upper()}, {name}")
            lines.append(f"{kernel:6} {name:12} alpha {1e3 * slope:8.3f} us  beta {start:7.3f} ms  "
                         f"R2 {fit:.3f}  ({len(own)} points)")
    style.finish(figure, results, note=f"dots grow with the batch, {batches.min()} to "
                 f"{batches.max()} requests")
    return style.save(figure, out, "fig09") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
