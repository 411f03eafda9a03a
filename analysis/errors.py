"""The one kind of failure that a user sees as a single line, and what to do about it."""
from __future__ import annotations

import os
import shlex
from pathlib import Path

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"


def quoted(name: str) -> str:
    """A name from a file that nobody vouches for, fit for a message."""
    return ascii(name if len(name) <= 200 else name[:200] + "...")


def shown(path: Path) -> str:
    """The path as a user would type it: relative to the current folder where it is inside it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def command_for(spec_id: str, root: Path, spec_path: str = "") -> str:
    """The command that makes a spec's results in `root`, damaged files included. `spec_path` is
    where the spec was when it ran; make knows the specs in experiments/ and the folder results/."""
    own = EXPERIMENTS / f"{spec_id}.yaml"
    usual = f"experiments/{spec_id}.yaml"
    if own.is_file() and spec_path in ("", usual) and root == Path("results"):
        return f"make figures/{spec_id}"
    path = spec_path or (usual if own.is_file() else "SPEC")
    command = f"build/servelab run {shlex.quote(path)}"
    return command if root == Path("results") else f"{command} --out {shlex.quote(str(root))}"


class ResultsError(Exception):
    """Something wrong with a results file. Its text is one line: file, what, remedy."""

    def __init__(self, path: Path, what: str, remedy: str) -> None:
        self.path, self.what = path, " ".join(what.split())
        super().__init__(f"{shown(path)}: {' '.join(what.split())}; {remedy}")
