"""Results to an archive: copied, drawn, described, and only then under the name asked for."""
from __future__ import annotations

import csv
import fcntl
import io
import os
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Iterator

from analysis.archive import container, contents, signing
from analysis.archive.layout import (
    CLAIMS, RESULTS, ArchiveError, files_in, name_problem, write_manifest, write_new)
from analysis.errors import quoted
from analysis.results import Results

VERDICTS = "verdicts.csv"
LICENCE = "https://www.apache.org/licenses/LICENSE-2.0"
OTHER_KINDS = (".zst", ".tar", ".tgz", ".gz", ".zip", ".xz", ".7z", ".h5")


def pack(ids: list[str], root: Path, target: Path, title: str = "",
         authors: list[str] | None = None, licence: str = LICENCE,
         key: Path | None = None) -> dict[str, int]:
    """Packs the specs' results as `target`: one file if it ends in .tar.zst, else a folder; signed
    with `key`, where there is one. Returns
    the sizes of its files; raises ArchiveError and ResultsError, and leaves nothing then."""
    one_file = target.name.endswith(container.SUFFIX)
    if not one_file and target.suffix in OTHER_KINDS:
        raise ArchiveError(f"{target}: archives are folders or end in {container.SUFFIX}")
    with ExitStack() as stack:
        work = stack.enter_context(container.workspace(target))
        folder = work / "archive"
        titles = []
        for spec_id in sorted(set(ids)):
            reason = name_problem(spec_id)
            if reason:
                raise ArchiveError(f"{quoted(spec_id)}: {reason}; give a spec id, such as "
                                   "dlora/fig10")
            stack.enter_context(_held(root / spec_id))
            titles.append(_add(spec_id, root, folder))
        _add_verdicts(root / VERDICTS, ids, folder)
        about: dict[str, Any] = {"title": title or "; ".join(titles), "authors": authors or [],
                                 "license": licence}
        for name, content in contents.derive(folder, about, contents.drawn_with()).items():
            write_new(folder / name, content)
        write_manifest(folder)
        if key is not None:
            signing.sign(folder, key)
        sizes = files_in(folder, folder)
        if one_file:
            container.write_file(folder, work / "file")
        container.publish(work / "file" if one_file else folder, target)
        return sizes


def _add(spec_id: str, root: Path, folder: Path) -> str:
    """Copies and draws one spec's results; returns its title."""
    results = Results.load(spec_id, root)
    name = f"{RESULTS}/{spec_id}/collected.h5"
    contents.check_h5(results.path, name, root, may_link=True)
    contents.check_columns(results, name, root)
    results.check()
    at = folder / RESULTS / spec_id
    for file in ["collected.h5", *contents.points_of(results)]:
        source = root / spec_id / file
        if file != "collected.h5":
            contents.check_h5(source, f"{spec_id}/{file}", root, may_link=False)
        (at / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, at / file)
    contents.drawn(results, at)
    return results.attributes.get("title", "") or spec_id


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keeps `servelab run` out of a spec's results meanwhile, by the lock that it takes itself."""
    try:
        lock = os.open(folder / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # results that were not run here
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ArchiveError(f"{folder}: is in use by a servelab run; wait for it") from None
    finally:
        os.close(lock)


def _add_verdicts(path: Path, ids: list[str], folder: Path) -> None:
    """The claims' verdicts on these specs, where claims were checked: the rows with their ids."""
    if not path.is_file():
        return
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    kept = [row for row in rows[1:] if set(ids) & set(row)]
    if kept:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([rows[0], *kept])
        write_new(folder / CLAIMS / VERDICTS, text.getvalue().encode())
