"""Where a spec's results come from: what its points say about their traces, build and machine."""
from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h5py

from analysis.h5_file import as_text
from analysis.results import Results


@dataclass(frozen=True)
class Source:
    """A trace or table of lengths that points used; `sha256` is "" for what is embedded."""

    role: str
    name: str
    origin: str
    sha256: str
    licence: str


@dataclass
class Origin:
    """Texts with the number of points that say so, in order of the points."""

    sources: dict[Source, int] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # why points are INVALID
    builds: Counter[str] = field(default_factory=Counter)
    machines: Counter[str] = field(default_factory=Counter)
    compilers: Counter[str] = field(default_factory=Counter)
    written: list[str] = field(default_factory=list)  # UTC stamps, sorted

    @property
    def period(self) -> str:
        """When the first and the last point were written."""
        return period(self.written)


def period(written: list[str]) -> str:
    """First to last of the stamps, to the minute."""
    if not written:
        return ""
    first, last = (stamp.replace("T", " ")[:16] for stamp in (min(written), max(written)))
    return f"{first} UTC" if first == last else f"{first} to {last} UTC"


def origin_of(results: Results) -> Origin:
    """Of results that were checked (Results.check); what a point does not say is left out."""
    found = Origin()
    for index in range(len(results.columns["key"])):
        point = results.point(index)
        for name, counter in (("notes", found.notes), ("reasons", found.reasons),
                              ("build_id", found.builds)):
            if point.attribute(name):
                counter[point.attribute(name)] += 1
        with h5py.File(point.path, "r") as file:
            context, sources = (_json(file, name) for name in ("context", "sources"))
        _add_context(found, context if isinstance(context, dict) else {})
        for entry in sources if isinstance(sources, list) else []:
            source = Source(*(str(entry.get(name, "")) for name in
                              ("role", "name", "origin", "sha256", "licence")))
            found.sources[source] = found.sources.get(source, 0) + 1
    found.written.sort()
    return found


def _add_context(found: Origin, context: dict[str, Any]) -> None:
    if "written" in context:
        found.written.append(str(context["written"]))
    machine = [str(context[name]) for name in ("processor", "system") if context.get(name)]
    if machine:
        if context.get("processors"):
            machine.insert(1, f"{context['processors']} hardware threads")
        found.machines[", ".join(machine)] += 1
    if context.get("compiler"):
        found.compilers[f"{context['compiler']}, optimisation "
                        f"{context.get('optimisation', 'not recorded')}"] += 1


def _json(file: h5py.File, name: str) -> Any:
    try:
        return json.loads(as_text(file[name][()]))
    except (KeyError, OSError, RuntimeError, ValueError):
        return None
