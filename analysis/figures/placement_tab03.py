"""Placement paper Table 3: how far nearest neighbours, random forests and support vectors are off
published runs of vLLM."""
from __future__ import annotations

from pathlib import Path

from analysis.figures import _learned, _parts
from analysis.results import Results

FAMILIES = {"knn": "KNN", "rf": "RF", "svm": "SVM"}
PAPER = {"Llama": {"knn": ("4.52", "0.95"), "rf": ("4.39", "0.95"), "svm": ("6.84", "0.98")},
         "Qwen": {"knn": ("5.28", "0.99"), "rf": ("5.28", "0.99"), "svm": ("7.46", "0.93")}}


def claim_value(results: Results, value: str) -> float:
    """rf-llama, rf-qwen: SMAPE in percent; f1-llama, f1-qwen; all: the largest SMAPE."""
    if value == "all":
        return max(_learned.error(server, "throughput", family)
                   for server in _learned.SERVERS for family in FAMILIES)
    kind, server = value.split("-")
    target = {"rf": "throughput", "f1": "starvation"}[kind]
    return _learned.error(server.capitalize(), target, "rf")


def draw(results: Results, out: Path) -> list[Path]:
    rows = []
    for server in _learned.SERVERS:
        runs = len(_learned.training(server).runs)
        for family, name in FAMILIES.items():
            rows.append([f"{server}, {runs} runs", name,
                         f"{_learned.error(server, 'throughput', family):.2f}",
                         f"{_learned.error(server, 'starvation', family):.3f}"])
        rows += [[f"{server}, paper", FAMILIES[family], *published]
                 for family, published in PAPER[server].items()]
    heads = ["server", "model", "throughput, SMAPE %", "starvation, macro-F1"]
    return _parts.draw_table(results, out, "tab03", heads, rows,
                             "models see simulated GPUs alone; judged by runs of vLLM 0.8.5")
