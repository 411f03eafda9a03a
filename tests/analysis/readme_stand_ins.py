"""Stands in for launchers and schedulers that the READMEs' commands name: NAME ARGUMENT...

Each takes the options that it knows and no others, notes its call in $CALLS, and runs what it was
given: a launcher rank 0, with the variables that it sets (engine/cli/launch.h), and that alone,
since points in virtual time take no ranks; a scheduler one task after another, or the lines that it
reads.
"""
from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

# Long options of sbatch that a script may have.
SBATCH = {"job-name", "array", "output", "open-mode", "chdir", "nodes", "ntasks", "requeue",
          "no-requeue", "exclusive", "cpus-per-task", "partition", "account", "time", "mem", "qos",
          "gres"}


def options(name: str, *flags: str, words: bool = False) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False)
    for flag in flags:
        parser.add_argument(flag, type=int, required=True)
    if words:
        parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def launch(command: list[str], **variables: object) -> int:
    if command[:2] != ["build/servelab", "run"]:
        sys.exit(f"not a run of servelab: {command}")
    environment = {name: str(value) for name, value in variables.items()}
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


def torchrun(arguments: list[str]) -> int:
    parser = options("torchrun", "--nproc-per-node", words=True)
    parser.add_argument("--no-python", action="store_true", required=True)
    given = parser.parse_args(arguments)
    return launch(given.command, RANK=0, LOCAL_RANK=0, WORLD_SIZE=given.nproc_per_node,
                  LOCAL_WORLD_SIZE=given.nproc_per_node, MASTER_ADDR="127.0.0.1",
                  MASTER_PORT=29500)


def srun(arguments: list[str]) -> int:
    given = options("srun", "--ntasks", "--ntasks-per-node", "--gpus-per-node",
                    words=True).parse_args(arguments)
    if given.ntasks % given.ntasks_per_node or given.gpus_per_node != given.ntasks_per_node:
        sys.exit("srun: tasks, tasks per node and devices per node do not go together")
    return launch(given.command, SLURM_PROCID=0, SLURM_LOCALID=0, SLURM_JOB_ID=1, SLURM_STEP_ID=0,
                  SLURM_STEP_NUM_TASKS=given.ntasks, SLURM_STEP_NODELIST="gpu[1-2]",
                  SLURM_STEP_NUM_NODES=given.ntasks // given.ntasks_per_node)


def mpirun(arguments: list[str]) -> int:
    given = options("mpirun", "-n", words=True).parse_args(arguments)
    return launch(given.command, PMI_RANK=0, PMI_SIZE=given.n, MPI_LOCALRANKID=0,
                  MPI_LOCALNRANKS=given.n)


def parallel(arguments: list[str]) -> int:
    options("parallel").parse_args(arguments)
    lines = [line for line in sys.stdin.read().splitlines() if line]
    if not lines:
        sys.exit("parallel: no commands")
    return int(any([subprocess.run(["bash", "-c", line], check=False).returncode
                    for line in lines]))


def sbatch(arguments: list[str]) -> int:
    parser = options("sbatch")
    parser.add_argument("--parsable", action="store_true", required=True)
    parser.add_argument("script", type=Path)
    script = parser.parse_args(arguments).script
    asked: dict[str, str] = {}
    for words in re.findall(r"^#SBATCH (.*)", script.read_text(), flags=re.M):
        name, _, value = shlex.split(words)[0].removeprefix("--").partition("=")
        if name not in SBATCH:
            sys.exit(f"sbatch: unrecognized option '{words}'")
        asked[name] = value
    first, last = (int(each) for each in asked["array"].split("%")[0].split("-"))
    for task in range(first, last + 1):
        with open(asked["output"].replace("%a", str(task)), "a", encoding="utf-8") as log:
            done = subprocess.run(["bash", script], cwd=asked["chdir"], stdout=log, stderr=log,
                                  env={**os.environ, "SLURM_ARRAY_TASK_ID": str(task)})
        if done.returncode != 0:
            sys.exit(f"sbatch: task {task} failed: {Path(log.name).read_text()[-2000:]}")
    print("1")
    return 0


def squeue(arguments: list[str]) -> int:
    """Nothing is queued: tasks have ended when sbatch returns."""
    parser = options("squeue")
    for flag in ("--noheader", "--array"):
        parser.add_argument(flag, action="store_true", required=True)
    for flag in ("--name", "--format"):
        parser.add_argument(flag, required=True)
    parser.parse_args(arguments)
    return 0


def module(arguments: list[str]) -> int:
    return 0 if len(arguments) == 2 and arguments[0] == "load" else 1


if __name__ == "__main__":
    with open(os.environ["CALLS"], "a", encoding="utf-8") as calls:
        calls.write(f"{sys.argv[1]}\n")
    known = {each.__name__: each
             for each in (torchrun, srun, mpirun, parallel, sbatch, squeue, module)}
    sys.exit(known[sys.argv[1]](sys.argv[2:]))
