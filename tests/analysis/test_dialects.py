"""Dialects of metrics against what the tools themselves compute, and our own against /summary."""
from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from servelab_runs import SPEC, needs_servelab, run

from analysis.summary import requests as stamps_of
from analysis.summary.cli import main
from analysis.summary.dialects import TABLES, guidellm, mlperf, servelab
from analysis.summary.requests import FINISHED, REJECTED, UNFINISHED, Requests
from analysis.summary.windows import whole

GOLDEN = ROOT / "tests" / "golden" / "dialects"


def made_of(entries: list[dict]) -> Requests:
    """Requests from the entries of stamps.json, or of loadgen.json, which lacks single tokens."""
    times = [entry["tokens"] for entry in entries]
    has_tokens = isinstance(times[0], list)
    codes = {"finished": FINISHED, "rejected": REJECTED, "unfinished": UNFINISHED}
    first = [one[0] if one else -1 for one in times] if has_tokens else None
    last = [one[-1] if one else -1 for one in times] if has_tokens else None
    counts = [len(one) for one in times] if has_tokens else times
    first = np.array(first or [entry["first"] for entry in entries])
    last = np.array(last or [entry["last"] for entry in entries])
    end = np.array([entry.get("end", entry.get("last")) for entry in entries])
    return Requests(
        arrival=np.array([entry["arrival"] for entry in entries]), admitted=first, first=first,
        last=last, end=end, prompt=np.array([entry.get("prompt", 1) for entry in entries]),
        output=np.array(counts), status=np.array([codes[entry.get("status", "finished")]
                                                  for entry in entries]), run_end=int(end.max()),
        token_offsets=np.concatenate([[0], np.cumsum(counts)]) if has_tokens else None,
        token_times=np.array(sum(times, [])) if has_tokens else None)


def values(dialect: str, requests: Requests) -> dict[str, float]:
    return {row.key: row.value for row in TABLES[dialect][1](whole(requests))}


@pytest.mark.parametrize("dialect", ["guidellm", "aiperf"])
def test_agrees_with_the_tool(dialect: str) -> None:
    requests = made_of(json.loads((GOLDEN / "stamps.json").read_text()))
    expected = json.loads((GOLDEN / "expected.json").read_text())[dialect]
    ours = values(dialect, requests)
    assert len(expected) > 30
    for key, value in expected.items():
        # GuideLLM merges changes of concurrency within 0.1 ms
        tolerance = 2e-3 if "concurrency" in key else 1e-6
        assert ours[key] == pytest.approx(float(value), rel=tolerance), key


def test_agrees_with_loadgen() -> None:
    golden = json.loads((GOLDEN / "loadgen.json").read_text())
    table = TABLES["mlperf"][1](whole(made_of(golden["samples"])))
    ours = {row.name: row.value for row in table}
    assert len(golden["summary"]) == 30
    for name, value in golden["summary"].items():
        # the system under test stamps some 0.1 ms before or after LoadGen does; rates have 2 digits
        tolerance = 1.5e6 if "(ns)" in name else 0.01 * value
        assert ours[name] == pytest.approx(value, abs=tolerance), name
    ordered = np.arange(1, 81)
    assert mlperf.nearest_rank(ordered, 90) == 73 and mlperf.nearest_rank(ordered, 99.9) == 80


def test_vllm_on_requests_that_can_be_checked_by_hand() -> None:
    ms = 1_000_000
    entries = [
        {"arrival": 100 * ms, "tokens": [200 * ms, 230 * ms, 250 * ms], "status": "finished",
         "end": 250 * ms, "prompt": 7},
        {"arrival": 150 * ms, "tokens": [350 * ms], "status": "finished", "end": 350 * ms,
         "prompt": 5},
        {"arrival": 160 * ms, "tokens": [], "status": "rejected", "end": 500 * ms, "prompt": 90}]
    ours = values("vllm", made_of(entries))
    assert ours["completed"] == 2 and ours["failed"] == 1 and ours["duration"] == 0.5
    assert ours["total_input_tokens"] == 12 and ours["total_output_tokens"] == 4
    assert ours["request_throughput"] == 4 and ours["output_throughput"] == 8
    assert ours["total_token_throughput"] == 32
    assert ours["mean_ttft_ms"] == 150 and ours["median_ttft_ms"] == 150
    assert ours["p90_ttft_ms"] == pytest.approx(190)
    assert ours["mean_tpot_ms"] == 25  # one request has tokens after its first
    assert ours["mean_itl_ms"] == 25 and ours["p90_itl_ms"] == pytest.approx(29)
    assert ours["mean_e2el_ms"] == 175 and ours["std_e2el_ms"] == 25
    assert ours["max_output_tokens_per_s"] == 4 and ours["max_concurrent_requests"] == 2


def test_what_the_tools_call_tpot_and_itl() -> None:
    requests = made_of(json.loads((GOLDEN / "stamps.json").read_text()))
    done = requests.select(requests.finished)
    gaps = done.gaps
    assert gaps is not None and len(gaps) == int((done.output - 1).sum())
    vllm, guide = values("vllm", requests), values("guidellm", requests)
    air, own = values("aiperf", requests), values("servelab", requests)
    assert vllm["mean_tpot_ms"] == pytest.approx(1e3 * own["tpot_mean_s"])
    assert vllm["mean_tpot_ms"] == pytest.approx(air["inter_token_latency_avg"])
    assert vllm["mean_itl_ms"] == pytest.approx(guide["inter_token_latency_ms_mean"])
    assert guide["time_per_output_token_ms_mean"] == pytest.approx(
        1e3 * own["latency_per_token_mean_s"])
    assert guide["time_per_output_token_ms_mean"] > 1.1 * vllm["mean_tpot_ms"]


def test_weighted_percentiles_take_the_first_value_that_reaches_the_share() -> None:
    ten = np.arange(1.0, 11.0)
    assert guidellm.percentile(ten, np.ones(10), 0.5) == 5
    assert guidellm.percentile(ten, np.ones(10), 0.51) == 6
    assert guidellm.percentile(np.array([1.0, 2.0]), np.array([1, 99]), 0.5) == 2
    assert guidellm.percentile(np.array([1.0, 2.0]), np.array([0, 1]), 0.001) == 2
    assert math.isnan(guidellm.percentile(np.array([]), np.array([]), 0.5))


# One technique gives requests up, and the end of the run cuts off the others; some never arrive.
CUT_OFF = {**SPEC, "cluster": {"stop_at_s": 4}, "engine": {"max_batch": 4},
           "techniques": [{"technique": "slora", "with": {"early_abort": True, "ttft_slo_s": 0.6}},
                          "dlora"],
           "workload": {"requests": 400, "adapters": {"count": 6, "ranks": [8]},
                        "arrivals": {"process": "poisson", "rate": 60},
                        "lengths": {"source": "lognormal", "prompt": 60, "output": 8}}}


@needs_servelab
@pytest.mark.parametrize("has_tokens", [True, False])
def test_our_own_is_the_summary_bit_for_bit(tmp_path: Path, has_tokens: bool, capfd) -> None:
    spec = {**CUT_OFF, "record": {"token_times": has_tokens}}
    results = run(tmp_path, spec, "runs")
    statuses = set()
    for index in range(len(results.columns["key"])):
        point = results.point(index)
        requests = stamps_of.read(point)
        statuses |= set(requests.status.tolist())
        summary = point.summary()
        rows = {row.key: row.value for row in servelab.table(whole(requests))}
        assert (requests.output == 1).any() and (requests.output > 1).any()
        for key, value in rows.items():
            if key.startswith("itl_"):
                continue
            assert value == summary[key] or math.isnan(value) and math.isnan(summary[key]), key
        if has_tokens:
            # From a histogram; between two gaps far apart any value is a percentile.
            assert rows["itl_mean_s"] == pytest.approx(summary["itl_mean_s"], rel=0.02)
            for percent in (50, 99):
                low, high = (np.percentile(requests.gaps, percent, method=side) / 1e9
                             for side in ("lower", "higher"))
                assert 0.98 * low <= summary[f"itl_p{percent}_s"] <= 1.02 * high
                assert low <= rows[f"itl_p{percent}_s"] <= high
        assert main([str(point.path), "--format", "json"]) == 0
        shown = json.loads(capfd.readouterr().out)["points"][0]["values"]
        assert shown == {key: value if math.isfinite(value) else None
                         for key, value in summary.items()}
        # the other tools know nothing of requests that were never sent
        sent = int((requests.arrival <= requests.run_end).sum())
        assert sent < len(requests)
        others = {name: values(name, requests) for name in ("vllm", "guidellm", "aiperf", "mlperf")}
        assert others["vllm"]["completed"] + others["vllm"]["failed"] == sent
        assert sum(others["guidellm"][f"requests_{state}"] for state in
                   ("comp", "inc", "err")) == sent
        assert others["aiperf"]["request_count"] == summary["requests_finished"]
        assert others["mlperf"]["samples_incomplete"] == sent - summary["requests_finished"]
        assert others["guidellm"]["duration"] == pytest.approx(summary["duration_s"])
    assert statuses == {UNFINISHED, FINISHED, REJECTED}


@needs_servelab
def test_without_tokens_a_dialect_says_how_to_record_them(tmp_path: Path, capfd) -> None:
    run(tmp_path, {**SPEC, "record": {}}, "plain")
    assert main(["plain", "--results", str(tmp_path / "results"), "--dialect", "vllm"]) == 0
    out = capfd.readouterr().out
    assert "record.token_times: true" in out
    lines = {line[:30].strip(): line.split()[-1] for line in out.splitlines()}
    assert lines["P99 ITL (ms)"] == "-" and lines["Mean ITL (ms)"] != "-"
    assert main(["plain", "--results", str(tmp_path / "results"), "--dialect", "aiperf",
                 "--format", "csv"]) == 0
    rows = [line for line in capfd.readouterr().out.splitlines() if "time_to_second" in line]
    assert rows and all("record.token_times" in row for row in rows)


def test_bad_requests_are_one_line(tmp_path: Path, capfd) -> None:
    for arguments, text in (
            (["none", "--results", str(tmp_path)], "collected.h5: no such file"),
            (["none", "--dialect", "sglang"], "argument --dialect"),
            (["none", "--steady", "--window", "1:2"], "not allowed with argument"),
            ([], "the following arguments are required"), ):
        assert main(arguments) == 2
        err = capfd.readouterr().err
        assert text in err and err.count("\n") == 1, err
