"""The one kind of failure that a user sees as a single line."""
from __future__ import annotations

import os
from pathlib import Path


def shown(path: Path) -> str:
    """The path as a user would type it: relative to the current folder where it is inside it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


class ResultsError(Exception):
    """Something wrong with a results file. Its text is one line: file, what, remedy."""

    def __init__(self, path: Path, what: str, remedy: str) -> None:
        super().__init__(f"{shown(path)}: {' '.join(what.split())}; {remedy}")
