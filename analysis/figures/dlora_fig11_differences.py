"""What each difference between dLoRA's paper and its artifact is worth: the largest rate within the
SLO with one piece at a time swapped, and the factor beside the paper's dLoRA.

A row is a technique with the workload settings in which it differs from the first point's.
"""
from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from analysis import slo, style
from analysis.figures import _replicas
from analysis.results import Results

OURS = "dlora"
NAMES = {OURS: "the paper's dLoRA", "batching": "the artifact's batching",
         "migration": "the artifact's migration",
         "migration, K = 1": "the paper's dLoRA with K = 1",
         "migration, eta = 0": "the paper's dLoRA without eta",
         "dlora-artifact": "the artifact's dLoRA",
         "proactive": "the paper's proactive", "proactive (artifact)": "the artifact's proactive",
         "rr": "the paper's RR", "rr, no history": "the paper's RR, loads not known",
         "rr (artifact)": "the artifact's RR (least cost)"}
METRICS = {"latency_per_token_mean_s": "paper's average",
           "latency_per_token_mean_of_ratios_s": "artifact's average"}
LOOKS = {"latency_per_token_mean_s": (style.VERMILION, "o"),
         "latency_per_token_mean_of_ratios_s": (style.BLUE, "s")}


@dataclass(frozen=True)
class Row:
    label: str
    rates: dict[str, dict[int, tuple[float, str]]]  # by metric: seed -> largest rate, bound


def words(settings: dict[str, str], usual: dict[str, str]) -> str:
    """What differs from the usual workload, such as 'rank 16, 7 linear layers'."""
    found = []
    for name, value in sorted(settings.items(), key=lambda item: (  # rank first, then layers
            "correlated" in item[0], "targets" in item[0])):
        last = name.split(".")[-1]
        if value == usual[name]:
            continue
        if last == "ranks":
            found.append("rank " + ", ".join(f"{rank:g}" for rank in json.loads(value)))
        elif last == "targets":
            found.append(f"{len(json.loads(value))} linear layers")
        elif last == "correlated":
            found.append("correlated draws" if value == "true" else "independent draws")
        else:
            found.append(f"{last} {value}")
    return ", ".join(found)


def rows_of(results: Results) -> list[Row]:
    """Techniques in the spec's order, each in its usual workload and then in the others."""
    names = [name for name in results.sweep_columns if name != results.sweep("rate")]
    places = list(zip(*(map(str, results.columns[name].tolist()) for name in names))) or [
        ()] * len(results.columns["key"])
    usual = dict(zip(names, places[0]))
    found = {}
    for place in dict.fromkeys(places):
        points = results.subset(np.array([other == place for other in places]))
        for technique in points.techniques:
            extra = words(dict(zip(names, place)), usual)
            label = NAMES.get(technique, style.plain(technique)) + (f", {extra}" if extra else "")
            found[technique, place] = Row(label, {
                metric: slo.by_seed(points, metric, technique, "rate", slo.SLO_S)
                for metric in METRICS})
    order = results.techniques
    return [found[key] for key in sorted(found, key=lambda key: (places.index(key[1]) > 0,
                                                                 order.index(key[0])))]


def rate_of(row: Row, metric: str) -> slo.Rate:
    return slo.rate_of(row.label, row.rates[metric])


def factor_of(row: Row, first: Row, metric: str) -> slo.Rate:
    """The row's largest rate over that of the paper's dLoRA, by paired seeds."""
    return slo.ratio_of(row.label, row.rates[metric], first.label, first.rates[metric])


def draw_rates(axes: Axes, rates: list[slo.Rate], at: np.ndarray, metric: str) -> None:
    """Values with their intervals; a bound is a hollow arrow, an unknown one a question mark."""
    color, marker = LOOKS[metric]
    known = [place for place, rate in enumerate(rates) if not rate.bound]
    found = [rates[place].estimate for place in known]
    ends = np.array([[one.value - one.low, one.high - one.value] for one in found]).reshape(-1, 2)
    axes.errorbar([one.value for one in found], at[known], xerr=np.nan_to_num(ends.T),
                  color=color, marker=marker, linestyle="none", markersize=3.5, elinewidth=0.8,
                  label=METRICS[metric])
    for bound, sign in ((">", ">"), ("<", "<"), ("?", "$?$")):
        places = [place for place, rate in enumerate(rates) if rate.bound == bound]
        axes.plot([rates[place].estimate.value for place in places], at[places], marker=sign,
                  linestyle="none", color=color, markerfacecolor="white", markersize=4.5)


def table_of(results: Results, rows: list[Row]) -> str:
    width = max(len(row.label) for row in rows)
    lines = [f"{results.spec_id}: largest rate (requests/s) within {slo.SLO_S:g} s/token, mean "
             f"over {len(results.seeds)} seeds, 95 % CI", f"{'':{width}}" + "".join(
                 f" {name:>18} {'over the first':>20}" for name in METRICS.values())]
    for row in rows:
        cells = [f" {_replicas.rate_text(rate_of(row, metric)):>18} "
                 f"{_replicas.ratio_text(factor.estimate, factor.bound):>20}"
                 for metric, factor in ((metric, factor_of(row, rows[0], metric))
                                        for metric in METRICS)]
        lines.append(f"{row.label:{width}}" + "".join(cells))
    lines += ["", slo.BOUNDS]
    return "\n".join(lines) + "\n"


def draw(results: Results, out: Path) -> list[Path]:
    """A row for each variant: its largest rate, and the factor beside the paper's dLoRA."""
    rows = rows_of(results)
    figure, (rates, ratios) = plt.subplots(1, 2, sharey=True, width_ratios=(1, 1),
                                           figsize=(style.TWO_COLUMNS_IN, 0.9 + 0.21 * len(rows)))
    for number, metric in enumerate(METRICS):
        at = np.arange(len(rows)) + (number - 0.5) * 0.3
        draw_rates(rates, [rate_of(row, metric) for row in rows], at, metric)
        draw_rates(ratios, [factor_of(row, rows[0], metric) for row in rows], at, metric)
    ratios.axvline(1, color=style.GREY, linewidth=0.8, zorder=1)
    rates.set_yticks(range(len(rows)), [textwrap.fill(row.label, 48) for row in rows])
    rates.set_ylim(len(rows) - 0.5, -0.5)
    for axes, label in ((rates, "largest rate (requests/s)"),
                        (ratios, "over the paper's dLoRA")):
        axes.grid(axis="x")
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
    style.finish(figure, results, rates.get_legend_handles_labels()[0],
                 note=f"largest rate within {slo.SLO_S:g} s/token; error bars: 95 % CI over paired "
                      "seeds; arrows and ?: the sweep ends before")
    return style.save(figure, out, "fig11_differences") + [
        style.write_text(out, "table.txt", table_of(results, rows))]
