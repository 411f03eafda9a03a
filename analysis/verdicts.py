"""Judges the papers' claims by our results: python -m analysis.verdicts [PAPER...]

experiments/claims.yaml says what each paper claims and how the value is computed; a spec lists in
`expect` the claims that it tests. A claim's verdict on the results of a spec is one of

    reproduced       the published value is within the claim's tolerance of ours, or inside our
                     95 % interval while "no effect" is not; or ours keeps the published bound
    same direction   the effect is there beyond its interval, its size is not
    not reproduced   neither
    open             nothing to judge yet: no results, one seed, a value beyond the sweep
    invalid          a point behind it is INVALID
    unsupported      these results cannot have the value

A spec whose name ends in _published runs its figure under the published system's own costs; its
verdicts are a second column, "as published". A claim that does not depend on these says so
(`as_published: {same: WHY}`), and has the same verdict in both; one that cannot be had so says why
(`as_published: {unsupported: WHY}`).

The terminal shows how many verdicts of each kind a paper has, and which differ from those that
results/verdicts.csv had before it is written anew; with --list or the name of a paper every
verdict. A spec that has not run is judged only where the claim has no other results. Exit code 2:
claims.yaml is wrong, or nothing can be written.
"""
from __future__ import annotations

import argparse
import csv
import io
import math
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from analysis import compute, verb
from analysis.claim_file import (Claim, ClaimsError, expectations, is_published, load_claims,
                                 papers_of)
from analysis.compute import Missing
from analysis.errors import EXPERIMENTS, ResultsError, shown
from analysis.results import Results
from analysis.stats import Estimate

VERDICTS = ("reproduced", "same direction", "not reproduced", "open", "invalid", "unsupported")
COLUMNS = ("claim", "paper", "figure", "spec", "backend", "sentence", "compare", "published",
           "tolerance", "unit", "value", "low", "high", "seeds", "at", "verdict", "reason", "cause",
           "experiment", "column")
AS_PUBLISHED = "as published"  # the second column of verdicts
CHANGES_SHOWN = 5
NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class Verdict:
    """A claim judged by the results of one spec."""

    claim: Claim
    spec_id: str
    verdict: str
    estimate: Estimate = NOTHING
    at: str = ""
    reason: str = ""
    backend: str = ""
    column: str = ""  # or AS_PUBLISHED


def judge(claim: Claim, results: Results) -> Verdict:
    """The claim's verdict on these results."""
    where = {"spec_id": results.spec_id, "backend": results.attributes.get("backend", "")}
    if claim.unsupported:
        return Verdict(claim, verdict="unsupported", reason=claim.unsupported, **where)
    if claim.method:
        return Verdict(claim, verdict="open", reason=f"not computed yet: {claim.method}", **where)
    try:
        found = compute.reduced(compute.found_values(results, claim.compute),
                                claim.compute.get("reduce", ""), claim.compare)
        used = compute.is_used(results, claim.compute)
        invalid = int((results.columns["status"][used] != "VALID").sum())
    except Missing as missing:
        return Verdict(claim, verdict="open", reason=str(missing), **where)
    except ResultsError as error:
        return Verdict(claim, verdict="unsupported", reason=str(error), **where)
    where |= {"estimate": found.estimate, "at": found.at}
    if invalid:
        return Verdict(claim, verdict="invalid", **where,
                       reason=f"{invalid} of {int(used.sum())} points are INVALID")
    if found.beyond:
        return Verdict(claim, verdict="open", reason=f"{found.beyond}: extend the sweep", **where)
    verdict, reason = _compared(claim, found.estimate)
    return Verdict(claim, verdict=verdict, reason=reason, **where)


def _compared(claim: Claim, ours: Estimate) -> tuple[str, str]:
    """Verdict and reason for a finite value."""
    has_interval = math.isfinite(ours.low)
    low, high = (ours.low, ours.high) if has_interval else (ours.value, ours.value)
    slack = claim.tolerance * abs(claim.published)
    lone = "" if has_interval or not compute.KINDS[claim.compute["kind"]].has_interval else (
        "one seed: no interval")
    if claim.compare != "near":
        kept = (high >= claim.published - slack if claim.compare == "at-least"
                else low <= claim.published + slack)
        return ("reproduced" if kept else "open" if lone else "not reproduced"), lone
    if abs(ours.value - claim.published) <= slack:
        return "reproduced", lone
    neutral = claim.neutral if claim.neutral is not None else (
        compute.KINDS[claim.compute["kind"]].neutral)
    spans_nothing = neutral is not None and neutral != claim.published and low <= neutral <= high
    if low <= claim.published <= high:
        return (("open", "the interval holds the published value and no effect: more seeds")
                if spans_nothing else ("reproduced", "inside the interval"))
    if lone:
        return "open", lone
    if neutral is not None and neutral != claim.published and not spans_nothing and (
            (ours.value > neutral) == (claim.published > neutral)):
        return "same direction", ""
    return "not reproduced", ""


Loaded = dict[str, Results | ResultsError]  # by spec id: checked results, or what is wrong


def verdicts_of(claims: dict[str, Claim], expected: dict[str, list[str]], root: Path,
                loaded: Loaded | None = None) -> list[Verdict]:
    """A verdict for each claim and each spec that has results for it, in the order of the file;
    those as published come after a claim's others. Results are taken from `loaded`, and left
    there."""
    loaded = {} if loaded is None else loaded
    found = []
    for claim in claims.values():
        specs = expected.get(claim.id, [])
        own = _judged(claim, [spec for spec in specs if not is_published(spec)], root, loaded)
        found += own
        if "same" in claim.as_published:
            reason = f"the same in both columns: {claim.as_published['same']}"
            found.append(replace(own[0], column=AS_PUBLISHED, reason="; ".join(
                text for text in (own[0].reason, reason) if text)))
        if "unsupported" in claim.as_published:
            found.append(Verdict(claim, own[0].spec_id, "unsupported", column=AS_PUBLISHED,
                                 reason=claim.as_published["unsupported"]))
        again = [spec for spec in specs if is_published(spec)]
        if again:
            found += [replace(row, column=AS_PUBLISHED)
                      for row in _judged(claim.published_form(), again, root, loaded)]
    return found


def _judged(claim: Claim, specs: list[str], root: Path, loaded: Loaded) -> list[Verdict]:
    present = [spec for spec in specs if (root / spec / "collected.h5").is_file()]
    if not present:
        verdict = "unsupported" if claim.unsupported else "open"
        reason = claim.unsupported or ("no results" if specs else "no spec expects it yet")
        return [Verdict(claim, specs[0] if specs else claim.figure, verdict, reason=reason)]
    found = []
    for spec in present:
        if spec not in loaded:
            loaded[spec] = load(spec, root)
        results = loaded[spec]
        found.append(judge(claim, results) if isinstance(results, Results) else
                     Verdict(claim, spec, "open", reason=str(results)))
    return found


def paired(verdicts: list[Verdict]) -> list[tuple[Verdict, Verdict | None]]:
    """Each verdict of the first column; beside a claim's first one that as published, if any."""
    second = {row.claim.id: row for row in verdicts if row.column}
    return [(row, second.pop(row.claim.id, None)) for row in verdicts if not row.column]


def load(spec: str, root: Path) -> Results | ResultsError:
    """The results of a spec, checked, or what is wrong with them."""
    try:
        results = Results.load(spec, root)
        results.check()
        return results
    except ResultsError as error:
        return error


def number(value: float) -> str:
    """Three significant digits, without an exponent where that is short."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def value_text(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(estimate.low)}, {number(estimate.high)}]"


def published_text(claim: Claim) -> str:
    """'>= 96.7 %'."""
    signs = {"near": "", "at-least": ">= ", "at-most": "<= "}
    return f"{signs[claim.compare]}{number(claim.published)} {claim.unit}".strip()


def explanations(row: Verdict) -> list[str]:
    """Why the verdict is what it is, where there is something to say."""
    found = [row.reason] if row.reason else []
    if row.verdict in ("same direction", "not reproduced"):
        found.append(f"{row.claim.cause} ({row.claim.experiment})" if row.claim.cause else
                     "no experiment has shown the cause yet")
    return found


def second_reasons(row: Verdict, second: Verdict | None) -> list[str]:
    """What explains the verdict as published and is not said of the first already."""
    said = explanations(row)
    return [text for text in explanations(second) if text not in said] if second else []


def counts_of(verdicts: list[Verdict]) -> dict[str, int]:
    return {name: sum(row.verdict == name for row in verdicts) for name in VERDICTS}


def name_of(claim: str, spec: str, column: str = "") -> str:
    """The claim, and the spec or column that judges it where that is not its own."""
    name = claim if claim.startswith(f"{spec}-") else f"{claim} ({spec.split('/')[-1]})"
    return name if not column or is_published(spec) else f"{name}, {column}"


def table_of(verdicts: list[Verdict]) -> str:
    """A line for each verdict with the one as published beside it, reasons and causes below, and
    how many there are in each column."""
    pairs = paired(verdicts)
    has_second = any(second for _, second in pairs)
    heading = f"  {AS_PUBLISHED + ', 95 % CI':24} verdict" if has_second else ""
    lines = [f"{'claim':32} {'ours, 95 % CI':24} {'n':>2}  {'published':>12}  "
             f"{'verdict':{14 if has_second else 7}}{heading}"]
    for row, second in pairs:
        claim = row.claim
        line = (f"{name_of(claim.id, row.spec_id):32} {value_text(row.estimate):24} "
                f"{row.estimate.n or '':>2}  {published_text(claim):>12}  {row.verdict}")
        if second:
            line = f"{line:92}{value_text(second.estimate):24} {second.verdict}"
        lines.append(line)
        for text in [*explanations(row),
                     *(f"{AS_PUBLISHED}: {text}" for text in second_reasons(row, second))]:
            lines += textwrap.wrap(text, 96, initial_indent="    ", subsequent_indent="    ")
    lines.append("")
    for column, what in (("", "verdicts"), (AS_PUBLISHED, AS_PUBLISHED)):
        rows = [row for row in verdicts if row.column == column]
        if rows or not column:
            counts = [f"{count} {name}" for name, count in counts_of(rows).items()]
            lines.append(f"{len(rows)} {what}: {', '.join(counts)}")
    return "\n".join(lines) + "\n"


def summary_of(verdicts: list[Verdict]) -> str:
    """How many verdicts of each kind every paper has; as published in a line of their own, which is
    not in the sum."""
    papers = list(dict.fromkeys(row.claim.paper for row in verdicts))
    lines = [" ".join([f"{'verdicts':12}", *(f"{name:>{len(name) + 1}}" for name in VERDICTS)])]

    def add(title: str, rows: list[Verdict]) -> None:
        lines.append(" ".join([f"{title:12}", *(f"{count:>{len(name) + 1}}"
                                                for name, count in counts_of(rows).items())]))

    for paper in papers:
        rows = [row for row in verdicts if row.claim.paper == paper]
        add(paper, [row for row in rows if not row.column])
        if second := [row for row in rows if row.column]:
            add("  published", second)
    add("all", [row for row in verdicts if not row.column])
    return "\n".join(lines) + "\n"


Judged = dict[tuple[str, str, str], str]  # by claim, spec and column, the verdict


def judged_before(path: Path) -> Judged:
    """What verdicts.csv says; raises ValueError with what is wrong with it."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
    except FileNotFoundError:
        raise ValueError("this is the first run") from None
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"{shown(path)} was damaged") from None
    absent = [name for name in COLUMNS if not rows or name not in rows[0]]
    if absent:
        raise ValueError(f"{shown(path)} had no {'rows' if not rows else f'column {absent[0]}'}")
    if any(None in row.values() or None in row or row["verdict"] not in VERDICTS for row in rows):
        raise ValueError(f"{shown(path)} was damaged")
    return {(row["claim"], row["spec"], row["column"]): row["verdict"] for row in rows}


def changes_of(before: Judged, verdicts: list[Verdict]) -> str:
    """A line for each verdict that is another than before; of many, how many changed and how."""
    after = {(row.claim.id, row.spec_id, row.column): row.verdict for row in verdicts}
    changed = [(name_of(*key), f"{before.get(key, 'absent')} -> {after.get(key, 'absent')}")
               for key in [*after, *(key for key in before if key not in after)]
               if before.get(key) != after.get(key)]
    if not changed:
        return "Nothing changed since the last run.\n"
    few = changed if len(changed) <= CHANGES_SHOWN + 1 else changed[:CHANGES_SHOWN]
    lines = ["Changed since the last run:", *(f"  {name}: {how}" for name, how in few)]
    more = Counter(how for _, how in changed[len(few):])
    if more:
        lines.append("  and " + ", ".join(f"{count} {how}" for how, count in more.most_common(4))
                     + (f", {more.total()} in all" if len(more) > 4 else ""))
    return "\n".join(lines) + "\n"


def csv_of(verdicts: list[Verdict]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in verdicts:
        claim, ours = row.claim, row.estimate
        writer.writerow([claim.id, claim.paper, claim.figure, row.spec_id, row.backend, claim.claim,
                         claim.compare, claim.published, claim.tolerance, claim.unit,
                         *("" if math.isnan(value) else f"{value:.6g}"
                           for value in (ours.value, ours.low, ours.high)),
                         ours.n, row.at, row.verdict, row.reason, claim.cause, claim.experiment,
                         row.column])
    return text.getvalue()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.verdicts", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("papers", nargs="*", metavar="PAPER", help="such as dlora; default: all")
    parser.add_argument("--list", action="store_true", help="every verdict, not how many there are")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR",
                        help="where the runs are (default: results)")
    parser.add_argument("--experiments", type=Path, default=EXPERIMENTS, metavar="DIR",
                        help="claims.yaml and the specs (default: those of this tree)")
    options = parser.parse_args(arguments)
    with verb.plain_streams():
        return _judge_all(options)


def _judge_all(options: argparse.Namespace) -> int:
    try:
        claims = load_claims(options.experiments / "claims.yaml")
        papers = papers_of(claims, options.papers)
        found = verdicts_of(claims, expectations(options.experiments), options.results)
        listed = options.list or options.papers
        print(table_of([row for row in found if row.claim.paper in papers]) if listed else
              summary_of(found), flush=True)
        path = options.results / "verdicts.csv"
        try:
            changes = changes_of(judged_before(path), found)
        except ValueError as error:
            changes = f"No verdicts to compare with: {error}.\n"
        options.results.mkdir(parents=True, exist_ok=True)
        write(path, csv_of(found))
        print(changes)
        report = options.results / "report.html"
        print(f"Each verdict: {shown(path)}, {shown(report)} (make report)", flush=True)
    except ClaimsError as error:
        print(f"verdicts: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"verdicts: {error.filename or 'stdout'}: {error.strerror}", file=sys.stderr)
        return 2
    except Exception as error:
        print(f"verdicts: {verb.unexpected(error)}", file=sys.stderr)
        return 2
    return 0


def write(path: Path, text: str) -> Path:
    """Writes a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        return part.replace(path)
    finally:
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
