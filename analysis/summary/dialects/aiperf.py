"""AIPerf 0.13.0: aiperf/metrics/types/*, statistics of metric_result_from_array in
aiperf/metrics/metric_dicts.py, the columns of aiperf/exporters/console_metrics_exporter.py.

Its ITL is one value a request, (latency - TTFT) / (tokens - 1), so what others call TPOT. The
duration goes from the first valid request's start to the last valid response. Percentiles are
linear, deviations of the population. Errors (ours: rejected) are left out of every metric and
counted; where there are any, error-adjusted TTFT, latency and ITL take each as infinitely slow,
with numpy's method "nearest". What AIPerf makes of requests in flight when a timed run is cut off
was not established: unfinished ones are counted as errors here. Warm-up phases are separate
requests, which no metric counts.
"""
from __future__ import annotations

import numpy as np

from analysis.summary.dialects._rows import NAN, NOT_RECORDED, Row, linear, mean, ratio, std
from analysis.summary.requests import Requests
from analysis.summary.windows import Part

TITLE = "AIPerf 0.13.0"


def table(part: Part) -> list[Row]:
    r = part.requests.sent
    done = r.select(r.finished)
    errors = len(r) - len(done)
    latency, ttft = (done.last - done.arrival) / 1e6, (done.first - done.arrival) / 1e6
    more = done.output > 1
    itl = (done.last - done.first)[more] / 1e6 / (done.output[more] - 1)
    with np.errstate(divide="ignore"):
        per_user = 1e3 / itl[itl > 0]
        whole_rate = 1e3 * done.output[latency > 0] / latency[latency > 0]
    second, note = _second_token(done)
    rows = [*_stats("Time to First Token (ms)", "time_to_first_token", ttft),
            *_stats("Time to Second Token (ms)", "time_to_second_token", second, note),
            *_stats("Request Latency (ms)", "request_latency", latency),
            *_stats("Inter Token Latency (ms)", "inter_token_latency", itl),
            *_stats("Output Token Throughput Per User (tokens/sec/user)",
                    "output_token_throughput_per_user", per_user),
            *_stats("E2E Output Token Throughput (tokens/sec/user)", "e2e_output_token_throughput",
                    whole_rate),
            *_stats("Output Sequence Length (tokens)", "output_sequence_length", done.output),
            *_stats("Input Sequence Length (tokens)", "input_sequence_length", done.prompt)]
    if errors:
        for name, key, values in (("Time to First Token", "time_to_first_token", ttft),
                                  ("Request Latency", "request_latency", latency),
                                  ("Inter Token Latency", "inter_token_latency", itl)):
            rows += _adjusted(f"{name} (error-adjusted) (ms)", f"adj_{key}", values, errors)
    return rows + _totals(part, done, errors)


def _totals(part: Part, done: Requests, errors: int) -> list[Row]:
    if part.window:
        seconds, completed = part.window.seconds, part.completed
        generated, prefilled = part.generated, float(part.prefilled)
    else:
        seconds = ((done.last.max() - done.arrival.min()) / 1e9) if len(done) else 0.0
        completed = len(done)
        generated, prefilled = int(done.output.sum()), int(done.prompt.sum())
    return [Row("Output Token Throughput (tokens/sec)", "output_token_throughput",
                ratio(generated, seconds)),
            Row("Input Token Throughput (tokens/sec)", "input_token_throughput",
                ratio(prefilled, seconds)),
            Row("Request Throughput (requests/sec)", "request_throughput",
                ratio(completed, seconds)),
            Row("Request Count (requests)", "request_count", len(done)),
            Row("Error Request Count (requests)", "error_request_count", errors),
            Row("Benchmark Duration (sec)", "benchmark_duration", seconds)]


def _second_token(done: Requests) -> tuple[np.ndarray, str]:
    """Second stamp less the first, in ms, of requests with two tokens."""
    if done.token_times is None or done.token_offsets is None:
        return np.array([]), NOT_RECORDED
    starts = done.token_offsets[:-1][np.diff(done.token_offsets) > 1]
    return (done.token_times[starts + 1] - done.token_times[starts]) / 1e6, ""


def _stats(name: str, key: str, values: np.ndarray, note: str = "") -> list[Row]:
    numbers = {"avg": mean(values), "min": float(values.min()) if values.size else NAN,
               "max": float(values.max()) if values.size else NAN, "p99": linear(values, 99),
               "p90": linear(values, 90), "p50": linear(values, 50), "std": std(values)}
    return [Row(f"{name} {stat}", f"{key}_{stat}", number, note)
            for stat, number in numbers.items()]


def _adjusted(name: str, key: str, values: np.ndarray, errors: int) -> list[Row]:
    inflated = np.concatenate([values, np.full(errors, np.inf)])
    return [Row(f"{name} p{p}", f"{key}_p{p}",
                float(np.percentile(inflated, p, method="nearest"))) for p in (99, 90, 50)]
