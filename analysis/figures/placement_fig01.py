"""Placement paper Fig. 1: throughput over served adapters, for sizes, rates per adapter, and
settings of A_max. Each curve rises with the load that adapters bring, until memory or A_max holds
it back. Crosses: the adapters' slots leave no room for a request. Open marks: the runs behind the
paper's figure, where the spec is of the engine that they ran.
"""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, style
from analysis.compute import Missing
from analysis.figures import _parts, _twin
from analysis.results import Results

COLORS = [style.BLUE, style.ORANGE, style.VERMILION, style.GREEN]
MARKERS = ["o", "s", "^", "D"]
SETTINGS = ("ranks", "weights", "adapter_slots")
PUBLISHED = {("vllm-0.5", "llama-2-7b")}
PUBLISHED_COLUMNS = ("workload.adapters.ranks", "workload.popularity.weights",
                     "engine.adapter_slots")


@dataclass(frozen=True)
class Curve:
    """Throughput over served adapters, without points that do not fit. `pack` is the index of
    Max_pack: the last point before one with less than 90 % of the incoming tokens."""

    adapters: np.ndarray
    tokens: np.ndarray
    pack: int

    @property
    def gets_beyond(self) -> bool:
        return self.pack < len(self.tokens) - 1


def settings_of(results: Results) -> tuple[list[tuple], tuple]:
    """Sizes, rates and A_max of every point, and the combination that the others vary."""
    names = [results.sweep(name) for name in SETTINGS]
    settings = list(zip(*(results.columns[name].tolist() for name in names)))
    return settings, max(dict.fromkeys(settings), key=lambda s: sum(
        a == b for o in set(settings) for a, b in zip(s, o)))


def curves_of(results: Results) -> dict[tuple, Curve]:
    """A curve for each combination of SETTINGS."""
    settings, _ = settings_of(results)
    adapters, tokens = results.columns[results.sweep("count")], results.metric("total_tokens_per_s")
    curves = {}
    for setting in dict.fromkeys(settings):
        at = np.array([i for i, s in enumerate(settings)
                       if s == setting and _parts.is_valid(results, i) and tokens[i] > 0])
        at = at[np.argsort(adapters[at], kind="stable")]
        starving = [tokens[i] < _twin.STARVED * _twin.incoming_tokens_per_s(results, i)
                    for i in at]
        pack = starving.index(True) - 1 if any(starving) else len(at) - 1
        curves[setting] = Curve(adapters[at], tokens[at], max(pack, 0))
    return curves


def claim_value(results: Results, value: str) -> float:
    """linear: R2 up to Max_pack, the least of the curves; beyond: the most that a curve gains
    after it; size, rate: throughput at Max_pack, largest size over smallest and lowest rate over
    highest; slots: throughput at the most adapters, extreme A_max over those in between."""
    curves, (_, usual) = curves_of(results), settings_of(results)
    if value == "linear":
        return float(np.nanmin([_parts.r_squared(curve.adapters[:curve.pack + 1],
                                                 curve.tokens[:curve.pack + 1])
                                for curve in curves.values()]))
    if value == "beyond":
        return max(float(curve.tokens[curve.pack + 1:].max() / curve.tokens[curve.pack])
                   for curve in curves.values() if curve.gets_beyond)
    which = {"size": 0, "rate": 1, "slots": 2}[value]
    own = {setting[which]: curve for setting, curve in curves.items()
           if all(a == b for i, (a, b) in enumerate(zip(setting, usual)) if i != which)}
    if value == "slots":  # 0: as many as adapters
        ends = {0, min(slots for slots in own if slots)}
        last = {slots: float(curve.tokens[-1]) for slots, curve in own.items()}
        return max(last[slots] for slots in ends) / max(last[s] for s in last.keys() - ends)
    order = sorted(own, key=lambda text: json.loads(str(text))[0], reverse=value == "size")
    for end in (order[0], order[-1]):
        if not own[end].gets_beyond:
            raise Missing(f"{value} {json.loads(str(end))[0]:g} keeps up with the most adapters of "
                          "the sweep: extend it")
    packed = [float(own[end].tokens[own[end].pack]) for end in (order[0], order[-1])]
    return packed[0] / packed[1]


def published_curves(results: Results) -> dict[tuple, list[tuple[float, float]]]:
    """Adapters and tokens/s of the paper's own runs of this engine, by rank, rate and A_max."""
    engine = str(results.spec.get("engine", {}).get("like", ""))
    model = str(results.attributes.get("model", "")).lower()
    curves: dict[tuple, list[tuple[float, float]]] = {}
    if (engine, model) in PUBLISHED:
        for row in published.table(f"{engine}_{model}"):
            setting = tuple(tuple(json.loads(row[name])) if "[" in row[name] else int(row[name])
                            for name in PUBLISHED_COLUMNS)
            curves.setdefault(setting, []).append((float(row["workload.adapters.count"]),
                                                   float(row["measured.tokens_per_s"])))
    return curves


def draw(results: Results, out: Path) -> list[Path]:
    columns = results.columns
    settings, usual = settings_of(results)
    adapters, tokens = columns[results.sweep("count")], results.metric("total_tokens_per_s")
    titles = ["(a) Adapter size", "(b) Rate per adapter", "(c) $A_{max}$"]
    labels = [_parts.ranks_label, lambda w: f"{float(json.loads(str(w))[0]):g} requests/s",
              lambda slots: "all adapters" if int(slots) == 0 else f"{int(slots)} slots"]
    figure, panels = plt.subplots(1, 3, figsize=(style.TWO_COLUMNS_IN, 2.5))
    theirs = published_curves(results)
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
            key = (*(tuple(json.loads(str(text))) for text in setting[:2]), int(setting[2]))
            if key in theirs:
                axes.plot(*np.array(sorted(theirs[key])).T, linestyle=":", linewidth=0.8,
                          markerfacecolor="white", markersize=3, **look)
                lines += [f"{'':{len(results.spec_id)}}  {label(setting[number]):>18} "
                          f"{count:9g} {value:9.0f} published" for count, value
                          in sorted(theirs[key])]
            lines += [f"{'':{len(results.spec_id)}}  {label(setting[number]):>18} {adapters[i]:9d} "
                      + (f"{tokens[i]:9.0f}" if ok else "    does not fit")
                      for i, ok in zip(at, valid)]
        axes.set(xlabel="served adapters", xlim=(0, None))
        axes.set_ylim(0, 1.25 * np.nanmax(tokens))  # room for the legend
        axes.legend(fontsize=6, loc="best", frameon=False)
        style.panel_label(axes, title)
    panels[0].set_ylabel("input + output tokens/s")
    notes = ["crosses: the slots leave no room for a request"] if results.invalid_count else []
    notes += ["open, dotted: the paper's own runs"] if theirs else []
    style.finish(figure, results, [], note="; ".join(notes))
    return style.save(figure, out, "fig01") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
