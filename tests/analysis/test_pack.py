"""One file per figure: what goes in comes out, and damage is told."""
from __future__ import annotations

from pathlib import Path

import h5py
import pytest

from analysis import pack


def figure(folder: Path) -> Path:
    (folder / "points").mkdir(parents=True)
    for name in ("collected.h5", "points/aa.h5", "points/bb.h5"):
        (folder / name).write_bytes(name.encode() * 1000)
    return folder


def test_unpacked_files_are_the_packed_ones(tmp_path: Path) -> None:
    folder = figure(tmp_path / "figure")
    assert pack.pack(folder, tmp_path / "one.h5") == 3
    assert pack.unpack(tmp_path / "one.h5", tmp_path / "again") == 3
    for path in folder.rglob("*.h5"):
        assert (tmp_path / "again" / path.relative_to(folder)).read_bytes() == path.read_bytes()


def test_damage_and_missing_results_are_told(tmp_path: Path) -> None:
    pack.pack(figure(tmp_path / "figure"), tmp_path / "one.h5")
    with h5py.File(tmp_path / "one.h5", "r+") as packed:
        packed["points/aa.h5"][5] = 0
    with pytest.raises(ValueError, match="points/aa.h5 is damaged"):
        pack.unpack(tmp_path / "one.h5", tmp_path / "again")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no collected.h5"):
        pack.pack(tmp_path / "empty", tmp_path / "two.h5")
