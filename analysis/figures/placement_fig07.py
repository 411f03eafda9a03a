"""Placement paper Fig. 7: scheduler time relative to the average step, against adapters and A_max.

Medians over seeds, which repeat the same requests."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.figures import _parts
from analysis.results import Results

COLORS = [style.BLUE, style.ORANGE, style.GREEN, style.VERMILION]
MARKERS = ["o", "s", "^", "D"]


def draw(results: Results, out: Path) -> list[Path]:
    figure, (share, time) = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.3))
    slots, counts = (results.columns[results.sweep(name)] for name in ("adapter_slots", "count"))
    lines = [f"{results.spec_id}: {'A_max':>6}{'adapters':>9}{'scheduler us':>13}{'step ms':>9}"
             f"{'share %':>9}"]
    for number, slot in enumerate(sorted(set(slots.tolist()))):
        own = np.flatnonzero(slots == slot)
        x = np.unique(counts[own])
        scheduler, step = (np.array([np.median([factor * _parts.per_step_ms(results, i, part)
                                                for i in own if counts[i] == count])
                                     for count in x])
                           for part, factor in (("scheduling", 1e3), ("busy", 1)))
        look = {"color": COLORS[number % 4], "marker": MARKERS[number % 4],
                "label": f"$A_{{max}}$ = {slot:g}"}
        share.plot(x, scheduler / step / 10, **look)
        time.plot(x, scheduler, **look)
        lines += [f"{'':{len(results.spec_id)}}  {slot:6g}{count:9g}{us:13.2f}{ms:9.2f}"
                  f"{us / ms / 10:9.4f}" for count, us, ms in zip(x, scheduler, step)]
    for axes, title, label in ((share, "(a) Share of a step", "scheduler / step (%)"),
                               (time, "(b) Per step", "scheduler time (us)")):
        axes.set(xlabel="adapters", ylabel=label)
        axes.set_ylim(bottom=0)
        style.panel_label(axes, title)
    style.finish(figure, results, share.get_legend_handles_labels()[0],
                 note="medians; the paper's vLLM (Python) reaches 6 %")
    return style.save(figure, out, "fig07") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
