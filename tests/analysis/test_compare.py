"""servelab compare: results to verdicts, tables, pages and sentences. test_compare_options.py has
what comes before the results, tests/specs/compare_test.cc whole runs."""
from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Callable

import numpy as np
import pytest
from conftest import Spec
from test_service import random_run

from analysis import slo_limits, stats
from analysis.compare import comparing, output, sentences
from analysis.compare.comparing import BETTER, EQUAL, UNCLEAR, WORSE, Comparison, Excluded
from analysis.results import Results

Factor = Callable[[str, str, int], float]  # technique, metric, seed -> what its value is times
METRICS = {"requests_per_s": 10.0, "output_tokens_per_s": 1000.0, "total_tokens_per_s": 3000.0,
           "ttft_p50_s": 0.1, "ttft_p90_s": 0.4, "ttft_p99_s": 0.8, "tpot_p50_s": 0.02,
           "tpot_p90_s": 0.03, "tpot_p99_s": 0.05, "itl_p50_s": 0.02, "itl_p90_s": 0.03,
           "itl_p99_s": 0.06, "latency_p50_s": 3.0, "latency_p90_s": 6.0, "latency_p99_s": 9.0,
           "latency_per_token_mean_s": 0.04, "requests_rejected": 0.0, "requests_unfinished": 0.0,
           "duration_s": 80.0}


def noise(*of: object) -> float:
    return float(np.random.default_rng(list(repr(of).encode())).normal())


def make(root: Path, factor: Factor, techniques: tuple[str, ...] = ("mine", "slora", "dlora"),
         seeds: int = 5, positions: tuple[int, ...] = (4,),
         invalid: tuple[str, int, int] | None = None) -> Results:
    """Seeds differ by 20 %, which all techniques share."""
    spec = Spec(root, "runs")
    for position in positions:
        for technique in techniques:
            for seed in range(seeds):
                shared = 1 + 0.2 * noise(seed, position)
                spec.add(technique, seed, {"workload.popularity.skewness": position},
                         {name: value * shared * factor(technique, name, seed)
                          for name, value in METRICS.items()},
                         "INVALID" if invalid == (technique, position, seed) else "VALID",
                         random_run(1000 + seed, 60))
    spec.columns["reasons"] = ["clocks went wrong" if status == "INVALID" else ""
                               for status in spec.columns["status"]]
    spec.write(title="Test")
    return Results.load("runs", root)


def planted(technique: str, metric: str, seed: int) -> float:
    """mine: P99 TTFT 12 % lower, tokens/s 3 % lower; TPOT as the others, but for noise."""
    own = 0.004 * noise(technique, metric, seed)
    return 1 + own + {("mine", "ttft_p99_s"): -0.12,
                      ("mine", "output_tokens_per_s"): -0.05}.get((technique, metric), 0.0)


def compared(results: Results, baseline: str = "dlora",
             excluded: tuple[Excluded, ...] = ()) -> Comparison:
    comparison = comparing.compare(results, baseline, slo_limits.DEFAULT, list(excluded))
    comparison.says = sentences.sentences(comparison)
    return comparison


def row(comparison: Comparison, metric: str, technique: str) -> comparing.Row:
    found = [row for row in comparison.select(technique=technique) if row.metric.source == metric]
    assert len(found) == 1
    return found[0]


def test_a_planted_difference_is_found_quantified_and_said(tmp_path: Path) -> None:
    comparison = compared(make(tmp_path, planted))
    ttft = row(comparison, "ttft_p99_s", "mine")
    assert ttft.verdict == BETTER and ttft.percent.low < -12 < ttft.percent.high < -10
    assert ttft.difference.value == pytest.approx(-0.12 * 0.8, rel=0.3)
    assert row(comparison, "output_tokens_per_s", "mine").verdict == WORSE
    assert {r.verdict for r in comparison.select(technique="slora")} <= {UNCLEAR, EQUAL}
    said = " ".join(comparison.says)
    assert re.search(r"Over 5 seeds, mine is better than dlora with 1[0-4]\.?\d? % "
                     r"\[[\d.]+, [\d.]+\] lower TTFT P99, and worse with [\d.]+ % \[.*?\] lower "
                     r"output tokens/s\.",
                     said)
    assert "slora is not distinguishable from dlora in any of these metrics" in said
    assert "TPOT P99" in said.split("cannot be told apart")[0].split("tokens/s.")[1]


def test_differences_are_paired(tmp_path: Path) -> None:
    """Seeds differ by 20 %; 5 % in each of them is beyond noise only because they are pairs."""
    results = make(tmp_path, planted)
    assert row(compared(results), "output_tokens_per_s", "mine").verdict == WORSE
    a, b = (results.metric("output_tokens_per_s")[results.columns["technique"] == technique]
            for technique in ("mine", "dlora"))
    assert np.ptp(b) / b.mean() > 0.2 and a.max() > b.min()


def test_the_same_technique_twice_is_the_same(tmp_path: Path) -> None:
    comparison = compared(make(tmp_path, lambda t, m, s: 1.0, ("a", "b")), "b")
    assert {r.verdict for r in comparison.select(technique="a")} == {EQUAL}
    assert comparison.says == ["a and b are the same in every metric and seed."]


def test_noise_alone_is_seldom_told_apart(tmp_path: Path) -> None:
    """Of 40 comparisons without a difference, 5 % may have a false alarm."""
    alarms = 0
    for trial in range(40):
        results = make(tmp_path / str(trial),
                       lambda t, m, s: 1 + 0.05 * noise(t, m, s, trial), ("a", "b"))
        alarms += any(r.verdict in (BETTER, WORSE) for r in compared(results, "b").rows)
    assert alarms <= 6  # 2 expected; 7 or more has a probability below 1 %


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    comparison = compared(make(tmp_path, planted, seeds=1))
    assert not [r for r in comparison.rows if r.verdict in (BETTER, WORSE)]
    ttft = row(comparison, "ttft_p99_s", "mine")
    assert ttft.percent.value < -5 and not np.isfinite(ttft.percent.low)
    assert all("one seed: " in text and "more than noise" in text for text in comparison.says)
    text = output.table(comparison)
    assert "one seed: no intervals" in text and "Benjamini" not in text


def test_two_seeds_have_wide_intervals(tmp_path: Path) -> None:
    comparison = compared(make(tmp_path, planted, seeds=2))
    ttft = row(comparison, "ttft_p99_s", "mine")
    assert ttft.verdict == UNCLEAR and ttft.percent.low < -12 < ttft.percent.high
    assert ttft.difference.low < -0.2 < 0 < ttft.difference.high


def test_invalid_points_take_their_technique_out_at_that_position(tmp_path: Path) -> None:
    comparison = compared(make(tmp_path, planted, positions=(4, 8), invalid=("mine", 8, 3)))
    at = (("workload.popularity.skewness", "8"),)
    assert comparison.excluded == [Excluded("mine", at,
                                            "INVALID with seed 3: clocks went wrong")]
    assert not comparison.select(technique="mine", position=at)
    assert comparison.select(technique="slora", position=at)[0].difference is not None
    assert comparison.says[0] == ("mine is left out at skewness=8: INVALID with seed 3: clocks "
                                  "went wrong.")
    assert any(text.startswith("At skewness=4: over 5 seeds, mine is better") for text
               in comparison.says)
    assert "excluded" in output.csv_text(comparison)


def test_an_invalid_baseline_leaves_values_without_differences(tmp_path: Path) -> None:
    comparison = compared(make(tmp_path, planted, invalid=("dlora", 4, 0)))
    assert comparison.excluded[0].technique == "dlora"
    assert all(r.difference is None for r in comparison.rows) and comparison.rows
    assert "mine" in output.table(comparison) and output.html(comparison)


def test_when_nothing_is_valid_the_reasons_are_all_there_is(tmp_path: Path) -> None:
    results = make(tmp_path, planted, ("a", "b"), seeds=2)
    results.columns["status"][:] = "INVALID"
    comparison = compared(results, "b")
    assert not comparison.rows and [one.technique for one in comparison.excluded] == ["a", "b"]
    assert "a is left out: INVALID with seeds 0, 1." in output.table(comparison)
    assert "excluded" in output.csv_text(comparison) and "left out" in output.html(comparison)


def test_techniques_at_positions_of_their_own_are_compared_where_they_meet(tmp_path: Path) -> None:
    """As a sweep by technique leaves them: mine at 4 and 8, dlora at 8 and 16."""
    results = make(tmp_path, planted, ("mine", "dlora"), positions=(4, 8, 16))
    at = results.columns["sweep.workload.popularity.skewness"]
    technique = results.columns["technique"]
    comparison = compared(results.subset(~((technique == "mine") & (at == 16))
                                         & ~((technique == "dlora") & (at == 4))))
    compared_at = {r.position[0][1] for r in comparison.rows if r.difference is not None}
    assert compared_at == {"8"} and len(comparison.says) == 1
    assert {r.position[0][1] for r in comparison.select(technique="mine")} == {"4", "8"}


def test_techniques_that_serve_other_requests_are_not_compared_in_silence(tmp_path: Path) -> None:
    results = make(tmp_path, planted)
    results.columns["summary.requests_rejected"] = np.where(
        results.columns["technique"] == "mine", 17.0, 0.0)
    said = compared(results).says[-1]
    assert "rejected or unfinished per run: mine 17, slora 0, dlora 0" in said
    assert "Latencies are over finished requests" in said


def test_what_is_distinguishable_is_beyond_none_in_what_is_shown(tmp_path: Path) -> None:
    comparison = compared(make(tmp_path, planted))
    shares = [r for r in comparison.rows if r.metric.is_share and r.difference is not None]
    assert shares and all(r.percent is None and r.shown is r.difference for r in shares)
    for r in comparison.rows:
        if r.difference is not None:
            is_beyond = not r.shown.low <= 0 <= r.shown.high
            assert is_beyond or r.verdict in (UNCLEAR, EQUAL)
            assert (r.shown.value > 0) == (r.difference.value > 0)


def test_the_table_fits_and_csv_has_every_number(tmp_path: Path) -> None:
    comparison = compared(make(tmp_path, planted, positions=(4, 8)))
    text = output.table(comparison)
    assert max(map(len, text.splitlines())) <= 100
    rows = list(csv.DictReader(io.StringIO(output.csv_text(comparison))))
    assert len(rows) == len(comparison.rows) == 27 * 3 * 2
    found = [r for r in rows if r["source"] == "ttft_p99_s" and r["technique"] == "mine"
             and r["workload.popularity.skewness"] == "8"]
    mine = comparison.select(technique="mine", position=(("workload.popularity.skewness", "8"),),
                             metric=row_metric(comparison, "ttft_p99_s"))[0]
    assert len(found) == 1 and float(found[0]["difference"]) == pytest.approx(
        mine.difference.value, rel=1e-8)
    assert found[0]["better"] == "lower" and found[0]["verdict"] == BETTER
    long = compared(make(tmp_path / "long", planted, ("a" * 70, "b" * 70)), "b" * 70)
    assert max(map(len, output.table(long).splitlines()[:60])) <= 100


def row_metric(comparison: Comparison, source: str) -> comparing.Metric:
    return next(metric for metric in comparison.metrics if metric.source == source)


class Page(HTMLParser):
    """Checks that tags close, and keeps what the page asks from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.outside += [f"{tag} {name}" for name, _ in attributes if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_its_plots_stay_inside(tmp_path: Path) -> None:
    comparison = compared(make(tmp_path, planted, ("<b>mine", "slora", "dlora")))
    page, text = Page(), output.html(comparison)
    page.feed(text)
    assert not page.open and not page.outside and "script" not in page.tags
    assert "&lt;b&gt;mine" in text and "<b>" not in text and page.tags["svg"] == 27
    assert 'name="viewport"' in text
    for metric in comparison.metrics:
        plot = output.plot(comparison, metric)
        for mark in plot.marks:
            assert 0 <= mark.low <= mark.dot <= mark.high <= 340 and mark.y < plot.height
            assert (mark.verdict in (BETTER, WORSE)) <= (not mark.low <= plot.zero <= mark.high)


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    results = make(tmp_path, planted)
    for name in ("one", "two"):
        output.write(compared(results), tmp_path / name)
    for suffix in ("csv", "html", "txt"):
        assert (tmp_path / f"one/compare.{suffix}").read_bytes() == \
            (tmp_path / f"two/compare.{suffix}").read_bytes()


@pytest.mark.parametrize("value, text", [
    (1234.5678, "1,235"), (12.345, "12.3"), (0.012345, "0.0123"), (0, "0"), (1e-7, "1.00e-07"),
    (999.96, "1,000"), (-0.5, "-0.5"), (float("nan"), "-"), (100, "100"), (1e6, "1,000,000")])
def test_numbers_for_people(value: float, text: str) -> None:
    assert sentences.number(value) == text


def test_what_is_threefold_is_said_as_a_factor() -> None:
    metric = comparing.Metric("TTFT P99", "s", False, "ttft_p99_s", 1, True)
    one = comparing.Row(metric, (), "mine", stats.Estimate(4.3, 4, 5, 5),
                        difference=stats.Estimate(3.3, 3, 4, 5),
                        percent=stats.Estimate(330, 300, 400, 5))
    assert sentences.amount(one) == "4.3 [4, 5] times the TTFT P99"
    one.percent = stats.Estimate(150, 90, 160, 5)
    assert sentences.amount(one) == "150 % [90, 160] higher TTFT P99"
