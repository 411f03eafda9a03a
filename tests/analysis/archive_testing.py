"""Small results, archives of them, and archives that nobody should trust."""
from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any, Callable

import numpy as np
import zstandard
from conftest import Spec

from analysis.archive import contents, layout, packing

SPEC = "mine/small"
TECHNIQUES, POSITIONS, SEEDS = ("slora", "dlora"), (1, 4), range(4)
YAML = 'title: "Small"\n'
Factor = Callable[[str, int, int], float]


def small_results(root: Path, spec_id: str = SPEC, factor: Factor = lambda t, p, s: 1.0,
                  seeds: range = SEEDS) -> Path:
    """Results of two techniques at two positions; each latency is multiplied by the factor."""
    spec = Spec(root, spec_id)
    for position in POSITIONS:
        for technique in TECHNIQUES:
            for seed in seeds:
                noise = np.random.default_rng([seed, position]).normal(1, 0.1)
                mean = noise * factor(technique, position, seed)
                spec.add(technique, seed, {"workload.rate": position},
                         {"latency_per_token_mean_s": mean, "latency_per_token_p90_s": 2 * mean},
                         datasets={"spec/effective": json.dumps({"rate": position, "seed": seed}),
                                   "spec/requested": '{"rate": %d}' % position,
                                   "sources": '[{"name": "maf2", "licence": "CC-BY 4.0"}]',
                                   "context": '{"servelab": "0.1.0", "written": '
                                              '"2026-01-02T03:04:05Z", "wall_s": 0.25}',
                                   "requests/scheduled": np.arange(50)})
    return spec.write(title="Small", spec=YAML, figure="small")


def packed(folder: Path, name: str = "small", factor: Factor = lambda t, p, s: 1.0) -> Path:
    """An archive, as a folder or, with a name that ends in .tar.zst, as a file."""
    root = folder / f"results of {name}"
    small_results(root, factor=factor)
    packing.pack([SPEC], root, folder / name)
    return folder / name


def reseal(folder: Path) -> None:
    """Makes declared sizes and manifest true again, as whoever tampers with an archive would."""
    sizes = layout.files_in(folder, folder)
    held = [size for name, size in sizes.items() if name not in (layout.FACTS, layout.MANIFEST)]
    facts = json.loads((folder / layout.FACTS).read_text())
    facts["holds"] = {"files": len(held), "bytes": sum(held)}
    (folder / layout.FACTS).write_text(layout.json_text(facts))
    (folder / layout.MANIFEST).unlink(missing_ok=True)
    layout.write_manifest(folder)


def describe_again(folder: Path, facts: dict[str, Any]) -> None:
    """Makes all that is derived from the results true again, and seals it."""
    for name, content in contents.derive(folder, facts["about"], facts["drawn_with"]).items():
        (folder / name).write_bytes(content)
    reseal(folder)


Member = tuple[str, bytes, bytes, str]  # name, content, type, link target


def members_of(folder: Path) -> list[Member]:
    """What a .tar.zst of the folder holds, in its order."""
    names = [name for name in layout.files_in(folder, folder)
             if name not in (layout.FACTS, layout.MANIFEST)]
    return [(f"servelab-archive/{name}", (folder / name).read_bytes(), tarfile.REGTYPE, "")
            for name in [layout.FACTS, *names, layout.MANIFEST]]


def tar_of(members: list[Member], after: bytes = b"") -> bytes:
    """A tar file of whatever members, with Python's own writer."""
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content, kind, link in members:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), kind, link
            tar.addfile(info, io.BytesIO(content))
        end = tar.offset
    return text.getvalue()[:end] + bytes(2 * tarfile.BLOCKSIZE) + after  # no padding to a record


def write_tar_zst(path: Path, members: list[Member], after: bytes = b"") -> Path:
    path.write_bytes(zstandard.ZstdCompressor().compress(tar_of(members, after)))
    return path


def tree(folder: Path) -> dict[str, bytes]:
    """Everything below a folder, to see that nothing changed."""
    return {os.path.relpath(path, folder): path.read_bytes() if path.is_file() else b""
            for path in sorted(folder.rglob("*"))}


def copy(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder, folder.parent / name, symlinks=True))
