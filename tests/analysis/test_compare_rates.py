"""--find-rate: searches against systems whose highest rate is known, and what is said of bounds."""
from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from conftest import Spec

from analysis import slo_limits
from analysis.compare import comparing, output, rates
from analysis.compare.comparing import Comparison, Excluded
from analysis.compare.rates import Grid, Search
from analysis.compare.spec_file import SpecFile
from analysis.verb import VerbError

SPEC = """title: "t"
model: llama-2-7b
hardware: a800-80g
workload: {arrivals: {rate: 8}}
techniques: [mine, base]
"""


def searched(grid: Grid, start: float, is_within) -> tuple[Search, int]:
    """A search to its end, and the rounds that it took."""
    search, rounds = grid.search(start), 0
    while wanted := search.wanted():
        rounds += 1
        for index in wanted:
            search.take(index, is_within(grid.rate(index)))
    return search, rounds


@pytest.mark.parametrize("resolution", [0.01, 0.02, 0.1])
@pytest.mark.parametrize("start", [0.5, 8.0, 300.0])
def test_a_search_ends_within_its_resolution(resolution: float, start: float) -> None:
    grid = Grid(resolution)
    for limit in np.exp(np.random.default_rng(2).uniform(math.log(1), math.log(150), 30)):
        search, rounds = searched(grid, start, lambda rate: rate <= limit)
        found = grid.rate(search.rate_index)
        assert search.bound == "" and found <= limit < found * (1 + resolution) * (1 + 1e-5)
        assert search.inversions == 0 and rounds <= 22
        assert len(search.seen) <= 26


def test_what_never_changes_is_a_bound() -> None:
    grid = Grid(0.02)
    for answer, bound in ((True, ">"), (False, "<")):
        search, rounds = searched(grid, 8, lambda rate: answer)
        assert search.bound == bound and rounds <= 12
        factor = grid.rate(search.rate_index) / 8
        assert max(factor, 1 / factor) > 500


def test_inversions_around_the_rate_are_counted() -> None:
    """Within up to 10, and again from 12 to 13: an island above; and a hole below it."""
    grid = Grid(0.02)
    search, _ = searched(grid, 8, lambda rate: rate <= 10 or 12 <= rate <= 13)
    assert grid.rate(search.rate_index) == pytest.approx(10, rel=0.021)
    assert search.inversions == 1
    search, _ = searched(grid, 8, lambda rate: rate <= 10 and not 8.5 < rate < 9.2)
    assert search.inversions == 1


class FakeRunner:
    """Answers as systems whose latency is rate / highest: the limit 1 is crossed at the highest."""

    def __init__(self, folder: Path, highest, fails: str = "", invalid: str = "") -> None:
        self.folder, self.highest, self.calls = folder, highest, 0
        self.fails, self.invalid = fails, invalid
        self.points: set[tuple[str, float, int]] = set()

    def run(self, specs: dict[str, SpecFile], labels: list[str]) -> list[Excluded]:
        self.calls += 1
        for name, spec in specs.items():
            seed = int(name.removeprefix("rates-seed"))
            results = Spec(self.folder, name)
            for part in spec.value("sweep").value:
                entries = {key.value: value for key, value in part.value}
                label = entries["techniques"].value[0].value
                for node in entries["workload.arrivals.rate"].value:
                    rate = float(node.value)
                    if label == self.fails and self.calls > 1:
                        continue
                    self.points.add((label, rate, seed))
                    results.add(label, seed, {"workload.arrivals.rate": rate},
                                {"ttft_p99_s": rate / self.highest(label, seed)},
                                "INVALID" if label == self.invalid and rate > 16 else "VALID")
            results.columns["reasons"] = ["late" if status == "INVALID" else ""
                                          for status in results.columns["status"]]
            results.write()
        return ([Excluded(self.fails, None, "fails: boom")]
                if self.calls > 1 and self.fails in labels else [])


def find(tmp_path: Path, runner: FakeRunner, seeds: int = 5,
         resolution: float = 0.02) -> Comparison:
    path = tmp_path / "s.yaml"
    path.write_text(SPEC)
    grid, labels = Grid(resolution), ["mine", "base"]
    conditions = rates.parse_conditions("ttft_p99<=1", slo_limits.DEFAULT)
    searches, excluded = rates.find(SpecFile.read(path), runner, labels, list(range(seeds)), 8.0,
                                    grid, conditions, lambda text: None)
    return rates.compare(searches, excluded, labels, "base", grid,
                         Comparison("t", labels, "base", [("condition", "ttft_p99<=1")],
                                    slo_limits.DEFAULT, seeds, [()]))


def seeded(label: str, seed: int) -> float:
    """base about 20 requests/s, mine 1.5 times as much, with 2 % of noise of their own."""
    own = float(np.random.default_rng([seed, len(label)]).normal(0, 0.02))
    shared = float(np.random.default_rng(seed).normal(0, 0.2))
    return (30 if label == "mine" else 20) * math.exp(shared + own)


def test_rates_and_their_paired_ratio(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path, seeded)
    comparison = find(tmp_path, runner)
    mine, base = comparison.rows
    assert mine.verdict == comparing.BETTER and mine.percent.low < 50 < mine.percent.high
    assert mine.percent.high - mine.percent.low < 25  # seeds differ by 20 %, pairs by 3 %
    expected = math.exp(np.mean([math.log(seeded("base", seed)) for seed in range(5)]))
    assert base.value.value == pytest.approx(expected, rel=0.03)
    assert mine.value.value / base.value.value == pytest.approx(1 + mine.percent.value / 100)
    assert mine.difference.value == pytest.approx(mine.value.value - base.value.value)
    assert "times [1." in comparison.says[0] and comparison.says[0].endswith("distinguishable.")
    assert runner.calls <= 22  # rounds, of all techniques and seeds together
    assert max(map(len, output.table(comparison).splitlines())) <= 100
    assert "highest rate" in output.csv_text(comparison) and "<svg" in output.html(comparison)


def test_equal_systems_are_not_told_apart(tmp_path: Path) -> None:
    comparison = find(tmp_path, FakeRunner(tmp_path, lambda label, seed: 20 + seed))
    assert comparison.rows[0].verdict == comparing.EQUAL
    assert "the same to 2 %" in comparison.says[0]
    near = FakeRunner(tmp_path / "near",
                      lambda label, seed: seeded("base", seed) * (1.004 if label == "mine" else 1))
    assert find(tmp_path, near).rows[0].verdict in (comparing.UNCLEAR, comparing.EQUAL)


def test_two_seeds_on_one_step_of_a_coarse_grid_prove_nothing(tmp_path: Path) -> None:
    """Equal differences in steps of 50 % are the grid's, not the systems'."""
    runner = FakeRunner(tmp_path, lambda label, seed: 19 if label == "mine" else 11)
    row = find(tmp_path, runner, seeds=2, resolution=0.5).rows[0]
    assert row.percent.value > 0 and row.verdict == comparing.UNCLEAR
    assert row.percent.low < 0


def test_bounds_are_said_as_bounds(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path, lambda label, seed: 1e9 if label == "mine" else 20)
    comparison = find(tmp_path, runner)
    mine = comparison.rows[0]
    assert mine.bound == ">" and not math.isfinite(mine.percent.low) and math.isnan(mine.p)
    assert mine.verdict == comparing.UNCLEAR
    assert "beyond" in comparison.says[0] and "no ratio to base" in comparison.says[0]
    assert "> " in output.table(comparison)
    runner = FakeRunner(tmp_path / "low", lambda label, seed: 1e-9 if label == "mine" else 20)
    assert "at no rate that was searched" in find(tmp_path, runner).says[0]


def test_one_seed_has_a_ratio_without_an_interval(tmp_path: Path) -> None:
    comparison = find(tmp_path, FakeRunner(tmp_path, seeded), seeds=1)
    assert comparison.rows[0].verdict == comparing.UNCLEAR
    assert "(one seed)" in comparison.says[0] and "no interval" in comparison.says[0]


def test_techniques_that_fail_or_are_invalid_are_left_out(tmp_path: Path) -> None:
    for kind, reason in (("fails", "fails: boom"), ("invalid", "INVALID at ")):
        runner = FakeRunner(tmp_path / kind, seeded, **{kind: "mine"})
        comparison = find(tmp_path, runner)
        assert [one.technique for one in comparison.excluded] == ["mine"]
        assert comparison.excluded[0].reason.startswith(reason)
        assert [row.technique for row in comparison.rows] == ["base"]
        assert comparison.says[0].startswith("mine is left out: ")
        baseline_out = find(tmp_path, FakeRunner(tmp_path / f"{kind}2", seeded, **{kind: "base"}))
        assert baseline_out.rows[0].percent is None


@pytest.mark.parametrize("text, source, values, holds", [
    ("attainment>=0.9", "slo_attainment[latency_per_token=0.5]", [0.89, 0.9, math.nan], [0, 1, 0]),
    ("ttft_p99 <= 1", "ttft_p99_s", [0.5, 1, 1.1], [1, 1, 0]),
    ("latency_per_token_mean_s<=5e-1", "latency_per_token_mean_s", [0.5, math.nan, 1], [1, 0, 0]),
    ("served_share>=0.95", "served_share", [1, 0.9, 0.95], [1, 0, 1])])
def test_conditions(text: str, source: str, values: list[float], holds: list[int]) -> None:
    condition, = rates.parse_conditions(text, slo_limits.DEFAULT)
    assert condition.source == source
    assert condition.holds(np.array(values)).tolist() == [bool(one) for one in holds]


@pytest.mark.parametrize("text", ["", "ttft_p99", "ttft_p99=1", "ttft_p99<1", "nope<=1",
                                  "ttft_p99<=e", "ttft_p99<=1,", "ttft_p99<=1 ttft_p50<=1"])
def test_bad_conditions_are_refused(text: str) -> None:
    with pytest.raises(VerbError) as caught:
        rates.parse_conditions(text, slo_limits.DEFAULT)
    assert "\n" not in str(caught.value)
