"""A point as vLLM's Prometheus metrics, in OpenMetrics text: a scrape of every replica ("engine")
at the end of each bin of /series, stamped in seconds since the start of the run.

Names, labels and buckets are those of vllm/v1/metrics/loggers.py (V1 engine; inter_token_latency
and request_time_per_output_token since 0.11). Gauges and token counters come from /series, the rest
from /requests: a request is in the histograms of the replica that served it last. What vLLM has no
metric for is `servelab:`. finished_reason is "length" where a request reached its limit, "stop"
where it ended before, and "abort" where it was rejected. inter_token_latency needs
record.token_times.
"""
from __future__ import annotations

import json
from collections import Counter
from typing import Iterator

import numpy as np

from analysis.errors import ResultsError
from analysis.h5_file import as_text
from analysis.point import Point
from analysis.summary import requests as stamps_of
from analysis.summary.requests import REJECTED, Requests

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
         40, 80, 160, 640, 2560)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
              40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920,
            7680)
# dataset of /series -> metric, what it is; counters are running sums of the bins
_GAUGES = {"num_requests_running": ("vllm:num_requests_running", "Running requests."),
           "num_requests_waiting": ("vllm:num_requests_waiting", "Waiting and swapped requests."),
           "kv_cache_usage_perc": ("vllm:kv_cache_usage_perc", "KV blocks in use, 0 to 1."),
           "adapters_resident": ("servelab:adapters_resident", "Adapters on the device.")}
_COUNTERS = {"prompt_tokens": ("vllm:prompt_tokens", "Prompt tokens prefilled."),
             "generation_tokens": ("vllm:generation_tokens", "Tokens generated."),
             "steps": ("servelab:steps", "Engine steps."),
             "merged_steps": ("servelab:merged_steps", "Steps in merged execution.")}


def lines(point: Point) -> Iterator[str]:
    """Raises ResultsError for a run without /series or of schema 1."""
    if not point.has("series/kv_cache_usage_perc"):
        raise ResultsError(point.path, "has no /series/kv_cache_usage_perc",
                           "run it again with record.series: true")
    settings = json.loads(as_text(point.read("spec/effective").item()))
    width = round(settings["record"]["series_bin_s"] * 1e9)
    scrapes = _Scrapes(point, width)
    yield from _of_series(point, scrapes)
    yield from _of_requests(point, scrapes)
    yield from _adapters(point, scrapes, settings)
    yield "# EOF"


class _Scrapes:
    """When each replica is scraped: the ends of its bins."""

    def __init__(self, point: Point, width: int) -> None:
        self.replica = point.read("series/replica")
        self.at = point.read("series/start") + width
        self.model = point.attribute("model")
        self.replicas = sorted({int(one) for one in self.replica})

    def times(self, replica: int) -> np.ndarray:
        return self.at[self.replica == replica]

    def labels(self, replica: int, more: str = "") -> str:
        return f'model_name="{_escaped(self.model)}",engine="{replica}"{more}'


def _of_series(point: Point, scrapes: _Scrapes) -> Iterator[str]:
    for dataset, (name, text) in _GAUGES.items():
        yield from _head(name, "gauge", text)
        values = point.read(f"series/{dataset}")
        for replica in scrapes.replicas:
            labels = scrapes.labels(replica)
            for at, value in zip(scrapes.times(replica), values[scrapes.replica == replica]):
                yield f"{name}{{{labels}}} {_number(value)} {_seconds(at)}"
    for dataset, (name, text) in _COUNTERS.items():
        yield from _head(name, "counter", text)
        values = point.read(f"series/{dataset}")
        for replica in scrapes.replicas:
            labels, grown = scrapes.labels(replica), np.cumsum(values[scrapes.replica == replica])
            for at, value in zip(scrapes.times(replica), grown):
                yield f"{name}_total{{{labels}}} {_number(value)} {_seconds(at)}"


def _of_requests(point: Point, scrapes: _Scrapes) -> Iterator[str]:
    r, replica = stamps_of.read(point), point.read("requests/replica")
    done = r.finished
    limit = point.read("requests/output_tokens_limit")
    reasons = {"stop": done & (r.output < limit), "length": done & (r.output >= limit),
               "abort": r.status == REJECTED}
    name = "vllm:request_success"
    yield from _head(name, "counter", "Requests that ended, by reason.")
    for one in scrapes.replicas:
        for reason, mask in reasons.items():
            ends = np.sort(r.end[mask & (replica == one)])
            labels = scrapes.labels(one, f',finished_reason="{reason}"')
            for at in scrapes.times(one):
                yield (f"{name}_total{{{labels}}} {np.searchsorted(ends, at, side='right')} "
                       f"{_seconds(at)}")
    more, started, entered = done & (r.output > 1), r.first >= 0, r.admitted >= 0
    per_token = (r.last - r.first) / np.maximum(r.output - 1, 1)
    histograms = [
        ("time_to_first_token_seconds", "Time to first token.", _TTFT, started, r.first,
         r.first - r.arrival),
        ("request_time_per_output_token_seconds", "Mean gap between a request's tokens.",
         _PER_TOKEN, more, r.last, per_token),
        ("e2e_request_latency_seconds", "Latency of finished requests.", _LATENCY, done, r.last,
         r.last - r.arrival),
        ("request_queue_time_seconds", "From arrival to the first step.", _LATENCY, entered,
         r.admitted, r.admitted - r.arrival)]
    for name, text, buckets, mask, happens, values in histograms:
        yield from _histogram(f"vllm:{name}", text, buckets, scrapes, replica[mask],
                              happens[mask], values[mask] / 1e9)
    if r.gaps is not None:
        yield from _histogram("vllm:inter_token_latency_seconds", "Gaps between tokens.",
                              _PER_TOKEN, scrapes, *_gaps(r, replica))


def _gaps(r: Requests, replica: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Replica, stamp and seconds of every gap, at the token that ends it."""
    assert r.token_times is not None and r.gaps is not None
    same = np.diff(r.tokens_of) == 0
    return replica[r.tokens_of[1:][same]], r.token_times[1:][same], r.gaps / 1e9


def _histogram(name: str, text: str, buckets: tuple[float, ...], scrapes: _Scrapes,
               replica: np.ndarray, happens: np.ndarray, seconds: np.ndarray) -> Iterator[str]:
    yield from _head(name, "histogram", text)
    for one in scrapes.replicas:
        order = np.argsort(happens[replica == one], kind="stable")
        stamps, values = happens[replica == one][order], seconds[replica == one][order]
        sums = np.concatenate([[0.0], np.cumsum(values)])
        # entry [b][n]: how many of the first n values are at most bucket b
        below = [np.concatenate([[0], np.cumsum(values <= bucket)]) for bucket in buckets]
        for at in scrapes.times(one):
            count, stamp = int(np.searchsorted(stamps, at, side="right")), _seconds(at)
            for bucket, grown in zip(buckets, below):
                labels = scrapes.labels(one, f',le="{float(bucket)}"')
                yield f"{name}_bucket{{{labels}}} {grown[count]} {stamp}"
            everything = scrapes.labels(one, ',le="+Inf"')
            yield f"{name}_bucket{{{everything}}} {count} {stamp}"
            yield f"{name}_count{{{scrapes.labels(one)}}} {count} {stamp}"
            yield f"{name}_sum{{{scrapes.labels(one)}}} {_number(sums[count])} {stamp}"


def _adapters(point: Point, scrapes: _Scrapes, settings: dict) -> Iterator[str]:
    """vLLM's gauge whose labels say which adapters run and wait, and whose value is the time."""
    name = "vllm:lora_requests_info"
    yield from _head(name, "gauge", "Adapters with running and with waiting requests.")
    slots = settings.get("engine", {}).get("adapter_slots", 0) or settings.get(
        "workload", {}).get("adapters", {}).get("count", 0)
    r, adapter = stamps_of.read(point), point.read("requests/adapter")
    changes = []  # (stamp, who, which, change)
    for i in np.flatnonzero((adapter >= 0) & (r.arrival <= r.run_end)).tolist():
        entry = int(r.admitted[i]) if r.admitted[i] >= 0 else int(r.end[i])
        changes += [(int(r.arrival[i]), 1, adapter[i], 1), (entry, 1, adapter[i], -1)]
        if r.admitted[i] >= 0:
            changes += [(entry, 0, adapter[i], 1), (int(r.end[i]), 0, adapter[i], -1)]
    changes.sort(key=lambda change: change[0])
    counts: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    held: dict[str, list[str]] = {}  # a series' samples stand together
    reached = 0
    for at in sorted(set(scrapes.at.tolist())):
        while reached < len(changes) and changes[reached][0] <= at:
            _, who, which, change = changes[reached]
            counts[who][which] += change
            reached += 1
        running, waiting = (",".join(f"adapter-{one}" for one in sorted(count) if count[one] > 0)
                            for count in counts)
        labels = (f'max_lora="{slots}",waiting_lora_adapters="{waiting}",'
                  f'running_lora_adapters="{running}"')
        held.setdefault(labels, []).append(f"{name}{{{labels}}} {_seconds(at)} {_seconds(at)}")
    for samples in held.values():
        yield from samples


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# TYPE {name} {kind}", f"# HELP {name} {text}"]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return f"{value:d}" if isinstance(value, (int, np.integer)) else repr(float(value))


def _seconds(time_ns: int) -> str:
    whole, fraction = divmod(int(time_ns), 1_000_000_000)
    return f"{whole}.{fraction:09d}".rstrip("0").rstrip(".")
