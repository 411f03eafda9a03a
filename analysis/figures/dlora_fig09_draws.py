"""dLoRA Fig. 9 draw by draw: the largest rate within the SLO of each seed, and how far a single
draw's factor can be from the mean's."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, slo, style
from analysis.results import Results

METRIC = "latency_per_token_mean_of_ratios_s"
OURS = "dlora"
CLAIM = "dlora/fig09-peft-70b"
QUANTILES = (0, 10, 25, 50, 75, 90, 100)


def rates_of(results: Results, technique: str) -> dict[int, float]:
    """seed -> largest rate within the SLO; an end of the sweep where that is beyond it."""
    found = slo.by_seed(results, METRIC, technique, "rate", slo.SLO_S)
    return {seed: rate for seed, (rate, _) in found.items()}


def table_of(results: Results) -> str:
    lines = [f"{results.spec_id}: {METRIC} <= {slo.SLO_S:g} s, {len(results.seeds)} draws",
             f"{'':24}" + "".join(f"{f'P{q}':>8}" for q in QUANTILES)]
    ours, paper = rates_of(results, OURS), published.claim(CLAIM)
    for technique in results.techniques:
        rates = rates_of(results, technique)
        rows = [(f"{technique}, requests/s", np.array(list(rates.values())))]
        if technique != OURS:
            factors = np.array([ours[seed] / rate for seed, rate in rates.items() if seed in ours])
            rows.append((f"{OURS} over {technique}", factors))
        lines += [f"{name:24}" + "".join(f"{x:8.2f}" for x in np.percentile(values, QUANTILES))
                  for name, values in rows]
        if technique != OURS:
            lines.append(f"{(factors >= paper).sum()} of {factors.size} draws reach the paper's "
                         f"{paper:g}x")
    return "\n".join(lines) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    """The distribution of the draws' rates, and table.txt."""
    figure, axes = plt.subplots(figsize=(style.ONE_COLUMN_IN, 2.3))
    for technique in results.techniques:
        rates = np.sort(list(rates_of(results, technique).values()))
        look = style.look(technique)
        axes.step(rates, 100 * np.arange(1, rates.size + 1) / rates.size, where="post",
                  color=look.color, linestyle=look.line, label=look.label)
    axes.set_xscale("log")
    axes.set(xlabel="largest rate within the SLO (requests/s)", ylabel="draws (%)")
    style.finish(figure, results, axes.get_legend_handles_labels()[0],
                 note="a step for each seed")
    return style.save(figure, out, "fig09_draws") + [
        style.write_text(out, "table.txt", table_of(results))]
