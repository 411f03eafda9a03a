"""The Makefile's verbs that need no build."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from servelab_runs import SERVELAB, needs_servelab

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str, folder: Path = ROOT,
         **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("MAKE") and name not in ("SERVELAB_DATA", "SETUP_FLAGS")}
    return subprocess.run(["make", *arguments], cwd=folder, env={**environment, **variables},
                          text=True, capture_output=True, timeout=60)


def test_help_is_the_default_and_lists_every_verb():
    shown = make()
    assert shown.returncode == 0 and shown.stdout == make("help").stdout
    listed = {line.split()[1] for line in shown.stdout.splitlines() if line.startswith("  make ")}
    assert listed == {"help", "setup", "build", "test", "figures", "figures/<paper>/<fig>",
                      "conformance/<technique>", "report",
                      "cpu-figures", "gpu-bundle", "gpu-check", "gpu-figures", "fuzz", "smoke",
                      "bench", "bench-peers", "mutate", "sanitize", "check-format",
                      "doctor", "clean"}


# Names of files that a shell or make would run a part of.
HOSTILE = ["a'||touch X;'.tar.zst", "$(touch X).tar.zst", "`touch X`.tar.zst",
           "$(shell touch X).tar.zst", 'a";touch X;".tar.zst', "a b.tar.zst",
           "a\ntouch X\n.tar.zst", "-x.tar.zst", "$$X.tar.zst"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout of the Makefile alone, whose commands write down what they are given."""
    note = "#!/bin/bash\nprintf '%s\\0' \"$0\" \"$@\" >>calls\nprintf '\\n' >>calls\n"
    for name in (".ci/setup", ".venv/bin/python", "build/servelab", "bundle's/bin/servelab"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(note)
        path.chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    return tmp_path


def calls(tree: Path, *goals: str) -> list[list[str]]:
    done = make(*goals, folder=tree)
    assert done.returncode == 0, done.stderr
    assert not (tree / "X").exists(), goals
    return [call.split("\0") for call in (tree / "calls").read_text().split("\0\n")[:-1]]


def test_figures_from_an_archive_need_neither_build_nor_run(tree):
    assert calls(tree, "figures", "FROM=some/x.tar.zst") == [
        [".ci/setup", "--only-python"],
        [".venv/bin/python", "-m", "analysis.archive", "verify", "--out=results/from/x", "--",
         "some/x.tar.zst"]]
    assert calls(tree, "figures/dlora/fig99", "FROM=folder/", "OUT=here")[-1][4:] == [
        "--out=here", "--only", "dlora/fig99", "--", "folder/"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_name_is_never_run(tree, name):
    given = calls(tree, "figures", f"FROM={name}")[-1]
    assert given[-1] == name
    assert given[4] == f"--out=results/from/{name.removesuffix('.tar.zst')}"
    given = calls(tree, "figures/a", f"FROM={name}", f"OUT={name}")[-1]
    assert given[4] == f"--out={name}" and given[-1] == name
    given = calls(tree, "gpu-figures", f"OUT={name}", f"PROFILE={name}", "BUNDLE=bundle's")[-1]
    assert given[0] == "bundle's/bin/servelab"
    assert f"--out={name}" in given and f"--profile={name}" in given
    given = calls(tree, "gpu-check", f"OUT={name}", f"BUNDLE={name}")[-1]
    assert given[-1] == name and given[given.index("--binaries") + 1] == name


@pytest.mark.parametrize("name", HOSTILE)
def test_a_figure_s_name_is_never_run(tree, name):
    if "\n" in name or "=" in name:
        pytest.skip("not a goal that make can be given")
    assert calls(tree, f"figures/{name}", "FROM=x")[-1][6] == name


# Goals that use each variable, and what none of them may make of it: commands.
USERS = {
    "BUILD": ["program", "build", "doctor", "bench", "bench-peers", "test", "gpu-bundle",
              "gpu-check", "smoke",
              "conformance/dlora", "clean", "figures", "help"],
    "JOBS": ["program", "build", "test", "sanitize", "conformance/dlora", "bench-peers"],
    "SERVELAB_WERROR": ["program", "build", "sanitize"],
    "CMAKE_FLAGS": ["program", "build", "sanitize", "help"],
    "SETUP_FLAGS": ["setup", "python", "program", "fuzz", "check-format"],
    "FUZZ_SECONDS": ["fuzz"],
    "SERVELAB": ["figures", "smoke", "doctor", "gpu-figures", "test", "conformance/dlora"],
    "PYTHON": ["figures", "report", "gpu-check", "test"],
    "SERVELAB_DATA": ["program", "help", "figures"],
    **dict.fromkeys(("FROM", "OUT", "BUNDLE", "PROFILE"),
                    ["figures", "gpu-check", "gpu-figures"]),
}


def commands(tree: Path) -> dict[str, str]:
    """An environment in which every command that a goal may call notes what it is given."""
    for name in ("bin/cmake", "bin/ctest", "bin/clang++", "bin/nvidia-smi", "tests/run_shards.sh",
                 "tests/fuzz/run.sh", "tests/gpu/bundle.sh", "tests/gpu/check.py"):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tree / ".ci/setup", path)
    (tree / "experiments/mine").mkdir(parents=True, exist_ok=True)
    (tree / "experiments/mine/fig01.yaml").write_text("title: x\n")
    (tree / "experiments/smoke").mkdir(exist_ok=True)
    (tree / "experiments/smoke/x.yaml").write_text("title: x\n")
    return {"PATH": f"{tree / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.parametrize("variable", USERS)
def test_no_variable_is_ever_run(tree, variable):
    """Whatever a variable holds, typed after make or in the environment."""
    environment = commands(tree)
    for value in ("a'||touch X;'", '";touch X;"', "$(touch X)`touch X`$(shell touch X)",
                  "a\ntouch X\n", "x; touch X"):
        for number, goal in enumerate(USERS[variable]):
            if number % 2:
                make(goal, "OUT=out", f"{variable}={value}", folder=tree, **environment)
            else:
                make(goal, "OUT=out", folder=tree, **{**environment, variable: value})
            assert not (tree / "X").exists(), (goal, value)


def test_variables_arrive_as_they_were_typed(tree):
    environment = commands(tree)

    def given(*arguments: str) -> list[list[str]]:
        (tree / "calls").unlink(missing_ok=True)
        done = make(*arguments, folder=tree, **environment)
        assert done.returncode == 0, done.stderr
        return [call.split("\0") for call in (tree / "calls").read_text().split("\0\n")[:-1]]

    for name in ("a b", "a'b", 'a"b', "a$b", "$(HOME)", "a;b", "a\nb"):
        (tree / name).mkdir(exist_ok=True)
        configured, built = given("program", f"BUILD={name}", f"JOBS={name}")[1:]
        assert configured[1:5] == ["-S", ".", "-B", name] and built[1:3] == ["--build", name]
        assert built[3:5] == ["-j", name]
        assert given("fuzz", f"FUZZ_SECONDS={name}")[-1][1:] == [name]
    (tree / "other").mkdir()
    flags = given("program", "CMAKE_FLAGS=-DA='b c' \"-DD=$(E)\" -DF", "BUILD=other")[1]
    assert flags[-3:] == ["-DA=b c", "-DD=$(E)", "-DF"]
    assert given("setup", "SETUP_FLAGS=--needed 'a b'")[0] == [".ci/setup", "--needed", "a b"]


def test_parts_of_a_build_are_added_and_never_taken_away(tree):
    cmake = tree / "bin/cmake"
    cmake.parent.mkdir()
    cmake.write_text("#!/bin/bash\n[[ $1 != --build ]] || exit 0\nmkdir -p build\n"
                     "printf '%s\\n' \"$*\" >>configured\n")
    cmake.chmod(0o755)
    (tree / "build/tests").mkdir()
    for name in ("servelab_conformance_tests",):
        shutil.copy(tree / "build/servelab", tree / "build/tests" / name)
    seen = []
    for goal in ("program", "doctor", "conformance/dlora", "program", "build", "conformance/dlora",
                 "program"):
        done = make(goal, folder=tree, PATH=f"{cmake.parent}:{os.environ['PATH']}")
        assert done.returncode == 0, done.stderr
        log = tree / "configured"
        seen.append(log.read_text() if log.exists() else "")
        log.unlink(missing_ok=True)
    cuda = ["ON" if "CUDA=AUTO" in text else "OFF" if "CUDA=OFF" in text else "" for text in seen]
    tests = ["ON" if "TESTS=ON" in text else "OFF" if "TESTS=OFF" in text else "" for text in seen]
    assert cuda == ["OFF", "", "OFF", "", "ON", "", ""]
    assert tests == ["OFF", "", "ON", "", "ON", "", ""]


def test_unknown_figure_names_the_known_ones_before_building():
    shown = make("figures/dlora/fig99")
    assert shown.returncode != 0 and shown.stdout == ""
    assert "*** no experiments/dlora/fig99.yaml; known: " in shown.stderr


def test_every_unknown_figure_is_named():
    shown = make("figures/dlora/fig99", "figures/dlora/fig98")
    assert ("*** no experiments/dlora/fig99.yaml experiments/dlora/fig98.yaml; known: "
            in shown.stderr)


def test_smoke_specs_can_be_drawn():
    shown = make("--dry-run", "figures/smoke/dlora")
    assert shown.returncode == 0, shown.stderr
    assert '"$SERVELAB" run "experiments/$NAME.yaml"' in shown.stdout
    assert 'analysis.draw "$NAME"' in shown.stdout


def test_figures_runs_papers_specs_and_neither_base_nor_smoke():
    shown = make("--dry-run", "figures").stdout
    assert "-m analysis.draw" in shown
    run = next(line for line in shown.splitlines() if line.startswith('"$SERVELAB" run'))
    assert "experiments/base" not in run and "smoke" not in run and "claims" not in run


@needs_servelab
def test_specs_are_of_the_verb_of_their_backend():
    """Also variants, whose backend may be that of another file. A data set is no figure: it is of
    none."""
    listed = {goal: re.findall(r"\bexperiments/\S+\.yaml",
                               make("--dry-run", goal, "OUT=x").stdout)
              for goal in ("figures", "cpu-figures", "gpu-figures")}
    for path in sorted(ROOT.glob("experiments/*/*.yaml")):
        if path.name.startswith(("dataset_", "margin_")):
            assert not any(path.relative_to(ROOT).as_posix() in each for each in listed.values())
            continue
        if not re.search(r"^extends:", path.read_text(), flags=re.M):
            continue
        name = path.relative_to(ROOT).as_posix()
        shown = subprocess.run([SERVELAB, "check", "--effective", name], cwd=ROOT, text=True,
                               capture_output=True, check=False)
        assert shown.returncode == 0, shown.stderr
        spec = yaml.safe_load(shown.stdout)
        sweep = spec.get("sweep")
        swept = sweep.get("backend", []) if isinstance(sweep, dict) else []
        real = {"cpu", "cuda"} & {spec.get("backend"), *swept}
        goal = {"cpu": "cpu-figures", "cuda": "gpu-figures"}[real.pop()] if real else "figures"
        assert [each for each in listed if name in listed[each]] == [goal], name


def test_traces_come_from_the_variable_when_it_is_set():
    assert "SERVELAB_DATA=/some/where" in make("help", SERVELAB_DATA="/some/where").stdout
