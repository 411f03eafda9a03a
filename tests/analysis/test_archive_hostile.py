"""Archives that are cut short, changed, newer, or made to do harm: each refused with the file and
the reason, and with nothing left behind."""
from __future__ import annotations

import json
import os
import random
import shutil
import tarfile
from pathlib import Path
from typing import Callable

import h5py
import numpy as np
import pytest
import zstandard
from archive_testing import (
    KEYS, SPEC, copy, members_of, packed, reseal, tar_of, tree, write_tar_zst)
from conftest import edited

from analysis.archive import checking, container, contents, layout
from analysis.archive.cli import main
from analysis.figures import generic

POINT = f"results/{SPEC}/points/{KEYS[5]}.h5"
COLLECTED = f"results/{SPEC}/collected.h5"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """One archive as a folder and, beside it, as a file; tests copy what they change."""
    folder = packed(tmp_path_factory.mktemp("whole"), "small")
    container.write_file(folder, folder.parent / "small.tar.zst")
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "changed"))


def refused(archive: Path, capfd, *verbs: str) -> str:
    """What is said; nothing is left, and no verb accepts the archive."""
    before = tree(archive.parent)
    told = ""
    for verb in verbs or ("verify", "list"):
        extra = ["--out", str(archive.parent / "unpacked")] if verb == "unpack" else []
        assert main([verb, str(archive), *extra]) == 2
        told = capfd.readouterr().err
        for line in told.splitlines():
            assert line.startswith(f"servelab: error: {archive}: "), line
    assert told and tree(archive.parent) == before
    return told


def refused_file(path: Path, capfd) -> str:
    told = refused(path, capfd, "verify", "list", "unpack")
    assert told.count("\n") == 1
    return told


def test_one_flipped_bit_in_each_file(whole: Path, folder: Path, capfd) -> None:
    rng = random.Random(1)
    names = list(layout.files_in(folder, folder))
    assert len(names) == 25
    for name in names:
        content = (whole / name).read_bytes()
        for _ in range(3):
            at, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
            changed = bytearray(content)
            changed[at] ^= bit
            (folder / name).write_bytes(changed)
            told = refused(folder, capfd)
            assert name in told or name == layout.MANIFEST, told
        (folder / name).write_bytes(content)
    assert main(["verify", str(folder)]) == 0


def test_missing_and_extra_files(whole: Path, folder: Path, capfd) -> None:
    for name in layout.files_in(whole, whole):
        (folder / name).unlink()
        told = refused(folder, capfd)
        assert name in told and told.count("\n") == 1
        (folder / name).write_bytes((whole / name).read_bytes())
    for name in ("more.txt", f"results/{SPEC}/points/k9999.h5", "empty/x"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
        assert f"'{name}' is not in manifest-sha256.txt" in refused(folder, capfd)
        (folder / name).unlink()
    (folder / POINT).unlink()
    (folder / "more.txt").touch()
    assert len(refused(folder, capfd).splitlines()) == 2  # each is named


def test_cut_short_anywhere(whole: Path, tmp_path: Path, capfd) -> None:
    content = (whole.parent / "small.tar.zst").read_bytes()
    ends = {*range(0, 12), *range(12, len(content), max(1, len(content) // 60)),
            *range(len(content) - 12, len(content))}
    path = tmp_path / "cut.tar.zst"
    for end in sorted(ends):
        path.write_bytes(content[:end])
        told = refused_file(path, capfd)
        assert "cut short" in told or (end < 4 and "is no servelab archive" in told), (end, told)
    for more in (b"\0", content):
        path.write_bytes(content + more)
        assert "goes on after its end" in refused_file(path, capfd)


def test_a_tar_file_cut_short_inside_a_whole_frame(whole: Path, tmp_path: Path, capfd) -> None:
    text = tar_of(members_of(whole))
    path = tmp_path / "cut.tar.zst"
    for end in (0, 100, 512, 600, 5_000, len(text) // 2, len(text) // 512 // 2 * 512):
        path.write_bytes(zstandard.ZstdCompressor().compress(text[:end]))
        assert "cut short" in refused_file(path, capfd)
    write_tar_zst(path, members_of(whole))
    assert main(["list", str(path)]) == 0  # so it is refused for what is missing below
    capfd.readouterr()
    for left_out in (layout.MANIFEST, POINT):
        write_tar_zst(path, [m for m in members_of(whole) if not m[0].endswith(left_out)])
        told = refused_file(path, capfd)
        assert left_out in told or "declares 23 files" in told


def test_any_flipped_bit_of_the_file_is_refused_or_without_effect(
        whole: Path, tmp_path: Path, capfd) -> None:
    content = (whole.parent / "small.tar.zst").read_bytes()
    rng, path, without_effect = random.Random(2), tmp_path / "flipped.tar.zst", 0
    for at in {*range(24), *range(24, len(content), len(content) // 100)}:
        changed = bytearray(content)
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        if main(["unpack", str(path), "--out", str(tmp_path / "out")]) == 0:
            assert tree(tmp_path / "out") == tree(whole)
            without_effect += 1
            shutil.rmtree(tmp_path / "out")
        assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert without_effect <= 3  # of the frame's header: the size of its window
    capfd.readouterr()


def test_newer_schemas(whole: Path, folder: Path, tmp_path: Path, capfd) -> None:
    facts = json.loads((folder / layout.FACTS).read_text())
    (folder / layout.FACTS).write_text(layout.json_text({**facts, "schema": 3, "new": [1]}))
    reseal(folder)
    expected = "archive.json has schema 3, this servelab reads up to 2; use a newer servelab"
    assert expected in refused(folder, capfd)
    path = write_tar_zst(tmp_path / "newer.tar.zst", members_of(folder))
    assert expected in refused_file(path, capfd)
    for schema in (0, "1", None, True):
        (folder / layout.FACTS).write_text(layout.json_text({**facts, "schema": schema}))
        assert "no schema number" in refused(folder, capfd)
    (folder / layout.FACTS).write_text("[" * 100_000)
    assert "is not JSON" in refused(folder, capfd)
    (folder / layout.FACTS).write_text(layout.json_text(facts))
    with edited(folder / POINT) as point:
        point.attrs["schema"] = contents.RESULT_SCHEMA + 1
    reseal(folder)
    assert f"has result schema {contents.RESULT_SCHEMA + 1}" in refused(folder, capfd)


HARMFUL = [
    ("servelab-archive/../../escaped", tarfile.REGTYPE, "", "would lie outside"),
    ("../escaped", tarfile.REGTYPE, "", "would lie outside"),
    ("/tmp/escaped", tarfile.REGTYPE, "", "absolute path"),
    ("servelab-archive//escaped", tarfile.REGTYPE, "", "no plain path"),
    ("servelab-archive/./escaped", tarfile.REGTYPE, "", "no plain path"),
    ("servelab-archive/..\\escaped", tarfile.REGTYPE, "", "characters"),
    ("servelab-archive/a\nb", tarfile.REGTYPE, "", "characters"),
    ("elsewhere/escaped", tarfile.REGTYPE, "", "not what servelab writes"),
    ("servelab-archive/link", tarfile.SYMTYPE, "/etc", "is a link"),
    ("servelab-archive/link", tarfile.SYMTYPE, "..", "is a link"),
    ("servelab-archive/link", tarfile.LNKTYPE, "/etc/passwd", "is a link"),
    ("servelab-archive/pipe", tarfile.FIFOTYPE, "", "no plain file"),
    ("servelab-archive/device", tarfile.CHRTYPE, "", "no plain file"),
    ("servelab-archive/folder", tarfile.DIRTYPE, "", "no plain file"),
    ("servelab-archive/" + "long/" * 50, tarfile.REGTYPE, "", "no plain path"),  # GNU's extension
    ("servelab-archive/archive.json", tarfile.REGTYPE, "", "is there twice"),
    ("servelab-archive/archive.json/below", tarfile.REGTYPE, "", "is there twice"),
]


@pytest.mark.parametrize("name, kind, link, reason", HARMFUL)
def test_harmful_members(whole: Path, tmp_path: Path, capfd, name: str, kind: bytes, link: str,
                         reason: str) -> None:
    members = members_of(whole)
    facts = json.loads(members[0][1])
    facts["holds"]["files"] += 1  # so that only the member itself is wrong
    members[0] = (members[0][0], layout.json_text(facts).encode(), *members[0][2:])
    members.insert(2, (name, b"", kind, link))
    path = write_tar_zst(tmp_path / "harmful.tar.zst", members)
    assert reason in refused_file(path, capfd)
    assert not (tmp_path.parent / "escaped").exists() and not Path("/tmp/escaped").exists()


def test_links_in_a_folder(folder: Path, tmp_path: Path, capfd) -> None:
    outside = tmp_path / "outside.h5"
    outside.write_bytes((folder / POINT).read_bytes())
    (folder / POINT).unlink()
    (folder / POINT).symlink_to(outside)
    assert f"'{POINT}' is a link" in refused(folder, capfd)
    (folder / POINT).unlink()
    os.mkfifo(folder / POINT)
    before = sorted(folder.parent.iterdir())
    assert main(["verify", str(folder)]) == 2 and sorted(folder.parent.iterdir()) == before
    assert "neither a plain file nor a folder" in capfd.readouterr().err
    (folder / POINT).unlink()
    (folder / POINT).write_bytes(outside.read_bytes())
    (folder / "settings").rename(tmp_path / "settings")
    (folder / "settings").symlink_to(tmp_path / "settings")
    assert "'settings' is a link" in refused(folder, capfd)
    with (folder / layout.MANIFEST).open("a") as manifest:
        manifest.write("0" * 64 + "  ../outside.h5\n")
    (folder / "settings").unlink()
    (tmp_path / "settings").rename(folder / "settings")
    assert "line 25 would lie outside the archive" in refused(folder, capfd)


def test_more_than_it_declares(whole: Path, tmp_path: Path, capfd) -> None:
    path, zeros = tmp_path / "large.tar.zst", bytes(64 << 20)

    def told(members: list, after: bytes = b"") -> str:
        assert write_tar_zst(path, members, after).stat().st_size < 4 << 20
        return refused_file(path, capfd)

    members = members_of(whole)
    large = [(n, zeros if n.endswith(POINT) else c, *rest) for n, c, *rest in members]
    assert "unpacks to more than it declares (23 files" in told(large)
    assert "unpacks to more" in told([*members[:2], ("servelab-archive/x", zeros, b"0", "")])
    assert "manifest-sha256.txt is larger" in told(
        [*members[:-1], (members[-1][0], zeros, *members[-1][2:])])
    assert "archive.json is larger" in told([(members[0][0], zeros, *members[0][2:])])
    assert "goes on after the end of its tar file" in told(members, zeros)
    declaring = json.loads(members[0][1])
    declaring["holds"]["bytes"] = 1 << 60
    members[0] = (members[0][0], json.dumps(declaring).encode(), *members[0][2:])
    assert f"declares {1 << 60} bytes" in told(members)


def _edit(name: str, change: Callable[[h5py.File], None]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with edited(folder / name) as file:
            change(file)
    return run


def _link_outside(file: h5py.File) -> None:
    file["more"] = h5py.ExternalLink("/etc/passwd", "/")


def _link_a_point_outside(file: h5py.File) -> None:
    del file[f"points/{KEYS[3]}"]
    file[f"points/{KEYS[3]}"] = h5py.ExternalLink("../../../../k0003.h5", "/")


def _name_a_point_outside(file: h5py.File) -> None:
    files = [name.decode() for name in file["columns/file"][()]]
    del file["columns/file"]
    file["columns/file"] = ["../../../" + name for name in files]


def _name_a_key_outside(file: h5py.File) -> None:
    keys = [key.decode() for key in file["columns/key"][()]]
    del file["columns/key"]
    file["columns/key"] = ["../points/" + key for key in keys]


def _read_outside(file: h5py.File) -> None:
    file.create_dataset("raw", (10,), "u1", external=[("/etc/passwd", 0, 10)])


def _virtual(file: h5py.File) -> None:
    layout_ = h5py.VirtualLayout((10,), "i8")
    layout_[:] = h5py.VirtualSource("/tmp/other.h5", "x", (10,))
    file.create_virtual_dataset("virtual", layout_)


def _vast(file: h5py.File) -> None:
    file.create_dataset("vast", (1 << 40,), "i8", chunks=(1 << 16,), fillvalue=0)


@pytest.mark.parametrize("name, change, reason", [
    (COLLECTED, _link_outside, "links to another file: '/etc/passwd'"),
    (COLLECTED, _link_a_point_outside, "links to another file: '../../../../k0003.h5'"),
    (COLLECTED, _name_a_point_outside, "names a point outside its folder"),
    (COLLECTED, _name_a_key_outside, "names a point outside its folder"),
    (POINT, _link_outside, "links to another file"),
    (POINT, lambda file: file.__setitem__("soft", h5py.SoftLink("/context")), "a link inside"),
    (POINT, _read_outside, "reads another file: 'raw'"),
    (POINT, _virtual, "reads another file: 'virtual'"),
    (POINT, _vast, "unpacks to more than it holds: 'vast'"),
    (POINT, lambda file: file.attrs.__setitem__("key", "other"), "is not the point"),
    (POINT, lambda file: file.attrs.__setitem__("seed", 77), "its seed is '77', its settings say"),
    (POINT, lambda file: file.attrs.__setitem__("notes", "no"),
     f"'settings/{SPEC}.json' does not say"),
])
def test_results_that_lead_elsewhere_or_were_exchanged(folder: Path, capfd, name: str,
                                                       change: Callable, reason: str) -> None:
    """The manifest is right again: what is refused is what the files say."""
    _edit(name, change)(folder)
    reseal(folder)
    assert main(["verify", str(folder)]) == 2
    told = capfd.readouterr().err
    assert reason in told and told.count("\n") == 1 and str(folder) in told


def test_columns_that_cannot_be_drawn_are_told(folder: Path, capfd, monkeypatch) -> None:
    def draw(results: object, out: Path) -> list[Path]:
        raise ValueError("slow")

    monkeypatch.setattr(generic, "draw", draw)
    assert main(["verify", str(folder)]) == 2
    told = capfd.readouterr().err
    assert f"servelab: error: {folder}: {SPEC}: cannot be drawn: ValueError: slow" in told


def test_settings_and_metadata_must_agree_with_the_results(folder: Path, capfd) -> None:
    for name in (f"settings/{SPEC}.json", f"specs/{SPEC}.yaml", layout.CRATE):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-3] + b" " + content[-3:])
        reseal(folder)
        assert main(["verify", str(folder)]) == 2
        assert f"'{name}' does not say what the results do" in capfd.readouterr().err
        (folder / name).write_bytes(content)
    (folder / f"results/{SPEC}/points/k9999.h5").write_bytes((folder / POINT).read_bytes())
    reseal(folder)
    assert "k9999.h5' is no point of mine/small" in refused(folder, capfd)


def test_what_is_no_archive(tmp_path: Path, capfd) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "array.npy", np.zeros(1000))
    for name in ("text", "array.npy"):
        assert "is no servelab archive" in refused(tmp_path / name, capfd, "verify", "unpack")
    assert "it has no archive.json" in refused(tmp_path / "folder", capfd)
    assert "no such archive" in refused(tmp_path / "absent", capfd, "verify", "unpack")
    assert "begin with archive.json" in refused(
        write_tar_zst(tmp_path / "other.tar.zst", [("servelab-archive/a", b"", b"0", "")]), capfd)
    assert "a folder already" in refused(tmp_path / "folder", capfd, "unpack")


def test_a_refused_copy_does_not_spoil_the_good_one(whole: Path, tmp_path: Path, capfd) -> None:
    """Several archives: each is told of, and the worst decides the exit code."""
    bad = tmp_path / "bad.tar.zst"
    bad.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(50))
    assert main(["verify", str(bad), str(whole)]) == 2
    shown = capfd.readouterr()
    assert "drawn again, the same bytes" in shown.out and str(bad) in shown.err
    assert main(["unpack", str(whole.parent / "small.tar.zst"), "--out", str(tmp_path / "x")]) == 0
    assert checking.examine(tmp_path / "x", tmp_path).sha256 == \
        checking.examine(copy(tmp_path / "x", "y"), tmp_path).sha256
    assert main(["unpack", str(whole.parent / "small.tar.zst"), "--out", str(tmp_path / "x")]) == 2
    assert "is there already" in capfd.readouterr().err
