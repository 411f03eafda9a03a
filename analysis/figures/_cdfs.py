"""Distributions of what requests or steps take, for CaraServe's figures: a row of panels for each
position of the sweep and each variant, named in brackets, of the techniques that run there."""
from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from analysis import published, stats, steps, style
from analysis.figures import _parts
from analysis.results import Results

BASE = "cached"  # what the paper's percentages are over
Claims = Callable[[dict[str, Any]], str]  # settings -> the claims' common start, or ""
_WIDE = 30.0     # from the 1st to the 99th percentile: beyond, an axis is logarithmic


@dataclass(frozen=True)
class Panel:
    """A column of panels: what is drawn, the metric that claims are about, and their last word."""

    label: str
    metric: str
    claim: str
    values: Callable[[Results, int], np.ndarray]  # of a point
    scale: float = 1.0                            # of the values and the metric


@dataclass(frozen=True)
class Row:
    title: str
    settings: dict[str, Any]  # by the last word of the swept setting
    results: Results
    techniques: list[str]


def _finished(results: Results, index: int, *names: str) -> list[np.ndarray]:
    read = results.point(index).read_several(["requests/status",
                                              *(f"requests/{name}" for name in names)])
    done = read["requests/status"] == 1
    return [read[f"requests/{name}"][done].astype(float) for name in names]


def ttft_s(results: Results, index: int) -> np.ndarray:
    first, scheduled = _finished(results, index, "first_token", "scheduled")
    return (first - scheduled) / 1e9


def latency_s(results: Results, index: int) -> np.ndarray:
    last, scheduled = _finished(results, index, "last_token", "scheduled")
    return (last - scheduled) / 1e9


def per_token_s(results: Results, index: int) -> np.ndarray:
    return latency_s(results, index) / _finished(results, index, "output_tokens")[0]


PER_TOKEN = Panel("time per token (ms)", "latency_per_token_mean_of_ratios_s", "tpt", per_token_s,
                  1e3)
REQUESTS = [Panel("time to first token (ms)", "ttft_mean_s", "ttft", ttft_s, 1e3), PER_TOKEN,
            Panel("request latency (s)", "latency_mean_s", "latency", latency_s)]
STEPS = [Panel("prefill step (ms)", "prefill_step_mean_s", "prefill",
               lambda results, index: steps.times_s(results, index, True), 1e3),
         Panel("decode step (ms)", "decode_step_mean_s", "decode",
               lambda results, index: steps.times_s(results, index, False), 1e3)]

WORDS: dict[str, Callable[[Any], str]] = {
    "rate": lambda value: f"{value:g} requests/s", "count": lambda value: f"{value:g} adapters",
    "ranks": _parts.ranks_label, "model": str, "max_batch": lambda value: f"{value:g} in a batch",
    "load_path": lambda value: f"loads: {value}",
}
SILENT = ("cv", "trace", "hardware", "tensor_parallel", "replicas", "adapter_slots")


def variant_of(technique: str) -> str:
    """'sgmv' of 'ondmd (sgmv)', '' of 'ondmd'."""
    return technique.partition(" (")[2].removesuffix(")")


def base_of(technique: str) -> str:
    return technique.partition(" (")[0]


def rows_of(results: Results, without: tuple[str, ...] = ()) -> list[Row]:
    """Positions in the spec's order, the variants in each; a variant that lacks a technique is
    beside the plain one of that position, and one alone has no row of its own. `without` names
    techniques that are drawn nowhere."""
    results = results.subset(~np.isin(results.columns["technique"], without))
    columns = results.sweep_columns
    places = list(zip(*(results.columns[name].tolist() for name in columns))) or [
        ()] * len(results.columns["key"])
    found = []
    for place in dict.fromkeys(places):
        own = results.subset(np.array([other == place for other in places]))
        settings = {name.split(".")[-1]: value for name, value in zip(columns, place)}
        labels = own.techniques
        variants = [variant_of(label) for label in labels]
        for variant in dict.fromkeys(variants):
            chosen = {base_of(label): label for label in labels if not variant_of(label)}
            if not variant and len(chosen) == 1 and any(variants):
                continue  # it is in every other row
            chosen |= {base_of(label): label for label in labels if variant_of(label) == variant}
            words = [WORDS.get(name, lambda value, name=name: f"{name} {value}")(value)
                     for name, value in settings.items() if name not in SILENT
                     and len(set(results.columns[results.sweep(name)].tolist())) > 1]
            found.append(Row(", ".join(words + [variant] * bool(variant)), settings, own,
                             list(chosen.values())))
    return found


def pooled(row: Row, technique: str, panel: Panel) -> np.ndarray:
    """The values of all seeds, ascending."""
    own = np.flatnonzero(row.results.columns["technique"] == technique)
    return panel.scale * np.sort(np.concatenate([panel.values(row.results, i) for i in own]))


def draw_panel(axes: Axes, row: Row, panel: Panel) -> list[np.ndarray]:
    """Curves, with a marker at each mean; returns what was drawn."""
    drawn = []
    for technique in row.techniques:
        values = pooled(row, technique, panel)
        look = style.look(technique)
        if not values.size:
            continue
        share = np.arange(1, values.size + 1) / values.size
        thin = np.unique(np.linspace(0, values.size - 1, 2000).astype(int))
        axes.plot(values[thin], share[thin], color=look.color, linestyle=look.line,
                  label=look.label)
        mean = float(values.mean())
        axes.plot(mean, np.interp(mean, values, share), color=look.color, marker=look.marker,
                  markersize=4, zorder=4)
        drawn.append(values)
    return drawn


def scale_x(column: list[Axes], drawn: list[np.ndarray]) -> None:
    """The same axis for a column of panels, up to the largest 99.5th percentile."""
    low = min(float(np.percentile(values, 1)) for values in drawn)
    high = max(float(np.percentile(values, 99.5)) for values in drawn)
    for axes in column:
        if high > _WIDE * max(low, 1e-12):
            axes.set(xscale="log", xlim=(low / 1.2, high * 1.2))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_xlim(0, high * 1.05)
        axes.set_ylim(0, 1.02)
        axes.grid(axis="x")


def over_base(row: Row, technique: str, metric: str) -> stats.Estimate:
    """The metric's mean over seeds above that with all adapters cached, in percent."""
    base = next((one for one in row.techniques if base_of(one) == BASE), None)
    values, columns = row.results.metric(metric), row.results.columns
    sides = [{int(seed): float(value) for seed, value, label
              in zip(columns["seed"], values, columns["technique"]) if label == one}
             for one in (technique, base)]
    common = sorted(sides[0].keys() & sides[1].keys())
    ratio = stats.ratio_ci(*([side[seed] for seed in common] for side in sides))
    return stats.Estimate(*(100 * (edge - 1) for edge in (ratio.value, ratio.low, ratio.high)),
                          ratio.n)


def table_of(results: Results, rows: list[Row], panels: list[Panel], claims_of: Claims) -> str:
    width = max([len(one) for row in rows for one in row.techniques] + [10])
    lines = [f"{results.spec_id}: means over {len(results.seeds)} seeds; percent above {BASE} "
             "[95 % interval]; in brackets the paper's"]
    for row in rows:
        lines += ["", f"{row.title or 'all':{width}}" + "".join(f" {panel.label:>40}"
                                                                for panel in panels)]
        for technique in row.techniques:
            own = row.results.columns["technique"] == technique
            cells = []
            for panel in panels:
                mean = panel.scale * float(np.nanmean(row.results.metric(panel.metric)[own]))
                more = over_base(row, technique, panel.metric)
                paper = published.find(f"{claims_of(row.settings)}-{base_of(technique)}-"
                                       f"{panel.claim}")
                cells.append(f"{mean:9.4g} {_percent_text(more, paper):>30}")
            lines.append(f"{technique:{width}}" + "".join(f" {cell:>40}" for cell in cells))
    return "\n".join(lines) + "\n"


def _percent_text(more: stats.Estimate, paper: float | None) -> str:
    text = f"{more.value:+.1f} %" if np.isfinite(more.value) and more.value else ""
    if text and np.isfinite(more.low):
        text += f" [{more.low:.1f}, {more.high:.1f}]"
    return text + (f" (+{paper:g})" if paper is not None else "")


def draw(results: Results, out: Path, panels: list[Panel], claims_of: Claims,
         unnamed: str = "") -> list[Path]:
    """A row of panels per position, named as the spec's id, and the table. `unnamed` is the title
    of a row beside others that has neither a setting nor a variant to name it."""
    rows = rows_of(results)
    if len(rows) > 1:
        rows = [row if row.title else replace(row, title=unnamed) for row in rows]
    figure, grid = plt.subplots(len(rows), len(panels), squeeze=False,
                                figsize=(style.TWO_COLUMNS_IN, 0.8 + 1.5 * len(rows)))
    for number, panel in enumerate(panels):
        drawn: list[np.ndarray] = []
        for axes, row in zip(grid[:, number], rows):
            drawn += draw_panel(axes, row, panel)
            if number == 0:
                axes.set_ylabel("share")
                style.panel_label(axes, style.plain(row.title))
        scale_x(list(grid[:, number]), drawn)
        grid[-1, number].set_xlabel(panel.label)
    by_label = {handle.get_label(): handle for axes in grid.flat
                for handle in axes.get_legend_handles_labels()[0]}
    style.finish(figure, results, list(by_label.values()),
                 note="distributions over all seeds; markers: means; axes end at P99.5")
    name = results.spec_id.split("/")[-1]
    return style.save(figure, out, name) + [
        style.write_text(out, "table.txt", table_of(results, rows, panels, claims_of))]
