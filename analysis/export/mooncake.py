"""A point's requests as Mooncake's JSON lines with our keys beside theirs: what
engine/workload/mooncake_trace.h reads. Mooncake (FAST'25) has `timestamp` (ms), `input_length`,
`output_length` and `hash_ids`; the last is left out, because prefix caching is not modelled and
requests therefore have no blocks to share.
"""
from __future__ import annotations

import json
from typing import Iterator

import numpy as np

from analysis.point import Point
from analysis.verb import VerbError

_OBJECTIVES = {"slo_ttft": "ttft_ms", "slo_tpot": "tpot_ms", "slo_latency": "latency_ms"}


def milliseconds(time_ns: int) -> str:
    """Exact to the nanosecond, as a JSON number."""
    whole, fraction = divmod(time_ns, 1_000_000)
    return f"{whole}.{fraction:06d}".rstrip("0").rstrip(".")


def lines(point: Point) -> Iterator[str]:
    """One line a request, in order of arrival; raises ResultsError and VerbError."""
    if not point.has("requests/output_tokens_true"):
        raise VerbError(f"{point.path}: is of schema 1, which lacks true output lengths; run it "
                        "again")
    read = {name: point.read(f"requests/{name}").tolist()
            for name in ("scheduled", "prompt_tokens", "output_tokens_true",
                         "output_tokens_limit", "adapter", "rank")}
    count = len(read["scheduled"])
    model = json.dumps(point.attribute("model"))
    has_models, has_sessions = point.has("requests/base_model"), point.has("requests/session")
    models = (point.read("requests/base_model").tolist() if has_models else [0] * count)
    sessions = point.read("requests/session").tolist() if has_sessions else [-1] * count
    objectives = {key: point.read(f"requests/{name}")
                  for name, key in _OBJECTIVES.items() if point.has(f"requests/{name}")}
    for i in range(count):
        adapter = read["adapter"][i]
        parts = [f'"timestamp": {milliseconds(read["scheduled"][i])}',
                 f'"input_length": {read["prompt_tokens"][i]}',
                 f'"output_length": {read["output_tokens_true"][i]}',
                 f'"max_tokens": {read["output_tokens_limit"][i]}',
                 f'"adapter": {adapter if adapter >= 0 else "null"}']
        if adapter >= 0:
            parts.append(f'"rank": {read["rank"][i]}')
        parts.append(f'"base_model": {models[i] if has_models else model}')
        if sessions[i] >= 0:
            parts.append(f'"session": {sessions[i]}')
        slo = _objective(objectives, i)
        if slo:
            parts.append(f'"slo": {{{slo}}}')
        yield "{" + ", ".join(parts) + "}"


def _objective(objectives: dict[str, np.ndarray], index: int) -> str:
    return ", ".join(f'"{key}": {milliseconds(int(values[index]))}'
                     for key, values in objectives.items() if values[index] >= 0)


def how_to_replay(point: Point, file: str) -> str:
    """What a spec needs to get the same requests again."""
    count = 1 + int(point.read("requests/adapter").max(initial=-1))
    return (f"the spec that ran it gets these requests again with\n"
            f"  workload.arrivals: {{process: replay, trace: {file}, origin: zero}}\n"
            f"  workload.lengths: {{source: trace}}\n"
            f"in place of its own arrivals and lengths (any spec: adapters.count at least {count})")
