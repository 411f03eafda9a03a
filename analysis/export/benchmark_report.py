"""A point as llm-d's Benchmark Report, revision 0.2.1 of the line 0.2. The schema is that of the
package llmd-benchmark-report 0.2.1, against whose models tests/analysis checks what is written.

Definitions are servelab's own (results/README.md, Metrics): latencies of finished requests in
seconds, linear percentiles, deviations of the population. A report has moments, a run in virtual
time has none: its stamps count from the Unix epoch, and so do those of every time series.
"""
from __future__ import annotations

import hashlib
import json
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Iterable

import numpy as np
import yaml

from analysis.h5_file import as_text
from analysis.point import Point
from analysis.summary import requests as stamps_of
from analysis.summary.requests import REJECTED, UNFINISHED, Requests

VERSION = "0.2.1"
TOOL = "servelab"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_OID, "servelab")
_PERCENTILES = {"p0p1": 0.1, "p1": 1, "p5": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75,
                "p90": 90, "p95": 95, "p99": 99, "p99p9": 99.9}
# lengths.source of a spec -> the report's kinds of distribution; all others are "other"
_DISTRIBUTIONS = {"fixed": "fixed", "uniform": "uniform", "normal": "gaussian"}


def lines(point: Point, out: Path) -> Iterable[str]:
    """The report as JSON, or as YAML for a file that ends in .yaml or .yml."""
    made = report(point)
    if out.suffix in (".yaml", ".yml"):
        return yaml.safe_dump(made, sort_keys=False).splitlines()
    return json.dumps(made, indent=2, allow_nan=False).splitlines()


def report(point: Point) -> dict[str, Any]:
    """Raises ResultsError for what the point lacks."""
    requests = stamps_of.read(point)
    effective = json.loads(as_text(point.read("spec/effective").item()))
    replicas = _replicas(point)
    load = _load(point, requests.sent, effective)
    results: dict[str, Any] = {"request_performance": _performance(point, requests)}
    sessions = _sessions(point, requests)
    if sessions:
        results["session_performance"] = {"sessions": sessions}
    results["observability"] = {
        "components": [_observed(point, replica, label=_label(point)) for replica in replicas],
        "drop_rate": {"units": "fraction", "mean": _share(requests.sent.status == REJECTED)}}
    return {"version": VERSION, "run": _run(point, requests),
            "scenario": {"stack": [_engine(point, effective, len(replicas))], "load": load},
            "results": results}


def _run(point: Point, requests: Requests) -> dict[str, Any]:
    key = point.attribute("key")
    text = (f"{point.attribute('spec_id')}: {point.attribute('technique')}, seed "
            f"{point.attribute('seed')}, {point.attribute('model')} on "
            f"{point.attribute('hardware')}, backend {point.attribute('backend')}")
    if point.attribute("reasons"):
        text += f"; INVALID: {point.attribute('reasons')}"
    return {"uid": str(uuid.uuid5(_NAMESPACE, key + point.attribute("content_digest"))),
            "eid": str(uuid.uuid5(_NAMESPACE, point.attribute("spec_id"))),
            "time": {"start": _moment(0), "end": _moment(requests.run_end),
                     "duration": f"PT{requests.run_end / 1e9:.9f}S"},
            "description": text,
            "keywords": [point.attribute("technique"), point.attribute("backend"),
                         point.attribute("status")]}


def _engine(point: Point, effective: dict[str, Any], replicas: int) -> dict[str, Any]:
    parallel = int(effective.get("cluster", {}).get("tensor_parallel", 1))
    config = {key: value for key, value in effective.items() if key != "workload"}
    return {"metadata": {"label": _label(point), "cfg_id": _hash(config)},
            "standardized": {
                "kind": "inference_engine", "tool": TOOL, "tool_version": _version(point),
                "role": "replica", "replicas": replicas,
                "model": {"name": point.attribute("model")},
                "accelerator": {"model": point.attribute("hardware"), "count": replicas * parallel,
                                "parallelism": {"tp": parallel}}},
            "native": {"args": {"technique": point.attribute("technique"),
                                "backend": point.attribute("backend")}, "config": config}}


def _load(point: Point, sent: Requests, effective: dict[str, Any]) -> dict[str, Any]:
    workload = effective.get("workload", {})
    kind = _DISTRIBUTIONS.get(workload.get("lengths", {}).get("source", ""), "other")
    has_text = point.attribute("backend") != "twin"  # the twin has lengths and no tokens
    standard: dict[str, Any] = {
        "tool": TOOL, "tool_version": _version(point),
        "source": "random" if has_text else "unknown",
        "input_seq_len": _length(kind, sent.prompt),
        "output_seq_len": _length(kind, _true_output(point, sent))}
    rate = workload.get("arrivals", {}).get("rate", 0)
    if rate > 0:
        standard["rate_qps"] = rate
    if point.has("requests/session"):
        standard["multi_turn"] = {"enabled": True}
    return {"metadata": {"cfg_id": _hash(workload)}, "standardized": standard,
            "native": {"config": workload}}


def _true_output(point: Point, sent: Requests) -> np.ndarray:
    """Lengths that the workload enforces; of schema 1 those that were produced."""
    name = "requests/output_tokens_true"
    return point.read(name) if point.has(name) else sent.output


def _length(kind: str, values: np.ndarray) -> dict[str, Any]:
    if not values.size:
        return {"distribution": "other", "value": 0.0}
    return {"distribution": kind, "value": float(values.mean()), "std_dev": float(values.std()),
            "min": int(values.min()), "max": max(1, int(values.max()))}


def _performance(point: Point, requests: Requests) -> dict[str, Any]:
    sent = requests.sent
    done = sent.select(sent.finished)
    latency = (done.last - done.arrival) / 1e9
    more = done.output > 1
    seconds = requests.run_end / 1e9
    tokens = {"input": int(sent.prompt[sent.first >= 0].sum()), "output": int(sent.output.sum())}
    aggregate = {
        "requests": _present({
            "total": len(sent), "failures": int(np.count_nonzero(sent.status == REJECTED)),
            "incomplete": int(np.count_nonzero(sent.status == UNFINISHED)),
            "input_length": statistics(done.prompt, "count"),
            "output_length": statistics(done.output, "count")}),
        "latency": _present({
            "time_to_first_token": statistics((done.first - done.arrival) / 1e9, "s"),
            "normalized_time_per_output_token": statistics(latency / done.output, "s/token"),
            "time_per_output_token": statistics(
                (done.last - done.first)[more] / 1e9 / (done.output[more] - 1), "s/token"),
            "inter_token_latency": (statistics(done.gaps / 1e9, "s/token")
                                    if done.gaps is not None else None),
            "request_latency": statistics(latency, "s")})}
    if seconds > 0:
        aggregate["throughput"] = {
            "input_token_rate": {"units": "tokens/s", "mean": tokens["input"] / seconds},
            "output_token_rate": {"units": "tokens/s", "mean": tokens["output"] / seconds},
            "total_token_rate": {"units": "tokens/s", "mean": sum(tokens.values()) / seconds},
            "request_rate": {"units": "queries/s", "mean": len(done) / seconds}}
    return _present({"aggregate": aggregate, "time_series": _rates(point)})


def _rates(point: Point) -> dict[str, Any] | None:
    """Tokens per second of all replicas by bin of /series."""
    if not point.has("series"):
        return None
    start = point.read("series/start")
    if not start.size:
        return None
    width = json.loads(as_text(point.read("spec/effective").item()))["record"]["series_bin_s"]
    bins, where = np.unique(start, return_inverse=True)
    made: dict[str, Any] = {}
    for name, dataset in (("input_token_rate", "prompt_tokens"),
                          ("output_token_rate", "generation_tokens")):
        sums = np.bincount(where, point.read(f"series/{dataset}"), len(bins))
        made[name] = _series("tokens/s", bins, sums / width)
    return {"throughput": made}


def _replicas(point: Point) -> list[int]:
    return list(range(len(point.read("replicas/busy"))))


def _observed(point: Point, replica: int, label: str) -> dict[str, Any]:
    """What /series has of one replica."""
    seen: dict[str, Any] = {"component_label": label, "replica_id": str(replica)}
    if not point.has("series/kv_cache_usage_perc"):
        return seen
    mine = point.read("series/replica") == replica
    if not mine.any():
        return seen
    start = point.read("series/start")[mine]
    aggregate, over_time = {}, {}
    for dataset, key, series_key, units in (
            ("kv_cache_usage_perc", "kv_cache_usage", "kv_cache_usage", "fraction"),
            ("num_requests_running", "running_requests", "num_requests_running", "count"),
            ("num_requests_waiting", "waiting_requests", "num_requests_waiting", "count")):
        values = point.read(f"series/{dataset}")[mine].astype(float)
        if np.isfinite(values).all():
            aggregate[key] = statistics(values, units)
            over_time[series_key] = _series(units, start, values)
    for dataset in ("prompt_tokens", "generation_tokens"):  # the report has them as counters
        grown = np.cumsum(point.read(f"series/{dataset}")[mine])
        over_time[dataset] = _series("count", start, grown)
    return {**seen, "aggregate": aggregate, "time_series": over_time}


def _sessions(point: Point, requests: Requests) -> dict[str, Any] | None:
    if not point.has("requests/session"):
        return None
    session = point.read("requests/session")
    inside = session >= 0
    count = len(np.unique(session[inside]))
    left = len(np.unique(session[inside & ~requests.finished]))
    return _present({"total": count, "succeeded": count - left,
                     "total_events": int(inside.sum()),
                     "total_events_completed": int((inside & requests.finished).sum()),
                     "events_per_session": statistics(np.bincount(session[inside]), "count")})


def statistics(values: np.ndarray, units: str) -> dict[str, Any] | None:
    """None where there is nothing to measure: the report has no NaN."""
    if not values.size:
        return None
    made: dict[str, Any] = {"units": units, "mean": float(values.mean()),
                            "stddev": float(values.std()), "min": float(values.min())}
    made |= {name: float(value) for name, value in
             zip(_PERCENTILES, np.percentile(values, list(_PERCENTILES.values())))}
    return {**made, "max": float(values.max())}


def _series(units: str, start_ns: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    return {"units": units, "series": [{"ts": _moment(int(at)), "value": float(value)}
                                       for at, value in zip(start_ns, values)]}


def _present(entries: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value is not None}


def _share(mask: np.ndarray) -> float:
    return float(mask.mean()) if mask.size else 0.0


def _moment(time_ns: int) -> str:
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (epoch + timedelta(microseconds=time_ns / 1000)).isoformat().replace("+00:00", "Z")


def _label(point: Point) -> str:
    return f"{TOOL}-{point.attribute('technique')}"


def _version(point: Point) -> str:
    return f"{point.context().get('servelab', 'unknown')}+{point.attribute('build_id', 'unknown')}"


def _hash(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
