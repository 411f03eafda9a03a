"""Writes results/report.html and results/report.md: python -m analysis.report [PAPER...]

Nothing is run. The claims of experiments/claims.yaml are judged by the results that are there (as
python -m analysis.verdicts does), figures that are absent or older than their results are drawn,
and what is not there is listed as open or not run. report.html is one file that loads nothing else;
report.md is the same in Markdown, with the figures as links. Exit code 2: claims.yaml is wrong, or
nothing can be written.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis import verb
from analysis.claim_file import ClaimsError
from analysis.errors import EXPERIMENTS, shown
from analysis.report import content, rendering
from analysis.verdicts import write


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("papers", nargs="*", metavar="PAPER", help="such as dlora; default: all")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR",
                        help="where the runs are, and where the report goes (default: results)")
    parser.add_argument("--experiments", type=Path, default=EXPERIMENTS, metavar="DIR",
                        help="claims.yaml and the specs (default: those of this tree)")
    options = parser.parse_args(arguments)
    with verb.plain_streams():
        return _write_report(options)


def _write_report(options: argparse.Namespace) -> int:
    try:
        report = content.report_of(options.results, options.experiments, options.papers)
        for problem in (text for figure in report.figures for text in figure.problems):
            print(f"report: {problem}", file=sys.stderr)
        options.results.mkdir(parents=True, exist_ok=True)
        for name, text in (("report.md", rendering.markdown_of(report, options.results)),
                           ("report.html", rendering.html_of(report))):
            path = write(options.results / name, text)
            print(f"Written: {shown(path)} ({len(text.encode()) / 1e6:.2f} MB)")
        counts = ", ".join(f"{count} {name}" for name, count in report.counts.items())
        print(f"{report.claims} claims, {len(report.rows)} verdicts: {counts}", flush=True)
    except ClaimsError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"report: {error.filename or 'stdout'}: {error.strerror}", file=sys.stderr)
        return 2
    except Exception as error:
        print(f"report: {verb.unexpected(error)}", file=sys.stderr)
        return 2
    return 0
