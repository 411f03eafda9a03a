"""Draws how well a calibration fits what was measured: `servelab calibrate` leaves a CSV beside the
profile, a line per step or run.

    .venv/bin/python -m analysis.calibration results/calibration/measured.csv [--out FOLDER]

NAME.png and .pdf: each row's error against its measured time, by a fit that has seen the row and,
for `calibrate --from`, by one that has not; and what the times are made of.
"""
from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator

from analysis import style, verb
from analysis.verb import VerbError

SEEN, UNSEEN = "fitted_us", "unseen_us"
# Of calibrate --from, and of an engine's own calibration.
MEASURED = ("measured_us", "total_us")
PARTS = ("dense_us", "attention_us", "lora_us")


def read(path: Path) -> dict[str, list[str]]:
    """Columns, of rows with a fitted time."""
    if not path.is_file():
        raise VerbError(f"{path}: no such file")
    with open(path, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get(SEEN)]
    measured = next((name for name in MEASURED if rows and name in rows[0]), None)
    if not rows or measured is None:
        raise VerbError(f"{path}: no row has {SEEN} beside one of {', '.join(MEASURED)}; it is the "
                        "CSV that servelab calibrate leaves beside a profile")
    return {"measured_us": [row[measured] for row in rows],
            **{name: [row[name] for row in rows] for name in rows[0]}}


def numbers(path: Path, columns: dict[str, list[str]], name: str) -> np.ndarray:
    try:
        return np.array([float(text or "nan") for text in columns[name]])
    except ValueError as error:
        raise VerbError(f"{path}: column {name}: {error}") from error


def draw(path: Path) -> plt.Figure:
    columns = read(path)
    kinds = np.array(columns["kind"])
    measured = numbers(path, columns, "measured_us")
    names = list(columns)
    terms = (names[names.index(UNSEEN) + 1:] if UNSEEN in names
             else [name for name in PARTS if name in names])
    figure, (errors, made_of) = plt.subplots(1, 2, figsize=(style.TWO_COLUMNS_IN, 2.6),
                                             width_ratios=(3, 2), layout="constrained")
    for column, color, hollow, label in ((SEEN, style.BLUE, False, "fitted"),
                                         (UNSEEN, style.VERMILION, True, "not seen by the fit")):
        if column not in columns:
            continue
        ratio = numbers(path, columns, column) / measured - 1
        for kind, marker in zip(sorted(set(kinds)), "o^sDv"):
            at = kinds == kind
            smape = 100 * np.mean(np.abs(ratio[at] / (2 + ratio[at])))
            errors.plot(measured[at] / 1e3, 100 * ratio[at], marker, color=color, markersize=3,
                        fillstyle="none" if hollow else "full", markeredgewidth=0.6,
                        label=f"{kind}s, {label}: {at.sum()}, SMAPE {smape:.1f} %")
    errors.axhline(0, color=style.GREY, linewidth=0.6)
    errors.set_xscale("log")
    errors.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    errors.xaxis.set_major_formatter("{x:g}")
    errors.xaxis.set_minor_formatter("")
    errors.set_xlabel("measured latency (ms)")
    errors.set_ylabel("model over measured (%)")
    errors.legend(loc="best")
    values = np.array([numbers(path, columns, name) for name in terms])
    shares = 100 * np.nanmean(values / values.sum(axis=0), axis=1)
    shown = [i for i in np.argsort(shares) if shares[i] > 0]
    bars = made_of.barh([terms[i].removesuffix("_us") for i in shown], shares[shown],
                        color=style.SKY)
    made_of.bar_label(bars, fmt="%.0f %%", padding=2, fontsize=6)
    made_of.margins(x=0.15)
    made_of.set_xlabel("share of a row's latency, mean (%)")
    made_of.grid(False)
    return figure


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = verb.Parser(prog="analysis.calibration", description=__doc__,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--out", type=Path, help="folder; else the CSV's")
    return parser.parse_args(arguments)


def command(options: argparse.Namespace) -> int:
    figure = draw(options.csv)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    for path in style.save(figure, options.out or options.csv.parent, options.csv.stem):
        print(path)
    return verb.OK


def main(arguments: list[str] | None = None) -> int:
    return verb.run(arguments, parse, command)


if __name__ == "__main__":
    sys.exit(main())
