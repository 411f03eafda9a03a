#!/usr/bin/env python3
"""Writes tests/golden/dialects: what GuideLLM, AIPerf and MLPerf LoadGen compute themselves from
the stamps of some requests. Only to make the fixtures anew; the tests read what is committed.

Made with:
    pip install guidellm==0.8.1 aiperf==0.13.0 mlcommons-loadgen==6.0.17
    python tests/golden/make_dialect_fixtures.py

stamps.json    requests: stamps in ns, tokens, status; 120 at random, of which some have one token,
               some are rejected, and one is unfinished
expected.json  guidellm, aiperf: their statistics of these requests
loadgen.json   a real run of LoadGen: the stamps that the system under test took, within some 0.1 ms
               of LoadGen's own, and LoadGen's summary
"""
from __future__ import annotations

import heapq
import json
import random
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace as Names
from typing import Any

OUT = Path(__file__).parent / "dialects"
STATS = ("mean", "median", "p90", "p95", "p99")


def make_requests() -> list[dict[str, Any]]:
    draw, at, made = random.Random(7), 0, []
    for index in range(120):
        at += int(draw.expovariate(1 / 120e6))
        tokens = 1 if index % 17 == 3 else draw.choice([2, 3, 8, 20, 20, 61])
        first = at + int(draw.gammavariate(2, 40e6))
        gaps = [int(draw.gammavariate(4, 5e6)) for _ in range(tokens - 1)]
        times = [first]
        for gap in gaps:
            times.append(times[-1] + gap)
        status = "rejected" if index % 29 == 5 else "finished"
        if status == "rejected":
            times, end = [], at + 30_000_000
        else:
            end = times[-1]
        made.append({"arrival": at, "tokens": times, "end": end, "status": status,
                     "prompt": draw.randint(1, 400)})
    made[-1].update(status="unfinished", tokens=made[-1]["tokens"][:1])
    run_end = max(one["end"] for one in made) + 5_000_000
    made[-1]["end"] = run_end
    return made


def guidellm(requests: list[dict[str, Any]]) -> dict[str, float]:
    from guidellm.benchmark.schemas.accumulator import GenerativeRequestsAccumulator
    from guidellm.benchmark.schemas.metrics import GenerativeMetrics
    from guidellm.schemas.base.info import RequestInfo, RequestTimings
    from guidellm.schemas.base.request import UsageMetrics
    from guidellm.schemas.base.request_stats import GenerativeRequestStats
    zero = 1e6  # its clock is not 0 at the start, which it would take for "not set"
    states: dict[str, list[Any]] = {"finished": [], "rejected": [], "unfinished": []}
    for index, one in enumerate(requests):
        times = [zero + at / 1e9 for at in one["tokens"]]
        timings = RequestTimings(
            resolve_start=zero + one["arrival"] / 1e9, request_start=zero + one["arrival"] / 1e9,
            first_token_iteration=times[0] if times else None,
            last_token_iteration=times[-1] if times else None, token_iterations=len(times),
            request_iterations=len(times), request_end=zero + one["end"] / 1e9,
            resolve_end=zero + one["end"] / 1e9)
        states[one["status"]].append(GenerativeRequestStats(
            request_id=str(index), info=RequestInfo(request_id=str(index), timings=timings),
            input_metrics=UsageMetrics(text_tokens=one["prompt"]),
            output_metrics=UsageMetrics(text_tokens=len(times) or None)))
    end = zero + max(one["end"] for one in requests) / 1e9
    held = {name: GenerativeRequestsAccumulator(requests_stats=stats)
            for name, stats in states.items()}
    metrics = GenerativeMetrics.compile(Names(
        timings=Names(finalized_measure_start=zero, finalized_measure_end=end),
        completed=held["finished"], incomplete=held["unfinished"], errored=held["rejected"],
        config=Names(confidence=None, slo=None, strategy=Names(defines_arrival_schedule=False))))
    out: dict[str, float] = {"duration": end - zero}
    for state, name in (("successful", "comp"), ("incomplete", "inc"), ("errored", "err")):
        out[f"requests_{name}"] = getattr(metrics.request_totals, state)
        out[f"input_tokens_{name}"] = getattr(metrics.prompt_token_count, state).total_sum
        out[f"output_tokens_{name}"] = getattr(metrics.output_token_count, state).total_sum
    for key in ("request_latency", "time_to_first_token_ms", "inter_token_latency_ms",
                "time_per_output_token_ms"):
        summary = getattr(metrics, key).successful
        for stat in STATS:
            out[f"{key}_{stat}"] = (getattr(summary, stat) if stat in ("mean", "median")
                                    else getattr(summary.percentiles, stat))
    for key in ("requests_per_second", "prompt_tokens_per_second", "output_tokens_per_second",
                "tokens_per_second", "request_concurrency"):
        out[f"{key}_mean"] = getattr(metrics, key).total.mean
    out["request_concurrency_median"] = metrics.request_concurrency.total.median
    return out


def aiperf(requests: list[dict[str, Any]]) -> dict[str, float]:
    import numpy as np
    from aiperf.metrics.derived_latency import _build_adjusted_metric_result
    from aiperf.metrics.metric_dicts import MetricRecordDict, metric_result_from_array
    from aiperf.metrics.types.e2e_output_throughput_metric import E2EOutputTokenThroughputMetric
    from aiperf.metrics.types.inter_token_latency_metric import InterTokenLatencyMetric
    from aiperf.metrics.types.output_sequence_length_metric import OutputSequenceLengthMetric
    from aiperf.metrics.types.output_token_throughput_metrics import (
        OutputTokenThroughputPerUserMetric)
    from aiperf.metrics.types.request_latency_metric import RequestLatencyMetric
    from aiperf.metrics.types.ttft_metric import TTFTMetric
    from aiperf.metrics.types.ttst_metric import TTSTMetric
    from aiperf.common.exceptions import NoMetricValue
    values: dict[str, list[float]] = {}
    types = (TTFTMetric, TTSTMetric, RequestLatencyMetric, OutputSequenceLengthMetric,
             InterTokenLatencyMetric, OutputTokenThroughputPerUserMetric,
             E2EOutputTokenThroughputMetric)
    for one in requests:
        if one["status"] != "finished":
            continue
        record = Names(request=Names(start_perf_ns=one["arrival"]), start_perf_ns=one["arrival"],
                       content_responses=[Names(perf_ns=at) for at in one["tokens"]],
                       token_counts=Names(output=len(one["tokens"]), reasoning=None,
                                          first_content_chunk_tokens=None))
        computed = MetricRecordDict()
        for kind in types:
            try:
                computed[kind.tag] = kind()._parse_record(record, computed)
                values.setdefault(kind.tag, []).append(computed[kind.tag])
            except NoMetricValue:
                pass
    out: dict[str, float] = {}
    errors = sum(one["status"] != "finished" for one in requests)
    for kind in types:
        array = np.array(values[kind.tag], dtype=float)
        result = metric_result_from_array(kind.tag, kind.header, "", array, float(array.sum()))
        scale = 1e-6 if kind.display_unit is not None else 1
        for stat in ("avg", "min", "max", "p99", "p90", "p50", "std"):
            out[f"{kind.tag}_{stat}"] = getattr(result, stat) * scale
        if kind in (TTFTMetric, RequestLatencyMetric, InterTokenLatencyMetric):
            adjusted = _build_adjusted_metric_result(kind.tag, kind, array, errors)
            for stat in ("p99", "p90", "p50"):
                value = getattr(adjusted, stat) * scale
                out[f"adj_{kind.tag}_{stat}"] = value if np.isfinite(value) else "inf"
    return out


def loadgen(samples: int = 80) -> dict[str, Any]:
    """A system under test whose every answer is planned, with one-token samples among them."""
    import mlperf_loadgen as lg
    draw, todo, ready = random.Random(3), [], threading.Condition()
    plan = [(draw.uniform(0.01, 0.05), draw.uniform(0.06, 0.2), draw.choice([1, 2, 5, 30]))
            for _ in range(samples)]
    stamps: dict[int, dict[str, Any]] = {}

    def answer() -> None:
        while True:
            with ready:
                while not todo or todo[0][0] > time.perf_counter():
                    ready.wait(max(0.0, todo[0][0] - time.perf_counter()) if todo else None)
                _, _, is_last, sample, tokens = heapq.heappop(todo)
            stamps[sample]["last" if is_last else "first"] = time.perf_counter_ns()
            response = [lg.QuerySampleResponse(sample, 0, 0, tokens)]
            (lg.QuerySamplesComplete if is_last else lg.FirstTokenComplete)(response)

    def issue(queries: list[Any]) -> None:
        with ready:
            for query in queries:
                first, last, tokens = plan[len(stamps)]
                if tokens == 1:
                    first = last - 1e-4  # one token: both come together
                now = time.perf_counter()
                stamps[query.id] = {"arrival": time.perf_counter_ns(), "tokens": tokens}
                heapq.heappush(todo, (now + first, len(stamps), False, query.id, 0))
                heapq.heappush(todo, (now + last, len(stamps), True, query.id, tokens))
            ready.notify_all()

    threading.Thread(target=answer, daemon=True).start()
    settings, log = lg.TestSettings(), lg.LogSettings()
    settings.scenario, settings.mode = lg.TestScenario.Server, lg.TestMode.PerformanceOnly
    settings.server_target_qps, settings.use_token_latencies = 40, True
    settings.min_query_count = settings.max_query_count = samples
    settings.min_duration_ms = 0
    with tempfile.TemporaryDirectory() as folder:
        output = lg.LogOutputSettings()
        output.outdir = folder
        log.log_output, log.enable_trace = output, False
        lg.StartTestWithLogSettings(lg.ConstructSUT(issue, lambda: None),
                                    lg.ConstructQSL(64, 64, lambda _: None, lambda _: None),
                                    settings, log)
        text = (Path(folder) / "mlperf_log_summary.txt").read_text()
    rows = [line.split(":", 1) for line in text.splitlines() if ":" in line]
    numbers = {name.strip(): float(value) for name, value in rows
               if name.strip().endswith(("(ns)", "per second"))
               and value.strip().lstrip("-").replace(".", "", 1).isdigit()}
    start = min(one["arrival"] for one in stamps.values())
    return {"samples": [{key: one[key] - (0 if key == "tokens" else start)
                         for key in ("arrival", "first", "last", "tokens")}
                        for one in stamps.values()],
            "summary": {name: value for name, value in numbers.items()
                        if "_latency" not in name}}


def main() -> None:
    OUT.mkdir(exist_ok=True)
    requests = make_requests()
    expected = {"guidellm": guidellm(requests), "aiperf": aiperf(requests)}
    for name, content in (("stamps", requests), ("expected", expected), ("loadgen", loadgen())):
        (OUT / f"{name}.json").write_text(json.dumps(content, indent=None if name == "stamps"
                                                     else 1) + "\n")


main()
