"""Placements over the number of adapters: a column for each model and set of rates, a row for each
metric, a curve for each method until it proposes nothing. Crosses: infeasible placements."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Callable

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.results import Results

Values = Callable[[Results], np.ndarray]


def metric(name: str) -> Values:
    return lambda results: results.metric(name)


def most_slots(results: Results) -> np.ndarray:
    """The largest A_max of a point's GPUs; NaN without a deployment."""
    found = []
    for index in range(len(results.columns["key"])):
        units = results.point(index).context().get("deployment", [])
        found.append(max((unit["adapter_slots"] for unit in units if not unit["off"]),
                         default=float("nan")))
    return np.array(found, dtype=float)


def scenarios(results: Results) -> list[tuple[str, np.ndarray]]:
    """Titles, and which points belong to each."""
    count = len(results.columns["key"])
    names = ["" for _ in range(count)]
    if any(name.endswith(".model") for name in results.sweep_columns):
        names = [str(name) for name in results.columns["sweep.model"]]
    rates = [json.loads(str(text)) for text in results.columns[results.sweep("weights")]]
    titles = [f"{name}\n{rate[0]:.2g} to {rate[-1]:.2g} /s".strip()
              for name, rate in zip(names, rates)]
    return [(title, np.array([one == title for one in titles])) for title in dict.fromkeys(titles)]


def draw(results: Results, out: Path, name: str, rows: list[tuple[str, Values]]) -> list[Path]:
    """The figure, and all values in table.txt."""
    columns = scenarios(results)
    adapters = results.columns[results.sweep("count")].astype(int)
    bad = results.metric("infeasible_placements")
    values = [of(results) for _, of in rows]
    figure, panels = plt.subplots(len(rows), len(columns), squeeze=False,
                                  figsize=(style.TWO_COLUMNS_IN, 1.2 + 1.3 * len(rows)))
    lines = [f"{results.spec_id}: {'':18} {'method':>16} {'adapters':>8} "
             + " ".join(f"{label:>14}" for label, _ in rows) + "  infeasible GPUs"]
    for column, (title, mine) in enumerate(columns):
        for technique in results.techniques:
            at = np.flatnonzero(mine & (results.columns["technique"] == technique)
                                & np.isfinite(bad))
            at = at[np.argsort(adapters[at], kind="stable")]
            look = style.look(technique)
            for axes, found in zip(panels[:, column], values):
                axes.plot(adapters[at], found[at], color=look.color, marker=look.marker,
                          linestyle=look.line, markersize=3, label=look.label)
                crossed = at[bad[at] > 0]
                style.mark_invalid(axes, adapters[crossed], np.nan_to_num(found[crossed]))
            lines += [f"{' '.join(title.split()):>34} {technique:>16} {adapters[i]:8d} "
                      + " ".join(f"{found[i]:14.4g}" for found in values) + f" {bad[i]:5.0f}"
                      for i in at]
        panels[0, column].set_title(title, fontsize=6)
        panels[-1, column].set_xlabel("adapters")
    for axes, (label, _) in zip(panels[:, 0], rows):
        axes.set_ylabel(label)
    for axes in panels.flat:
        axes.set_ylim(bottom=0)
    style.finish(figure, results, panels[0, 0].get_legend_handles_labels()[0],
                 note="crosses: a GPU starves or does not start; curves end where nothing is "
                      "proposed")
    return style.save(figure, out, name) + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
