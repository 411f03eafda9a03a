"""Trees as the flat arrays of engine/predict/forest.h: preorder, so that a left child follows its
node; feature -1 marks a leaf."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Forest:
    """Trees one after another. `value`: thresholds, or what leaves predict."""

    roots: np.ndarray
    feature: np.ndarray
    right: np.ndarray
    value: np.ndarray

    @property
    def rules(self) -> int:
        """Leaves: the logical rules that the trees come to."""
        return int(np.count_nonzero(self.feature < 0))

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """As Forest::predict() does: the mean over the trees, added up in their order."""
        total = np.zeros(len(rows))
        for root in self.roots:
            at = np.full(len(rows), root)
            while (inner := self.feature[at] >= 0).any():
                asked = rows[np.arange(len(rows)), np.maximum(self.feature[at], 0)].astype(float)
                step = np.where(asked <= self.value[at], at + 1, self.right[at])
                at = np.where(inner, step, at)
            total += self.value[at]
        return total / len(self.roots)


def flatten(model: Any, merge_equal: bool = False) -> Forest:
    """Of scikit-learn's forests and trees: regressors' values, classifiers' probability of True.
    `merge_equal`: two leaves of one node that predict the same become one."""
    trees = [tree.tree_ for tree in getattr(model, "estimators_", [model])]
    column = int(np.flatnonzero(model.classes_)[0]) if hasattr(model, "classes_") else 0
    roots, nodes = [], []
    for tree in trees:
        roots.append(len(nodes))
        nodes += _preorder(tree, column, merge_equal, len(nodes))
    feature, right, value = zip(*nodes)
    return Forest(np.array(roots, dtype=np.int64), np.array(feature, dtype=np.int8),
                  np.array(right, dtype=np.int32), np.array(value, dtype=np.float64))


Node = tuple[int, int, float]  # feature, right child, value


def _preorder(tree: Any, column: int, merge_equal: bool, base: int) -> list[Node]:
    """The nodes of one tree, to stand at `base`."""
    leaf = {i for i in range(tree.node_count) if tree.children_left[i] < 0}
    value = {i: float(tree.value[i, 0, column]) for i in range(tree.node_count)}
    if merge_equal:
        for i in reversed(range(tree.node_count)):  # children have larger numbers
            left, right = int(tree.children_left[i]), int(tree.children_right[i])
            if i not in leaf and left in leaf and right in leaf and value[left] == value[right]:
                leaf.add(i)
                value[i] = value[left]
    order, rights, stack = [], {}, [(0, -1)]
    while stack:
        i, parent = stack.pop()
        if parent >= 0:
            rights[parent] = base + len(order)
        order.append(i)
        if i not in leaf:
            stack.append((int(tree.children_right[i]), i))
            stack.append((int(tree.children_left[i]), -1))
    return [(-1, 0, value[i]) if i in leaf else
            (int(tree.feature[i]), rights[i], float(tree.threshold[i])) for i in order]
