"""An archive as one .tar.zst, and the folder in which archives and unpacked ones are made.

The file: archive.json first, the manifest last, plain files only, in ustar headers without times,
users or modes; one zstd frame with a checksum. What is read is not trusted: headers are looked at
one by one, and nothing is written beyond what archive.json declares.
"""
from __future__ import annotations

import fcntl
import os
import shutil
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Iterator

import zstandard

from analysis.archive.layout import (
    CRATE, FACTS, FACTS_BYTES_MAX, MANIFEST, MANIFEST_LINE_BYTES_MAX, SIGNATURE,
    SIGNATURE_BYTES_MAX, ArchiveError, check_declared, files_in, name_problem, parse_facts)
from analysis.errors import quoted

SUFFIX = ".tar.zst"
TOP = "servelab-archive"  # the folder in the tar file: not the file's name, so that bytes are equal
TEMPORARY = ".servelab-tmp"
BLOCK = tarfile.BLOCKSIZE
WINDOW_LOG = 27  # points of one seed have the same requests: far apart, but the same bytes
THOROUGH_BYTES_MAX = 256 << 20  # a minute; above this speed matters more than the last fifth
# zstd turns 4 bytes into at most 128 KiB: a few of them at a time bound the memory.
INPUT_BYTES = 1 << 10


@contextmanager
def workspace(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, in its file system, that goes when the block ends. One that a
    killed program left is removed by the next that wants the same target."""
    parent = target.parent
    if not parent.is_dir():
        raise ArchiveError(f"{target}: cannot be written: there is no folder {parent}")
    if os.path.lexists(target):
        raise ArchiveError(f"{target}: is there already; remove it or choose another name")
    _remove_stale(parent, f".{target.name}.")
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=TEMPORARY, dir=parent))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_stale(parent: Path, prefix: str) -> None:
    for path in parent.iterdir():
        if not (path.name.startswith(prefix) and path.name.endswith(TEMPORARY)):
            continue
        try:
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its owner is alive if this fails
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)


def publish(built: Path, target: Path) -> None:
    """Gives what was built its final name, in one step, once all of it is on the disk."""
    for path in [*built.rglob("*"), built]:
        _flush(path)
    if os.path.lexists(target):
        raise ArchiveError(f"{target}: is there already; remove it or choose another name")
    built.rename(target)
    _flush(target.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(folder: Path, target: Path) -> None:
    """Writes the archive in `folder` as one new file."""
    sizes = files_in(folder, folder)
    total = sum(sizes.values())
    parameters = zstandard.ZstdCompressionParameters.from_level(
        19 if total <= THOROUGH_BYTES_MAX else 9, window_log=WINDOW_LOG, enable_ldm=True,
        write_checksum=True, write_content_size=False, threads=0)
    last = [MANIFEST, *(name for name in sizes if name == SIGNATURE)]
    middle = [name for name in sizes if name not in (FACTS, CRATE, *last)]
    with target.open("xb") as raw:
        with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(
                raw, closefd=False) as stream:
            for name in [FACTS, CRATE, *middle, *last]:
                _write_member(stream, folder / name, name, sizes[name])
            stream.write(bytes(2 * BLOCK))


def _write_member(stream: BinaryIO, path: Path, name: str, size: int) -> None:
    info = tarfile.TarInfo(f"{TOP}/{name}")
    info.size = size
    try:
        stream.write(info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict"))
    except ValueError as error:
        raise ArchiveError(f"{name}: cannot be in a tar file: {error}") from None
    with path.open("rb") as file:
        shutil.copyfileobj(file, stream, 1 << 20)
    stream.write(bytes(-size % BLOCK))


class _Unpressed:
    """The bytes inside a .tar.zst, as many as are asked for. Raises ArchiveError for a file that is
    cut short, damaged, or goes on after its end."""

    def __init__(self, raw: BinaryIO, archive: Path) -> None:
        self._raw, self._archive = raw, archive
        self._frame = zstandard.ZstdDecompressor(
            max_window_size=1 << WINDOW_LOG).decompressobj(read_across_frames=False)
        self._ready = memoryview(b"")
        if raw.read(4) != b"\x28\xb5\x2f\xfd":
            raise ArchiveError(f"{archive}: is no servelab archive: neither a folder nor a "
                               "zstd-compressed file")
        raw.seek(0)

    def read(self, count: int) -> bytes:
        """At most `count` bytes, none at the end."""
        while not self._ready and not self._frame.eof:
            block = self._raw.read(INPUT_BYTES)
            if not block:
                raise ArchiveError(f"{self._archive}: is cut short after {self._raw.tell()} bytes")
            try:
                self._ready = memoryview(self._frame.decompress(block))
            except (zstandard.ZstdError, MemoryError) as error:
                raise ArchiveError(f"{self._archive}: is damaged before byte {self._raw.tell()}: "
                                   f"{error}") from None
        taken, self._ready = self._ready[:count], self._ready[count:]
        return bytes(taken)

    def exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = self.read(count - len(found))
            if not part:
                raise ArchiveError(f"{self._archive}: is cut short: its tar file ends early")
            found += part
        return found

    def finish(self) -> None:
        if self.read(1):
            raise ArchiveError(f"{self._archive}: goes on after the end of its tar file")
        if self._frame.unused_data or self._raw.read(1):
            raise ArchiveError(f"{self._archive}: goes on after its end")


def read_file(archive: Path, folder: Path, limit: int | None = None) -> None:
    """Unpacks a .tar.zst, to at most `limit` bytes, into a new folder; raises ArchiveError, and
    leaves what was written to be removed with the workspace that the folder is in."""
    with archive.open("rb") as raw:
        stream = _Unpressed(raw, archive)
        _Reader(stream, archive, folder, limit).run()
        stream.finish()


class _Reader:
    """Writes members, after looking at each header, within the limits that archive.json sets."""

    def __init__(self, stream: _Unpressed, archive: Path, folder: Path,
                 limit: int | None) -> None:
        self._stream, self._archive, self._folder = stream, archive, folder
        self._limit = limit
        self._files = self._bytes = 0

    def run(self) -> None:
        self._folder.mkdir()
        header = self._next()
        if header is None or header[0] != FACTS:
            raise ArchiveError(f"{self._archive}: is no servelab archive: it does not begin with "
                               f"{FACTS}")
        if header[1] > FACTS_BYTES_MAX:
            raise ArchiveError(f"{self._archive}: {FACTS} is larger than any that servelab writes")
        self._write(*header)
        facts = parse_facts((self._folder / FACTS).read_bytes(), self._archive)
        self._check_space(facts["holds"]["bytes"])
        while (header := self._next()) is not None:
            self._count(*header, facts["holds"])
            self._write(*header)
        check_declared(facts, files_in(self._folder, self._archive), self._archive)
        if self._stream.exactly(BLOCK).strip(b"\0"):
            raise ArchiveError(f"{self._archive}: goes on after the end of its tar file")

    def _next(self) -> tuple[str, int] | None:
        """Name and size of the next member; None at the end."""
        block = self._stream.exactly(BLOCK)
        if not block.strip(b"\0"):
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, ValueError):
            raise ArchiveError(f"{self._archive}: is damaged: a tar header is not one") from None
        reason = name_problem(info.name)
        if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            reason = "is a link; archives hold plain files only"
        elif info.type != tarfile.REGTYPE:
            reason = reason or "is no plain file"
        elif not reason and (not info.name.startswith(TOP + "/") or info.size < 0):
            reason = f"is not what servelab writes: a file in {TOP}/"
        if reason:
            raise ArchiveError(f"{self._archive}: {quoted(info.name)} {reason}")
        return info.name[len(TOP) + 1:], info.size

    def _check_space(self, declared: int) -> None:
        if self._limit is not None and declared > self._limit:
            raise ArchiveError(f"{self._archive}: declares {declared} bytes, the limit is "
                               f"{self._limit}; --limit sets another")
        free = shutil.disk_usage(self._folder).free
        if self._limit is None and free // 2 < declared <= free:
            raise ArchiveError(f"{self._archive}: declares {declared} bytes, more than half of the "
                               f"{free} that are free in {self._folder.parent.parent}; --limit "
                               "sets another bound")
        if declared > free:
            raise ArchiveError(f"{self._archive}: declares {declared} bytes, {free} are free in "
                               f"{self._folder.parent.parent}")

    def _count(self, name: str, size: int, declared: dict[str, int]) -> None:
        if name == MANIFEST:
            if size > declared["files"] * MANIFEST_LINE_BYTES_MAX + MANIFEST_LINE_BYTES_MAX:
                raise ArchiveError(f"{self._archive}: {MANIFEST} is larger than any of "
                                   f"{declared['files']} files")
            return
        if name == SIGNATURE:
            if size > SIGNATURE_BYTES_MAX:
                raise ArchiveError(f"{self._archive}: {SIGNATURE} is larger than any signature")
            return
        self._files += 1
        self._bytes += size
        if self._files > declared["files"] or self._bytes > declared["bytes"]:
            raise ArchiveError(
                f"{self._archive}: unpacks to more than it declares ({declared['files']} files, "
                f"{declared['bytes']} bytes): {quoted(name)} is too much")

    def _write(self, name: str, size: int) -> None:
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
        except (FileExistsError, NotADirectoryError):
            raise ArchiveError(f"{self._archive}: {quoted(name)} is there twice") from None
        with file:
            left = size
            while left:
                part = self._stream.read(min(left, 1 << 20))
                if not part:
                    raise ArchiveError(f"{self._archive}: is cut short inside {quoted(name)}")
                file.write(part)
                left -= len(part)
        if self._stream.exactly(-size % BLOCK).strip(b"\0"):
            raise ArchiveError(f"{self._archive}: is damaged after {quoted(name)}")
