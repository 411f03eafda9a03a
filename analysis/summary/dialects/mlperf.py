"""MLPerf LoadGen 6.0.17, Server scenario with token latencies: PerformanceSummary in
loadgen/results.cc, and what the package itself printed for a run with one-token samples.

A percentile p of n values is element floor(n p) of the sorted ones, so a nearest rank; all values
are whole nanoseconds, and means are divided as integers. TPOT is (latency - TTFT) / (tokens - 1).
A sample of one token is an error to LoadGen, which goes on with 0 tokens and a TPOT of -(latency -
TTFT), here 0. Rates count from the first sample's scheduled time to the end of the sample that was
issued last: samples less one, as the last one starts the next interval. LoadGen waits until every
sample is complete: rejected and unfinished requests have no place in its figures, and are named in
a row of ours. There is no warm-up.
"""
from __future__ import annotations

import numpy as np

from analysis.summary.dialects._rows import NAN, Row, ratio
from analysis.summary.windows import Part

TITLE = "MLPerf LoadGen 6.0.17, Server scenario"
PERCENTILES = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")


def table(part: Part) -> list[Row]:
    r = part.requests.sent
    done = r.select(r.finished)
    count = len(done)
    latency, ttft = done.last - done.arrival, done.first - done.arrival
    rest = latency - ttft
    tpot = np.where(done.output > 1, rest // np.maximum(done.output - 1, 1), -rest)
    tokens = int(done.output[done.output > 1].sum())
    if part.window:
        seconds = scheduled = part.window.seconds
        samples, tokens = part.completed, part.generated
    else:
        seconds = (done.last[-1] - done.arrival[0]) / 1e9 if count else 0.0
        scheduled = (done.arrival[-1] - done.arrival[0]) / 1e9 if count else 0.0
        samples = count - 1
    arrived = len(r) if part.window else samples
    return [Row("Completed samples per second", "result_completed_samples_per_sec",
                ratio(samples, seconds)),
            Row("Completed tokens per second", "result_completed_tokens_per_second",
                ratio(tokens, seconds)),
            Row("Scheduled samples per second", "result_scheduled_samples_per_sec",
                ratio(arrived, scheduled)),
            Row("Samples that never complete", "samples_incomplete", len(r) - count),
            *_latency("latency (ns)", "latency_ns", latency),
            *_latency("First Token latency (ns)", "first_token_latency_ns", ttft),
            *_latency("Time per Output Token (ns)", "time_per_output_token_ns", tpot)]


def _latency(name: str, key: str, values: np.ndarray) -> list[Row]:
    ordered = np.sort(values)
    low = name[0].lower() + name[1:]  # "50.00 percentile first token latency (ns)"
    low = low.replace("Token", "token").replace("Output", "output").replace("time per", "time to")
    rows = [Row(f"{stat} {name}", f"{stat.lower()}_{key}", value) for stat, value in (
        ("Min", float(ordered[0]) if values.size else NAN),
        ("Max", float(ordered[-1]) if values.size else NAN),
        ("Mean", float(int(values.sum()) // values.size) if values.size else NAN))]
    return rows + [Row(f"{p} percentile {low}", f"p{p}_{key}", nearest_rank(ordered, float(p)))
                   for p in PERCENTILES]


def nearest_rank(ordered: np.ndarray, percent: float) -> float:
    """Element floor(n p) of values in ascending order."""
    return float(ordered[int(len(ordered) * (percent / 100))]) if len(ordered) else NAN
