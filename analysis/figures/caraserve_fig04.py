"""CaraServe Fig. 4: decode latency against batch size and adapter rank under BGMV and MBGMV, with
heterogeneous batches; and the LoRA part of it alone, which shows what each kernel charges."""
from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import stats, style
from analysis.figures import _parts
from analysis.results import Results

COLORS = [style.BLUE, style.ORANGE, style.VERMILION, style.GREEN, style.PURPLE]
MARKERS = ["o", "s", "^", "D", "v"]


def claim_value(results: Results, kernel: str) -> float:
    """Decode latency of batches of mixed ranks over what uniform batches predict: those of the
    largest rank for BGMV, of the average rank for MBGMV (between two ranks a straight line).
    Geometric mean over the batch sizes and mixes."""
    own = results.columns["technique"] == kernel
    batch, ranks = (results.columns[results.sweep(name)] for name in ("requests", "ranks"))
    step = results.metric("itl_p50_s")
    sets = {text: json.loads(str(text)) for text in dict.fromkeys(ranks.tolist())}
    ratios = []
    for size in np.unique(batch):
        at = {text: float(np.median(step[own & (batch == size) & (ranks == text)]))
              for text in sets}
        uniform = sorted((mix[0], at[text]) for text, mix in sets.items() if len(set(mix)) == 1)
        ratios += [at[text] / np.interp(max(mix) if kernel == "bgmv" else np.mean(mix),
                                        *zip(*uniform))
                   for text, mix in sets.items() if len(set(mix)) > 1]
    return stats.geometric_ci(ratios).value


def draw(results: Results, out: Path) -> list[Path]:
    kernels = results.techniques
    groups = 1 + _parts.has_lora_times(results)
    figure, panels = plt.subplots(1, groups * len(kernels), figsize=(style.TWO_COLUMNS_IN, 2.4))
    columns = results.columns
    batch, ranks = columns[results.sweep("requests")], columns[results.sweep("ranks")]
    step = results.metric("itl_p50_s") * 1e3
    sets = list(dict.fromkeys(ranks.tolist()))
    lines = [f"{results.spec_id}: {'kernel':7}{'ranks':>16}{'batch':>6}{'decode ms':>10}"
             f"{'LoRA ms':>9}"]
    for position, kernel in enumerate(kernels):
        for number, rank in enumerate(sets):
            own = np.flatnonzero((columns["technique"] == kernel) & (ranks == rank))
            own = own[np.argsort(batch[own], kind="stable")]
            lora = np.array([_parts.per_step_ms(results, i, "lora") for i in own])
            mixed = not _parts.ranks_label(rank).startswith("rank ")
            look = {"color": COLORS[number % 5], "marker": MARKERS[number % 5],
                    "linestyle": "--" if mixed else "-", "label": _parts.ranks_label(rank)}
            panels[position].plot(batch[own], step[own], **look)
            if groups == 2:
                panels[len(kernels) + position].plot(batch[own], lora, **look)
            lines += [f"{'':{len(results.spec_id)}}  {kernel:7}{look['label']:>16}{b:6d}{s:10.2f}"
                      f"{part:9.3f}" for b, s, part in zip(batch[own].tolist(), step[own], lora)]
    for group, name, label in ((panels[:len(kernels)], "decode", "decode step, median (ms)"),
                               (panels[len(kernels):], "LoRA part", "LoRA per step (ms)"))[:groups]:
        top = max(axes.get_ylim()[1] for axes in group)
        for axes, kernel in zip(group, kernels):
            axes.set(xlabel="batch size", ylabel=label, ylim=(0, top))
            style.panel_label(axes, f"{kernel.upper()}, {name}")
    style.finish(figure, results, panels[0].get_legend_handles_labels()[0],
                 note="each request has an adapter of its own")
    return style.save(figure, out, "fig04") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
