"""Windows of a run: which requests they take, what their rates count, and the steady part."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from servelab_runs import SPEC, needs_servelab, run

from analysis.summary import windows
from analysis.summary.cli import main
from analysis.summary.dialects import TABLES
from analysis.summary.requests import FINISHED, Requests
from analysis.summary.windows import NotSteady, Window
from analysis.verb import VerbError

SECOND = 10**9


def served(arrival_s: np.ndarray, service_s: np.ndarray, tokens: int = 5,
           has_tokens: bool = True) -> Requests:
    """Requests that begin at once and produce their tokens at equal distances."""
    arrival = np.round(arrival_s * SECOND).astype(np.int64)
    last = np.round((arrival_s + service_s) * SECOND).astype(np.int64)
    times = np.round(np.linspace(arrival + 1, last, tokens, axis=1)).astype(np.int64)
    count = len(arrival)
    return Requests(arrival=arrival, admitted=arrival, first=times[:, 0], last=last, end=last,
                    prompt=np.full(count, 10), output=np.full(count, tokens),
                    status=np.full(count, FINISHED), run_end=int(last.max()),
                    token_offsets=np.arange(count + 1) * tokens if has_tokens else None,
                    token_times=times.ravel() if has_tokens else None)


def test_a_window_takes_arrivals_and_counts_what_happens_in_it() -> None:
    requests = served(np.arange(10.0), np.full(10, 2.5))
    part = windows.inside(requests, windows.between(requests, 2, 5))
    assert part.requests.arrival.tolist() == [2 * SECOND, 3 * SECOND, 4 * SECOND]
    assert part.completed == 3  # of arrivals at 0, 1 and 2, which end at 2.5, 3.5 and 4.5
    stamps = requests.token_times
    assert part.generated == ((stamps >= 2 * SECOND) & (stamps < 5 * SECOND)).sum() == 15
    assert part.prefilled == 30 and part.is_exact
    table = {row.key: row.value for row in TABLES["servelab"][1](part)}
    assert table["duration_s"] == 3 and table["requests_total"] == 3
    assert table["output_tokens_per_s"] == 5 and table["requests_per_s"] == 1
    assert table["latency_mean_s"] == pytest.approx(2.5)  # also of those that end after it
    for name in ("vllm", "guidellm", "aiperf", "mlperf"):
        rates = [row.value for row in TABLES[name][1](part)
                 if "output" in row.key and "throughput" in row.key and "user" not in row.name
                 and "E2E" not in row.name and "max" not in row.key
                 or row.key in ("output_tokens_per_second_mean",
                                "result_completed_tokens_per_second")]
        assert 5 in rates, (name, rates)


def test_windows_that_cover_the_run_have_its_totals() -> None:
    requests = served(np.sort(np.random.default_rng(1).uniform(0, 50, 200)),
                      np.random.default_rng(2).gamma(2, 1, 200))
    everything = windows.inside(requests, windows.between(requests, 0, None))
    assert len(everything.requests) == 200 and everything.completed == 200
    assert everything.generated == 1000 and everything.prefilled == 2000
    halves = [windows.inside(requests, windows.between(requests, a, b))
              for a, b in ((0, 25), (25, None))]
    assert sum(len(part.requests) for part in halves) == 200
    assert sum(part.completed for part in halves) == 200
    assert sum(part.generated for part in halves) == 1000


def test_without_stamps_tokens_are_spread_evenly() -> None:
    arrival, service = np.arange(0, 40, 0.5), np.full(80, 3.0)
    exact, spread = (windows.inside(requests, windows.between(requests, 10, 20)) for requests in
                     (served(arrival, service, 50), served(arrival, service, 50, False)))
    assert exact.is_exact and not spread.is_exact
    assert spread.generated == pytest.approx(exact.generated, rel=0.01)
    notes = {row.note for row in TABLES["servelab"][1](spread) if "tokens_per_s" in row.key}
    assert notes == {"tokens spread evenly over a request"}
    whole = served(arrival, service, 50, False)
    assert windows.inside(whole, windows.between(whole, 0, None)).generated == 4000


def test_warm_up_in_seconds_and_in_requests() -> None:
    requests = served(np.arange(10.0), np.full(10, 1.0))
    assert windows.parse_warm_up("2.5") == (2.5, 0)
    assert windows.parse_warm_up("3-requests") == (0.0, 3)
    by_time = windows.inside(requests, windows.after_warm_up(requests, 2.5, 0))
    by_count = windows.inside(requests, windows.after_warm_up(requests, 0, 3))
    assert by_time.requests.arrival.tolist() == by_count.requests.arrival.tolist()
    assert len(by_time.requests) == 7 and by_count.window.seconds == 7
    # of the request before, the last token comes as the window begins
    assert by_count.generated == 36 and by_count.completed == 8
    for text in ("x", "-1", "nan", "3-reqs", "-3-requests", "inf", "1.5-requests"):
        with pytest.raises(VerbError, match="must be seconds"):
            windows.parse_warm_up(text)
    for text in ("1", "2:1", "a:b", "1:1", "-1:2", "nan:2"):
        with pytest.raises(VerbError, match="A < B"):
            windows.parse_window(text)
    assert windows.parse_window(":9") == (0, 9) and windows.parse_window("3:") == (3, None)
    for seconds, count in ((99, 0), (0, 10)):
        with pytest.raises(VerbError, match="--warm-up"):
            windows.after_warm_up(requests, seconds, count)
    with pytest.raises(VerbError, match="no request arrives"):
        windows.inside(requests, Window(9 * SECOND + 1, 10 * SECOND, "9 to 10"))


def test_mser5_cuts_a_known_transient_and_nothing_of_noise() -> None:
    noise = np.random.default_rng(4).normal(0, 1, 500)
    step = np.where(np.arange(500) < 100, 20.0, 0.0)
    assert windows.mser5(noise + step) == 100
    assert windows.mser5(noise + 30 * np.exp(-np.arange(500) / 25)) in range(50, 160)
    assert windows.mser5(noise) <= 50
    assert windows.mser5(np.arange(500.0)) == 250  # it grows all along: as much as may be cut
    assert windows.mser5(np.full(500, 3.0)) == 0


def test_the_steady_part_begins_when_the_system_has_filled() -> None:
    # every request stays 30 s, so the system fills until 30 s and is level until the last arrival
    requests = served(np.arange(0, 300, 0.5), np.full(600, 30.0))
    steady = windows.steady(requests)
    assert 29 <= steady.start / SECOND <= 33
    assert steady.end == requests.arrival.max()
    level = windows.in_system(requests, int(requests.arrival.max()))
    assert level[0] < 2 and level[-1] == pytest.approx(60, abs=1)
    rng = np.random.default_rng(9)
    arrivals = np.cumsum(rng.exponential(0.05, 8000))
    noisy = windows.steady(served(arrivals, rng.exponential(10, 8000)))
    assert noisy.start / SECOND <= 200  # its level wanders, and has no trend


@pytest.mark.parametrize("load", [10, 30, 100, 300])
def test_steady_runs_are_seldom_refused(load: int) -> None:
    """M/M/infinity at `load` requests at once on average, for 40 times as long as one stays."""
    rng = np.random.default_rng(load)
    refused = 0
    for _ in range(100):
        arrivals = np.cumsum(rng.exponential(10 / load, 40 * load))
        try:
            windows.steady(served(arrivals, rng.exponential(10, 40 * load)))
        except NotSteady:
            refused += 1
    print(f" refused {refused} of 100 at load {load}")
    assert refused <= 5


def test_what_is_not_steady_is_said_to_be_so() -> None:
    arrivals = np.arange(0, 100, 0.1)
    with pytest.raises(NotSteady, match="grow"):  # one server, twice too slow
        windows.steady(served(arrivals, 0.2 * (np.arange(1000) + 1) - arrivals))
    late = np.where(arrivals < 40, 5.0, 5 + (arrivals - 40) / 2)  # level, then it grows
    with pytest.raises(NotSteady, match="grow"):
        windows.steady(served(arrivals, late))
    with pytest.raises(NotSteady, match="too few"):
        windows.steady(served(np.arange(50.0), np.full(50, 1.0)))
    with pytest.raises(NotSteady, match="at once"):
        windows.steady(served(np.zeros(500), np.full(500, 1.0)))


@needs_servelab
def test_an_overloaded_run_is_not_steady_and_a_lighter_one_is(tmp_path: Path, capfd) -> None:
    spec = {**SPEC, "techniques": ["slora"],
            "workload": {"requests": 1500, "adapters": {"count": 4, "ranks": [8]},
                         "arrivals": {"process": "poisson", "rate": 1},
                         "lengths": {"source": "lognormal", "prompt": 100, "output": 50}},
            "sweep": {"workload.arrivals.rate": [5, 60]}}
    results = run(tmp_path, spec, "load")
    arguments = ["load", "--results", str(tmp_path / "results"), "--steady", "--format", "json"]
    assert main(arguments) == 1
    light, heavy = json.loads(capfd.readouterr().out)["points"]
    assert "grow" in heavy["refusal"] and not heavy["values"]
    assert light["window"].startswith("steady from") and "refusal" not in light
    assert light["values"]["output_tokens_per_s"] == pytest.approx(
        results.metric("output_tokens_per_s")[0], rel=0.1)
    assert main(["load", "--results", str(tmp_path / "results"), "--steady"]) == 1
    assert "not steady: the requests in the system grow" in capfd.readouterr().out
    for extra in (["--warm-up", "20"], ["--warm-up", "100-requests"], ["--window", "20:60"]):
        assert main([str(results.point(0).path), *extra, "--format", "json"]) == 0
        values = json.loads(capfd.readouterr().out)["points"][0]["values"]
        assert 0 < values["requests_total"] < 1500
    assert main(["load", "--results", str(tmp_path / "results"), "--window", "9999:"]) == 2
    assert "--window: the run ends after" in capfd.readouterr().err
