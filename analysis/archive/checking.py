"""An archive to something that can be relied on: whole, consistent, and drawn again. Needs no GPU,
no network, no build of servelab, and nothing that was run before."""
from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator

from analysis import h5_file, verb
from analysis.archive import container, contents, proving, signing
from analysis.archive.layout import (
    CRATE, FACTS, RESULTS, ArchiveError, check_declared, check_manifest, files_in,
    read_facts)
from analysis.errors import ResultsError, quoted
from analysis.results import Results
from analysis.verb import VerbError


@dataclass
class Archive:
    """An archive whose files are those of its manifest and whose results lead nowhere else."""

    name: Path      # as the user gave it
    folder: Path    # where its files are
    facts: dict[str, Any]
    sizes: dict[str, int]
    sha256: str     # of the manifest: names the archive
    signed_by: str  # the fingerprint of a key, "" without a signature
    spec_ids: list[str] = field(default_factory=list)

    def results(self, spec_id: str) -> Results:
        """One spec's results; raises ArchiveError."""
        try:
            return Results.load(spec_id, self.folder / RESULTS)
        except ResultsError as error:
            raise self.refused(error) from None

    def refused(self, error: ResultsError) -> ArchiveError:
        """The error, told of the archive instead of the folder that it was unpacked to."""
        path = error.path
        if path.is_absolute() == self.folder.is_absolute() and path.is_relative_to(self.folder):
            path = path.relative_to(self.folder)
        return ArchiveError(f"{self.name}: {quoted(path.as_posix())} {error.what}")


def examine(folder: Path, name: Path, limit: int | None = None) -> Archive:
    """Checks the archive in `folder`, of at most `limit` bytes: schema, manifest, signature,
    declared sizes, and every HDF5 file."""
    facts = read_facts(folder, name)
    if limit is not None and sum(files_in(folder, name).values()) > limit:
        raise ArchiveError(f"{name}: holds more bytes than the limit of {limit}; --limit sets "
                           "another")
    digest = check_manifest(folder, name)
    sizes = files_in(folder, name)
    check_declared(facts, sizes, name)
    archive = Archive(name, folder, facts, sizes, digest, signing.key_of(folder, name),
                      contents.spec_ids(folder))
    if not archive.spec_ids:
        raise ArchiveError(f"{name}: holds no results")
    for file in sizes:
        if file.endswith(".h5"):
            contents.check_h5(folder / file, file, name, file.endswith("/collected.h5"))
    for spec_id in archive.spec_ids:
        results = archive.results(spec_id)
        prefix = f"{RESULTS}/{spec_id}/"
        contents.check_columns(results, prefix + "collected.h5", name)
        known = {prefix + point for point in contents.points_of(results)}
        for file in sizes:
            if file.startswith(prefix + "points/") and file not in known:
                raise ArchiveError(f"{name}: {quoted(file)} is no point of {spec_id}")
        try:
            results.check()
        except ResultsError as error:
            raise archive.refused(error) from None
    return archive


@contextmanager
def opened(path: Path, limit: int | None = None) -> Iterator[Archive]:
    """The archive at `path`, a folder or a .tar.zst of at most `limit` bytes, examined; a file is
    unpacked for as long."""
    if path.is_dir():
        with _told(path, path):
            yield examine(path, path, limit)
        return
    if not path.is_file():
        raise ArchiveError(f"{path}: no such archive")
    with tempfile.TemporaryDirectory(prefix="servelab-archive-") as work:
        container.read_file(path, Path(work) / "archive", limit)
        with _told(path, Path(work) / "archive"):
            yield examine(Path(work) / "archive", path, limit)


@contextmanager
def _told(name: Path, folder: Path) -> Iterator[None]:
    """Whatever a file in the archive led to that nobody foresaw is told of the archive."""
    try:
        yield
    except (VerbError, ResultsError, OSError):
        raise
    except Exception as error:
        where, last = f"{name}: ", h5_file.last_opened
        if last is not None and last.is_relative_to(folder):
            where += quoted(last.relative_to(folder).as_posix()) + " "
        if isinstance(error, MemoryError):
            raise ArchiveError(f"{where}needs more memory than there is") from None
        raise ArchiveError(*verb.unexpected(error, where).lines) from error


def prove(archive: Archive) -> list[str]:
    """Checks that all which follows from the results does: each point's digest, key and summary,
    and collected.h5. Returns the metrics that this version does not know how to derive."""
    unknown: set[str] = set()
    for spec_id in archive.spec_ids:
        results = archive.results(spec_id)
        proved: set[str] = set()
        try:
            for index, key in enumerate(results.columns["key"].tolist()):
                if key not in proved:
                    unknown |= set(proving.check_point(results.point(index)))
                    proved.add(key)
            proving.check_collected(results)
        except ResultsError as error:
            raise archive.refused(error) from None
    return sorted(unknown)


def unpack(path: Path, target: Path, limit: int | None = None) -> Archive:
    """Unpacks a .tar.zst as the new folder `target`, once all of it was examined."""
    if path.is_dir():
        raise ArchiveError(f"{path}: is a folder already")
    if not path.is_file():
        raise ArchiveError(f"{path}: no such archive")
    with container.workspace(target) as work:
        container.read_file(path, work / "archive", limit)
        with _told(path, work / "archive"):
            archive = examine(work / "archive", path, limit)
            prove(archive)
        container.publish(work / "archive", target)
    return archive


@dataclass
class Redrawn:
    """One spec's pictures, drawn from the archive's data by the code that is here."""

    spec_id: str
    files: list[Path]
    different: list[str]  # names whose bytes are not the archive's


def check_derived(archive: Archive) -> None:
    """Compares settings, specs and metadata with what the results themselves say."""
    facts = archive.facts
    try:
        made = contents.derive(archive.folder, facts["about"], facts["drawn_with"],
                               facts["schema"])
    except ResultsError as error:
        raise archive.refused(error) from None
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError) as error:
        raise ArchiveError(f"{archive.name}: {FACTS} is not what servelab writes: "
                           f"{error!r}") from None
    problems = [f"{archive.name}: {quoted(name)} does not say what the results do"
                for name, content in made.items()
                if not (archive.folder / name).is_file()
                or (archive.folder / name).read_bytes() != content]
    # The metadata and archive.json follow from the others: they are told of only when alone.
    causes = [line for line in problems if CRATE not in line and f"'{FACTS}'" not in line]
    if problems:
        raise ArchiveError(*(causes or problems))


def redraw(archive: Archive, spec_id: str, out: Path) -> Redrawn:
    """Draws one spec into out/<spec id>/ and compares with the archive's pictures."""
    results = archive.results(spec_id)
    folder = out / spec_id
    folder.mkdir(parents=True, exist_ok=True)
    try:
        files = contents.drawn(results, folder)
    except ResultsError as error:
        raise archive.refused(error) from None
    except ArchiveError as error:
        raise ArchiveError(*(f"{archive.name}: {line}" for line in error.lines)) from error
    packed = archive.folder / RESULTS / spec_id
    names = {path.name for path in files}
    names |= {path.name for path in packed.iterdir()
              if path.is_file() and path.name != "collected.h5"}
    different = [name for name in sorted(names)
                 if not (packed / name).is_file() or not (folder / name).is_file()
                 or (packed / name).read_bytes() != (folder / name).read_bytes()]
    return Redrawn(spec_id, files, different)


def drawn_by_other_code(archive: Archive) -> list[str]:
    """What of the drawing code and its libraries is not as it was when the archive was packed."""
    here, there = contents.drawn_with(), archive.facts.get("drawn_with", {})
    return [f"{name} {there.get(name, 'not recorded')} there, {here.get(name, 'none')} here"
            for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
