"""The twin beside what S-LoRA's authors measured on an A10G, of S-LoRA and of Hugging Face PEFT,
with the same requests: throughput, latency and time to first token, and how far apart they are.

A run is saturated where measured throughput is below 90 % of the rate at which requests came;
`judged` are those whose workloads profiles fitted to these systems have not seen. Errors are
|twin / measured - 1|; means beyond the limits are marked.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import published, style
from analysis.figures import _twin
from analysis.results import Results

COLUMNS = {"throughput": ("total_tokens_per_s", "measured.tokens_per_s"),  # ours, published
           "latency": ("latency_mean_s", "measured.latency_s"),
           "TTFT": ("ttft_mean_s", "measured.ttft_s")}
UNITS = {"throughput": "tokens/s", "latency": "s", "TTFT": "s"}
LIMITS = {"throughput": 4.0, "latency": 15.0, "TTFT": 25.0}  # percent
SYSTEMS = {"slora": ("S-LoRA", "slora_a10g"), "peft-2023": ("PEFT", "peft_a10g")}  # by technique
SETTINGS = {("slora", "[8]"): ("S-LoRA, rank 8", style.BLUE, "o"),
            ("slora", "[64,32,16,8]"): ("S-LoRA, ranks 64 to 8", style.VERMILION, "^"),
            ("peft-2023", "[8]"): ("PEFT, rank 8", style.GREEN, "s"),
            ("peft-2023", "[64,32,16,8]"): ("PEFT, ranks 64 to 8", style.PURPLE, "D")}
REGIMES = ("not saturated", "saturated")
HEADS = ["runs", "number", *(f"{name}: mean, most %" for name in COLUMNS), ""]
WIDTHS = (24, 8, 26, 24, 24, 19)


@dataclass(frozen=True)
class Run:
    """A setting of one system: what was measured of it, and the twin's mean over seeds."""

    technique: str
    part: str
    ranks: str
    adapters: int
    exponent: float
    trace: str
    offered_per_s: float
    measured: dict[str, float]
    twin: dict[str, float]

    @property
    def regime(self) -> str:
        return REGIMES[self.measured["throughput"] < _twin.STARVED * self.offered_per_s]

    def error(self, name: str) -> float:
        """Percent."""
        return 100 * abs(self.twin[name] / self.measured[name] - 1)


def _published(technique: str) -> dict[tuple, tuple[str, dict[str, float]]]:
    """Of a system, by setting: what its rows are for, and the mean of those that share one."""
    rows: dict[tuple, list[published.Row]] = {}
    for row in published.table(SYSTEMS[technique][1]):
        place = (row["workload.adapters.ranks"].replace(" ", ","),
                 int(row["workload.adapters.count"]), float(row["workload.popularity.exponent"]),
                 Path(row["workload.arrivals.trace"]).stem)
        rows.setdefault(place, []).append(row)
    found = {}
    for place, same in rows.items():
        later = [row for row in same if row["part"] != "earlier"] or same
        found[place] = (later[0]["part"], {name: float(np.mean([float(row[theirs])
                                                                for row in later]))
                                           for name, (_, theirs) in COLUMNS.items()})
    return found


def runs(results: Results) -> list[Run]:
    """The spec's positions that were measured, in the spec's order."""
    columns = [results.columns["technique"].tolist()]
    columns += [results.columns[results.sweep(name)].tolist()
                for name in ("ranks", "count", "exponent", "trace")]
    known = {technique: _published(technique) for technique in SYSTEMS}
    at: dict[tuple, list[int]] = {}
    for index, (technique, ranks, count, exponent, trace) in enumerate(zip(*columns)):
        place = (str(ranks), int(count), float(exponent), Path(str(trace)).stem)
        if place in known.get(technique, ()) and results.columns["status"][index] == "VALID":
            at.setdefault((technique, place), []).append(index)
    if not at:
        raise results.error("none of its points is a setting of analysis/published/slora_a10g.csv")
    found = []
    for (technique, place), indices in at.items():
        point = results.point(indices[0])
        tokens = float(np.sum(point.read("requests/prompt_tokens"))
                       + np.sum(point.read("requests/output_tokens")))
        last_s = float(point.read("requests/scheduled").max()) / 1e9
        twin = {name: float(np.mean(results.metric(ours)[indices]))
                for name, (ours, _) in COLUMNS.items()}
        part, measured = known[technique][place]
        found.append(Run(technique, part, *place, tokens / last_s, measured, twin))
    return found


def rows_of(found: list[Run]) -> list[list[str]]:
    """The table's cells, for each system: a row for each load, for all, and for those judged."""
    rows = []
    for technique, (system, _) in SYSTEMS.items():
        for group in (*REGIMES, "all", "judged"):
            own = [run for run in found if run.technique == technique
                   and group in (run.regime, run.part, "all")]
            if not own:
                continue
            errors = {name: [run.error(name) for run in own] for name in COLUMNS}
            good = all(np.mean(errors[name]) <= limit for name, limit in LIMITS.items())
            rows.append([f"{system}, {group}", str(len(own)),
                         *(f"{np.mean(errors[name]):.1f}, {max(errors[name]):.1f}"
                           for name in COLUMNS), "" if good else "beyond the limits"])
    return rows


def order_of(found: list[Run]) -> str:
    """Whether S-LoRA is ahead of PEFT in the twin wherever it was; empty without both."""
    by_place: dict[tuple, dict[str, Run]] = {}
    for run in found:
        place = (run.ranks, run.adapters, run.exponent, run.trace)
        by_place.setdefault(place, {})[run.technique] = run
    both = [systems for systems in by_place.values() if len(systems) == len(SYSTEMS)]
    alike = sum((systems["slora"].twin[name] > systems["peft-2023"].twin[name])
                == (systems["slora"].measured[name] > systems["peft-2023"].measured[name])
                for systems in both for name in COLUMNS)
    return (f"S-LoRA and PEFT are in the measured order in {alike} of {len(COLUMNS) * len(both)} "
            f"comparisons: three metrics of {len(both)} settings") if both else ""


def table_of(results: Results, found: list[Run]) -> str:
    def line(cells: list[str]) -> str:
        return "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS))

    lines = [f"{results.spec_id}: twin / measured, and the error in %", line(HEADS),
             *map(line, rows_of(found)), *filter(None, [order_of(found)]), ""]
    heads = "".join(f"{name + ', ' + unit:>38}" for name, unit in UNITS.items())
    lines += [f"{'system':8}{'ranks':14}{'adapters':>9}{'exponent':>9}  {'requests':12}{'load':14}"
              f"{'part':9}{heads}"]
    for run in found:
        cells = [f"{run.twin[name]:.4g} / {run.measured[name]:.4g}"
                 f" ({100 * (run.twin[name] / run.measured[name] - 1):+.1f})" for name in UNITS]
        lines.append(f"{SYSTEMS[run.technique][0]:8}{run.ranks:14}{run.adapters:9d}"
                     f"{run.exponent:9g}  {run.trace:12}{run.regime:14}{run.part:9}"
                     + "".join(f"{cell:>38}" for cell in cells))
    return "\n".join(lines) + "\n"


def scatter(axes: plt.Axes, found: list[Run], name: str) -> None:
    """Twin over measured, hollow where saturated."""
    for run in found:
        _, color, marker = SETTINGS[run.technique, run.ranks]
        hollow = run.regime == "saturated"
        axes.plot(run.measured[name], run.twin[name], linestyle="none", marker=marker,
                  markersize=3.6, color=color, markeredgewidth=0.8,
                  markerfacecolor="white" if hollow else color)
    _twin.diagonal(axes, [side[name] for run in found for side in (run.measured, run.twin)])
    axes.set(xlabel=f"measured on an A10G ({UNITS[name]})", ylabel=f"twin ({UNITS[name]})")
    style.panel_label(axes, name)


def draw(results: Results, out: Path) -> list[Path]:
    """Three scatter plots over the table of errors; every run in the text."""
    found = runs(results)
    cells = rows_of(found)
    figure, panels = plt.subplot_mosaic([list(UNITS), ["table"] * len(UNITS)],
                                        height_ratios=[2.2, 0.22 * len(cells) + 0.22],
                                        figsize=(style.TWO_COLUMNS_IN, 3.0 + 0.13 * len(cells)))
    for name in UNITS:
        scatter(panels[name], found, name)
    style.cell_table(panels["table"], cells, HEADS, [0.2, 0.08, 0.2, 0.18, 0.18, 0.16],
                     red=[bool(row[-1]) for row in cells])
    drawn = {(run.technique, run.ranks) for run in found}
    handles = [plt.Line2D([], [], linestyle="none", color=color, marker=marker, markersize=3.6,
                          label=text)
               for setting, (text, color, marker) in SETTINGS.items() if setting in drawn]
    handles += [plt.Line2D([], [], linestyle="none", color=style.GREY, marker="s", markersize=3.6,
                           markerfacecolor=face, label=text)
                for text, face in zip(REGIMES, (style.GREY, "white"))]
    limits = ", ".join(f"{limit:g} % of {name}" for name, limit in LIMITS.items())
    style.finish(figure, results, handles, note="saturated: served below "
                 f"{100 * _twin.STARVED:g} % of what came; limits: {limits}")
    return style.save(figure, out, results.spec_id.split("/")[-1]) + [
        style.write_text(out, "table.txt", table_of(results, found))]
