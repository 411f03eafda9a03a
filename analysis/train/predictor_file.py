"""The file that engine/predict/predictor.h reads: HDF5, ending in its checksum."""
from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from analysis.errors import shown
from analysis.train.flat import Forest
from analysis.train.table import FEATURES
from analysis.verb import VerbError

SCHEMA = 2


@dataclass(frozen=True)
class Predictor:
    about: dict[str, Any]  # of its table
    low: np.ndarray        # the training range of FEATURES
    high: np.ndarray
    forests: dict[str, Forest]  # throughput, starvation, throughput_rules, starvation_rules
    throughput_error: float     # share of the forest's throughput that 90 % are missed by, at most
    margins: tuple[float, float]  # shares by which to take rates too high: forests', the trees'


def margin_of(path: Path) -> float:
    """The forest's, of what write() wrote. Raises VerbError; `servelab place` checks the rest."""
    try:
        with h5py.File(path) as file:
            return float(file["margins"][0])
    except (OSError, KeyError):
        raise VerbError(f"{shown(path)}: is no predictor, or of another schema; train it again"
                        ) from None


def write(predictor: Predictor, path: Path) -> None:
    """Bytes depend on the predictor alone."""
    memory = io.BytesIO()
    with h5py.File(memory, "w", libver=("v108", "v108")) as file:
        file.attrs["predictor_schema"] = np.int64(SCHEMA)
        for name in ("model", "hardware", "build_id"):
            file.attrs[name] = predictor.about[name]
        for name, forest in predictor.forests.items():
            for column in ("roots", "feature", "right", "value"):
                file.create_dataset(f"{name}/{column}", data=getattr(forest, column),
                                    compression="gzip", shuffle=True)
        file["features/names"] = list(FEATURES)
        file["features/low"] = predictor.low.astype(np.float64)
        file["features/high"] = predictor.high.astype(np.float64)
        file["settings"] = json.dumps(predictor.about["settings"], sort_keys=True)
        file["margins"] = np.array(predictor.margins, dtype=np.float64)
        file["throughput_error"] = np.array([predictor.throughput_error])
    data = memory.getvalue()
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(data + b"servelab-sha256:" + hashlib.sha256(data).hexdigest().encode())
    temporary.replace(path)
