"""CaraServe's figures: steps, loads and cold starts as claims and drawings take them."""
from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from analysis import draw, published, style
from analysis import steps as step_metrics
from analysis.errors import ResultsError
from analysis.figures import (_cdfs, _lora_workers, caraserve_a10g, caraserve_fig03,
                              caraserve_fig05, caraserve_fig15, caraserve_fig17, caraserve_fig18,
                              caraserve_fig19, caraserve_loads, caraserve_routes, caraserve_tab01)
from analysis.results import Results
from caraserve_results import (CAPABLE, FIGURES, cdfs, fig03, fig16, loads, requests, steps,
                               tab01)
from conftest import ROOT, Spec, edited


def loaded(root: Path, datasets: dict) -> Results:
    spec = Spec(root, "a/b")
    spec.add("ondmd", 0, {}, {}, datasets=datasets)
    if "events/code" in datasets:
        with edited(root / "a/b/points/k0000.h5") as file:
            file["events/code"].attrs["codes"] = ["load", "evict"]
    spec.write()
    return Results.load("a/b", root)


def test_steps_count_with_what_they_waited_for(tmp_path):
    results = loaded(tmp_path, steps([60, 100, 150], [20, 0, 0], dense=[30, 20, 30],
                                     load_wait=[25, 5, 0], lora=[5, 5, 10]))
    assert results.metric("prefill_step_mean_s")[0] == pytest.approx(0.060)
    assert results.metric("decode_step_mean_s")[0] == pytest.approx(0.035)


def test_without_steps_cold_starts_cannot_be_told(tmp_path):
    results = loaded(tmp_path, requests([0], [100]))
    with pytest.raises(ResultsError, match="has no dataset /steps"):
        results.metric("cold_start_share_percent")


def test_without_a_prompt_no_prefill_has_a_mean(tmp_path):
    results = loaded(tmp_path, steps([10], [0], dense=[10]))
    assert math.isnan(results.metric("prefill_step_mean_s")[0])
    assert results.metric("decode_step_mean_s")[0] == pytest.approx(0.010)


def test_loads_are_those_among_the_events(tmp_path):
    assert loaded(tmp_path / "a", loads([0.002, 0.004])).metric("adapter_load_mean_s")[0] == (
        pytest.approx(0.003))
    assert math.isnan(loaded(tmp_path / "b", loads([])).metric("adapter_load_mean_s")[0])


def test_cold_starts_of_others_delay_a_request_too(tmp_path):
    # Steps of 100 ms are planned at 0, 100 and 200; the first waits for 40 ms, the last for 20.
    results = loaded(tmp_path, {
        **steps([100, 200, 300], [5, 0, 5], load_wait=[40, 0, 20], dense=[60, 100, 80]),
        **requests([0, 30, 100, 0, 0], [300, 300, 200, 100, 90], [1, 1, 1, 1, 2])})
    # All of both waits; 10 ms of the first and the second; between them; the first; not finished.
    shares = step_metrics.cold_start_shares(results, 0)
    assert shares.tolist() == pytest.approx([100 * 60 / 300, 100 * 30 / 270, 0, 40])
    assert results.metric("cold_start_share_percent")[0] == pytest.approx(shares.mean())


def test_replicas_wait_on_their_own(tmp_path):
    datasets = {**steps([100, 100], [5, 5], load_wait=[50, 0], dense=[50, 100]),
                **requests([0, 0], [100, 100])}
    datasets["steps/replica"] = np.array([0, 1])
    datasets["requests/replica"] = np.array([1, 0])
    assert step_metrics.cold_start_shares(loaded(tmp_path, datasets), 0).tolist() == [0, 50]


def test_overlaps_against_counting_every_instant():
    rng = np.random.default_rng(1)
    for _ in range(50):
        edges = np.sort(rng.choice(200, 2 * rng.integers(0, 8), replace=False))
        start, stop = edges[::2], edges[1::2]
        begin = rng.integers(0, 200, 30)
        end = begin + rng.integers(0, 60, 30)
        covered = np.zeros(300, dtype=int)
        for a, b in zip(start, stop):
            covered[a:b] = 1
        shuffled = rng.permutation(len(start))
        found = step_metrics.overlap(begin, end, start[shuffled], stop[shuffled])
        assert found.tolist() == [int(covered[a:b].sum()) for a, b in zip(begin, end)]


def test_fig03_keeps_the_panels_apart(tmp_path):
    fig03(Spec(tmp_path, "caraserve/fig03"))
    results = Results.load("caraserve/fig03", tmp_path)
    assert caraserve_fig03.share_rates(*caraserve_fig03.positions(results)) == [3, 6, 9]
    table = next(path for path in draw.draw("caraserve/fig03", tmp_path) if path.suffix == ".txt")
    lines = table.read_text().splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["requests/s", "3", "6", "9", "rank", "8",
                                                       "64"]
    assert lines[-1].split() == ["64", "32.00"]


def test_fig03_of_one_rate_has_both_panels(tmp_path):
    rate, rank = np.array([3.0, 3.0]), np.array([8, 64])
    assert caraserve_fig03.share_rates(rate, rank) == [3]
    assert caraserve_fig03.rank_of("[8, 64]") == 64 and caraserve_fig03.rank_of(16) == 16


def test_fig03_has_a_panel_for_each_load_path(tmp_path):
    spec = Spec(tmp_path, "caraserve/fig03")
    for path in ("pinned", "rebuild"):
        fig03(spec, {"engine.load_path": path})
    figures = caraserve_fig03.by_path(Results.load("caraserve/fig03", tmp_path))
    assert list(figures) == ["pinned", "rebuild"]
    assert all(len(own.columns["key"]) == 10 for own in figures.values())
    lines = [line.strip() for line in table(tmp_path, "caraserve/fig03")]
    assert lines.count("pinned") == lines.count("rebuild") == 2  # shares and loads


def test_fig16_says_what_fusing_saves(tmp_path):
    fig16(Spec(tmp_path, "caraserve/fig16"))
    table = next(path for path in draw.draw("caraserve/fig16", tmp_path) if path.suffix == ".txt")
    row = table.read_text().splitlines()[1].split()
    assert row == ["16", "37.92", "31.60", "41.08", "16.67"]


def made(tmp_path: Path, spec_id: str) -> Results:
    FIGURES[spec_id](Spec(tmp_path, spec_id))
    return Results.load(spec_id, tmp_path)


def table(tmp_path: Path, spec_id: str) -> list[str]:
    path = next(path for path in draw.draw(spec_id, tmp_path) if path.suffix == ".txt")
    return path.read_text().splitlines()


def test_a_row_for_each_position_and_variant(tmp_path):
    cdfs(Spec(tmp_path, "a/b"), [{"engine.max_batch": 48}, {"engine.max_batch": 32}],
         {"cached": 1, "ondmd (x)": 2, "cached (y)": 3, "ondmd (y)": 4})
    rows = _cdfs.rows_of(Results.load("a/b", tmp_path))
    assert [(row.title, row.techniques) for row in rows] == [
        (f"{size} in a batch, {variant}", labels) for size in (48, 32)
        for variant, labels in (("x", ["cached", "ondmd (x)"]), ("y", ["cached (y)", "ondmd (y)"]))]


def test_load_paths_stand_one_above_the_other(tmp_path):
    cdfs(Spec(tmp_path, "caraserve/fig10"), [{"engine.load_path": "pinned"},
                                             {"engine.load_path": "rebuild"}])
    lines = table(tmp_path, "caraserve/fig10")
    assert [line.split("  ")[0] for line in lines if line.startswith("loads")] == [
        "loads: pinned", "loads: rebuild"]


def test_values_of_finished_requests_only(tmp_path):
    results = loaded(tmp_path, {**requests([0, 0], [100, 300], [1, 2]),
                                "requests/first_token": np.array([40, 50]) * 10**6,
                                "requests/output_tokens": np.array([4, 4])})
    assert _cdfs.ttft_s(results, 0).tolist() == [0.040]
    assert _cdfs.latency_s(results, 0).tolist() == [0.100]
    assert _cdfs.per_token_s(results, 0).tolist() == [0.025]


def test_percent_above_cached_beside_the_papers(tmp_path):
    FIGURES["caraserve/fig10"](Spec(tmp_path, "caraserve/fig10"))
    row = next(line for line in table(tmp_path, "caraserve/fig10") if line.startswith("ondmd"))
    assert row.count("+50.0 % [50.0, 50.0]") == 3
    assert [word for word in row.split() if word.startswith("(")] == ["(+412)", "(+71)", "(+50)"]


@pytest.mark.parametrize("spec_id, count", [("caraserve/fig13", 18), ("caraserve/fig14", 18)])
def test_every_position_finds_its_claims(tmp_path, spec_id, count):
    FIGURES[spec_id](Spec(tmp_path, spec_id))
    assert "\n".join(table(tmp_path, spec_id)).count("(+") == count


def test_nothing_is_published_under_another_name():
    assert published.find("caraserve/fig14-512-slora-tpt") == 32
    assert published.find("caraserve/fig14-256-slora-tpt") is None


def test_steps_are_prefills_and_decodes(tmp_path):
    FIGURES["caraserve/fig11"](Spec(tmp_path, "caraserve/fig11"))
    rows = {line.split()[0]: line.split() for line in table(tmp_path, "caraserve/fig11")[3:]}
    assert rows["cached"][1:3] == ["31", "35.5"] and rows["slora"][1] == "62"


def test_the_server_with_the_shorter_step(tmp_path):
    results = made(tmp_path, "caraserve/fig05")
    assert caraserve_fig05.claim_value(results, "bgmv") == 2
    assert caraserve_fig05.claim_value(results, "mbgmv") == 1


def test_adapters_that_nobody_calls_count(tmp_path):
    results = made(tmp_path, "caraserve/fig12")
    assert results.metric("top_tenth_share_percent").tolist() == pytest.approx(
        [100 * 32 / 62, 100 * 4 * 2**9 / (2 * (2**10 - 1)) * 0.75])
    assert table(tmp_path, "caraserve/fig12")[1].split()[:2] == ["10", "62"]


def test_loads_are_multiples_of_what_is_all_on_the_device(tmp_path):
    results = made(tmp_path, "caraserve/loads")
    assert caraserve_loads.over_cached(results, "ttft_mean_s", "ondmd, rebuild") == {2: 3, 8: 3}
    text = "\n".join(table(tmp_path, "caraserve/loads"))
    assert text.count("3.000") == 4 and text.count("1.500") == 4 and "cached, " not in text


def test_data_apart_from_computing(tmp_path):
    results = made(tmp_path, "caraserve/fig17")
    assert caraserve_fig17.claim_value(results, "shared") == pytest.approx(1e-4)
    assert caraserve_fig17.claim_value(results, "flat") == pytest.approx(1)
    assert caraserve_fig17.claim_value(results, "sockets") == pytest.approx(1)
    rows = [line.split() for line in table(tmp_path, "caraserve/fig17")[2:]]
    assert rows[7][2:] == ["8", "1.600", "0.300", "1.900"]
    assert rows[15][2:] == ["8", "0.100", "0.300", "0.400"]


def test_processes_beside_threads(tmp_path):
    results = made(tmp_path, "caraserve/fig18")
    assert caraserve_fig18.claim_value(results, "one-core") == pytest.approx(1)
    assert caraserve_fig18.claim_value(results, "speedup") == pytest.approx(1.5)
    lines = [line.split() for line in table(tmp_path, "caraserve/fig18")]
    assert lines[4] == ["256", "2.560"] and lines[-1] == ["8", "0.160", "0.240", "1.50"]


@pytest.mark.parametrize("figure, value, text", [
    ("fig17", "flat", "on 3 processors 2 numbers of processes have a core each"),
    ("fig18", "speedup", "8 processes beside the engine need 9 processors")])
def test_a_verdict_that_needs_more_cores_stays_open(tmp_path, monkeypatch, figure, value, text):
    results = made(tmp_path, f"caraserve/{figure}")
    monkeypatch.setattr(_lora_workers, "processors", lambda results: 3)
    module = {"fig17": caraserve_fig17, "fig18": caraserve_fig18}[figure]
    with pytest.raises(ValueError, match=text):
        module.claim_value(results, value)


def test_what_caraserve_takes_off_a_cold_start(tmp_path):
    assert caraserve_fig15.claim_value(made(tmp_path, "caraserve/fig15"), "cold-start") == (
        pytest.approx(80))


def test_attainment_is_over_the_slo_of_the_same_results(tmp_path):
    results = made(tmp_path, "caraserve/fig19")
    limit_s = caraserve_fig19.slo_s(results)
    alone = results.columns["technique"] == "peft"
    assert limit_s == pytest.approx(
        1.5 * results.metric("latency_per_token_mean_of_ratios_s")[alone].mean())
    assert [row.title for row in caraserve_fig19.rows_of(results)] == ["bgmv", "mbgmv"]
    own = np.flatnonzero(results.columns["technique"] == "rank-aware (bgmv)")
    within = [float((_cdfs.per_token_s(results, index) <= limit_s).mean()) for index in own]
    assert caraserve_fig19.claim_value(results, "attained bgmv") == pytest.approx(
        100 * np.mean(within))
    assert caraserve_fig19.claim_value(results, "highest mbgmv") > 1


def test_routes_stand_by_system_and_by_where_adapters_are(tmp_path):
    results = made(tmp_path, "caraserve/routes")
    rows = _cdfs.rows_of(results, without=("peft",))
    assert [(caraserve_routes.copies_of(row), row.techniques[0]) for row in rows] == [
        (0, "rank-aware (slora)"), (0, "rank-aware (caraserve)"),
        (2, "rank-aware (slora)"), (2, "rank-aware (caraserve)")]
    aware, between_two = (caraserve_routes.per_token_ms(row, "rank-aware (slora)").value
                          for row in (rows[0], rows[2]))
    assert between_two == pytest.approx(1.2 * aware)
    lines = table(tmp_path, "caraserve/routes")
    of = {tuple(line.split()[:3]): line.split()[3:] for line in lines[2:]}
    assert len(of) == 8
    assert float(of["2", "random", "(slora)"][2]) == pytest.approx(1.2 * 1.4 * aware, abs=0.01)
    limit_s = caraserve_fig19.slo_s(results)
    share = caraserve_fig19.attained(rows[0], "random (slora)", limit_s).value
    assert float(of["all", "random", "(slora)"][0]) == pytest.approx(share, abs=0.005)


def test_a_cell_counts_where_system_runs_and_paper_say_the_same(tmp_path):
    results = made(tmp_path, "caraserve/tab01")
    assert caraserve_tab01.claim_value(results, "cells") == 12
    cells = caraserve_tab01.cells(results, "caraserve")
    assert [cell.evidence for cell in cells.values()] == [
        "4 adapters on one copy of the model", "the first token waits for 10 % of a load",
        "50 % of requests go elsewhere"]
    assert caraserve_tab01.cells(results, "hf-peft")["GPU-efficient"].evidence.startswith("1 ad")
    assert sum("yes" in line for line in table(tmp_path, "caraserve/tab01")) == 6


@pytest.mark.parametrize("label, change", [
    ("slora", ("", 6, 10, False)),                  # does not declare what it does
    ("slora", ("GPU-efficient", 1, 10, False)),     # does not do what it declares
    ("slora", ("GPU-efficient", 6, 1, False)),      # does what it does not declare
    ("slora", ("GPU-efficient, SLO-aware", 6, 10, True)),  # does what the paper denies it
    ("caraserve", (CAPABLE["caraserve"][0], 4, 1, False)),
    ("hf-peft", ("cold-start-free", 0, 8, False))])
def test_a_cell_that_is_otherwise_does_not_count(tmp_path, label, change):
    tab01(Spec(tmp_path, "caraserve/tab01"), {label: change})
    results = Results.load("caraserve/tab01", tmp_path)
    assert caraserve_tab01.claim_value(results, "cells") == 11
    differs = [cell for cell in caraserve_tab01.cells(results, label).values()
               if cell.declared != cell.shown]
    assert len(differs) == (0 if change[3] and label == "slora" else 1)


def test_the_outside_check_by_load(tmp_path):
    FIGURES["caraserve/a10g"](Spec(tmp_path, "caraserve/a10g"))
    results = Results.load("caraserve/a10g", tmp_path)
    slow, full, peft = caraserve_a10g.runs(results)
    assert (slow.regime, full.regime, peft.regime) == ("not saturated", "saturated", "saturated")
    assert (slow.part, peft.part) == ("fitted", "ranks")
    assert slow.error("throughput") == 0 and slow.error("TTFT") == pytest.approx(10)
    rows = caraserve_a10g.rows_of([slow, full, peft])
    assert [row[0] for row in rows] == ["S-LoRA, not saturated", "S-LoRA, saturated",
                                        "S-LoRA, all", "PEFT, saturated", "PEFT, all"]
    assert rows[2][1:] == ["2", "0.0, 0.0", "10.0, 10.0", "10.0, 10.0", ""]
    full.twin["latency"] *= 1.2
    assert caraserve_a10g.rows_of([full])[0][-1] == "beyond the limits"


def test_the_outside_checks_order_of_systems(tmp_path):
    FIGURES["caraserve/a10g"](Spec(tmp_path, "caraserve/a10g"))
    slow, full, peft = caraserve_a10g.runs(Results.load("caraserve/a10g", tmp_path))
    assert "3 of 3 comparisons: three metrics of 1 settings" in caraserve_a10g.order_of(
        [slow, full, peft])
    peft.twin["throughput"] = 1e4
    assert " 2 of 3 " in caraserve_a10g.order_of([full, peft])
    assert caraserve_a10g.order_of([slow, full]) == ""


def test_s_loras_rows_are_of_its_requests():
    for name, rows, judged in (("slora_a10g", 52, 28), ("peft_a10g", 36, 14)):
        table = published.table(name)
        assert len(table) == rows and [row["part"] for row in table].count("judged") == judged
        settings = {part: {tuple(row[key] for key in row if key.startswith("workload."))
                           for row in table if row["part"] == part}
                    for part in ("fitted", "judged")}
        assert not settings["fitted"] & settings["judged"]
        assert all((ROOT / row["workload.arrivals.trace"]).is_file() for row in table)


def test_the_outside_check_needs_a_setting_that_was_measured(tmp_path):
    spec = Spec(tmp_path, "a/b")
    spec.add("slora", 0, {"workload.adapters.ranks": "[8]", "workload.adapters.count": 7,
                          "workload.arrivals.trace": "mine.csv",
                          "workload.popularity.exponent": 1.0}, {})
    spec.write()
    with pytest.raises(ResultsError, match="none of its points is a setting of"):
        caraserve_a10g.runs(Results.load("a/b", tmp_path))


@pytest.mark.parametrize("hardware, backend, said", [
    ("A10-24G", "twin", True), ("A100-80G, A10-24G-fast-copies", "twin", True),
    ("A100-80G", "twin", False), ("A10-24G", "cuda", False)])
def test_figures_of_the_a10_say_how_far_it_was_checked(tmp_path, hardware, backend, said):
    spec = Spec(tmp_path, "a/b")
    spec.add("slora", 0, {}, {})
    spec.write(hardware=hardware, backend=backend)
    footer = style.footer_text(Results.load("a/b", tmp_path))
    assert ("checked against S-LoRA's own runs" in footer) == said


def test_s_loras_requests_are_what_the_script_writes():
    done = subprocess.run([sys.executable, str(ROOT / "data/slora_requests.py"), "--check"],
                          check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_s_loras_rows_are_what_the_script_writes(tmp_path):
    table = Path(os.environ.get("SERVELAB_DATA", "")) / "slora/benchmark_results_a10g.csv"
    if not table.is_file():
        pytest.skip("no slora/benchmark_results_a10g.csv under SERVELAB_DATA")
    done = subprocess.run([sys.executable, str(ROOT / "data/slora_rows.py"), "--table", str(table),
                           "--slora", str(tmp_path / "slora_a10g.csv"),
                           "--peft", str(tmp_path / "peft_a10g.csv")],
                          check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("slora_a10g.csv", "peft_a10g.csv"):
        assert (tmp_path / name).read_text() == (ROOT / "analysis/published" / name).read_text()


def test_fits_to_runs_change_what_they_name(tmp_path):
    def fit(*terms: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, str(ROOT / "data/fit_runs.py"), "--spec", "s.yaml", "--rows", "r.csv",
             *terms], check=False, capture_output=True, text=True)

    profile = "hardware/a10g-24g-s-lora.yaml"
    for term, said in ((f"{profile}:dense_usw", "has no number under such a key"),
                       (f"{profile}:lora_slot_us", "is 0, which no factor changes"),
                       ("hardware/none.yaml:dense_us", "there is no ")):
        done = fit("--term", term)
        assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1
    sys.path.insert(0, str(ROOT / "data"))
    try:
        term = __import__("fit_runs").Term(f"{profile}:*_adapter_us")
    finally:
        sys.path.pop(0)
    text = "a: 1\n  bgmv_adapter_us: 2  # note\n  bgmv_row_us: 3\n  einsum_adapter_us: 1.5e1\n"
    assert term.put(text, 2) == text.replace("2  #", "4  #").replace("1.5e1", "30")
