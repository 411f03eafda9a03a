"""One point file: one technique at one sweep position with one seed (results/README.md)."""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Protocol, Sequence

import numpy as np

from analysis.errors import ResultsError, quoted
from analysis.h5_file import as_text, attributes, blocks, open_h5


# What datasets were called in files of schema 1.
_OLD_NAMES = {"series/generation_tokens": "series/output_tokens",
              "series/num_requests_running": "series/running",
              "series/num_requests_waiting": "series/waiting"}


@dataclass(frozen=True)
class Gauge:
    """Values that a policy published: seconds, the gauge's own unit, replica index."""

    time_s: np.ndarray
    value: np.ndarray
    replica: np.ndarray


class Point:
    """Reads datasets of one point file on demand, each in the units of results/README.md."""

    def __init__(self, path: Path, remedy: str) -> None:
        self.path = path
        self._remedy = remedy
        self._made: dict[str, Any] = {}
        self._kept: dict[str, np.ndarray] = {}
        with open_h5(path, remedy) as file:
            self.attributes = attributes(file, path, remedy)

    def attribute(self, name: str, default: str = "") -> str:
        return as_text(self.attributes.get(name, default))

    def keep(self, columns: dict[str, np.ndarray]) -> None:
        """Columns that were read from this file: read() gives them, which nobody may change."""
        for column in columns.values():
            column.flags.writeable = False
        self._kept = columns

    def read(self, name: str) -> np.ndarray:
        """The dataset /<name>; an absent or damaged one raises ResultsError."""
        return self.read_several([name])[name]

    def read_several(self, names: Sequence[str],
                     optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Datasets by name, with the file opened, and its checksum compared, once; optional ones
        may be absent. Raises as read() does."""
        found = {name: self._kept[name] for name in (*names, *optional) if name in self._kept}
        if len(found) == len(names) + len(optional):
            return found
        with open_h5(self.path, self._remedy) as file:
            for name in (name for name in (*names, *optional) if name not in found):
                try:
                    stored = name if name in file else _OLD_NAMES.get(name, name)
                    if stored in file:
                        found[name] = np.asarray(file[stored][()])
                    elif name in names:
                        raise ResultsError(self.path, f"has no dataset /{name}",
                                           self._remedy_for(name))
                except (OSError, KeyError, RuntimeError):
                    raise ResultsError(self.path, f"/{name} is not readable",
                                       self._remedy) from None
            return found

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """The column /<name> from its beginning, piece by piece: it may be larger than what memory
        should be taken for. Raises as read() does."""
        if name in self._kept:
            yield self._kept[name]
            return
        with open_h5(self.path, self._remedy) as file:
            if name not in file:
                raise ResultsError(self.path, f"has no dataset /{name}", self._remedy_for(name))
            try:
                yield from blocks(file[name])
            except (OSError, RuntimeError):
                raise ResultsError(self.path, f"/{name} is not readable", self._remedy) from None

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What make() gives, made once per point: several metrics share it."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def has(self, name: str) -> bool:
        """Whether there is a dataset or group /<name>."""
        with open_h5(self.path, self._remedy) as file:
            return name in file or _OLD_NAMES.get(name, name) in file

    def summary(self) -> dict[str, float]:
        """The metrics of /summary by name; raises ResultsError."""
        with open_h5(self.path, self._remedy) as file:
            if "summary" not in file:
                raise ResultsError(self.path, "has no /summary", self._remedy)
            found = attributes(file["summary"], self.path, self._remedy)
        for name, value in found.items():
            if not isinstance(value, (int, float)):
                raise ResultsError(self.path, f"/summary says of {quoted(name)} no number",
                                   self._remedy)
        return {name: float(value) for name, value in found.items()}

    def codes(self, name: str) -> list[str]:
        """The names of a dataset of codes, by code; empty where it has none."""
        with open_h5(self.path, self._remedy) as file:
            return ([as_text(code) for code in file[name].attrs.get("codes", [])]
                    if name in file else [])

    def attribute_of(self, name: str, attribute: str) -> str:
        """An attribute of the dataset /<name>; empty where there is none."""
        with open_h5(self.path, self._remedy) as file:
            return as_text(file[name].attrs.get(attribute, "")) if name in file else ""

    def _remedy_for(self, name: str) -> str:
        """What brings an absent dataset: some are there only when the spec or technique says so."""
        group = name.split("/")[0]
        setting = {"requests": "requests", "events": "requests", "series": "series",
                   "tokens": "token_times", "decisions": "decisions"}.get(group)
        if setting:
            return f"set record.{setting}: true in the spec, then {self._remedy}"
        if group == "gauges":
            return "the figure needs techniques that publish it; change the spec's techniques"
        return self._remedy

    def gauge(self, name: str) -> Gauge:
        """What the policy published under this name, replica after replica."""
        return Gauge(self.read(f"gauges/{name}/time") / 1e9, self.read(f"gauges/{name}/value"),
                     self.read(f"gauges/{name}/replica"))

    def context(self) -> dict[str, Any]:
        """The /context JSON (machine, versions); empty when absent or not JSON."""
        try:
            return json.loads(as_text(self.read("context").item()))
        except (ResultsError, ValueError):
            return {}


class Points(Protocol):
    """Several points, as metrics are derived from them; Results is one."""

    columns: dict[str, np.ndarray]

    def point(self, index: int) -> Point:
        """The point file of a row of the columns."""

    def metric(self, name: str) -> np.ndarray:
        """A metric of every point; NaN where a point has none."""
