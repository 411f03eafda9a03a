"""What results say of themselves, against what follows from them: content digests from datasets,
keys from settings, summaries from requests, and collected.h5 from the points. Whoever changes one
value must change all that follows from it, down to every request's stamps."""
from __future__ import annotations

import hashlib
import json
from typing import Any, Callable

import numpy as np
import yaml

from analysis import yaml_text
from analysis.errors import ResultsError, quoted
from analysis.h5_file import as_text, content_digest, open_h5
from analysis.point import Point
from analysis.results import Results
from analysis.summary import derive
from analysis.summary.requests import FINISHED

Refuse = Callable[[ResultsError], Exception]
# Columns of collected.h5 that repeat an attribute of the point.
OF_POINT = {"seed": "seed", "status": "status", "reasons": "reasons", "key": "key",
            "content_digest": "content_digest", "technique_id": "technique"}
JOINED = ("backend", "hardware", "model", "trace")


def check_point(point: Point) -> list[str]:
    """Raises ResultsError where the file's digest, key, summary or identity does not follow from
    what it holds. Returns the metrics that this version does not know how to derive."""
    columns: dict[str, np.ndarray] = {}
    with open_h5(point.path, "") as file:
        digest = content_digest(file, columns)
    point.keep(columns)
    try:
        return _check_content(point, digest)
    finally:
        point.keep({})


def _check_content(point: Point, digest: str) -> list[str]:
    if point.attribute("content_digest") != digest:
        raise wrong(point, "its content_digest is not that of its datasets")
    effective = settings_of(point)
    text = '{"build":%s,"effective":%s,"schema":%s,"sources":%s}' % (
        json.dumps(point.attribute("build_id"), ensure_ascii=False), _text(point, "spec/effective"),
        point.attribute("schema"), _text(point, "sources"))
    if hashlib.sha256(text.encode()).hexdigest()[:16] != point.attribute("key"):
        raise wrong(point, "its key is not that of its settings, sources and build")
    _check_identity(point, effective)
    _check_requests(point)
    problems, unknown = derive.check(point)
    for problem in problems:
        raise wrong(point, f"its /summary does not follow: {problem}")
    return unknown


def wrong(point: Point, what: str) -> ResultsError:
    return ResultsError(point.path, f"was changed: {what}", "ask for the archive as it was packed")


def _text(point: Point, name: str) -> str:
    values = point.read(name)
    if values.shape != () or values.dtype.kind not in "OS":
        raise wrong(point, f"/{name} is no text")
    return as_text(values.item())


def settings_of(point: Point) -> dict[str, Any]:
    """The effective settings; raises ResultsError where these are not settings."""
    try:
        found = json.loads(_text(point, "spec/effective"))
        assert isinstance(found["technique"]["technique"], str)
        return found
    except (ValueError, RecursionError, KeyError, TypeError, AssertionError):
        raise wrong(point, "/spec/effective is not what servelab writes") from None


def _check_identity(point: Point, effective: dict[str, Any]) -> None:
    said = {"technique": effective["technique"]["technique"], "seed": effective.get("seed"),
            "backend": effective.get("backend")}
    for section in ("hardware", "model"):
        value = effective.get(section)
        said[section] = value.get("name") if isinstance(value, dict) else None
    for name, value in said.items():
        if point.attribute(name) != str(value):
            raise wrong(point, f"its {name} is {quoted(point.attribute(name))}, its settings say "
                        f"{quoted(str(value))}")
    status, reasons = point.attribute("status"), point.attribute("reasons")
    if status not in ("VALID", "INVALID") or (status == "VALID") != (not reasons):
        raise wrong(point, f"its status {quoted(status)} is not that of its reasons")


def _check_requests(point: Point) -> None:
    """That stamps and codes are possible ones."""
    names = ("scheduled", "admitted", "first_token", "last_token", "output_tokens", "prompt_tokens",
             "status", "replica", "adapter", "migrations", "preemptions", "reject_reason")
    read = point.read_several([f"requests/{name}" for name in names],
                              ["requests/output_tokens_true"])
    read = {name.removeprefix("requests/"): values for name, values in read.items()}
    if len({values.shape for values in read.values()}) != 1:
        raise wrong(point, "its /requests has columns of different lengths")
    if any(values.dtype.kind not in "iu" for values in read.values()):
        raise wrong(point, "its /requests has columns that are no whole numbers")
    done = read["status"] == FINISHED
    stamps = [read[name][done] for name in ("scheduled", "admitted", "first_token", "last_token")]
    replicas = len(point.read("replicas/steps"))
    possible = {
        "a request's stamps are not in order": all(
            np.all(a <= b) for a, b in zip(stamps, stamps[1:])),
        "a request finished without a token": np.all(read["output_tokens"][done] > 0),
        "a request has another number of tokens than it needed": "output_tokens_true" not in read
        or np.all(read["output_tokens"][done] == read["output_tokens_true"][done]),
        "a request has less than no tokens": np.all(read["output_tokens"] >= 0)
        and np.all(read["prompt_tokens"] >= 0),
        "a request ended in a way that there is not": np.all(read["status"] <= 2),
        "a request was served by no replica of the run": np.all(
            (read["replica"] >= -1) & (read["replica"] < max(replicas, 1))),
        "it is VALID, and no request finished": point.attribute("status") != "VALID"
        or bool(np.any(done)),
    }
    for what, is_so in possible.items():
        if not is_so:
            raise wrong(point, what)


def check_collected(results: Results) -> None:
    """Raises ResultsError where collected.h5 says anything else than its points, which were
    checked."""
    def refuse(what: str) -> ResultsError:
        return ResultsError(results.path, f"was changed: {what}",
                            "ask for the archive as it was packed")

    with open_h5(results.path, "") as file:
        if content_digest(file) != results.attributes.get("content_digest"):
            raise refuse("its content_digest is not that of its columns")
    columns, count = results.columns, len(results.columns["key"])
    points = [results.point(index) for index in range(count)]
    for column, attribute in OF_POINT.items():
        for index in range(count) if column in columns else ():
            if str(columns[column][index]) != points[index].attribute(attribute):
                raise refuse(f"its column {column} is not what {points[index].path.name} says")
    _check_summaries(columns, points, refuse)
    _check_sweep(columns, points, refuse)
    _check_labels(results, points, refuse)
    for name in JOINED:
        said = ", ".join(dict.fromkeys(filter(None, (p.attribute(name) for p in points))))
        if results.attributes.get(name, "") != said:
            raise refuse(f"its {name} is not that of its points")


def _check_summaries(columns: dict[str, np.ndarray], points: list[Point],
                     refuse: Callable[[str], ResultsError]) -> None:
    summaries = [point.summary() for point in points]
    names = {name for summary in summaries for name in summary}
    held = {name.removeprefix("summary.") for name in columns if name.startswith("summary.")}
    if names != held:
        raise refuse("its metrics are not those of its points: "
                     f"{quoted(sorted(names ^ held)[0])}")
    for name in sorted(names):
        own = np.array([summary.get(name, np.nan) for summary in summaries])
        differs = ~((own == columns[f"summary.{name}"])
                    | (np.isnan(own) & np.isnan(columns[f"summary.{name}"].astype(float))))
        if np.any(differs):
            at = int(np.argmax(differs))
            raise refuse(f"its column summary.{name} is not what {points[at].path.name} says")


def _check_sweep(columns: dict[str, np.ndarray], points: list[Point],
                 refuse: Callable[[str], ResultsError]) -> None:
    swept = {name.removeprefix("sweep.") for name in columns if name.startswith("sweep.")}
    for index, point in enumerate(points):
        try:
            own = json.loads(_text(point, "spec/sweep"))
            assert isinstance(own, dict)
        except (ValueError, RecursionError, AssertionError):
            raise wrong(point, "/spec/sweep is not what servelab writes") from None
        # Points that several positions share carry the coordinates of the first.
        shared = np.count_nonzero(columns["key"] == columns["key"][index]) > 1
        if set(own) != swept or not (shared or all(
                _is_value(columns[f"sweep.{name}"][index], value) for name, value in own.items())):
            raise refuse(f"its swept settings are not what {point.path.name} says")


def _is_value(held: Any, value: Any) -> bool:
    if isinstance(held, (int, float, np.number)):
        return not isinstance(value, (str, bool)) and float(held) == float(value)
    return held == (value if isinstance(value, str) else
                    json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)) \
        or _numbers(held) == _numbers(value)


def _numbers(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def _check_labels(results: Results, points: list[Point],
                  refuse: Callable[[str], ResultsError]) -> None:
    """That a label is one of the spec's, on a point of that entry's technique."""
    try:
        parsed = yaml_text.parse(results.attributes.get("spec", ""))
    except (yaml.YAMLError, RecursionError, ValueError):
        raise refuse("the recorded spec is not YAML") from None
    entries = parsed.get("techniques") if isinstance(parsed, dict) else None
    known: dict[str, dict[str, Any]] = {}
    for entry in entries if isinstance(entries, list) else []:
        entry = entry if isinstance(entry, dict) else {"technique": entry}
        known[str(entry.get("label", entry.get("technique", "")))] = entry
    for label, point in zip(results.columns["technique"].tolist(), points):
        entry = known.get(label, {"technique": label})
        requested = _technique(point)
        if str(entry.get("technique")) != point.attribute("technique") or \
                not _says(entry.get("with"), requested.get("with")):
            raise refuse(f"its label {quoted(label)} is not that of {point.path.name}, "
                         f"a point of {quoted(point.attribute('technique'))}")


def _technique(point: Point) -> dict[str, Any]:
    """The technique's entry as the point recorded it."""
    try:
        found = json.loads(_text(point, "spec/requested")).get("technique", {})
        return found if isinstance(found, dict) else {}
    except (ValueError, RecursionError, AttributeError):
        raise wrong(point, "/spec/requested is not what servelab writes") from None


def _says(spec: Any, point: Any) -> bool:
    """Whether parameters are the same; YAML and JSON know truth values by other words."""
    if isinstance(spec, dict) and isinstance(point, dict):
        return set(map(str, spec)) == set(point) and all(
            _says(value, point[str(name)]) for name, value in spec.items())
    if isinstance(spec, list) and isinstance(point, list):
        return len(spec) == len(point) and all(map(_says, spec, point))
    return isinstance(spec, bool) or _numbers(spec) == _numbers(point)
