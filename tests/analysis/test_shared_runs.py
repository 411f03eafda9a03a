"""Several runs on one folder, runs that are killed, and what a machine has no room for: nothing is
lost, and nothing differs."""
from __future__ import annotations

import os
import random
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, write_point
from servelab_runs import SERVELAB, SPEC, needs_servelab, run

from analysis import draw
from analysis.export import cli as export
from analysis.point import Point

sys.path.insert(0, str(ROOT / "tests"))
import kill_sweep  # noqa: E402


def digests(folder: Path) -> dict[str, str]:
    return {path.stem: Point(path, "").attribute("content_digest")
            for path in folder.rglob("points/*.h5")}


def start(spec: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen([SERVELAB, "run", spec, "--out", out, "-j", "1", *more], cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@needs_servelab
def test_runs_that_share_a_folder_compute_each_point_once(tmp_path: Path) -> None:
    folder = kill_sweep.Folder(tmp_path)
    folder.begin("together")
    runs = [folder.start(folder.out) for _ in range(3)]
    said = [folder.done(one) for one in runs]
    assert sum(int(text.split(" points: ")[1].split(" run")[0]) for text in said) == \
        kill_sweep.POINTS
    counts = kill_sweep.Counts()
    folder.end(counts)
    assert counts.compared == kill_sweep.POINTS and counts.bad == 0


@needs_servelab
def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    """A few of tests/kill_sweep.py; Slurm's are in tests/executors."""
    folder = kill_sweep.Folder(tmp_path)
    for kind, kills in {"local": 5, "shared": 6, "tasks": 6}.items():
        counts = kill_sweep.KINDS[kind](folder, random.Random(kind), kills)
        assert counts.kills >= kills and counts.bad == 0, f"{kind}: {counts.text()}"


@pytest.mark.parametrize("spoil, what", [
    (lambda path: path.unlink(), "gone"),
    (lambda path: path.with_suffix(".new").write_bytes(path.read_bytes())
     and path.with_suffix(".new").rename(path), "again")])
def test_a_point_that_is_gone_or_new_is_counted(tmp_path: Path, spoil, what: str) -> None:
    points = tmp_path / "cut/sweep/points"
    points.mkdir(parents=True)
    (points / "a.h5").write_bytes(b"a")
    folder = kill_sweep.Folder.__new__(kill_sweep.Folder)
    folder.work, counts = tmp_path, kill_sweep.Counts()
    folder.begin("cut")
    assert folder.look(counts) == 1 and counts.bad == 0
    spoil(points / "a.h5")
    folder.look(counts)
    assert getattr(counts, what) == counts.bad == 1


@needs_servelab
def test_a_point_that_the_machine_spoilt_is_tried_again(tmp_path: Path) -> None:
    """A generator that lagged is no finding about the technique."""
    spec = {**yaml.safe_load((ROOT / "experiments/smoke/cpu.yaml").read_text()),
            "runtime": {"max_arrival_lag_s": 1e-6, "max_processor_loss": 1},
            "techniques": ["slora"]}
    spec["workload"]["requests"] = 10
    (tmp_path / "lag.yaml").write_text(yaml.safe_dump(spec).replace("1.0e-06", "0.000001"))
    said = []
    for _ in range(2):
        one = start(tmp_path / "lag.yaml", tmp_path / "out")
        out, err = one.communicate(timeout=300)
        said.append((one.returncode, out, err))
    total = int(said[0][1].split(": ")[1].split(" points")[0])
    for code, out, err in said:
        assert code == 1 and f"{total} points: {total} run, 0 cached" in out
        assert f"({total} for this machine's sake: the next run computes them again)" in out
        assert "the same command computes it again" in err
    assert "was INVALID for the machine's sake (the load generator lagged: " in said[1][2]


@needs_servelab
def test_threads_that_there_is_no_room_for_are_one_line(tmp_path: Path) -> None:
    spec = {**yaml.safe_load((ROOT / "experiments/smoke/cpu.yaml").read_text()),
            "runtime": {"threads": 1024}, "techniques": ["slora"]}
    (tmp_path / "many.yaml").write_text(yaml.safe_dump(spec))

    def leave_room_for_half() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))

    done = subprocess.run([SERVELAB, "run", tmp_path / "many.yaml", "--out", tmp_path / "out"],
                          cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
                          preexec_fn=leave_room_for_half)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert re.search(r"error: many \[slora seed=0\]: no room for thread \d+ of 1023 \(",
                     done.stderr), done.stderr
    assert "1 points: 0 run, 0 cached, 1 FAILED" in done.stdout
    assert not list((tmp_path / "out/many/points").iterdir())


@needs_servelab
def test_what_is_invalid_by_itself_is_not_tried_again(tmp_path: Path) -> None:
    spec = {**SPEC, "hardware": "a10g-24g", "model": "llama-2-70b"}
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(spec))
    for text in ("2 run, 0 cached", "0 run, 2 cached"):
        one = start(tmp_path / "large.yaml", tmp_path / "out")
        out, err = one.communicate(timeout=100)
        if "no such" in err or "unknown" in err:
            pytest.skip(err)
        assert text in out and "machine's sake" not in out + err, out + err


@needs_servelab
def test_a_pipe_among_the_points_is_not_waited_for(tmp_path: Path) -> None:
    run(tmp_path, SPEC, "one")
    point = next((tmp_path / "results/one/points").glob("*.h5"))
    before = digests(tmp_path)
    point.unlink()
    os.mkfifo(point)
    os.mkfifo(point.with_suffix(".1.lock"))
    (tmp_path / "results/one/collected.h5").unlink()
    os.mkfifo(tmp_path / "results/one/collected.h5")
    done = subprocess.run([SERVELAB, "run", tmp_path / "one.yaml", "--out", tmp_path / "results"],
                          cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0 and "is damaged" in done.stderr, done.stderr
    assert digests(tmp_path) == before


@needs_servelab
@pytest.mark.parametrize("arguments, reason", [
    (["--trace", "{spec}"], "--trace: {spec} is there, and looks like a spec"),
    (["--emit-jobs", "{spec}"], "--emit-jobs: {spec} is there, and looks like a spec"),
    (["--rows", "99"], "has no row 99; its 2 points are rows 0 to 1"),
    (["--time-limit", "nan"], "nan is not a number"),
])
def test_what_would_destroy_or_mean_nothing_is_refused(tmp_path: Path, arguments: list[str],
                                                       reason: str) -> None:
    spec = tmp_path / "one.yaml"
    spec.write_text(yaml.safe_dump(SPEC))
    before = spec.read_text()
    given = [text.format(spec=spec) for text in arguments]
    done = subprocess.run([SERVELAB, "run", spec, "--out", tmp_path / "out", *given], cwd=ROOT,
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2 and reason.format(spec=spec) in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and spec.read_text() == before


@needs_servelab
def test_specs_without_a_name_and_of_100_mb(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/...yaml").write_text(yaml.safe_dump(SPEC))
    with (tmp_path / "long.yaml").open("w") as file:
        file.truncate(100 << 20)
    for name, reason in (("a/...yaml", "a spec's file needs a name before .yaml"),
                         ("long.yaml", "has 104857600 bytes, more than the 16777216 of a spec")):
        done = subprocess.run([SERVELAB, "run", tmp_path / name, "--out", tmp_path / "out/in"],
                              cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.rglob("points"))


@needs_servelab
def test_a_complete_folder_that_is_read_only_is_run_and_drawn(tmp_path: Path) -> None:
    if os.geteuid() == 0 and not os.path.exists("/proc/self/setgroups"):
        pytest.skip("needs another user to be")
    run(tmp_path, SPEC, "one")
    folder = tmp_path / "results/one"
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in [tmp_path, *tmp_path.parents[:-2]]:
        path.chmod(0o755)

    def leave_root() -> None:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)

    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = subprocess.run([SERVELAB, "run", tmp_path / "one.yaml", "--out", tmp_path / "results"],
                          cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
                          preexec_fn=leave_root)
    assert done.returncode == 0 and "2 points: 0 run, 2 cached" in done.stdout, done.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert draw.main(["one", "--results", str(tmp_path / "results"), "--out",
                      str(tmp_path / "pictures")]) == 0
    assert (tmp_path / "pictures/one/one.png").is_file()


def test_export_does_not_replace_what_it_reads(tmp_path: Path, capfd) -> None:
    path = tmp_path / "point.h5"
    write_point(path, {"requests/scheduled": [1]}, {"key": "k", "technique": "slora", "seed": 1})
    before = path.read_bytes()
    assert export.main([str(path), "--format", "mooncake", "--out", str(path)]) == 2
    assert "is what is to be exported" in capfd.readouterr().err and path.read_bytes() == before
