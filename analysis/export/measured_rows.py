"""Points as rows of `servelab calibrate --from` and `validate --measured`
(engine/calibrate/measured_rows.h): what was measured of a server that happens to be ours.

A row per point, and one for each of some of its steps where it has /steps: those that computed and
neither waited for a load nor ran merged weights.
"""
from __future__ import annotations

import csv
import io
import json
from typing import Iterator, Sequence

import numpy as np

from analysis import steps
from analysis.errors import shown
from analysis.h5_file import as_text
from analysis.point import Point
from analysis.verb import VerbError

MOST_STEPS = 100  # of one point, evenly spaced
# What rows cannot set, or say by themselves.
LEFT_OUT = ("backend", "hardware", "techniques")
COMPUTING = ("dense", "attention", "lora", "collective", "host")
OF_A_RUN = {"measured.tokens_per_s": "total_tokens_per_s", "measured.itl_s": "itl_mean_s",
            "measured.ttft_s": "ttft_mean_s"}


def lines(points: Sequence[Point]) -> Iterator[str]:
    rows: list[dict[str, object]] = []
    for point in points:
        settings = _settings(point)
        summary = point.summary()
        measured = {column: summary.get(name, np.nan) for column, name in OF_A_RUN.items()}
        measured["measured.load_s"] = steps.mean_load_s(point)
        rows.append(settings | {column: value for column, value in measured.items()
                                if np.isfinite(value)})
        rows += [settings | step for step in _steps(point)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    yield text.getvalue().removesuffix("\n")


def _settings(point: Point) -> dict[str, object]:
    sweep = json.loads(as_text(point.read("spec/sweep").item()))
    settings = {}
    for name, value in sweep.items():
        if name in LEFT_OUT:
            continue
        if isinstance(value, list):
            value = f"[{' '.join(str(one) for one in value)}]"
        elif isinstance(value, dict):
            raise VerbError(f"{shown(point.path)}: {name} is a map, which no row can set; sweep "
                            "its keys one by one")
        settings[name] = value
    return settings


def _steps(point: Point) -> Iterator[dict[str, object]]:
    if not point.has("steps"):
        return
    names = ("end", "replica", "merged", "adapters", "prompt_tokens", "requests")
    parts = [part for part in (*COMPUTING, "load_wait") if point.has(f"steps/parts/{part}")]
    read = point.read_several([f"steps/{name}" for name in names] +
                              [f"steps/parts/{part}" for part in parts])
    columns = {name.removeprefix("steps/"): values for name, values in read.items()}
    seconds = sum(columns[f"parts/{part}"] for part in parts if part in COMPUTING) / 1e9
    usable = (columns["merged"] < 0) & (columns["requests"] > 0) & (seconds > 0)
    if "load_wait" in parts:
        usable &= columns["parts/load_wait"] == 0
    chosen = np.flatnonzero(usable)
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(MOST_STEPS, len(chosen))).astype(int)]
    of_requests = ("replica", "first_token", "last_token", "prompt_tokens", "output_tokens")
    read = point.read_several([f"requests/{name}" for name in of_requests])
    replica, first, last, prompts, outputs = (read[f"requests/{name}"] for name in of_requests)
    for index in chosen:
        end = int(columns["end"][index])
        decodes = ((replica == columns["replica"][index]) & (first < end) & (last >= end) &
                   (outputs > 1))
        # Tokens come evenly from the first to the last.
        past = (end - first[decodes]) / (last[decodes] - first[decodes])
        keys = prompts[decodes] + 1 + (outputs[decodes] - 1) * past
        yield {"measured.itl_s": f"{seconds[index]:.9f}", "step.decodes": int(decodes.sum()),
               "step.prefill_tokens": int(columns["prompt_tokens"][index]),
               "step.adapters": int(columns["adapters"][index]),
               "step.context": round(float(keys.mean()), 1) if decodes.any() else 0}
