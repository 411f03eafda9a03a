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


def per_step(results: Results, slot: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Adapters, the scheduler's time (us) and that of the step (ms), with this A_max."""
    slots, counts = (results.columns[results.sweep(name)] for name in ("adapter_slots", "count"))
    own = np.flatnonzero(slots == slot)
    x = np.unique(counts[own])
    scheduler, step = (np.array([np.median([factor * _parts.per_step_ms(results, i, part)
                                            for i in own if counts[i] == count]) for count in x])
                       for part, factor in (("scheduling", 1e3), ("busy", 1)))
    return x, scheduler, step


def claim_value(results: Results, value: str) -> float:
    """most: the scheduler's largest share of a step (%); where: the share with the smallest A_max
    and the most adapters over the largest elsewhere."""
    shares = {}
    for slot in set(results.columns[results.sweep("adapter_slots")].tolist()):
        for count, us, ms in zip(*per_step(results, slot)):
            shares[slot, count] = float(us / ms / 10)
    corner = min(slot for slot, _ in shares), max(count for _, count in shares)
    if value == "most":
        return max(shares.values())
    return shares[corner] / max(share for where, share in shares.items() if where != corner)


def draw(results: Results, out: Path) -> list[Path]:
    figure, (share, time) = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.3))
    slots = results.columns[results.sweep("adapter_slots")]
    lines = [f"{results.spec_id}: {'A_max':>6}{'adapters':>9}{'scheduler us':>13}{'step ms':>9}"
             f"{'share %':>9}"]
    for number, slot in enumerate(sorted(set(slots.tolist()))):
        x, scheduler, step = per_step(results, slot)
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
