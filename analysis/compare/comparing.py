"""Paired differences of techniques to a baseline, per metric and sweep position.

What is judged is the ratio of the means, since seeds that bring more load move both sides by the
same factor; of shares, and where a mean is 0, it is the difference. It is distinguishable when its
95 % interval (stats.paired_ratio_ci, stats.paired_ci) leaves out "none", and its p value by the
paired t test is at most 5 % after Benjamini and Hochberg's rule over all comparisons made. A
technique with a point that is INVALID is left out at that position, all seeds: the rest of them
would be a selection.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis import slo_limits, stats
from analysis.results import Results
from analysis.slo_limits import Limits

FALSE_ALARMS = 1 - stats.CONFIDENCE
SAME = 1e-9  # relative: below this, values differ by rounding only
BETTER, WORSE, UNCLEAR, EQUAL, ALONE = "better", "worse", "unclear", "equal", ""
Position = tuple[tuple[str, str], ...]  # swept settings


@dataclass(frozen=True)
class Metric:
    """What a row compares; `source` is a metric of Results, in `unit` after multiplication."""

    title: str
    unit: str
    higher_is_better: bool
    source: str
    scale: float = 1.0
    is_headline: bool = False  # named in sentences

    @property
    def is_share(self) -> bool:
        """In percent itself: differences are points."""
        return self.unit == "%"

    @property
    def heading(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


def _percentiles(title: str, name: str, headlines: tuple[str, ...]) -> list[Metric]:
    return [Metric(f"{title} {p}", "s", False, f"{name}_{p.lower()}_s", 1, p in headlines)
            for p in ("P50", "P90", "P99")]


def catalogue(limits: Limits) -> list[Metric]:
    """Every metric of a comparison, in the order of its table."""
    of_slo = f"[{slo_limits.text(limits)}]"
    return [
        Metric("requests/s", "", True, "requests_per_s", 1, True),
        Metric("output tokens/s", "", True, "output_tokens_per_s", 1, True),
        Metric("total tokens/s", "", True, "total_tokens_per_s"),
        Metric("goodput", "/s", True, f"goodput_per_s{of_slo}", 1, True),
        Metric("SLO attainment", "%", True, f"slo_attainment{of_slo}", 100, True),
        *_percentiles("TTFT", "ttft", ("P50", "P99")),
        *_percentiles("TPOT", "tpot", ("P99",)),
        *_percentiles("ITL", "itl", ("P99",)),
        *_percentiles("latency", "latency", ("P50", "P99")),
        Metric("latency per token", "s", False, "latency_per_token_mean_s", 1, True),
        Metric("Jain of tokens served", "", True, "jain_served"),
        Metric("Jain of latency", "", True, "jain_latency", 1, True),
        Metric("TTFT P99, worst/median", "", False, "ttft_p99_worst_over_median"),
        Metric("served in time", "%", True, "served_share", 100),
        Metric("starved", "%", False, "starved", 100),
        Metric("starved adapters", "%", False, "starved_adapters_share", 100),
        Metric("longest wait", "s", False, "longest_wait_s", 1, True),
        Metric("rejected", "", False, "requests_rejected"),
        Metric("unfinished", "", False, "requests_unfinished"),
    ]


@dataclass
class Row:
    """One metric of one technique at one position, beside the baseline's."""

    metric: Metric
    position: Position
    technique: str
    value: stats.Estimate                      # mean over seeds
    difference: stats.Estimate | None = None   # to the baseline; None: nothing to compare with
    percent: stats.Estimate | None = None      # 100 (ratio - 1); None of shares, and of 0
    p: float = math.nan
    p_adjusted: float = math.nan
    verdict: str = ALONE
    bound: str = ""  # of the value: ">" or "<" where the true one is beyond it, "?" either way
    note: str = ""

    @property
    def shown(self) -> stats.Estimate:
        """What is judged: percent, or the difference where there are none."""
        assert self.difference is not None
        return self.difference if self.percent is None else self.percent


@dataclass(frozen=True)
class Excluded:
    technique: str
    position: Position | None  # None: at all of them
    reason: str


@dataclass
class Comparison:
    """Everything that is told of one comparison."""

    title: str
    techniques: list[str]
    baseline: str
    facts: list[tuple[str, str]]  # what it was on, for people
    limits: Limits
    seeds: int
    positions: list[Position]
    rows: list[Row] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)
    says: list[str] = field(default_factory=list)  # in sentences

    def select(self, **wanted: Any) -> list[Row]:
        return [row for row in self.rows
                if all(getattr(row, name) == value for name, value in wanted.items())]

    @property
    def metrics(self) -> list[Metric]:
        return list(dict.fromkeys(row.metric for row in self.rows))


def position_text(position: Position) -> str:
    names = [name.split(".")[-1] for name, _ in position]
    return " ".join(f"{short if names.count(short) == 1 else name}={value}"
                    for short, (name, value) in zip(names, position))


def positions_of(results: Results) -> list[Position]:
    """By row of the columns: the values of the settings that vary."""
    varying = [name for name in results.sweep_columns
               if len(set(results.columns[name].tolist())) > 1]
    return [tuple((name[len("sweep."):], str(results.columns[name][index])) for name in varying)
            for index in range(len(results.columns["key"]))]


def compare(results: Results, baseline: str, limits: Limits,
            excluded: list[Excluded]) -> Comparison:
    """Every metric that has a value anywhere. `excluded`: techniques that `results` lack, with the
    reason. Raises ResultsError."""
    where = positions_of(results)
    comparison = Comparison(
        results.attributes.get("title", results.spec_id), results.techniques, baseline,
        [(name, results.attributes.get(name, "")) for name in ("model", "hardware", "backend",
                                                               "trace")],
        limits, len(results.seeds), list(dict.fromkeys(where)), excluded=list(excluded))
    cells: dict[tuple[Position, str], dict[int, int]] = {}
    for index, technique in enumerate(results.columns["technique"].tolist()):
        cell = cells.setdefault((where[index], technique), {})
        if cell.setdefault(int(results.columns["seed"][index]), index) != index:
            raise results.error(f"several points of {technique} with one seed at one position")
    for (position, technique), cell in list(cells.items()):
        if reason := _why_invalid(results, cell):
            comparison.excluded.append(Excluded(technique, position, reason))
            del cells[position, technique]
    for metric in catalogue(limits):
        values = metric.scale * results.metric(metric.source)
        if np.isfinite(values).any():
            for position in comparison.positions:
                _add_rows(comparison, metric, position, cells, values)
    judge(comparison.rows)
    return comparison


def _why_invalid(results: Results, cell: dict[int, int]) -> str:
    bad = {seed: index for seed, index in cell.items()
           if results.columns["status"][index] != "VALID"}
    if not bad:
        return ""
    reasons = str(results.columns["reasons"][min(bad.values())]
                  if "reasons" in results.columns else "")
    return (f"INVALID with seed{'s' if len(bad) > 1 else ''} {', '.join(map(str, sorted(bad)))}"
            + (f": {reasons}" if reasons else ""))


def _add_rows(comparison: Comparison, metric: Metric, position: Position,
              cells: dict[tuple[Position, str], dict[int, int]], values: np.ndarray) -> None:
    base = cells.get((position, comparison.baseline))
    for technique in comparison.techniques:
        cell = cells.get((position, technique))
        if cell is None:
            continue
        own = values[list(cell.values())]
        row = Row(metric, position, technique, stats.mean_ci(own[np.isfinite(own)]))
        if technique != comparison.baseline and base is not None:
            seeds = sorted(cell.keys() & base.keys())
            set_difference(row, values[[cell[seed] for seed in seeds]],
                           values[[base[seed] for seed in seeds]])
        comparison.rows.append(row)


def set_difference(row: Row, of: np.ndarray, base: np.ndarray) -> None:
    """Fills in the difference of paired values; judge() then says what it means."""
    both = np.isfinite(of) & np.isfinite(base)
    if not both.all():
        row.note = f"{np.count_nonzero(both)} of {both.size} seeds have a value in both"
    of, base = of[both], base[both]
    if not of.size:
        return
    differences = np.where(np.isclose(of, base, rtol=SAME, atol=0), 0.0, of - base)
    row.difference = stats.paired_ci(differences)
    row.p = stats.t_p_value(stats.mean_ci(differences))
    row.verdict = UNCLEAR if np.any(differences) else EQUAL
    ratio, p = stats.paired_ratio_ci(base + differences, base)
    if not row.metric.is_share and math.isfinite(ratio.value):
        row.percent = stats.Estimate(*(100 * (end - 1) for end in (ratio.value, ratio.low,
                                                                   ratio.high)), ratio.n)
        row.p = p


def judge(rows: list[Row]) -> None:
    """Marks what is distinguishable, among all comparisons of values that differ."""
    judged = [row for row in rows if row.verdict == UNCLEAR and math.isfinite(row.p)]
    for row, p in zip(judged, stats.adjusted([row.p for row in judged])):
        row.p_adjusted = float(p)
        is_beyond = not row.shown.low <= 0 <= row.shown.high
        if p <= FALSE_ALARMS and is_beyond:
            is_higher = row.shown.value > 0
            row.verdict = BETTER if is_higher == row.metric.higher_is_better else WORSE
