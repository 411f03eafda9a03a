"""HDF5 files of results, opened for reading so that damaged and hostile ones are refused with one
line, before anything that they hold is read: each must end in the checksum line that servelab
writes, lead to no other file, hold plain columns and texts only, and take no more memory than
MEMORY_LIMIT, however often a column or a text is linked.

A file that was found whole is not hashed again while it stays as it is.
"""
from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

import h5py
import numpy as np

from analysis.errors import ResultsError, quoted

LABEL = b"servelab-sha256:"
TRAILER_BYTES = len(LABEL) + 64
READ_BYTES = 1 << 20
KEPT_BYTES_MAX = 256 << 20
# deflate, the filter that points use, makes at most this many bytes out of one.
INFLATED_MAX = 1032
FILTERS = ([], [h5py.h5z.FILTER_SHUFFLE], [h5py.h5z.FILTER_DEFLATE],
           [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE])
UNSTORED_BYTES_MAX = 1 << 16
TEXT_REFERENCE_BYTES = 16  # of a text in a dataset: its length, and where it lies
TEXT_OBJECT_BYTES = 80     # what a Python object takes beside its text
ATTRIBUTES_MAX = 4096      # of one object
ATTRIBUTE_TEXT_MAX = 64 << 20  # bytes, of one object's attributes together
CONTEXT = "context"        # the one dataset outside the content digest
# A file this young may change again without another time stamp.
SETTLED_NS = 100_000_000
last_opened: Path | None = None  # what messages name where something unexpected follows
MEMORY_LIMIT: int | None = None  # bytes that one file may take; None: half of what is free


def as_text(value: Any) -> str:
    """HDF5 text, which h5py hands out as bytes or str."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def free_memory() -> int:
    """Bytes that this machine, or the control group that we are in, can still give."""
    free = 1 << 62
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        free = int(re.search(r"MemAvailable:\s+(\d+) kB", text)[1]) << 10  # type: ignore[index]
    except (OSError, TypeError):
        pass
    try:
        group = Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text(encoding="ascii").strip()
        if most != "max":
            used = int((group / "memory.current").read_text(encoding="ascii"))
            free = min(free, max(0, int(most) - used))
    except (OSError, ValueError):
        pass
    return free


def memory_limit() -> int:
    return MEMORY_LIMIT if MEMORY_LIMIT is not None else free_memory() // 2


class Refused(Exception):
    """Why a file is not read; one line without the file's name."""


@dataclass
class _Known:
    """What is known of a file while it stays as it is."""

    sha256: str
    is_whole: bool  # ends in its checksum line, which is right
    is_plain: bool = False


_known: dict[tuple[int, ...], _Known] = {}


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _hashed(path: Path) -> _Known:
    """Reads the file once for both of its digests, unless it was; raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "is no plain file", str(path))
        known = _known.get(_identity(status))
        if known is not None:
            return known
        sha, left = hashlib.sha256(), max(0, status.st_size - TRAILER_BYTES)
        while left and (block := file.read(min(left, READ_BYTES))):
            sha.update(block)
            left -= len(block)
        body, last = sha.hexdigest(), b""
        while block := file.read(READ_BYTES):
            sha.update(block)
            last = (last + block)[:TRAILER_BYTES + 1]
        known = _Known(sha.hexdigest(), last == LABEL + body.encode())
        if abs(time.time_ns() - status.st_ctime_ns) > SETTLED_NS:
            _known[_identity(status)] = known
        return known


def sha256_of_file(path: Path) -> str:
    """SHA-256 of the whole file; raises OSError."""
    return _hashed(path).sha256


def open_h5(path: Path, remedy: str) -> h5py.File:
    """Opens for reading; a file that is absent, not whole or not plain raises ResultsError."""
    global last_opened
    last_opened = path
    if not path.is_file():
        raise ResultsError(path, "is no plain file" if path.exists() else "no such file", remedy)
    try:
        known = _hashed(path)
    except OSError as error:
        raise ResultsError(path, f"cannot be read: {error.strerror}", remedy) from None
    try:
        file = h5py.File(path, "r")
    except (OSError, ValueError, RuntimeError) as error:
        what = "truncated" if "truncated" in str(error) else "not readable as HDF5"
        raise ResultsError(path, what, remedy) from None
    try:
        if not known.is_whole:
            raise Refused("damaged: its checksum does not match"
                          if ends_in_a_checksum(path) else
                          "damaged: it does not end in the checksum that servelab writes")
        if not known.is_plain:
            check_plain(file, path)
            known.is_plain = True
    except Refused as error:
        file.close()
        raise ResultsError(path, str(error), remedy) from None
    except Exception as error:  # whatever h5py and HDF5 make of a file that was made to mislead
        file.close()
        raise ResultsError(path, f"not readable as HDF5 ({type(error).__name__}: {error})",
                           remedy) from None
    return file


def ends_in_a_checksum(path: Path) -> bool:
    """Whether the line is there, right or wrong."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TRAILER_BYTES))
        return re.fullmatch(LABEL + rb"[0-9a-f]{64}", file.read()) is not None


def seal(path: Path) -> None:
    """Appends the checksum line, as engine/record/hdf5_writer.cc does."""
    with path.open("ab") as file:
        file.write(LABEL + hashlib.sha256(path.read_bytes()).hexdigest().encode())


def attributes(item: Any, path: Path, remedy: str) -> dict[str, Any]:
    """The attributes of an object by name; raises ResultsError where they are too long together:
    many may share one text."""
    found: dict[str, Any] = {}
    total = 0
    for name in item.attrs:
        value = item.attrs[name]
        found[name] = value.item() if isinstance(value, np.generic) else value
        total += len(value) if isinstance(value, (str, bytes)) else 0
        if total > ATTRIBUTE_TEXT_MAX:
            raise ResultsError(path, f"has attributes of more than {ATTRIBUTE_TEXT_MAX} bytes",
                               remedy)
    return found


def datasets(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Paths and datasets by hard links, without the leading slash, in the order of their paths."""
    names: list[str] = []
    file.visititems_links(
        lambda name, link: names.append(name) if isinstance(link, h5py.HardLink) else None)
    for name in sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape")):
        item = file[name]
        if isinstance(item, h5py.Dataset):
            yield name, item


def check_plain(file: h5py.File, path: Path) -> None:
    """Raises Refused for a file that would lead to another one, holds what servelab does not write,
    or would take more memory than the limit if each of its columns and texts were read once by
    every name that it has. Reads references and sizes only."""
    if file.userblock_size:
        raise Refused("begins with a user block")
    size, limit = path.stat().st_size, memory_limit()
    longest, total = 0, 0
    links: list[tuple[str, object]] = []
    file.visititems_links(lambda name, link: links.append((name, link)))
    with path.open("rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for name, link in [("/", None), *links]:
            if link is not None:
                _check_link(name, link)
            if isinstance(link, h5py.ExternalLink):
                continue
            item = file[name]
            if isinstance(item, h5py.Dataset):
                total += _dataset_bytes(item, name, content, size)
            for attribute in _attributes(item, name):
                count, kind = _attribute_size(item, name, attribute)
                if kind is None and count > 1 and not longest:
                    longest = _longest_text(content)
                total += count * (kind if kind is not None else
                                  TEXT_OBJECT_BYTES + (longest if count > 1 else 0))
            if total > limit:
                raise Refused(f"would take {total} bytes of memory and more, the limit is {limit}: "
                              f"{quoted(name)} is too much")


def _check_link(name: str, link: object) -> None:
    if isinstance(link, h5py.ExternalLink):
        key = name.removeprefix("points/")
        if (name, link.filename, link.path) != (f"points/{key}", f"points/{key}.h5", "/") or \
                not re.fullmatch(r"\w+", key):
            raise Refused(f"links to another file: {quoted(str(link.filename))}")
    elif not isinstance(link, h5py.HardLink):
        raise Refused(f"has a link inside: {quoted(name)}")


def _is_text(dtype: np.dtype) -> bool:
    text = h5py.check_string_dtype(dtype)
    return text is not None and text.length is None


def _is_number(dtype: np.dtype) -> bool:
    return dtype.kind in "iuf" and dtype.itemsize <= 8 and dtype.metadata is None


def _dataset_bytes(item: h5py.Dataset, name: str, content: mmap.mmap, size: int) -> int:
    """What reading it takes, in bytes."""
    if item.is_virtual or item.external:
        raise Refused(f"reads another file: {quoted(name)}")
    if item.shape is None or item.ndim > 1:
        raise Refused(f"has a dataset that is neither a column nor a text: {quoted(name)}")
    stored = item.id.get_storage_size()
    if stored > size:
        raise Refused(f"unpacks to more than it holds: {quoted(name)} to {stored} bytes")
    if _is_number(item.dtype):
        plan = item.id.get_create_plist()
        filters = [plan.get_filter(i)[0] for i in range(plan.get_nfilters())]
        if filters not in FILTERS:
            raise Refused(f"is stored by filters that servelab does not use: {quoted(name)}")
        if item.nbytes > max(UNSTORED_BYTES_MAX, stored * INFLATED_MAX):
            raise Refused(f"unpacks to more than it holds: {quoted(name)} to {item.nbytes} bytes")
        return max(item.nbytes, item.dtype.itemsize * int(np.prod(item.chunks or (0,))))
    if not _is_text(item.dtype):
        raise Refused(f"has a dataset that is neither a column nor a text: {quoted(name)}")
    at = item.id.get_offset()
    if item.chunks is not None or stored not in (0, item.size * TEXT_REFERENCE_BYTES) or \
            (stored and (at is None or at + stored > size)):
        raise Refused(f"has texts that do not lie as servelab writes them: {quoted(name)}")
    total = item.size * TEXT_OBJECT_BYTES
    if stored:
        total += int(np.frombuffer(content[at:at + stored], dtype="<u4")[::4].sum(dtype=np.int64))
    return total


def _attributes(item: Any, name: str) -> list[str]:
    if h5py.h5a.get_num_attrs(item.id) > ATTRIBUTES_MAX:
        raise Refused(f"has more than {ATTRIBUTES_MAX} attributes: {quoted(name)}")
    return list(item.attrs)


def _attribute_size(item: Any, name: str, attribute: str) -> tuple[int, int | None]:
    """Values of an attribute, and the bytes of each; None for texts."""
    opened = h5py.h5a.open(item.id, attribute.encode("utf-8", "surrogateescape"))
    space, dtype = opened.get_space(), opened.dtype
    count = space.get_simple_extent_npoints()
    text = _is_text(dtype)
    if opened.shape is None or len(opened.shape) > 1 or not (text or _is_number(dtype)) or \
            space.get_simple_extent_type() == h5py.h5s.NULL:
        raise Refused(f"has an attribute that is neither a number nor text: "
                      f"{quoted(attribute)} of {quoted(name)}")
    return count, None if text else dtype.itemsize


def _longest_text(content: mmap.mmap) -> int:
    """The longest object in HDF5's global heaps, where texts lie."""
    longest, at = 1, content.find(b"GCOL")
    while at >= 0:
        end = at + int.from_bytes(content[at + 8:at + 16], "little")
        inside = at + 16
        while inside + 16 <= min(end, len(content)):
            index = int.from_bytes(content[inside:inside + 2], "little")
            length = int.from_bytes(content[inside + 8:inside + 16], "little")
            if index == 0 or inside + 16 + length > end:
                break
            longest = max(longest, length)
            inside += 16 + (length + 7) // 8 * 8
        at = content.find(b"GCOL", at + 4)
    return longest


def blocks(item: h5py.Dataset, into: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """A column of numbers from its beginning, in pieces of about READ_BYTES, little-endian: parts
    of `into`, or each good until the next is asked for."""
    kind = np.dtype(f"<{item.dtype.kind}{item.dtype.itemsize}")
    values = READ_BYTES // kind.itemsize
    chunk = (item.chunks or (values,))[0]
    step = max(1, values // chunk) * chunk
    buffer = np.empty(min(step, item.size), dtype=kind) if into is None else into
    for start in range(0, item.size, step):
        count, at = min(step, item.size - start), 0 if into is None else start
        item.read_direct(buffer, np.s_[start:start + count], np.s_[at:at + count])
        yield buffer[at:at + count]


def content_digest(file: h5py.File, columns: dict[str, np.ndarray] | None = None) -> str:
    """The digest of all datasets but /context, as engine/record/hdf5_writer.h defines it. Puts the
    columns of numbers that it has read into `columns`, as far as KEPT_BYTES_MAX goes."""
    sha, left = hashlib.sha256(), KEPT_BYTES_MAX
    for name, item in datasets(file):
        if name == CONTEXT:
            continue
        is_number = _is_number(item.dtype)
        kind = f"<{item.dtype.kind}{item.dtype.itemsize}" if is_number else "utf8"
        shape = "" if item.shape == () else str(item.size)
        sha.update(b"\0".join([b"/" + name.encode("utf-8", "surrogateescape"), kind.encode(),
                               shape.encode(), b""]))
        if not is_number:
            texts = [item[()]] if item.shape == () else item[()].tolist()
            for text in texts:
                raw = text if isinstance(text, bytes) else str(text).encode()
                sha.update(raw if item.shape == () else raw + b"\0")
            continue
        if item.shape == ():
            sha.update(np.asarray(item[()], dtype=kind).tobytes())
            continue
        into = None
        if columns is not None and item.nbytes <= left:
            into = columns[name] = np.empty(item.size, dtype=kind)
            left -= item.nbytes
        for block in blocks(item, into):
            sha.update(block)
    return sha.hexdigest()
