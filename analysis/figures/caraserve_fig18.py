"""CaraServe Fig. 18: LoRA of a layer on one core by tokens, and of 128 tokens on several: processes
with a part of the rows each, beside threads that share each product."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.figures import _lora_workers as workers
from analysis.results import Results

TOKENS = 128
NONE = (float("nan"), 0.0)


def one_core_ms(results: Results) -> dict[int, tuple[float, float]]:
    """By tokens: computing, and how repeats deviate."""
    column = results.columns[results.sweep("host_lora_rows")]
    whole = max(int(rows) for rows in column)
    one = {"host_lora": "processes", "host_lora_workers": 1, "host_lora_rows": whole}
    found = {}
    for tokens in workers.swept(results, "prompt", **one):
        _, compute, spread = workers.ms(results, prompt=tokens, **one)
        found[tokens] = compute, spread
    return found


def several_ms(results: Results, by: str) -> dict[int, tuple[float, float]]:
    """By processes or threads: the time of TOKENS, and how repeats deviate. Threads that share
    cores are left out: the engine times its leading one, which may have had a core all along."""
    name = "host_lora_workers" if by == "processes" else "threads"
    found = {}
    for count in workers.swept(results, name, host_lora=by, prompt=TOKENS):
        if by == "inline" and count > workers.processors(results):
            continue
        own = {name: count, "host_lora": by, "prompt": TOKENS}
        if by == "processes":
            own["host_lora_rows"] = TOKENS // count
        data, compute, spread = workers.ms(results, **own)
        found[count] = data + compute, spread
    return found


def claim_value(results: Results, what: str) -> float:
    """"one-core": R2 of a line through the tokens; "speedup": the most that processes are faster
    than as many threads, where each of them and the engine has a core."""
    if what == "one-core":
        times = one_core_ms(results)
        return workers.straight(list(times), [time for time, _ in times.values()])
    processes, threads = several_ms(results, "processes"), several_ms(results, "inline")
    most = max(processes)
    if workers.processors(results) <= most:
        raise ValueError(f"{most} processes beside the engine need {most + 1} processors, and this "
                         f"machine has {workers.processors(results)}")
    return max(threads[count][0] / processes[count][0] for count in processes)


def draw(results: Results, out: Path) -> list[Path]:
    figure, (left, right) = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.4))
    one = one_core_ms(results)
    left.errorbar(list(one), [time for time, _ in one.values()],
                  [spread for _, spread in one.values()], color=style.VERMILION, marker="o")
    left.set(xlabel="tokens of the prompt", ylabel="LoRA of a layer's q (ms)")
    left.set_xlim(left=0)
    lines = [f"{results.spec_id}: one core", f"{'tokens':>8}{'ms':>9}"]
    lines += [f"{tokens:8d}{time:9.3f}" for tokens, (time, _) in one.items()]
    lines += [f"{TOKENS} tokens", f"{'cores':>8}{'processes':>11}{'threads':>9}{'speedup':>9}"]
    times = {by: several_ms(results, by) for by in ("inline", "processes")}
    counts = sorted(times["processes"])
    for number, (by, color, hatch, text) in enumerate((
            ("inline", style.GREY, "//", "a library's threads"),
            ("processes", style.VERMILION, "", "processes"))):
        right.bar(np.arange(len(counts)) + (number - 0.5) * 0.38,
                  [times[by].get(count, NONE)[0] for count in counts], 0.36,
                  yerr=[times[by].get(count, NONE)[1] for count in counts],
                  error_kw={"elinewidth": 0.7},
                  color=color, hatch=hatch, edgecolor="white", linewidth=0.4, label=text)
    for count in counts:
        own, threads = times["processes"][count][0], times["inline"].get(count, NONE)[0]
        lines.append(f"{count:8d}{own:11.3f}{threads:9.3f}{threads / own:9.2f}")
    right.set_xticks(range(len(counts)), [str(count) for count in counts])
    right.set_xlabel("processes or threads")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    style.panel_label(left, "one core")
    style.panel_label(right, f"{TOKENS} tokens")
    style.finish(figure, results, right.get_legend_handles_labels()[0],
                 note=workers.note(results))
    return style.save(figure, out, "fig18") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
