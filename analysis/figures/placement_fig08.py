"""Placement paper Fig. 8: throughput, ITL and TTFT over adapters, twin beside engine, by rates."""
from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.figures import _twin
from analysis.results import Results

PANELS = [("throughput", 1, "(a) Throughput", "input + output tokens/s"),
          ("ITL", 1e3, "(b) ITL", "mean inter-token latency (ms)"),
          ("TTFT", 1e3, "(c) TTFT", "mean time to first token (ms)")]
COLORS = [style.BLUE, style.VERMILION, style.GREEN]
KINDS = {"engine": ("-", "o", True), "original": ("--", "s", False), "mean": (":", "^", False)}


def lines_of(results: Results, metric: str) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """(rates, kind of run) -> points of adapters and value."""
    values = results.metric(_twin.METRICS[metric])
    counts = results.columns[results.sweep("count")]
    rates = results.columns[results.sweep("weights")]
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for pair in _twin.pairs(results):
        if pair.model != "fitted":
            continue
        for kind, index in (("engine", pair.engine), (pair.lengths, pair.twin)):
            line = lines.setdefault((str(rates[index]), kind), [])
            entry = (float(counts[index]), float(values[index]))
            if entry not in line:
                line.append(entry)
    return lines


def claim_value(results: Results, metric: str) -> float:
    """The fitted twin's SMAPE of a metric with mean lengths, in percent."""
    return _twin.mean_error(results, metric, [
        pair for pair in _twin.pairs(results) if (pair.model, pair.lengths) == ("fitted", "mean")])


def table_of(results: Results) -> str:
    text = [f"{results.spec_id}: SMAPE of the twin, % (paper's figure: 'Mean' lengths)"]
    for lengths in ("original", "mean"):
        chosen = [pair for pair in _twin.pairs(results)
                  if (pair.model, pair.lengths) == ("fitted", lengths)]
        if chosen:
            text.append(f"{lengths:9}" + "".join(
                f"  {name} {_twin.mean_error(results, name, chosen):.2f}"
                for name in _twin.METRICS) + f"  ({len(chosen)} points)")
    return "\n".join(text) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    figure, panels = plt.subplots(1, 3, figsize=(style.TWO_COLUMNS_IN, 2.5))
    rate_sets = list(dict.fromkeys(str(x) for x in results.columns[results.sweep("weights")]))
    for axes, (metric, scale, title, label) in zip(panels, PANELS):
        for (rates, kind), line in lines_of(results, metric).items():
            x, y = np.array(sorted(line)).T
            style_of, marker, filled = KINDS[kind]
            color = COLORS[rate_sets.index(rates)]
            axes.plot(x, y * scale, style_of, marker=marker, color=color,
                      markerfacecolor=color if filled else "white")
        axes.set_xlabel("adapters")
        axes.set_ylabel(label)
        style.panel_label(axes, title)
        style.scale_y(axes)
    handles = [plt.Line2D([], [], color=color,
                          label="rates " + ", ".join(f"{r:g}" for r in json.loads(rates)) + " /s")
               for rates, color in zip(rate_sets, COLORS)]
    names = {"engine": "engine", "original": "twin, original lengths", "mean": "twin, mean lengths"}
    handles += [plt.Line2D([], [], color="black", linestyle=line, marker=marker,
                           markerfacecolor="black" if filled else "white", label=names[kind])
                for kind, (line, marker, filled) in KINDS.items()]
    style.finish(figure, results, handles, columns=5, note="one run each")
    return style.save(figure, out, "fig08") + [
        style.write_text(out, "table.txt", table_of(results))]
