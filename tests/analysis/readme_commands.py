"""The commands of the READMEs, and what types them in a copy of the tree."""
from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from conftest import ROOT
from servelab_runs import SERVELAB

STAND_INS = ("torchrun", "srun", "mpirun", "parallel", "sbatch", "squeue", "module")
# What an indented line begins with that should have been marked as a command.
PROGRAMS = re.compile(r"    (build/|\.venv/|\.ci/|data/f|tests/\S+\.(sh|py) )")
# What launchers and make leave in the environment.
FOREIGN = re.compile(r"(SLURM_|OMPI_|PMI_|MPI_|TORCHELASTIC_|MAKE|PYTEST_|COV_)|"
                     r"(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)$|MASTER_|SERVELAB_SITE$")
SMALL_SPEC = {
    "title": "Mine", "model": "llama-2-7b", "hardware": "a800-80g",
    "workload": {"requests": 400, "adapters": {"count": 8, "ranks": [8, 16]},
                 "arrivals": {"process": "poisson", "rate": 1}, "lengths": {"source": "alpaca"}},
    "techniques": ["slora", "dlora"], "seeds": 1}


class ReadmeError(Exception):
    """A command that does not work as its README says."""


@dataclass(frozen=True)
class Command:
    readme: str
    line: int
    text: str
    section: str  # the heading above, with its #


def tracked(*patterns: str) -> list[str]:
    """What git would check out, new files included; empty where this is no clone."""
    if shutil.which("git") is None:
        return []
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=False)
    return sorted(name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())


def commands_of(readme: str, text: str) -> list[Command]:
    """Lines after `$ ` or of `make` that are indented by four, with their continuations, and each
    block of sh as a whole."""
    found: list[Command] = []
    section, fence, start, block = "", "", 0, []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if line.startswith("```"):
            language = line.strip("`").strip()
            if fence == "sh":
                found.append(Command(readme, start, "\n".join(block), section))
            elif not fence and language not in ("sh", "yaml"):
                raise ReadmeError(f"{readme}:{number}: a block of '{language}'; known: sh, yaml")
            fence, start, block = ("" if fence else language), number + 1, []
        elif fence:
            block.append(line)
        elif line.startswith("#"):
            section = line
        elif re.match(r"    (\$ |make )", line):
            words = line[6:] if line[4] == "$" else line[4:]
            while words.endswith("\\"):
                words += "\n" + next(lines)[1]
            found.append(Command(readme, number, words, section))
        elif PROGRAMS.match(line):
            raise ReadmeError(f"{readme}:{number}: a command without '$ ': {line.strip()}")
    return found


def spans_of(text: str) -> list[str]:
    """Code between single backticks, which may go over lines."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def fragments_of(text: str) -> set[str]:
    """The anchors of a README's headings, as GitHub makes them."""
    anchors: set[str] = set()
    for title in re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M),
                            flags=re.M):
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        anchors.add(next(each for each in (name, *(f"{name}-{i}" for i in range(1, 99)))
                         if each not in anchors))
    return anchors


class Tree:
    """A copy of the tree with the program and .venv, in which commands are typed in order."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        for name in tracked():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        (self.root / "build").mkdir()
        shutil.copy(SERVELAB, self.root / "build" / "servelab")
        (self.root / ".venv").symlink_to(sys.prefix)
        self.calls = folder / "calls"
        self.calls.touch()
        tools = folder / "bin"
        tools.mkdir()
        for name in STAND_INS:
            tool = tools / name
            tool.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} "
                            f"{shlex.quote(str(ROOT))}/tests/analysis/readme_stand_ins.py {name} "
                            '"$@"\n')
            tool.chmod(0o755)
        self.environment = {name: value for name, value in os.environ.items()
                            if not FOREIGN.match(name)}
        self.environment |= {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(self.calls)}
        self.environment.pop("SERVELAB", None)

    def bash(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=self.root, text=True,
                              env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)

    def expect(self, command: Command, text: str) -> str:
        """Types the text on behalf of the command, and returns what it prints."""
        done = self.bash(text)
        if done.returncode != 0:
            typed = "" if text == command.text else f"typed as {text}\n"
            raise ReadmeError(f"{command.readme}:{command.line}: exit code {done.returncode}\n"
                              f"$ {command.text}\n{typed}{done.stdout[-4000:]}")
        return done.stdout

    def type(self, command: Command) -> None:
        before = len(self.calls.read_text().split())
        self.expect(command, command.text)
        wanted = {name for name in STAND_INS
                  if re.search(rf"(^|&& |\| ){name} ", command.text)}
        if "--executor slurm" in command.text:
            wanted.add("sbatch")  # not so where all points are there
        unused = wanted - set(self.calls.read_text().split()[before:])
        if unused:
            raise ReadmeError(f"{command.readme}:{command.line}: did without "
                              f"{', '.join(sorted(unused))}\n$ {command.text}")

    def provide(self, readme: str, text: str, commands: list[Command]) -> None:
        """What the README leaves to its reader: a spec and its results, a site, archives."""
        words = {word for command in commands for word in re.split(r"[\s<>;]+", command.text)}
        (self.root / "my.yaml").write_text(yaml.safe_dump(SMALL_SPEC))
        if "site.yaml" in words:
            shown = re.search(r"^```yaml\n(.*?)^```", text, flags=re.S | re.M)
            if shown is None:
                raise ReadmeError(f"{readme}: uses site.yaml and shows none")
            (self.root / "site.yaml").write_text(shown[1])
        archives = words & {"before.tar.zst", "after.tar.zst"}
        if archives or words & {"my", "POINT.h5"}:
            own = Command(readme, 0, "build/servelab run my.yaml -q", "")
            self.expect(own, own.text)
            points = sorted(self.root.glob("results/my/points/*.h5"))
            shutil.copy(points[0], self.root / "POINT.h5")
        if archives:
            self.expect(own, "build/servelab archive pack my --out before.tar.zst --author Ada")
            shutil.copy(self.root / "before.tar.zst", self.root / "after.tar.zst")
