"""`vllm bench serve`: calculate_metrics and what it prints (vllm/benchmarks/serve.py at 009e6d4a;
the stamps are taken in vllm/benchmarks/lib/endpoint_request_func.py at 02cfb534).

Failed requests (ours: rejected, and unfinished ones, for which vLLM waits without end) are counted
and measured by nothing else. TPOT leaves the first token out; requests of one token have none. ITL
pools the gaps of all requests. The duration begins when the load generator starts, which may be
before the first request, and ends with the last request to end, failed ones included. Percentiles
are numpy's linear ones, deviations of the population. Warm-up requests (--num-warmups) are extra
requests before the run, so none of the run's are left out.
"""
from __future__ import annotations

import numpy as np

from analysis.summary.dialects._rows import NAN, NOT_RECORDED, Row, linear, mean, ratio, std
from analysis.summary.requests import Requests
from analysis.summary.windows import Part

TITLE = "vllm bench serve (vllm/benchmarks/serve.py, 009e6d4a)"
PERCENTILES = (90, 95, 99)  # --metric-percentiles 90,95,99; its default is 99 alone


def table(part: Part) -> list[Row]:
    r = part.requests.sent
    done = r.select(r.finished)
    inputs, outputs = int(done.prompt.sum()), int(done.output.sum())
    if part.window:
        seconds, completed = part.window.seconds, part.completed
        generated, prefilled = part.generated, float(part.prefilled)
    else:
        seconds, completed = (r.end.max(initial=0) / 1e9), len(done)
        generated, prefilled = outputs, inputs
    more = done.output > 1
    tpot = (done.last - done.first)[more] / (done.output[more] - 1)
    return [
        Row("Successful requests", "completed", len(done)),
        Row("Failed requests", "failed", len(r) - len(done)),
        Row("Benchmark duration (s)", "duration", seconds),
        Row("Total input tokens", "total_input_tokens", inputs),
        Row("Total generated tokens", "total_output_tokens", outputs),
        Row("Request throughput (req/s)", "request_throughput", ratio(completed, seconds)),
        Row("Output token throughput (tok/s)", "output_throughput", ratio(generated, seconds)),
        _peak_tokens(done),
        Row("Peak concurrent requests", "max_concurrent_requests", peak_concurrency(done)),
        Row("Total token throughput (tok/s)", "total_token_throughput",
            ratio(generated + prefilled, seconds)),
        *_latency("TTFT", "ttft", done.first - done.arrival),
        *_latency("TPOT", "tpot", tpot),
        *_itl(done),
        *_latency("E2EL", "e2el", done.last - done.arrival)]


def _latency(name: str, key: str, values_ns: np.ndarray, note: str = "") -> list[Row]:
    ms = values_ns / 1e6
    return [Row(f"Mean {name} (ms)", f"mean_{key}_ms", mean(ms), note),
            Row(f"Median {name} (ms)", f"median_{key}_ms", linear(ms, 50), note),
            Row(f"Std {name} (ms)", f"std_{key}_ms", std(ms), note),
            *(Row(f"P{p} {name} (ms)", f"p{p}_{key}_ms", linear(ms, p), note)
              for p in PERCENTILES)]


def _itl(done: Requests) -> list[Row]:
    if done.gaps is not None:
        return _latency("ITL", "itl", done.gaps)
    rows = _latency("ITL", "itl", np.array([]), NOT_RECORDED)
    gaps = int((done.output - 1).sum())  # the mean needs only the ends
    rows[0] = Row("Mean ITL (ms)", "mean_itl_ms",
                  ratio(int((done.last - done.first).sum()) / 1e6, gaps))
    return rows


def _peak_tokens(done: Requests) -> Row:
    """The fullest second, counted from the first successful request's start."""
    name, key = "Peak output token throughput (tok/s)", "max_output_tokens_per_s"
    if done.token_times is None:
        return Row(name, key, NAN, NOT_RECORDED)
    if not len(done):
        return Row(name, key, 0.0)
    second = (done.token_times - done.arrival.min()) // 1_000_000_000
    return Row(name, key, float(np.bincount(second).max()))


def peak_concurrency(done: Requests) -> int:
    """Most requests at once, over half-open intervals [a_i, l_i)."""
    stamps = np.concatenate([done.arrival, done.last])
    change = np.repeat([1, -1], len(done))
    order = np.lexsort((change, stamps))  # a departure goes before an arrival of the same moment
    return int(np.cumsum(change[order]).max(initial=0))
