"""What the report says: by paper its claims with their verdicts, then every figure with its origin.

Everything comes from experiments/ and a results folder; no clock, no machine. The same results give
the same content.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from analysis import draw, verdicts, yaml_text
from analysis.claim_file import Claim, ClaimsError, expectations, load_claims, papers_of
from analysis.errors import ResultsError, command_for
from analysis.report import origin, pictures
from analysis.report.origin import Origin
from analysis.report.pictures import Picture
from analysis.results import FOOTER_ATTRIBUTES, Results
from analysis.verdicts import Verdict

PAPERS = {"dlora": "dLoRA (OSDI '24)", "caraserve": "CaraServe (2024)",
          "placement": "Placement pipeline (digital twin)",
          "muxserve": "MuxServe (2024)", "infinilora": "InfiniLoRA"}


@dataclass(frozen=True)
class Row:
    """A verdict with the one as published beside it, if any, and where to link to it."""

    anchor: str
    verdict: Verdict
    second: Verdict | None = None

    @property
    def second_reasons(self) -> list[str]:
        return verdicts.second_reasons(self.verdict, self.second)


@dataclass
class Figure:
    """A spec: with results, damaged ones, or none. Texts are plain."""

    spec_id: str
    anchor: str
    title: str
    command: str
    has_results: bool = False
    problems: list[str] = field(default_factory=list)
    backends: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    origin: Origin = field(default_factory=Origin)
    pictures: list[Picture] = field(default_factory=list)
    tables: list[tuple[str, str]] = field(default_factory=list)  # file, text
    spec: str = ""
    alt: str = ""
    rows: list[Row] = field(default_factory=list)


@dataclass
class Paper:
    id: str
    title: str
    rows: list[Row]
    figures: list[Figure]
    without_spec: list[str]  # figures that claims name and no spec runs

    @property
    def counts(self) -> dict[str, int]:
        return verdicts.counts_of([row.verdict for row in self.rows])

    @property
    def second_counts(self) -> dict[str, int]:
        """Of the column "as published"; empty without one."""
        second = [row.second for row in self.rows if row.second]
        return verdicts.counts_of(second) if second else {}

    @property
    def claims(self) -> int:
        return len({row.verdict.claim.id for row in self.rows})


@dataclass
class Report:
    papers: list[Paper]

    @property
    def figures(self) -> list[Figure]:
        return [figure for paper in self.papers for figure in paper.figures]

    @property
    def rows(self) -> list[Row]:
        return [row for paper in self.papers for row in paper.rows]

    @property
    def counts(self) -> dict[str, int]:
        return verdicts.counts_of([row.verdict for row in self.rows])

    @property
    def claims(self) -> int:
        return sum(paper.claims for paper in self.papers)

    @property
    def builds(self) -> dict[str, int]:
        """Build ids with how many points are theirs, the most first."""
        total: dict[str, int] = {}
        for figure in self.figures:
            for build, points in figure.origin.builds.items():
                total[build] = total.get(build, 0) + points
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))

    @property
    def backends(self) -> dict[str, int]:
        """Backends with how many figures they have."""
        total: dict[str, int] = {}
        for figure in self.figures:
            for backend in figure.backends:
                total[backend] = total.get(backend, 0) + 1
        return dict(sorted(total.items()))

    @property
    def period(self) -> str:
        return origin.period([stamp for figure in self.figures
                              for stamp in figure.origin.written])


def anchor(kind: str, name: str) -> str:
    """A stable id for HTML, such as claim-dlora-fig10-merged-mean."""
    return f"{kind}-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")


def natural(text: str) -> list:
    """A key that sorts fig9 before fig10."""
    return [(int(part), "") if part.isdigit() else (-1, part)
            for part in re.split(r"(\d+)", text)]


def report_of(root: Path, experiments: Path, papers: list[str]) -> Report:
    """What there is to say about these papers, all without any; raises ClaimsError."""
    claims = load_claims(experiments / "claims.yaml")
    expected = expectations(experiments)
    return Report([_paper(paper, {name: claim for name, claim in claims.items()
                                  if claim.paper == paper}, expected, root, experiments)
                   for paper in papers_of(claims, papers)])


def _paper(paper: str, claims: dict[str, Claim], expected: dict[str, list[str]], root: Path,
           experiments: Path) -> Paper:
    loaded: verdicts.Loaded = {}
    rows = _rows(verdicts.verdicts_of(claims, expected, root, loaded))
    specs = {path.relative_to(experiments).with_suffix("").as_posix()
             for path in (experiments / paper).glob("*.yaml")}
    specs |= {path.parent.relative_to(root).as_posix()
              for path in (root / paper).glob("*/collected.h5")}
    figures = []
    for spec_id in sorted(specs, key=natural):
        if spec_id not in loaded and (root / spec_id / "collected.h5").is_file():
            loaded[spec_id] = verdicts.load(spec_id, root)
        figure = _figure(spec_id, loaded.get(spec_id), root, experiments)
        figure.rows = [row for row in rows if spec_id in (
            row.verdict.spec_id, row.second.spec_id if row.second else "")]
        figures.append(figure)
    without = sorted({claim.figure for claim in claims.values()} - specs, key=natural)
    return Paper(paper, PAPERS.get(paper, paper), rows, figures, without)


def _rows(found: list[Verdict]) -> list[Row]:
    """A claim's first verdict has the claim's id; one of another spec has its name as well."""
    rows: list[Row] = []
    for verdict, second in verdicts.paired(found):
        name = verdict.claim.id
        if rows and rows[-1].verdict.claim.id == name:
            name += f"--{verdict.spec_id.split('/')[-1]}"
        rows.append(Row(anchor("claim", name), verdict, second))
    return rows


def _figure(spec_id: str, results: Results | ResultsError | None, root: Path,
            experiments: Path) -> Figure:
    figure = Figure(spec_id, anchor("figure", spec_id), "", command_for(spec_id, root))
    spec = experiments / f"{spec_id}.yaml"
    if spec.is_file():
        figure.spec = spec.read_text(encoding="utf-8", errors="replace")
        figure.title = _title(figure.spec)
    if isinstance(results, ResultsError):
        figure.problems.append(str(results))
    elif results is not None:
        _fill(figure, results, root)
    return figure


def _title(spec: str) -> str:
    try:
        parsed = yaml_text.parse(spec)
    except yaml.YAMLError:
        return ""
    return str(parsed.get("title", "")) if isinstance(parsed, dict) else ""


def _fill(figure: Figure, results: Results, root: Path) -> None:
    figure.has_results = True
    figure.title = results.attributes.get("title", "") or figure.title
    figure.spec = results.attributes.get("spec", "") or figure.spec
    figure.command = results.remedy.removeprefix("run: ")
    figure.origin = origin.origin_of(results)
    figure.backends = [name for name in results.attributes.get("backend", "").split(", ") if name]
    figure.facts = _facts(results, figure.origin)
    swept = [name.removeprefix("sweep.") for name in results.sweep_columns]
    figure.alt = (f"{figure.title or figure.spec_id}: {', '.join(results.techniques)}"
                  + (f", over {', '.join(swept)}" if swept else ""))
    folder = root / figure.spec_id
    figure.problems += _drawn(figure.spec_id, root)
    for path in sorted(folder.glob("*.png"), key=lambda path: natural(path.name)):
        try:
            figure.pictures.append(pictures.picture(path))
        except OSError as error:
            figure.problems.append(f"{path.name} cannot be shown: {error}")
    for path in sorted(folder.glob("*.txt")):
        figure.tables.append((path.name, path.read_text(encoding="utf-8", errors="replace")))


def _drawn(spec_id: str, root: Path) -> list[str]:
    """Draws the figure where it is absent or older than the results; what went wrong."""
    folder = root / spec_id
    collected = (folder / "collected.h5").stat().st_mtime_ns
    drawn = [path.stat().st_mtime_ns for path in folder.glob("*.png")]
    if drawn and min(drawn) >= collected:
        return []
    try:
        draw.draw(spec_id, root)
    except (ResultsError, ClaimsError) as error:
        return [f"not drawn: {error}"]
    except Exception as error:  # results that the figure's code was not written for
        return [f"not drawn: {type(error).__name__}: {error}"]
    return []


def _facts(results: Results, found: Origin) -> list[tuple[str, str]]:
    columns = results.columns
    points, invalid = len(columns["key"]), results.invalid_count
    seeds = results.seeds
    count = f"{len(seeds)}: " if len(seeds) > 1 else ""
    listed = (f"{seeds[0]} to {seeds[-1]}" if seeds == list(range(seeds[0], seeds[-1] + 1))
              and len(seeds) > 2 else ", ".join(map(str, seeds)))
    facts = [(name.capitalize(), results.attributes.get(name) or "not recorded")
             for name in FOOTER_ATTRIBUTES]
    facts += [("Techniques", ", ".join(results.techniques)), ("Seeds", count + listed),
              ("Points", f"{points - invalid} VALID, {invalid} INVALID")]
    facts += [("INVALID because", f"{text} ({number} points)")
              for text, number in found.reasons.items()]
    facts += [("Note", f"{text} ({number} of {points} points)")
              for text, number in found.notes.items()]
    facts += [("Build", ", ".join(f"{build} ({number} points)" if len(found.builds) > 1 else build
                                  for build, number in found.builds.items()) or "not recorded"),
              ("Results of", found.period or "not recorded")]
    facts += [("Machine", text) for text in found.machines]
    facts += [("Compiler", text) for text in found.compilers]
    facts += [("Digest", results.attributes.get("content_digest", "") or "not recorded")]
    return facts
