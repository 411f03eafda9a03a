"""Placement paper Table 4: what is lost when a forest is refined to one tree of few rules."""
from __future__ import annotations

from pathlib import Path

from analysis.figures import _learned, _parts
from analysis.results import Results

FAMILIES = {"rf": "RF", "tree": "Small Tree"}
PAPER = {"Llama": {"rf": ("7.13e6", "4.39", "4.44e4", "0.95"),
                   "tree": ("32", "10.25", "16", "0.92")},
         "Qwen": {"rf": ("6.33e6", "5.28", "3.79e3", "0.99"),
                  "tree": ("16", "12.89", "15", "0.97")}}
TARGETS = ("throughput", "starvation")


def claim_value(results: Results, value: str) -> float:
    """Of the trees of both servers: rules, the most; error, SMAPE in percent; f1, the least."""
    if value == "rules":
        return max(_learned.rules(server, target, "tree")
                   for server in _learned.SERVERS for target in TARGETS)
    if value == "error":
        return max(_learned.error(server, "throughput", "tree") for server in _learned.SERVERS)
    if value == "f1":
        return min(_learned.error(server, "starvation", "tree") for server in _learned.SERVERS)
    raise KeyError(value)


def draw(results: Results, out: Path) -> list[Path]:
    rows = []
    for server in _learned.SERVERS:
        for family, name in FAMILIES.items():
            rows.append([server, name] + [
                text for target, digits in zip(TARGETS, (2, 3))
                for text in (f"{_learned.rules(server, target, family):.3g}",
                             f"{_learned.error(server, target, family):.{digits}f}")])
        rows += [[f"{server}, paper", FAMILIES[family], *published]
                 for family, published in PAPER[server].items()]
    heads = ["server", "model", "rules", "throughput, SMAPE %", "rules", "starvation, F1"]
    return _parts.draw_table(results, out, "tab04", heads, rows,
                             "models see simulated GPUs alone; judged by runs of vLLM 0.8.5")
