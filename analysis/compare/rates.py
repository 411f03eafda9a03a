"""--find-rate: the highest arrival rate at which conditions hold, by technique and seed.

Rates are on a grid of ratio 1 + resolution. From the spec's own rate a search goes up or down by
factors of two until the conditions change, bisects to neighbours on the grid, and then looks at
four rates around them, which says whether a higher rate is within or a lower one is not. A rate at
which it stops without a change is a bound. Every round is one `servelab run` of all techniques and
seeds, and all its points are kept.
"""
from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import numpy as np

from analysis import service, slo_limits, stats
from analysis.compare import comparing
from analysis.compare.comparing import Comparison, Excluded, Metric, Row
from analysis.compare.running import Runner
from analysis.compare.sentences import left_out, number
from analysis.compare.spec_file import SpecFile
from analysis.metrics import DERIVED
from analysis.h5_file import as_text
from analysis.results import Results
from analysis.slo_limits import Limits
from analysis.verb import VerbError

REACH = 1024.0                  # a search goes so far from its start, in both directions
AROUND = (0.8, 0.9, 1.1, 1.25)  # of the rate that was found: where a search looks for inversions
NAME = "rates"
METRIC = Metric("highest rate", "requests/s", True, "rate")
_CONDITION = re.compile(r"\s*([a-z0-9_]+)\s*(<=|>=)\s*([-+0-9.eE]+)\s*")
_LATENCIES = ("ttft", "tpot", "itl", "latency", "latency_per_token", "queueing")


@dataclass(frozen=True)
class Condition:
    """`ttft_p99<=1`: a metric of a point, in the units of Results, and its limit."""

    source: str
    is_upper: bool
    limit: float
    text: str

    def holds(self, values: np.ndarray) -> np.ndarray:
        """NaN, where nothing was measured, does not hold."""
        with np.errstate(invalid="ignore"):
            return values <= self.limit if self.is_upper else values >= self.limit


def parse_conditions(text: str, limits: Limits) -> list[Condition]:
    """Conditions with commas between them. `attainment` is that of the SLO. Raises VerbError."""
    known = {f"{name}_{of}_s": f"{name}_{of}" for name in _LATENCIES
             for of in ("mean", "p50", "p90", "p95", "p99")}
    known |= {name: name for name in DERIVED}
    of_slo = f"[{slo_limits.text(limits)}]"
    sources = {short: source for source, short in known.items()} | {name: name for name in known}
    for source in service.SLO_METRICS:
        sources[source] = source + of_slo
    sources |= {"attainment": sources["slo_attainment"], "goodput": sources["goodput_per_s"]}
    found = []
    for part in text.split(","):
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise VerbError(f"--find-rate: '{part.strip()}' is not metric<=limit or "
                            "metric>=limit, such as attainment>=0.9 or ttft_p99<=1")
        name, operator, value = match.groups()
        if name not in sources:
            raise VerbError(f"--find-rate: unknown metric '{name}'; "
                            f"{slo_limits.nearest(name, ['attainment', *known.values()])}")
        try:
            limit = float(value)
        except ValueError:
            raise VerbError(f"--find-rate: '{value}' is not a number") from None
        found.append(Condition(sources[name], operator == "<=", limit,
                               f"{name}{operator}{limit:g}"))
    return found


@dataclass
class Search:
    """One technique with one seed. Rates are indices on the grid."""

    start: int
    step: int           # a factor of two
    reach: int
    around: list[int]   # AROUND, as distances
    low: int | None = None   # the highest known to be within
    high: int | None = None  # the lowest known not to be
    seen: dict[int, bool] = field(default_factory=dict)

    @property
    def bound(self) -> str:
        """"" when the rate was found; ">" or "<" when it is beyond what was looked at."""
        return "<" if self.low is None else ">" if self.high is None else ""

    @property
    def rate_index(self) -> int:
        at = self.low if self.low is not None else self.high
        return self.start if at is None else at

    def wanted(self) -> list[int]:
        """What is to be looked at next; nothing when all is known."""
        if self.start not in self.seen:
            return [self.start]
        if self.low is None:
            down = (self.high or 0) - self.step
            return [down] if self.start - down <= self.reach else []
        if self.high is None:
            up = self.low + self.step
            return [up] if up - self.start <= self.reach else []
        if self.high - self.low > 1:
            return [(self.low + self.high) // 2]
        return [at for at in dict.fromkeys(self.low + far for far in self.around)
                if at not in self.seen]

    def take(self, index: int, is_within: bool) -> None:
        self.seen[index] = is_within
        is_settled = (self.low is not None and self.high is not None
                      and self.high - self.low == 1)
        if is_settled:
            return
        if is_within:
            self.low = index
        else:
            self.high = index

    @property
    def inversions(self) -> int:
        """Rates that were looked at and are on the wrong side of the one that was found."""
        if self.low is None or self.high is None:
            return 0
        return sum(is_within != (index <= self.low) for index, is_within in self.seen.items())


class Grid:
    def __init__(self, resolution: float) -> None:
        self.resolution = resolution

    def rate(self, index: int) -> float:
        return float(f"{(1 + self.resolution) ** index:.6g}")

    def index(self, rate: float) -> int:
        return round(math.log(rate) / math.log1p(self.resolution))

    def search(self, start: float) -> Search:
        return Search(self.index(start), max(1, self.index(2.0)), self.index(REACH),
                      [self.index(factor) for factor in AROUND])


def find(spec: SpecFile, runner: Runner, labels: list[str], seeds: list[int], start: float,
         grid: Grid, conditions: list[Condition],
         progress: Callable[[str], None]) -> tuple[dict[tuple[str, int], Search], list[Excluded]]:
    """Searches of the techniques that ran, by label and seed, and those that are left out. Raises
    VerbError, Stopped, ResultsError."""
    searches = {(label, seed): grid.search(start) for label in labels for seed in seeds}
    excluded: list[Excluded] = []
    rounds = 0
    while wanted := {at: search.wanted() for at, search in searches.items() if search.wanted()}:
        rounds += 1
        points = sum(map(len, wanted.values()))
        progress(f"round {rounds}: {points} points, {len(wanted)} of {len(searches)} searches")
        specs = {}
        for seed in sorted({seed for _, seed in wanted}):
            rates = {label: [grid.rate(index) for index in
                             sorted({*searches[label, seed].seen, *wanted.get((label, seed), [])})]
                     for label in labels if (label, seed) in searches}
            specs[f"{NAME}-seed{seed}"] = spec.search(rates, seed)
        lost = runner.run(specs, [label for label in labels
                                  if any(at[0] == label for at in searches)])
        lost += _take(searches, wanted, runner.folder, grid, conditions,
                      {one.technique for one in lost})
        excluded += lost
        for one in lost:
            searches = {at: search for at, search in searches.items() if at[0] != one.technique}
    return searches, excluded


def _take(searches: dict[tuple[str, int], Search], wanted: dict[tuple[str, int], list[int]],
          folder: Path, grid: Grid, conditions: list[Condition], lost: set[str]) -> list[Excluded]:
    """Reads what a round computed; returns techniques with INVALID points."""
    excluded: dict[str, Excluded] = {}
    for seed in sorted({seed for _, seed in wanted}):
        if all(label in lost for label, one in searches if one == seed):
            continue
        results = Results.load(f"{NAME}-seed{seed}", folder)
        rates = results.columns[results.sweep("rate")].astype(float)
        new = np.zeros(len(rates), dtype=bool)
        for (label, _), indices in ((at, i) for at, i in wanted.items() if at[1] == seed):
            for index in indices:
                new |= ((results.columns["technique"] == label)
                        & np.isclose(rates, grid.rate(index), rtol=1e-9))
        fresh, rates = results.subset(new), rates[new]
        within = np.ones(len(rates), dtype=bool)
        for condition in conditions:
            within &= condition.holds(fresh.metric(condition.source))
        for at, label in enumerate(fresh.columns["technique"].tolist()):
            if fresh.columns["status"][at] != "VALID":
                excluded.setdefault(label, Excluded(
                    label, None, f"INVALID at {rates[at]:g} requests/s, seed {seed}: "
                    f"{fresh.columns.get('reasons', [''] * len(rates))[at]}"))
            else:
                searches[label, seed].take(grid.index(rates[at]), bool(within[at]))
    return list(excluded.values())


def has_fixed_requests(folder: Path, seed: int) -> bool:
    """Whether every rate has the same number of requests."""
    point = Results.load(f"{NAME}-seed{seed}", folder).point(0)
    workload = json.loads(as_text(point.read("spec/effective").item())).get("workload", {})
    return float(workload.get("requests", 0)) > 0


def compare(searches: dict[tuple[str, int], Search], excluded: list[Excluded], labels: list[str],
            baseline: str, grid: Grid, comparison: Comparison) -> Comparison:
    """Fills in rows and sentences."""
    comparison.excluded = excluded
    found = {label: {seed: search for (of, seed), search in searches.items() if of == label}
             for label in labels}
    base = found[baseline]
    for label in labels:
        if not found[label]:
            continue
        of = found[label]
        logs = np.log([grid.rate(search.rate_index) for search in of.values()])
        value = stats.geometric_ci(np.exp(logs))
        row = Row(METRIC, (), label, value, bound=_bound(of))
        if label != baseline and base:
            _set_ratio(row, of, base, grid)
        comparison.rows.append(row)
    comparing.judge(comparison.rows)
    comparison.says = _says(comparison, found, grid)
    return comparison


def _bound(of: dict[int, Search]) -> str:
    signs = {search.bound for search in of.values()} - {""}
    return signs.pop() if len(signs) == 1 else "?" if signs else ""


def _set_ratio(row: Row, of: dict[int, Search], base: dict[int, Search], grid: Grid) -> None:
    """The ratio of rates, as percent, from the paired differences of their logarithms. Both rates
    are known to a step of the grid; what that does to a difference, whose error then has a standard
    deviation of step / sqrt(6), bounds the standard error from below."""
    seeds = sorted(of.keys() & base.keys())
    steps = np.array([of[seed].rate_index - base[seed].rate_index for seed in seeds])
    step, n = math.log1p(grid.resolution), len(seeds)
    ratio, by_t = stats.paired_ci(steps * step), stats.mean_ci(steps * step)
    half = max(by_t.half_width, stats.t_quantile(n) * step / math.sqrt(6 * n))
    is_bound = bool(_bound(of) or _bound(base))
    ends = ((math.nan, math.nan) if is_bound or n < 2 else
            (min(ratio.low, ratio.value - half), max(ratio.high, ratio.value + half)))
    shares = [math.expm1(end) for end in (ratio.value, *ends)]
    row.percent = stats.Estimate(*(100 * share for share in shares), n)
    scale = math.exp(float(np.mean([math.log(grid.rate(search.rate_index))
                                    for search in base.values()])))
    row.difference = stats.Estimate(*(scale * share for share in shares), n)
    row.verdict = comparing.UNCLEAR if np.any(steps) or is_bound else comparing.EQUAL
    if is_bound:
        row.note = "a rate is beyond what was searched"
    elif n > 1:
        row.p = stats.t_p_value(stats.Estimate(ratio.value, ratio.value - half,
                                               ratio.value + half, n))


def _says(comparison: Comparison, found: dict[str, dict[int, Search]], grid: Grid) -> list[str]:
    told = left_out(comparison)
    told += [_told(row, comparison, grid) for row in comparison.rows]
    for label, of in found.items():
        inversions = [search.inversions for search in of.values() if search.inversions]
        if inversions:
            total = sum(inversions)
            told.append(
                f"{label} is not monotone: {total} inversion{'s' if total > 1 else ''} in "
                f"{len(inversions)} of {len(of)} seeds (a higher rate within, or a lower one not); "
                "its rate is where the search found a change.")
    return told


def _told(row: Row, comparison: Comparison, grid: Grid) -> str:
    condition, rate = dict(comparison.facts)["condition"], number(row.value.value)
    n, base = row.value.n, comparison.baseline
    text = {"": f"{row.technique} holds {condition} up to {rate} requests/s",
            ">": f"{row.technique} holds {condition} at every rate that was searched, or in some "
                 f"seeds: beyond {rate} requests/s",
            "<": f"{row.technique} holds {condition} at no rate that was searched, or in some "
                 f"seeds not: below {rate} requests/s",
            "?": f"{row.technique} holds {condition} at every rate that was searched in some seeds "
                 "and at none in others"}[row.bound]
    text += f" (geometric mean over {n} seeds)" if n > 1 else " (one seed)"
    if row.percent is None:
        return text + "."
    if row.note:
        return f"{text}; no ratio to {base}: {row.note}."
    ratio, low, high = (1 + end / 100 for end in (row.percent.value, row.percent.low,
                                                  row.percent.high))
    bounds = f" [{number(low)}, {number(high)}]" if math.isfinite(low) else ""
    meaning = {comparing.BETTER: "distinguishable", comparing.WORSE: "distinguishable",
               comparing.EQUAL: f"the same to {100 * grid.resolution:g} %"}.get(
        row.verdict, "cannot be told apart" if n > 1 else "no interval")
    return f"{text}: {number(ratio)} times{bounds} {base}'s, {meaning}."
