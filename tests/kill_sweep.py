"""Kills runs by SIGKILL at random moments, and looks at what is left:

    .venv/bin/python tests/kill_sweep.py [--kills 200] [--only KIND,...] [--seed N]

Kinds, which share the kills: `local`, a run by itself; `shared`, two to four runs on one folder, of
which one is killed at a time and another begins in its place; `tasks`, `servelab work` of emitted
jobs; `slurm`, tasks of a real Slurm (tests/executors). After each kill no point that was whole may
be gone, have changed, or be written again; when a sweep is whole, digests and collected.h5 are
those of a run that nobody killed. All of it is counted; exit code 1: something is not so. The
program is $SERVELAB, or build/servelab.
"""
from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import h5py

ROOT = Path(__file__).resolve().parents[1]
SERVELAB = Path(os.environ.get("SERVELAB", ROOT / "build/servelab")).resolve()
RUN = ("run", "sweep.yaml", "--experiments", str(ROOT / "experiments"))
POINTS = 40
SPEC = """
title: a sweep whose runs are killed
model: llama-2-7b
hardware: a800-80g
workload:
  requests: {requests}
  adapters: {{count: 8, ranks: [8]}}
  arrivals: {{process: poisson, rate: 10}}
  lengths: {{source: lognormal, prompt: 60, output: 30}}
sweep: {{workload.arrivals.rate: [5, 10]}}
techniques: [slora, unmerged-only]
seeds: {seeds}
"""


class Failed(Exception):
    """What ended otherwise than by a kill, or as it should not."""


def points_in(out: Path) -> dict[str, tuple[int, int]]:
    """The whole points of a sweep: which file each is, and when it was written."""
    found = {}
    for path in (out / "sweep/points").glob("*.h5"):
        status = path.stat()
        found[path.name] = (status.st_ino, status.st_mtime_ns)
    return found


def digests(out: Path) -> dict[str, str]:
    found = {}
    for path in (out / "sweep/points").glob("*.h5"):
        with h5py.File(path, "r") as file:
            found[path.name] = str(file.attrs["content_digest"])
    return found


@dataclass
class Counts:
    kills: int = 0
    midway: int = 0  # while points were missing
    whole: int = 0  # points that were there, summed over kills
    gone: int = 0  # of those
    again: int = 0  # of those, written a second time
    sweeps: int = 0
    compared: int = 0  # points, at the end of sweeps
    differ: int = 0  # of those, by digest
    collections: int = 0  # collected.h5 that differ
    left: int = 0  # files left behind

    @property
    def bad(self) -> int:
        return self.gone + self.again + self.differ + self.collections + self.left

    def text(self) -> str:
        return (f"{self.kills} kills, {self.midway} of them midway, in {self.sweeps} sweeps; of "
                f"{self.whole} points that were whole at a kill {self.gone} are gone and "
                f"{self.again} were computed again; of {self.compared} digests {self.differ} "
                f"differ, of {self.sweeps} collections {self.collections}; {self.left} files left")

    def add(self, other: Counts) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Folder:
    """A sweep that is killed, beside one that is not."""
    work: Path
    requests: int = 1500
    whole_s: float = 0
    out: Path = Path()
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.work / "sweep.yaml").write_text(
            SPEC.format(requests=self.requests, seeds=POINTS // 4), encoding="utf-8")
        began = time.monotonic()
        self.done(self.start(self.work / "whole"))
        self.whole_s = time.monotonic() - began

    def start(self, out: Path, *more: str, jobs: int = 1) -> subprocess.Popen[str]:
        return self.program(*RUN, "--out", str(out), "-j", str(jobs), *more)

    def program(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([SERVELAB, *arguments], cwd=self.work, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    @staticmethod
    def done(program: subprocess.Popen[str]) -> str:
        said, problem = program.communicate(timeout=600)
        if program.returncode != 0:
            raise Failed(f"exit code {program.returncode}: {problem}")
        return said

    def begin(self, name: str) -> None:
        self.out, self.seen = self.work / name, {}

    def look(self, counts: Counts) -> int:
        """How many points are whole now; counts those that were and are not, or are new files."""
        now = points_in(self.out)
        for name, file in self.seen.items():
            counts.gone += name not in now
            counts.again += now.get(name, file) != file
        self.seen = now
        return len(now)

    def kill(self, victims: list[subprocess.Popen[str]], counts: Counts) -> bool:
        """Kills those that still run; whether any did."""
        there = [victim for victim in victims if victim.poll() is None]
        for victim in there:
            victim.send_signal(signal.SIGKILL)
        for victim in victims:
            victim.communicate()
            if victim.returncode not in (0, -signal.SIGKILL):
                raise Failed(f"{self.out}: exit code {victim.returncode}")
        killed = sum(victim.returncode == -signal.SIGKILL for victim in victims)
        count = self.look(counts)
        counts.kills += killed
        counts.midway += killed if count < POINTS else 0
        counts.whole += killed * count
        return killed > 0

    def end(self, counts: Counts) -> None:
        """The rest, by a run that nobody kills; then all of it is compared."""
        before = self.look(counts)
        said = self.done(self.start(self.out, jobs=2))
        if f": {POINTS - before} run, {before} cached" not in said:
            raise Failed(f"{self.out}: {before} points were whole, and the next run says: {said}")
        self.look(counts)
        whole = self.work / "whole"
        expected, found = digests(whole), digests(self.out)
        counts.compared += len(expected)
        counts.differ += sum(found.get(name) != expected.get(name)
                             for name in expected.keys() | found.keys())
        counts.collections += ((self.out / "sweep/collected.h5").read_bytes()
                               != (whole / "sweep/collected.h5").read_bytes())
        counts.left += sum(path.suffix != ".h5" for path in (self.out / "sweep/points").iterdir())
        counts.sweeps += 1
        shutil.rmtree(self.out)


def local(folder: Folder, rng: random.Random, kills: int) -> Counts:
    counts = Counts()
    while counts.kills < kills:
        folder.begin(f"local{counts.sweeps}")
        for _ in range(min(5, kills - counts.kills)):
            one = folder.start(folder.out)
            time.sleep(rng.uniform(0, folder.whole_s / 2))
            if not folder.kill([one], counts):
                break
        folder.end(counts)
    return counts


def shared(folder: Folder, rng: random.Random, kills: int) -> Counts:
    counts = Counts()
    while counts.kills < kills:
        folder.begin(f"shared{counts.sweeps}")
        runs = [folder.start(folder.out) for _ in range(rng.randint(2, 4))]
        for _ in range(min(6, kills - counts.kills)):
            time.sleep(rng.uniform(0, folder.whole_s / 3))
            victim = runs.pop(rng.randrange(len(runs)))
            if not folder.kill([victim], counts):
                break
            runs.append(folder.start(folder.out))
        for one in runs:
            folder.done(one)
        folder.end(counts)
    return counts


def tasks(folder: Folder, rng: random.Random, kills: int) -> Counts:
    counts = Counts()
    while counts.kills < kills:
        folder.begin(f"tasks{counts.sweeps}")
        folder.done(folder.start(folder.out, "--emit-jobs", str(folder.work / "commands"),
                                 "--points-per-task", str(POINTS // 2)))
        [job] = (folder.out / "sweep/jobs").iterdir()
        for _ in range(min(3, (kills - counts.kills + 1) // 2)):
            workers = [folder.program("work", str(job), task, "-j", "1") for task in "01"]
            time.sleep(rng.uniform(0, folder.whole_s * 0.7))
            if not folder.kill(workers, counts):
                break
        folder.end(counts)
    return counts


def slurm(folder: Folder, rng: random.Random, kills: int) -> Counts:
    sys.path.insert(0, str(ROOT / "tests/executors"))
    import slurm_cluster  # Slurm need not be there for the others
    if why_not := slurm_cluster.why_not():
        raise SystemExit(f"kill_sweep: slurm: {why_not}")
    cluster = slurm_cluster.Cluster()
    try:
        return on_cluster(cluster, folder, rng, kills)
    finally:
        cluster.stop()


def workers_of(out: Path) -> list[int]:
    """Process ids of the tasks that compute points of this output."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:  # others come and go
            continue
        if len(words) > 2 and words[0] == str(SERVELAB) and words[1] == "work" and words[
                2].startswith(f"{out}/"):
            found.append(int(path.parent.name))
    return found


def on_cluster(cluster, folder: Folder, rng: random.Random, kills: int) -> Counts:
    """Tasks are killed one by one; each sweep is handed out again until it is whole."""
    counts = Counts()
    while counts.kills < kills:
        folder.begin(f"slurm{counts.sweeps}")
        for _ in range(POINTS):
            waiting = subprocess.Popen(
                [SERVELAB, *RUN, "--out", str(folder.out), "--executor", "slurm", "--wait", "-q",
                 "--points-per-task", str(POINTS // 4)], cwd=folder.work, text=True,
                env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            while counts.kills < kills and waiting.poll() is None:
                time.sleep(rng.uniform(0.02, 0.3))
                victims = workers_of(folder.out)
                if not victims:
                    continue
                victim = rng.choice(sorted(victims))
                count = folder.look(counts)
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                counts.kills += 1
                counts.midway += count < POINTS
                counts.whole += count
            said, problem = waiting.communicate(timeout=600)
            if waiting.returncode == 0:
                break
            if waiting.returncode != 75:
                raise Failed(f"{folder.out}: exit code {waiting.returncode}: {said}{problem}")
        logs = "".join(log.read_text() for log in folder.out.glob("sweep/jobs/*/logs/*.out"))
        computed = re.findall(r"^sweep \d+/\d+ ([0-9a-f]{16}) ", logs, re.M)
        counts.again += len(computed) - len(set(computed))
        folder.end(counts)
    return counts


KINDS: dict[str, Callable[[Folder, random.Random, int], Counts]] = {
    "local": local, "shared": shared, "tasks": tasks, "slurm": slurm}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="of all kinds together")
    parser.add_argument("--only", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kinds = options.only.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--only: no kind {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    total = Counts()
    with tempfile.TemporaryDirectory(prefix="servelab-kills-") as work:
        try:
            folder = Folder(Path(work))
            for number, kind in enumerate(kinds):
                share = (options.kills - total.kills) // (len(kinds) - number)
                counts = KINDS[kind](folder, random.Random(f"{options.seed} {kind}"), share)
                total.add(counts)
                print(f"{kind}: {counts.text()}", flush=True)
        except Failed as problem:
            print(f"kill_sweep: {problem}", file=sys.stderr)
            return 1
    print(f"all: {total.text()}")
    return 1 if total.bad else 0


if __name__ == "__main__":
    sys.exit(main())
