"""What `archive verify` takes of a large archive, against reading and hashing all that it holds:

    .venv/bin/python tests/bench/archive_bench.py [--gigabytes 1] [--requests N] [--work DIR]

Makes the archive in DIR (a temporary folder), or takes the one that is there: points of N requests
each on the twin, as a folder. Each reading is a process of its own: the files' bytes through
SHA-256; then also every dataset out of HDF5 (inflated) through SHA-256, which no proof of contents
can do without; then `verify`. They take turns; the least of each is compared, in processor time,
which other programs disturb least. The program is $SERVELAB, or build/servelab. Exit code 1: verify
took more than 1 GB of memory, or more than twice the time of reading and hashing.
"""
from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVELAB = Path(os.environ.get("SERVELAB", ROOT / "build/servelab")).resolve()
MOST_BYTES, MOST_TIMES = 10**9, 2.0
SPEC = """
title: an archive for the benchmark of verify
model: llama-2-7b
hardware: a800-80g
workload:
  requests: {requests}
  adapters: {{count: 64, ranks: [8, 16, 32, 64]}}
  arrivals: {{process: poisson, rate: 8}}
  lengths: {{source: sharegpt}}
techniques: [slora]
seeds: {seeds}
record: {{token_times: {tokens}}}
"""


@dataclass
class Cost:
    wall_s: float
    cpu_s: float
    peak_bytes: int


def cost_of(*command: str) -> Cost:
    began = time.monotonic()
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"archive_bench: {' '.join(command)}: exit code {child.returncode}")
    return Cost(time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss << 10)


def read_all(archive: Path, datasets: bool) -> None:
    """What the children do that `verify` is compared with."""
    sys.path.insert(0, str(ROOT))
    import h5py

    from analysis import h5_file
    for path in sorted(path for path in archive.rglob("*") if path.is_file()):
        sha = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                sha.update(block)
        if not datasets or path.suffix != ".h5":
            continue
        with h5py.File(path, "r") as file:
            h5_file.content_digest(file)


def size_of(archive: Path) -> int:
    return sum(path.stat().st_size for path in archive.rglob("*") if path.is_file())


def made(work: Path, gigabytes: float, requests: int, tokens: bool) -> Path:
    archive = work / "archive"
    if archive.is_dir():
        return archive
    spec, out, seeds = work / "large.yaml", work / "results", 1
    while True:
        spec.write_text(SPEC.format(requests=requests, seeds=seeds, tokens=str(tokens).lower()),
                        encoding="utf-8")
        cost_of(str(SERVELAB), "run", str(spec), "--out", str(out), "-q", "--experiments",
                str(ROOT / "experiments"))
        there = size_of(out)
        if there >= gigabytes * 1e9:
            break
        seeds = max(seeds + 1, int(seeds * gigabytes * 1e9 / there) + 1)
    cost_of(sys.executable, "-m", "analysis.archive", "pack", "large", "--results", str(out),
            "--out", str(archive))
    return archive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--requests", type=int, default=1_000_000, help="of each point")
    parser.add_argument("--tokens", action="store_true", help="with the stamp of every token")
    parser.add_argument("--work", type=Path, help="keep the archive there")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--inflate", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read_all(options.read, options.inflate)
        return 0
    with tempfile.TemporaryDirectory(prefix="servelab-bench-") as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        archive = made(work, options.gigabytes, options.requests, options.tokens)
        print(f"{archive}: {size_of(archive) / 1e9:.3f} GB in "
              f"{sum(path.is_file() for path in archive.rglob('*'))} files")
        this = [sys.executable, str(Path(__file__).resolve()), "--read", str(archive)]
        commands = {"bytes": this, "bytes and datasets": [*this, "--inflate"],
                    "verify": [sys.executable, "-m", "analysis.archive", "verify", str(archive)]}
        costs: dict[str, list[Cost]] = {name: [] for name in commands}
        for _ in range(options.turns):
            for name, command in commands.items():
                costs[name].append(cost_of(*command))
    least = {name: min(cost.cpu_s for cost in found) for name, found in costs.items()}
    for name, found in costs.items():
        print(f"{name:20} processor {least[name]:7.2f} s, wall "
              f"{min(cost.wall_s for cost in found):7.2f} s, peak "
              f"{max(cost.peak_bytes for cost in found) / 1e6:6.0f} MB, verify is "
              f"{least['verify'] / least[name]:.2f} times it")
    peak = max(cost.peak_bytes for cost in costs["verify"])
    return int(peak > MOST_BYTES or least["verify"] > MOST_TIMES * least["bytes and datasets"])


if __name__ == "__main__":
    sys.exit(main())
