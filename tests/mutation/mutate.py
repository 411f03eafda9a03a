"""Plants the faults of faults.yaml, one at a time, in a copy of the tree, and says which the tests
notice: `make mutate`.

    .venv/bin/python tests/mutation/mutate.py [--only TEXT] [--seed N --count N] [--resume]

The copy is the last commit, built beside it with the compiler cache. A fault is noticed when its
tests fail, end their process, or take ten times as long as without it; one that does not compile is
a mistake of the list. Each result goes into --out as it comes, with its commit; --resume tries only
what is not noticed there, or stands otherwise in the list now. Exit codes: 0; 1 when fewer than
95 % are noticed; 2 for a list that does not fit the tree.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.yaml")
PROGRAMS = ("servelab_tests", "servelab_conformance_tests", "kernels/servelab_kernel_tests")
ENOUGH = 0.95
LONGEST_S = 900  # of a test run


class ListError(Exception):
    """What in the list does not fit the tree."""


@dataclass(frozen=True)
class Fault:
    file: str
    fault: str
    was: str
    becomes: str
    tests: str
    survives: str = ""

    @property
    def in_python(self) -> bool:
        return self.tests.endswith(".py")

    def planted(self, text: str) -> str:
        """The file's text with the fault; raises ListError unless `was` stands there once."""
        if (count := text.count(self.was)) != 1:
            raise ListError(f"{self.file}: {self.was!r} stands there {count} times, not once")
        return text.replace(self.was, self.becomes)


def load_faults(path: Path = FAULTS) -> list[Fault]:
    """All faults of the list; raises ListError for one that lacks something."""
    known = {"file", "fault", "was", "is", "tests", "survives"}
    faults = []
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
        name = f"{path.name}: {entry.get('fault', entry)!r}"
        if unknown := set(entry) - known:
            raise ListError(f"{name}: unknown {', '.join(sorted(unknown))}")
        if missing := known - {"survives"} - set(entry):
            raise ListError(f"{name}: no {', '.join(sorted(missing))}")
        faults.append(Fault(entry["file"], entry["fault"], entry["was"], entry["is"],
                            entry["tests"], entry.get("survives", "")))
    return faults


class Tree:
    """A copy of the last commit, built once."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.root = folder
        self.build = folder / "build"
        self.jobs = jobs
        self.took: dict[str, float] = {}
        self.environment = os.environ | {"CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1",
                                         "SERVELAB": str(self.build / "servelab")}

    def prepare(self) -> None:
        if not (self.root / ".git").exists():
            self.run(["git", "clone", "-q", "--shared", str(ROOT), str(self.root)], ROOT)
        self.run(["git", "fetch", "-q", str(ROOT), "HEAD"])
        self.run(["git", "reset", "-q", "--hard", "FETCH_HEAD"])
        if not (venv := self.root / ".venv").exists():
            venv.symlink_to(ROOT / ".venv")
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        self.run(["cmake", "-S", ".", "-B", str(self.build), "-DSERVELAB_CUDA=OFF",
                  *(generator if not self.build.exists() else [])])
        if (failed := self.make()) is not None:
            raise ListError(f"the tree does not build without a fault: {failed}")

    def run(self, command: list[str], folder: Path | None = None) -> None:
        subprocess.run(command, cwd=folder or self.root, env=self.environment, check=True,
                       stdout=subprocess.DEVNULL)

    def make(self) -> str | None:
        """Builds; the compiler's first error, or None."""
        done = subprocess.run(
            ["cmake", "--build", str(self.build), "-j", str(self.jobs), "--target", "servelab",
             *(Path(name).name for name in PROGRAMS)], cwd=self.root, env=self.environment,
            capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        errors = [line for line in done.stdout.splitlines() if "error" in line]
        return errors[0] if errors else done.stdout[-400:]

    def fails(self, fault: Fault) -> bool:
        """Whether the fault's tests fail now."""
        commands = [[str(self.build / "tests" / name), "--gtest_brief=1", "--gtest_fail_fast",
                     f"--gtest_filter={fault.tests}"] for name in PROGRAMS]
        if fault.in_python:
            commands = [[str(ROOT / ".venv/bin/python"), "-m", "pytest", "-q", "-x", fault.tests]]
        limit = min(LONGEST_S, 10 * self.took.get(fault.tests, LONGEST_S) + 30)
        for command in commands:
            try:
                done = subprocess.run(command, cwd=self.root, env=self.environment, timeout=limit,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                      check=False)
            except subprocess.TimeoutExpired:
                return True
            if done.returncode != 0:
                return True
        return False

    def commit(self) -> str:
        return subprocess.run(["git", "rev-parse", "HEAD"], cwd=self.root, check=True,
                              capture_output=True, text=True).stdout.strip()

    def check(self, faults: list[Fault]) -> None:
        """That their tests pass without a fault, and how long they take."""
        for fault in faults:
            if fault.tests in self.took:
                continue
            began = time.monotonic()
            if self.fails(fault):
                raise ListError(f"{fault.tests}: fails without a fault")
            self.took[fault.tests] = time.monotonic() - began

    def try_out(self, fault: Fault) -> str:
        """"noticed" or "survived"."""
        path = self.root / fault.file
        text = path.read_text(encoding="utf-8")
        path.write_text(fault.planted(text), encoding="utf-8")
        try:
            if not fault.in_python and (failed := self.make()) is not None:
                raise ListError(f"{fault.file}: {fault.fault}: does not compile: {failed}")
            return "noticed" if self.fails(fault) else "survived"
        finally:
            path.write_text(text, encoding="utf-8")


def chosen(faults: list[Fault], options: argparse.Namespace) -> list[Fault]:
    found = [fault for fault in faults if options.only in fault.file + " " + fault.fault]
    if options.count:
        found = random.Random(options.seed).sample(found, min(options.count, len(found)))
    return found


def noticed_in(path: Path) -> dict[Fault, dict]:
    """The rows of results whose faults were noticed, by fault; none where there is no such file."""
    if not path.exists():
        return {}
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {Fault(**row["planted"]): row for row in rows if row["result"] == "noticed"}
    except (ValueError, TypeError, KeyError) as problem:
        raise ListError(f"{path}: holds no results to go on from: {problem!r}") from problem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose file or name holds this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=0, help="so many of them, drawn; 0: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--tree", type=Path, default=ROOT / "build" / "mutation")
    parser.add_argument("--resume", action="store_true", help="leave out what --out has as noticed")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutation.json")
    options = parser.parse_args()
    try:
        faults = chosen(load_faults(), options)
        for fault in faults:
            fault.planted((ROOT / fault.file).read_text(encoding="utf-8"))
        done = noticed_in(options.out) if options.resume else {}
        rows = [done[fault] for fault in faults if fault in done]
        others = [row for fault, row in done.items() if fault not in faults]
        tree = Tree(options.tree, options.jobs)
        tree.prepare()
        commit = tree.commit()
        left = [fault for fault in faults if fault not in done]
        tree.check(left)
        for fault in left:
            result = tree.try_out(fault)
            rows.append({"result": result, "commit": commit, "planted": asdict(fault)})
            print(f"{len(rows)}/{len(faults)} {result:9} {fault.file}: {fault.fault}", flush=True)
            options.out.write_text(json.dumps(others + rows, indent=1) + "\n", encoding="utf-8")
    except (ListError, subprocess.CalledProcessError) as problem:
        print(f"mutate: {problem}", file=sys.stderr)
        return 2
    noticed = sum(row["result"] == "noticed" for row in rows)
    print(f"{noticed} of {len(rows)} noticed")
    for row in rows:
        if row["result"] == "survived":
            planted = row["planted"]
            print(f"  survived: {planted['file']}: {planted['fault']}"
                  + (f" ({planted['survives']})" if planted["survives"] else ""))
    return 0 if noticed >= ENOUGH * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
