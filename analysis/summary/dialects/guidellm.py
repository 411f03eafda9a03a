"""GuideLLM 0.8.1: GenerativeMetrics.compile and the console's tables (guidellm/benchmark/schemas/
metrics.py, guidellm/schemas/base/{request_stats,statistics}.py,
guidellm/benchmark/outputs/console.py).

Its TPOT is latency per output token, the first included, weighted by the request's tokens; what
others call TPOT is its ITL: a request's mean gap, weighted by its gaps. The weights make their
means sums over sums, and their percentiles those of tokens, not of requests. A percentile is the
first value whose cumulative share reaches it; nothing is interpolated. Latencies are of completed
requests; rates are of all requests, tokens of incomplete and errored ones included (ours:
unfinished, rejected). GuideLLM has no stamps of single tokens either: it spaces a request's
iterations evenly.
"""
from __future__ import annotations

import numpy as np

from analysis.summary.dialects._rows import NAN, Row, ratio
from analysis.summary.requests import REJECTED, UNFINISHED, Requests
from analysis.summary.windows import Part

TITLE = "GuideLLM 0.8.1"


def table(part: Part) -> list[Row]:
    r = part.requests.sent
    done = r.select(r.finished)
    one = np.ones(len(done))
    latency = done.last - done.arrival
    gaps = np.maximum(done.output - 1, 0)
    itl = (done.last - done.first) / np.maximum(gaps, 1)
    rows = [Row("Timings Dur (Sec)", "duration", _seconds(part))]
    states = (("Comp", r.finished), ("Inc", r.status == UNFINISHED), ("Err", r.status == REJECTED))
    rows += [Row(f"Requests {name} (Tot)", f"requests_{name.lower()}", np.count_nonzero(mask))
             for name, mask in states]
    rows += [Row(f"Input Tokens {name} (Tot)", f"input_tokens_{name.lower()}",
                 int(r.prompt[mask].sum())) for name, mask in states]
    rows += [Row(f"Output Tokens {name} (Tot)", f"output_tokens_{name.lower()}",
                 int(r.output[mask].sum())) for name, mask in states]
    return [*rows,
            *_stats("Request Latency", "Sec", "request_latency", latency / 1e9, one),
            *_stats("TTFT", "ms", "time_to_first_token_ms", (done.first - done.arrival) / 1e6, one),
            *_stats("ITL", "ms", "inter_token_latency_ms", itl / 1e6, gaps),
            *_stats("TPOT", "ms", "time_per_output_token_ms", latency / 1e6 / done.output,
                    done.output),
            *_rates(part)]


def _seconds(part: Part) -> float:
    """From the start of the run to the end of the last request, unless a window is given."""
    return part.window.seconds if part.window else part.requests.sent.end.max(initial=0) / 1e9


def _rates(part: Part) -> list[Row]:
    r, seconds = part.requests.sent, _seconds(part)
    concurrency, shares = concurrency_over_time(r)
    rows = [Row("Requests Concurrency Mdn", "request_concurrency_median",
                percentile(concurrency, shares, 0.5)),
            Row("Requests Concurrency Mean", "request_concurrency_mean",
                ratio(float((concurrency * shares).sum()), float(shares.sum())))]
    if part.window:
        ended, generated, prefilled = part.completed, part.generated, part.prefilled
    else:
        # an incomplete or errored request counts its prompt when it ends; every request ends
        ended, generated, prefilled = len(r), int(r.output.sum()), int(r.prompt.sum())
    return rows + [
        Row("Requests Per Sec Mean", "requests_per_second_mean", ratio(ended, seconds)),
        Row("Input Tokens Per Sec Mean", "prompt_tokens_per_second_mean",
            ratio(prefilled, seconds)),
        Row("Output Tokens Per Sec Mean", "output_tokens_per_second_mean",
            ratio(generated, seconds)),
        Row("Total Tokens Per Sec Mean", "tokens_per_second_mean",
            ratio(generated + prefilled, seconds))]


def concurrency_over_time(r: Requests) -> tuple[np.ndarray, np.ndarray]:
    """Requests at once from the start of the run to its last end, and how long (s) each level
    lasts."""
    stamps = np.concatenate([[0], r.arrival, r.end])
    change = np.concatenate([[0], np.ones(len(r), int), -np.ones(len(r), int)])
    order = np.argsort(stamps, kind="stable")
    level = np.cumsum(change[order])[:-1]
    seconds = np.diff(stamps[order]) / 1e9
    return level[seconds > 0].astype(float), seconds[seconds > 0]


def _stats(group: str, unit: str, key: str, values: np.ndarray, weights: np.ndarray) -> list[Row]:
    average = ratio(float((values * weights).sum()), float(weights.sum()))
    return [Row(f"{group} Mean ({unit})", f"{key}_mean", average),
            Row(f"{group} Mdn ({unit})", f"{key}_median", percentile(values, weights, 0.5)),
            *(Row(f"{group} p{p} ({unit})", f"{key}_p{p}", percentile(values, weights, p / 100))
              for p in (90, 95, 99))]  # the console has p95; its JSON also the others


def percentile(values: np.ndarray, weights: np.ndarray, q: float) -> float:
    """Percentiles.from_pdf: the first distinct value at which the cumulative share reaches q."""
    values, weights = values[weights > 0], weights[weights > 0]
    if not values.size:
        return NAN
    distinct, where = np.unique(values, return_inverse=True)
    combined = np.bincount(where, weights)
    reached = int(np.searchsorted(np.cumsum(combined / combined.sum()), q, side="left"))
    return float(distinct[min(reached, len(distinct) - 1)])
