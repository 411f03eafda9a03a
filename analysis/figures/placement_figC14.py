"""Placement paper Fig. C.14: two refined trees, Llama's for starvation and Qwen's for
throughput."""
from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from sklearn.tree import plot_tree

from analysis import style
from analysis.figures import _learned
from analysis.results import Results
from analysis.train.table import FEATURES

TREES = (("Llama", "starvation", "probability of starvation"),
         ("Qwen", "throughput", "tokens/s"))


def claim_value(results: Results, value: str) -> float:
    """rules: of the larger one."""
    if value != "rules":
        raise KeyError(value)
    return max(_learned.rules(server, target, "tree") for server, target, _ in TREES)


def draw(results: Results, out: Path) -> list[Path]:
    figure, panels = plt.subplots(2, 1, figsize=(style.TWO_COLUMNS_IN, 6.5), height_ratios=[1, 2])
    for axes, (server, target, unit) in zip(panels, TREES):
        plot_tree(_learned.fitted(server, target, "tree"), ax=axes, feature_names=list(FEATURES),
                  impurity=False, label="none", precision=2, fontsize=3, rounded=True,
                  proportion=True)
        axes.set_title(f"{server}: {unit}, {_learned.rules(server, target, 'tree')} rules",
                       fontsize=7)
    style.finish(figure, results, note="in each box: question, share of the simulated GPUs, value; "
                                       "left: yes")
    return style.save(figure, out, "figC14")
