"""What a run's steps took, from /steps (`record.steps: true`)."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from analysis.results import Results

PARTS = ("attention", "collective", "dense", "host", "lora", "swap", "switching")  # not load_wait


def mean_s(results: Results, index: int, prefill: bool) -> float:
    """Mean time of the steps that compute prompts, or of those that only decode, from the start of
    their execution to its end (what they waited for loads before is not in it); NaN without any."""
    read = results.point(index).read_several(
        ["steps/prompt_tokens", *(f"steps/parts/{part}" for part in PARTS)])
    own = (read.pop("steps/prompt_tokens") > 0) == prefill
    return float(np.mean(sum(read.values())[own])) / 1e9 if own.any() else float("nan")
