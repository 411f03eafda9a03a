"""CMake where every optional library is there and broken: each costs a line, and none the build."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A prefix with headers that cannot be compiled, libraries without code, tools that fail."""
    for name in ("include/oneapi/dnnl/dnnl.hpp", "include/benchmark/benchmark.h"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('#error "broken"\n')
    (tmp_path / "lib").mkdir()
    for name in ("dnnl", "benchmark", "benchmark_main"):
        (tmp_path / f"lib/lib{name}.so").touch()
    for package in ("dnnl", "benchmark"):
        path = tmp_path / f"lib/cmake/{package}/{package}-config.cmake"
        path.parent.mkdir(parents=True)
        path.write_text('message(FATAL_ERROR "a part of this package is missing")\n')
    (tmp_path / "bin").mkdir()
    for tool in ("ccache", "nvcc"):
        path = tmp_path / "bin" / tool
        path.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
        path.chmod(0o755)
    return tmp_path


@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")
def test_nothing_broken_stops_a_build(broken, tmp_path):
    environment = {**os.environ, "PATH": f"{broken}/bin:{os.environ['PATH']}",
                   "CUDACXX": f"{broken}/bin/nvcc"}
    done = subprocess.run(["cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"),
                           f"-DCMAKE_PREFIX_PATH={broken}"], env=environment, text=True,
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("-- ") for line in done.stdout.splitlines()]

    def said(start: str) -> str:
        (line,) = [line for line in lines if line.startswith(start)]
        return line

    assert "no program builds with it" in said("oneDNN: ")
    assert "no program builds with it" in said("benchmark: ")
    assert "compiles nothing" in said("ccache: ")
    assert "not built" in said("CUDA kernels: ")
    cache = (tmp_path / "build/CMakeCache.txt").read_text()
    assert f"{broken}/include" in cache, "the broken libraries were not the ones that were found"
