"""Small results, archives of them, and archives that nobody should trust."""
from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Callable

import h5py
import numpy as np
import zstandard
from conftest import ATTRIBUTES, Spec, edited, write_point

from analysis import h5_file
from analysis.archive import contents, layout, packing
from analysis.point import Point
from analysis.results import Results
from analysis.summary import derive

SPEC = "mine/small"
TECHNIQUES, POSITIONS, SEEDS = ("slora", "dlora"), (1, 4), range(4)
YAML = 'title: "Small"\n'
BUILD = "0123456789abcdef"
CONTEXT = '{"servelab": "0.1.0", "written": "2026-01-02T03:04:05Z", "wall_s": 0.25}'
SOURCES = '[{"name": "maf2", "licence": "CC-BY 4.0"}]'
Factor = Callable[[str, int, int], float]


def effective(technique: str, position: int, seed: int) -> str:
    """The effective settings of a point, as JSON."""
    return json.dumps({"backend": "twin", "hardware": {"name": ATTRIBUTES["hardware"]},
                       "model": {"name": ATTRIBUTES["model"]}, "rate": position, "seed": seed,
                       "technique": {"technique": technique, "with": {}}})


def key_of(settings: str, schema: int = 2) -> str:
    text = (f'{{"build":"{BUILD}","effective":{settings},"schema":{schema},'
            f'"sources":{SOURCES}}}')
    return hashlib.sha256(text.encode()).hexdigest()[:16]


KEYS = [key_of(effective(technique, position, seed))
        for position in POSITIONS for technique in TECHNIQUES for seed in SEEDS]


def tables(technique: str, position: int, seed: int, factor: float) -> dict[str, Any]:
    """The datasets of a run of 50 requests at one replica."""
    count, gaps = 50, 9
    noise = np.random.default_rng([seed, position]).normal(1, 0.1)
    scheduled = np.arange(count) * 100_000_000
    first = scheduled + round(2e8 * noise * factor)
    last = first + gaps * round(3e7 * noise * factor)
    histogram = np.zeros(2560, dtype=np.int64)
    histogram[np.searchsorted(derive.EDGES_NS, (last - first)[0] / gaps, "right") - 1] = \
        gaps * count
    same = {"adapter": 0, "load_start": -1, "load_end": -1, "migrations": 0, "preemptions": 0,
            "output_tokens": gaps + 1, "output_tokens_true": gaps + 1, "prompt_tokens": 20,
            "replica": 0, "reject_reason": 0, "status": 1}
    return {"requests/scheduled": scheduled, "requests/admitted": scheduled + 1000,
            "requests/prefill_start": scheduled + 1000, "requests/first_token": first,
            "requests/last_token": last,
            **{f"requests/{name}": np.full(count, value) for name, value in same.items()},
            **{f"replicas/{name}": np.array([1000 * len(name)]) for name in
               (*derive.TIMES, "steps", "loads", "switches", "merged_steps")},
            **{f"events/{name}": np.zeros(0, dtype=np.int64)
               for name in ("code", "subject", "time")}, "events/value": np.zeros(0),
            "itl/count": histogram, "itl/lower_edge_ns": derive.EDGES_NS[:-1],
            "spec/effective": effective(technique, position, seed),
            "spec/requested": '{"rate": %d, "technique": {"technique": "%s"}}' % (
                position, technique),
            "spec/sweep": '{"workload.rate": %d}' % position, "sources": SOURCES,
            "context": CONTEXT}


def add_point(spec: Spec, technique: str, position: int, seed: int, factor: float) -> None:
    """A point whose digest, key and summary follow from what it holds."""
    datasets = tables(technique, position, seed, factor)
    key = key_of(datasets["spec/effective"])
    path = spec.folder / "points" / f"{key}.h5"
    attributes = {"schema": 2, "key": key, "technique": technique, "seed": seed, "reasons": "",
                  "build_id": BUILD, **ATTRIBUTES}
    duration = datasets["requests/last_token"].max() / 1e9
    write_point(path, datasets, attributes, {"duration_s": duration})
    summary = derive.derive(Point(path, "")).exact
    digest = write_point(path, datasets, attributes, summary)
    spec.row({"technique": technique, "technique_id": technique, "seed": seed, "status": "VALID",
              "reasons": "", "key": key, "content_digest": digest},
             {"workload.rate": position}, summary)


def small_results(root: Path, spec_id: str = SPEC, factor: Factor = lambda t, p, s: 1.0,
                  seeds: range = SEEDS) -> Path:
    """Results of two techniques at two positions; each latency is multiplied by the factor."""
    spec = Spec(root, spec_id)
    for position in POSITIONS:
        for technique in TECHNIQUES:
            for seed in seeds:
                add_point(spec, technique, position, seed, factor(technique, position, seed))
    return spec.write(title="Small", spec=YAML, figure="small")


def plain_results(root: Path, spec_id: str = SPEC, factor: Factor = lambda t, p, s: 1.0,
                  seeds: range = SEEDS) -> Path:
    """The same with two metrics that follow from nothing: to be compared, not verified."""
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
                                   "sources": SOURCES, "context": CONTEXT})
    return spec.write(title="Small", spec=YAML, figure="small")


def packed(folder: Path, name: str = "small", factor: Factor = lambda t, p, s: 1.0,
           make: Callable[..., Path] = small_results, seeds: range = SEEDS) -> Path:
    """An archive, as a folder or, with a name that ends in .tar.zst, as a file."""
    root = folder / f"results of {name}"
    make(root, factor=factor, seeds=seeds)
    packing.pack([SPEC], root, folder / name)
    return folder / name


def reseal(folder: Path) -> None:
    """Makes declared sizes and manifest true again, as whoever tampers with an archive would."""
    sizes = layout.files_in(folder, folder)
    held = [size for name, size in sizes.items()
            if name not in (layout.FACTS, layout.MANIFEST, layout.SIGNATURE)]
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


STEPS = ("digests", "summaries", "collected", "derived", "pictures")


def forge(folder: Path, change: Callable[[h5py.File], None], without: str = "") -> None:
    """Changes every point of the archive, and then all that follows from the points, but for one
    step; the checksum lines and the manifest are always made true again."""
    assert not without or without in STEPS
    steps = [step for step in STEPS if step != without]
    for spec_id in contents.spec_ids(folder):
        results = folder / "results" / spec_id
        for path in sorted((results / "points").iterdir()):
            with edited(path) as file:
                change(file)
                if "digests" in steps:
                    file.attrs["content_digest"] = h5_file.content_digest(file)
            if "summaries" in steps:
                with edited(path) as file:
                    for name, value in _summary_of(path).items():
                        file["summary"].attrs[name] = value
        if "collected" in steps:
            _collect_again(results)
    if "pictures" in steps:
        for spec_id in contents.spec_ids(folder):
            contents.drawn(Results.load(spec_id, folder / "results"), folder / "results" / spec_id)
    if "derived" in steps:
        describe_again(folder, json.loads((folder / layout.FACTS).read_text()))
    reseal(folder)


def _summary_of(path: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as work:
        whole = Path(shutil.copy(path, Path(work) / path.name))
        if not h5_file.ends_in_a_checksum(whole):
            h5_file.seal(whole)
        found = derive.derive(Point(whole, ""))
        if "duration_s" in found.exact:  # what is per second follows from it
            with edited(whole) as file:
                file["summary"].attrs["duration_s"] = found.exact["duration_s"]
            found = derive.derive(Point(whole, ""))
        return found.exact


def _collect_again(results: Path) -> None:
    points = {path.stem: Point(path, "") for path in (results / "points").iterdir()}
    with edited(results / "collected.h5") as file:
        keys = [key.decode() for key in file["columns/key"][()]]
        for name in list(file["columns"]):
            if name.startswith("summary."):
                file[f"columns/{name}"][...] = [
                    points[key].summary()[name.removeprefix("summary.")] for key in keys]
        del file["columns/content_digest"]
        file["columns/content_digest"] = [points[key].attribute("content_digest") for key in keys]
        file.attrs["content_digest"] = h5_file.content_digest(file)
