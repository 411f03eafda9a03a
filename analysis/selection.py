"""The points that a verb works on: those of a spec's results, or files that are named."""
from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.errors import ResultsError, shown
from analysis.h5_file import as_text
from analysis.point import Point
from analysis.results import Results
from analysis.verb import VerbError


@dataclass(frozen=True)
class Chosen:
    """A point, and what tells it from the others: technique, sweep position and seed."""

    label: str
    point: Point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("points", nargs="+", metavar="SPEC_ID|POINT.h5",
                        help="all points of a spec, such as dlora/fig10, or files of points")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR",
                        help="where the runs are (default: results)")


def choose(names: list[str], root: Path) -> list[Chosen]:
    """The points in the order of the names; raises ResultsError and VerbError."""
    chosen: list[Chosen] = []
    for name in names:
        if name.endswith(".h5"):
            point = Point(Path(name), "name another file, or the spec's id")
            if not point.has("requests"):
                raise ResultsError(point.path, "is not a point: it has no /requests",
                                   "name files in results/<spec id>/points/, or the spec's id")
            chosen.append(Chosen(_label(point), point))
        else:
            chosen += _of_spec(name, root)
    return chosen


def only(names: list[str], root: Path) -> Chosen:
    """The one point that the names come to; raises VerbError where they come to several."""
    chosen = choose(names, root)
    if len(chosen) != 1:
        raise VerbError(f"{' '.join(names)}: {len(chosen)} points, one is needed; name its file, "
                        f"such as {shown(chosen[0].point.path)} ({chosen[0].label})")
    return chosen[0]


def _of_spec(spec_id: str, root: Path) -> list[Chosen]:
    folder = Path(spec_id)
    if folder.is_absolute() or ".." in folder.parts:
        raise VerbError(f"{shown(folder)} is a folder, where a spec's id is to be named, such as "
                        f"dlora/fig10; try: {folder.name} --results {shown(folder.parent)}")
    results = Results.load(spec_id, root)
    columns = results.columns
    varying = [name for name in results.sweep_columns if len(set(columns[name].tolist())) > 1]
    chosen = []
    for index in range(len(columns["key"])):
        parts = [str(columns["technique"][index])]
        parts += [f"{name.split('.')[-1]}={_text(columns[name][index])}" for name in varying]
        if len(results.seeds) > 1:
            parts.append(f"seed={columns['seed'][index]}")
        chosen.append(Chosen(" ".join(parts), results.point(index)))
    return chosen


def _label(point: Point) -> str:
    parts = [point.attribute("technique", point.path.stem)]
    if point.has("spec/sweep"):
        sweep = json.loads(as_text(point.read("spec/sweep").item()))
        parts += [f"{name.split('.')[-1]}={_text(value)}" for name, value in sweep.items()]
    return " ".join([*parts, f"seed={point.attribute('seed')}"])


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, (float, np.floating)) else str(value)
