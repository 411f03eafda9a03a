"""Placement paper Fig. 1: throughput over served adapters, for sizes, rates per adapter, and
settings of A_max. Each curve rises with the load that adapters bring, until memory or A_max holds
it back. Crosses: the adapters' slots leave no room for a request.
"""
from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.figures import _parts
from analysis.results import Results

COLORS = [style.BLUE, style.ORANGE, style.VERMILION, style.GREEN]
MARKERS = ["o", "s", "^", "D"]


def draw(results: Results, out: Path) -> list[Path]:
    columns = results.columns
    names = [results.sweep(name) for name in ("ranks", "weights", "adapter_slots")]
    settings = [tuple(columns[name][i] for name in names) for i in range(len(columns["seed"]))]
    usual = max(set(settings), key=lambda s: sum(a == b for o in set(settings)
                                                 for a, b in zip(s, o)))
    adapters, tokens = columns[results.sweep("count")], results.metric("total_tokens_per_s")
    titles = ["(a) Adapter size", "(b) Rate per adapter", "(c) $A_{max}$"]
    labels = [_parts.ranks_label, lambda w: f"{float(json.loads(str(w))[0]):g} requests/s",
              lambda slots: "all adapters" if int(slots) == 0 else f"{int(slots)} slots"]
    figure, panels = plt.subplots(1, 3, figsize=(style.TWO_COLUMNS_IN, 2.5))
    lines = [f"{results.spec_id}: {'curve':>18} {'adapters':>9} {'tokens/s':>9}"]
    for number, (axes, title, label) in enumerate(zip(panels, titles, labels)):
        own = [s for s in dict.fromkeys(settings)
               if all(a == b for i, (a, b) in enumerate(zip(s, usual)) if i != number)]
        for place, setting in enumerate(own):
            at = np.array([i for i, s in enumerate(settings) if s == setting])
            at = at[np.argsort(adapters[at], kind="stable")]
            valid = np.array([_parts.is_valid(results, i) and tokens[i] > 0 for i in at])
            look = {"color": COLORS[place % 4], "marker": MARKERS[place % 4]}
            axes.plot(adapters[at][valid], tokens[at][valid], label=label(setting[number]), **look)
            if not valid.all():
                axes.plot(adapters[at][~valid], np.zeros(np.count_nonzero(~valid)),
                          linestyle="none", marker="x", color=look["color"], clip_on=False)
            lines += [f"{'':{len(results.spec_id)}}  {label(setting[number]):>18} {adapters[i]:9d} "
                      + (f"{tokens[i]:9.0f}" if ok else "    does not fit")
                      for i, ok in zip(at, valid)]
        axes.set(xlabel="served adapters", xlim=(0, None))
        axes.set_ylim(0, 1.05 * np.nanmax(tokens))
        axes.legend(fontsize=6, loc="lower right", frameon=False)
        style.panel_label(axes, title)
    panels[0].set_ylabel("input + output tokens/s")
    style.finish(figure, results, [], note="crosses: the slots leave no room for a request")
    return style.save(figure, out, "fig01") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
