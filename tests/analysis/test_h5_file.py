"""HDF5 files that were made to do harm: refused before anything of them is read."""
from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Callable

import h5py
import numpy as np
import pytest
from conftest import ROOT

from analysis import h5_file
from analysis.errors import ResultsError
from analysis.results import Results

MB = 1 << 20


@pytest.fixture(autouse=True)
def limit(monkeypatch) -> None:
    """Whatever this machine has."""
    monkeypatch.setattr(h5_file, "MEMORY_LIMIT", 1 << 30)


def made(path: Path, fill: Callable[[h5py.File], None]) -> Path:
    with h5py.File(path, "w") as file:
        fill(file)
    h5_file.seal(path)
    return path


def shared_text(path: Path, count: int, size: int) -> None:
    """`count` texts that are one: each names the same object of the heap."""
    with h5py.File(path, "w") as file:
        file["text"] = "x" * size
        file["texts"] = ["y"] * count
        one, many = file["text"].id.get_offset(), file["texts"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[many:many + 16 * count] = content[one:one + 16] * count
    path.write_bytes(content)
    h5_file.seal(path)


def test_texts_that_share_one_object_count_each_time(tmp_path: Path) -> None:
    """4,000 of 20 MB in a file of 20 MB were 80 GB."""
    path = tmp_path / "shared.h5"
    shared_text(path, 4000, 20 * MB)
    assert path.stat().st_size < 21 * MB
    with pytest.raises(ResultsError, match="would take 839........ bytes.*'texts' is too much"):
        h5_file.open_h5(path, "")
    shared_text(path, 4, MB)
    h5_file.open_h5(path, "").close()


def test_columns_with_many_names_count_each_time(tmp_path: Path) -> None:
    def fill(file: h5py.File) -> None:
        file.create_dataset("columns/c0", data=np.zeros(3_000_000), chunks=(65536,),
                            compression="gzip")
        for i in range(1, 3000):
            file[f"columns/c{i}"] = file["columns/c0"]

    path = made(tmp_path / "linked.h5", fill)
    assert path.stat().st_size < MB
    with pytest.raises(ResultsError, match="would take .* the limit is"):
        h5_file.open_h5(path, "")


def test_attributes_that_share_one_object(tmp_path: Path) -> None:
    """Root attributes are read one by one, and bounded together."""
    path = tmp_path / "attributes.h5"
    with h5py.File(path, "w") as file:
        for i in range(100):
            file.attrs[f"a{i}"] = "x" * MB
        file["columns/key"] = ["k"]
    h5_file.seal(path)
    with h5_file.open_h5(path, "") as file:
        with pytest.raises(ResultsError, match="has attributes of more than 67108864 bytes"):
            h5_file.attributes(file, path, "")


def many(file: h5py.File) -> None:
    file["x"] = [1]
    file["text"] = "x" * MB
    file["x"].attrs["codes"] = ["a"] * 4000


def big_chunk(file: h5py.File) -> None:
    file.create_dataset("x", (10,), "i8", chunks=(1 << 28,), maxshape=(None,), compression="gzip")
    file["x"][:] = 1


HARMFUL = {
    "chunk": (big_chunk, "would take|unpacks to more"),
    "lzf": (lambda f: f.create_dataset("x", data=np.zeros(100), chunks=(10,), compression="lzf"),
            "stored by filters that servelab does not use: 'x'"),
    "matrix": (lambda f: f.create_dataset("x", data=np.zeros((3, 3))), "neither a column nor a"),
    "compound": (lambda f: f.create_dataset("x", (3,), np.dtype([("a", "i4")])), "neither a col"),
    "reference": (lambda f: f.create_dataset("x", (3,), h5py.ref_dtype), "neither a column nor"),
    "ragged": (lambda f: f.create_dataset("x", (3,), h5py.vlen_dtype("i8")), "neither a column"),
    "empty": (lambda f: f.create_dataset("x", data=h5py.Empty("i8")), "neither a column nor a"),
    "chunked texts": (lambda f: f.create_dataset("x", (9,), h5py.string_dtype(), chunks=(3,)),
                      "texts that do not lie as servelab writes them"),
    "attribute": (lambda f: f.attrs.__setitem__("a", np.zeros((2, 2))), "an attribute that is"),
    "null attribute": (lambda f: f.attrs.__setitem__("a", h5py.Empty("f8")), "an attribute that"),
    "soft link": (lambda f: f.__setitem__("a", h5py.SoftLink("/b")), "has a link inside: 'a'"),
    "escape": (lambda f: f.__setitem__("a\x1b[2J", h5py.SoftLink("/b")), r"'a\\x1b\[2J'"),
    "external": (lambda f: f.__setitem__("a", h5py.ExternalLink("/etc/passwd", "/")),
                 "links to another file: '/etc/passwd'"),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_what_servelab_does_not_write_is_refused(tmp_path: Path, name: str) -> None:
    fill, reason = HARMFUL[name]
    path = made(tmp_path / "harmful.h5", fill)
    with pytest.raises(ResultsError, match=reason) as refused:
        h5_file.open_h5(path, "")
    assert str(refused.value).isprintable()


def test_codes_that_share_a_text(tmp_path: Path) -> None:
    """An array of texts in an attribute counts as if each were the longest text there is."""
    path = made(tmp_path / "codes.h5", many)
    with pytest.raises(ResultsError, match="would take 41.* bytes"):
        h5_file.open_h5(path, "")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.h5")
    with pytest.raises(ResultsError, match="is no plain file"):
        h5_file.open_h5(tmp_path / "pipe.h5", "")


def test_a_file_that_changed_is_looked_at_again(tmp_path: Path) -> None:
    path = made(tmp_path / "one.h5", lambda file: file.__setitem__("x", [1, 2, 3]))
    for _ in range(50):
        h5_file.open_h5(path, "").close()
        content = path.read_bytes()
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ResultsError, match="damaged: its checksum does not match"):
            h5_file.open_h5(path, "")
        path.write_bytes(content)


def test_bombs_take_no_memory(tmp_path: Path) -> None:
    """In a process that may take 2 GB."""
    (tmp_path / "mine").mkdir()
    shared_text(tmp_path / "mine/collected.h5", 4000, 20 * MB)
    code = ("import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; "
            "from analysis.results import Results; Results.load('mine', Path(sys.argv[2]))")
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), str(tmp_path)], text=True, capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)))
    assert done.returncode == 1 and "would take" in done.stderr.splitlines()[-1], done.stderr[-500:]


@pytest.mark.parametrize("column, values", [
    ("key", [1]), ("technique", [1.5]), ("seed", ["a"]), ("summary.x", ["a"]), ("status", [0]),
    ("file", [2])])
def test_columns_of_the_wrong_type(tmp_path: Path, column: str, values: list) -> None:
    (tmp_path / "mine").mkdir()
    columns = {"technique": ["a"], "seed": [1], "status": ["VALID"], "key": ["k"], column: values}

    def fill(file: h5py.File) -> None:
        for name, content in columns.items():
            file[f"columns/{name}"] = content

    made(tmp_path / "mine/collected.h5", fill)
    with pytest.raises(ResultsError, match=f"'{column}'"):
        Results.load("mine", tmp_path)
