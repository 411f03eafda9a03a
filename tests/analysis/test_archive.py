"""servelab archive: what goes in comes out, each time the same, and as the standard has it."""
from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest
from archive_testing import (
    KEYS, SPEC, YAML, copy, describe_again, effective, packed, reseal, small_results, tree)
from conftest import edited

from analysis import draw
from analysis.archive import checking, layout, packing
from analysis.archive.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_unpacked_results_are_the_packed_ones(tmp_path: Path, capfd) -> None:
    archive = packed(tmp_path, "small.tar.zst")
    assert main(["unpack", str(archive), "--out", str(tmp_path / "again")]) == 0
    results, again = tmp_path / "results of small.tar.zst", tmp_path / "again"
    for path in results.rglob("*.h5"):
        assert (again / "results" / path.relative_to(results)).read_bytes() == path.read_bytes()
    assert (again / f"specs/{SPEC}.yaml").read_text() == YAML
    settings = json.loads((again / f"settings/{SPEC}.json").read_text())
    assert len(settings) == 16 and settings[0]["effective"] == json.loads(effective("slora", 1, 0))
    assert settings[0]["requested"]["rate"] == 1 and settings[0]["context"]["wall_s"] == 0.25
    draw.draw(SPEC, results)
    for name in ("small.png", "small.pdf", "table.txt"):
        assert (again / f"results/{SPEC}/{name}").read_bytes() == \
            (results / SPEC / name).read_bytes()
    subprocess.run(["sha256sum", "--quiet", "-c", layout.MANIFEST], cwd=again, check=True)
    listed = {line.split("  ")[1] for line in (again / layout.MANIFEST).read_text().splitlines()}
    assert listed == set(layout.files_in(again, again)) - {layout.MANIFEST}
    # The folder that was unpacked is an archive too, and the same one as a folder that was packed.
    packing.pack([SPEC], results, tmp_path / "folder")
    assert tree(again) == tree(tmp_path / "folder")
    capfd.readouterr()
    assert main(["list", str(again), "--files"]) == 0
    shown = capfd.readouterr().out
    assert f"{SPEC}: 16 points; slora, dlora; seeds 4" in shown and "collected.h5" in shown


def test_packing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    small_results(tmp_path / "results")
    for name in ("a.tar.zst", "other name.tar.zst"):
        packing.pack([SPEC], tmp_path / "results", tmp_path / name)
        for path in (tmp_path / "results").rglob("*.h5"):
            os.utime(path, (1, 1))  # times are not packed
        (tmp_path / "results" / SPEC / "points/of-an-older-run.h5").write_bytes(b"")
    first, second = ((tmp_path / n).read_bytes() for n in ("a.tar.zst", "other name.tar.zst"))
    assert first == second


def test_several_specs_and_their_verdicts(tmp_path: Path) -> None:
    root = tmp_path / "results"
    for spec_id in ("mine/a", "mine/b", "mine/c"):
        small_results(root, spec_id, seeds=range(1))
    (root / "verdicts.csv").write_text("claim,spec,verdict\nc1,mine/a,holds\n"
                                       "c2,mine/d,holds\nc3,mine/c,fails\n")
    packing.pack(["mine/a", "mine/c"], root, tmp_path / "two.tar.zst")
    with checking.opened(tmp_path / "two.tar.zst") as archive:
        assert archive.spec_ids == ["mine/a", "mine/c"]
        assert (archive.folder / "claims/verdicts.csv").read_text() == \
            "claim,spec,verdict\nc1,mine/a,holds\nc3,mine/c,fails\n"
    assert main(["verify", str(tmp_path / "two.tar.zst")]) == 0


def test_verify_redraws_without_network_or_what_was_run(tmp_path: Path, monkeypatch, capfd) -> None:
    archive = packed(tmp_path, "small.tar.zst")
    before = tree(tmp_path)
    monkeypatch.setattr(socket, "socket", None)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["verify", str(archive), str(archive)]) == 0
    shown = capfd.readouterr().out
    assert shown.count(f"{SPEC}: drawn again, the same bytes: small.pdf, small.png, table.txt") == 2
    (tmp_path / "elsewhere").rmdir()
    assert tree(tmp_path) == before


def test_a_picture_that_the_results_do_not_draw_fails(tmp_path: Path, capfd) -> None:
    folder = packed(tmp_path)
    picture = folder / f"results/{SPEC}/small.png"
    picture.write_bytes((folder / f"results/{SPEC}/small.pdf").read_bytes())
    reseal(folder)
    assert main(["verify", str(folder)]) == 2  # its size is in the metadata too
    assert "'ro-crate-metadata.json' does not say" in capfd.readouterr().err
    picture.write_bytes(bytes(len(picture.read_bytes())))
    facts = json.loads((folder / layout.FACTS).read_text())
    describe_again(folder, facts)
    assert main(["verify", str(folder)]) == 1
    told = capfd.readouterr().err
    assert "small.png is not what its results and the same code draw" in told
    facts["drawn_with"]["matplotlib"] = "3.0"
    describe_again(folder, facts)
    assert main(["verify", str(folder)]) == 0
    assert "small.png differ (matplotlib 3.0 there" in capfd.readouterr().out


def test_make_figures_from_an_archive_runs_nothing(tmp_path: Path) -> None:
    archive = packed(tmp_path, "small.tar.zst")
    for goal in ("figures", f"figures/{SPEC}"):
        out = tmp_path / goal.replace("/", "-")
        shown = subprocess.run(
            ["make", "-o", "python", goal, f"FROM={archive}", f"OUT={out}", "BUILD=/nonexistent",
             "SERVELAB=/bin/false", f"PYTHON={sys.executable}"], cwd=ROOT, text=True,
            capture_output=True, timeout=120, check=False)
        assert shown.returncode == 0, shown.stderr
        assert f"Drawn in {out}:" in shown.stdout
        with checking.opened(archive) as opened:
            for name in ("small.png", "small.pdf", "table.txt"):
                packed_file = opened.folder / "results" / SPEC / name
                assert (out / SPEC / name).read_bytes() == packed_file.read_bytes()
    shown = subprocess.run(["make", "-o", "python", "figures/no/such", f"FROM={archive}",
                            f"PYTHON={sys.executable}"], cwd=ROOT, text=True, capture_output=True,
                           timeout=120, check=False)
    assert shown.returncode != 0 and f"holds no no/such; it holds {SPEC}" in shown.stderr


@pytest.fixture
def offline_context(monkeypatch) -> None:
    """RO-Crate's JSON-LD context, as the rocrate package carries it, in place of the network's."""
    from requests import Response
    from rocrate_validator.utils.http import HttpRequester
    response = Response()
    response.status_code = 200
    response.headers["Content-Type"] = "application/ld+json"
    response._content = files("rocrate").joinpath("data/ro-crate.jsonld").read_bytes()

    def get(_: object, url: str, **__: object) -> Response:
        assert url == "https://w3id.org/ro/crate/1.1/context"
        return response

    monkeypatch.setattr(HttpRequester, "get", get, raising=False)


def test_metadata_are_ro_crate(tmp_path: Path, offline_context) -> None:
    from rocrate.rocrate import ROCrate
    from rocrate_validator import models, services
    small_results(tmp_path / "results", "mine/with space")
    packing.pack(["mine/with space"], tmp_path / "results", tmp_path / "crate", title="A title",
                 authors=["Ada Lovelace <https://orcid.org/0000-0002-1825-0097>", "No Link"])

    def issues() -> list[str]:
        outcome = services.validate(services.ValidationSettings(
            rocrate_uri=str(tmp_path / "crate"), profile_identifier="ro-crate-1.1",
            requirement_severity=models.Severity.REQUIRED))
        return [issue.message for issue in outcome.get_issues()]

    assert issues() == []
    crate = ROCrate(str(tmp_path / "crate"))
    assert crate.name == "A title" and str(crate.datePublished).startswith("2026-01-02")
    assert {entity["name"] for entity in crate.data_entities} == \
        set(layout.files_in(tmp_path / "crate", tmp_path)) - {layout.CRATE}
    metadata = json.loads((tmp_path / "crate" / layout.CRATE).read_text())
    del metadata["@graph"][1]["license"]
    (tmp_path / "crate" / layout.CRATE).write_text(json.dumps(metadata))
    assert any("license" in text for text in issues())  # so it does look


def test_requests_that_cannot_be_packed(tmp_path: Path, capfd) -> None:
    root = tmp_path / "results"
    collected = small_results(root)
    (tmp_path / "there").mkdir()
    before = tree(tmp_path)

    def refused(*arguments: str) -> str:
        assert main(["pack", *arguments, "--results", str(root)]) == 2
        assert tree(tmp_path) == before
        told = capfd.readouterr().err
        assert told.count("\n") == 1 and told.startswith("servelab: error: ")
        return told

    assert "there: is there already" in refused(SPEC, "--out", str(tmp_path / "there"))
    assert "no folder" in refused(SPEC, "--out", str(tmp_path / "absent/x"))
    assert "folders or end in .tar.zst" in refused(SPEC, "--out", str(tmp_path / "x.zip"))
    assert "would lie outside" in refused("../results/mine", "--out", str(tmp_path / "x"))
    assert "collected.h5: no such file" in refused("mine/other", "--out", str(tmp_path / "x"))
    (root / SPEC / ".lock").touch()
    before = tree(tmp_path)
    with (root / SPEC / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "in use by a servelab run" in refused(SPEC, "--out", str(tmp_path / "x"))
    with edited(collected.parent / f"points/{KEYS[3]}.h5") as point:
        point.attrs["content_digest"] = "another run's"
    before = tree(tmp_path)
    assert f"{KEYS[3]}.h5: is not the point that was collected" in refused(
        SPEC, "--out", str(tmp_path / "x.tar.zst"))
    assert main(["pack", SPEC]) == 2 and "--out" in capfd.readouterr().err
    assert main(["unpack"]) == 2 and main(["wrap"]) == 2


@pytest.mark.parametrize("verb", ["pack", "unpack"])
def test_a_kill_leaves_nothing_under_the_final_name(tmp_path: Path, verb: str) -> None:
    """Killed at many moments; then the same command finishes, and removes what was left."""
    archive = packed(tmp_path, "small.tar.zst")
    work = tmp_path / "work"
    work.mkdir()
    target = work / ("out.tar.zst" if verb == "pack" else "out")
    command = [sys.executable, "-m", "analysis.archive"] + (
        ["pack", SPEC, "--results", str(tmp_path / "results of small.tar.zst")] if verb == "pack"
        else ["unpack", str(archive)]) + ["--out", str(target)]
    killed_inside = 0
    for files_first in (0, 8, 17, 20, 23, 25):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        while process.poll() is None and _count_in_workspaces(work) <= files_first:
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if target.exists():
            with checking.opened(target) as opened:
                assert opened.spec_ids == [SPEC]
            target.unlink() if target.is_file() else shutil.rmtree(target)
        elif any(work.iterdir()):
            killed_inside += 1
    assert killed_inside >= 3
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with checking.opened(target) as opened:
        assert opened.spec_ids == [SPEC]
    assert [path.name for path in work.iterdir()] == [target.name]


def _count_in_workspaces(folder: Path) -> int:
    return sum(len(names) for at, _, names in os.walk(folder) if ".servelab-tmp" in at)


def test_a_stop_signal_leaves_nothing(tmp_path: Path) -> None:
    small_results(tmp_path / "results")
    (tmp_path / "work").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "analysis.archive", "pack", SPEC, "--results",
         str(tmp_path / "results"), "--out", str(tmp_path / "work/out")], cwd=ROOT)
    while process.poll() is None and not _count_in_workspaces(tmp_path / "work"):
        time.sleep(0.001)
    process.terminate()
    assert process.wait() == 128 + signal.SIGTERM
    assert not list((tmp_path / "work").iterdir())


def test_two_at_once_do_not_meet(tmp_path: Path) -> None:
    """A workspace that is in use is not stale."""
    from analysis.archive import container
    with container.workspace(tmp_path / "out") as one:
        with container.workspace(tmp_path / "out") as other:
            assert one.is_dir() and other.is_dir() and one != other
        assert one.is_dir() and not other.exists()


def test_copies_of_the_folder_are_the_archive(tmp_path: Path) -> None:
    folder = packed(tmp_path)
    assert checking.examine(copy(folder, "copy"), folder).sha256 == \
        checking.examine(folder, folder).sha256


def test_the_reference_archive_is_whole_and_small(capfd) -> None:
    """It was packed by an earlier build; its results can be read and drawn by this one."""
    reference = ROOT / "results/reference/dlora/fig10.tar.zst"
    assert reference.stat().st_size < 1_000_000
    assert main(["verify", str(reference)]) == 0
    assert "dlora/fig10: drawn again" in capfd.readouterr().out
