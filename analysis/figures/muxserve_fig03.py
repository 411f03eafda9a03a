"""MuxServe Fig. 3: what a prefill and a decode step take on a share of the SMs, by batch size,
beside the step on all of them."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, style
from analysis.results import Curve, Results

FIGURE = "muxserve/fig03"
PHASES = ("prefill", "decode")
LOOKS = [(style.BLUE, "o"), (style.ORANGE, "s"), (style.GREEN, "^"), (style.PURPLE, "D"),
         (style.VERMILION, "v")]


def curve_of(results: Results, phase: str, batch: int) -> Curve:
    """Mean step time (s) over the share of the SMs."""
    own = results.select(requests=batch)
    return own.curve(f"{phase}_step_mean_s", own.techniques[0], "device_share")


def batches(results: Results) -> list[int]:
    return sorted({int(batch) for batch in results.columns[results.sweep("requests")]})


def claim_value(results: Results, value: str) -> float:
    """`decode-at-half`: the decode step on half of the SMs over that on all, at the batch size that
    suffers most."""
    if value != "decode-at-half":
        raise KeyError(value)
    ratios = []
    for batch in batches(results):
        curve = curve_of(results, "decode", batch)
        half, whole = (curve.mean[np.isclose(curve.x.astype(float), share)] for share in (0.5, 1))
        ratios.append(float(half[0] / whole[0]))
    return max(ratios)


def draw(results: Results, out: Path) -> list[Path]:
    """A panel per phase: time over that on all SMs; published points where there are any."""
    figure, panels = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.5), sharey=True)
    lines = [f"{results.spec_id}: {'phase':8}{'batch':>6}{'SMs %':>7}{'step ms':>10}{'x all':>7}"]
    any_published = False
    for axes, phase in zip(panels, PHASES):
        for number, batch in enumerate(batches(results)):
            curve = curve_of(results, phase, batch)
            percent = 100 * curve.x.astype(float)
            whole = curve.mean[np.argmax(percent)]
            color, marker = LOOKS[number % len(LOOKS)]
            axes.plot(percent, curve.mean / whole, color=color, marker=marker,
                      label=f"batch {batch}")
            lines += [f"{'':{len(results.spec_id)}}  {phase:8}{batch:6d}{share:7.0f}{ms:10.2f}"
                      f"{over:7.2f}" for share, ms, over in
                      zip(percent, curve.mean * 1e3, curve.mean / whole)]
            x, y = published.curve(FIGURE, f"{phase}_step_s", f"batch {batch}")
            if x.size:
                any_published = True
                axes.plot(x, y / y[np.argmax(x)], color=style.GREY, marker=marker, zorder=1,
                          linestyle="", markerfacecolor="none")
        axes.set(xlabel="share of the SMs (%)", ylim=(0, None))
        axes.axhline(1, color=style.GREY, linewidth=0.6, zorder=0)
        style.panel_label(axes, f"{phase} step")
    panels[0].set_ylabel("time over that on all SMs")
    handles = panels[0].get_legend_handles_labels()[0]
    if any_published:
        handles.append(plt.Line2D([], [], color=style.GREY, linestyle="", marker="o",
                                  markerfacecolor="none",
                                  label="published (artifact, A100, marker by batch)"))
    style.finish(figure, results, handles, note="prompts of 128 tokens; base model")
    return style.save(figure, out, "fig03") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
