"""dLoRA Fig. 5: time of the base model's Wx and of the adapters' BAx per iteration, by batch size.

From the replicas' totals: `dense` and `lora` time over all steps, divided by the number of steps.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, style
from analysis.results import Results

FIGURE = "dlora/fig05"


def per_step_ms(results: Results, index: int, part: str) -> float:
    """Mean time per step that a point's replicas spent in `part`, in ms; NaN without steps."""
    point = results.point(index)
    steps = int(np.sum(point.read("replicas/steps")))
    time_ns = float(np.sum(point.read(f"replicas/{part}")))
    return time_ns / steps / 1e6 if steps else float("nan")


def share_percent(results: Results, index: int) -> float:
    """BAx as a percentage of Wx in one point."""
    return 100 * per_step_ms(results, index, "lora") / per_step_ms(results, index, "dense")


def published_share_percent() -> tuple[float, float]:
    """The range of BAx / Wx over the artifact's batch sizes."""
    wx, bax = ([published.value(FIGURE, f"{part}_us_{end}", "unmerged-only")
                for end in ("low", "high")] for part in ("wx", "bax"))
    return 100 * bax[0] / wx[0], 100 * bax[1] / wx[1]


def table_of(results: Results) -> str:
    """The means behind both panels, a line per technique and batch size."""
    lines = [f"{results.spec_id}: all layers, ms per iteration",
             f"{'kernel':16} {'batch':>6} {'Wx':>8} {'BAx':>8} {'BAx/Wx %':>9}"]
    for technique in results.techniques:
        wx, bax = (results.curve_of(lambda index, part=part: per_step_ms(results, index, part),
                                    technique) for part in ("dense", "lora"))
        share = results.curve_of(lambda index: share_percent(results, index), technique)
        lines += [f"{technique:16} {batch!s:>6} {base:8.3f} {lora:8.3f} {percent:9.1f}"
                  for batch, base, lora, percent in zip(wx.x, wx.mean, bax.mean, share.mean)]
    return "\n".join(lines) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    """(a) Wx beside BAx in ms per iteration, (b) BAx / Wx in percent beside the paper's."""
    figure, (times, share) = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.5))
    x = results.x_values()
    techniques = results.techniques
    width = 0.8 / (1 + len(techniques))
    bars = [(techniques[0], "dense", "Wx, base model", "#bdbdbd", "")]
    bars += [(technique, "lora", f"BAx, {style.look(technique).label}",
              style.look(technique).color, style.look(technique).hatch)
             for technique in techniques]
    for position, (technique, part, label, color, hatch) in enumerate(bars):
        curve = results.curve_of(lambda index: per_step_ms(results, index, part), technique)
        at = np.array([x.index(value) for value in curve.x.tolist()])
        times.bar(at + (position - len(techniques) / 2) * width, curve.mean, width, color=color,
                  edgecolor="white", hatch=hatch, label=label, linewidth=0.4,
                  yerr=np.nan_to_num(curve.half_width), error_kw={"elinewidth": 0.8})
    times.set_xticks(range(len(x)), [style.plain(value) for value in x])
    times.set_ylabel("time per iteration (ms)")
    low, high = published_share_percent()
    paper = published.claim("dlora/fig05-share")
    band = share.axhspan(low, high, color="#e4e4e4", zorder=1,
                         label=f"published (artifact, one operator): {low:.1f} to {high:.1f} %")
    line = share.axhline(paper, color=style.GREY, linewidth=0.9, linestyle="--", zorder=2,
                         label=f"paper's claim: {paper:g} %")
    for technique in techniques:
        style.draw_curve(share, results.curve_of(
            lambda index: share_percent(results, index), technique),
            f"BAx / Wx, {style.look(technique).label}")
    share.set_ylabel("BAx / Wx (%)")
    share.set_ylim(bottom=0)
    share.set_xticks(x if all(isinstance(value, (int, float)) for value in x) else range(len(x)))
    for axes, title in ((times, "(a) Time, all layers"), (share, "(b) Share")):
        axes.set_xlabel("batch size (requests)")
        style.panel_label(axes, title)
    handles = times.get_legend_handles_labels()[0]
    handles += [entry for entry in share.get_legend_handles_labels()[0]
                if entry not in (band, line)] + [band, line]
    style.finish(figure, results, handles, columns=3)
    return style.save(figure, out, "fig05") + [
        style.write_text(out, "table.txt", table_of(results))]
