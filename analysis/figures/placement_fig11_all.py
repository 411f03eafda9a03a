"""Placement paper Fig. 11 for every set of rates and sizes, and both models: GPUs that the pipeline
uses of four, as a table."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from analysis.figures import _parts
from analysis.results import Results


def draw(results: Results, out: Path) -> list[Path]:
    names = [results.sweep(name) for name in ("model", "weights", "ranks")]
    adapters = results.columns[results.sweep("count")].astype(int)
    gpus, bad = (results.metric(name) for name in ("gpus_used", "infeasible_placements"))
    keys = list(zip(*(results.columns[name].tolist() for name in names)))
    rows = []
    for key in dict.fromkeys(keys):
        mine = np.array([index for index, one in enumerate(keys) if one == key])
        mine = mine[np.argsort(adapters[mine], kind="stable")]
        model, rates, ranks = key
        cells = [f"{adapters[i]}: " + ("-" if np.isnan(gpus[i]) else
                                       f"{gpus[i]:.0f}{' starves' if bad[i] else ''}")
                 for i in mine]
        rates = json.loads(rates)
        rows.append([model, f"{rates[0]:g} to {rates[-1]:g}",
                     " ".join(str(rank) for rank in json.loads(ranks)), "   ".join(cells)])
    return _parts.draw_table(results, out, "fig11_all",
                             ["model", "requests/s", "ranks", "adapters: GPUs"], rows,
                             "-: nothing is proposed; starves: one of the GPUs, when simulated",
                             [0.15, 0.15, 0.1, 0.6])
