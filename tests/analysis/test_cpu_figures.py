"""The figures of the CPU engine, drawn from synthetic results, and the pairing behind them."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Spec

from analysis import draw
from analysis.figures import _parts, _twin, caraserve_fig09, placement_tab01
from analysis.results import Results

ORIGINAL = '{"source":"lognormal"}'
MEAN = '{"source":"fixed"}'
VARIANTS = [("cpu", "hw", ORIGINAL), ("twin", "hw", ORIGINAL), ("twin", "hw", MEAN),
            ("twin", "hw-placement", ORIGINAL)]


def summary(tokens: float, itl: float, ttft: float, busy: float = 4) -> dict[str, float]:
    return {"total_tokens_per_s": tokens, "itl_mean_s": itl, "ttft_mean_s": ttft,
            "busy_time_s": busy, "duration_s": 10, "output_tokens_per_s": tokens / 2,
            "itl_p50_s": itl, "tpot_mean_s": itl}


def requests(incoming: float, count: int = 20, rank: int = 8) -> dict[str, Any]:
    """Datasets of `count` finished requests that ask for `incoming` tokens/s over 10 s."""
    return {"requests/status": np.ones(count, dtype=int),
            "requests/prompt_tokens": np.full(count, incoming * 10 / count / 2),
            "requests/output_tokens": np.full(count, incoming * 10 / count / 2),
            "requests/scheduled": np.linspace(0, 10e9, count).astype(int),
            "requests/adapter": np.arange(count) % 4, "requests/rank": np.full(count, rank)}


def validation(root: Path, spec_id: str, process: str = "poisson") -> Results:
    spec = Spec(root, spec_id)
    for count, incoming, busy in ((8, 100, 2), (16, 100, 8), (32, 900, 9)):
        for backend, hardware, lengths in VARIANTS:
            off = {"cpu": 1.0, "twin": 1.1}[backend] * (2 if hardware == "hw-placement" else 1)
            spec.add("vllm-lora", 0,
                     {"workload.adapters.count": count, "backend": backend, "hardware": hardware,
                      "workload.lengths": lengths, "workload.popularity.weights": "[0.4, 0.2]"},
                     summary(100, 0.01 * off, 0.1 * off, busy), datasets=requests(incoming))
    spec.write(spec=f"workload: {{duration_s: 10, arrivals: {{process: {process}}}}}")
    return Results.load(spec_id, root)


def test_twins_are_paired_with_their_engine(tmp_path: Path) -> None:
    results = validation(tmp_path, "placement/tab01")
    pairs = _twin.pairs(results)
    assert len(pairs) == 9
    assert [(pair.model, pair.lengths) for pair in pairs[:3]] == [
        ("fitted", "original"), ("fitted", "mean"), ("placement", "original")]
    assert all(results.columns["sweep.backend"][pair.engine] == "cpu" for pair in pairs)
    counts = results.columns["sweep.workload.adapters.count"]
    assert all(counts[pair.engine] == counts[pair.twin] for pair in pairs)


def test_regimes_and_errors(tmp_path: Path) -> None:
    results = validation(tmp_path, "placement/tab01")
    pairs = _twin.pairs(results)
    assert [_twin.regime(results, pair.engine) for pair in pairs[::3]] == [
        "low", "high", "saturated"]
    assert _twin.symmetric_error(150, 50) == 50
    assert _twin.symmetric_error(0, 0) == 0
    fitted = [pair for pair in pairs if pair.model == "fitted"]
    assert _twin.mean_error(results, "throughput", fitted) == 0
    assert _twin.mean_error(results, "ITL", fitted) == pytest.approx(100 * 0.1 / 2.1)


def test_invalid_points_have_no_error(tmp_path: Path) -> None:
    spec = Spec(tmp_path, "a/b")
    for backend, status in (("cpu", "VALID"), ("twin", "INVALID")):
        spec.add("x", 0, {"backend": backend}, summary(1, 1, 1), status)
    spec.write()
    results = Results.load("a/b", tmp_path)
    assert np.isnan(_twin.mean_error(results, "ITL", _twin.pairs(results)))


@pytest.mark.parametrize("process", ["poisson", "switching"])
def test_tab01(tmp_path: Path, process: str) -> None:
    validation(tmp_path, "placement/tab01", process)
    paths = draw.draw("placement/tab01", tmp_path)
    table = next(path for path in paths if path.name == "table.txt").read_text()
    assert ("unpredictable" if process == "switching" else "predictable") in table
    assert "published: Llama" in table
    assert "unsupported" in table  # the placement twin is twice as slow
    fitted = next(line for line in table.splitlines() if "fitted" in line and " all " in line)
    assert "4.76" in fitted and "unsupported" not in fitted


def test_fig08(tmp_path: Path) -> None:
    validation(tmp_path, "placement/fig08")
    paths = draw.draw("placement/fig08", tmp_path)
    assert {path.name for path in paths} == {"fig08.pdf", "fig08.png", "table.txt"}


def series(count: int = 12) -> dict[str, Any]:
    return {"series/start": np.arange(count) * 10**9,
            "series/num_requests_running": np.arange(count),
            "series/num_requests_waiting": np.arange(count)[::-1].copy(),
            "series/steps": np.full(count, 10),
            "series/batch_requests": np.full(count, 80)}


def test_fig09(tmp_path: Path) -> None:
    spec = Spec(tmp_path, "placement/fig09")
    for backend in ("cpu", "twin"):
        spec.add("vllm-lora", 0, {"backend": backend}, summary(100, 0.01, 0.1),
                 datasets=requests(100) | series())
    spec.write(spec="workload: {duration_s: 10, arrivals: {process: switching, update_s: 2}}")
    paths = draw.draw("placement/fig09", tmp_path)
    assert "waiting  engine" in next(p for p in paths if p.suffix == ".txt").read_text()


def test_fig04_marks_what_does_not_fit(tmp_path: Path) -> None:
    spec = Spec(tmp_path, "placement/fig04")
    for rank in ("[8]", "[32]"):
        for slots in (1, 8, 64):
            bad = rank == "[32]" and slots == 64
            spec.add("vllm-lora", 0, {"workload.adapters.ranks": rank,
                                      "engine.adapter_slots": slots},
                     summary(1000 - slots, 0.02 + 0.0001 * slots, 0.1),
                     "INVALID" if bad else "VALID",
                     {**series(), "series/batch_requests": np.full(12, 400 - slots)})
    spec.write()
    paths = draw.draw("placement/fig04", tmp_path)
    assert "out of memory" in next(p for p in paths if p.suffix == ".txt").read_text()


def test_fig05(tmp_path: Path) -> None:
    spec = Spec(tmp_path, "placement/fig05")
    for backend in ("cpu", "twin"):
        for count in (0, 1, 4):
            spec.add("vllm-lora", 0, {"workload.adapters.count": count, "backend": backend,
                                      "workload.adapters.ranks": "[8]"},
                     summary(1000 / (1 + 0.1 * count), 0.02 * (1 + 0.1 * count), 0.1))
    spec.write()
    paths = draw.draw("placement/fig05", tmp_path)
    table = next(p for p in paths if p.suffix == ".txt").read_text()
    assert "1.400" in table and "40.0" in table


def test_fig06(tmp_path: Path) -> None:
    spec = Spec(tmp_path, "placement/fig06")
    for store, load in (("host", 0.001), ("disk", 0.002)):
        for rank in ("[8]", "[32]"):
            for prompt, output in ((23, 27), (250, 231)):
                spec.add("vllm-lora", 0,
                         {"runtime.adapter_store": store, "workload.adapters.ranks": rank,
                          "workload.lengths.prompt": prompt, "workload.lengths.output": output},
                         summary(100, 0.005, 0.1),
                         datasets={"events/value": [load, 0.5], "events/code": [0, 1],
                                   "requests/output_tokens": [output] * 4})
    spec.write()
    paths = draw.draw("placement/fig06", tmp_path)
    table = next(p for p in paths if p.suffix == ".txt").read_text()
    assert "disk over host: 100 % slower" in table
    assert "0.77" in table  # 1 ms of 26 x 5 ms


def test_fig07(tmp_path: Path) -> None:
    spec = Spec(tmp_path, "placement/fig07")
    for slots in (4, 16):
        for count in (8, 32):
            spec.add("vllm-lora", 0, {"engine.adapter_slots": slots,
                                      "workload.adapters.count": count}, summary(1, 1, 1),
                     datasets={"replicas/steps": [100], "replicas/busy": [100 * 20_000_000],
                               "replicas/scheduling": [100 * 10_000]})
    spec.write()
    table = next(p for p in draw.draw("placement/fig07", tmp_path) if p.suffix == ".txt")
    assert "0.0500" in table.read_text()  # 10 us of 20 ms


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("figure", ["fig04", "fig09"])
def test_caraserve_kernels(tmp_path: Path, figure: str, timed: bool) -> None:
    spec = Spec(tmp_path, f"caraserve/{figure}")
    for kernel in ("bgmv", "mbgmv"):
        for batch in (4, 8, 16):
            for rank in (8, 64):
                work = batch * rank
                spec.add(kernel, 0, {"workload.requests": batch,
                                     "workload.adapters.ranks": f"[{rank}]"},
                         summary(1, 0.005 + 1e-5 * work, 0.1),
                         datasets={**requests(100, batch, rank), "replicas/steps": [10],
                                   "replicas/lora": [10 * 1000 * work * timed]})
    spec.write()
    paths = draw.draw(f"caraserve/{figure}", tmp_path)
    table = next(p for p in paths if p.suffix == ".txt").read_text()
    if figure == "fig09":
        assert "alpha   10.000 us  beta   5.000 ms  R2 1.000" in table
        assert ("LoRA part" in table) == timed


def test_work_counts_padding_for_bgmv_only(tmp_path: Path) -> None:
    spec = Spec(tmp_path, "a/b")
    spec.add("bgmv", 0, {}, {}, datasets={"requests/rank": [8, 8, 64]})
    spec.write()
    results = Results.load("a/b", tmp_path)
    assert caraserve_fig09.work_of(results, 0, "bgmv") == 192
    assert caraserve_fig09.work_of(results, 0, "mbgmv") == 80


def test_fig01_shows_the_runs_behind_it(tmp_path: Path) -> None:
    """Of the engine that the spec is like, at the settings that it has."""
    spec = Spec(tmp_path, "placement/fig01_vllm")
    for rank in (8, 16, 48):
        for count in (64, 128):
            spec.add("vllm-lora", 0, {"workload.adapters.count": count,
                                      "workload.adapters.ranks": f"[{rank}]",
                                      "workload.popularity.weights": "[0.05]",
                                      "engine.adapter_slots": 0}, summary(10 * count, 0.02, 0.1))
    for engine, shown in (("vllm-0.5", True), ("vllm-0.8", False)):
        spec.write(figure="placement/fig01", model="Llama-2-7B",
                   spec=f"engine: {{like: {engine}}}")
        table = next(p for p in draw.draw("placement/fig01_vllm", tmp_path)
                     if p.suffix == ".txt").read_text()
        assert any(line.split() == ["rank", "8", "64", "1513", "published"]
                   for line in table.splitlines()) == shown
        assert "rank 48 " in table


def test_tab01_against_published_runs(tmp_path: Path) -> None:
    """Without an engine's points: the setting's row of the published runs, where there is one."""
    row = {"engine.adapter_slots": 128, "engine.slot_rank": 16, "workload.adapters.count": 128,
           "workload.adapters.ranks": "[8, 16]"}
    spec = Spec(tmp_path, "placement/tab01_vllm")
    for weights in ("[0.1, 0.05, 0.025]", "[9, 9, 9]"):  # measured: 3127.81 tokens/s, 53.18 ms
        for lengths, tokens in (('{"source":"sharegpt"}', 3127.81), ('{"source":"fixed"}', 1000)):
            spec.add("vllm-lora", 0, {**row, "workload.popularity.weights": weights,
                                      "workload.lengths": lengths},
                     summary(tokens, 2 * 0.05318, 0.18377), datasets=requests(3200))
    spec.write(figure="placement/tab01", model="Llama-3.1-8B")
    results = Results.load("placement/tab01_vllm", tmp_path)
    points = placement_tab01.compared(results)
    assert [(point.lengths, point.regime) for point in points] == [
        ("original", "low"), ("mean", "low")]
    assert placement_tab01.claim_value(results, "ITL") == pytest.approx(100 / 3)
    assert placement_tab01.claim_value(results, "TTFT") == pytest.approx(0)
    assert placement_tab01.claim_value(results, "throughput") == pytest.approx(
        100 * 2127.81 / 4127.81)
    table = next(path for path in draw.draw("placement/tab01_vllm", tmp_path)
                 if path.suffix == ".txt").read_text()
    assert "51.55" in table


def test_rank_labels() -> None:
    assert _parts.ranks_label("[16]") == "rank 16"
    assert _parts.ranks_label("[8, 64]") == "ranks 8, 64"
    assert _parts.ranks_label("[8, 8, 8, 64]") == "ranks 3x8, 1x64"


def test_fig01_crosses_what_does_not_fit(tmp_path: Path) -> None:
    spec = Spec(tmp_path, "placement/fig01")
    usual = ("[8]", "[0.05]", 0)
    for setting in (usual, ("[32]", "[0.05]", 0), ("[8]", "[0.1]", 0), ("[8]", "[0.05]", 32)):
        for count in (8, 64):
            fits = setting[0] == "[8]" or count == 8
            spec.add("vllm-lora", 0, {"workload.adapters.count": count,
                                      "workload.adapters.ranks": setting[0],
                                      "workload.popularity.weights": setting[1],
                                      "engine.adapter_slots": setting[2]},
                     summary(10 * count, 0.02, 0.1), "VALID" if fits else "INVALID")
    spec.write()
    table = next(p for p in draw.draw("placement/fig01", tmp_path) if p.suffix == ".txt")
    lines = table.read_text().splitlines()
    assert sum("does not fit" in line for line in lines) == 1
    # The usual curve is in each of the three panels, each other setting in its own.
    assert len(lines) == 1 + 2 * (2 + 2 + 2)
