"""The placement paper's models: fitted to the committed tables of simulated GPUs with the committed
settings, and judged by published runs of vLLM, which they were not fitted to. Times are not drawn:
what is drawn is the same each time (`make bench` prints them)."""
from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.errors import ResultsError
from analysis.train import flat, measured_runs, models, table
from analysis.train.cli import known_settings
from analysis.verb import VerbError

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "results/reference/placement"
SETTINGS = ROOT / "experiments/base/predictor/settings.yaml"
# A name for people: the data set's table, and the measured runs.
SERVERS = {"Llama": ("dataset_llama", "vllm_llama-3.1-8b_h100"),
           "Qwen": ("dataset_qwen", "vllm_qwen2.5-7b_h100")}


@dataclass(frozen=True)
class Training:
    x: np.ndarray
    labels: dict[str, np.ndarray]    # throughput, starvation
    settings: dict[str, Any]         # by target and family, as found by a search
    runs: np.ndarray                 # features of the measured runs
    measured: dict[str, np.ndarray]  # their labels

    def error(self, target: str, guess: np.ndarray) -> float:
        """Of the measured runs: percent of SMAPE, or macro-F1."""
        if target == "throughput":
            return models.smape(guess, self.measured[target])
        return models.macro_f1(guess.astype(bool), self.measured[target])


@functools.cache
def training(server: str) -> Training:
    name, runs = SERVERS[server]
    try:
        data = table.read(TABLES / f"{name}.csv.gz")
        x, tokens, starved = table.arrays(data.served)
        rows, measured = measured_runs.read(ROOT / "analysis/published" / f"{runs}.csv")
        return Training(x, {"throughput": tokens, "starvation": starved},
                        known_settings(SETTINGS, data.about["model"]), rows, measured)
    except VerbError as problem:
        raise ResultsError(TABLES, str(problem), "it comes with the repository") from None


@functools.cache
def fitted(server: str, target: str, family: str) -> Any:
    """rf, knn, svm, or tree: the one of few rules."""
    known = training(server)
    y = known.labels[target]
    if family == "tree":
        return models.small_tree(target, known.x, y)
    settings = known.settings.get(target, {}).get(family, models.UNSEARCHED[target][family])
    return models.make(target, family, settings).fit(known.x, y)


@functools.cache
def error(server: str, target: str, family: str) -> float:
    known = training(server)
    return known.error(target, fitted(server, target, family).predict(known.runs))


@functools.cache
def rules(server: str, target: str, family: str) -> int:
    return flat.flatten(fitted(server, target, family), merge_equal=family == "tree").rules
