"""The models of the placement paper's section 6 (scikit-learn): throughput (regression) and
starvation (classification) by random forests, KNN and SVM, searched over appendix B's grids; and
the refinement of 6.1 to one tree of few rules."""
from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import (HalvingGridSearchCV, KFold, StratifiedKFold,
                                     cross_val_predict)
from sklearn.metrics import f1_score, make_scorer
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

SEED = 0
FOLDS = 5
MOST_RULES = 32
# What a rule must be worth to be kept, in the score that the tree is chosen by: percent of SMAPE,
# and macro-F1.
PENALTY = {"throughput": 0.02, "starvation": 0.0005}
TARGETS = ("throughput", "starvation")

_FOREST_GRID = {"n_estimators": [32, 128, 256], "max_depth": [None, 5, 10, 20],
                "min_samples_split": [2, 5, 10, 20], "min_samples_leaf": [1, 2, 5, 10, 32, 128]}
_SVM_GRID = {"C": [0.1, 1, 10, 100, 1000, 10000], "kernel": ["linear", "poly", "rbf", "sigmoid"],
             "degree": [2, 3, 4, 5], "gamma": ["scale", "auto", 0.01, 0.1, 1, 10],
             "coef0": [0, 0.1, 0.5, 1]}
# Appendix B. `auto` for max_features is 1.0 in today's scikit-learn.
GRIDS: dict[str, dict[str, dict[str, list[Any]]]] = {
    "throughput": {
        "rf": _FOREST_GRID | {"criterion": ["squared_error", "absolute_error", "friedman_mse",
                                            "poisson"], "max_features": [1.0, "sqrt", "log2"]},
        "svm": _SVM_GRID | {"epsilon": [0.1, 0.5, 1, 5]},
        "knn": {"p": [1, 2]}},
    "starvation": {
        "rf": _FOREST_GRID | {"criterion": ["gini", "entropy", "log_loss"],
                              "max_features": [None, "sqrt", "log2"]},
        "svm": _SVM_GRID,
        "knn": {"p": [1, 2]}},
}
# Where no search has been run: scikit-learn's own defaults, of the grid.
UNSEARCHED: dict[str, dict[str, dict[str, Any]]] = {
    "throughput": {"rf": {"n_estimators": 128}, "svm": {"C": 10000, "gamma": "scale"},
                   "knn": {"p": 1}},
    "starvation": {"rf": {"n_estimators": 128}, "svm": {"C": 100, "gamma": "scale"},
                   "knn": {"p": 1}},
}


def smape(predicted: np.ndarray, true: np.ndarray) -> float:
    """100 mean(|a - b| / (|a| + |b|)), in percent, as the paper's; 0 where both are 0."""
    total = np.abs(predicted) + np.abs(true)
    return float(100 * np.mean(np.divide(np.abs(predicted - true), total, where=total > 0,
                                         out=np.zeros_like(total))))


def macro_f1(predicted: np.ndarray, true: np.ndarray) -> float:
    return float(f1_score(true, predicted, average="macro", labels=[False, True],
                          zero_division=1.0))


def make(target: str, family: str, settings: dict[str, Any]) -> BaseEstimator:
    """An estimator that is not fitted yet. SVMs see standardised features."""
    is_regression = target == "throughput"
    if family == "knn":
        kind = KNeighborsRegressor if is_regression else KNeighborsClassifier
        return kind(n_neighbors=1, leaf_size=8, weights="uniform", algorithm="kd_tree", **settings)
    if family == "svm":
        svm = SVR(**settings) if is_regression else SVC(random_state=SEED, **settings)
        return make_pipeline(StandardScaler(), svm)
    kind = RandomForestRegressor if is_regression else RandomForestClassifier
    return kind(random_state=SEED, **settings)


def folds(target: str) -> Any:
    kind = KFold if target == "throughput" else StratifiedKFold
    return kind(FOLDS, shuffle=True, random_state=SEED)


def search(target: str, family: str, x: np.ndarray, y: np.ndarray) -> tuple[dict[str, Any], float]:
    """The settings that halving leaves, and their score: - SMAPE, or macro-F1."""
    score = (make_scorer(lambda true, predicted: -smape(predicted, true))
             if target == "throughput" else
             make_scorer(lambda true, predicted: macro_f1(predicted, true)))
    prefix = "svr__" if target == "throughput" else "svc__"
    grid = {(prefix if family == "svm" else "") + name: values
            for name, values in GRIDS[target][family].items()}
    halving = HalvingGridSearchCV(make(target, family, {}), grid, scoring=score, cv=folds(target),
                                  random_state=SEED, refit=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # candidates that do not converge, or fit no rows
        halving.fit(x, y)
    return ({name.removeprefix(prefix): value for name, value in halving.best_params_.items()},
            float(halving.best_score_))


def out_of_fold(model: BaseEstimator, target: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What the model predicts of each row when it has not seen it."""
    return cross_val_predict(model, x, y, cv=folds(target))


# Margins are tried in steps of a hundredth, up to twice the rates.
_MARGINS = np.arange(101) / 100


# Values of A_max that Algorithm 2 tries (kTestingPoints), after none.
_STEPS = np.array([0, 8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384], dtype=np.float32)


def margin(throughput: BaseEstimator, starvation: BaseEstimator, x: np.ndarray,
           starved: np.ndarray) -> float:
    """The least share by which to take the rates of GPUs `x` too high so that of those that starved
    none would be proposed; the models must not have seen them. A GPU is proposed when it is
    predicted not to starve and Algorithm 2 would come to its A_max, which it raises as long as
    throughput is not predicted to fall. NaN where no margin is enough."""
    x = x[starved]
    below = x.copy()
    below[:, 6] = _STEPS[np.searchsorted(_STEPS, x[:, 6]) - 1]
    for share in _MARGINS:
        high, low = raised(x, share), raised(below, share)
        is_raised = (below[:, 6] == 0) | (throughput.predict(high) >= throughput.predict(low))
        if not (is_raised & ~starvation.predict(high)).any():
            return float(share)
    return float("nan")


def raised(x: np.ndarray, share: float) -> np.ndarray:
    """Features at rates that are higher by a share, in single precision (engine's
    PackingModels::raised)."""
    x = x.copy()
    x[:, 1:3] *= np.float32(1 + share)
    return x


def small_tree(target: str, x: np.ndarray, y: np.ndarray) -> Any:
    """One fitted tree of at most MOST_RULES rules: the number that does best out of fold, less
    PENALTY for each rule. Errors of throughput count by their share of it."""
    best, best_score = None, -np.inf
    for rules in range(2, MOST_RULES + 1):
        if target == "throughput":
            weights = 1 / np.maximum(y, 1.0) ** 2
            tree = DecisionTreeRegressor(max_leaf_nodes=rules, random_state=SEED)
            guess = np.empty(len(y))
            for train, test in folds(target).split(x, y):
                guess[test] = tree.fit(x[train], y[train], weights[train]).predict(x[test])
            score = -smape(guess, y) - PENALTY[target] * rules
        else:
            weights = None
            tree = DecisionTreeClassifier(max_leaf_nodes=rules, random_state=SEED)
            score = macro_f1(out_of_fold(tree, target, x, y), y) - PENALTY[target] * rules
        if score > best_score:
            best_score = score
            best = type(tree)(max_leaf_nodes=rules, random_state=SEED).fit(x, y, weights)
    return best
