"""CaraServe's figures: steps, loads and cold starts as claims and drawings take them."""
from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from analysis import draw
from analysis import steps as step_metrics
from analysis.errors import ResultsError
from analysis.figures import caraserve_fig03
from analysis.results import Results
from caraserve_results import fig03, fig16, loads, requests, steps
from conftest import Spec


def loaded(root: Path, datasets: dict) -> Results:
    spec = Spec(root, "a/b")
    spec.add("ondmd", 0, {}, {}, datasets=datasets)
    if "events/code" in datasets:
        with h5py.File(root / "a/b/points/k0000.h5", "a") as file:
            file["events/code"].attrs["codes"] = ["load", "evict"]
    spec.write()
    return Results.load("a/b", root)


def test_steps_count_with_what_they_waited_for(tmp_path):
    results = loaded(tmp_path, steps([60, 100, 150], [20, 0, 0], dense=[30, 20, 30],
                                     load_wait=[25, 5, 0], lora=[5, 5, 10]))
    assert results.metric("prefill_step_mean_s")[0] == pytest.approx(0.060)
    assert results.metric("decode_step_mean_s")[0] == pytest.approx(0.035)


def test_without_steps_cold_starts_cannot_be_told(tmp_path):
    results = loaded(tmp_path, requests([0], [100]))
    with pytest.raises(ResultsError, match="has no dataset /steps"):
        results.metric("cold_start_share_percent")


def test_without_a_prompt_no_prefill_has_a_mean(tmp_path):
    results = loaded(tmp_path, steps([10], [0], dense=[10]))
    assert math.isnan(results.metric("prefill_step_mean_s")[0])
    assert results.metric("decode_step_mean_s")[0] == pytest.approx(0.010)


def test_loads_are_those_among_the_events(tmp_path):
    assert loaded(tmp_path / "a", loads([0.002, 0.004])).metric("adapter_load_mean_s")[0] == (
        pytest.approx(0.003))
    assert math.isnan(loaded(tmp_path / "b", loads([])).metric("adapter_load_mean_s")[0])


def test_cold_starts_of_others_delay_a_request_too(tmp_path):
    # Steps of 100 ms are planned at 0, 100 and 200; the first waits for 40 ms, the last for 20.
    results = loaded(tmp_path, {
        **steps([100, 200, 300], [5, 0, 5], load_wait=[40, 0, 20], dense=[60, 100, 80]),
        **requests([0, 30, 100, 0, 0], [300, 300, 200, 100, 90], [1, 1, 1, 1, 2])})
    # All of both waits; 10 ms of the first and the second; between them; the first; not finished.
    shares = step_metrics.cold_start_shares(results, 0)
    assert shares.tolist() == pytest.approx([100 * 60 / 300, 100 * 30 / 270, 0, 40])
    assert results.metric("cold_start_share_percent")[0] == pytest.approx(shares.mean())


def test_replicas_wait_on_their_own(tmp_path):
    datasets = {**steps([100, 100], [5, 5], load_wait=[50, 0], dense=[50, 100]),
                **requests([0, 0], [100, 100])}
    datasets["steps/replica"] = np.array([0, 1])
    datasets["requests/replica"] = np.array([1, 0])
    assert step_metrics.cold_start_shares(loaded(tmp_path, datasets), 0).tolist() == [0, 50]


def test_overlaps_against_counting_every_instant():
    rng = np.random.default_rng(1)
    for _ in range(50):
        edges = np.sort(rng.choice(200, 2 * rng.integers(0, 8), replace=False))
        start, stop = edges[::2], edges[1::2]
        begin = rng.integers(0, 200, 30)
        end = begin + rng.integers(0, 60, 30)
        covered = np.zeros(300, dtype=int)
        for a, b in zip(start, stop):
            covered[a:b] = 1
        shuffled = rng.permutation(len(start))
        found = step_metrics.overlap(begin, end, start[shuffled], stop[shuffled])
        assert found.tolist() == [int(covered[a:b].sum()) for a, b in zip(begin, end)]


def test_fig03_keeps_the_panels_apart(tmp_path):
    fig03(Spec(tmp_path, "caraserve/fig03"))
    results = Results.load("caraserve/fig03", tmp_path)
    assert caraserve_fig03.share_rates(*caraserve_fig03.positions(results)) == [3, 6, 9]
    table = next(path for path in draw.draw("caraserve/fig03", tmp_path) if path.suffix == ".txt")
    lines = table.read_text().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["requests/s", "3", "6", "9", "rank", "8",
                                                       "64"]
    assert lines[-1].split() == ["64", "32.00"]


def test_fig03_of_one_rate_has_both_panels(tmp_path):
    rate, rank = np.array([3.0, 3.0]), np.array([8, 64])
    assert caraserve_fig03.share_rates(rate, rank) == [3]
    assert caraserve_fig03.rank_of("[8, 64]") == 64 and caraserve_fig03.rank_of(16) == 16


def test_fig16_says_what_fusing_saves(tmp_path):
    fig16(Spec(tmp_path, "caraserve/fig16"))
    table = next(path for path in draw.draw("caraserve/fig16", tmp_path) if path.suffix == ".txt")
    row = table.read_text().splitlines()[1].split()
    assert row == ["16", "37.92", "31.60", "41.08", "16.67"]
