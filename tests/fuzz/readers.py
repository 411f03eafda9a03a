"""Fuzzes what reads results in analysis/:

    readers.py [--seconds N] [--first SEED] [--count N] [--least N]

Each seed makes a results folder or an archive, changes it (bytes; HDF5 datasets, attributes and
links; texts, YAML, JSON and labels, which may hold what steers a terminal), makes the checksums
true again, as whoever wants to do harm would, and gives it to every reader. A reader may say no, in
one line for each file on stderr; it may not print a traceback or an escape, be killed, hang, or
take more than MEMORY_MAX. The same seed makes the same input. Exit code 1: a finding, which is
printed with its seed.
"""
from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/analysis")]

import h5py  # noqa: E402
import numpy as np  # noqa: E402
from archive_testing import SPEC, describe_again, packed, reseal  # noqa: E402
from conftest import edited  # noqa: E402

from analysis import draw, h5_file, verdicts  # noqa: E402
from analysis.archive import cli as archive, layout  # noqa: E402
from analysis.export import cli as export  # noqa: E402
from analysis.report import cli as report  # noqa: E402
from analysis.summary import cli as summary  # noqa: E402

MEMORY_MAX = 4 << 30
SECONDS_MAX = 60  # of processor time; a machine may be slow
PATIENCE_S = 20 * SECONDS_MAX  # where a reader waits for what never comes
TEXTS = ["", "\x1b[2J\x1b]0;pwned\x07", "\x1b[31mVALID", "a\nservelab: error: b", "$\\frac{",
         "$x^$",
         "%s%n", "\u202eevil", "\x00", "\ud800".encode("utf-8", "surrogatepass"), b"\xff\xfe", "{}",
         "[" * 5000, "null", "NaN", "1e999", "../../x", "a" * 100_000, "<script>", "_" * 300,
         '{"technique": 1}', '{"workload": {"adapters": {"count": 1e12}}}', "&a [*a]",
         "\u0301" * 99]
NUMBERS = [0, 1, -1, 2**31 - 1, -2**31, 2**62, -2**63, 255, 1 << 40]


def change(file: h5py.File, rng: random.Random) -> str:
    """One change inside an HDF5 file; says which."""
    names = [name for name, _ in h5_file.datasets(file)]
    name = rng.choice(names)
    item = file[name]
    kind = rng.randrange(9)
    if kind == 0:
        del file[name]
        return f"without {name}"
    if kind == 1:
        text = rng.choice(TEXTS)
        shape = item.shape
        del file[name]
        file[name] = text if shape == () else [text] * int(np.prod(shape))
        return f"{name} = {text!r:.40}"
    if kind == 2 and item.dtype.kind in "iuf" and item.size:
        values = item[()]
        at = rng.randrange(item.size)
        with np.errstate(all="ignore"):
            values[at] = np.array(rng.choice([*NUMBERS, *([np.nan, np.inf, -np.inf]
                                                          if item.dtype.kind == "f" else [])])
                                  ).astype(item.dtype)
        item[...] = values
        return f"{name}[{at}] = {values[at]}"
    if kind == 3:
        data, count = item[()], max(0, (item.size or 0) + rng.choice([-1, 1, 1000]))
        if item.shape and item.dtype.kind in "iuf":
            del file[name]
            file[name] = np.resize(data, count)
            return f"{name} of length {count}"
    if kind == 4 and item.shape and item.dtype.kind in "iuf":
        data = item[()]
        other = rng.choice(["f8", "f4", "u1", "i2", "<U3", ">i8", "c16", "?"])
        del file[name]
        with np.errstate(all="ignore"):
            file[name] = data.astype(other) if other != "<U3" else ["x"] * len(data)
        return f"{name} as {other}"
    target = rng.choice([file, item, file.get("summary", file)])
    if kind == 5 and len(target.attrs):
        key = rng.choice(list(target.attrs))
        del target.attrs[key]
        return f"without attribute {key} of {target.name}"
    if kind == 6:
        key = rng.choice([*target.attrs, "codes", "units", "x"])
        text = rng.choice(TEXTS)
        target.attrs[key] = rng.choice([text, [text] * 3, rng.choice(NUMBERS), np.nan,
                                        np.zeros((2, 2))]) if text != "\x00" else 7
        return f"attribute {key} of {target.name}"
    if kind == 7:
        key = rng.choice(TEXTS[:8]) or "x"
        key = key.replace("\x00", "x") if isinstance(key, str) else "x"
        file[f"columns/{key}" if "columns" in file else f"requests/{key}"] = item
        return f"{name} again as {key!r:.40}"
    file[f"more{rng.randrange(9)}"] = rng.choice(
        [h5py.SoftLink("/x\x1b[2J"), h5py.ExternalLink("/etc/\x1b[2Jpasswd", "/")])
    return "a link"


def mutate_bytes(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 4, 30])):
        at = rng.randrange(max(1, len(content)))
        how = rng.randrange(3)
        if how == 0 and content:
            content[at] = rng.randrange(256)
        elif how == 1:
            content[at:at] = os.urandom(0) + bytes([rng.randrange(256)] * rng.randrange(1, 20))
        else:
            del content[at:at + rng.randrange(1, 50)]
    path.write_bytes(content)
    return f"bytes of {path.name}"


def mutate_json(path: Path, rng: random.Random) -> str:
    """One value, somewhere, becomes another."""
    value = json.loads(path.read_text(encoding="utf-8"))
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key in (node if isinstance(node, dict) else range(len(node))
                    if isinstance(node, list) else ()):
            places.append((node, key))
            visit(node[key])

    visit(value)
    node, key = rng.choice(places)
    node[key] = rng.choice([None, [], {}, -1, 1e308, True, "\x1b[2J", "x" * 1000, [[]], "../../x"])
    path.write_text(json.dumps(value), encoding="utf-8")
    return f"{key} of {path.name}"


def mutate(folder: Path, rng: random.Random) -> str:
    """Changes an archive's folder; says how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    h5_files = [path for path in files if path.suffix == ".h5"]
    kind = rng.randrange(10)
    if kind == 0:
        return mutate_bytes(rng.choice(files), rng)
    if kind <= 2:
        path = rng.choice([folder / layout.FACTS, folder / layout.CRATE,
                           *folder.rglob("settings/**/*.json")])
        told = mutate_json(path, rng)
    elif kind == 3:
        path = rng.choice(h5_files)
        if h5_file.ends_in_a_checksum(path):
            path.write_bytes(path.read_bytes()[:-h5_file.TRAILER_BYTES])
        told = mutate_bytes(path, rng)
        h5_file.seal(path)
    else:
        collected = next(path for path in h5_files if path.name == "collected.h5")
        path = rng.choice([collected, rng.choice(h5_files)])
        told = []
        with edited(path) as file:
            for _ in range(rng.choice([1, 1, 2, 5])):
                with contextlib.suppress(ValueError, TypeError, RuntimeError, OSError, KeyError):
                    told.append(change(file, rng))
            with contextlib.suppress(Exception):
                file.attrs["content_digest"] = h5_file.content_digest(file)
        told = f"{path.name}: {'; '.join(told)}"
    if rng.random() < 0.9:
        with contextlib.suppress(Exception):
            if rng.random() < 0.5:
                describe_again(folder, json.loads((folder / layout.FACTS).read_text()))
            reseal(folder)
    return told


def readers(folder: Path, out: Path) -> dict[str, Callable[[], int]]:
    results = str(folder / "results")
    points = sorted(map(str, folder.glob("results/**/points/*.h5")))[:1]
    return {
        "archive verify": lambda: archive.main(["verify", str(folder)]),
        "archive list": lambda: archive.main(["list", "--files", str(folder)]),
        "archive diff": lambda: archive.main(["diff", str(folder), str(folder)]),
        "archive pack": lambda: archive.main(
            ["pack", SPEC, "--results", results, "--out", str(out / "packed")]),
        "draw": lambda: draw.main([SPEC, "--results", results]),
        "verdicts": lambda: verdicts.main(["--results", results]),
        "report": lambda: report.main(["--results", results]),
        **{f"summary {dialect}": lambda dialect=dialect: summary.main(
            [SPEC, "--results", results, "--dialect", dialect]) for dialect in summary.DIALECTS},
        "summary --steady": lambda: summary.main([SPEC, "--results", results, "--steady"]),
        **{f"export {name}": lambda name=name: export.main(
            [*points, "--format", name, "--out", str(out / name)])
           for name in ("benchmark-report", "mooncake", "openmetrics", "measured-rows")},
    }


def attempt(read: Callable[[], int]) -> str:
    """Why the reader's answer is not one; empty where it is."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = read()
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        return "traceback:\n" + traceback.format_exc()
    said = out.getvalue() + err.getvalue()
    if "Traceback (most recent call last)" in said:
        return "traceback printed:\n" + said[-2000:]
    steering = [c for c in said if not c.isprintable() and c not in "\n\t"]
    if steering:
        return f"prints {steering[0]!r}: {said[:300]!r}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code and not err.getvalue() and "not steady" not in said:
        return f"exit code {code} without a word"
    return ""


def one(seed: int, whole: Path) -> list[str]:
    """The findings of a seed."""
    rng, found = random.Random(seed), []
    with tempfile.TemporaryDirectory(prefix="servelab-fuzz-") as work:
        folder = Path(shutil.copytree(whole, Path(work) / "archive"))
        told = mutate(folder, rng)
        known = readers(folder, Path(work))
        chosen = ["archive verify", *rng.sample(sorted(set(known) - {"archive verify"}), 3)]
        for name in chosen:
            problem = attempt(known[name])
            if problem:
                found.append(f"seed {seed}: {told}: {name}: {problem}")
    return found


def in_a_child(seed: int, whole: Path) -> list[str]:
    """One seed in a process of its own, which HDF5 may bring down."""
    inside, outside = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(inside)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_MAX, SECONDS_MAX))
        signal.alarm(PATIENCE_S)
        try:
            found = one(seed, whole)
        except BaseException:
            found = [f"seed {seed}: the fuzzer itself: {traceback.format_exc()}"]
        os.write(outside, json.dumps(found).encode()[:60_000])
        os._exit(0)
    os.close(outside)
    with os.fdopen(inside, "rb") as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return [f"seed {seed}: killed by signal {os.WTERMSIG(status)}"]
    return json.loads(text or b'["no answer"]')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1 << 30, help="seeds at most")
    parser.add_argument("--least", type=int, default=0, help="seeds, however long they take")
    options = parser.parse_args()
    ends, findings, seed = time.monotonic() + options.seconds, [], options.first
    with tempfile.TemporaryDirectory(prefix="servelab-fuzz-") as work:
        whole = packed(Path(work), seeds=range(1))
        while seed < options.first + options.count and (
                time.monotonic() < ends or seed < options.first + options.least):
            for finding in in_a_child(seed, whole):
                findings.append(finding)
                print(finding, flush=True)
            seed += 1
    print(f"fuzz: readers, {seed - options.first} inputs from seed {options.first}: "
          f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
