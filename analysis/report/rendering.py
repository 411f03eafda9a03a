"""The report as HTML and as Markdown, from the templates in this folder.

Both escape whatever they are given: titles, reasons and specs are texts of other people.
"""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from analysis import verdicts
from analysis.claim_file import Claim
from analysis.report.content import Report, anchor
from analysis.stats import Estimate

FOLDER = Path(__file__).parent
SIGNS = {"reproduced": "✓", "same direction": "≈", "not reproduced": "✗", "open": "○",
         "invalid": "!", "unsupported": "–"}
COMPARE = {"near": "", "at-least": "≥ ", "at-most": "≤ "}


def html_of(report: Report) -> str:
    """One file: no script, and nothing that a browser would have to fetch."""
    return _environment(autoescape=True).get_template("report.html.j2").render(
        report=report, css=Markup((FOLDER / "report.css").read_text(encoding="utf-8")))


def markdown_of(report: Report, root: Path) -> str:
    """Figures are links relative to `root`, the results folder."""
    return _environment(finalize=_markdown).get_template("report.md.j2").render(
        report=report, link=lambda path: Raw(path.relative_to(root).as_posix()))


def _environment(**settings: Any) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER), trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, **settings)
    environment.globals |= {"SIGNS": SIGNS, "VERDICTS": verdicts.VERDICTS}
    environment.filters |= {"anchor": lambda name, kind: anchor(kind, name), "raw": Raw,
                            "number": verdicts.number, "interval": interval,
                            "quantity": quantity, "published": published,
                            "computed": computed, "explanations": verdicts.explanations,
                            "fenced": fenced, "counted": counted, "tied": tied}
    return environment


def published(claim: Claim) -> str:
    """'≥ 96.7 %'."""
    return COMPARE[claim.compare] + quantity(claim.published, claim.unit)


def quantity(value: float, unit: str) -> str:
    """'96.7 %', '2.03×'."""
    return verdicts.number(value) + ("×" if unit == "x" else f" {unit}".rstrip())


def computed(claim: Claim) -> str:
    """How ours is computed, in words."""
    if claim.method:
        return claim.method
    params = dict(claim.compute)
    if not params:
        return ""
    words = [str(params.pop("kind"))]
    for key in ("metric", "figure", "value", "of", "over"):
        if key in params:
            text = _listed(params.pop(key))
            words.append(text if key in ("metric", "figure", "value") else f"{key} {text}")
    where = [f"{name}={value}" for name, value in params.pop("where", {}).items()]
    rest = [*(f"{key} {_listed(value)}" for key, value in params.items()), *where]
    return ", ".join([" ".join(words), *rest])


def _listed(value: Any) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)


def interval(estimate: Estimate) -> str:
    """'1.2 to 1.5', or "" where there is none."""
    if estimate.low != estimate.low:
        return ""
    return f"{verdicts.number(estimate.low)} to {verdicts.number(estimate.high)}"


def counted(count: int, what: str) -> str:
    """'1 claim', '2 claims'."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def tied(text: str) -> str:
    """Text whose percent signs stay with their numbers."""
    return re.sub(r"(\d) %", "\\1\u00a0%", text)


class Raw(str):
    """Text that is Markdown already."""


def _markdown(value: Any) -> Any:
    """Text in a line or cell of Markdown: nothing in it formats, links, or is HTML."""
    if isinstance(value, (Raw, int)):
        return value
    line = " ".join(str(value).split())
    return re.sub(r"([\\`*_{}\[\]()#+!|~>-])", r"\\\1", line.replace("&", "&amp;")
                  .replace("<", "&lt;"))


def fenced(text: str, language: str = "") -> Raw:
    """A block that holds the text as it is, whatever fences are in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Raw(f"{fence}{language}\n{text.rstrip()}\n{fence}")
