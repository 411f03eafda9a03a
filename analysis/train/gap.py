"""How many GPUs the greedy placement uses beyond the fewest that the same predictor allows.

The fewest is exact: every way to fill one GPU that some A_max keeps from starving is a pattern, and
what so many GPUs can hold between them is found by adding all patterns to all that one GPU less can
hold. Memory is no limit here: up to 60 slots of rank 32 fit beside the models that there are
predictors of."""
from __future__ import annotations

import csv
import itertools
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import numpy as np

from analysis.train import models
from analysis.train.table import FEATURES
from analysis.verb import VerbError

MOST_ADAPTERS = 60
RATES = (2.4, 1.2, 0.6, 0.3, 0.15)  # the paper's high ones, at which 60 adapters need several GPUs
RANKS = (8, 16, 32)
UNSERVED = 3  # `servelab place`'s exit code
SLOTS = (8, 16, 32, 64)  # the testing points up to MOST_ADAPTERS, and the next one


@dataclass(frozen=True)
class Workload:
    rank: int
    rates: tuple[float, ...]   # requests/s of each adapter

    @property
    def kinds(self) -> list[tuple[float, int]]:
        """(rate, adapters that have it)."""
        return sorted(Counter(self.rates).items())


def draw(seed: int) -> Workload:
    """One rank, three rates, 24 to 60 adapters."""
    rng = np.random.default_rng(seed)
    rates = rng.choice(RATES, 3, replace=False)
    return Workload(int(rng.choice(RANKS)),
                    tuple(map(float, rng.choice(rates, int(rng.integers(24, MOST_ADAPTERS + 1))))))


# Probabilities of starvation, of rows of features.
Starvation = Callable[[np.ndarray], np.ndarray]


def patterns(workload: Workload, starvation: Starvation, margin: float) -> np.ndarray:
    """Each row: adapters of each kind that one GPU serves together without starving."""
    rates = np.array([rate for rate, _ in workload.kinds])
    filled = np.array([one for one in itertools.product(
        *(range(count + 1) for _, count in workload.kinds)) if any(one)])
    count = filled.sum(axis=1)
    total = filled @ rates
    spread = np.sqrt(np.maximum(filled @ rates ** 2 / count - (total / count) ** 2, 0))
    rank = np.full(len(filled), workload.rank)
    x = np.concatenate([np.column_stack([count, total, spread, rank, rank, 0 * rank,
                                         np.minimum(slots, count)]) for slots in SLOTS])
    starves = starvation(models.raised(x.astype(np.float32), margin))
    return filled[(starves.reshape(len(SLOTS), -1) <= 0.5).any(axis=0)]


def fewest(workload: Workload, starvation: Starvation, margin: float) -> int:
    """GPUs; 0 where no number of them serves the workload."""
    ways = patterns(workload, starvation, margin)
    reached = np.zeros([count + 1 for _, count in workload.kinds], dtype=bool)
    reached.flat[0] = True
    for gpus in range(1, len(workload.rates) + 1):
        more = reached.copy()
        for way in ways:
            more[tuple(slice(one, None) for one in way)] |= reached[
                tuple(slice(None, size - one) for size, one in zip(reached.shape, way))]
        if more.flat[-1]:
            return gpus
        if (more == reached).all():
            break
        reached = more
    return 0


@dataclass(frozen=True)
class Placer:
    """`servelab place` by one predictor."""

    program: str
    predictor: Path

    def starvation(self, rows: np.ndarray) -> np.ndarray:
        lines = [",".join(FEATURES), *(",".join(f"{value:.9g}" for value in row) for row in rows)]
        _, out = self._run("rows.csv", lines, "--predict")
        return np.array([float(line["starvation"]) for line in csv.DictReader(out.splitlines())])

    def gpus(self, workload: Workload) -> int:
        """That the greedy placement uses; 0 where it finds none."""
        lines = ["name,rank,rate", *(f"a{i},{workload.rank},{rate}"
                                     for i, rate in enumerate(workload.rates))]
        code, out = self._run("a.csv", lines, "--gpus", str(MOST_ADAPTERS), "--final", "retry",
                              "--adapters")
        return 0 if code == UNSERVED else int(out.split(" adapters on ")[1].split()[0])

    def _run(self, name: str, lines: list[str], *arguments: str) -> tuple[int, str]:
        """With the lines in a file whose name goes last."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            try:
                done = subprocess.run(
                    [self.program, "place", "--predictor", self.predictor, "--out",
                     path.with_suffix(".json"), *arguments, path],
                    capture_output=True, text=True, check=False)
            except OSError as problem:
                raise VerbError(f"{self.program}: {problem.strerror}; build it (`make build`)"
                                ) from None
        if done.returncode not in (0, UNSERVED):
            raise VerbError(done.stderr.strip())
        return done.returncode, done.stdout
