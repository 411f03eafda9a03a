"""Draws figures from collected results: python -m analysis.draw SPEC_ID...

Each spec id, such as dlora/fig10, is read from results/<spec id>/ and drawn there as PDF and PNG by
analysis/figures/<paper>_<fig>.py, or by the module that the spec's `figure` names. Exit code 2, and
one line for each, when a figure could not be drawn; the others are drawn all the same.
"""
from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from analysis import verb
from analysis.claim_file import ClaimsError
from analysis.errors import EXPERIMENTS, ResultsError, shown
from analysis.results import Results

FIGURES = Path(__file__).with_name("figures")


def known_figures() -> list[str]:
    """What a spec's `figure` can name, such as dlora/fig10."""
    return sorted(path.stem.replace("_", "/", 1) for path in FIGURES.glob("[!_]*_*.py"))


def module_for(results: Results) -> ModuleType:
    """The drawing code: what the spec's `figure` names, else its id, else the generic figure,
    which also draws variants of a spec that has no code."""
    named = results.attributes.get("figure", "")  # without `figure`: the id's last part, no slash
    for figure in (named, results.spec_id):
        name = figure.replace("/", "_").replace("-", "_")
        if "/" in figure and name.isidentifier() and (FIGURES / f"{name}.py").is_file():
            return importlib.import_module(f"analysis.figures.{name}")
        if "/" in figure and figure == named and not (EXPERIMENTS / f"{named}.yaml").is_file():
            raise results.error(f"there is no figure '{figure[:60]}'; "
                                f"known: {', '.join(known_figures())}")
    return importlib.import_module("analysis.figures.generic")


def draw(spec_id: str, root: Path, out: Path | None = None) -> list[Path]:
    """Draws one spec's figure, in its results' folder or in `out`/<spec id>; returns the files,
    raises ResultsError."""
    folder = (out or root) / spec_id
    results = Results.load(spec_id, root)
    results.check()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return module_for(results).draw(results, folder)
    except OSError as error:
        raise ResultsError(Path(error.filename or folder), error.strerror or str(error),
                           "check the folder's permissions and free space, or choose another one "
                           "with --out") from None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.draw", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec_ids", nargs="+", metavar="SPEC_ID")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR",
                        help="where the runs are (default: results)")
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="where pictures go (default: beside the results)")
    options = parser.parse_args(arguments)
    with verb.plain_streams():
        return _draw_all(options)


def _draw_all(options: argparse.Namespace) -> int:
    written: list[Path] = []
    failures: list[str] = []
    for spec_id in options.spec_ids:
        try:
            written += draw(spec_id, options.results, options.out)
        except (ResultsError, ClaimsError) as error:
            failures.append(str(error))
        except Exception as error:
            failures.append(str(verb.unexpected(error)))
    try:
        for path in written:
            if path.suffix == ".txt":
                print(path.read_text(encoding="utf-8"))
        if written:
            print(f"Drawn in {(options.out or options.results).resolve()}:")
            for path in written:
                print(f"  {shown(path)}")
        sys.stdout.flush()
    except OSError as error:
        failures.append(f"stdout cannot be written: {error.strerror}")
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # not tried again at exit
    for failure in failures:
        print(f"draw: {failure}", file=sys.stderr)
    return 2 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
