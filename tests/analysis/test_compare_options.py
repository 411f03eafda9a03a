"""servelab compare: options to the spec that is run, and what a program that fails comes to."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from servelab_runs import needs_servelab

from analysis.compare import cli, comparing, running
from analysis.compare.spec_file import SpecFile, parse_techniques
from analysis.verb import VerbError

def spec_of(text: str, tmp_path: Path, *options: str, techniques: str = "mine,slora") -> dict:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    parsed = cli.parse(["--techniques", techniques, "--spec", str(path), *options])
    return yaml.safe_load(cli.effective_spec(parsed, parse_techniques(techniques)).text("why"))


BASE = """title: "A title"   # a comment
model: llama-2-7b
hardware: a800-80g
engine: {max_batch: 16}
workload: dlora-maf2
sweep:
  workload.arrivals.rate: [1e0, 2]
techniques:
  - slora
  - {technique: dlora, label: tuned, with: {alpha: 0.9}, engine: {max_batch: 8}}
seeds: [3, 5]
expect: [some/claim]
"""


def test_the_effective_spec_is_the_spec_with_other_techniques(tmp_path: Path) -> None:
    spec = spec_of(BASE, tmp_path, techniques="mine(window=8, route=dlora-rr),again=tuned,slora")
    assert spec["techniques"] == [
        {"technique": "mine", "label": "mine(window=8, route=dlora-rr)", "with": {"window": 8},
         "route": "dlora-rr"},
        {"technique": "dlora", "label": "again", "with": {"alpha": 0.9},
         "engine": {"max_batch": 8}}, {"technique": "slora", "label": "slora"}]
    assert spec["seeds"] == [3, 5] and "expect" not in spec and spec["model"] == "llama-2-7b"
    assert spec["sweep"] == {"workload.arrivals.rate": ["1e0", 2]}  # as it was written
    assert spec["title"].endswith("A title")


def test_options_override_the_spec(tmp_path: Path) -> None:
    spec = spec_of(BASE, tmp_path, "--seeds", "4", "--adapters", "64", "--hardware", "h100-80g",
                   "--set", "sweep={}", "--rate", "7", "--set", "engine.max_batch=32",
                   "--set", "record.series=false")
    assert spec["workload"] == {"extends": "dlora-maf2", "arrivals": {"rate": 7},
                                "adapters": {"count": 64}}
    assert (spec["seeds"], spec["hardware"], spec["engine"]) == (4, "h100-80g", {"max_batch": 32})
    assert spec["sweep"] == {} and spec["record"] == {"series": False}
    swept = spec_of(BASE, tmp_path, "--set", "sweep.workload.arrivals.rate=[5]",
                    "--set", "sweep.engine.max_batch=[1, 2]")
    assert swept["sweep"] == {"workload.arrivals.rate": [5], "engine.max_batch": [1, 2]}


def test_without_a_spec(tmp_path: Path) -> None:
    options = cli.parse(["--techniques", "a,b", "--model", "m", "--hardware", "h", "--workload",
                         "sharegpt", "--rate", "3", "--experiments", str(ROOT / "experiments")])
    spec = yaml.safe_load(cli.effective_spec(options, parse_techniques("a,b")).text())
    assert spec["workload"]["lengths"] == {"source": "sharegpt"} and spec["seeds"] == 5
    assert spec["workload"]["arrivals"] == {"process": "poisson", "rate": 3}
    options.workload = "dlora-maf2"
    spec = yaml.safe_load(cli.effective_spec(options, parse_techniques("a,b")).text())
    assert spec["workload"] == {"extends": "dlora-maf2", "arrivals": {"rate": 3}}
    assert cli.out_folder(options) == Path("results/compare/dlora-maf2")


def test_a_sweep_by_technique_keeps_what_is_compared(tmp_path: Path) -> None:
    by_technique = BASE.replace("sweep:\n  workload.arrivals.rate: [1e0, 2]", """sweep:
  - {techniques: [slora], workload.arrivals.rate: [1, 2]}
  - {techniques: [tuned, slora], workload.arrivals.rate: [4]}
  - {techniques: [tuned], workload.arrivals.rate: [8]}""")
    spec = spec_of(by_technique, tmp_path, techniques="slora,tuned")
    assert [part["techniques"] for part in spec["sweep"]] == [["slora"], ["tuned", "slora"],
                                                              ["tuned"]]
    with pytest.raises(VerbError, match="mine.*goes by technique.*--set 'sweep="):
        spec_of(by_technique, tmp_path, techniques="slora,mine")


def test_files_beside_the_spec_are_found_from_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/tiny.yaml").write_text("name: x\n")
    path = tmp_path / "in/s.yaml"
    path.write_text(BASE.replace("model: llama-2-7b", "model: tiny.yaml").replace(
        "workload.arrivals.rate: [1e0, 2]", "model: [./tiny.yaml, llama-2-7b]"))
    spec = SpecFile.read(path)
    spec.point_files_at(tmp_path / "out/deep")
    moved = yaml.safe_load(spec.text())
    assert moved["model"] == "../../in/tiny.yaml"
    assert moved["sweep"]["model"] == ["../../in/tiny.yaml", "llama-2-7b"]


@needs_servelab
def test_a_variant_is_read_with_what_it_extends(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "whole.yaml").write_text(BASE.replace("expect: [some/claim]", ""))
    text = "extends: whole\ntitle: V\nengine: {max_batch: 8}\n"
    spec = spec_of(text, tmp_path, techniques="again=tuned,slora")
    assert "extends" not in spec and spec["engine"] == {"max_batch": 8}
    assert (spec["model"], spec["seeds"]) == ("llama-2-7b", [3, 5])
    assert spec["techniques"][0]["with"] == {"alpha": 0.9}
    path = tmp_path / "s.yaml"
    options = cli.parse(["--techniques", "a,slora", "--spec", str(path), "--set", "engine.x=3"])
    compared = cli.effective_spec(options, parse_techniques("a,slora"))
    place = next(f"{path}:{line}:{text.index('llama') + 1}"
                 for line, text in enumerate(compared.text().splitlines(), 1) if "llama" in text)
    assert compared.told(f"{place}: wrong", path) == f"{path}: wrong"  # its lines are no one's
    path.write_text(text.replace("max_batch", "max_bach"))
    assert cli.main(["--techniques", "a,slora", "--spec", str(path)]) == 2
    assert f"{path}:3:10: unknown key 'max_bach'" in capfd.readouterr().err


def test_errors_point_at_the_users_own_words(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(BASE)
    options = cli.parse(["--techniques", "mine,slora", "--spec", str(path), "--set",
                         "engine.max_bach=3"])
    spec = cli.effective_spec(options, parse_techniques("mine,slora"))
    written = tmp_path / "out.yaml"
    written.write_text(spec.text("heading"))
    lines = written.read_text().splitlines()

    def told(needle: str) -> str:
        line = next(i for i, text in enumerate(lines, 1) if needle in text)
        column = lines[line - 1].index(needle) + 1
        return spec.told(f"{written}:{line}:{column}: wrong", written, "heading")

    assert told("max_bach") == "--set engine.max_bach=3: wrong"
    assert told('"mine"') == "--techniques mine: wrong"
    assert told("dlora-maf2") == f"{path}:5:11: wrong"
    assert told("16") == f"{path}:4:21: wrong"


@pytest.mark.parametrize("options, said", [
    (["--techniques", "slora"], "two techniques or more"),
    (["--techniques", "slora,slora"], "is there twice"),
    (["--techniques", "slora(,dlora"], "is not name"),
    (["--techniques", "slora(x),dlora"], "is not parameter=value"),
    (["--techniques", "slora,dlora", "--baseline", "dlra"], "did you mean 'dlora'"),
    (["--techniques", "slora,dlora", "--slo", "tft=1"], "did you mean 'ttft'"),
    (["--techniques", "slora,dlora", "--find-rate", "atainment>=0.9"], "did you mean 'attainment'"),
    (["--techniques", "slora,dlora", "--find-rate", "attainment=0.9"], "is not metric<=limit"),
    (["--techniques", "slora,dlora", "--find-rate", "attainment>=0.9"], "the spec sweeps workl"),
    (["--techniques", "slora,dlora", "--seeds", "0"], "at least one"),
    (["--techniques", "slora,dlora", "--set", "engine"], "expected path=value"),
    (["--techniques", "slora,dlora", "--set", "seeds=3"], "options of their own"),
    (["--techniques", "slora,dlora", "--set", "model.x=3"], "'model' is not a section"),
    (["--techniques", "slora,dlora", "--set", "engine..x=3"], "is not a path"),
    (["--techniques", "slora,dlora", "--set", "engine.max_batch=["], "is not YAML"),
    (["--techniques", "slora,dlora", "--set", "workload.popularity.skewness=1"], "the spec sweeps"),
    (["--techniques", "slora,dlora", "--bogus"], "unrecognized"),
    (["--spec", "x"], "--techniques"),
])
def test_bad_input_is_one_line_and_leaves_nothing(options: list[str], said: str, tmp_path: Path,
                                                  monkeypatch, capfd) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SERVELAB", "/bin/false")  # nothing may run
    out = tmp_path / "out"
    spec = [] if "--spec" in options else ["--spec", "dlora/fig10"]
    assert cli.main([*options, *spec, "--out", str(out)]) == 2
    shown = capfd.readouterr()
    assert shown.err.startswith("servelab: error: ") and shown.err.count("\n") == 1, shown.err
    assert said in shown.err and not shown.out and not out.exists()


def test_a_spec_that_is_not_yaml_is_named(tmp_path: Path, capfd) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("title: [x\nmodel: y")
    assert cli.main(["--techniques", "a,b", "--spec", str(path)]) == 2
    assert f"{path}:2:" in capfd.readouterr().err


# --- a program that fails

FAKE = '''#!{python}
"""As `servelab run SPEC --out DIR`: points of {{"slora", "dlora"}} work, those of "bad" fail."""
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import pathlib, yaml
from conftest import Spec
from test_compare import METRICS
spec_path = pathlib.Path(sys.argv[2])
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
text = spec_path.read_text()
entries = yaml.safe_load(text)["techniques"]
labels = [entry["label"] for entry in entries]
(out / "calls").open("a").write(",".join(labels) + chr(10))
if "bad" in [entry["technique"] for entry in entries]:
    print("bad seed=1: FAILED", file=sys.stderr)
    print("servelab: error: runs [bad]: invariant I4: more blocks than free", file=sys.stderr)
    sys.exit(1)
spec = Spec(out, spec_path.stem)
for label in labels:
    for seed in range(3):
        spec.add(label, seed, {{}}, METRICS)
spec.write(spec=text)
'''


def fake_program(tmp_path: Path, text: str = FAKE) -> str:
    path = tmp_path / "servelab"
    path.write_text(text.format(python=sys.executable, root=str(ROOT),
                                tests=str(ROOT / "tests/analysis")))
    path.chmod(0o755)
    return str(path)


def test_a_technique_that_fails_is_left_out_with_its_reason(tmp_path: Path, monkeypatch,
                                                            capfd) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SERVELAB", fake_program(tmp_path))
    monkeypatch.setattr(comparing, "catalogue", lambda limits: [
        comparing.Metric("TTFT P99", "s", False, "ttft_p99_s", 1, True)])
    out = tmp_path / "out"
    assert cli.main(["--techniques", "bad,slora,dlora", "--spec", "dlora/fig10", "--out",
                     str(out)]) == 1
    shown = capfd.readouterr()
    assert ("bad is left out: fails: runs [bad]: invariant I4: more blocks than free."
            in " ".join(shown.out.split()))
    assert "slora and dlora are the same in every metric and seed" in shown.out
    assert (out / "calls").read_text().split() == ["bad,slora,dlora", "bad", "slora", "dlora",
                                                   "slora,dlora"]
    assert yaml.safe_load((out / "runs.yaml").read_text())["techniques"][0]["label"] == "slora"


def test_when_all_fail_there_is_one_line(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SERVELAB", fake_program(tmp_path))
    assert cli.main(["--techniques", "bad,also=bad(alpha=1)", "--spec", "dlora/fig10", "--out",
                     str(tmp_path / "out"), "--baseline", "bad"]) == 1
    assert "invariant I4" in capfd.readouterr().err.splitlines()[-1]


def test_the_time_limit_is_of_all_runs_together(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(ROOT)
    slow = ("#!/bin/sh\necho \"$@\" >>{root}/calls\nsleep 0.4\n"
            "echo 'servelab: error: no time' >&2\nexit 75\n").replace("{root}", str(tmp_path))
    monkeypatch.setenv("SERVELAB", fake_program(tmp_path, slow))
    spec = SpecFile.read(ROOT / "experiments/smoke/slora.yaml")
    runner = running.Runner(tmp_path / "out", [], "", 10)
    for _ in range(2):
        with pytest.raises(running.Stopped, match="no time") as caught:
            runner.run({"runs": spec}, ["slora"])
        assert caught.value.code == 75
    limits = [float(line.split()[-1]) for line in (tmp_path / "calls").read_text().splitlines()]
    assert 9 < limits[0] <= 10 and limits[1] < limits[0] - 0.35


def test_a_refused_spec_leaves_the_one_before(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    refuse = "#!/bin/sh\necho 'servelab: error: no' >&2\nexit 2\n"
    monkeypatch.setenv("SERVELAB", fake_program(tmp_path, refuse))
    out = tmp_path / "out"
    out.mkdir()
    (out / "runs.yaml").write_text("title: before\n")
    arguments = ["--techniques", "slora,dlora", "--spec", "dlora/fig10", "--out"]
    assert cli.main([*arguments, str(out)]) == 2
    assert (out / "runs.yaml").read_text() == "title: before\n"
    assert cli.main([*arguments, str(tmp_path / "new")]) == 2
    assert not (tmp_path / "new").exists()


def test_ctrl_c_reaches_the_run_once(tmp_path: Path) -> None:
    """The program counts its signals, and ends as servelab run does, points in progress first."""
    count = ("#!{python}\nimport pathlib, signal, sys, time\n"
             "caught = []\nsignal.signal(signal.SIGINT, lambda *_: caught.append(1))\n"
             f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
             "end = time.time() + 20\nwhile not caught and time.time() < end: time.sleep(0.01)\n"
             "time.sleep(0.5)\n"
             f"pathlib.Path({str(tmp_path / 'count')!r}).write_text(str(len(caught)))\n"
             "sys.stderr.write('servelab: error: interrupted\\n')\nsys.exit(130)\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "analysis.compare", "--techniques", "slora,dlora", "--spec",
         "dlora/fig10", "--out", str(tmp_path / "out")], cwd=ROOT, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
        env={**os.environ, "SERVELAB": fake_program(tmp_path, count)})
    end = time.time() + 30
    while not (tmp_path / "ready").exists() and time.time() < end:
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 130 and errors == "servelab: error: interrupted\n"
    assert (tmp_path / "count").read_text() == "1"
