"""Names in an archive, which of them are allowed, and the manifest."""
from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from analysis.errors import quoted
from analysis.h5_file import sha256_of_file
from analysis.verb import VerbError

SCHEMA = 2
FORMAT = "servelab-archive"
FACTS = "archive.json"  # first in the file: what the archive declares about itself
CRATE = "ro-crate-metadata.json"
MANIFEST = "manifest-sha256.txt"  # written last: an archive without it is not whole
SIGNATURE = MANIFEST + ".sig"  # after the manifest, where there is one (signing.py)
RESULTS, SPECS, SETTINGS, CLAIMS = "results", "specs", "settings", "claims"

FACTS_BYTES_MAX = 16 << 20
MANIFEST_LINE_BYTES_MAX = 1024
SIGNATURE_BYTES_MAX = 1 << 16


class ArchiveError(VerbError):
    """An archive, or a request, that is refused. Each of `lines` names a file and a reason."""


def name_problem(name: str) -> str:
    """Why a path may not be in an archive; empty when it may."""
    if name.startswith("/"):
        return "has an absolute path"
    parts = name.split("/")
    if ".." in parts:
        return "would lie outside the archive"
    if "" in parts or "." in parts:
        return "is no plain path"
    if "\\" in name or ":" in name or not name.isprintable():
        return "has characters that file names here do not have"
    if any(len(part.encode()) > 255 for part in parts) or len(name.encode()) > 900:
        return "is too long a path"
    return ""


def files_in(folder: Path, archive: Path) -> dict[str, int]:
    """Sizes of the plain files below `folder` by path, sorted; whatever else is there raises."""
    sizes: dict[str, int] = {}
    problems: list[str] = []

    def visit(at: Path, prefix: str) -> None:
        with os.scandir(at) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = prefix + entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                reason = name_problem(name)
                if stat.S_ISLNK(mode):
                    reason = "is a link; archives hold plain files only"
                elif stat.S_ISDIR(mode) and not reason:
                    visit(at / entry.name, name + "/")
                elif stat.S_ISREG(mode):
                    sizes[name] = entry.stat(follow_symlinks=False).st_size
                else:
                    reason = reason or "is neither a plain file nor a folder"
                if reason:
                    problems.append(f"{archive}: {quoted(name)} {reason}")

    visit(folder, "")
    if problems:
        raise ArchiveError(*problems)
    return dict(sorted(sizes.items()))


def json_text(value: Any) -> str:
    """The one way JSON is written: sorted, so that equal contents are equal bytes."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def manifest_text(digests: dict[str, str]) -> str:
    """As sha256sum prints it; `sha256sum -c manifest-sha256.txt` reads it."""
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))


def write_manifest(folder: Path) -> str:
    """Writes the manifest of everything in the folder; returns its own SHA-256."""
    names = [name for name in files_in(folder, folder) if name not in (MANIFEST, SIGNATURE)]
    text = manifest_text({name: sha256_of_file(folder / name) for name in names})
    write_new(folder / MANIFEST, text.encode())
    return hashlib.sha256(text.encode()).hexdigest()


def write_new(path: Path, content: bytes) -> None:
    """Writes a new file; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)


def read_manifest(folder: Path, archive: Path) -> dict[str, str]:
    """Digests by name; raises ArchiveError for a manifest that is absent or not as we write it."""
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise ArchiveError(f"{archive}: has no {MANIFEST}, which is written last: it is cut short, "
                           "or was never finished")
    digests: dict[str, str] = {}
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise ArchiveError(f"{archive}: {MANIFEST} is damaged: it is not text") from None
    for number, line in enumerate(text.split("\n")[:-1], 1):
        match = re.fullmatch(r"([0-9a-f]{64})  (\S.*)", line)
        reason = name_problem(match[2]) if match else "is not a digest and a path"
        if reason:
            raise ArchiveError(f"{archive}: {MANIFEST} is damaged: line {number} {reason}")
        digests[match[2]] = match[1]  # type: ignore[index]
    if manifest_text(digests) != text:
        raise ArchiveError(f"{archive}: {MANIFEST} is damaged: its lines are not sorted and whole")
    return digests


def check_manifest(folder: Path, archive: Path) -> str:
    """Compares every file with the manifest; raises ArchiveError with a line for each that is
    missing, extra or changed. Returns the manifest's own SHA-256, the archive's name for itself."""
    sizes = files_in(folder, archive)
    digests = read_manifest(folder, archive)
    listed, there = set(digests), set(sizes) - {MANIFEST, SIGNATURE}
    problems = [f"{archive}: {quoted(name)} is missing; {MANIFEST} lists it"
                for name in sorted(listed - there)]
    problems += [f"{archive}: {quoted(name)} is not in {MANIFEST}"
                 for name in sorted(there - listed)]
    problems += [f"{archive}: {quoted(name)} is damaged or was changed: its SHA-256 is not that of "
                 f"{MANIFEST}" for name in sorted(listed & there)
                 if sha256_of_file(folder / name) != digests[name]]
    if problems:
        raise ArchiveError(*problems)
    return sha256_of_file(folder / MANIFEST)


def parse_facts(content: bytes, archive: Path) -> dict[str, Any]:
    """archive.json, when it is one that this program can read; raises ArchiveError."""
    try:
        facts = json.loads(content)
    except (ValueError, RecursionError):
        raise ArchiveError(f"{archive}: {FACTS} is damaged: it is not JSON") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ArchiveError(f"{archive}: is no servelab archive: {FACTS} does not say so")
    schema = facts.get("schema")
    if type(schema) is not int or schema < 1:
        raise ArchiveError(f"{archive}: {FACTS} is damaged: it has no schema number")
    if schema > SCHEMA:
        raise ArchiveError(f"{archive}: {FACTS} has schema {schema}, this servelab reads up to "
                           f"{SCHEMA}; use a newer servelab")
    for name in ("files", "bytes"):
        value = facts.get("holds", {}).get(name) if isinstance(facts.get("holds"), dict) else None
        if type(value) is not int or value < 0:
            raise ArchiveError(f"{archive}: {FACTS} is damaged: it does not declare its {name}")
    return facts


def read_facts(folder: Path, archive: Path) -> dict[str, Any]:
    path = folder / FACTS
    if path.is_symlink() or not path.is_file():
        raise ArchiveError(f"{archive}: is no servelab archive: it has no {FACTS}")
    if path.stat().st_size > FACTS_BYTES_MAX:
        raise ArchiveError(f"{archive}: {FACTS} is larger than any that servelab writes")
    return parse_facts(path.read_bytes(), archive)


def check_declared(facts: dict[str, Any], sizes: dict[str, int], archive: Path) -> None:
    """Compares what archive.json declares with what is there."""
    held = {name: size for name, size in sizes.items()
            if name not in (FACTS, MANIFEST, SIGNATURE)}
    declared = facts["holds"]
    if (len(held), sum(held.values())) != (declared["files"], declared["bytes"]):
        raise ArchiveError(f"{archive}: {FACTS} declares {declared['files']} files with "
                           f"{declared['bytes']} bytes, there are {len(held)} with "
                           f"{sum(held.values())}")
