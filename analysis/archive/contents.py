"""What an archive says about its results. All of it is derived from collected.h5, the points and
the pictures, so that packing twice gives the same bytes and `verify` can derive it again: whoever
changes what is derived gives it a new layout.SCHEMA, and keeps the old one readable. Since schema 2
an archive may be signed."""
from __future__ import annotations

import hashlib
import json
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, Iterator

import h5py
import numpy as np

from analysis import draw
from analysis.archive import crate
from analysis.archive.layout import (
    CRATE, FACTS, FORMAT, MANIFEST, RESULTS, SCHEMA, SETTINGS, SIGNATURE, SPECS,
    ArchiveError, files_in, json_text)
from analysis.errors import EXPERIMENTS, ResultsError, quoted
from analysis.h5_file import as_text, open_h5
from analysis.point import Point
from analysis.results import Results

RESULT_SCHEMA = 2  # of collected.h5 and the points: kResultSchema in engine/record/point_file.h
ANALYSIS = Path(__file__).resolve().parents[1]
NOT_DRAWING = ("analysis/archive/", "analysis/compare/", "analysis/export/", "analysis/pack.py",
               "analysis/report/", "analysis/summary/")
LIBRARIES = ("numpy", "scipy", "h5py", "matplotlib")
SETTINGS_TEXT_MAX = 256 << 20  # bytes of settings and contexts of one spec's points


def points_of(results: Results) -> list[str]:
    """The point files behind the columns, relative to the spec's folder."""
    return sorted({f"points/{key}.h5" for key in results.columns["key"].tolist()})


def spec_ids(folder: Path) -> list[str]:
    """The specs in an archive's folder."""
    root = folder / RESULTS
    return sorted(path.parent.relative_to(root).as_posix() for path in root.rglob("collected.h5"))


def drawn_with() -> dict[str, str]:
    """What decides how pictures look: the drawing code's digest, with the published values that
    it draws, and its libraries."""
    sha = hashlib.sha256()
    for path in [*sorted(ANALYSIS.rglob("*")), *EXPERIMENTS.glob("claims.yaml")]:
        name = path.relative_to(ANALYSIS.parent).as_posix()
        if path.suffix in (".py", ".csv", ".yaml") and not name.startswith(NOT_DRAWING):
            sha.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return {"analysis": sha.hexdigest()[:16], "python": platform.python_version(),
            "machine": platform.machine(), **{name: version(name) for name in LIBRARIES}}


def drawn(results: Results, out: Path) -> list[Path]:
    """Draws one spec's figure into `out`; raises ResultsError, and ArchiveError where columns that
    nobody vouches for are not what the drawing code expects."""
    try:
        return draw.module_for(results).draw(results, out)
    except (ResultsError, OSError):
        raise
    except Exception as error:
        raise ArchiveError(f"{results.spec_id}: cannot be drawn: {type(error).__name__}: "
                           f"{error}") from error


def _json_of(point: Point, name: str) -> Any:
    try:
        return json.loads(as_text(point.read(name).item()))
    except (ResultsError, ValueError, RecursionError):
        return None


def settings(results: Results) -> list[dict[str, Any]]:
    """Each point's identity and its requested and effective settings, in spec order."""
    seen: set[str] = set()
    found = []
    total = 0
    for index, key in enumerate(results.columns["key"].tolist()):
        if key in seen:
            continue
        seen.add(key)
        point = results.point(index)
        entry = {name: value for name, value in point.attributes.items()}
        entry = {name: as_text(value) if isinstance(value, (bytes, str)) else value
                 for name, value in entry.items()}
        entry |= {name: _json_of(point, dataset) for name, dataset in (
            ("requested", "spec/requested"), ("effective", "spec/effective"),
            ("sweep", "spec/sweep"), ("sources", "sources"), ("context", "context"))}
        total += len(json_text(entry))
        if total > SETTINGS_TEXT_MAX:
            raise ResultsError(point.path, f"brings the settings of {results.spec_id} above "
                               f"{SETTINGS_TEXT_MAX} bytes", "pack fewer points")
        found.append(entry)
    return found


def spec_facts(results: Results, points: list[dict[str, Any]], figures: list[str]) -> dict:
    """One spec's entry in archive.json."""
    machines = {json_text({name: value for name, value in (point["context"] or {}).items()
                           if name not in ("written", "wall_s")}) for point in points}
    return {
        "id": results.spec_id, "title": results.attributes.get("title", ""),
        "points": len(points), "invalid": results.invalid_count,
        "techniques": results.techniques, "seeds": results.seeds,
        "content_digest": results.attributes.get("content_digest", ""),
        "build_ids": sorted({str(point.get("build_id", "")) for point in points}),
        "context": [json.loads(machine) for machine in sorted(machines)],
        "written": max((str((point["context"] or {}).get("written", "")) for point in points),
                       default=""),
        "sources": _distinct(source for point in points for source in point["sources"] or []),
        **{name: results.attributes.get(name, "")
           for name in ("backend", "hardware", "model", "trace")},
        "figures": figures,
    }


def _distinct(values: Iterator[Any]) -> list[Any]:
    return [json.loads(text) for text in sorted({json_text(value) for value in values})]


def derive(folder: Path, about: dict[str, Any], drawn: dict[str, str],
           schema: int = SCHEMA) -> dict[str, bytes]:
    """The files of an archive that say what its results are: specs, settings, ro-crate-metadata
    and archive.json, by name. `folder` holds the results and figures already; raises
    ResultsError."""
    made: dict[str, bytes] = {}
    specs = []
    for spec_id in spec_ids(folder):
        results = Results.load(spec_id, folder / RESULTS)
        points = settings(results)
        made[f"{SPECS}/{spec_id}.yaml"] = results.attributes.get("spec", "").encode()
        made[f"{SETTINGS}/{spec_id}.json"] = json_text(points).encode()
        at = folder / RESULTS / spec_id
        figures = sorted(path.name for path in at.iterdir()
                         if path.is_file() and path.name != "collected.h5")
        specs.append(spec_facts(results, points, figures))
    own = {CRATE, FACTS, MANIFEST, SIGNATURE, *made}
    sizes = {name: size for name, size in files_in(folder, folder).items() if name not in own}
    sizes |= {name: len(content) for name, content in made.items()}
    made[CRATE] = json_text(crate.metadata(about, specs, sizes)).encode()
    sizes[CRATE] = len(made[CRATE])
    made[FACTS] = json_text({
        "format": FORMAT, "schema": schema, "about": about, "specs": specs, "drawn_with": drawn,
        "holds": {"files": len(sizes), "bytes": sum(sizes.values())}}).encode()
    return made


def check_h5(path: Path, name: str, archive: Path, may_link: bool) -> None:
    """Raises ArchiveError for a result of a newer schema, and for one that would lead outside its
    folder or take more than the limit. `may_link`: collected.h5, which links its points."""
    def refuse(what: str) -> ArchiveError:
        return ArchiveError(f"{archive}: {quoted(name)} {what}")

    try:
        with open_h5(path, "") as file:
            schema = file.attrs.get("schema", 1)
            if not isinstance(schema, (int, np.integer)):
                raise refuse("has no schema number")
            if schema > RESULT_SCHEMA:
                raise refuse(f"has result schema {schema}, this servelab reads up to "
                             f"{RESULT_SCHEMA}; use a newer servelab")
            if not may_link:
                links: list[str] = []
                file.visititems_links(lambda item, link: links.append(str(link.filename))
                                      if isinstance(link, h5py.ExternalLink) else None)
                if links:
                    raise refuse(f"links to another file: {quoted(links[0])}")
    except ResultsError as error:
        raise refuse(error.what) from None


def check_columns(results: Results, name: str, archive: Path) -> None:
    """Raises ArchiveError when the columns name files that are not points of this archive."""
    keys = results.columns["key"].tolist()
    for key, file in zip(keys, results.columns.get("file", [f"points/{k}.h5" for k in keys])):
        if not re.fullmatch(r"\w+", str(key)) or file != f"points/{key}.h5":
            raise ArchiveError(f"{archive}: {quoted(name)} names a point outside its folder: "
                               f"{quoted(str(file))}")
