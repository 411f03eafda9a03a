#!/usr/bin/env python3
"""Fits constants of the twin to whole runs of another server, by running the twin.

    data/fit_runs.py --spec SERVER.yaml --rows ROWS.csv --term FILE:KEY... [--search] [--write]

Where `servelab calibrate --from` solves one line per run, by Little's law, this runs the twin of
every row of the part `fitted` (engine/calibrate/measured_rows.h), again and again: for servers
whose prefills stop decodes, whose loads stop everything, or whose queue never settles. A term is a
key of a file below experiments/base, with the value that it has there to start from; KEY may be a
pattern (`*_adapter_us`), whose keys, and a list's numbers, change by one factor. What is minimised:
squares of log(twin / measured) of throughput, latency, TTFT and ITL, weighted 4, 1.5, 0.5 and 1.
`--search` goes by differential evolution within a factor of two first, and by mean absolute errors
throughout: for a fit with jumps, such as a server whose rounds take in whoever has come.

Prints errors of every part before and after, and the values; `--write` puts them into the files.
The program is $SERVELAB, or build/servelab.
"""
import argparse
import csv
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.optimize import differential_evolution, least_squares

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("SERVELAB", str(ROOT / "build/servelab"))
NUMBER = r"[-+]?[\d.]+(?:[eE][-+]?\d+)?"
SETTING = re.compile(rf"^(\s*([\w-]+):\s*)({NUMBER}|\[{NUMBER}(?:,\s*{NUMBER})*\])", re.M)
METRICS = ["tokens_per_s", "latency_s", "ttft_s", "itl_s"]
WEIGHTS = np.array([4, 1.5, 0.5, 1])
LEAST = 1e-3  # factor
WORST = 1.0  # an error beyond it counts as this


class Term:
    """Numbers of a file that change by one factor."""

    def __init__(self, text: str):
        self.file, _, self.pattern = text.partition(":")
        path = ROOT / "experiments/base" / self.file
        if not path.is_file():
            sys.exit(f"--term {text}: there is no {path}")
        keys = {match[2]: match[3] for match in SETTING.finditer(path.read_text())
                if fnmatch.fnmatch(match[2], self.pattern)}
        if not keys:
            sys.exit(f"--term {text}: {path} has no number under such a key")
        self.start = keys
        if not any(float(n) > 0 for value in keys.values() for n in re.findall(NUMBER, value)):
            sys.exit(f"--term {text}: is 0, which no factor changes; give it a value to start from")

    def put(self, text: str, factor: float) -> str:
        def scaled(match: re.Match) -> str:
            if match[2] not in self.start:
                return match[0]
            return match[1] + re.sub(NUMBER, lambda n: f"{float(n[0]) * factor:.6g}", match[3])
        return SETTING.sub(scaled, text)


class Twin:
    """The twin of all rows, as a function of the terms' factors."""

    def __init__(self, spec: Path, rows: Path, terms: list[Term], part: str | None):
        self.terms = terms
        self.folder = Path(tempfile.mkdtemp(prefix="fit_runs_"))
        self.experiments = self.folder / "experiments"
        shutil.copytree(ROOT / "experiments/base", self.experiments / "base")
        self.spec = self.folder / "server.yaml"
        shutil.copy(spec, self.spec)
        self.rows = self.folder / "rows.csv"
        with rows.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            own = [row for row in table if part in (None, row.get("part", part))]
            names = table.fieldnames
        if not own:
            sys.exit(f"{rows}: has no rows of the part '{part}'")
        with self.rows.open("w", encoding="utf-8", newline="") as file:
            out = csv.DictWriter(file, names)
            out.writeheader()
            out.writerows(own)

    def write(self, factors, base: Path) -> None:
        files = {term.file for term in self.terms}
        for name in files:
            text = (ROOT / "experiments/base" / name).read_text()
            for term, factor in zip(self.terms, factors):
                if term.file == name:
                    text = term.put(text, factor)
            (base / name).write_text(text)

    def logs(self, factors) -> np.ndarray:
        """log(twin / measured), rows x METRICS; NaN where a row lacks a value."""
        self.write(factors, self.experiments / "base")
        done = subprocess.run(
            [PROGRAM, "validate", str(self.spec), "--measured", str(self.rows), "--experiments",
             str(self.experiments), "--out", str(self.folder / "out"), "--force", "-q"],
            cwd=ROOT, capture_output=True, text=True)
        found = list(self.folder.glob("out/**/validation_points.csv"))
        if len(found) != 1:
            sys.exit(f"servelab validate: {done.stderr.strip()}")
        with found[0].open(encoding="utf-8", newline="") as file:
            points = [row for row in csv.DictReader(file) if row["variant"].startswith("twin")]
        found[0].unlink()
        self.parts = [row["variant"].partition(", rows ")[2] or "judged" for row in points]
        ours, theirs = (np.array([[float(row[f"{side}_{name}"]) for name in METRICS]
                                  for row in points]) for side in ("twin", "engine"))
        return np.log(ours / theirs)

    def close(self) -> None:
        shutil.rmtree(self.folder)


def report(twin: Twin, factors) -> None:
    errors = 100 * np.abs(np.expm1(twin.logs(factors)))
    parts = np.array(twin.parts)
    print(f"  {'mean |error| %':16}{'rows':>5}" + "".join(f"{name:>14}" for name in METRICS))
    for part in sorted(set(parts)):
        own = errors[parts == part]
        print(f"  {part:16}{len(own):5}" + "".join(f"{e:14.2f}" for e in np.nanmean(own, axis=0)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--term", type=Term, action="append", required=True, dest="terms")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--generations", type=int, default=15, help="with --search")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    terms, ones = options.terms, np.ones(len(options.terms))
    everything = Twin(options.spec, options.rows, terms, None)
    fitted = Twin(options.spec, options.rows, terms, "fitted")
    print("as it is:")
    report(everything, ones)

    def residuals(factors) -> np.ndarray:
        return np.nan_to_num(fitted.logs(factors) * WEIGHTS).ravel().clip(-WORST, WORST)

    def mean_error(x) -> float:
        return float(np.nanmean(np.abs(np.expm1(fitted.logs(np.exp(x)))).clip(0, WORST)))

    factors = ones
    if options.search:
        bound = np.log(2)
        found = differential_evolution(mean_error, [(-bound, bound)] * len(terms),
                                       x0=np.zeros(len(terms)), popsize=6,
                                       maxiter=options.generations, seed=3, polish=False)
        factors = np.exp(found.x)
        print(f"searched: mean error {100 * found.fun:.2f} % in {found.nfev} runs", flush=True)
    else:
        for step in (0.1, 0.03):
            found = least_squares(residuals, factors, bounds=(LEAST, np.inf), diff_step=step,
                                  max_nfev=12)
            factors = found.x
            print(f"steps of {step:g}: root mean square {np.sqrt(np.mean(found.fun**2)):.4f}",
                  flush=True)
    print("fitted:")
    report(everything, factors)
    for term, factor in zip(terms, factors):
        for key, value in term.start.items():
            scaled = re.sub(NUMBER, lambda n: f"{float(n[0]) * factor:.6g}", value)
            print(f"  {term.file}: {key} {value} -> {scaled}")
    if options.write:
        everything.write(factors, ROOT / "experiments/base")
    everything.close()
    fitted.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
