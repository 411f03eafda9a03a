"""CaraServe Fig. 17: LoRA of a layer by processes with 16 tokens each, by how data come to them."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, style
from analysis.figures import _lora_workers as workers
from analysis.results import Results

TRANSPORTS = {"sockets": ("UNIX sockets", style.SKY), "shared": ("shared memory", style.VERMILION)}
WITH_CORES = 3  # numbers of processes with a core each that a trend needs


def times_ms(results: Results, transport: str) -> dict[int, tuple[float, float, float]]:
    counts = workers.swept(results, "host_lora_workers", host_lora_transport=transport)
    return {count: workers.ms(results, host_lora_transport=transport, host_lora_workers=count)
            for count in counts}


def claim_value(results: Results, what: str) -> float:
    """Where each process has a core: "shared": the most that data take (s); "flat": the largest
    over the smallest time; "sockets": R2 of a line through the times of their data."""
    times = times_ms(results, "sockets" if what == "sockets" else "shared")
    own = {count: sum(time[:2]) if what == "flat" else time[0]
           for count, time in times.items() if count < workers.processors(results)}
    if what == "shared":
        return max(own.values()) / 1e3
    if len(own) < WITH_CORES:
        raise ValueError(f"on {workers.processors(results)} processors {len(own)} numbers of "
                         f"processes have a core each, and a trend needs {WITH_CORES}")
    if what == "flat":
        return max(own.values()) / min(own.values())
    return workers.straight(list(own), list(own.values()))


def draw(results: Results, out: Path) -> list[Path]:
    figure, axes = plt.subplots(figsize=(style.TWO_COLUMNS_IN, 2.4))
    lines = [f"{results.spec_id}: a layer's LoRA (ms), medians over prompts",
             f"{'transport':16}{'processes':>10}{'data':>9}{'computing':>11}{'sum':>9}"]
    handles = []
    counts = sorted(times_ms(results, "shared"))
    for number, (transport, (text, color)) in enumerate(TRANSPORTS.items()):
        times = times_ms(results, transport)
        x = np.arange(len(counts)) + (number - 0.5) * 0.38
        data, compute, spread = (np.array([times[count][part] for count in counts])
                                 for part in range(3))
        axes.bar(x, compute, 0.36, color="white", edgecolor=color, hatch="////", linewidth=0.6)
        axes.bar(x, data, 0.36, bottom=compute, color=color, edgecolor="white", linewidth=0.4,
                 yerr=spread, error_kw={"elinewidth": 0.7})
        handles.append(plt.Rectangle((0, 0), 1, 1, color=color, label=f"data, {text}"))
        lines += [f"{text:16}{count:10d}{times[count][0]:9.3f}{times[count][1]:11.3f}"
                  f"{sum(times[count][:2]):9.3f}" for count in counts]
    handles.append(plt.Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=style.GREY,
                                 hatch="////", label="computing"))
    paper = 1e3 * published.claim("caraserve/fig17-shared-memory")
    handles.append(style.limit_line(axes, paper, f"paper: data in less than {paper:g} ms"))
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
    axes.set(xlabel="processes, 16 tokens each", ylabel="LoRA of a layer's q (ms)")
    style.finish(figure, results, handles, note=workers.note(results))
    return style.save(figure, out, "fig17") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
