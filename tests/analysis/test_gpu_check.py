"""`make gpu-check` with stand-ins for the card and the programs: what it runs, tells and leaves."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/bash\n" + text, encoding="utf-8")
    path.chmod(0o755)


def run_check(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    environment = dict(os.environ, PATH=f"{tmp_path / 'path'}:/usr/bin:/bin", **variables)
    return subprocess.run([sys.executable, str(ROOT / "tests/gpu/check.py"),
                           str(tmp_path / "out"), "--binaries", str(tmp_path / "bundle"),
                           *arguments], capture_output=True, text=True, env=environment,
                          check=False, timeout=60)


def stand_ins(tmp_path: Path) -> Path:
    (tmp_path / "path").mkdir()
    script(tmp_path / "path/nvidia-smi", "echo 'Card, id, 1.0, 80 GiB, 1, 2, 3, 4, 5'")
    bundle = tmp_path / "bundle/bin"
    script(bundle / "servelab_gpu_tests", "echo all tests; exit 0")
    script(bundle / "servelab_gpu_engine_tests", "echo broken; exit 1")
    script(bundle / "servelab_cuda_bench",
           """printf '%s\\n' '{"name": "bgmv", "ms": 1}' '{"name": "cut' >"$2" """)
    script(bundle / "servelab", 'if [ "$1" = calibrate ]; then touch "${@: -1}"; else exit 2; fi')
    return bundle


def test_without_a_gpu_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    script(tmp_path / "path/nvidia-smi", "exit 9")
    result = run_check(tmp_path)
    assert result.returncode == 3
    assert "no GPU here" in result.stderr
    assert not (tmp_path / "out").exists()


def test_every_step_is_reported_and_failures_count(tmp_path: Path) -> None:
    stand_ins(tmp_path)
    result = run_check(tmp_path)
    assert result.returncode == 1
    report = json.loads((tmp_path / "out/check.json").read_text())
    status = {step["step"]: step["status"] for step in report["steps"]}
    assert report["card"]["name"] == "Card"
    assert status["servelab_gpu_tests"] == "passed"
    assert status["servelab_gpu_engine_tests"] == "FAILED with code 1"
    assert status["memcheck"] == "skipped" or status["memcheck"].startswith("FAILED")
    assert status["kernel benchmarks"] == "passed"
    assert status["calibration"] == "passed"
    assert status["dlora/fig10_cuda"] == "FAILED with code 2"
    assert {"name": "bgmv", "ms": 1} in report["benchmarks"]
    assert "broken" in report["log"]
    assert not (tmp_path / "out/log.txt").exists()
    assert (tmp_path / "out/profile.yaml").exists()
    assert len(list((tmp_path / "out").iterdir())) <= 8


def test_what_skips_on_a_gpu_machine_has_failed(tmp_path: Path) -> None:
    bundle = stand_ins(tmp_path)
    script(bundle / "servelab_gpu_tests",
           "echo '[  PASSED  ] 1 test.'; echo '[  SKIPPED ] 66 tests.'")
    script(bundle / "servelab_gpu_engine_tests", "echo '[  PASSED  ] 12 tests.'")
    script(bundle / "servelab_cuda_bench", "echo 'skipped: no CUDA device'; exit 0")
    run_check(tmp_path)
    report = json.loads((tmp_path / "out/check.json").read_text())
    status = {step["step"]: step["status"] for step in report["steps"]}
    assert status["servelab_gpu_tests"] == "FAILED: 66 tests were skipped, 1 ran"
    assert status["servelab_gpu_engine_tests"] == "passed"
    assert status["kernel benchmarks"] == "FAILED: it was skipped (see the log)"


def test_a_benchmark_s_ratios_stand_beside_what_is_asked(tmp_path: Path) -> None:
    script(stand_ins(tmp_path) / "servelab_cuda_bench",
           """echo '{"name": "ratio", "shape": "loads", "ratio": 1.2, "at_most": 1.05}' >"$2" """)
    assert re.search(r"^loads +1.200, asked at most 1.05  ABOVE$", run_check(tmp_path).stdout,
                     re.MULTILINE)


def test_libraries_are_found_and_said_or_named_as_missing(tmp_path: Path) -> None:
    """The loader looks in its own places; toolkits elsewhere are found by their folders."""
    stand_ins(tmp_path)
    script(tmp_path / "path/ldd", """
case ":$LD_LIBRARY_PATH:" in
  *toolkit/targets/x/lib:*) where=$CUDA_HOME/targets/x/lib/libcuexample.so.9 ;;
  *) where='not found' ;;
esac
echo "  libcuexample.so.9 => $where (0x1)"
echo "  libm.so.6 => /lib/libm.so.6 (0x2)" """)
    result = run_check(tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("gpu-check: libcuexample.so.9 was not found: ")
    assert not (tmp_path / "out/check.json").exists()
    library = tmp_path / "toolkit/targets/x/lib/libcuexample.so.9"
    library.parent.mkdir(parents=True)
    library.with_name("libcuexample.so.9.4.5").touch()
    library.symlink_to("libcuexample.so.9.4.5")
    run_check(tmp_path, CUDA_HOME=str(tmp_path / "toolkit"))
    report = json.loads((tmp_path / "out/check.json").read_text())
    assert report["libraries"] == {"libcuexample.so.9": f"{library}.4.5"}
    assert any("libcuexample.so.9 " in line for line in report["log"])


def test_no_step_outlives_the_time(tmp_path: Path) -> None:
    script(stand_ins(tmp_path) / "servelab_gpu_tests", "sleep 30")
    result = run_check(tmp_path, "--seconds", "8")
    report = json.loads((tmp_path / "out/check.json").read_text())
    assert report["steps"][0]["status"].startswith("FAILED: cut off after")
    assert report["steps"][-2] == {"step": "caraserve/fig16_cuda", "status": "skipped",
                                   "reason": "no time is left"}
    assert report["steps"][-1]["step"] == "racecheck"
    assert report["seconds"] < 20
    assert result.returncode == 1


def test_all_that_can_come_back_fits_and_the_figures_exist() -> None:
    figures = re.search(r"^FIGURES = \[(.*?)\]", (ROOT / "tests/gpu/check.py").read_text(),
                        re.DOTALL | re.MULTILINE).group(1)
    specs = re.findall(r'"(.*?)"', figures)
    assert 3 + len(specs) <= 8  # check.json, profile.yaml, calibration.csv
    for spec in specs:
        assert "\nquick:" in (ROOT / f"experiments/{spec}.yaml").read_text(), spec


def test_the_sanitized_part_is_not_empty() -> None:
    source = (ROOT / "tests/gpu/check.py").read_text()
    wanted = source.split('SANITIZED = "')[1].split('"')[0]
    assert wanted == "*bf16*:Sampling*:*Blocks*:Gather*-*Dense*"
    tests = "".join(path.read_text() for path in (ROOT / "tests/gpu").glob("*_test.cc"))
    for suite in ("SamplingTest", "BlocksTest", "GatherRowsTest"):
        assert suite in tests
    typed = [line for line in tests.splitlines() if line.startswith("TEST_P(")]
    assert len(typed) > 20
