"""servelab compare: options to specs, results to tables and sentences. Whole runs are in
tests/specs/compare_test.cc."""
from __future__ import annotations

import csv
import io
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Callable

import numpy as np
import pytest
import yaml
from conftest import ROOT, Spec
from test_service import random_run

from analysis import slo_limits, stats
from analysis.compare import cli, comparing, output, running, sentences
from analysis.compare.comparing import BETTER, EQUAL, UNCLEAR, WORSE, Comparison, Excluded
from analysis.compare.spec_file import SpecFile, parse_techniques
from analysis.results import Results
from analysis.verb import VerbError

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


# --- options and specs

def spec_of(text: str, tmp_path: Path, *options: str, techniques: str = "mine,slora") -> dict:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    parsed = cli.parse(["--techniques", techniques, "--spec", str(path), *options])
    return yaml.safe_load(cli.effective_spec(parsed, parse_techniques(techniques)).text("why"))


BASE = """title: "A title"   # a comment
model: llama-2-7b
hardware: a800-80g
engine: {max_batch: 16}
workload: dlora-maf2
sweep:
  workload.arrivals.rate: [1e0, 2]
techniques:
  - slora
  - {technique: dlora, label: tuned, with: {alpha: 0.9}, engine: {max_batch: 8}}
seeds: [3, 5]
expect: [some/claim]
"""


def test_the_effective_spec_is_the_spec_with_other_techniques(tmp_path: Path) -> None:
    spec = spec_of(BASE, tmp_path, techniques="mine(window=8, route=dlora-rr),again=tuned,slora")
    assert spec["techniques"] == [
        {"technique": "mine", "label": "mine(window=8, route=dlora-rr)", "with": {"window": 8},
         "route": "dlora-rr"},
        {"technique": "dlora", "label": "again", "with": {"alpha": 0.9},
         "engine": {"max_batch": 8}}, {"technique": "slora", "label": "slora"}]
    assert spec["seeds"] == [3, 5] and "expect" not in spec and spec["model"] == "llama-2-7b"
    assert spec["sweep"] == {"workload.arrivals.rate": ["1e0", 2]}  # as it was written
    assert spec["title"].endswith("A title")


def test_options_override_the_spec(tmp_path: Path) -> None:
    spec = spec_of(BASE, tmp_path, "--seeds", "4", "--adapters", "64", "--hardware", "h100-80g",
                   "--set", "sweep={}", "--rate", "7", "--set", "engine.max_batch=32",
                   "--set", "record.series=false")
    assert spec["workload"] == {"extends": "dlora-maf2", "arrivals": {"rate": 7},
                                "adapters": {"count": 64}}
    assert (spec["seeds"], spec["hardware"], spec["engine"]) == (4, "h100-80g", {"max_batch": 32})
    assert spec["sweep"] == {} and spec["record"] == {"series": False}
    swept = spec_of(BASE, tmp_path, "--set", "sweep.workload.arrivals.rate=[5]",
                    "--set", "sweep.engine.max_batch=[1, 2]")
    assert swept["sweep"] == {"workload.arrivals.rate": [5], "engine.max_batch": [1, 2]}


def test_without_a_spec(tmp_path: Path) -> None:
    options = cli.parse(["--techniques", "a,b", "--model", "m", "--hardware", "h", "--workload",
                         "sharegpt", "--rate", "3", "--experiments", str(ROOT / "experiments")])
    spec = yaml.safe_load(cli.effective_spec(options, parse_techniques("a,b")).text())
    assert spec["workload"]["lengths"] == {"source": "sharegpt"} and spec["seeds"] == 5
    assert spec["workload"]["arrivals"] == {"process": "poisson", "rate": 3}
    options.workload = "dlora-maf2"
    spec = yaml.safe_load(cli.effective_spec(options, parse_techniques("a,b")).text())
    assert spec["workload"] == {"extends": "dlora-maf2", "arrivals": {"rate": 3}}
    assert cli.out_folder(options) == Path("results/compare/dlora-maf2")


def test_a_sweep_by_technique_keeps_what_is_compared(tmp_path: Path) -> None:
    by_technique = BASE.replace("sweep:\n  workload.arrivals.rate: [1e0, 2]", """sweep:
  - {techniques: [slora], workload.arrivals.rate: [1, 2]}
  - {techniques: [tuned, slora], workload.arrivals.rate: [4]}
  - {techniques: [tuned], workload.arrivals.rate: [8]}""")
    spec = spec_of(by_technique, tmp_path, techniques="slora,tuned")
    assert [part["techniques"] for part in spec["sweep"]] == [["slora"], ["tuned", "slora"],
                                                              ["tuned"]]
    with pytest.raises(VerbError, match="mine.*goes by technique.*--set 'sweep="):
        spec_of(by_technique, tmp_path, techniques="slora,mine")


def test_files_beside_the_spec_are_found_from_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/tiny.yaml").write_text("name: x\n")
    path = tmp_path / "in/s.yaml"
    path.write_text(BASE.replace("model: llama-2-7b", "model: tiny.yaml").replace(
        "workload.arrivals.rate: [1e0, 2]", "model: [./tiny.yaml, llama-2-7b]"))
    spec = SpecFile.read(path)
    spec.point_files_at(tmp_path / "out/deep")
    moved = yaml.safe_load(spec.text())
    assert moved["model"] == "../../in/tiny.yaml"
    assert moved["sweep"]["model"] == ["../../in/tiny.yaml", "llama-2-7b"]


def test_errors_point_at_the_users_own_words(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(BASE)
    options = cli.parse(["--techniques", "mine,slora", "--spec", str(path), "--set",
                         "engine.max_bach=3"])
    spec = cli.effective_spec(options, parse_techniques("mine,slora"))
    written = tmp_path / "out.yaml"
    written.write_text(spec.text("heading"))
    lines = written.read_text().splitlines()

    def told(needle: str) -> str:
        line = next(i for i, text in enumerate(lines, 1) if needle in text)
        column = lines[line - 1].index(needle) + 1
        return spec.told(f"{written}:{line}:{column}: wrong", written, "heading")

    assert told("max_bach") == "--set engine.max_bach=3: wrong"
    assert told('"mine"') == "--techniques mine: wrong"
    assert told("dlora-maf2") == f"{path}:5:11: wrong"
    assert told("16") == f"{path}:4:21: wrong"


@pytest.mark.parametrize("options, said", [
    (["--techniques", "slora"], "two techniques or more"),
    (["--techniques", "slora,slora"], "is there twice"),
    (["--techniques", "slora(,dlora"], "is not name"),
    (["--techniques", "slora(x),dlora"], "is not parameter=value"),
    (["--techniques", "slora,dlora", "--baseline", "dlra"], "did you mean 'dlora'"),
    (["--techniques", "slora,dlora", "--slo", "tft=1"], "did you mean 'ttft'"),
    (["--techniques", "slora,dlora", "--find-rate", "atainment>=0.9"], "did you mean 'attainment'"),
    (["--techniques", "slora,dlora", "--find-rate", "attainment=0.9"], "is not metric<=limit"),
    (["--techniques", "slora,dlora", "--find-rate", "attainment>=0.9"], "the spec sweeps workl"),
    (["--techniques", "slora,dlora", "--seeds", "0"], "at least one"),
    (["--techniques", "slora,dlora", "--set", "engine"], "expected path=value"),
    (["--techniques", "slora,dlora", "--set", "seeds=3"], "options of their own"),
    (["--techniques", "slora,dlora", "--set", "model.x=3"], "'model' is not a section"),
    (["--techniques", "slora,dlora", "--set", "engine..x=3"], "is not a path"),
    (["--techniques", "slora,dlora", "--set", "engine.max_batch=["], "is not YAML"),
    (["--techniques", "slora,dlora", "--set", "workload.popularity.skewness=1"], "the spec sweeps"),
    (["--techniques", "slora,dlora", "--bogus"], "unrecognized"),
    (["--spec", "x"], "--techniques"),
])
def test_bad_input_is_one_line_and_leaves_nothing(options: list[str], said: str, tmp_path: Path,
                                                  monkeypatch, capfd) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SERVELAB", "/bin/false")  # nothing may run
    out = tmp_path / "out"
    spec = [] if "--spec" in options else ["--spec", "dlora/fig10"]
    assert cli.main([*options, *spec, "--out", str(out)]) == 2
    shown = capfd.readouterr()
    assert shown.err.startswith("servelab: error: ") and shown.err.count("\n") == 1, shown.err
    assert said in shown.err and not shown.out and not out.exists()


def test_a_spec_that_is_not_yaml_is_named(tmp_path: Path, capfd) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("title: [x\nmodel: y")
    assert cli.main(["--techniques", "a,b", "--spec", str(path)]) == 2
    assert f"{path}:2:" in capfd.readouterr().err


# --- a program that fails

FAKE = '''#!{python}
"""As `servelab run SPEC --out DIR`: points of {{"slora", "dlora"}} work, those of "bad" fail."""
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import pathlib, yaml
from conftest import Spec
from test_compare import METRICS
spec_path = pathlib.Path(sys.argv[2])
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
text = spec_path.read_text()
entries = yaml.safe_load(text)["techniques"]
labels = [entry["label"] for entry in entries]
(out / "calls").open("a").write(",".join(labels) + chr(10))
if "bad" in [entry["technique"] for entry in entries]:
    print("bad seed=1: FAILED", file=sys.stderr)
    print("servelab: error: runs [bad]: invariant I4: more blocks than free", file=sys.stderr)
    sys.exit(1)
spec = Spec(out, spec_path.stem)
for label in labels:
    for seed in range(3):
        spec.add(label, seed, {{}}, METRICS)
spec.write(spec=text)
'''


def fake_program(tmp_path: Path, text: str = FAKE) -> str:
    path = tmp_path / "servelab"
    path.write_text(text.format(python=sys.executable, root=str(ROOT),
                                tests=str(ROOT / "tests/analysis")))
    path.chmod(0o755)
    return str(path)


def test_a_technique_that_fails_is_left_out_with_its_reason(tmp_path: Path, monkeypatch,
                                                            capfd) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SERVELAB", fake_program(tmp_path))
    monkeypatch.setattr(comparing, "catalogue", lambda limits: [
        comparing.Metric("TTFT P99", "s", False, "ttft_p99_s", 1, True)])
    out = tmp_path / "out"
    assert cli.main(["--techniques", "bad,slora,dlora", "--spec", "dlora/fig10", "--out",
                     str(out)]) == 1
    shown = capfd.readouterr()
    assert ("bad is left out: fails: runs [bad]: invariant I4: more blocks than free."
            in " ".join(shown.out.split()))
    assert "slora and dlora are the same in every metric and seed" in shown.out
    assert (out / "calls").read_text().split() == ["bad,slora,dlora", "bad", "slora", "dlora",
                                                   "slora,dlora"]
    assert yaml.safe_load((out / "runs.yaml").read_text())["techniques"][0]["label"] == "slora"


def test_when_all_fail_there_is_one_line(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SERVELAB", fake_program(tmp_path))
    assert cli.main(["--techniques", "bad,also=bad(alpha=1)", "--spec", "dlora/fig10", "--out",
                     str(tmp_path / "out"), "--baseline", "bad"]) == 1
    assert "invariant I4" in capfd.readouterr().err.splitlines()[-1]


def test_the_time_limit_is_of_all_runs_together(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(ROOT)
    slow = ("#!/bin/sh\necho \"$@\" >>{root}/calls\nsleep 0.4\n"
            "echo 'servelab: error: no time' >&2\nexit 75\n").replace("{root}", str(tmp_path))
    monkeypatch.setenv("SERVELAB", fake_program(tmp_path, slow))
    spec = SpecFile.read(ROOT / "experiments/smoke/slora.yaml")
    runner = running.Runner(tmp_path / "out", [], "", 10)
    for _ in range(2):
        with pytest.raises(running.Stopped, match="no time") as caught:
            runner.run({"runs": spec}, ["slora"])
        assert caught.value.code == 75
    limits = [float(line.split()[-1]) for line in (tmp_path / "calls").read_text().splitlines()]
    assert 9 < limits[0] <= 10 and limits[1] < limits[0] - 0.35


def test_a_refused_spec_leaves_the_one_before(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    refuse = "#!/bin/sh\necho 'servelab: error: no' >&2\nexit 2\n"
    monkeypatch.setenv("SERVELAB", fake_program(tmp_path, refuse))
    out = tmp_path / "out"
    out.mkdir()
    (out / "runs.yaml").write_text("title: before\n")
    arguments = ["--techniques", "slora,dlora", "--spec", "dlora/fig10", "--out"]
    assert cli.main([*arguments, str(out)]) == 2
    assert (out / "runs.yaml").read_text() == "title: before\n"
    assert cli.main([*arguments, str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()


def test_ctrl_c_reaches_the_run_once(tmp_path: Path) -> None:
    """The program counts its signals, and ends as servelab run does, points in progress first."""
    count = ("#!{python}\nimport pathlib, signal, sys, time\n"
             "caught = []\nsignal.signal(signal.SIGINT, lambda *_: caught.append(1))\n"
             f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
             "end = time.time() + 20\nwhile not caught and time.time() < end: time.sleep(0.01)\n"
             "time.sleep(0.5)\n"
             f"pathlib.Path({str(tmp_path / 'count')!r}).write_text(str(len(caught)))\n"
             "sys.stderr.write('servelab: error: interrupted\\n')\nsys.exit(130)\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "analysis.compare", "--techniques", "slora,dlora", "--spec",
         "dlora/fig10", "--out", str(tmp_path / "out")], cwd=ROOT, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        env={**os.environ, "SERVELAB": fake_program(tmp_path, count)})
    end = time.time() + 30
    while not (tmp_path / "ready").exists() and time.time() < end:
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 130 and errors == "servelab: error: interrupted\n"
    assert (tmp_path / "count").read_text() == "1"


def test_what_is_threefold_is_said_as_a_factor() -> None:
    metric = comparing.Metric("TTFT P99", "s", False, "ttft_p99_s", 1, True)
    one = comparing.Row(metric, (), "mine", stats.Estimate(4.3, 4, 5, 5),
                        difference=stats.Estimate(3.3, 3, 4, 5),
                        percent=stats.Estimate(330, 300, 400, 5))
    assert sentences.amount(one) == "4.3 [4, 5] times the TTFT P99"
    one.percent = stats.Estimate(150, 90, 160, 5)
    assert sentences.amount(one) == "150 % [90, 160] higher TTFT P99"
