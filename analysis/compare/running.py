"""servelab run, as a child: signals reach it once, and its errors are told as the user's own."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import h5py

from analysis.compare.comparing import Excluded
from analysis.compare.spec_file import SpecFile
from analysis.h5_file import as_text
from analysis.verb import BAD_INPUT, FAILED, OK, VerbError

ERROR = "servelab: error: "
TREE = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    code: int
    errors: list[str] = field(default_factory=list)  # without "servelab: error: "


class Stopped(Exception):
    """servelab run ended without results: its exit code and its errors."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("; ".join(outcome.errors) or f"servelab run ended with {outcome.code}")
        self.code = outcome.code or FAILED


def program() -> str:
    """The servelab that started this verb, or the tree's own. Raises VerbError."""
    path = os.environ.get("SERVELAB", "") or str(TREE / "build" / "servelab")
    if not os.access(path, os.X_OK):
        raise VerbError(f"{path}: no such program; build it with `make build`, or say in "
                        "$SERVELAB where it is")
    return path


def servelab(arguments: list[str]) -> Outcome:
    """Runs it to its end. Its progress goes where ours goes, its errors into the outcome; SIGINT
    and SIGTERM are passed on, once each, however they came."""
    # A session of its own: Ctrl-C would reach it twice otherwise, which means "stop at once".
    child = subprocess.Popen([program(), *arguments], stderr=subprocess.PIPE, stdout=sys.stderr,
                             text=True, errors="replace", start_new_session=True)
    before = {number: signal.signal(number, lambda caught, _: child.send_signal(caught))
              for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    errors = []
    try:
        assert child.stderr is not None
        for line in child.stderr:
            if line.startswith(ERROR):
                errors.append(line[len(ERROR):].rstrip("\n"))
            else:
                sys.stderr.write(line)
                sys.stderr.flush()
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Outcome(code if code >= 0 else 128 - code, errors)


def whole_spec(path: Path, options: list[str]) -> str:
    """The text of a spec with what it extends. Raises VerbError with what is wrong with it."""
    done = subprocess.run([program(), "check", "--effective", str(path), *options], check=False,
                          capture_output=True, text=True, errors="replace")
    if done.returncode != OK:
        raise VerbError((done.stderr.splitlines() or [f"{path}: cannot be checked"])[0]
                        .removeprefix(ERROR))
    return done.stdout


class Runner:
    """Runs effective specs in a folder: each is <folder>/<name>.yaml, its results are in
    <folder>/<name>/."""

    def __init__(self, folder: Path, options: list[str], heading: str,
                 time_limit_s: float | None = None) -> None:
        self.folder = folder
        self._options = options  # of servelab run
        self._heading = heading  # a comment on top of each spec
        self._ends = None if time_limit_s is None else time.monotonic() + time_limit_s

    def run(self, specs: dict[str, SpecFile], labels: list[str]) -> list[Excluded]:
        """Runs specs of these techniques together, and leaves results of all of them but those
        that are returned: techniques that fail, with what they say. Raises VerbError for a
        mistake in a spec, and Stopped."""
        outcome = self._run(specs)
        if outcome.code in (OK, FAILED) and self._are_collected(specs):
            return []
        if outcome.code != FAILED:
            raise Stopped(outcome)
        failed = []
        for label in labels:  # what the others have done is cached
            alone = {name: spec.only([label]) for name, spec in specs.items()
                     if label in spec.entries()}
            outcome = self._run(alone)
            if not self._are_collected(alone):
                if outcome.code != FAILED:
                    raise Stopped(outcome)
                failed.append(Excluded(label, None, f"fails: {(outcome.errors or ['?'])[0]}"))
        lost = {one.technique for one in failed}
        rest = {name: spec.only([label for label in spec.entries() if label not in lost])
                for name, spec in specs.items() if set(spec.entries()) - lost}
        if not rest or len(lost) == 0:
            raise Stopped(outcome)
        outcome = self._run(rest)
        if not self._are_collected(rest):
            raise Stopped(outcome)
        return failed

    def _are_collected(self, specs: dict[str, SpecFile]) -> bool:
        """Whether results are there, and of these specs: earlier ones stay where a run stops."""
        for name, spec in specs.items():
            try:
                with h5py.File(self.folder / name / "collected.h5") as file:
                    if as_text(file.attrs["spec"]) != spec.text(self._heading):
                        return False
            except (OSError, KeyError):
                return False
        return True

    def _run(self, specs: dict[str, SpecFile]) -> Outcome:
        existed = self.folder.is_dir()
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = {name: self.folder / f"{name}.yaml" for name in specs}
        before = {path: path.read_bytes() if path.is_file() else None for path in paths.values()}
        for name, spec in specs.items():
            paths[name].write_text(spec.text(self._heading), encoding="utf-8")
        limit = []
        if self._ends is not None:  # of all runs together
            limit = ["--time-limit", f"{max(0.001, self._ends - time.monotonic()):.3f}"]
        outcome = servelab(["run", *map(str, paths.values()), "--out", str(self.folder),
                            *self._options, *limit])
        for name, spec in specs.items():
            outcome.errors = [spec.told(error, paths[name], self._heading)
                              for error in outcome.errors]
        if outcome.code == BAD_INPUT:
            for path, content in before.items():
                if content is None:
                    path.unlink()
                else:
                    path.write_bytes(content)
            if not existed and not any(self.folder.iterdir()):
                self.folder.rmdir()
            raise VerbError((outcome.errors or ["servelab run refuses the spec"])[0])
        return outcome
