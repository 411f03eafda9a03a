"""What CaraServe's Figures 17 and 18 share: LoRA of a layer by workers of this machine."""
from __future__ import annotations

import numpy as np

from analysis import steps
from analysis.results import Results


def at(results: Results, **settings: object) -> np.ndarray:
    """Indices of the points whose swept settings, by the last part of their names, are these."""
    mask = np.ones(len(results.columns["key"]), dtype=bool)
    for name, value in settings.items():
        mask &= results.columns[results.sweep(name)].astype(str) == str(value)
    return np.flatnonzero(mask)


def ms(results: Results, **settings: object) -> tuple[float, float, float]:
    """Data, computing, and the largest deviation of their sum between repeats; NaN without any."""
    times = np.array([steps.host_lora_s(results, index) for index in at(results, **settings)])
    if not times.size:
        return float("nan"), float("nan"), 0.0
    data, compute = 1e3 * times.mean(axis=0)
    return data, compute, 1e3 * float(np.ptp(times.sum(axis=1))) / 2


def swept(results: Results, name: str, **settings: object) -> list[int]:
    """The numbers that a swept setting has, ascending."""
    column = results.columns[results.sweep(name)]
    return sorted({int(column[index]) for index in at(results, **settings)})


def processors(results: Results) -> int:
    """Of the machine that the results are from."""
    return int(results.point(0).context()["processors"])


def note(results: Results) -> str:
    return (f"{processors(results)} processors, one of them the engine's: with more workers they "
            "share the rest; medians over prompts, bars: repeats")


def straight(x: list[int], y: list[float]) -> float:
    """R2 of a line."""
    slope, start = np.polyfit(x, y, 1)
    return float(1 - np.var(np.array(y) - slope * np.array(x) - start) / np.var(y))
