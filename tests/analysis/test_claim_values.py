"""The values that figures compute for claims, from synthetic results with known answers."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Spec

from analysis.compute import Missing
from analysis.figures import (
    caraserve_fig04, placement_fig01, placement_fig04, placement_fig05, placement_fig06,
    placement_fig07, placement_fig08, placement_fig09)
from analysis.results import Results


def incoming(tokens_per_s: float) -> dict[str, Any]:
    """Finished requests that ask for so many tokens/s over 10 s."""
    return {"requests/status": [1] * 10, "requests/prompt_tokens": [tokens_per_s / 2] * 10,
            "requests/output_tokens": [tokens_per_s / 2] * 10,
            "requests/scheduled": np.linspace(0, 10e9, 10).astype(int)}


def loaded(spec: Spec, root: Path) -> Results:
    spec.write(spec="workload: {duration_s: 10}")
    return Results.load(spec.spec_id, root)


# Throughput at 10, 20, 30, 40 and 50 adapters, which bring as many tokens/s each.
FIG01 = {("[8]", "[0.05]", 0): [10, 20, 30, 40, 36], ("[32]", "[0.05]", 0): [10, 20, 30, 20, 15],
         ("[8]", "[0.1]", 0): [20, 40, 60, 66, 66], ("[8]", "[0.025]", 0): [5, 10, 15, 18, 18],
         ("[8]", "[0.05]", 4): [10, 20, 22, 24, 24], ("[8]", "[0.05]", 16): [10, 20, 30, 40, 40]}
RATE = {"[0.05]": 1, "[0.1]": 2, "[0.025]": 0.5}


def fig01(root: Path, changed: dict[tuple, list[float]]) -> Results:
    spec = Spec(root, "placement/fig01")
    for setting, curve in (FIG01 | changed).items():
        for count, tokens in zip((10, 20, 30, 40, 50), curve):
            spec.add("vllm-lora", 0,
                     {"workload.adapters.count": count, "workload.adapters.ranks": setting[0],
                      "workload.popularity.weights": setting[1],
                      "engine.adapter_slots": setting[2]}, {"total_tokens_per_s": tokens},
                     datasets=incoming(count * RATE[setting[1]]))
    return loaded(spec, root)


def test_fig01(tmp_path):
    results = fig01(tmp_path, {})
    packs = {setting: curve.pack for setting, curve in placement_fig01.curves_of(results).items()}
    assert packs["[8]", "[0.05]", 0] == 3 and packs["[32]", "[0.05]", 0] == 2
    assert packs["[8]", "[0.05]", 4] == 1
    value = placement_fig01.claim_value
    assert value(results, "beyond") == pytest.approx(24 / 20)  # four slots go on gaining
    assert value(results, "size") == pytest.approx(30 / 40)
    assert value(results, "rate") == pytest.approx(18 / 60)  # 18 of 20 do not starve
    assert value(results, "slots") == pytest.approx(36 / 40)


def test_fig01_is_linear_up_to_the_packing_point_only(tmp_path):
    steady = {("[8]", "[0.025]", 0): [5, 10, 15, 17, 17]}  # that with 4 slots has two points only
    assert placement_fig01.claim_value(fig01(tmp_path / "a", steady), "linear") == (
        pytest.approx(1))
    bent = steady | {("[8]", "[0.05]", 16): [10, 18, 38, 36, 47]}
    assert 0.5 < placement_fig01.claim_value(fig01(tmp_path / "b", bent), "linear") < 0.95


def test_fig01_needs_a_sweep_that_starves(tmp_path):
    results = fig01(tmp_path, {("[8]", "[0.025]", 0): [5, 10, 15, 20, 25]})
    with pytest.raises(Missing, match="rate 0.025 keeps up with the most adapters"):
        placement_fig01.claim_value(results, "rate")


def test_fig04(tmp_path):
    spec = Spec(tmp_path, "placement/fig04")
    for rank, tokens in (("[8]", (1000, 900, 800)), ("[32]", (1000, 900, 500))):
        for slots, batch, rate in zip((1, 8, 64), (40, 20, 10), tokens):
            spec.add("vllm-lora", 0, {"workload.adapters.ranks": rank,
                                      "engine.adapter_slots": slots},
                     {"total_tokens_per_s": rate, "itl_p50_s": 0.01 + 0.001 * batch},
                     datasets={"series/steps": [10], "series/batch_requests": [10 * batch]})
    results = loaded(spec, tmp_path)
    assert placement_fig04.claim_value(results, "itl") == pytest.approx(1)
    assert placement_fig04.claim_value(results, "plateau") == pytest.approx(2 / 4)


def test_fig05_is_of_the_engine(tmp_path):
    spec = Spec(tmp_path, "placement/fig05")
    for backend, first in (("cpu", 0.3), ("twin", 0.0)):
        for rank, slope in (("[8]", 0.1), ("[32]", 0.05)):
            for count in (0, 1, 2, 4):
                slow = 1 + (first + slope * (count - 1) if count else 0)
                spec.add("vllm-lora", 0, {"workload.adapters.count": count, "backend": backend,
                                          "workload.adapters.ranks": rank},
                         {"output_tokens_per_s": 1000 / slow, "itl_p50_s": 0.02 * slow})
    results = loaded(spec, tmp_path)
    assert placement_fig05.claim_value(results, "jump") == pytest.approx(0.3 / 0.1)
    assert placement_fig05.claim_value(results, "linear") == pytest.approx(1)


def test_fig05_on_the_twin_alone(tmp_path):
    """Each size has its own slots, and with them its own run without an adapter."""
    spec = Spec(tmp_path, "placement/fig05_vllm")
    for rank, base, slope in ((8, 1000, 0.1), (32, 500, 0.05)):
        for count in (0, 1, 2, 4):
            slow = 1 + (0.3 + slope * (count - 1) if count else 0)
            spec.add("vllm-lora", 0, {"workload.adapters.count": count, "engine.slot_rank": rank,
                                      "workload.adapters.ranks": f"[{rank}]"},
                     {"output_tokens_per_s": base / slow, "itl_p50_s": 0.02 * slow})
    spec.write(backend="twin")
    results = Results.load("placement/fig05_vllm", tmp_path)
    assert placement_fig05.claim_value(results, "jump") == pytest.approx(0.3 / 0.1)
    assert placement_fig05.claim_value(results, "linear") == pytest.approx(1)


def test_fig06(tmp_path):
    spec = Spec(tmp_path, "placement/fig06")
    for store, times in (("host", 1), ("disk", 1.7)):
        for rank, load in (("[8]", 0.007), ("[32]", 0.016)):
            for prompt, output in ((23, 11), (250, 101)):
                spec.add("vllm-lora", 0,
                         {"runtime.adapter_store": store, "workload.adapters.ranks": rank,
                          "workload.lengths.prompt": prompt}, {"tpot_mean_s": 0.01},
                         datasets={"events/value": [load * times], "events/code": [0],
                                   "requests/output_tokens": [output] * 4})
    results = loaded(spec, tmp_path)
    for name, value in (("short-least", 7), ("short-most", 16), ("long", 1.6), ("disk", 70)):
        assert placement_fig06.claim_value(results, name) == pytest.approx(value), name


def test_fig07(tmp_path):
    spec = Spec(tmp_path, "placement/fig07")
    for slots, shares in ((4, (10, 60)), (16, (5, 20))):
        for count, scheduling in zip((8, 32), shares):
            spec.add("vllm-lora", 0, {"engine.adapter_slots": slots,
                                      "workload.adapters.count": count}, {},
                     datasets={"replicas/steps": [1], "replicas/busy": [1_000_000],
                               "replicas/scheduling": [scheduling * 1000]})
    results = loaded(spec, tmp_path)
    assert placement_fig07.claim_value(results, "most") == pytest.approx(6)
    assert placement_fig07.claim_value(results, "where") == pytest.approx(3)


def test_fig08_and_fig09_compare_the_fitted_twin(tmp_path):
    spec = Spec(tmp_path, "placement/fig08")
    summary = {"itl_mean_s": 0.01, "ttft_mean_s": 0.1}
    for backend, lengths, tokens in (("cpu", "original", 100), ("twin", "original", 100),
                                     ("twin", "mean", 150)):
        spec.add("vllm-lora", 0, {"backend": backend, "hardware": "hw",
                                  "workload.lengths": lengths},
                 summary | {"total_tokens_per_s": tokens})
    results = loaded(spec, tmp_path)
    assert placement_fig08.claim_value(results, "throughput") == pytest.approx(100 * 50 / 250)
    assert placement_fig08.claim_value(results, "ITL") == 0
    spec = Spec(tmp_path, "placement/fig09")
    for backend, start, running in (("cpu", [0, 1, 2, 3], [1, 2, 3, 4]),
                                    ("twin", [1, 2, 3], [2, 3, 4])):
        spec.add("vllm-lora", 0, {"backend": backend}, summary, datasets={
            "series/start": start, "series/running": running, "series/waiting": running[::-1]})
    results = loaded(spec, tmp_path)
    assert placement_fig09.claim_value(results, "running") == pytest.approx(
        np.corrcoef([1, 2, 3, 4], [0, 2, 3, 4])[0, 1])
    assert placement_fig09.claim_value(results, "waiting") < 0.8


def test_caraserve_fig04_predicts_mixes_from_uniform_batches(tmp_path):
    spec = Spec(tmp_path, "caraserve/fig04")
    for kernel, pays in (("bgmv", max), ("mbgmv", np.mean)):
        for batch in (4, 8):
            for ranks in ([16], [32], [64], [8, 64], [8, 8, 8, 64]):
                spec.add(kernel, 0, {"workload.requests": batch,
                                     "workload.adapters.ranks": str(ranks).replace(" ", "")},
                         {"itl_p50_s": 0.01 + 1e-5 * batch * pays(ranks)})
    results = loaded(spec, tmp_path)
    for kernel in ("bgmv", "mbgmv"):
        assert caraserve_fig04.claim_value(results, kernel) == pytest.approx(1)
    swapped = results.columns["technique"] == "mbgmv"
    results.columns["technique"] = np.where(swapped, "bgmv", "mbgmv").astype(object)
    assert caraserve_fig04.claim_value(results, "bgmv") < 0.95
    assert caraserve_fig04.claim_value(results, "mbgmv") > 1.05
