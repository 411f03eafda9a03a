"""CaraServe Table 1: which systems are GPU-efficient, free of cold starts and aware of SLOs. A mark
is what a system declares; below it stands what the runs show, and an exclamation mark beside it
where they show otherwise."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.results import Results

PROPERTIES = ("GPU-efficient", "cold-start-free", "SLO-aware")
PAPER = {"hf-peft": (False, True, False), "slora": (True, False, False),
         "punica": (True, False, False), "caraserve": (True, True, True)}
NAMES = {"hf-peft": "HF-PEFT"}
MARKS = {True: "\N{CHECK MARK}", False: "\N{BALLOT X}"}
WAITS = 0.5  # a first token waits for loads where half of one passes before it


@dataclass(frozen=True)
class Cell:
    declared: bool
    shown: bool    # by the runs
    evidence: str


def adapters_in_a_step(results: Results, index: int) -> int:
    """The most that shared the base model's weights; a whole model per adapter has its one."""
    point = results.point(index)
    adapters = point.read("steps/adapters")[point.read("steps/exec") ==
                                            point.codes("steps/exec").index("unmerged")]
    return max(1, int(adapters.max(initial=0)))


def waits_of_loads(results: Results, index: int) -> np.ndarray:
    """For each request that an adapter was loaded for: what share of the load passed between its
    arrival and the start of its prefill."""
    names = ("scheduled", "prefill_start", "load_start", "load_end")
    of = results.point(index).read_several([f"requests/{name}" for name in names])
    scheduled, start, load_start, load_end = (of[f"requests/{name}"] for name in names)
    cold = load_start >= 0
    return (start - scheduled)[cold] / (load_end - load_start)[cold]


def cells(results: Results, label: str) -> dict[str, Cell]:
    """By property. Batches and routing are seen under the highest rate, loads under the lowest."""
    rate, slo = (results.columns[results.sweep(name)] for name in ("rate", "slo_ms"))
    own = results.columns["technique"] == label
    busy, idle = (np.flatnonzero(own & (rate == pick(rate))) for pick in (np.max, np.min))
    declared = results.point(int(busy[0])).attribute("declares").split(", ")
    most = max(adapters_in_a_step(results, int(index)) for index in busy)
    waits = np.concatenate([waits_of_loads(results, int(index)) for index in idle])
    moved = []
    for seed in dict.fromkeys(results.columns["seed"][busy].tolist()):
        of_seed = busy[results.columns["seed"][busy] == seed]
        places = [results.point(int(index)).read("requests/replica")
                  for index in of_seed[np.argsort(slo[of_seed])]]
        moved += [100 * float(np.mean(places[0] != other)) for other in places[1:]]
    found = {
        "GPU-efficient": (most > 1, f"{most} adapter{'s' * (most > 1)} on one copy of the model"),
        "cold-start-free": (not waits.size or float(np.median(waits)) < WAITS,
                            f"the first token waits for {100 * np.median(waits):.0f} % of a load"
                            if waits.size else "nothing is loaded"),
        "SLO-aware": (max(moved) > 0, f"{np.mean(moved):.0f} % of requests go elsewhere"),
    }
    return {name: Cell(name in declared, shown, evidence)
            for name, (shown, evidence) in found.items()}


def claim_value(results: Results, value: str) -> float:
    """`cells`: those that are declared and shown as published."""
    if value != "cells":
        raise KeyError(value)
    return float(sum(cell.declared == cell.shown == published
                     for label, row in PAPER.items()
                     for cell, published in zip(cells(results, label).values(), row)))


def draw(results: Results, out: Path) -> list[Path]:
    figure, axes = plt.subplots(figsize=(style.TWO_COLUMNS_IN, 2.0))
    axes.set(xlim=(0, 1), ylim=(len(PAPER), -0.9))
    axes.axis("off")
    left, width = 0.13, 0.29
    for column, name in enumerate(PROPERTIES):
        axes.text(left + (column + 0.5) * width, -0.5, name, ha="center", va="center",
                  fontweight="bold")
    lines = [f"{results.spec_id}: what systems declare, and what runs show",
             f"{'':10}{'':17}{'declared':>9}{'shown':>7}{'paper':>7}  evidence"]
    for at, (label, published) in enumerate(PAPER.items()):
        axes.axhline(at, color=style.GREY, linewidth=0.4)
        system = NAMES.get(label, style.look(label).label)
        axes.text(0, at + 0.5, system, va="center", fontweight="bold")
        for column, ((name, cell), paper) in enumerate(zip(cells(results, label).items(),
                                                           published)):
            agrees = cell.declared == cell.shown
            x = left + (column + 0.5) * width
            axes.text(x, at + 0.32, MARKS[cell.declared] + "!" * (not agrees), ha="center",
                      va="center", fontsize=11, color=style.GREEN if cell.declared else style.RED)
            axes.text(x, at + 0.74, cell.evidence + (
                "" if cell.declared == paper else f"; paper: {MARKS[paper]}"), ha="center",
                va="center", fontsize=6, color="#444444")
            lines.append(f"{system:10}{name:17}" + "".join(
                f"{'yes' if one else 'no':>{room}}" for one, room in
                ((cell.declared, 9), (cell.shown, 7), (paper, 7))) + f"  {cell.evidence}")
    slos = sorted(set(results.columns[results.sweep("slo_ms")].tolist()))
    style.finish(figure, results, note=(
        f"marks: declared; below: shown by runs; elsewhere: by an SLO of {slos[0]:g} or "
        f"{slos[-1]:g} ms"))
    return style.save(figure, out, "tab01") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
