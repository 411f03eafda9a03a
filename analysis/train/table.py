"""The table of a data set: one row per simulated GPU, with its settings and what it served.

The file is CSV, gzipped where its name ends in .gz; its first line is a comment with JSON: the
spec, the build that simulated it and the settings that all rows share.
"""
from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Sequence

import h5py
import numpy as np

from analysis.errors import shown
from analysis.point import as_text
from analysis.service import STARVED
from analysis.verb import VerbError

FEATURES = ("adapters", "rate_sum", "rate_std", "size_max", "size_mean", "size_std", "slots")
SWEPT = ("engine.adapter_slots", "engine.slot_rank", "workload.adapters.count",
         "workload.adapters.ranks", "workload.popularity.weights")
COLUMNS = ("slots", "slot_rank", "adapters", "ranks", "rates", "key", "status", "tokens_per_s",
           "incoming_tokens_per_s")


@dataclass(frozen=True)
class Row:
    """One GPU; `ranks` and `rates` (requests/s) go to its adapters in turn."""

    slots: int
    slot_rank: int
    adapters: int
    ranks: tuple[int, ...]
    rates: tuple[float, ...]
    key: str
    status: str  # VALID, or INVALID where the slots leave no room
    tokens_per_s: float
    incoming_tokens_per_s: float

    def features(self) -> np.ndarray:
        """FEATURES in single precision, as scikit-learn's trees and our own compare them."""
        return features(self.adapters, self.ranks, self.rates, self.slots)

    @property
    def starved(self) -> bool:
        """Placement paper, 6."""
        return self.tokens_per_s < STARVED * self.incoming_tokens_per_s


def features(adapters: int, ranks: Sequence[int], rates: Sequence[float], slots: int) -> np.ndarray:
    """FEATURES of adapters that have `ranks` and `rates` in turn."""
    size = np.resize(np.asarray(ranks, float), adapters)
    rate = np.resize(np.asarray(rates, float), adapters)
    return np.array([adapters, rate.sum(), rate.std(), size.max(), size.mean(), size.std(), slots],
                    dtype=np.float32)


@dataclass(frozen=True)
class Table:
    about: dict[str, Any]  # spec_id, model, hardware, build_id, settings
    rows: list[Row]

    @property
    def served(self) -> list[Row]:
        """The rows whose server started."""
        return [row for row in self.rows if row.status == "VALID"]


def from_points(spec_id: str, root: Path) -> Table:
    """The points of a spec that were run so far, in the order of their keys; VerbError where there
    are none, or some are of another build or other settings."""
    folder = root / spec_id / "points"
    rows, abouts = [], set()
    for path in sorted(folder.glob("*.h5")):
        with h5py.File(path, "r") as file:
            sweep = json.loads(as_text(file["spec/sweep"][()]))
            requested = json.loads(as_text(file["spec/requested"][()]))
            summary = dict(file["summary"].attrs)
            incoming = _incoming_tokens(file, requested, float(summary["requests_total"]), path)
            head = {name: as_text(file.attrs[name])
                    for name in ("spec_id", "build_id", "status", "key")}
        if tuple(sorted(sweep)) != tuple(sorted(SWEPT)):
            raise VerbError(f"{shown(path)}: sweeps {', '.join(sweep)}, not {', '.join(SWEPT)}")
        slots, slot_rank, adapters, ranks, rates = (sweep[name] for name in SWEPT)
        duration = float(requested["workload"]["duration_s"])
        rows.append(Row(int(slots), int(slot_rank), int(adapters), tuple(map(int, ranks)),
                        tuple(map(float, rates)), head.pop("key"), head.pop("status"),
                        float(summary["total_tokens_per_s"]),
                        incoming / duration))
        head |= {name: requested[name] for name in ("model", "hardware")}
        abouts.add(json.dumps(head | {"settings": _shared(requested)}, sort_keys=True))
    if not rows:
        raise VerbError(f"{shown(folder)}: has no points; run: servelab run {spec_id}")
    if len(abouts) > 1:
        raise VerbError(f"{shown(folder)}: has points of {len(abouts)} builds or settings; remove "
                        f"the folder and run: servelab run {spec_id}")
    return Table(json.loads(abouts.pop()), sorted(rows, key=lambda row: row.key))


def _incoming_tokens(file: h5py.File, requested: dict[str, Any], requests: float,
                     path: Path) -> float:
    """That all requests of a point ask for, with what they are to generate; by the mean lengths
    where these are settings."""
    lengths = requested["workload"]["lengths"]
    if lengths.get("source") in ("fixed", "lognormal"):
        return requests * (float(lengths["prompt"]) + float(lengths["output"]))
    if "requests" not in file:
        raise VerbError(f"{shown(path)}: has neither mean lengths (workload.lengths) nor requests "
                        "(record.requests)")
    of = file["requests"]
    return float(of["prompt_tokens"][()].sum() + of["output_tokens_true"][()].sum())


def _shared(requested: dict[str, Any]) -> dict[str, Any]:
    """Settings as written, without what the rows have."""
    settings = json.loads(json.dumps(requested))
    for path in SWEPT:
        at, *names = settings, *path.split(".")
        for name in names[:-1]:
            at = at[name]
        at.pop(names[-1], None)
    return settings


def write(table: Table, path: Path) -> None:
    """Bytes depend on the table alone."""
    text = io.StringIO()
    text.write("# " + json.dumps(table.about, sort_keys=True) + "\n")
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for row in table.rows:
        out.writerow([row.slots, row.slot_rank, row.adapters, " ".join(map(str, row.ranks)),
                      " ".join(map(repr, row.rates)), row.key, row.status, repr(row.tokens_per_s),
                      repr(row.incoming_tokens_per_s)])
    data = text.getvalue().encode()
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    temporary.replace(path)


def read(path: Path) -> Table:
    """Raises VerbError, naming file and line."""
    where = shown(path)
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        first, _, rest = text.partition("\n")
        about = json.loads(first.removeprefix("# "))
        about["spec_id"], about["model"], about["hardware"], about["build_id"], about["settings"]
    except FileNotFoundError:
        raise VerbError(f"{where}: no such table; make it with `servelab train table`") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        raise VerbError(f"{where}: is no table of `servelab train table`, or cut short") from None
    lines = csv.reader(io.StringIO(rest))
    if tuple(next(lines, ())) != COLUMNS:
        raise VerbError(f"{where}:2: the columns are {', '.join(COLUMNS)}")
    rows = [_row(line, f"{where}:{number}") for number, line in enumerate(lines, 3)]
    return Table(about, rows)


def _row(line: list[str], where: str) -> Row:
    try:
        slots, slot_rank, adapters, ranks, rates, key, status, tokens, incoming = line
        row = Row(int(slots), int(slot_rank), int(adapters), tuple(map(int, ranks.split())),
                  tuple(map(float, rates.split())), key, status, float(tokens), float(incoming))
    except ValueError:
        raise VerbError(f"{where}: is not a row of {len(COLUMNS)} values") from None
    if row.adapters < 1 or not row.ranks or not row.rates or min(row.rates) < 0:
        raise VerbError(f"{where}: needs adapters with ranks, and rates that are not negative")
    return row


def arrays(rows: Iterable[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [rows, 7], tokens/s, and whether each starved."""
    rows = list(rows)
    return (np.array([row.features() for row in rows], dtype=np.float32).reshape(-1, len(FEATURES)),
            np.array([row.tokens_per_s for row in rows]), np.array([row.starved for row in rows]))
