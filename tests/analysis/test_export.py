"""servelab export: files that other tools read, and the same requests read back by ourselves."""
from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from analysis.export.cli import main
from analysis.point import Point
from analysis.results import Results

SERVELAB = Path(os.environ.get("SERVELAB", ROOT / "build" / "servelab"))
needs_servelab = pytest.mark.skipif(not SERVELAB.is_file(), reason=f"no program {SERVELAB}")
SPEC = {"title": "Round trip", "model": "llama-2-7b", "hardware": "a800-80g",
        "engine": {"max_batch": 16},
        "workload": {"requests": 150, "adapters": {"count": 6, "ranks": [8, 16, 64],
                                                   "base_share": 0.2},
                     "arrivals": {"process": "gamma", "rate": 12, "cv": 3},
                     "popularity": {"kind": "zipf", "exponent": 1},
                     "lengths": {"source": "sharegpt"}},
        "techniques": ["slora", "dlora"], "seeds": [3], "record": {"token_times": True}}


def run(folder: Path, spec: dict, name: str) -> Results:
    """Runs the spec and loads its results, which are in folder/results."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    done = subprocess.run([SERVELAB, "run", path, "--out", folder / "results", "-q"], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Results.load(name, folder / "results")


@needs_servelab
def test_mooncake_round_trip_gives_the_same_requests_and_decisions(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = run(tmp_path, SPEC, "first")
    assert main([str(first.point(0).path), "--format", "mooncake", "--out", "t.jsonl"]) == 0
    lines = [json.loads(line) for line in Path("t.jsonl").read_text().splitlines()]
    assert len(lines) == 150 and lines[0]["timestamp"] > 0
    assert {line["adapter"] for line in lines} >= {None, 0, 1}
    assert {line.get("rank") for line in lines} == {None, 8, 16, 64}
    assert "hash_ids" not in lines[0] and lines[0]["base_model"] == "Llama-2-7B"
    replay = {"process": "replay", "trace": str(tmp_path / "t.jsonl"), "origin": "zero"}
    again = {**SPEC, "workload": {**SPEC["workload"], "arrivals": replay,
                                  "lengths": {"source": "trace"}}}
    second = run(tmp_path, again, "second")
    for index in range(2):
        a, b = first.point(index), second.point(index)
        for name in ("scheduled", "prompt_tokens", "output_tokens_true", "output_tokens_limit",
                     "adapter", "rank", "first_token", "last_token"):
            assert (a.read(f"requests/{name}") == b.read(f"requests/{name}")).all(), name
        assert a.attribute("decision_hash") == b.attribute("decision_hash")
        assert a.summary() == b.summary()
    assert first.point(0).attribute("decision_hash") != first.point(1).attribute("decision_hash")
    # and what the second run exports is the file that it came from
    assert main([str(second.point(1).path), "--format", "mooncake", "--out", "u.jsonl"]) == 0
    assert Path("u.jsonl").read_bytes() == Path("t.jsonl").read_bytes()


@needs_servelab
def test_sessions_and_objectives_go_through_a_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace = [{"timestamp": 0, "input_length": 20, "output_length": 3, "adapter": "sql",
              "session": "x", "slo": {"ttft_ms": 250.5, "latency_ms": 1000}},
             {"timestamp": 1.5, "input_length": 30, "output_length": 2, "adapter": "chat"},
             {"timestamp": 1.5, "input_length": 10, "output_length": 1, "adapter": "sql",
              "session": "x", "slo": {"tpot_ms": 50}}]
    Path("own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in trace))
    replay = {"process": "replay", "trace": str(tmp_path / "own.jsonl")}
    results = run(tmp_path, {**SPEC, "techniques": ["slora"], "workload": {
        "adapters": {"count": 2}, "arrivals": replay, "lengths": {"source": "trace"}}}, "own")
    assert main(["own", "--format", "mooncake", "--out", "back.jsonl"]) == 0
    back = [json.loads(line) for line in Path("back.jsonl").read_text().splitlines()]
    assert [line.get("session") for line in back] == [0, None, 0]
    assert [line.get("slo") for line in back] == [trace[0]["slo"], None, trace[2]["slo"]]
    assert [line["adapter"] for line in back] == [0, 1, 0]
    assert results.point(0).read("requests/slo_ttft").tolist() == [250_500_000, -1, -1]


@needs_servelab
def test_several_points_make_a_file_each(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    results = run(tmp_path, {**SPEC, "seeds": [1, 2]}, "many")
    assert main(["many", "--format", "mooncake", "--out", "traces"]) == 0
    keys = results.columns["key"].tolist()
    assert sorted(path.stem for path in Path("traces").iterdir()) == sorted(keys)
    assert main(["many", "--format", "mooncake", "--out", "many.yaml"]) == 2
    assert "many.yaml: is a file; 4 points need a folder" in capfd.readouterr().err


def test_bad_requests_are_one_line(tmp_path: Path, capfd) -> None:
    out = str(tmp_path / "x")
    for arguments, text in (
            (["none", "--format", "mooncake", "--out", out, "--results", str(tmp_path)],
             "collected.h5: no such file"),
            ([str(tmp_path / "a.h5"), "--format", "mooncake", "--out", out], "no such file"),
            (["a", "--format", "csv", "--out", out], "servelab export: argument --format"),
            (["a", "--format", "mooncake"], "--out")):
        assert main(arguments) == 2
        err = capfd.readouterr().err
        assert text in err and err.count("\n") == 1, err
    assert not (tmp_path / "x").exists()


def test_points_of_schema_1_are_drawn_and_not_exported(tmp_path: Path, capfd) -> None:
    from conftest import write_point
    path = tmp_path / "old.h5"
    write_point(path, {"requests/scheduled": [0], "series/running": [3], "series/waiting": [4],
                       "series/output_tokens": [5]}, {"key": "k", "technique": "slora"})
    point = Point(path, "")
    assert point.read("series/num_requests_running").tolist() == [3]
    assert point.read("series/num_requests_waiting").tolist() == [4]
    assert point.read("series/generation_tokens").tolist() == [5]
    assert point.has("series/num_requests_running") and not point.has("series/steps")
    assert main([str(path), "--format", "mooncake", "--out", str(tmp_path / "o")]) == 2
    assert "old.h5: is of schema 1" in capfd.readouterr().err
