"""What `archive verify` proves and what it cannot: the table in results/README.md, line by line.
Whoever forges a result makes all checksums true again, and what follows from it up to a step."""
from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable

import h5py
import numpy as np
import pytest
from archive_testing import KEYS, SPEC, forge, packed, reseal
from conftest import ROOT, edited, unseal
from servelab_runs import SPEC as RUN, needs_servelab, run

from analysis import h5_file
from analysis.archive import checking, container, layout, packing, proving, recomputing
from analysis.archive.cli import main
from analysis.errors import ResultsError
from analysis.point import Point
from analysis.results import Results
from analysis.summary import derive

POINT = f"results/{SPEC}/points/{KEYS[4]}.h5"
COLLECTED = f"results/{SPEC}/collected.h5"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return packed(tmp_path_factory.mktemp("whole"), "small", seeds=range(1))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "changed"))


def refused(archive: Path, capfd, code: int = 2, options: tuple[str, ...] = ()) -> str:
    assert main(["verify", *options, str(archive)]) == code
    told = capfd.readouterr().err
    assert told.count("\n") == 1 and told.startswith("servelab: error: "), told
    return told


def halve(file: h5py.File) -> None:
    file["requests/last_token"][...] = file["requests/last_token"][()] // 2


def faster(file: h5py.File) -> None:
    """Every request gets its first token at once: possible stamps, that never were."""
    read = {name: file[f"requests/{name}"][()] for name in
            ("admitted", "first_token", "last_token")}
    done = file["requests/status"][()] == 1
    for name in ("last_token", "first_token"):
        file[f"requests/{name}"][...] = np.where(
            done, read[name] - (read["first_token"] - read["admitted"]), read[name])


@pytest.mark.parametrize("change, without, code, reason", [
    (halve, "digests", 2, "its content_digest is not that of its datasets"),
    (faster, "summaries", 2, "its /summary does not follow: "),
    (faster, "collected", 2, "is not the point that was collected"),
    (faster, "derived", 2, "does not say what the results do"),
    (faster, "pictures", 1, "is not what its results and the same code draw"),
    (halve, "", 2, "a request's stamps are not in order"),
])
def test_a_forged_result_is_refused(folder: Path, capfd, change, without: str, code: int,
                                    reason: str) -> None:
    """All that follows was made true again, but for one thing; or it never could have been."""
    forge(folder, change, without)
    assert main(["verify", str(folder)]) == code
    assert reason in capfd.readouterr().err


def test_what_was_carried_all_the_way_passes(folder: Path) -> None:
    """The line of the table that says what is not proved."""
    forge(folder, faster)
    assert main(["verify", str(folder)]) == 0


def column(name: str, value: float) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file[f"columns/{name}"][1] = value
    return change


def texts(name: str, index: int, value: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        held = [text.decode() for text in file[f"columns/{name}"][()]]
        held[index] = value
        del file[f"columns/{name}"]
        file[f"columns/{name}"] = held
    return change


def drop(name: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__delitem__(name)


@pytest.mark.parametrize("change, reason", [
    (column("summary.latency_per_token_mean_s", 0.001), "its column summary.latency_per_token"),
    (column("seed", 9), "its column seed is not what"),
    (column("sweep.workload.rate", 9), "its swept settings are not what"),
    (texts("technique", 0, "dlora"), "its label 'dlora' is not that of"),
    (texts("technique_id", 0, "dlora"), "its column technique_id is not what"),
    (texts("reasons", 0, "late"), "its column reasons is not what"),
    (texts("status", 0, "INVALID"), "its column status is not what"),
    (drop("columns/summary.ttft_p99_s"), "its metrics are not those of its points"),
    (lambda file: file.attrs.__setitem__("hardware", "B200"), "its hardware is not that of"),
])
def test_a_forged_collection_is_refused(whole: Path, tmp_path: Path, change,
                                        reason: str) -> None:
    root = Path(shutil.copytree(whole / "results", tmp_path / "results"))
    path = root / SPEC / "collected.h5"
    with edited(path) as file:
        change(file)
    if "hardware" not in reason:
        with pytest.raises(ResultsError, match="its content_digest is not that of its columns"):
            proving.check_collected(Results.load(SPEC, root))
    with edited(path) as file:
        file.attrs["content_digest"] = h5_file.content_digest(file)
    with pytest.raises(ResultsError, match=reason):
        proving.check_collected(Results.load(SPEC, root))


def attribute(name: str, value: Any) -> Callable[[h5py.File], None]:
    return lambda file: file.attrs.__setitem__(name, value)


def other_settings(file: h5py.File) -> None:
    text = file["spec/effective"][()].decode().replace('"rate": ', '"rate": 1')
    del file["spec/effective"]
    file["spec/effective"] = text


def metric(name: str, factor: float) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file["summary"].attrs[name] = factor * file["summary"].attrs[name] + (factor == 0)
    return change


@pytest.mark.parametrize("change, reason", [
    (other_settings, "its key is not that of its settings, sources and build"),
    (attribute("build_id", "f" * 16), "its key is not that of"),
    (attribute("technique", "peft"), "its technique is 'peft', its settings say"),
    (attribute("backend", "cuda"), "its backend is 'cuda', its settings say 'twin'"),
    (attribute("hardware", "B200"), "its hardware is 'B200', its settings say"),
    (attribute("model", "GPT-9"), "its model is 'GPT-9', its settings say"),
    (attribute("reasons", "it lagged"), "its status 'VALID' is not that of its reasons"),
    *((metric(name, 0.5), f"{name} is ") for name in (
        "duration_s", "itl_mean_s", "itl_p99_s", "ttft_p50_s", "tpot_p90_s", "queueing_p95_s",
        "latency_mean_s", "requests_per_s", "output_tokens_per_s", "requests_finished", "steps",
        "load_wait_time_s", "swap_time_s", "lora_time_per_step_s", "adapter_loads")),
    *((metric(name, 0), f"{name} is ") for name in (
        "preemptions", "migrations", "rebalances", "solver_time_s", "arrival_lag_max_s")),
])
def test_a_point_that_says_other_than_it_holds_is_refused(whole: Path, tmp_path: Path, change,
                                                          reason: str) -> None:
    path = Path(shutil.copy(whole / POINT, tmp_path))
    proving.check_point(Point(path, ""))
    with edited(path) as file:
        change(file)
        file.attrs["content_digest"] = h5_file.content_digest(file)
    with pytest.raises(ResultsError, match=reason):
        proving.check_point(Point(path, ""))


def test_a_file_without_its_checksum_line_is_damaged(folder: Path, capfd) -> None:
    for name in (POINT, COLLECTED):
        unseal(folder / name)
        reseal(folder)
        told = refused(folder, capfd)
        assert f"'{name}' damaged: it does not end in the checksum that servelab writes" in told
        h5_file.seal(folder / name)
        (folder / name).write_bytes((folder / name).read_bytes() + b" ")
        reseal(folder)
        assert f"'{name}' damaged" in refused(folder, capfd)
        (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    reseal(folder)
    assert main(["verify", str(folder)]) == 0


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    """Two key pairs, `ada` and `eve`."""
    at = tmp_path_factory.mktemp("keys")
    for name in ("ada", "eve"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", at / name],
                       check=True)
    return at


@pytest.mark.parametrize("name", ["signed", "signed.tar.zst"])
def test_signatures_say_whose_results_these_are(tmp_path: Path, keys: Path, capfd,
                                                name: str) -> None:
    plain = packed(tmp_path, "plain")
    packing.pack([SPEC], tmp_path / "results of plain", tmp_path / name, key=keys / "ada")
    archive = tmp_path / name
    assert main(["verify", "--signer", str(keys / "ada.pub"), str(archive)]) == 0
    assert "signed by SHA256:" in capfd.readouterr().out
    assert main(["verify", str(archive)]) == 0
    assert "whoever that is; --signer names whom you trust" in capfd.readouterr().out
    (tmp_path / "allowed").write_text("# whom I trust\nada@example.org "
                                      + (keys / "ada.pub").read_text())
    assert main(["verify", "--signer", str(tmp_path / "allowed"), str(archive)]) == 0
    assert "signed by 'ada@example.org', SHA256:" in capfd.readouterr().out
    assert "who is not in" in refused(archive, capfd, 2, ("--signer", str(keys / "eve.pub")))
    assert "is not signed" in refused(plain, capfd, 2, ("--signer", str(keys / "ada.pub")))
    assert "holds no public key" in refused(archive, capfd, 2, ("--signer", str(keys / "ada")))
    assert "cannot be read" in refused(archive, capfd, 2, ("--signer", str(keys / "absent")))
    assert main(["unpack", str(archive), "--out", str(tmp_path / "again")]) == (
        0 if name.endswith(".zst") else 2)


def test_a_changed_archive_is_no_longer_signed(tmp_path: Path, keys: Path, capfd) -> None:
    packed(tmp_path, "plain")
    folder = tmp_path / "signed"
    packing.pack([SPEC], tmp_path / "results of plain", folder, key=keys / "ada")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    forge(folder, faster)
    told = refused(folder, capfd)
    assert f"{layout.SIGNATURE} is not a signature of {layout.MANIFEST}" in told
    for path, content in before.items():
        path.write_bytes(content)
    for content in (b"", b"x" * 200, before[folder / layout.SIGNATURE][:-40]):
        (folder / layout.SIGNATURE).write_bytes(content)
        assert "is not a signature" in refused(folder, capfd)
    (folder / layout.SIGNATURE).write_bytes(b"x" * 100_000)
    assert "larger than any signature" in refused(folder, capfd)


def test_packing_with_no_key_leaves_nothing(tmp_path: Path, capfd) -> None:
    packed(tmp_path, "plain")
    root = ["--results", str(tmp_path / "results of plain"), "--out", str(tmp_path / "x")]
    assert main(["pack", SPEC, *root, "--sign", str(tmp_path / "absent")]) == 2
    assert "no such key" in capfd.readouterr().err
    (tmp_path / "text").write_text("no key")
    assert main(["pack", SPEC, *root, "--sign", str(tmp_path / "text")]) == 2
    assert "cannot sign: " in capfd.readouterr().err and not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def of_a_run(tmp_path_factory) -> Path:
    """An archive of four points that servelab ran."""
    at = tmp_path_factory.mktemp("run")
    run(at, {**RUN, "sweep": {"workload.arrivals.rate": [6, 12]}}, "mine")
    packing.pack(["mine"], at / "results", at / "archive")
    return at / "archive"


@needs_servelab
def test_runs_are_computed_again(of_a_run: Path, tmp_path: Path, capfd) -> None:
    assert main(["verify", "--recompute", "2", str(of_a_run)]) == 0
    assert "2 points computed again, the same results: mine row " in capfd.readouterr().out
    assert main(["verify", "--recompute", "9", str(of_a_run)]) == 0
    assert "4 points computed again" in capfd.readouterr().out
    forged = Path(shutil.copytree(of_a_run, tmp_path / "forged"))
    forge(forged, faster)
    assert main(["verify", str(forged)]) == 0  # all of it follows; it was never so
    capfd.readouterr()
    told = refused(forged, capfd, 1, ("--recompute", "1"))
    assert re.search(r"row \d, computed again by the same build, is another result: '\w+' is ",
                     told)


@needs_servelab
def test_measured_points_are_not_computed_again(of_a_run: Path, tmp_path: Path, capfd) -> None:
    measured = Path(shutil.copytree(of_a_run, tmp_path / "measured"))

    def deliver(file: h5py.File) -> None:
        for name in ("at", "kind", "subject"):
            file[f"delivered/{name}"] = np.zeros(0, dtype=np.int64)
        file["delivered/kind"].attrs["codes"] = ["arrival"]

    forge(measured, deliver)
    assert main(["verify", str(measured)]) == 0
    told = refused(measured, capfd, 2, ("--recompute", "1"))
    assert "measured on a real engine, which gives no two runs alike" in told


def test_what_a_cut_off_run_leaves_open(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(whole / POINT, tmp_path))
    with edited(path) as file:
        file["requests/status"][-1] = 0
        for name in ("first_token", "last_token", "admitted"):
            file[f"requests/{name}"][-1] = -1
        summary = dict(file["summary"].attrs)
    derived = derive.derive(Point(path, ""))
    low, high = derived.bounds["duration_s"]
    assert 0 < low <= summary["duration_s"] and high == float("inf")
    low, high = derived.bounds["itl_mean_s"]
    assert low < summary["itl_mean_s"] < high < 1.017 * low
    assert "duration_s" not in derived.exact and "itl_mean_s" not in derived.exact


def test_what_nothing_follows_from(folder: Path) -> None:
    def change(file: h5py.File) -> None:
        file.attrs["decision_hash"] = "0" * 16
        file.attrs["notes"] = file.attrs["declares"] = "another"
        del file["context"]
        file["context"] = '{"servelab": "9.9", "processor": "abacus"}'

    forge(folder, change)
    assert main(["verify", str(folder)]) == 0


@needs_servelab
def test_points_are_chosen_at_random(of_a_run: Path) -> None:
    with checking.opened(of_a_run) as archive:
        assert recomputing.rows(archive) == [("mine", row) for row in range(4)]
    chosen = {tuple(random.SystemRandom().sample(range(4), 1)) for _ in range(100)}
    assert len(chosen) == 4


@needs_servelab
def test_what_cannot_be_computed_again_is_said(of_a_run: Path, tmp_path: Path, capfd,
                                               monkeypatch) -> None:
    monkeypatch.setenv("SERVELAB", str(tmp_path / "absent"))
    assert "no such program" in refused(of_a_run, capfd, 2, ("--recompute", "1"))
    for bad in ("0", "-1", "x", "1.5"):
        assert main(["verify", "--recompute", bad, str(of_a_run)]) == 2
        assert "no number of points" in capfd.readouterr().err


def test_the_table_says_what_these_tests_show() -> None:
    """Each line of the README's table names a test that is here."""
    text = (ROOT / "results/README.md").read_text()
    table = text[text.index("| who changes | is told by |"):].split("\n\n")[0]
    named = set(re.findall(r"`(test_\w+)`", table))
    here = {name for name in globals() if name.startswith("test_")}
    assert len(named) >= 10 and named <= here


def test_limits(whole: Path, tmp_path: Path, capfd) -> None:
    file = tmp_path / "x.tar.zst"
    container.write_file(whole, file)
    for archive in (whole, file):
        assert "the limit " in refused(archive, capfd, 2, ("--limit", "100k"))
        assert main(["verify", "--limit", "1G", str(archive)]) == 0
    capfd.readouterr()
    for bad in ("0", "-1", "1.5G", "x", "1GG", ""):
        assert main(["verify", f"--limit={bad}", str(whole)]) == 2
        assert "is no size, such as 500M" in capfd.readouterr().err
