"""SLOs, fairness and starvation against loops over requests, and against cases worked by hand."""
from __future__ import annotations

import json
import math
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import Spec

from analysis import service, slo_limits
from analysis.errors import ResultsError
from analysis.results import Results

S = 1_000_000_000


def random_run(seed: int, count: int, adapters: int = 7) -> dict[str, np.ndarray]:
    """/requests of a run that finishes most requests, rejects some, and cuts some off."""
    rng = np.random.default_rng(seed)
    scheduled = np.sort(rng.integers(0, 60 * S, count))
    status = rng.choice([1, 1, 1, 1, 0, 2], count)
    wait, prefill = rng.integers(0, 5 * S, count), rng.integers(1, S, count)
    target = rng.integers(1, 200, count)
    got = np.where(status == 1, target, np.where(status == 0, target // 2, 0))
    first = np.where(got > 0, scheduled + wait + prefill, -1)
    return {"requests/adapter": rng.integers(-1, adapters, count),
            "requests/scheduled": scheduled,
            "requests/admitted": np.where(got > 0, scheduled + wait, -1),
            "requests/first_token": first,
            "requests/last_token": np.where(got > 0, first + (got - 1) * 20_000_000, -1),
            "requests/prompt_tokens": rng.integers(1, 500, count),
            "requests/output_tokens": got, "requests/output_tokens_true": target,
            "requests/status": status}


def results_of(root: Path, datasets: dict, duration_s: float = 80) -> Results:
    spec = Spec(root, "mine/run")
    spec.add("slora", 0, {"workload.rate": 1}, {"duration_s": duration_s}, datasets=datasets)
    spec.write()
    return Results.load("mine/run", root)


def naive(run: dict[str, np.ndarray], limits: dict[str, float], end_s: float) -> dict[str, float]:
    """The definitions of analysis/service.py, request by request."""
    rows = [{name.split("/")[1]: float(values[i]) for name, values in run.items()}
            for i in range(len(run["requests/status"]))]
    window = max(row["scheduled"] for row in rows) / S
    met, waits, tenants = 0, [], {}
    for row in rows:
        a, o, done = row["scheduled"] / S, row["output_tokens"], row["status"] == 1
        f, last, s = row["first_token"] / S, row["last_token"] / S, row["admitted"] / S
        values = {"ttft": f - a, "latency": last - a, "queueing": s - a,
                  "tpot": (last - f) / (o - 1) if o > 1 else 0,
                  "latency_per_token": (last - a) / o if o else 0}
        met += done and all(values[name] <= limit for name, limit in limits.items())
        if row["status"] != 2:
            waits.append((s if row["admitted"] >= 0 else max(end_s, a)) - a)
        of = tenants.setdefault(row["adapter"], {"served": 0, "offered": 0, "latency": 0,
                                                 "tokens": 0, "window": 0, "ttft": []})
        of["served"] += o + (row["prompt_tokens"] if row["first_token"] >= 0 else 0)
        of["offered"] += row["output_tokens_true"] + row["prompt_tokens"]
        if row["first_token"] >= 0 and f <= window:
            share = 1.0 if last <= window else (window - f) / (last - f)
            of["window"] += row["prompt_tokens"] + 1 + (o - 1) * share
        if done:
            of["latency"] += last - a
            of["tokens"] += o
            of["ttft"].append(f - a)

    def jain(x: list[float]) -> float:
        return sum(x) ** 2 / (len(x) * sum(v * v for v in x))

    p99 = [float(np.percentile(of["ttft"], 99)) for of in tenants.values() if of["ttft"]]
    offered = sum(of["offered"] for of in tenants.values())
    share = sum(of["window"] for of in tenants.values()) / offered
    return {"slo_attainment": met / len(rows), "goodput_per_s": met / end_s,
            "jain_served": jain([of["served"] / of["offered"] for of in tenants.values()]),
            "jain_latency": jain([of["latency"] / of["tokens"] for of in tenants.values()
                                  if of["tokens"]]),
            "ttft_p99_worst_over_median": max(p99) / float(np.median(p99)),
            "served_share": share, "starved": float(share < 0.9),
            "starved_adapters_share": float(np.mean([of["window"] / of["offered"] < 0.9
                                                     for of in tenants.values()])),
            "longest_wait_s": max(waits)}


@pytest.mark.parametrize("seed", range(4))
def test_metrics_are_those_of_a_loop_over_requests(tmp_path: Path, seed: int) -> None:
    run = random_run(seed, 50 + 400 * seed, adapters=1 + 5 * seed)
    limits = {"ttft": 3.0, "tpot": 0.021, "latency": 6.0}
    results = results_of(tmp_path, run)
    for name, value in naive(run, limits, 80).items():
        is_of_slo = name in service.SLO_METRICS
        asked = f"{name}[latency=6,tpot=0.021,ttft=3]" if is_of_slo else name
        assert results.metric(asked) == pytest.approx([value], rel=1e-12), name
    default = naive(run, {"latency_per_token": 0.5}, 80)["slo_attainment"]
    assert results.metric("slo_attainment") == pytest.approx([default])


def test_cases_by_hand() -> None:
    assert service.jain(np.array([1.0, 1, 1, 1])) == 1
    assert service.jain(np.array([1.0, 0, 0, 0])) == 0.25
    assert service.jain(np.array([4.0, 2, np.nan])) == pytest.approx(36 / 40)
    assert math.isnan(service.jain(np.array([0.0, 0])))
    values = np.array([5.0, 1, 3, 10, 20])
    assert service.percentile_by_group(values, np.array([0, 0, 0, 2, 2]), 0.5).tolist() == [3, 15]


def test_a_rejected_request_misses_every_slo_and_one_token_has_no_gap(tmp_path: Path) -> None:
    run = {"requests/adapter": [0, 0, 1], "requests/scheduled": [0, 0, 0],
           "requests/admitted": [0, 0, -1], "requests/first_token": [S, S, -1],
           "requests/last_token": [S, 3 * S, -1], "requests/prompt_tokens": [10, 10, 10],
           "requests/output_tokens": [1, 2, 0], "requests/output_tokens_true": [1, 2, 10],
           "requests/status": [1, 1, 2]}
    results = results_of(tmp_path, {name: np.array(v) for name, v in run.items()}, 4)
    assert results.metric("slo_attainment[tpot=1]") == pytest.approx([1 / 3])
    assert results.metric("goodput_per_s[tpot=2]") == pytest.approx([2 / 4])
    # Adapter 0 got 23 of 23 tokens, adapter 1 none of 20.
    assert results.metric("jain_served") == [0.5]
    assert results.metric("longest_wait_s") == [0]


def test_the_arrival_window_is_the_workloads_duration_where_it_has_one(tmp_path: Path) -> None:
    run = {"requests/adapter": [0], "requests/scheduled": [0], "requests/admitted": [0],
           "requests/first_token": [2 * S], "requests/last_token": [12 * S],
           "requests/prompt_tokens": [9], "requests/output_tokens": [11],
           "requests/output_tokens_true": [11], "requests/status": [1]}
    effective = json.dumps({"workload": {"duration_s": 7}})
    results = results_of(tmp_path, {**{name: np.array(v) for name, v in run.items()},
                                    "spec/effective": effective}, 12)
    assert results.metric("served_share") == pytest.approx([(9 + 1 + 10 * 0.5) / 20])
    assert results.metric("starved") == [1]


def test_older_points_estimate_what_an_unfinished_request_needs(tmp_path: Path) -> None:
    run = random_run(3, 300)
    known = results_of(tmp_path / "new", run).metric("jain_served")[0]
    del run["requests/output_tokens_true"]
    results = results_of(tmp_path / "old", run)
    assert results.metric("jain_served")[0] == pytest.approx(known, abs=0.1)
    assert results.metric("slo_attainment[ttft=2]")[0] > 0


def test_unknown_metrics_and_slos_are_one_line(tmp_path: Path) -> None:
    results = results_of(tmp_path, random_run(0, 20))
    for name, text in (("slo_attainment[tft=1]", "did you mean 'ttft'"),
                       ("goodput_per_s[ttft]", "is not metric=seconds"),
                       ("jain[ttft=1]", "no metric")):
        with pytest.raises(ResultsError, match=text.replace("?", ".")) as caught:
            results.metric(name)
        assert "\n" not in str(caught.value)
    (tmp_path / "mine/run/points/k0000.h5").unlink()
    with pytest.raises(ResultsError, match="no such file"):
        Results.load("mine/run", tmp_path).metric("jain_served")


@pytest.mark.parametrize("text", ["", "ttft", "ttft=", "ttft=x", "ttft=0", "ttft=-1", "ttft=inf",
                                  "ttft=1,ttft=2", "tft=1", "ttft=1,"])
def test_bad_slos_are_refused(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        slo_limits.parse(text)
    assert "\n" not in str(caught.value)


def test_slos_have_one_form() -> None:
    assert slo_limits.parse("ttft=1.0, tpot_s=0.1") == (("tpot", 0.1), ("ttft", 1.0))
    assert slo_limits.text(slo_limits.parse("ttft=1,latency=20")) == "latency=20,ttft=1"


def test_a_million_requests_take_seconds(tmp_path: Path) -> None:
    run = random_run(1, 1_000_000, adapters=40_000)
    results = results_of(tmp_path, run)
    with h5py.File(tmp_path / "mine/run/points/k0000.h5") as file:
        assert len(file["requests/status"]) == 1_000_000
    start = time.process_time()
    for name in (*service.METRICS, "slo_attainment[ttft=1]", "goodput_per_s[ttft=1]"):
        assert np.isfinite(results.metric(name)).all(), name
    assert time.process_time() - start < 20  # 3 s where this was written
