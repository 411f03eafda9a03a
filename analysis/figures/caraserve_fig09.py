"""CaraServe Fig. 9: linear models of a decode step under BGMV (rows x the largest rank) and MBGMV
(sum of ranks), with R2; and of the LoRA part alone, because the rest of a step grows with the
batch, too. For Llama-2-7B also the line through the two latencies that the paper states for each
(2.3), which is not its fit: of that it prints R2 alone."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from analysis import published, style
from analysis.figures import _parts, caraserve_fig05
from analysis.results import Results

PUBLISHED_R2 = published.claim("caraserve/fig09-bgmv")
STATED_FOR = "Llama-2-7B"
COLORS = {"bgmv": style.BLUE, "mbgmv": style.VERMILION}


def work_of(results: Results, index: int, kernel: str) -> float:
    """What the kernel's model counts, of one step with every request."""
    ranks = results.point(index).read("requests/rank").astype(float)
    return float(len(ranks) * ranks.max() if kernel == "bgmv" else ranks.sum())


def line_of(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Slope, start and R2 of the least-squares line."""
    slope, start = np.polyfit(x, y, 1)
    return float(slope), float(start), float(1 - np.var(y - slope * x - start) / np.var(y))


def stated_line(kernel: str) -> tuple[float, float]:
    """Slope and start (ms) of the line through the steps of 24 requests of rank 32 and 16 of 64."""
    low, high = caraserve_fig05.PAPER_MS[kernel]
    slope = (high - low) / (16 * 64 - 24 * 32)
    return slope, low - slope * 24 * 32


def positions(results: Results, kernel: str) -> list[np.ndarray]:
    """The points of a kernel, those of repeats (seeds) together."""
    own = np.flatnonzero(results.columns["technique"] == kernel)
    at: dict[tuple, list[int]] = {}
    for index in own.tolist():
        at.setdefault(tuple(str(results.columns[name][index])
                            for name in results.sweep_columns), []).append(index)
    return [np.array(indices) for indices in at.values()]


def medians(values: np.ndarray, at: list[np.ndarray]) -> np.ndarray:
    """Of the repeats at each position: another program on the machine delays some of them."""
    return np.array([float(np.median(values[indices])) for indices in at])


def claim_value(results: Results, kernel: str) -> float:
    """R2 of a kernel's model of the whole decode step."""
    at = positions(results, kernel)
    work = np.array([work_of(results, indices[0], kernel) for indices in at])
    return line_of(work, medians(results.metric("itl_p50_s"), at))[2]


@dataclass(frozen=True)
class Fit:
    """What a kernel's model says of one part of a step: a value per position."""

    kernel: str
    part: str
    work: np.ndarray
    batch: np.ndarray
    ms: np.ndarray    # median of the repeats
    low: np.ndarray   # and their range
    high: np.ndarray

    @property
    def line(self) -> tuple[float, float, float]:
        return line_of(self.work, self.ms)

    def text(self) -> str:
        slope, start, r2 = self.line
        found = (f"{self.kernel:6} {self.part:12} alpha {1e3 * slope:8.3f} us  "
                 f"beta {start:7.3f} ms  R2 {r2:.3f}  ({len(self.ms)} positions)")
        spread = 100 * (self.high - self.low) / self.ms
        if not spread.any():
            return found
        return found + (f"  repeats differ by {np.median(spread):.0f} % in the median, "
                        f"by {spread.max():.0f} % at most")


def fit_of(results: Results, kernel: str, part: str, values: np.ndarray) -> Fit:
    at = positions(results, kernel)
    batches = results.columns[results.sweep("requests")]
    low, high = (np.array([float(edge(values[indices])) for indices in at])
                 for edge in (np.min, np.max))
    return Fit(kernel, part, np.array([work_of(results, indices[0], kernel) for indices in at]),
               np.array([batches[indices[0]] for indices in at]), medians(values, at), low, high)


def draw_fit(axes: Axes, fit: Fit, whole_step: bool, as_stated: bool) -> None:
    slope, start, r2 = fit.line
    color, edges = COLORS[fit.kernel], np.array([0, fit.work.max()])
    axes.vlines(fit.work, fit.low, fit.high, color=color, linewidth=0.6, alpha=0.6)
    axes.scatter(fit.work, fit.ms, s=8 + 0.4 * fit.batch, color=color, linewidths=0, alpha=0.8)
    axes.plot(edges, slope * edges + start, color=style.GREY, linestyle="--", label="our fit")
    if as_stated:
        alpha, beta = stated_line(fit.kernel)
        axes.plot(edges, alpha * edges + beta, color=style.BLACK, linewidth=0.9, linestyle=":",
                  label="through the two latencies that the paper states")
    paper = f" (paper {PUBLISHED_R2})" * whole_step
    axes.text(0.04, 0.97, f"{1e3 * slope:.2f} us x work\n+ {start:.2f} ms\n$R^2$ {r2:.2f}{paper}",
              va="top", transform=axes.transAxes, fontsize=6)
    axes.set(xlabel="rows x largest rank" if fit.kernel == "bgmv" else "sum of ranks",
             ylabel=f"{fit.part} (ms)", ylim=(0, 1.6 * fit.ms.max()))
    style.panel_label(axes, f"{fit.kernel.upper()}, {fit.part}")


def draw(results: Results, out: Path) -> list[Path]:
    parts = {"decode step": results.metric("itl_p50_s") * 1e3}
    if _parts.has_lora_times(results):
        parts["LoRA part"] = np.array([_parts.per_step_ms(results, i, "lora")
                                       for i in range(len(results.columns["key"]))])
    figure, panels = plt.subplots(1, 2 * len(parts), figsize=(style.TWO_COLUMNS_IN, 2.3))
    lines = [f"{results.spec_id}: y = alpha x work + beta, published R2 {PUBLISHED_R2}"]
    free = iter(panels)
    for part, values in parts.items():
        whole = part == "decode step"
        for kernel in results.techniques[:2]:
            fit = fit_of(results, kernel, part, values)
            stated = whole and results.attributes.get("model") == STATED_FOR
            draw_fit(next(free), fit, whole, stated)
            lines.append(fit.text())
            if stated:
                alpha, beta = stated_line(kernel)
                lines.append(f"{kernel:6} {'as stated':12} alpha {1e3 * alpha:8.3f} us  beta "
                             f"{beta:7.3f} ms  (two latencies of 2.3, to 0.1 ms)")
    batches = results.columns[results.sweep("requests")]
    style.finish(figure, results, panels[0].get_legend_handles_labels()[0],
                 note=f"dots grow with the batch, {batches.min()} to {batches.max()} requests"
                      + "; medians of repeats, and their range" * (len(results.seeds) > 1))
    return style.save(figure, out, "fig09") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
