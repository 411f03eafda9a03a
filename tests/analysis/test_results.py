"""Reading collected results: selection, pairing, and one-line messages for what is wrong."""
from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from analysis import claims, published, selection
from analysis.draw import main
from analysis.errors import ResultsError, command_for
from analysis.results import Results
from analysis.verb import VerbError
from conftest import MAKERS, Spec, edited, fig05, latency_spec

MEAN = "latency_per_token_mean_s"


def small(root: Path) -> Results:
    """a: 2, 4 and 6, 8; b: 1, 2 and 3, 5, at x = 10 and 2 with seeds 0 and 1."""
    spec = Spec(root, "p/f")
    for technique, values in (("a", [[6, 8], [2, 4]]), ("b", [[3, 5], [1, 2]])):
        for x, pair in zip((10, 2), values):
            for seed, value in enumerate(pair):
                spec.add(technique, seed, {"w.x": x}, {MEAN: float(value)})
    spec.write(spec="expect: [one]\n")
    return Results.load("p/f", root)


def test_curve_is_the_mean_over_seeds_in_ascending_order(results_root):
    curve = small(results_root).curve(MEAN, "a", "x")
    assert curve.x.tolist() == [2, 10]
    assert curve.mean.tolist() == [3.0, 7.0]
    assert curve.half_width[0] == pytest.approx(12.7062 * 2 ** 0.5 / 2 ** 0.5, abs=1e-3)


def test_rows_spec_and_pairs(results_root):
    results = small(results_root)
    assert results.techniques == ["a", "b"] and results.seeds == [0, 1]
    assert results.spec == {"expect": ["one"]}
    rows = results.rows("b", **{"sweep.w.x": 10})
    assert rows[f"summary.{MEAN}"].tolist() == [3.0, 5.0]
    a, b = results.pairs(MEAN, "a", "b", "x", 10)
    assert (a.tolist(), b.tolist()) == ([6.0, 8.0], [3.0, 5.0])
    assert results.difference(MEAN, "a", "b", "x", 10).value == 3.0


def test_pairs_keep_only_seeds_that_both_have(results_root):
    spec = Spec(results_root, "p/f")
    for technique, seed, value in (("a", 0, 2.0), ("a", 1, 4.0), ("b", 1, 2.0), ("b", 2, 9.0)):
        spec.add(technique, seed, {"x": 1}, {MEAN: value})
    spec.write()
    results = Results.load("p/f", results_root)
    assert claims.ratio(results, MEAN, "a", "b", "x", 1).value == 2.0
    assert claims.ratio(results, MEAN, "a", "b", "x", 1, "bootstrap").n == 1


def test_labels_name_the_curves(results_root):
    spec = Spec(results_root, "p/f")
    spec.add("a", 0, {"x": 1}, {MEAN: 1.0})
    spec.add("a", 0, {"x": 1}, {MEAN: 3.0})
    spec.columns["label"] = ["plain", "tuned"]
    spec.write()
    assert Results.load("p/f", results_root).curve(MEAN, "tuned").mean.tolist() == [3.0]


def test_max_ratio_finds_the_largest(results_root):
    best = claims.max_ratio(small(results_root), MEAN, "a", "b", "x")
    assert (best.x, best.ratio.value) == (2, 2.0)
    with pytest.raises(ResultsError, match="no point has"):
        claims.max_ratio(small(results_root), MEAN, "a", "c", "x")


def test_two_sweeps_need_a_name_and_are_not_averaged_over(results_root):
    spec = Spec(results_root, "p/f")
    for x in (1, 2):
        for y in (1, 2):
            spec.add("a", 0, {"x": x, "y": y}, {MEAN: 1.0})
    spec.write()
    results = Results.load("p/f", results_root)
    with pytest.raises(ResultsError, match="needs one swept setting, the spec sweeps x, y"):
        results.curve(MEAN, "a")
    with pytest.raises(ResultsError, match="also sweeps y"):
        results.curve(MEAN, "a", "x")


def fails(capsys, root: Path, spec_id: str) -> str:
    """Draws, expects exit code 2, one line on stderr and no picture; returns the line."""
    assert main(["--results", str(root), spec_id]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1, shown
    assert not list(root.rglob("*.p[dn][fg]*"))
    return shown.err


def run_again(root: Path, spec_id: str) -> str:
    return f"run: build/servelab run experiments/{spec_id}.yaml --out {root}\n"


def test_absent_results(results_root, capsys):
    line = fails(capsys, results_root, "dlora/fig10")
    assert "collected.h5: no such file; " + run_again(results_root, "dlora/fig10") in line


def test_commands_that_make_results():
    results = Path("results")
    assert command_for("dlora/fig10", results) == "make figures/dlora/fig10"
    assert command_for("smoke/dlora", results) == "make figures/smoke/dlora"
    assert command_for("mine", results) == "build/servelab run SPEC"
    assert command_for("mine", results, "my spec.yaml") == "build/servelab run 'my spec.yaml'"
    assert command_for("smoke/dlora", Path("/r"), "experiments/smoke/dlora.yaml") == (
        "build/servelab run experiments/smoke/dlora.yaml --out /r")


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.99])
def test_truncated_collected(results_root, capsys, kept):
    path = MAKERS["dlora/fig10"](results_root)
    path.write_bytes(path.read_bytes()[:int(kept * path.stat().st_size)])
    line = fails(capsys, results_root, "dlora/fig10")
    assert "dlora/fig10/collected.h5: " in line
    assert line.endswith("; " + run_again(results_root, "dlora/fig10"))


@pytest.mark.parametrize("kept", [0, 1000])
@pytest.mark.parametrize("spec_id", ["dlora/fig05", "dlora/fig10"])
def test_truncated_point(results_root, capsys, spec_id, kept):
    path = MAKERS[spec_id](results_root).parent / "points" / "k0003.h5"
    path.write_bytes(path.read_bytes()[:kept])
    line = fails(capsys, results_root, spec_id)
    assert "points/k0003.h5: " in line and line.endswith(run_again(results_root, spec_id))


def test_another_points_file(results_root, capsys):
    path = MAKERS["dlora/fig10"](results_root).parent / "points" / "k0003.h5"
    with edited(path) as file:
        file.attrs["content_digest"] = "of an earlier run"
    assert "k0003.h5: is not the point that was collected; run: " in fails(
        capsys, results_root, "dlora/fig10")


def test_absent_point_and_absent_dataset(results_root, capsys):
    path = fig05(results_root).parent / "points" / "k0003.h5"
    with edited(path) as file:
        del file["replicas/lora"]
    assert "k0003.h5: has no dataset /replicas/lora; run: " in fails(
        capsys, results_root, "dlora/fig05")
    path.unlink()
    assert "k0003.h5: no such file; run: " in fails(capsys, results_root, "dlora/fig05")


def test_datasets_that_the_spec_leaves_out(results_root, capsys):
    path = MAKERS["dlora/fig06"](results_root).parent / "points" / "k0000.h5"
    with edited(path) as file:
        del file["gauges/merge_ratio"]
    assert "has no dataset /gauges/merge_ratio/time; the figure needs techniques that" in fails(
        capsys, results_root, "dlora/fig06")
    with edited(path) as file:
        del file["series"]
    assert "; set record.series: true in the spec, then run: " in fails(
        capsys, results_root, "dlora/fig06")


def test_what_the_spec_caused_is_not_answered_with_another_run(results_root, capsys):
    spec = Spec(results_root, "p/f")
    for x in (1, 2):
        for y in (1, 2):
            spec.add("a", 0, {"x": x, "y": y}, {MEAN: 1.0})
    spec.write(spec_path="elsewhere/my.yaml")
    line = fails(capsys, results_root, "p/f")
    assert ("the spec sweeps x, y; change the spec or its `figure`, then run: "
            f"build/servelab run elsewhere/my.yaml --out {results_root}\n") in line


@pytest.mark.parametrize("column, message", [
    ("summary.latency_per_token_p90_s", "has no metric summary.latency_per_token_p90_s"),
    ("status", "has no column status"),
    ("sweep.workload.mapping.skewness", "needs one swept setting skewness"),
])
def test_missing_column(results_root, capsys, column, message):
    path = MAKERS["dlora/fig10"](results_root)
    with edited(path) as file:
        del file[f"columns/{column}"]
    assert message in fails(capsys, results_root, "dlora/fig10")


def test_missing_technique(results_root, capsys):
    latency_spec(results_root, "dlora/fig14", ["slora"])
    assert "for both slora and dlora" in fails(capsys, results_root, "dlora/fig14")


def test_one_failure_does_not_stop_the_others(results_root, capsys):
    MAKERS["dlora/fig14"](results_root)
    assert main(["--results", str(results_root), "dlora/fig10", "dlora/fig14"]) == 2
    shown = capsys.readouterr()
    assert "fig14.pdf" in shown.out and "fig10" in shown.err


def test_published_points():
    x, y = published.curve("dlora/fig10", "latency_per_token_p90_s", "dlora")
    assert x.tolist() == [4, 8, 16, 32] and y[0] == pytest.approx(1.2, abs=1e-3)
    assert published.claim("dlora/fig14-slora") == 1.8
    with pytest.raises(KeyError):
        published.value("dlora/fig14", "none", "slora")


def test_published_factors_follow_from_the_published_points():
    for metric, claimed in (("latency_per_token_mean_of_ratios_s", "mean"),
                            ("latency_per_token_p90_s", "p90")):
        dlora = published.curve("dlora/fig10", metric, "dlora")[1]
        for base in ("merged-only", "unmerged-only"):
            largest = np.max(published.curve("dlora/fig10", metric, base)[1] / dlora)
            assert largest == pytest.approx(
                published.claim(f"dlora/fig10-{base.split('-')[0]}-{claimed}"), abs=0.05)


@pytest.mark.parametrize("name", ["/tmp/out/mine", "../out/mine"])
def test_a_folder_in_place_of_a_spec_is_one_line(name, tmp_path):
    with pytest.raises(VerbError, match="a spec's id is to be named.*try: mine --results .*out"):
        selection.choose([name], tmp_path)
