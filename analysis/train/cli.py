"""servelab train: the models that place adapters, from simulated GPUs.

  table SPEC       the points of SPEC that were run so far, as one table
  search TABLE     the best settings of every family over the paper's grids, into --settings;
                   searches that the file has are not run again
  fit TABLE        fit with those settings, write the predictor to --out, and say how far off it is:
                   out of fold, and of measured runs (--measured)
  gap PREDICTOR    by how many GPUs greedy placements miss the fewest that the predictor allows

Exit codes: 0; 1 when a disk fails; 2 for bad input.
"""
from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from analysis import verb
from analysis.errors import shown
from analysis.verb import OK, VerbError

FAMILIES = ("rf", "knn", "svm")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = verb.Parser(prog="servelab train", description=__doc__,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True, metavar="table|search|fit|gap")
    table = actions.add_parser("table", help="the points of a spec as one table")
    table.add_argument("spec", help="its id, such as placement/dataset_llama")
    table.add_argument("--results", type=Path, default=Path("results"), help="default: results")
    table.add_argument("--out", type=Path, required=True, help="FILE.csv or FILE.csv.gz")
    search = actions.add_parser("search", help="settings over the paper's grids")
    search.add_argument("table", type=Path)
    search.add_argument("--settings", type=Path, required=True, help="YAML; made or added to")
    search.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    fit = actions.add_parser("fit", help="fit, write the predictor, say how far off it is")
    fit.add_argument("table", type=Path)
    fit.add_argument("--out", type=Path, required=True, help="FILE.h5")
    fit.add_argument("--settings", type=Path, help="what search found; else scikit-learn's own")
    fit.add_argument("--measured", type=Path, help="CSV of measured runs (analysis/published)")
    fit.add_argument("--held-out", type=Path, help="table of other simulations, to calibrate the "
                     "margin of placements by; without it the margin is 0")
    fit.add_argument("--families", nargs="*", choices=FAMILIES, default=["rf"],
                     help="to compare; the predictor is of rf (default: rf)")
    fit.add_argument("--sizes", action="store_true", help="also how errors fall with more rows")
    gap = actions.add_parser("gap", help="GPUs beyond the fewest under the same predictor")
    gap.add_argument("predictor", type=Path, help="FILE.h5")
    gap.add_argument("--workloads", type=int, default=20, help="to draw (default: 20)")
    gap.add_argument("--servelab", default="build/servelab", help="default: build/servelab")
    return parser.parse_args(arguments)


def command(options: argparse.Namespace) -> int:
    if options.action == "table":
        return _table(options)
    if options.action == "gap":
        return _gap(options)
    return _search(options) if options.action == "search" else _fit(options)


def _table(options: argparse.Namespace) -> int:
    from analysis.train import table
    made = table.from_points(options.spec, options.results)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    table.write(made, options.out)
    starved = sum(row.starved for row in made.served)
    print(f"{shown(options.out)}: {len(made.rows)} rows ({len(made.served)} that start, "
          f"{starved} of them starved), {options.out.stat().st_size} bytes, build "
          f"{made.about['build_id']}")
    return OK


def _gap(options: argparse.Namespace) -> int:
    from analysis.train import gap, predictor_file
    margin = predictor_file.margin_of(options.predictor)
    placer = gap.Placer(options.servelab, options.predictor)
    if options.workloads < 1:
        raise VerbError("--workloads must be at least 1")
    shares = []
    for seed in range(options.workloads):
        workload = gap.draw(seed)
        found = placer.gpus(workload)
        least = gap.fewest(workload, placer.starvation, margin)
        rates = " ".join(f"{rate:g}" for rate, _ in workload.kinds)
        print(f"  {len(workload.rates)} adapters of rank {workload.rank}, rates {rates}: "
              f"{found or 'none'} GPUs, fewest {least or 'none'}", flush=True)
        if found and least:
            shares.append(found / least - 1)
    if not shares:
        raise VerbError(f"{shown(options.predictor)}: serves none of {options.workloads} workloads")
    print(f"{shown(options.predictor)}: {100 * np.mean(shares):.1f} % more GPUs than the fewest on "
          f"average over {len(shares)} workloads, {100 * max(shares):.0f} % at most")
    return OK


def known_settings(path: Path | None, model: str) -> dict[str, Any]:
    """By target and family; of other models the file may hold more."""
    if path is None or not path.is_file():
        return {}
    try:
        whole = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return whole.get(model, {})
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError):
        raise VerbError(f"{shown(path)}: is not what `servelab train search` writes") from None


def _search(options: argparse.Namespace) -> int:
    from analysis.train import models, table
    data = table.read(options.table)
    x, tokens, starved = _training(data, options.table)
    model = data.about["model"]
    for target in models.TARGETS:
        for family in options.families:
            found = known_settings(options.settings, model)
            if family in found.get(target, {}):
                print(f"{target} {family}: known")
                continue
            began = time.monotonic()
            best, score = models.search(target, family, x,
                                        tokens if target == "throughput" else starved)
            whole = (yaml.safe_load(options.settings.read_text(encoding="utf-8"))
                     if options.settings.is_file() else {})
            whole.setdefault(model, {}).setdefault(target, {})[family] = best
            options.settings.write_text(yaml.safe_dump(whole, sort_keys=True), encoding="utf-8")
            print(f"{target} {family}: {json.dumps(best)}, score {score:.4g} "
                  f"({time.monotonic() - began:.0f} s)", flush=True)
    return OK


def _training(data: Any, path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from analysis.train import models, table
    x, tokens, starved = table.arrays(data.served)
    if min(np.count_nonzero(starved), np.count_nonzero(~starved)) < models.FOLDS:
        raise VerbError(f"{shown(path)}: needs at least {models.FOLDS} rows that starve and as "
                        "many that do not; run more of the data set (`sample` in its spec)")
    return x, tokens, starved


def _fit(options: argparse.Namespace) -> int:
    from analysis.train import flat, measured_runs, models, predictor_file, table
    data = table.read(options.table)
    x, tokens, starved = _training(data, options.table)
    labels = {"throughput": tokens, "starvation": starved}
    known = known_settings(options.settings, data.about["model"])
    measured = measured_runs.read(options.measured) if options.measured else None
    print(f"{data.about['model']}: {len(x)} rows; throughput's SMAPE in percent, starvation's "
          "macro-F1; ms a prediction, one row at a time")
    held_out = _held_out(options.held_out, data.about) if options.held_out else None
    forests: dict[str, flat.Forest] = {}
    fits: list[Any] = []
    trees: list[Any] = []
    error = float("nan")
    for target in models.TARGETS:
        y = labels[target]
        for family in dict.fromkeys(["rf", *options.families]):
            settings = known.get(target, {}).get(family, models.UNSEARCHED[target][family])
            model = models.make(target, family, settings)
            guess = models.out_of_fold(model, target, x, y)
            model.fit(x, y)
            if family == "rf":
                forests[target] = flat.flatten(model)
                fits.append(model)
                if target == "throughput":
                    error = float(np.quantile(np.abs(guess - y) / np.maximum(guess, 1), 0.9))
            _tell(target, family, model, _rules(forests, target) if family == "rf" else "",
                  guess, y, measured)
        tree = models.small_tree(target, x, y)
        trees.append(tree)
        forests[target + "_rules"] = flat.flatten(tree, merge_equal=True)
        guess = models.out_of_fold(type(tree)(max_leaf_nodes=tree.get_n_leaves(),
                                              random_state=models.SEED), target, x, y)
        _tell(target, "tree", tree, _rules(forests, target + "_rules"), guess, y, measured)
    margins = [_margin(pair, held_out) for pair in (fits, trees)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    predictor_file.write(predictor_file.Predictor(data.about, x.min(axis=0), x.max(axis=0),
                                                  forests, error, (margins[0], margins[1])),
                           options.out)
    print(f"{shown(options.out)}: {options.out.stat().st_size} bytes; 90 % of throughputs are "
          f"within {100 * error:.1f} % out of fold; margins: forest {100 * margins[0]:.0f} %, tree "
          f"{100 * margins[1]:.0f} %" + (f", of {len(held_out[0])} held out" if held_out else ""))
    if options.sizes:
        _tell_sizes(x, labels, known, measured)
    return OK


# That starve, at least, before a margin says anything.
_LEAST_HELD_OUT = 20


def _held_out(path: Path, about: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Features of a table's rows, and which of them starved."""
    from analysis.train import table
    data = table.read(path)
    for name in ("model", "hardware"):
        if data.about[name] != about[name]:
            raise VerbError(f"{shown(path)}: is of {name} '{data.about[name]}', not "
                            f"'{about[name]}'")
    x, _, starved = table.arrays(data.served)
    count = np.count_nonzero(starved)
    if count < _LEAST_HELD_OUT:
        raise VerbError(f"{shown(path)}: has {count} rows that starve; a margin needs "
                        f"{_LEAST_HELD_OUT}")
    return x, starved


def _margin(pair: list[Any], held_out: tuple[np.ndarray, np.ndarray] | None) -> float:
    """Of the models of models.TARGETS."""
    from analysis.train import models
    if held_out is None:
        return 0.0
    found = models.margin(*pair, *held_out)
    if not np.isfinite(found):
        raise VerbError("with every margin up to 100 % a GPU that starves is proposed; train on "
                        "more rows")
    return found


def _rules(forests: dict[str, Any], name: str) -> str:
    return f"{forests[name].rules} rules"


def _scores(target: str, guess: np.ndarray, y: np.ndarray) -> str:
    from analysis.train import models
    return (f"{models.smape(guess, y):7.2f} %" if target == "throughput"
            else f"{models.macro_f1(guess.astype(bool), y):9.3f}")


def _tell(target: str, family: str, model: Any, rules: str, guess: np.ndarray, y: np.ndarray,
          measured: tuple[np.ndarray, dict[str, np.ndarray]] | None) -> None:
    rows = measured[0] if measured else np.zeros((1, 7), dtype=np.float32)
    began, count = time.perf_counter(), 50
    for i in range(count):
        model.predict(rows[i % len(rows)][None, :])
    each_ms = 1e3 * (time.perf_counter() - began) / count
    of_runs = f"; measured runs {_scores(target, model.predict(rows), measured[1][target])}" \
        if measured else ""
    print(f"  {target:10} {family:5} out of fold {_scores(target, guess, y)}{of_runs}; "
          f"{each_ms:.3f} ms; {rules}", flush=True)


def _tell_sizes(x: np.ndarray, labels: dict[str, np.ndarray], known: dict[str, Any],
                measured: Any) -> None:
    """Errors of forests of the first rows, whose keys are as good as shuffled."""
    from analysis.train import models
    for share in (1 / 8, 1 / 4, 1 / 2, 1):
        count = int(share * len(x))
        for target in models.TARGETS:
            settings = known.get(target, {}).get("rf", models.UNSEARCHED[target]["rf"])
            model = models.make(target, "rf", settings)
            y = labels[target][:count]
            guess = models.out_of_fold(model, target, x[:count], y)
            runs = ""
            if measured:
                of_runs = model.fit(x[:count], y).predict(measured[0])
                runs = f"; measured runs {_scores(target, of_runs, measured[1][target])}"
            print(f"  {count:6} rows: {target:10} out of fold {_scores(target, guess, y)}{runs}",
                  flush=True)


def main(arguments: list[str] | None = None) -> int:
    return verb.run(arguments, parse, command)
