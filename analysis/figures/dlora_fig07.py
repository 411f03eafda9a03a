"""dLoRA Fig. 7: the workload's arrivals, periodic in the long term and bursty in the short term.

From /requests/scheduled of one run (first point): per 40 minutes over the whole run, then two zooms
into its busiest part. Shorter runs have shorter bins.
"""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from analysis.results import Results

LONG_BINS_S = [1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 2400.0]
MOST_LONG_BINS = 50
ZOOMS = [(3600.0, 60.0), (120.0, 1.0)]  # window and bin, in s
UNITS = [(3600, "h"), (60, "min"), (1, "s")]


def duration_text(seconds: float) -> str:
    """The duration in units that divide it, such as "40 min" or "10 h 38 min"."""
    parts, rest = [], round(seconds)
    if abs(rest - seconds) > 1e-6 or rest == 0:
        return f"{seconds:.3g} s"
    for size, unit in UNITS:
        if rest >= size:
            parts.append(f"{rest // size:.0f} {unit}")
            rest %= size
    return " ".join(parts)


def counts(times_s: np.ndarray, begin_s: float, end_s: float,
           bin_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Bin edges (s) and arrivals per bin between begin and end."""
    bins = max(1, int(np.ceil((end_s - begin_s) / bin_s - 1e-9)))
    edges = begin_s + bin_s * np.arange(bins + 1)
    return edges, np.histogram(times_s, edges)[0]


def busiest(times_s: np.ndarray, begin_s: float, end_s: float, window_s: float) -> float:
    """Start of the aligned window with the most arrivals."""
    edges, found = counts(times_s, begin_s, end_s, window_s)
    return float(edges[int(np.argmax(found))])


def draw(results: Results, out: Path) -> list[Path]:
    """One panel per time scale."""
    times_s = np.sort(results.point(0).read("requests/scheduled")) / 1e9
    if times_s.size == 0:
        raise results.error("the first point has no requests")
    end_s = max(float(times_s[-1]), 1e-9)
    long_bin_s = next((bin_s for bin_s in LONG_BINS_S if end_s <= MOST_LONG_BINS * bin_s),
                      LONG_BINS_S[-1])
    windows = [(0.0, end_s, long_bin_s)]
    for window_s, bin_s in ZOOMS:
        begin_s, last_s, _ = windows[-1]
        if last_s - begin_s > 1.5 * window_s:
            at = busiest(times_s, begin_s, last_s, window_s)
            windows.append((at, at + window_s, bin_s))
    figure, panels = plt.subplots(1, len(windows), squeeze=False,
                                  figsize=(style.TWO_COLUMNS_IN, 2.1))
    for number, (axes, (begin_s, last_s, bin_s)) in enumerate(zip(panels[0], windows)):
        edges, found = counts(times_s, begin_s, last_s, bin_s)
        size, unit = next((size, unit) for size, unit in UNITS
                          if last_s - begin_s >= 3 * size or unit == "s")
        axes.stairs(found, (edges - begin_s) / size, fill=True, color="#9ecae1",
                    edgecolor=style.BLUE, linewidth=0.7)
        since = "the start" if number == 0 else duration_text(round(begin_s))
        axes.set_xlabel(f"time since {since} ({unit})")
        axes.set_ylabel(f"requests per {duration_text(bin_s).removeprefix('1 ')}")
        axes.set_xlim(0, (last_s - begin_s) / size)
        axes.set_ylim(bottom=0)
        title = "whole run" if number == 0 else f"busiest {duration_text(round(last_s - begin_s))}"
        style.panel_label(axes, f"({'abc'[number]}) {title}")
    style.finish(figure, results, note=f"seed {int(results.columns['seed'][0])} shown, "
                 f"{times_s.size:,} requests")
    return style.save(figure, out, "fig07")
