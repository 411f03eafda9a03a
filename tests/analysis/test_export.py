"""servelab export: files that other tools read, and the same requests read back by ourselves."""
from __future__ import annotations

import csv
import gzip
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from servelab_runs import SERVELAB, SPEC, needs_servelab, run

from analysis.export.cli import main
from analysis.point import Point


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


@needs_servelab
def test_mooncakes_own_trace_loads_as_json_lines(tmp_path) -> None:
    """As kvcache-ai/Mooncake publishes it, with hash_ids; data/fetch's table says the same."""
    table = Path(os.environ.get("SERVELAB_DATA", "")) / "mooncake" / "conversation.csv.gz"
    if not table.is_file():
        pytest.skip("SERVELAB_DATA has no mooncake/conversation.csv.gz")
    trace = tmp_path / "conversation_trace.jsonl"
    with gzip.open(table, "rt") as rows, trace.open("w") as out:
        for row in csv.DictReader(rows):
            line = {"timestamp": int(row["t_ms"]), "input_length": int(row["input_tokens"]),
                    "output_length": int(row["output_tokens"]),
                    "hash_ids": [int(one) for one in row["hash_ids"].split()]}
            out.write(json.dumps(line) + "\n")
    spec = {**SPEC, "techniques": ["slora"], "workload": {
        "requests": 3000, "adapters": {"count": 4},
        "arrivals": {"process": "replay", "trace": "mooncake-conversation"},
        "lengths": {"source": "trace"}}}
    known = run(tmp_path, spec, "known").point(0)
    spec["workload"]["arrivals"]["trace"] = str(trace)
    read = run(tmp_path, spec, "read").point(0)
    assert len(read.read("requests/scheduled")) == 3000
    assert read.attribute("decision_hash") == known.attribute("decision_hash")
    assert read.read("requests/prompt_tokens").max() == known.read("requests/prompt_tokens").max()
    assert "that are not used: hash_ids" in read.attribute("notes")


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


@needs_servelab
@pytest.mark.parametrize("ending", [".json", ".yaml"])
def test_benchmark_report_is_one_by_the_schema(tmp_path, ending: str) -> None:
    core = pytest.importorskip("llmd_benchmark_report.core", reason="needs Python 3.11")
    results = run(tmp_path, {**SPEC, "cluster": {"replicas": 2, "stop_at_s": 8},
                             "techniques": ["slora"]}, "cut")
    point = results.point(0)
    out = tmp_path / f"report{ending}"
    assert main([str(point.path), "--format", "benchmark-report", "--out", str(out)]) == 0
    report = core.import_benchmark_report(str(out))
    assert report.version == "0.2.1"
    summary = point.summary()
    performance = report.results.request_performance.aggregate
    sent = int((point.read("requests/scheduled") <= summary["duration_s"] * 1e9).sum())
    assert performance.requests.total == sent < 150
    assert performance.requests.incomplete == sent - summary["requests_finished"] > 0
    for field, metric in (("time_to_first_token", "ttft"), ("request_latency", "latency"),
                          ("time_per_output_token", "tpot")):
        statistics = getattr(performance.latency, field)
        assert statistics.mean == pytest.approx(summary[f"{metric}_mean_s"])
        assert statistics.p99 == pytest.approx(summary[f"{metric}_p99_s"])
        assert statistics.min <= statistics.p0p1 <= statistics.p50 <= statistics.p99p9
        assert statistics.units == ("s" if metric != "tpot" else "s/token")
    assert performance.latency.normalized_time_per_output_token.mean == pytest.approx(
        summary["latency_per_token_mean_of_ratios_s"])
    assert performance.latency.inter_token_latency.mean > 0
    assert performance.throughput.output_token_rate.mean == pytest.approx(
        summary["output_tokens_per_s"])
    stack, load = report.scenario.stack[0], report.scenario.load
    assert stack.standardized.replicas == 2 and stack.standardized.model.name == "Llama-2-7B"
    assert load.standardized.rate_qps == 12 and load.standardized.input_seq_len.min >= 1
    observed = report.results.observability.components
    assert [one.replica_id for one in observed] == ["0", "1"]
    tokens = sum(one.time_series.generation_tokens.series[-1].value for one in observed)
    assert tokens == point.read("requests/output_tokens").sum()
    assert 0 < observed[0].aggregate.kv_cache_usage.max <= 1
    again = tmp_path / f"again{ending}"
    assert main([str(point.path), "--format", "benchmark-report", "--out", str(again)]) == 0
    assert again.read_bytes() == out.read_bytes()


@needs_servelab
def test_benchmark_report_of_a_run_in_which_nothing_finished(tmp_path) -> None:
    core = pytest.importorskip("llmd_benchmark_report.core", reason="needs Python 3.11")
    results = run(tmp_path, {**SPEC, "cluster": {"stop_at_s": 0.001}, "techniques": ["slora"],
                             "record": {"series": False}}, "none", code=1)  # INVALID
    assert results.metric("requests_finished")[0] == 0
    out = tmp_path / "report.json"
    assert main(["none", "--results", str(tmp_path / "results"), "--format", "benchmark-report",
                 "--out", str(out)]) == 0
    report = core.import_benchmark_report(str(out))
    assert report.results.request_performance.aggregate.latency.request_latency is None


def scrapes_of(text: str) -> dict[str, str]:
    """The document of each stamp alone. Prometheus' parser takes a histogram's second scrape for a
    repetition of its first (it forgets its samples only when the labels change)."""
    heads, scrapes = [], {}
    for line in text.splitlines():
        if line.startswith("#"):
            heads = (heads if line.startswith("# HELP") else []) + [line]
            continue
        document = scrapes.setdefault(line.rsplit(" ", 1)[1], [])
        document += ([] if heads[0] in document else heads) + [line]
    return {stamp: "\n".join([*document, "# EOF\n"]) for stamp, document in scrapes.items()}


@needs_servelab
def test_openmetrics_is_read_back_by_prometheus_own_parser(tmp_path) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
    results = run(tmp_path, {**SPEC, "cluster": {"replicas": 2}, "techniques": ["slora"],
                             "record": {"token_times": True, "series_bin_s": 0.5}}, "two")
    point, out = results.point(0), tmp_path / "metrics.om"
    assert main([str(point.path), "--format", "openmetrics", "--out", str(out)]) == 0
    assert out.read_text().endswith("\n# EOF\n")
    documents = scrapes_of(out.read_text())
    samples = [sample for stamp in sorted(documents, key=float)
               for family in text_string_to_metric_families(documents[stamp])
               for sample in family.samples]

    def of(name: str, **labels: str) -> list:
        return [sample for sample in samples
                if sample.name == name and labels.items() <= sample.labels.items()]

    def last(name: str, engine: str, **labels: str) -> float:
        return of(name, engine=engine, **labels)[-1].value

    def total(name: str, **labels: str) -> float:
        return last(name, "0", **labels) + last(name, "1", **labels)

    output = point.read("requests/output_tokens")
    summary = point.summary()
    assert total("vllm:generation_tokens_total") == output.sum()
    assert total("vllm:prompt_tokens_total") == point.read("requests/prompt_tokens").sum()
    assert sum(total("vllm:request_success_total", finished_reason=reason)
               for reason in ("stop", "length", "abort")) == 150
    for name, count in (("time_to_first_token", 150), ("e2e_request_latency", 150),
                        ("request_queue_time", 150), ("inter_token_latency", output.sum() - 150),
                        ("request_time_per_output_token", (output > 1).sum())):
        assert total(f"vllm:{name}_seconds_count") == count
        assert total(f"vllm:{name}_seconds_bucket", le="+Inf") == count
    ttft = point.read("requests/first_token") - point.read("requests/scheduled")
    assert total("vllm:time_to_first_token_seconds_sum") == pytest.approx(ttft.sum() / 1e9)
    assert total("vllm:time_to_first_token_seconds_bucket", le="0.04") == (ttft <= 4e7).sum()
    assert total("vllm:inter_token_latency_seconds_sum") / (output.sum() - 150) == pytest.approx(
        summary["itl_mean_s"])
    running = of("vllm:num_requests_running", engine="1")
    mine = point.read("series/replica") == 1
    levels = point.read("series/num_requests_running")[mine]
    assert [one.value for one in running] == levels.tolist()
    assert [float(one.timestamp) for one in running] == (
        point.read("series/start")[mine] / 1e9 + 0.5).tolist()
    for name in ("vllm:generation_tokens_total", "vllm:e2e_request_latency_seconds_count"):
        grown = [one.value for one in of(name, engine="0")]
        assert grown == sorted(grown) and len(set(grown)) > 3
    lora = of("vllm:lora_requests_info")
    assert any("adapter-0" in sample.labels["running_lora_adapters"].split(",") for sample in lora)
    assert not lora[-1].labels["waiting_lora_adapters"]


@needs_servelab
def test_openmetrics_needs_series(tmp_path, capfd) -> None:
    run(tmp_path, {**SPEC, "techniques": ["slora"], "record": {"series": False}}, "bare")
    assert main(["bare", "--results", str(tmp_path / "results"), "--format", "openmetrics",
                 "--out", str(tmp_path / "m.om")]) == 2
    assert "record.series: true" in capfd.readouterr().err
    assert not (tmp_path / "m.om").exists()


@needs_servelab
def test_measured_rows_give_back_the_costs_that_they_were_made_with(tmp_path) -> None:
    """A twin's steps and runs, as if they were another server's: the fit is that twin's profile."""
    spec = yaml.safe_load((ROOT / "experiments/base/server/llama-134m-cpu.yaml").read_text())
    sweep = {"workload.adapters.count": [4, 24], "engine.adapter_slots": [2, 24],
             "workload.adapters.ranks": [[8], [16, 32]],
             "workload.popularity.weights": [[1.6, 0.8], [0.2, 0.1]]}
    results = run(tmp_path, {**spec, "record": {"steps": True}, "sweep": sweep}, "rows")
    table = tmp_path / "rows.csv"
    assert main(["rows", "--results", str(tmp_path / "results"), "--format", "measured-rows",
                 "--out", str(table)]) == 0
    rows = list(csv.DictReader(table.open()))
    runs = [row for row in rows if not row["step.decodes"]]
    assert len(runs) == len(results.columns["key"]) == 16 < len(rows) / 20
    assert {row["workload.adapters.ranks"] for row in runs} == {"[8]", "[16 32]"}
    for index, row in enumerate(runs):
        summary = results.point(index).summary()
        assert float(row["measured.itl_s"]) == summary["itl_mean_s"]
        assert float(row["measured.tokens_per_s"]) == summary["total_tokens_per_s"]
    done = subprocess.run([SERVELAB, "calibrate", "--from", table, "--spec",
                           "experiments/base/server/llama-134m-cpu.yaml", "--out",
                           tmp_path / "fitted.yaml"], cwd=ROOT, capture_output=True, text=True,
                          check=True)
    # Its knots and kernels are not the terms of rows, so that steps are some percent off.
    steps, runs_off = (float(number) for number in re.search(
        r"single steps ([\d.]+) %, 16 whole runs ([\d.]+) %", done.stdout).groups())
    assert 0 < steps < 4 and 0 < runs_off < 8
    again = run(tmp_path, {**spec, "hardware": str(tmp_path / "fitted.yaml"), "sweep": sweep},
                "again")
    ratios = (again.columns["summary.itl_mean_s"] / results.columns["summary.itl_mean_s"])
    assert abs(ratios - 1).mean() < 0.08


@needs_servelab
def test_rows_cannot_set_maps(tmp_path, monkeypatch, capsys) -> None:
    run(tmp_path, {**SPEC, "sweep": {"workload.lengths": [{"source": "sharegpt"}]}}, "maps")
    monkeypatch.chdir(tmp_path)
    assert main(["maps", "--format", "measured-rows", "--out", "rows.csv"]) == 2
    assert "workload.lengths is a map" in capsys.readouterr().err
    assert not Path("rows.csv").exists()
