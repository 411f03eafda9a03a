"""The set-up script on machines that it does not run on: PATH holds stub commands only."""
from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REAL = ["bash", "dirname", "sha256sum", "rm", "env", "mkdir", "cat", "chmod", "touch"]
TOOLS = ["g++", "clang++", "cmake", "make", "ninja", "ccache", "git", "ssh-keygen"]
HEADERS = ["hdf5.h", "yaml-cpp/yaml.h", "CLI/CLI.hpp", "fmt/core.h",
           "nlohmann/json.hpp", "gtest/gtest.h",
           "gmock/gmock.h", "benchmark/benchmark.h", "openssl/evp.h", "zlib.h",
           "sqlite3.h", "pcre2.h", "libdeflate.h", "eigen3/Eigen/Core", "coin/CbcModel.hpp",
           "oneapi/dnnl/dnnl.hpp"]
TEXTS = ("", ".cc", ".h", ".md", ".py", ".sh", ".txt")
# A python3 that makes a .venv whose python accepts everything, as pip does when all goes well.
PYTHON = """
case "$*" in
  --version) echo "Python 3.11.2" ;;
  *"venv --clear"*) mkdir -p .venv/bin; touch .venv/made
                    printf '#!/bin/sh\\nexit ${PIP_EXIT:-0}\\n' >.venv/bin/python
                    chmod +x .venv/bin/python ;;
esac
"""


class Machine:
    """A checkout with nothing but the script, and a PATH with nothing but stubs."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin, self.prefix = (folder / n for n in ("checkout", "bin", "prefix"))
        for path in (self.root / ".ci", self.root / "analysis", self.bin, self.prefix):
            path.mkdir(parents=True)
        shutil.copy(ROOT / ".ci/setup", self.root / ".ci/setup")
        (self.root / "analysis/requirements.txt").write_text("numpy==2.2.6\n")
        (self.root / "tests").mkdir()
        (self.root / "tests/requirements.txt").write_text("pytest==8.3.5\n")
        for name in REAL:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.stub("id", "echo 1000")

    def stub(self, name: str, body: str = "exit 0") -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\necho \"{name} $*\" >>'{self.root}/calls'\n{body}\n")
        path.chmod(0o755)

    def with_python(self) -> "Machine":
        self.stub("python3", PYTHON)
        return self

    def with_headers(self, *absent: str) -> "Machine":
        for header in set(HEADERS) - set(absent):
            path = self.prefix / "include" / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return self

    def with_tools(self) -> "Machine":
        for tool in TOOLS:
            self.stub(tool)
        return self

    def with_apt(self, installs: bool = True) -> "Machine":
        """apt-get that "installs" everything; dpkg-query then lists what was asked for."""
        done = f"'{self.root}/installed'"
        install = f"touch {done}" if installs else "exit 100"
        self.stub("apt-get", f'case "$*" in *install*) {install} ;; esac')
        self.stub("dpkg-query", 'shift 3; for package; do [ "$package" = git ] '
                                f'|| [ -e {done} ] && echo "$package install ok installed"; '
                                "done; exit 1")
        return self

    def calls(self, name: str) -> list[str]:
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(f"{name} ")]

    def setup(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.bin), "SERVELAB_PREFIXES": str(self.prefix), **variables}
        return subprocess.run([str(self.bin / "bash"), ".ci/setup", *arguments], cwd=self.root,
                              env=environment, text=True, capture_output=True, timeout=60,
                              stdin=subprocess.DEVNULL)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_apt_and_missing_prints_the_table(machine):
    done = machine.with_python().with_tools().with_headers("hdf5.h", "yaml-cpp/yaml.h").setup()
    assert done.returncode == 1
    lines = [" ".join(line.split()) for line in done.stderr.splitlines()]
    assert lines[0].endswith("not installable from here (there is no apt-get):")
    assert "libhdf5-dev hdf5-devel hdf5" in lines
    assert "libyaml-cpp-dev yaml-cpp-devel yaml-cpp" in lines
    assert "sudo dnf install -y hdf5-devel yaml-cpp-devel" in lines
    assert "conda install -c conda-forge hdf5 yaml-cpp" in lines
    assert "libfmt-dev" not in done.stderr
    assert not (machine.root / ".venv").exists()


def test_not_root_without_sudo(machine):
    done = machine.with_python().with_tools().with_headers("zlib.h").with_apt().setup()
    assert done.returncode == 1
    assert "not root, and there is no sudo" in done.stderr
    assert "apt-get install -y --no-install-recommends zlib1g-dev" in done.stderr
    assert not machine.calls("apt-get")


def test_all_found_by_probing_goes_on_without_apt(machine):
    done = machine.with_python().with_tools().with_headers().setup()
    assert done.returncode == 0, done.stderr
    assert (machine.root / ".venv/made").exists()


def test_only_python_needs_no_compiler_and_asks_for_no_package(machine):
    done = machine.with_python().with_apt().setup("--only-python")
    assert done.returncode == 0, done.stderr
    assert (machine.root / ".venv/made").exists() and not machine.calls("apt-get")


def test_found_with_pkg_config_and_conda(machine):
    machine.with_python().with_tools().with_headers("hdf5.h", "zlib.h")
    machine.stub("pkg-config", '[ "$2" = hdf5 ]')
    conda = machine.root / "conda/include"
    conda.mkdir(parents=True)
    (conda / "zlib.h").touch()
    prefixes = f"{machine.root}/conda:{machine.prefix}"
    assert machine.setup(SERVELAB_PREFIXES=prefixes).returncode == 0


def test_optional_things_do_not_stop(machine):
    machine.with_python().with_tools().with_headers("benchmark/benchmark.h")
    (machine.bin / "ninja").unlink()
    done = machine.setup("--tests")
    assert done.returncode == 0, done.stderr
    assert "going on without: ninja-build libbenchmark-dev" in done.stdout


def test_only_what_is_needed(machine):
    machine.with_python().with_tools().with_headers("oneapi/dnnl/dnnl.hpp", "fmt/core.h").with_apt()
    (machine.bin / "ninja").unlink()
    machine.stub("id", "echo 0")
    assert machine.setup("--needed", "--all").returncode == 0
    assert machine.calls("apt-get")[1].endswith("install -y --no-install-recommends libfmt-dev")


def test_root_installs_only_what_is_missing_once(machine):
    machine.with_python().with_tools().with_headers("hdf5.h", "fmt/core.h").with_apt()
    machine.stub("id", "echo 0")
    done = machine.setup()
    assert done.returncode == 0, done.stderr
    update, install = machine.calls("apt-get")
    assert update.endswith(" update")
    assert install.endswith("install -y --no-install-recommends libhdf5-dev libfmt-dev")
    assert machine.setup().returncode == 0
    assert len(machine.calls("apt-get")) == 2


def test_sudo_is_used_when_not_root(machine):
    machine.with_python().with_tools().with_headers("hdf5.h").with_apt()
    machine.stub("sudo", 'shift; exec "$@"')
    assert machine.setup().returncode == 0
    assert machine.calls("sudo")[0].startswith("sudo -n env DEBIAN_FRONTEND=noninteractive apt-get")


def test_sudo_is_not_asked_for_optional_things(machine):
    machine.with_python().with_tools().with_headers("oneapi/dnnl/dnnl.hpp").with_apt()
    machine.stub("sudo", 'shift; exec "$@"')
    done = machine.setup()
    assert done.returncode == 0 and not machine.calls("sudo")
    assert "going on without: libdnnl-dev" in done.stdout


def test_failed_apt_gives_the_table(machine):
    machine.with_python().with_tools().with_headers("hdf5.h").with_apt(installs=False)
    machine.stub("id", "echo 0")
    done = machine.setup()
    assert done.returncode == 1 and "(apt-get failed)" in done.stderr
    assert "libhdf5-dev" in done.stderr


def test_no_python_argument_leaves_the_environment_alone(machine):
    done = machine.with_python().with_tools().with_headers().setup("--no-python")
    assert done.returncode == 0 and not (machine.root / ".venv").exists()
    assert "unknown argument '--what'" in machine.setup("--what").stderr


def test_what_not_everybody_needs_is_installed_when_it_is_asked_for(machine):
    machine.with_python().with_tools().with_headers("gtest/gtest.h", "gmock/gmock.h").with_apt()
    (machine.bin / "clang++").unlink()
    machine.stub("id", "echo 0")
    assert machine.setup().returncode == 0 and not machine.calls("apt-get")
    assert machine.setup("--all").returncode == 0
    assert machine.calls("apt-get")[1].endswith(
        " libgtest-dev libgmock-dev clang libclang-rt-dev clang-format slurmctld slurmd"
        " slurm-client munge chromium debootstrap")


def test_each_flag_adds_its_group(machine):
    machine.with_python().with_tools().with_headers()
    done = machine.setup("--no-python", "--slurm", "--browser")
    assert "going on without: slurmctld slurmd slurm-client munge chromium\n" in done.stdout
    assert not (machine.root / ".venv").exists()
    (machine.prefix / "include/gmock/gmock.h").unlink()
    assert machine.setup("--no-python").returncode == 0
    done = machine.setup("--no-python", "--tests")
    assert done.returncode == 1 and "libgmock-dev" in done.stderr


def test_a_package_that_apt_does_not_know_stops_no_other(machine):
    machine.with_python().with_tools().with_headers().with_apt()
    machine.stub("id", "echo 0")
    machine.stub("apt-cache", 'case "$*" in *chromium*) exit 100 ;; esac')
    assert machine.setup("--slurm", "--browser").returncode == 0
    assert machine.calls("apt-get")[1].endswith(" slurmctld slurmd slurm-client munge")


def test_packages_of_tests_come_on_top(machine):
    machine.with_python().with_tools().with_headers()
    assert "tests/requirements.txt" not in machine.setup().stdout
    (machine.root / ".venv/made").unlink()
    assert machine.setup("--tests").stdout == (
        "setup: installing tests/requirements.txt into .venv\n")
    assert machine.setup("--tests").stdout == "" == machine.setup().stdout
    assert not (machine.root / ".venv/made").exists(), "the environment was made anew"


def test_a_linked_environment_is_left_alone(machine):
    machine.with_python().with_tools().with_headers()
    other = machine.root / "other-checkout"
    (other / "bin").mkdir(parents=True)
    (other / "bin/python").write_text("another's")
    (other / ".servelab-requirements").write_text("another's stamp")
    (machine.root / ".venv").symlink_to(other)
    assert machine.setup().returncode == 0
    assert not (machine.root / ".venv").is_symlink() and (machine.root / ".venv/made").exists()
    assert [path.name for path in sorted(other.rglob("*"))] == [
        ".servelab-requirements", "bin", "python"]


def test_stamp_is_written_last_and_follows_the_requirements(machine):
    machine.with_python().with_tools().with_headers()
    stamp = machine.root / ".venv/.servelab-requirements"
    failed = machine.setup(PIP_EXIT="1")
    assert failed.returncode == 1 and "pip could not install" in failed.stderr
    assert not stamp.exists()
    assert "making .venv" in machine.setup().stdout
    requirements = machine.root / "analysis/requirements.txt"
    assert stamp.read_text().strip() == hashlib.sha256(requirements.read_bytes()).hexdigest()
    assert machine.setup().stdout == ""
    requirements.write_text("numpy==2.2.5\n")
    assert "making .venv" in machine.setup().stdout


def test_quick_when_nothing_is_missing(machine):
    machine.with_python().with_tools().with_headers().setup()
    started = time.monotonic()
    assert machine.setup().returncode == 0
    assert time.monotonic() - started < 2


def test_every_library_that_the_build_looks_for_is_listed():
    build = "".join(path.read_text() for path in (ROOT / "CMakeLists.txt", *(
        ROOT / folder for folder in ("tests/CMakeLists.txt", "kernels/CMakeLists.txt"))))
    script = (ROOT / ".ci/setup").read_text().lower()
    named = {"nlohmann_json": "nlohmann-json3-dev", "openssl": "libssl-dev", "zlib": "zlib1g-dev",
             "threads": "", "cudatoolkit": "", "openmp": "g++"}
    for line in build.splitlines():
        if line.strip().startswith("find_package("):
            library = line.split("(")[1].split()[0].rstrip(")").lower()
            assert named.get(library, f"lib{library}") in script, library
    headers = re.findall(r"find_path\(\w+ ([\w.]+) .*REQUIRED\)", build)
    assert len(headers) == 3
    for header in headers:
        assert re.search(rf"hdr:\S*\b{header.lower()}\b", script), header
    headers = re.findall(r"HEADER ([^\s;]+)\n", build)
    assert len(headers) == 2
    for header in headers:
        assert f"hdr:{header}" in script, header


def test_every_flag_that_is_advised_exists():
    pattern = r"(?:''|--[a-z-]+)"
    accepted = {flag for patterns in re.findall(
        rf"(?m)^ *({pattern}(?: *\| *{pattern})*)\)", (ROOT / ".ci/setup").read_text())
                for flag in patterns.replace(" ", "").split("|")}
    assert "--only-python" in accepted and "--what" not in accepted
    files = [path for pattern in ("*", "data/*", ".ci/*", "engine/**/*", "analysis/**/*",
                                  "tests/**/*", "results/README.md")
             for path in ROOT.glob(pattern) if path.is_file() and path.suffix in TEXTS]
    unknown, seen = [], set()
    for path in files:
        text = re.sub(r'"\s+f?"', "", path.read_text(encoding="utf-8"))  # texts over several lines
        for flags in re.findall(r"\.ci/setup((?: +--[a-z-]+)+)", text):
            seen |= set(flags.split())
            unknown += [f"{path.relative_to(ROOT)}: .ci/setup {flag}" for flag in flags.split()
                        if flag not in accepted]
    assert {"--only-python", "--slurm", "--browser"} <= seen
    assert not unknown


def test_script_is_executable():
    assert os.access(ROOT / ".ci/setup", os.X_OK) and os.access(ROOT / ".ci/run", os.X_OK)
