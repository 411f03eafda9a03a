"""One spec's collected results as columns, with the point files behind them.

    results = Results.load("dlora/fig10")
    curve = results.curve("latency_per_token_mean_s", "dlora", "skewness")   # mean, CI over seeds
    a, b = results.pairs("latency_per_token_mean_s", "merged-only", "dlora", "skewness", 4)
"""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import numpy as np
import yaml

from analysis import stats, yaml_text
from analysis.errors import ResultsError, command_for, quoted
from analysis.h5_file import as_text, attributes as attributes_of, open_h5
from analysis.metrics import DERIVED, with_slo
from analysis.point import Point

REQUIRED = ("technique", "seed", "status", "key")
TEXTS = {**dict.fromkeys(("technique", "label", "technique_id", "key", "file", "status", "reasons",
                          "content_digest"), "O"), "seed": "iu"}  # kinds of these columns
FOOTER_ATTRIBUTES = ("backend", "hardware", "model", "trace")


@dataclass(frozen=True)
class Curve:
    """One technique over a sweep: per sweep value the mean over seeds and its interval."""

    technique: str
    x: np.ndarray
    estimates: list[stats.Estimate]
    invalid: np.ndarray  # per sweep value: whether a point behind it is INVALID

    @property
    def mean(self) -> np.ndarray:
        return np.array([estimate.value for estimate in self.estimates])

    @property
    def half_width(self) -> np.ndarray:
        return np.array([estimate.half_width for estimate in self.estimates])


class Results:
    """The columns of collected.h5: arrays of equal length, one entry per point, in spec order."""

    def __init__(self, path: Path, attributes: dict[str, str], columns: dict[str, np.ndarray]):
        self.path = path
        self.attributes = attributes
        self.columns = columns
        self.spec_id = attributes.get("spec_id", "")
        root = path.parents[len(Path(self.spec_id).parts)] if self.spec_id else path.parent
        self.remedy = f"run: {command_for(self.spec_id, root, attributes.get('spec_path', ''))}"
        self._points: dict[str, Point] = {}
        self._derived: dict[str, np.ndarray] = {}

    @classmethod
    def load(cls, spec_id: str, root: Path = Path("results")) -> "Results":
        """Reads root/<spec_id>/collected.h5; raises ResultsError."""
        path = root / spec_id / "collected.h5"
        remedy = f"run: {command_for(spec_id, root)}"
        with open_h5(path, remedy) as file:
            try:
                attributes = {name: as_text(value)
                              for name, value in attributes_of(file, path, remedy).items()}
                columns = {name: _column(file["columns"][name]) for name in file["columns"]}
            except (OSError, KeyError, RuntimeError, TypeError, AttributeError):
                raise ResultsError(path, "damaged or without /columns", remedy) from None
        for name, values in columns.items():
            expected = TEXTS.get(name, "iuf" if name.startswith("summary.") else "Oiuf")
            if values.ndim != 1 or values.dtype.kind not in expected:
                raise ResultsError(path, f"has a column of the wrong type: {quoted(name)}", remedy)
        attributes["spec_id"] = spec_id
        if "label" in columns:  # a technique that is listed twice has a curve for each label
            columns["technique"] = columns.pop("label")
        absent = [name for name in REQUIRED if name not in columns]
        lengths = {len(values) for values in columns.values()}
        if absent or len(lengths) != 1 or 0 in lengths:
            what = (f"has no column {', '.join(absent)}" if absent else
                    "has no points" if lengths == {0} else "has columns of different lengths")
            raise ResultsError(path, what, remedy)
        return cls(path, attributes, columns)

    def error(self, what: str) -> ResultsError:
        """Results that are whole, but not what the figure needs: another run changes nothing."""
        return ResultsError(self.path, what, f"change the spec or its `figure`, then {self.remedy}")

    def check(self) -> None:
        """Raises ResultsError when no point is VALID, or a point file behind the columns is absent,
        cut short, or not the one that was collected. Reads attributes only."""
        if self.invalid_count == len(self.columns["key"]):
            reasons = self.columns.get("reasons", [""])
            raise self.error(f"no point is VALID{': ' if reasons[0] else ''}{reasons[0]}")
        digests = self.columns.get("content_digest", [""] * len(self.columns["key"]))
        for index, key in enumerate(self.columns["key"].tolist()):
            point = self.point(index)
            if point.attribute("key") != key or (
                    digests[index] and point.attribute("content_digest") != digests[index]):
                raise ResultsError(point.path, "is not the point that was collected", self.remedy)

    @property
    def spec(self) -> dict[str, Any]:
        """The spec as parsed YAML; empty when it was not recorded."""
        try:
            parsed = yaml_text.parse(self.attributes.get("spec", ""))
        except yaml.YAMLError:
            raise self.error("the recorded spec is not YAML") from None
        return parsed if isinstance(parsed, dict) else {}

    @property
    def techniques(self) -> list[str]:
        return list(dict.fromkeys(self.columns["technique"].tolist()))

    @property
    def seeds(self) -> list[int]:
        return sorted({int(seed) for seed in self.columns["seed"]})

    @property
    def sweep_columns(self) -> list[str]:
        return [name for name in self.columns if name.startswith("sweep.")]

    @property
    def invalid_count(self) -> int:
        return int(np.count_nonzero(self.columns["status"] != "VALID"))

    def sweep(self, name: str = "") -> str:
        """The column of the swept setting whose path ends with `name`; the only one without."""
        found = [column for column in self.sweep_columns
                 if not name or column.split(".")[-1] == name or column == f"sweep.{name}"]
        varying = [column for column in found if len(set(self.columns[column].tolist())) > 1]
        for candidates in (found, varying):
            if len(candidates) == 1:
                return candidates[0]
        known = ", ".join(column[len("sweep."):] for column in self.sweep_columns) or "nothing"
        raise self.error(f"the figure needs one swept setting{' ' + name if name else ''}, "
                         f"the spec sweeps {known}")

    def metric(self, name: str) -> np.ndarray:
        """A metric of every point, as float: of its summary, or derived (analysis/metrics.py); NaN
        where a point has none."""
        column = f"summary.{name}"
        if column in self.columns:
            return self.columns[column].astype(float)
        try:
            derive = DERIVED.get(name) or with_slo(name)
        except ValueError as error:
            raise self.error(f"{name}: {error}") from None
        if derive is None:
            raise self.error(f"has no metric {column}")
        if name not in self._derived:
            self._derived[name] = derive(self)
        return self._derived[name]

    def select(self, **settings: Any) -> "Results":
        """The points with these values of swept settings, such as select(trace="maf2"). Truth
        values and lists are compared as the text that a column holds, such as "true" or "[8]"."""
        return self.subset(self.mask(settings))

    def mask(self, settings: dict[str, Any]) -> np.ndarray:
        """Which points have these values of swept settings, as a mask over the columns."""
        keep = np.ones(len(self.columns["key"]), dtype=bool)
        for name, value in settings.items():
            if isinstance(value, (bool, list)):
                value = json.dumps(value, separators=(",", ":"))
            keep &= self.columns[self.sweep(name)] == value
        return keep

    def subset(self, keep: np.ndarray) -> "Results":
        """The points that a mask over the columns keeps, in the same order."""
        columns = {name: values[keep] for name, values in self.columns.items()}
        chosen = Results(self.path, self.attributes, columns)
        chosen._points = self._points
        return chosen

    def rows(self, technique: str, **settings: Any) -> dict[str, np.ndarray]:
        """The columns of one technique's points, restricted to column=value settings."""
        keep = self.columns["technique"] == technique
        for column, value in settings.items():
            keep &= self.columns[column] == value
        return {name: values[keep] for name, values in self.columns.items()}

    def x_values(self, sweep: str = "") -> list[Any]:
        """The distinct values of a swept setting: numbers ascending, text in spec order."""
        values = self.columns[self.sweep(sweep)]
        distinct = list(dict.fromkeys(values.tolist()))
        return sorted(distinct) if np.issubdtype(values.dtype, np.number) else distinct

    def curve(self, metric: str, technique: str, sweep: str = "") -> Curve:
        """Mean and t interval over seeds at each value of the swept setting."""
        values = self.metric(metric)
        return self.curve_of(lambda index: float(values[index]), technique, sweep)

    def curve_of(self, value_of: Callable[[int], float], technique: str, sweep: str = "") -> Curve:
        """The same for any value of a point, by its index into the columns."""
        column = self.sweep(sweep)
        x, estimates, invalid = [], [], []
        for position in self.x_values(sweep):
            at = self._cell(technique, column, position)
            if not at.size:
                continue
            values = np.array([value_of(index) for index in at])
            x.append(position)
            estimates.append(stats.mean_ci(values[np.isfinite(values)]))
            invalid.append(bool(np.any(self.columns["status"][at] != "VALID")))
        return Curve(technique, np.array(x), estimates, np.array(invalid, dtype=bool))

    def pairs(self, metric: str, a: str, b: str, sweep: str,
              position: Any) -> tuple[np.ndarray, np.ndarray]:
        """The metric of techniques a and b at one sweep value, for the seeds that both have."""
        column, values, seeds = self.sweep(sweep), self.metric(metric), self.columns["seed"]
        by_seed = [{int(seeds[index]): float(values[index])
                    for index in self._cell(technique, column, position)
                    if np.isfinite(values[index])} for technique in (a, b)]
        common = sorted(by_seed[0].keys() & by_seed[1].keys())
        return tuple(np.array([values_of[seed] for seed in common])  # type: ignore[return-value]
                     for values_of in by_seed)

    def difference(self, metric: str, a: str, b: str, sweep: str, position: Any) -> stats.Estimate:
        """Paired difference a - b at one sweep value, in the metric's unit."""
        return stats.difference_ci(*self.pairs(metric, a, b, sweep, position))

    def _cell(self, technique: str, column: str, position: Any) -> np.ndarray:
        """Indices of the points of a technique at a sweep value, one per seed."""
        at = np.flatnonzero((self.columns["technique"] == technique)
                            & (self.columns[column] == position))
        if len(set(self.columns["seed"][at].tolist())) != at.size:
            others = ", ".join(name[len("sweep."):] for name in self.sweep_columns
                               if name != column) or "nothing"
            raise self.error(f"several points of {technique} with the same seed at "
                             f"{column}={position}; the spec also sweeps {others}")
        return at

    def point(self, index: int) -> Point:
        """The point file of a row, by its index into the columns."""
        key = str(self.columns["key"][index])
        if key not in self._points:
            folder = self.path.parent
            path = folder / "points" / f"{key}.h5"
            if "file" in self.columns and not path.is_file():
                path = folder / str(self.columns["file"][index])
            self._points[key] = Point(path, self.remedy)
        return self._points[key]


def _column(dataset: Any) -> np.ndarray:
    values = np.asarray(dataset[()])
    if values.dtype.kind in "OS":
        return np.array([as_text(value) for value in values.tolist()], dtype=object)
    return values
