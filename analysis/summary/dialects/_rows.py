"""A row of a dialect's table, and statistics that several dialects share."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NOT_RECORDED = ("needs every token's stamp, which this run did not keep: set record.token_times: "
                "true in the spec and run it again")
NAN = float("nan")


@dataclass(frozen=True)
class Row:
    """`name` is what the tool prints, `key` what its JSON calls it (or ours), `value` NaN where
    there is nothing to measure; `note` then says why, where the reason is not the run itself."""

    name: str
    key: str
    value: float
    note: str = ""


def ratio(above: float, below: float) -> float:
    return above / below if below else NAN


def mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if values.size else NAN


def std(values: np.ndarray) -> float:
    """Of the population (numpy's ddof=0), as vLLM, GuideLLM and AIPerf have it."""
    return float(np.std(values)) if values.size else NAN


def linear(values: np.ndarray, percent: float) -> float:
    """Interpolates between order statistics: position q (n - 1), numpy's default."""
    return float(np.percentile(values, percent)) if values.size else NAN
