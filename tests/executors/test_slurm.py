"""Runs with `--executor slurm` on a real Slurm. The program is $SERVELAB, or build/servelab."""
from __future__ import annotations

import collections
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import h5py
import pytest

sys.path[:0] = map(str, Path(__file__).resolve().parents[:2])

import kill_sweep  # noqa: E402
import slurm_cluster  # noqa: E402
from slurm_cluster import Cluster, wait_until  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SERVELAB = Path(os.environ.get("SERVELAB", ROOT / "build/servelab")).resolve()
REASON = slurm_cluster.why_not() or ("" if SERVELAB.exists() else f"{SERVELAB} is not built")
# One cluster for all: with pytest-xdist they go to one worker.
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.xdist_group("slurm")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    started = Cluster()
    yield started
    started.stop()


class Sweep:
    """A spec in a folder whose name has a space and a percent sign, run on a cluster."""

    def __init__(self, cluster: Cluster, folder: Path, points: int, requests: int) -> None:
        self.cluster = cluster
        self.folder = folder / "a folder, 100% odd"
        self.folder.mkdir()
        spec = kill_sweep.SPEC.format(requests=requests, seeds=points // 4)
        (self.folder / "sweep.yaml").write_text(spec)

    def command(self, out: str, *more: str) -> list[str]:
        return [str(SERVELAB), "run", "sweep.yaml", "--out", out, "--experiments",
                str(ROOT / "experiments"), *more]

    def start(self, out: str, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(out, *more), cwd=self.folder, text=True,
                                env=self.cluster.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def run(self, out: str, *more: str, code: int = 0) -> str:
        program = self.start(out, *more)
        stdout, stderr = program.communicate(timeout=170)
        assert program.returncode == code, stdout + stderr
        return stdout + stderr

    def slurm(self, out: str, *more: str, code: int = 0) -> str:
        return self.run(out, "--executor", "slurm", *more, code=code)

    def stop_tasks(self) -> None:
        """Stops the tasks that compute points now, where they are."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # others come and go
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"/servelab") and words[1] == b"work" and (
                        (process / "cwd").resolve() == self.folder.resolve()):
                    os.kill(int(process.name), signal.SIGSTOP)

    def points(self, out: str) -> list[Path]:
        return list((self.folder / out / "sweep/points").glob("*.h5"))

    def digests(self, out: str) -> dict[str, str]:
        found = {}
        for path in self.points(out):
            with h5py.File(path, "r") as file:
                found[path.name] = str(file.attrs["content_digest"])
        return found

    def collected(self, out: str) -> bytes:
        return (self.folder / out / "sweep/collected.h5").read_bytes()

    def computed(self, out: str) -> collections.Counter[str]:
        """How often tasks say that they computed each key."""
        counts: collections.Counter[str] = collections.Counter()
        for log in (self.folder / out).glob("sweep/jobs/*/logs/*.out"):
            counts.update(re.findall(r"^sweep \d+/\d+ ([0-9a-f]{16}) ", log.read_text(), re.M))
        return counts

    def expect_equal(self, one: str, other: str) -> None:
        assert self.digests(one) == self.digests(other)
        assert self.collected(one) == self.collected(other)
        left = [path.name for path in (self.folder / other / "sweep/points").iterdir()
                if path.suffix != ".h5"]
        assert not left, "files were left"

    def idle(self) -> None:
        wait_until(lambda: not self.cluster.queue(), "an empty queue")


@pytest.fixture
def sweep(cluster: Cluster, tmp_path: Path):
    def make(points: int, requests: int) -> Sweep:
        return Sweep(cluster, tmp_path, points, requests)

    yield make
    cluster.tool("scancel", "--user=root", check=False)
    wait_until(lambda: not cluster.queue(), "an empty queue")


def test_same_results_as_a_local_run_digest_for_digest(sweep):
    here = sweep(40, 100)
    here.run("local")
    (here.folder / "site.yaml").write_text(
        "partition: main\ntime: 10\nmemory: 100M\ncpus: 2\npoints_per_task: 7\nat_once: 3\n"
        "sbatch: [--nice=1, '--comment=\"two words\"']\n"
        "prologue: |\n  export FROM_PROLOGUE=1\n  echo \"prologue of $SLURM_ARRAY_TASK_ID\"\n")
    told = here.slurm("tasks", "--site", "site.yaml", "--wait")
    assert "40 points in 6 tasks of Slurm job" in told
    assert "40 points: 40 run, 0 cached; 40 VALID" in told
    here.expect_equal("local", "tasks")
    assert set(here.computed("tasks").values()) == {1}
    assert len(here.computed("tasks")) == 40
    [job] = (here.folder / "tasks/sweep/jobs").iterdir()
    assert "prologue of 5\n" in (job / "logs/5.out").read_text()
    assert "0 run, 40 cached" in here.slurm("tasks", "--wait")
    assert len(list((here.folder / "tasks/sweep/jobs").iterdir())) == 1


def test_detached_run_is_followed_and_collected_later(sweep):
    here = sweep(24, 4000)
    told = here.slurm("out")
    assert "24 handed out" in told and "squeue --name=servelab-sweep-" in told
    assert "points are queued already" in here.slurm("out")
    told = re.search(r"24 points: (\d+) run, (\d+) cached", here.slurm("out", "--wait"))
    assert sum(map(int, told.groups())) == 24  # some may be there before the waiting begins
    assert len(list((here.folder / "out/sweep/jobs").iterdir())) == 1
    here.run("local")
    here.expect_equal("local", "out")


def test_edited_spec_changes_nothing_for_tasks_that_wait(sweep):
    here = sweep(8, 100)
    here.run("local")
    spec = here.folder / "sweep.yaml"
    text = spec.read_text()
    (here.folder / "site.yaml").write_text("sbatch: [--hold]\n")
    here.slurm("out", "--site", "site.yaml")
    spec.write_text(text.replace("requests: 100", "requests: 5"))
    for job in {each for each, _ in here.cluster.queue()}:
        here.cluster.tool("scontrol", "release", job)
    here.idle()
    assert here.digests("out") == here.digests("local")


def test_interrupted_waiting_leaves_the_tasks(sweep):
    here = sweep(24, 4000)
    waiting = here.start("out", "--executor", "slurm", "--wait")
    wait_until(lambda: here.points("out"), "a first point")
    waiting.send_signal(signal.SIGINT)
    stdout, stderr = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert "its tasks go on; to cancel them: scancel --name=servelab-sweep-" in stdout
    assert here.cluster.queue()
    assert "24 VALID" in here.slurm("out", "--wait")


def test_cancelled_tasks_are_told_and_handed_out_again(sweep):
    here = sweep(40, 4000)
    waiting = here.start("out", "--executor", "slurm", "--wait")
    wait_until(lambda: here.points("out"), "a first point")
    here.cluster.tool("scancel", "--user=root")
    stdout, stderr = waiting.communicate(timeout=60)
    assert waiting.returncode == 75, stdout + stderr
    assert "points are missing, although their tasks have ended" in stderr
    assert "40 VALID" in here.slurm("out", "--wait")
    here.run("local")
    here.expect_equal("local", "out")


def test_two_runs_and_a_local_one_at_once(sweep):
    here = sweep(40, 2000)
    here.slurm("out", "--points-per-task", "10")
    # A second job of the same points: its tasks find them locked or there.
    here.run("out", "--emit-jobs", "commands", "--points-per-task", "40")
    extra = subprocess.Popen(["sh", "commands"], cwd=here.folder, text=True,
                             stderr=subprocess.PIPE)
    told = here.run("out", "-j", "1")
    extra_told = extra.communicate(timeout=120)[1]
    here.idle()
    counts = here.computed("out")
    for text in (told, extra_told):
        counts.update(re.findall(r"^sweep \d+/\d+ ([0-9a-f]{16}) ", text, re.M))
    assert len(counts) == 40 and set(counts.values()) == {1}
    here.run("alone")
    here.expect_equal("alone", "out")


def test_preempted_task_is_requeued_and_goes_on(sweep):
    here = sweep(16, 6000)
    here.run("local")
    here.slurm("out", "--points-per-task", "16")
    wait_until(lambda: here.points("out"), "a first point")
    here.stop_tasks()  # until Slurm wakes and ends them: however fast the machine is
    urgent = here.cluster.tool("sbatch", "--parsable", "--partition=urgent", "--exclusive",
                               "--output=/dev/null", "--wrap=sleep 1").strip()
    wait_until(lambda: (urgent, "RUNNING") in here.cluster.queue(), "the urgent job")
    assert len(here.points("out")) < 16, "it was preempted in the middle"
    [(task, state)] = [each for each in here.cluster.queue() if each[0] != urgent]
    assert state == "PENDING", "requeued"
    here.cluster.tool("scontrol", "update", f"JobId={task}", "StartTime=now")
    assert "16 VALID" in here.slurm("out", "--wait")
    [log] = (here.folder / "out").glob("sweep/jobs/*/logs/0.out")
    assert log.read_text().count("servelab work: task 0 of") == 2
    assert max(here.computed("out").values()) == 1
    here.expect_equal("local", "out")


def test_task_of_another_build_refuses_and_the_run_says_so(sweep):
    here = sweep(4, 50)
    (here.folder / "site.yaml").write_text("sbatch: [--hold]\n")
    here.slurm("out", "--site", "site.yaml")
    [job] = (here.folder / "out/sweep/jobs").iterdir()
    text = (job / "job.json").read_text()
    (job / "job.json").write_text(re.sub(r'"build_id": "[^"]*"', '"build_id": "0"', text))
    here.cluster.tool("scontrol", "release", here.cluster.queue()[0][0].split("_")[0])
    here.idle()
    assert "was made by the build 0, and this is" in (job / "logs/0.out").read_text()
    assert not here.points("out")
    assert "4 VALID" in here.slurm("out", "--wait")


def test_failed_points_are_told_by_the_run_that_waits(sweep):
    here = sweep(4, 50)
    (here.folder / "site.yaml").write_text("sbatch: [--hold]\n")
    waiting = here.start("out", "--executor", "slurm", "--site", "site.yaml", "--wait")
    wait_until(here.cluster.queue, "a queued job")
    [job] = (here.folder / "out/sweep/jobs").iterdir()
    frozen = (job / "spec.yaml").read_text()
    (job / "spec.yaml").write_text(frozen.replace("requests: 50", "requests: 51"))
    here.cluster.tool("scontrol", "release", here.cluster.queue()[0][0].split("_")[0])
    stdout, stderr = waiting.communicate(timeout=60)
    assert waiting.returncode == 2, stdout + stderr
    assert stderr.count("its key was") == 4 and "4 FAILED" in stdout


def test_real_backends_have_their_node_to_themselves(sweep):
    here = sweep(4, 20)
    spec = here.folder / "sweep.yaml"
    spec.write_text(spec.read_text().replace("seeds: 1", "seeds: 1\nbackend: cpu")
                    .replace("llama-2-7b", "llama-134m"))
    (here.folder / "site.yaml").write_text("sbatch: [--hold]\nsbatch_real: [--gres=none]\n")
    told = here.slurm("out", "--site", "site.yaml")
    assert "4 points in 4 tasks" in told, "one point a task"
    task = here.cluster.queue()[0][0]
    assert "OverSubscribe=NO" in here.cluster.tool("scontrol", "show", "job", task)
    [job] = (here.folder / "out/sweep/jobs").iterdir()
    script = (job / "real.sbatch").read_text()
    assert "#SBATCH --exclusive\n" in script and "#SBATCH --gres=none\n" in script
    assert not (job / "tasks.sbatch").exists()


def test_what_sbatch_does_not_take_is_one_line(sweep):
    here = sweep(4, 20)
    (here.folder / "site.yaml").write_text("partition: nowhere\n")
    told = here.slurm("out", "--site", "site.yaml", code=1)
    assert told.count("\n") == 1 and "sbatch did not take the job" in told
    assert not list((here.folder / "out/sweep/jobs").iterdir())


def test_killed_at_20_random_moments_nothing_is_lost_or_different(cluster, tmp_path):
    folder = kill_sweep.Folder(tmp_path)
    counts = kill_sweep.on_cluster(cluster, folder, random.Random(20), 20)
    assert counts.kills == 20 and counts.midway >= 15 and counts.bad == 0, counts.text()
