"""Small runs of the servelab program, for tests of what reads results."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

from analysis.results import Results

SERVELAB = Path(os.environ.get("SERVELAB", ROOT / "build" / "servelab"))
needs_servelab = pytest.mark.skipif(not SERVELAB.is_file(), reason=f"no program {SERVELAB}")
SPEC: dict[str, Any] = {
    "title": "Small", "model": "llama-2-7b", "hardware": "a800-80g", "engine": {"max_batch": 16},
    "workload": {"requests": 150,
                 "adapters": {"count": 6, "ranks": [8, 16, 64], "base_share": 0.2},
                 "arrivals": {"process": "gamma", "rate": 12, "cv": 3},
                 "popularity": {"kind": "zipf", "exponent": 1}, "lengths": {"source": "sharegpt"}},
    "techniques": ["slora", "dlora"], "seeds": [3], "record": {"token_times": True}}


def run(folder: Path, spec: dict[str, Any], name: str, code: int = 0) -> Results:
    """Runs the spec, which ends with this exit code, and loads its results, which are in
    folder/results."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    done = subprocess.run([SERVELAB, "run", path, "--out", folder / "results", "-q"], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return Results.load(name, folder / "results")
