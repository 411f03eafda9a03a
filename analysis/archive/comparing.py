"""What moved between two archives beyond noise.

Points are paired by technique, sweep position and seed: both sides saw the same requests. A metric
moved at a (technique, position) when the 95 % t interval of the paired differences leaves out zero
(analysis/stats.py), and it still does so among all comparisons made: Benjamini and Hochberg's rule
keeps the expected share of false alarms among the alarms at 5 %. Equal values need no statistics,
and one seed allows none.
"""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis import stats
from analysis.results import Results

FALSE_ALARMS = 1 - stats.CONFIDENCE
SAME = 1e-9  # relative: below this, values differ by rounding only
Cell = tuple[str, tuple[tuple[str, str], ...]]  # technique, swept settings


@dataclass
class Change:
    """One metric of one technique at one sweep position."""

    metric: str
    cell: Cell
    a: float  # means over the common seeds
    b: float
    difference: stats.Estimate  # b - a
    moved: bool = False

    def text(self) -> str:
        technique, position = self.cell
        where = " ".join([technique, *(f"{name.split('.')[-1]}={value}"
                                       for name, value in position)])
        share = f"{100 * (self.b - self.a) / abs(self.a):+.3g} %, " if self.a else ""
        interval = (f"[{self.difference.low:.3g}, {self.difference.high:.3g}], "
                    f"{self.difference.n} seeds" if self.difference.n > 1 else "one seed")
        return (f"{self.metric} of {where}: {self.a:.4g} -> {self.b:.4g} ({share}"
                f"difference {self.difference.value:+.3g} {interval})")


@dataclass
class SpecDiff:
    """One spec that both archives hold."""

    spec_id: str
    pairs: int = 0                                            # points that both have
    same: int = 0                                             # comparisons with equal values
    changes: list[Change] = field(default_factory=list)       # with two seeds or more
    one_seed: list[Change] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)             # there in A, not in B
    new: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    build_ids: tuple[str, str] = ("", "")

    @property
    def moved(self) -> list[Change]:
        return [change for change in self.changes if change.moved]


def cells(results: Results) -> dict[Cell, dict[int, int]]:
    """Indices of points by technique, position and seed."""
    found: dict[Cell, dict[int, int]] = {}
    swept = results.sweep_columns
    for index, technique in enumerate(results.columns["technique"].tolist()):
        position = tuple((name[len("sweep."):], str(results.columns[name][index]))
                         for name in swept)
        seeds = found.setdefault((technique, position), {})
        if seeds.setdefault(int(results.columns["seed"][index]), index) != index:
            raise results.error(f"several points of {technique} with the same seed at one position")
    return found


def _name(cell: Cell) -> str:
    return " ".join([cell[0], *(f"{name}={value}" for name, value in cell[1])])


def compare(a: Results, b: Results) -> SpecDiff:
    """The differences from a to b; `moved` is decided by judge(), over all specs."""
    diff = SpecDiff(a.spec_id)
    diff.build_ids = (a.point(0).attribute("build_id"), b.point(0).attribute("build_id"))
    of_a, of_b = cells(a), cells(b)
    common = [cell for cell in of_a if cell in of_b]
    diff.lost += [f"{_name(cell)}: all seeds" for cell in of_a if cell not in of_b]
    diff.new += [f"{_name(cell)}: all seeds" for cell in of_b if cell not in of_a]
    for cell in common:
        gone, more = of_a[cell].keys() - of_b[cell].keys(), of_b[cell].keys() - of_a[cell].keys()
        diff.lost += [f"{_name(cell)}: seed {seed}" for seed in sorted(gone)]
        diff.new += [f"{_name(cell)}: seed {seed}" for seed in sorted(more)]
    metrics = [{name[len("summary."):] for name in r.columns if name.startswith("summary.")}
               for r in (a, b)]
    diff.lost += [f"metric {name}" for name in sorted(metrics[0] - metrics[1])]
    diff.new += [f"metric {name}" for name in sorted(metrics[1] - metrics[0])]
    columns = {name: (a.metric(name), b.metric(name)) for name in sorted(metrics[0] & metrics[1])}
    settings: dict[str, int] = {}
    for cell in common:
        pairs = [(of_a[cell][seed], of_b[cell][seed])
                 for seed in sorted(of_a[cell].keys() & of_b[cell].keys())]
        diff.pairs += len(pairs)
        for i, j in pairs:
            _compare_points(a, i, b, j, cell, diff, settings)
        for metric, (in_a, in_b) in columns.items():
            _compare_metric(metric, cell, in_a[[i for i, _ in pairs]],
                            in_b[[j for _, j in pairs]], diff)
    diff.settings = [f"{text} ({count} points)" for text, count in sorted(settings.items())]
    return diff


def _compare_metric(metric: str, cell: Cell, a: np.ndarray, b: np.ndarray, diff: SpecDiff) -> None:
    there, still = np.isfinite(a), np.isfinite(b)
    for which, told in ((there & ~still, diff.lost), (~there & still, diff.new)):
        if np.any(which):
            told.append(f"{metric} of {_name(cell)}: {int(np.count_nonzero(which))} of {len(a)} "
                        "seeds")
    a, b = a[there & still], b[there & still]
    if not len(a):
        return
    if np.allclose(b, a, rtol=SAME, atol=0):
        diff.same += 1
        return
    change = Change(metric, cell, float(a.mean()), float(b.mean()), stats.difference_ci(b, a))
    (diff.changes if len(a) > 1 else diff.one_seed).append(change)


def _compare_points(a: Results, i: int, b: Results, j: int, cell: Cell, diff: SpecDiff,
                    settings: dict[str, int]) -> None:
    """Settings that differ, and points that are VALID on one side only."""
    was, now = str(a.columns["status"][i]), str(b.columns["status"][j])
    if was != now:
        (diff.lost if was == "VALID" else diff.new).append(
            f"{_name(cell)}: seed {int(a.columns['seed'][i])} is {now}, was {was}")
    if a.columns["key"][i] == b.columns["key"][j]:
        return
    sides = []
    for results, index in ((a, i), (b, j)):
        point = results.point(index)
        try:
            sides.append(_flat(json.loads(point.read("spec/effective").item())))
        except Exception:  # results without settings: nothing to say about them
            return
    for name in sorted({*sides[0], *sides[1]}):
        old, new = (side.get(name, "(none)") for side in sides)
        if old != new:
            text = f"{name} {old} -> {new}"
            settings[text] = settings.get(text, 0) + 1


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        return {name: text for key, inner in value.items()
                for name, text in _flat(inner, f"{prefix}.{key}" if prefix else key).items()}
    return {prefix: json.dumps(value)}


def judge(diffs: list[SpecDiff]) -> None:
    """Marks the changes beyond noise, among all comparisons of values that differ."""
    changes = [change for diff in diffs for change in diff.changes]
    p_values = stats.adjusted([stats.t_p_value(change.difference) for change in changes])
    for change, p in zip(changes, p_values):
        change.moved = bool(p <= FALSE_ALARMS)
