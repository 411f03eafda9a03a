"""Points of an archive, computed again from its spec by a build of servelab: what nobody can forge
without having run it. Points in virtual time give the same bytes with the same build; what a real
engine measured is never the same twice, and is left out."""
from __future__ import annotations

import os
import random
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from analysis.archive.checking import Archive
from analysis.archive.layout import SPECS, ArchiveError
from analysis.errors import EXPERIMENTS, ResultsError, quoted
from analysis.point import Point

ROOT = EXPERIMENTS.parent


@dataclass(frozen=True)
class Recomputed:
    """What came of one point; `difference` is empty where both have the same content digest."""

    spec_id: str
    row: int
    builds: tuple[str, str]  # the archive's, and the one at hand
    difference: str


def program() -> Path:
    """The build at hand: $SERVELAB, or this tree's."""
    return Path(os.environ.get("SERVELAB") or ROOT / "build" / "servelab").absolute()


def rows(archive: Archive) -> list[tuple[str, int]]:
    """The points that can be computed again, by spec and row."""
    return [(spec_id, row) for spec_id in archive.spec_ids
            for row in range(len(archive.results(spec_id).columns["key"]))
            if not archive.results(spec_id).point(row).has("delivered")]


def recompute(archive: Archive, count: int, chosen: random.Random) -> list[Recomputed]:
    """Computes `count` points of the archive, or all if there are fewer, chosen at random; raises
    ArchiveError when it cannot."""
    if not program().is_file():
        raise ArchiveError(f"{program()}: no such program; --recompute needs a build (make "
                           "program), or its path in SERVELAB")
    known = rows(archive)
    if not known:
        raise ArchiveError(f"{archive.name}: all its points were measured on a real engine, which "
                           "gives no two runs alike: none can be computed again")
    return [_one(archive, spec_id, row)
            for spec_id, row in sorted(chosen.sample(known, min(count, len(known))))]


def _one(archive: Archive, spec_id: str, row: int) -> Recomputed:
    there = archive.results(spec_id).point(row)
    with tempfile.TemporaryDirectory(prefix="servelab-recomputed-") as work:
        spec = Path(work) / f"{Path(spec_id).name}.yaml"
        spec.write_bytes((archive.folder / SPECS / f"{spec_id}.yaml").read_bytes())
        done = subprocess.run([program(), "run", spec, "--out", Path(work) / "out", "--rows",
                               str(row), "-j", "1", "-q"], cwd=ROOT, capture_output=True,
                              text=True, errors="replace", check=False)
        made = sorted((Path(work) / "out").rglob("points/*.h5"))
        if done.returncode not in (0, 1) or len(made) != 1:
            said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise ArchiveError(f"{archive.name}: {spec_id}: row {row} cannot be computed again: "
                               f"{said.removeprefix('servelab: error: ')}")
        try:
            here = Point(made[0], "")
            return Recomputed(spec_id, row, (there.attribute("build_id"),
                                             here.attribute("build_id")), _difference(there, here))
        except ResultsError as error:
            raise ArchiveError(f"{archive.name}: {error}") from None


def _difference(there: Point, here: Point) -> str:
    """Empty for the same digests and the same summary; else the first thing that differs."""
    said, found = there.summary(), here.summary()
    for name in sorted({*said, *found}):
        a, b = said.get(name, float("nan")), found.get(name, float("nan"))
        if a != b and not (a != a and b != b):
            return f"{quoted(name)} is {a:.9g} there, {b:.9g} here"
    for name in ("status", "content_digest", "decision_hash"):
        if there.attribute(name) != here.attribute(name):
            return f"its {name} is another one"
    return ""
