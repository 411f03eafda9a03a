"""Several runs on one folder, and runs that are killed: nothing is lost, and nothing differs."""
from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, write_point
from servelab_runs import SERVELAB, SPEC, needs_servelab, run

from analysis import draw
from analysis.export import cli as export
from analysis.point import Point

# SERVELAB_SWEEP=50 for the whole sweep; CI looks at a few.
TRIES = int(os.environ.get("SERVELAB_SWEEP", "2"))
MANY = {**SPEC, "seeds": 6, "techniques": ["slora", "dlora", "peft"],
        "workload": {**SPEC["workload"], "requests": 1500}}


def digests(folder: Path) -> dict[str, str]:
    return {path.stem: Point(path, "").attribute("content_digest")
            for path in folder.rglob("points/*.h5")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    at = tmp_path_factory.mktemp("alone")
    run(at, MANY, "many")
    return at


def start(spec: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen([SERVELAB, "run", spec, "--out", out, "-j", "1", *more], cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@needs_servelab
@pytest.mark.parametrize("number", range(TRIES))
def test_runs_that_share_a_folder_make_the_same(alone: Path, tmp_path: Path, number: int) -> None:
    """Two to four at once, of which some are killed; the rest finish."""
    rng, spec, computed = random.Random(number), alone / "many.yaml", 0
    runs = [start(spec, tmp_path) for _ in range(rng.randint(2, 4))]
    victims = runs[1:] if number % 2 else []
    for victim in victims:
        time.sleep(rng.uniform(0, 0.3))
        victim.send_signal(signal.SIGKILL)
    for one in runs:
        out, err = one.communicate(timeout=300)
        if one in victims and one.returncode == -signal.SIGKILL:
            continue
        assert one.returncode == 0, err
        computed += int(out.split(" points: ")[1].split(" run")[0])
    assert digests(tmp_path) == digests(alone / "results")
    assert (tmp_path / "many/collected.h5").read_bytes() == \
        (alone / "results/many/collected.h5").read_bytes()
    if not victims:
        assert computed == 18  # nothing twice


@needs_servelab
def test_a_point_that_the_machine_spoilt_is_tried_again(tmp_path: Path) -> None:
    """A generator that lagged is no finding about the technique."""
    spec = {**yaml.safe_load((ROOT / "experiments/smoke/cpu.yaml").read_text()),
            "runtime": {"max_arrival_lag_s": 1e-6}, "techniques": ["slora"]}
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
def test_a_pipe_among_the_points_is_not_waited_for(alone: Path, tmp_path: Path) -> None:
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
