"""Where CaraServe's host stops paying: time to first token and latency over those with all adapters
on the device, by the rate of requests, on demand and with the host's help, for each load path."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, NullFormatter

from analysis import style
from analysis.results import Results

COLORS = {"rebuild": style.VERMILION, "pageable": style.ORANGE, "pinned": style.BLUE,
          "layers": style.GREEN}
SYSTEMS = {"ondmd": ("on demand", "-", "o"), "caraserve": ("CaraServe", (0, (3, 1.5)), "s")}
METRICS = {"ttft_mean_s": "time to first token", "latency_mean_s": "request latency"}


def over_cached(results: Results, metric: str, label: str) -> dict[float, float]:
    """The mean as a multiple of cached's, by rate."""
    own, cached = (results.curve(metric, one, "rate") for one in (label, "cached"))
    base = dict(zip(cached.x.tolist(), cached.mean))
    return {float(x): value / base[x] for x, value in zip(own.x.tolist(), own.mean)}


def draw(results: Results, out: Path) -> list[Path]:
    figure, panels = plt.subplots(1, len(METRICS), figsize=(style.TWO_COLUMNS_IN, 2.5))
    lines = [f"{results.spec_id}: means over seeds, as multiples of cached's"]
    for axes, (metric, text) in zip(panels, METRICS.items()):
        lines.append(text)
        for label in results.techniques:
            system, _, path = label.partition(", ")
            if system not in SYSTEMS:
                continue
            _, dashes, marker = SYSTEMS[system]
            ratios = over_cached(results, metric, label)
            axes.plot(list(ratios), list(ratios.values()), color=COLORS[path], linestyle=dashes,
                      marker=marker, markersize=3.5)
            lines.append(f"  {label:22}" + "".join(f"{rate:8g}/s {value:8.3f}"
                                                    for rate, value in ratios.items()))
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="requests/s", ylabel="x of all on the device")
        style.panel_label(axes, text)
    handles = [plt.Line2D([], [], color=style.GREY, linestyle=dashes, marker=marker, markersize=3.5,
                          label=name) for name, dashes, marker in SYSTEMS.values()]
    handles += [plt.Line2D([], [], color=color, label=path) for path, color in COLORS.items()]
    style.finish(figure, results, handles, note="means over all seeds")
    return style.save(figure, out, "loads") + [
        style.write_text(out, "table.txt", "\n".join(lines) + "\n")]
