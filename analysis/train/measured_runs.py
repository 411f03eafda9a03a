"""Measured runs of a server (columns of analysis/published/vllm_*.csv), as models see them."""
from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from analysis.errors import shown
from analysis.train import table
from analysis.verb import VerbError

# Of a request of the measured runs: 224 prompt and 194 output tokens on average.
_TOKENS_OF_A_REQUEST = 224 + 194


def read(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Features and labels of measured runs (columns of analysis/published/vllm_*.csv)."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        x, tokens, starved = [], [], []
        for row in rows:
            count = int(row["workload.adapters.count"])
            ranks, rates = (_numbers(row[name]) for name in
                            ("workload.adapters.ranks", "workload.popularity.weights"))
            x.append(table.features(count, ranks, rates, int(row["engine.adapter_slots"])))
            tokens.append(float(row["measured.tokens_per_s"]))
            incoming = np.resize(rates, count).sum() * _TOKENS_OF_A_REQUEST
            starved.append(tokens[-1] < table.STARVED * incoming)
    except (KeyError, ValueError, UnicodeDecodeError) as problem:
        raise VerbError(f"{shown(path)}: is no table of measured runs ({problem})") from None
    except FileNotFoundError:
        raise VerbError(f"{shown(path)}: no such file") from None
    return np.array(x), {"throughput": np.array(tokens), "starvation": np.array(starved)}


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.strip("[] ").replace(",", " ").split()]
