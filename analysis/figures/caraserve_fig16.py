"""CaraServe Fig. 16: latency of a prefill step whose adapter the host computes, by the tokens of
its prompt: copies whose end the host waits for, from a framework (native) or to pinned memory,
beside the copy that signals itself, and what that saves."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, style
from analysis.results import Results

LOOKS = {"native": (style.GREY, "//", "native: pageable, waits"),
         "synced": (style.PURPLE, "..", "pinned, waits"),
         "fused": (style.VERMILION, "", "fused"),
         "ondmd": (style.SKY, "xx", "adapter waited for")}


def step_ms(results: Results, label: str) -> dict[float, float]:
    """Mean prefill step by prompt tokens."""
    curve = results.curve("prefill_step_mean_s", label, "prompt")
    return {float(x): 1e3 * value for x, value in zip(curve.x.tolist(), curve.mean)}


def draw(results: Results, out: Path) -> list[Path]:
    figure, (times, gain) = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.3),
                                         width_ratios=[1.6, 1])
    labels = [label for label in LOOKS if label in results.techniques]
    ms = {label: step_ms(results, label) for label in labels}
    tokens = sorted({x for of in ms.values() for x in of})
    at = np.arange(len(tokens))
    width = 0.8 / len(labels)
    for number, label in enumerate(labels):
        color, hatch, text = LOOKS[label]
        times.bar(at + (number - (len(labels) - 1) / 2) * width,
                  [ms[label].get(x, np.nan) for x in tokens], width, color=color, hatch=hatch,
                  edgecolor="white", linewidth=0.4, label=text)
    saved = [100 * (1 - ms["fused"].get(x, np.nan) / ms["native"].get(x, np.nan)) for x in tokens]
    gain.plot(at, saved, color=style.VERMILION, marker="o")
    paper = published.claim("caraserve/fig16-fused")
    handles = times.get_legend_handles_labels()[0]
    handles.append(style.limit_line(gain, paper, f"paper: up to {paper:g} %"))
    for axes in (times, gain):
        axes.set_xticks(at, [f"{x:g}" for x in tokens])
        axes.set_xlabel("tokens of the prompt")
        axes.set_ylim(bottom=0)
    times.set_ylabel("prefill step (ms)")
    gain.set_ylabel("fused below native (%)")
    style.panel_label(times, "prefill latency")
    style.panel_label(gain, "what fusing saves")
    lines = [f"{results.spec_id}: {'tokens':>7}"
             + "".join(f"{label + ' ms':>11}" for label in labels) + f"{'saved %':>9}"]
    lines += [f"{'':{len(results.spec_id)}}  {x:7g}" + "".join(
        f"{ms[label].get(x, np.nan):11.2f}" for label in labels) + f"{percent:9.2f}"
        for x, percent in zip(tokens, saved)]
    style.finish(figure, results, handles, note="each prompt has a cold adapter of its own")
    return style.save(figure, out, "fig16") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
