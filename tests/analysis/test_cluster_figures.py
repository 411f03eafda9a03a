"""dLoRA's cluster figures: what they compute, and the largest rate within a limit."""
from __future__ import annotations

import math

import numpy as np
import pytest

import cluster_results
from analysis import draw, metrics, slo, stats
from analysis.errors import ResultsError
from analysis.figures import _replicas, dlora_fig11_differences
from analysis.results import Results
from conftest import MAKERS, Spec

RATE = "workload.arrivals.rate"


def loaded(root, spec_id: str) -> Results:
    MAKERS[spec_id](root)
    return Results.load(spec_id, root)


def test_crossing_is_interpolated_on_log_axes():
    # value = rate^2 / 128: 0.5 at rate 8, a straight line on log-log axes
    rates = [2, 4, 16, 32]
    found, bound = slo.crossing(rates, [rate**2 / 128 for rate in rates], 0.5)
    assert found == pytest.approx(8) and bound == ""


@pytest.mark.parametrize("values, rate, bound", [
    ([0.1, 0.2, 0.3], 4, ">"),           # within the limit at the last rate
    ([0.6, 0.7, 0.8], 1, "<"),           # at none
    ([0.1, math.nan, 0.3], 4, ">"),      # a point without a value does not count
    ([0.1, 0.5, math.nan], 2, ">"),
    ([0.9, 0.25, 1.0], 2 * 2**0.5, ""),  # the last crossing, not the first
])
def test_crossing_never_leaves_the_grid(values, rate, bound):
    assert slo.crossing([1, 2, 4], values, 0.5) == (pytest.approx(rate), bound)


def test_crossing_of_nothing_is_nan():
    assert math.isnan(slo.crossing([1, 2], [math.nan, math.nan], 0.5)[0])


def rates_spec(root, **values_of: list[float]) -> Results:
    """Two seeds, the second 1.1 times as slow, at rates 1, 2 and 4."""
    spec = Spec(root, "p/f")
    for technique, values in values_of.items():
        for rate, value in zip((1, 2, 4), values):
            for seed in (0, 1):
                spec.add(technique, seed, {RATE: rate}, {"m": value * (1 + 0.1 * seed)})
    spec.write()
    return Results.load("p/f", root)


def test_ratio_of_rates_pairs_seeds_and_carries_bounds(results_root):
    results = rates_spec(results_root, fast=[0.1, 0.2, 0.4], slow=[0.25, 1.0, 4.0],
                         never=[1.0, 2.0, 3.0])
    slow = slo.by_seed(results, "m", "slow", "rate", 0.5)
    assert slow[0][0] == pytest.approx(2**0.5) and slow[1][0] == pytest.approx((2 / 1.1)**0.5)
    ratio = slo.rate_ratio(results, "m", "fast", "slow", "rate", 0.5)
    assert ratio.bound == ">" and "fast is within the limit at the last rate, 4" in ratio.beyond
    assert ratio.estimate.value == pytest.approx(4 / np.mean([slow[0][0], slow[1][0]]))
    assert ratio.estimate.n == 2
    assert slo.rate_ratio(results, "m", "slow", "never", "rate", 0.5).bound == ">"
    assert slo.rate_ratio(results, "m", "never", "fast", "rate", 0.5).bound == "<"
    both = slo.rate_ratio(results, "m", "fast", "fast", "rate", 0.5)
    assert both.bound == "?"
    assert _replicas.rate_text(slo.max_rate(results, "m", "fast", "rate", 0.5)) == "> 4"
    assert _replicas.ratio_text(ratio.estimate, ratio.bound).startswith("> ")


def test_queueing_by_replica_leaves_unfinished_requests_out(results_root):
    results = loaded(results_root, "dlora/fig02b")
    delay_s, share = metrics.queueing_by_replica(results, 0)
    assert delay_s[0] == pytest.approx(1.0) and share[0] == pytest.approx(10)
    assert len(share) == 8 and np.all(np.diff(share) > 0)
    ratio = results.metric("queueing_share_max_over_min")
    assert ratio[0] == pytest.approx(share[-1] / share[0])


def test_a_replica_without_requests_has_no_ratio(results_root):
    spec = Spec(results_root, "p/f")
    datasets = cluster_results.queueing_datasets(0)
    datasets["replicas/busy"] = np.ones(9)
    spec.add("vllm-uniform", 0, {}, {}, datasets=datasets)
    spec.write()
    results = Results.load("p/f", results_root)
    assert math.isnan(metrics.queueing_by_replica(results, 0)[0][8])
    assert math.isnan(results.metric("queueing_share_max_over_min")[0])
    assert math.isnan(metrics.max_over_min(np.array([0.0, 1.0])))


def test_utilisation(results_root):
    results = loaded(results_root, "dlora/fig13")
    optimum = int(np.flatnonzero(results.columns["technique"] == "optimum")[0])
    sm = metrics.sm_by_replica(results, optimum)
    assert np.all(np.abs(sm - 85) < 4)  # 90 s busy, 5 s of them on the host, in 100 s
    memory = metrics.memory_by_replica(results, optimum)
    assert np.allclose(memory, 25 + 20, atol=1)  # 25 GiB of weights, 80 blocks of 256 MiB
    assert results.metric("memory_utilisation_max_over_min")[optimum] < 1.05


def test_utilisation_needs_the_sizes(results_root):
    spec = Spec(results_root, "p/f")
    spec.add("dlora", 0, {}, {"duration_s": 1.0}, datasets={
        "replicas/busy": [1], "replicas/host": [0]})
    spec.write()
    with pytest.raises(ResultsError, match="has no dataset /replicas/device_bytes"):
        Results.load("p/f", results_root).metric("memory_utilisation_percent")


def test_overhead_shares(results_root):
    results = loaded(results_root, "dlora/fig15")
    solver, switching, inference = metrics.overhead_shares(results, 0)
    assert solver == pytest.approx(100 * 0.4 / 100.4)
    assert switching == pytest.approx(100 * 2 / 100.4)
    assert solver + switching + inference == pytest.approx(100)
    assert results.metric("solver_time_per_rebalance_s")[0] == pytest.approx(0.04)


def test_a_solver_that_was_charged_no_time_is_no_result(results_root):
    spec = Spec(results_root, "dlora/fig15")
    cluster_results.fig15(spec, solver_s=0)
    spec.write()
    results = Results.load("dlora/fig15", results_root)
    assert np.isnan(results.metric("inference_share_percent")).all()
    assert draw.main(["--results", str(results_root), "dlora/fig15"]) == 0
    assert "charged NO time" in (results_root / "dlora/fig15/table.txt").read_text()


def test_queueing_per_token_is_sum_over_sum(results_root):
    # 3 requests, 30 tokens: 10 s of latency and 4 s of queueing each
    spec = Spec(results_root, "p/f")
    spec.add("a", 0, {}, {"queueing_mean_s": 4.0, "latency_mean_s": 10.0,
                          "latency_per_token_mean_s": 1.0})
    spec.write()
    assert Results.load("p/f", results_root).metric("queueing_per_token_mean_s")[0] == 0.4


def test_selection_by_several_settings(results_root):
    results = loaded(results_root, "dlora/fig09")
    points = results.select(model="llama-2-13b", trace="maf2")
    assert set(points.columns["sweep.model"]) == {"llama-2-13b"}
    assert len(points.columns["key"]) == 3 * (6 + 6 + 6)
    assert points.curve(cluster_results.MEAN, "peft", "rate").x.tolist() == [2, 4, 8, 16, 32, 64]
    differences = loaded(results_root, "dlora/fig11_differences")
    assert len(differences.select(ranks=[16], correlated=True).columns["key"]) == 24


def test_table_of_largest_rates(results_root):
    results = loaded(results_root, "dlora/fig09")
    assert draw.main(["--results", str(results_root), "dlora/fig09"]) == 0
    table = (results_root / "dlora/fig09/table.txt").read_text()
    expected = slo.rate_ratio(results.select(model="llama-2-7b", trace="maf2"),
                              cluster_results.MEAN, "dlora", "peft", "rate", 0.5)
    assert 8 < expected.estimate.value < 12 and expected.bound == ""
    line = next(line for line in table.splitlines() if line.startswith("7B, MAF2       peft"))
    assert f"{expected.estimate.value:.2f}x" in line
    assert (results_root / "dlora/fig09/fig09_artifact.png").is_file()


def test_rows_of_the_differences(results_root):
    results = loaded(results_root, "dlora/fig11_differences")
    rows = dlora_fig11_differences.rows_of(results)
    assert [row.label for row in rows] == [
        "the paper's dLoRA", "the artifact's batching", "the artifact's dLoRA", "the paper's RR",
        "the paper's dLoRA, rank 16, correlated draws"]
    ratio = dlora_fig11_differences.factor_of(rows[3], rows[0], cluster_results.MEAN)
    assert ratio.estimate.value == pytest.approx(0.3, rel=0.1)


def test_geometric_mean():
    found = stats.geometric_ci([2.0, 8.0])
    assert found.value == pytest.approx(4) and 0 < found.low < 4 < found.high
    assert math.isnan(stats.geometric_ci([0.0, 1.0]).value)
    assert stats.geometric_ci([3.0]).value == pytest.approx(3)
