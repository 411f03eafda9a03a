"""Ranks that srun starts, on a real Slurm: servelab on the device on the host, a step's tasks being
the ranks. The program is $SERVELAB_ON_HOST, or build/tests/cuda_engine/servelab_on_host."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import slurm_cluster  # noqa: E402
from slurm_cluster import Cluster  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("SERVELAB_ON_HOST",
                              ROOT / "build/tests/cuda_engine/servelab_on_host")).resolve()
REASON = slurm_cluster.why_not() or ("" if PROGRAM.exists() else f"{PROGRAM} is not built")
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.xdist_group("slurm")]

MODEL = """
{name: Wide, layers: 2, hidden: 128, heads: 4, kv_heads: 2, head_dim: 64, ffn: 256, vocab: 104,
 max_context_tokens: 256, source: test}
"""
SPEC = """
title: ranks of a Slurm step
model: wide
hardware: little
backend: cuda
cluster: {tensor_parallel: 2}
runtime: {max_arrival_lag_s: 1000, max_processor_loss: 1}
engine: {max_batch: 8, max_batch_tokens: 64, adapter_slots: 3}
workload:
  requests: 8
  adapters: {count: 4, ranks: [8]}
  arrivals: {process: poisson, rate: 100}
  lengths: {source: uniform, prompt_range: [5, 30], output_range: [1, 6]}
techniques: [slora]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    started = Cluster()
    yield started
    started.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("model", "hardware"):
        (tmp_path / "base" / name).mkdir(parents=True)
    (tmp_path / "base/model/wide.yaml").write_text(MODEL)
    lines = (ROOT / "experiments/base/hardware/cpu-uncalibrated.yaml").read_text().splitlines()
    little = ["memory_bytes: 50000000" if line.startswith("memory_bytes:") else line
              for line in lines]
    (tmp_path / "base/hardware/little.yaml").write_text("\n".join(little) + "\n")
    (tmp_path / "ranks.yaml").write_text(SPEC)
    return tmp_path


def srun(cluster: Cluster, folder: Path, tasks: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["srun", f"--ntasks={tasks}", str(PROGRAM), "run", "ranks.yaml", "--experiments",
         str(folder), "--out", "out"],
        cwd=folder, env=cluster.environment, text=True, capture_output=True, timeout=170)


def test_the_tasks_of_a_step_are_ranks(cluster: Cluster, folder: Path) -> None:
    done = srun(cluster, folder, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    # Rank 0 alone runs the spec, and says so once.
    assert done.stdout.count("1 points: 1 run, 0 cached; 1 VALID") == 1, done.stdout
    assert len(list((folder / "out/ranks/points").glob("*.h5"))) == 1


def test_more_tasks_than_ranks(cluster: Cluster, folder: Path) -> None:
    done = srun(cluster, folder, 3)
    assert done.returncode != 0
    assert "ask for 2 ranks, and 3 processes were started" in done.stderr


def test_a_job_script_is_no_rank(cluster: Cluster, folder: Path) -> None:
    """It has a number among the job's two tasks, and holds both devices itself."""
    script = folder / "job.sh"
    script.write_text(f"#!/bin/sh\nexec '{PROGRAM}' run ranks.yaml --experiments . --out out\n")
    subprocess.run(["sbatch", "--wait", "--ntasks=2", "--output=log", str(script)], cwd=folder,
                   env=cluster.environment, check=True, capture_output=True, timeout=170)
    assert "1 points: 1 run, 0 cached; 1 VALID" in (folder / "log").read_text()
