"""What the verbs of servelab that are written in Python share: a parser whose errors are one line,
exit codes, and what a signal, a missing module or a full disk come to.

    def main(arguments: list[str] | None = None) -> int:
        return verb.run(arguments, parse, command)
"""
from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, NoReturn, TextIO

from analysis import h5_file
from analysis.errors import ResultsError, shown

OK, FAILED, BAD_INPUT = 0, 1, 2  # exit codes: done; a check or a disk failed; bad input


class VerbError(Exception):
    """A request that is refused. Each of `lines` names a place and a reason."""

    def __init__(self, *lines: str) -> None:
        self.lines = [" ".join(line.split()) for line in lines]
        super().__init__("; ".join(self.lines))


class Plain:
    """A text stream for people: whatever would steer a terminal, or mislead about what is written
    there, is written as Python's escape for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(plain(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def plain_streams() -> Iterator[None]:
    """Plain streams in place of stdout and stderr."""
    streams = sys.stdout, sys.stderr
    own = sys.stdout, sys.stderr = Plain(streams[0]), Plain(streams[1])  # type: ignore[assignment]
    try:
        yield
    finally:
        if sys.stdout is own[0]:  # else it cannot be written, and is not tried again at exit
            sys.stdout = streams[0]
        sys.stderr = streams[1]


def plain(text: str) -> str:
    """Control and formatting characters as escapes, but for ends of lines and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
                   for c in text)


class Parser(argparse.ArgumentParser):
    """Raises VerbError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        verb = " ".join(self.prog.split()[:2])
        raise VerbError(f"{self.prog}: {message} ({verb} --help)")


def tell(error: Exception, code: int = BAD_INPUT) -> int:
    """Prints the error's lines, at most ten, unless a signal has made them; returns the code."""
    if _caught:
        return code
    lines = error.lines if isinstance(error, VerbError) else [str(error)]
    sys.stdout.flush()
    for line in lines[:10]:
        print(f"servelab: error: {line}", file=sys.stderr)
    if len(lines) > 10:
        print(f"servelab: error: and {len(lines) - 10} more", file=sys.stderr)
    return code


class _Stopped(BaseException):
    """A signal: folders in the making are removed on the way out."""


_caught: list[int] = []  # signals; a library may turn _Stopped into another exception


def run(arguments: list[str] | None, parse: Callable[[list[str]], argparse.Namespace],
        command: Callable[[argparse.Namespace], int]) -> int:
    """Runs a verb on the program's arguments, or on those given; returns its exit code."""
    _caught.clear()

    def stop(number: int, _: object) -> NoReturn:
        _caught.append(number)
        raise _Stopped

    before = {number: signal.signal(number, stop)
              for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with plain_streams():
            code = _run(sys.argv[1:] if arguments is None else arguments, parse, command)
            return 128 + _caught[0] if _caught else code
    except BaseException:
        if not _caught:
            raise
        return 128 + _caught[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(arguments: list[str], parse: Callable[[list[str]], argparse.Namespace],
         command: Callable[[Any], int]) -> int:
    options = argparse.Namespace()
    try:
        options = parse(arguments)
        code = command(options)
        sys.stdout.flush()
        return code
    except (VerbError, ResultsError) as error:
        return tell(error)
    except ModuleNotFoundError as error:
        return tell(VerbError(f"the Python module {error.name} is missing: run .ci/setup "
                              "--only-python"))
    except OSError as error:
        if not _stdout_takes_what_it_has():
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # not tried again at exit
            return tell(VerbError(f"stdout cannot be written: {error.strerror}"), FAILED)
        where = error.filename or getattr(options, "out", None) or "a temporary folder"
        return tell(VerbError(f"{where}: cannot be read or written: "
                              f"{error.strerror or error}"), FAILED)
    except MemoryError:
        return tell(VerbError(f"{_last_read()}needs more memory than there is"), FAILED)
    except Exception as error:
        return tell(unexpected(error))


def unexpected(error: Exception, where: str | None = None) -> VerbError:
    """What a file that is not what servelab writes led to, deep inside; the place is for whoever
    finds that it was no file's fault. `where`: the file, else the last one that was opened.
    SERVELAB_TRACEBACK=1 shows how it came to that."""
    if os.environ.get("SERVELAB_TRACEBACK"):
        traceback.print_exception(error)
    at = traceback.extract_tb(error.__traceback__)[-1]
    own = next((frame for frame in reversed(traceback.extract_tb(error.__traceback__))
                if "analysis" in frame.filename), at)
    place = "/".join(own.filename.split("/")[-2:])
    where = _last_read() if where is None else where
    return VerbError(f"{where}is not what servelab writes: {type(error).__name__}: {error} "
                     f"({place}:{own.lineno})")


def _last_read() -> str:
    return f"{shown(h5_file.last_opened)}: " if h5_file.last_opened else ""


def _stdout_takes_what_it_has() -> bool:
    try:
        sys.stdout.flush()
        return True
    except OSError:
        return False
