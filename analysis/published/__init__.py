"""Published values of the papers, one CSV per paper: figure, metric, technique, x, y, source.

x is empty where a value does not belong to a sweep position; y is in the unit of the metric's name.
What a paper claims in a sentence is in experiments/claims.yaml instead.

slora_a10g.csv and peft_a10g.csv have columns of their own (engine/calibrate/measured_rows.h): what
S-LoRA's authors measured on an A10G in its synthetic benchmarks, of S-LoRA and of Hugging Face PEFT
(numbers out of S-LoRA/S-LoRA@c1ddf48878, Apache-2.0, the file below benchmarks/ of each in
`source`), as data/slora_rows.py writes them. The runs are the later ones where it has two series of
a benchmark; the skewed ones, and those without adapters at 2 requests/s, it has in the earlier
series (backup) only. A setting that several benchmarks share has a row for each.

vllm*.csv hold what the placement paper's authors measured of vLLM (FerranAgulloLopez/
GPULLMAdapterOptimization@bae36e2dad, Apache-2.0), with keys of a spec as columns: the runs that
validate the twin of vLLM 0.8.5, and those of vLLM 0.5.0 behind the paper's Figure 1 (five minutes,
250 + 231 tokens, A_max 0 for as many slots as adapters).
"""
from __future__ import annotations

import csv
import functools
from pathlib import Path

import numpy as np

from analysis.claim_file import Claim, load_claims

Row = dict[str, str]


@functools.cache
def _rows(paper: str) -> tuple[Row, ...]:
    path = Path(__file__).with_name(f"{paper}.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def table(name: str) -> tuple[Row, ...]:
    """Every row of <name>.csv, as text by column."""
    return _rows(name)


def _select(spec_id: str, metric: str, technique: str) -> list[Row]:
    paper, figure = spec_id.split("/")
    return [row for row in _rows(paper) if (row["figure"], row["metric"], row["technique"])
            == (figure, metric, technique)]


def curve(spec_id: str, metric: str, technique: str) -> tuple[np.ndarray, np.ndarray]:
    """Published x and y of one technique, such as ("dlora/fig10", ..., "dlora"); maybe empty."""
    rows = [row for row in _select(spec_id, metric, technique) if row["x"]]
    return np.array([float(row["x"]) for row in rows]), np.array([float(row["y"]) for row in rows])


def value(spec_id: str, metric: str, technique: str) -> float:
    """A published single value; KeyError when there is none."""
    rows = [row for row in _select(spec_id, metric, technique) if not row["x"]]
    if not rows:
        raise KeyError(f"nothing published for {spec_id} {metric} {technique}")
    return float(rows[0]["y"])


@functools.cache
def _claims() -> dict[str, Claim]:
    return load_claims()


def claim(name: str) -> float:
    """The number of a claim in experiments/claims.yaml, such as "dlora/fig14-slora"."""
    return _claims()[name].published


def find(name: str) -> float | None:
    """The same, or None where nothing is claimed under that name."""
    return _claims()[name].published if name in _claims() else None
