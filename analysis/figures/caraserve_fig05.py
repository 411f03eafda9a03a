"""CaraServe Fig. 5: the decode step of two servers, without and with one request of rank 64 more,
under both kernels. The twin's, where the paper states what it measured."""
from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.results import Results

SLO_MS = 36
PAPER_TARGETS = ["q", "k", "v"]
PAPER_MS = {"bgmv": (34.8, 35.8), "mbgmv": (35.3, 35.9)}  # before the request, 2.3


def step_ms(results: Results, kernel: str) -> dict[tuple[int, int], float]:
    """Median decode step by requests and largest rank."""
    columns, found = results.columns, {}
    for index in np.flatnonzero(columns["technique"] == kernel):
        ranks = json.loads(str(columns[results.sweep("ranks")][index]))
        size = int(columns[results.sweep("requests")][index])
        found[size, int(max(ranks))] = 1e3 * float(results.metric("itl_p50_s")[index])
    return found


def claim_value(results: Results, kernel: str) -> float:
    """The server whose step is shorter with the request."""
    ms = step_ms(results, kernel)
    return 1.0 if ms[25, 64] < ms[17, 64] else 2.0


def draw(results: Results, out: Path) -> list[Path]:
    figure, panels = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.2), sharey=True)
    lines = [f"{results.spec_id}: decode step (ms)",
             f"{'':6}{'server':>7}{'before':>9}{'paper':>7}{'after':>9}"]
    targets = results.spec.get("lora", {}).get("targets", PAPER_TARGETS)
    tallest = 0.0
    for axes, kernel in zip(panels, PAPER_MS):
        ms = step_ms(results, kernel)
        before, after = [ms[24, 32], ms[16, 64]], [ms[25, 64], ms[17, 64]]
        for at, (values, color, hatch, text) in enumerate((
                (before, style.SKY, "", "before"), (after, style.VERMILION, "//", "with it"))):
            bars = axes.bar(np.arange(2) + (at - 0.5) * 0.36, values, 0.36, color=color,
                            hatch=hatch, edgecolor="white", linewidth=0.4, label=text)
            axes.bar_label(bars, fmt="%.1f", fontsize=6.5)
        if targets == PAPER_TARGETS:
            axes.plot(np.arange(2) - 0.18, PAPER_MS[kernel], linestyle="none", marker="_",
                      markersize=14, color=style.BLACK, label="before, in the paper")
        line = style.limit_line(axes, SLO_MS, f"the paper's SLO, {SLO_MS} ms")
        axes.set_xticks(range(2), ["server 1:\n24 x rank 32", "server 2:\n16 x rank 64"])
        tallest = max(tallest, *before, *after)
        style.panel_label(axes, kernel.upper())
        lines += [f"{kernel:6}{server + 1:7d}{before[server]:9.2f}{PAPER_MS[kernel][server]:7.1f}"
                  f"{after[server]:9.2f}" for server in range(2)]
    panels[0].set(ylabel="decode step (ms)", ylim=(0, 1.15 * tallest))  # of both
    handles = [handle for handle in panels[0].get_legend_handles_labels()[0]
               if handle.get_label() != line.get_label()]
    style.finish(figure, results, [*handles, line], note="a request of rank 64 may go to either")
    return style.save(figure, out, "fig05") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
