"""servelab archive diff: changes beyond noise are told, noise is not."""
from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from archive_testing import SPEC, packed as packed_of, plain_results
from conftest import edited
from scipy import stats as sps

from analysis import stats
from analysis.archive import comparing, packing
from analysis.archive.cli import main


def packed(folder: Path, name: str, factor=lambda t, p, s: 1.0) -> Path:
    return packed_of(folder, name, factor, plain_results)


def noise(seed: int, spread: float) -> float:
    return float(np.random.default_rng([99, seed]).normal(1, spread))


def diff(a: Path, b: Path, capfd) -> tuple[int, str]:
    capfd.readouterr()
    code = main(["diff", str(a), str(b)])
    shown = capfd.readouterr()
    assert not shown.err, shown.err
    return code, shown.out


def test_equal_results_have_no_differences(tmp_path: Path, capfd) -> None:
    a, b = packed(tmp_path, "a"), packed(tmp_path, "b.tar.zst")
    code, shown = diff(a, b, capfd)
    assert code == 0 and "16 points in both" in shown
    assert "0 metrics moved beyond noise, 0 within it, 8 the same" in shown


def test_a_change_beyond_noise_is_told_and_one_within_is_not(tmp_path: Path, capfd) -> None:
    """dLoRA at 4 is 20 % slower in every seed; all else differs by 1 % of noise around nothing."""
    def factor(technique: str, position: int, seed: int) -> float:
        own = {"slora": 0, "dlora": 10}[technique] + position
        centre = np.mean([noise(s + 100 * own, 0.01) for s in range(4)])
        planted = 1.2 if (technique, position) == ("dlora", 4) else 1 / centre
        return planted * noise(seed + 100 * own, 0.01)

    a, b = packed(tmp_path, "a.tar.zst"), packed(tmp_path, "b", factor)
    code, shown = diff(a, b, capfd)
    assert code == 1
    moved = [line.split("moved")[1].strip() for line in shown.splitlines() if " moved  " in line]
    assert [line.split(":")[0] for line in moved] == [
        "latency_per_token_mean_s of dlora rate=4", "latency_per_token_p90_s of dlora rate=4"]
    assert all("(+2" in line and "4 seeds" in line for line in moved)  # 20 %, and its noise
    assert "2 metrics moved beyond noise, 6 within it, 0 the same" in shown
    # Planted within the noise: 0.1 % where seeds differ by 5 %.
    c = packed(tmp_path, "c", lambda t, p, s: 1.001 * [0.95, 1.05, 0.97, 1.03][s])
    code, shown = diff(a, c, capfd)
    assert code == 0 and "0 metrics moved beyond noise, 8 within it" in shown


def test_pairing_sees_what_unpaired_noise_would_hide(tmp_path: Path, capfd) -> None:
    """Seeds differ by 10 %; 3 % more in each of them is beyond noise."""
    a = packed(tmp_path, "a")
    b = packed(tmp_path, "b", lambda t, p, s: 1.03 * noise(s, 0.002))
    code, shown = diff(a, b, capfd)
    assert code == 1 and "8 metrics moved beyond noise" in shown


def test_many_noisy_metrics_seldom_give_an_alarm() -> None:
    """With no change at all, 95 % intervals alone would alarm 5 times in 100."""
    rng, alarms, alone = np.random.default_rng(5), 0, 0
    for _ in range(200):
        one = comparing.SpecDiff("x")
        for number in range(50):
            a, b = rng.normal(1, 0.1, (2, 5))
            one.changes.append(comparing.Change(str(number), ("t", ()), 1, 1,
                                                stats.difference_ci(b, a)))
        comparing.judge([one])
        alarms += bool(one.moved)
        alone += sum(c.difference.low > 0 or c.difference.high < 0 for c in one.changes)
    assert 400 < alone < 600  # of 10,000: so the data have the noise that is claimed
    assert alarms <= 20       # 5 % of the 200 diffs, and room for chance


def test_p_values_are_those_of_the_paired_t_test() -> None:
    rng = np.random.default_rng(3)
    for n in (2, 3, 10):
        a, b = rng.normal(1, 0.1, (2, n))
        assert stats.t_p_value(stats.difference_ci(b, a)) == pytest.approx(
            sps.ttest_rel(b, a).pvalue, rel=1e-9)
    assert stats.t_p_value(stats.difference_ci([2, 2], [1, 1])) == 0
    assert stats.t_p_value(stats.difference_ci([1, 1], [1, 1])) == 1


def test_one_seed_tells_nothing_of_noise(tmp_path: Path, capfd) -> None:
    for name, factor in (("a", 1.0), ("b", 2.0)):
        plain_results(tmp_path / name, factor=lambda t, p, s: factor, seeds=range(1))
        packing.pack([SPEC], tmp_path / name, tmp_path / f"{name}.tar.zst")
    code, shown = diff(tmp_path / "a.tar.zst", tmp_path / "b.tar.zst", capfd)
    assert code == 0 and "8 differ with one seed" in shown and "(+100 %" in shown


def test_what_is_lost_and_what_is_new(tmp_path: Path, capfd) -> None:
    for name, seeds in (("a", range(4)), ("b", range(1, 5))):
        collected = plain_results(tmp_path / name, seeds=seeds)
        plain_results(tmp_path / name, f"mine/only_{name}")
        if name == "b":
            with edited(collected) as file:
                del file["columns/summary.latency_per_token_p90_s"]
                values = file["columns/summary.latency_per_token_mean_s"]
                values[0] = np.nan
                status = [text.decode() for text in file["columns/status"][()]]
                del file["columns/status"]
                file["columns/status"] = ["INVALID", *status[1:]]
                file["columns/summary.latency_per_token_p90_s"] = 2 * values[()]
                file["columns/summary.more_s"] = values[()]
            key = "k0002"  # same content, other settings
            with edited(collected.parent / f"points/{key}.h5") as point:
                del point["spec/effective"]
                point["spec/effective"] = json.dumps({"rate": 1, "engine": {"max_batch": 8}})
                point.attrs["key"] = "other"
            (collected.parent / f"points/{key}.h5").rename(collected.parent / "points/other.h5")
            with edited(collected) as file:
                for column, old, new in (("key", key, "other"),
                                         ("file", f"points/{key}.h5", "points/other.h5")):
                    texts = [text.decode().replace(old, new) for text in file[f"columns/{column}"]]
                    del file[f"columns/{column}"]
                    file[f"columns/{column}"] = texts
                del file[f"points/{key}"]
                file["points/other"] = h5py.ExternalLink("points/other.h5", "/")
        packing.pack([SPEC, f"mine/only_{name}"], tmp_path / name, tmp_path / f"{name}.tar.zst")
    code, shown = diff(tmp_path / "a.tar.zst", tmp_path / "b.tar.zst", capfd)
    assert code == 1 and "12 points in both" in shown
    for text in ("mine/only_a: only in", "mine/only_b: only in",
                 "lost     slora workload.rate=1: seed 0\n",
                 "new      dlora workload.rate=4: seed 4",
                 "lost     slora workload.rate=1: seed 1 is INVALID, was VALID",
                 "latency_per_token_mean_s of slora workload.rate=1: 1 of 3 seeds",
                 "new      metric more_s", "setting  engine.max_batch (none) -> 8 (1 points)"):
        assert text in shown, text


def test_archives_without_a_common_spec(tmp_path: Path, capfd) -> None:
    plain_results(tmp_path / "results", "mine/other")
    packing.pack(["mine/other"], tmp_path / "results", tmp_path / "b")
    assert main(["diff", str(packed(tmp_path, "a")), str(tmp_path / "b")]) == 2
    assert f"holds no spec of {tmp_path / 'a'}, which holds {SPEC}" in capfd.readouterr().err
