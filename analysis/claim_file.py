"""experiments/claims.yaml: what the papers claim, and which specs test it (their `expect`)."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from analysis import compute, yaml_text
from analysis.errors import EXPERIMENTS, shown

COMPARE = ("near", "at-least", "at-most")
KEYS = ("figure", "claim", "source", "published", "unit", "compute", "method", "unsupported",
        "compare", "tolerance", "neutral", "cause", "experiment", "as_published")
AS_PUBLISHED = ("same", "unsupported", "metric", "cause", "experiment")
TEXTS = ("figure", "claim", "source", "unit", "method", "unsupported", "cause", "experiment")
NEEDED = ("figure", "claim", "published", "unit")


class ClaimsError(Exception):
    """A mistake in claims.yaml, as one line."""


@dataclass(frozen=True)
class Claim:
    """One entry of claims.yaml."""

    id: str
    figure: str
    claim: str
    published: float
    unit: str
    compute: dict[str, Any] = field(default_factory=dict)
    method: str = ""
    compare: str = "near"
    tolerance: float = 0.0  # relative
    neutral: float | None = None
    source: str = ""
    unsupported: str = ""
    cause: str = ""
    experiment: str = ""
    as_published: dict[str, str] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        return self.id.split("/")[0]

    def published_form(self) -> Claim:
        """As it is judged under the system's own costs: with the metric, cause and experiment of
        `as_published`."""
        metric = {key: self.as_published[key] for key in ("metric",) if key in self.as_published}
        return replace(self, compute=self.compute | metric,
                       cause=self.as_published.get("cause", ""),
                       experiment=self.as_published.get("experiment", ""))


def is_published(spec_id: str) -> bool:
    """Whether a spec runs a figure as published, under the system's own costs."""
    return spec_id.endswith("_published")


def load_claims(path: Path = EXPERIMENTS / "claims.yaml") -> dict[str, Claim]:
    """Every claim by its id; raises ClaimsError."""
    try:
        entries = yaml_text.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClaimsError(f"{shown(path)}: {' '.join(str(error).split())}") from None
    if not isinstance(entries, dict):
        raise ClaimsError(f"{shown(path)}: must be a map from ids to claims")
    claims = {}
    for name, entry in entries.items():
        problem = _problem(entry)
        if problem:
            raise ClaimsError(f"{shown(path)}: {name}: {problem}")
        claims[str(name)] = Claim(id=str(name), **entry)
    return claims


def papers_of(claims: dict[str, Claim], wanted: list[str]) -> list[str]:
    """The papers in the order of the file, only those that are wanted if any are; raises
    ClaimsError for one that has no claims."""
    known = list(dict.fromkeys(claim.paper for claim in claims.values()))
    for paper in wanted:
        if paper not in known:
            raise ClaimsError(f"no claims of '{paper}'; known papers: {', '.join(known)}")
    return [paper for paper in known if not wanted or paper in wanted]


def _problem(entry: Any) -> str:
    """What is wrong with an entry, or ""."""
    if not isinstance(entry, dict):
        return "must be a map"
    problems = [f"unknown key '{key}'; known: {', '.join(KEYS)}" for key in entry
                if key not in KEYS]
    problems += [f"needs '{key}'" for key in NEEDED if key not in entry]
    problems += [f"'{key}' must be a number" for key in ("published", "tolerance", "neutral")
                 if not isinstance(entry.get(key, 0), (int, float))]
    if entry.get("compare", "near") not in COMPARE:
        problems.append(f"'compare' must be one of {', '.join(COMPARE)}")
    problems += [f"'{key}' must be a text" for key in TEXTS
                 if not isinstance(entry.get(key, ""), str)]
    ways = [key for key in ("compute", "method", "unsupported") if entry.get(key)]
    if not ways:
        problems.append("needs 'compute', 'method' with a sentence, or 'unsupported' with a reason")
    if "method" in ways and len(ways) > 1:
        problems.append(f"'method' is in place of '{(set(ways) - {'method'}).pop()}'")
    if bool(entry.get("cause")) != bool(entry.get("experiment")):
        problems.append("'cause' and 'experiment' go together: the command that showed it")
    if "compute" in ways:
        problems += _compute_problems(entry["compute"])
    problems += _as_published_problems(entry.get("as_published", {}))
    return problems[0] if problems else ""


def _as_published_problems(entry: Any) -> list[str]:
    if not isinstance(entry, dict) or not all(isinstance(text, str) for text in entry.values()):
        return ["'as_published' must be a map of texts"]
    problems = [f"as_published has an unknown key '{key}'; known: {', '.join(AS_PUBLISHED)}"
                for key in entry if key not in AS_PUBLISHED]
    problems += [f"'{key}' in as_published is in place of all else"
                 for key in ("same", "unsupported") if key in entry and len(entry) > 1]
    if bool(entry.get("cause")) != bool(entry.get("experiment")):
        problems.append("'cause' and 'experiment' of as_published go together")
    return problems


def _compute_problems(params: Any) -> list[str]:
    if not isinstance(params, dict) or params.get("kind") not in compute.KINDS:
        return [f"'compute' must be a map whose kind is one of {', '.join(compute.KINDS)}"]
    kind = compute.KINDS[params["kind"]]
    known = (*compute.COMMON, *kind.needs, *kind.may_have)
    problems = [f"compute has an unknown key '{key}'; known: {', '.join(known)}"
                for key in params if key not in known]
    problems += [f"compute of kind {params['kind']} needs '{key}'" for key in kind.needs
                 if key not in params]
    figure = params.get("figure", "")
    if figure and not (isinstance(figure, str) and compute.figure_path(figure).is_file()):
        problems.append(f"compute names the figure '{figure}', which has no module in "
                        "analysis/figures")
    if params.get("reduce", "") not in compute.REDUCE:
        problems.append(f"'reduce' must be one of {', '.join(compute.REDUCE[1:])}")
    return problems


def expectations(experiments: Path = EXPERIMENTS) -> dict[str, list[str]]:
    """By claim id, the specs that expect it, the figure's own first."""
    found: dict[str, list[str]] = {}
    for path in sorted(experiments.glob("*/*.yaml")):
        try:
            spec = yaml_text.parse(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError):
            continue  # servelab check says what is wrong with it
        for name in (spec or {}).get("expect") or []:
            found.setdefault(str(name), []).append(
                path.relative_to(experiments).with_suffix("").as_posix())
    return {name: sorted(specs, key=lambda spec: (not name.startswith(f"{spec}-"), spec))
            for name, specs in found.items()}
