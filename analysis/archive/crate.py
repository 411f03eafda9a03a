"""ro-crate-metadata.json: RO-Crate 1.1, what a repository or a catalogue reads of an archive."""
from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from analysis.archive.layout import CRATE, FACTS, MANIFEST, SETTINGS, SPECS

SPECIFICATION = "https://w3id.org/ro/crate/1.1"
UNDATED = "1970-01-01"  # results without a context: RO-Crate demands a date
FORMATS = {".h5": "application/x-hdf5", ".yaml": "application/yaml", ".json": "application/json",
           ".png": "image/png", ".pdf": "application/pdf", ".txt": "text/plain",
           ".csv": "text/csv"}
WHAT = {FACTS: "What this archive declares: schema, sizes, specs, build ids, machines",
        MANIFEST: "SHA-256 of every other file, written last"}


def reference(name: str) -> dict[str, str]:
    return {"@id": name}


def people(authors: list[str]) -> list[dict[str, Any]]:
    """Person entities from texts such as "Ada Lovelace <https://orcid.org/0000-0002-1825-0097>"."""
    found = []
    for number, text in enumerate(authors, 1):
        name, _, link = text.partition("<")
        found.append({"@id": link.rstrip("> ") or f"#author-{number}", "@type": "Person",
                      "name": name.strip()})
    return found


def _description_of(name: str) -> str:
    top = name.split("/")[0]
    if name in WHAT:
        return WHAT[name]
    if top == SPECS:
        return "The spec as it was run"
    if top == SETTINGS:
        return "Requested and effective settings, sources and context of every point"
    if name.endswith("/collected.h5"):
        return "Every point of the spec as columns"
    if "/points/" in name:
        return "One point: one technique, one sweep position, one seed"
    return "Drawn from collected.h5 and its points" if top == "results" else "Claims' verdicts"


def _file(name: str, size: int | None) -> dict[str, Any]:
    entity: dict[str, Any] = {"@id": quote(name), "@type": "File", "name": name,
                              "description": _description_of(name)}
    encoding = FORMATS.get(PurePosixPath(name).suffix)
    if encoding:
        entity["encodingFormat"] = encoding
    if size is not None:
        entity["contentSize"] = str(size)
    return entity


def _run(spec: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The run of one spec as an action: servelab made the results from the spec."""
    prefix = f"results/{spec['id']}/"
    action = {"@id": f"#run-{quote(spec['id'], safe='')}", "@type": "CreateAction",
              "name": f"servelab run {spec['id']}",
              "instrument": [reference(f"#servelab-{build}") for build in spec["build_ids"]],
              "object": reference(quote(f"{SPECS}/{spec['id']}.yaml")),
              "result": [reference(quote(name)) for name in names if name.startswith(prefix)]}
    if spec["written"]:
        action["endTime"] = spec["written"]
    return action


def _software(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    versions = {build: next((str(c["servelab"]) for c in spec["context"] if "servelab" in c), "")
                for spec in specs for build in spec["build_ids"]}
    return [{"@id": f"#servelab-{build}", "@type": "SoftwareApplication",
             "name": f"servelab {versions[build]}, build id {build}".strip(),
             "softwareVersion": f"{versions[build]}+{build}"} for build in sorted(versions)]


def _sources(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = {}
    for source in (source for spec in specs for source in spec["sources"]):
        name = str(source.get("name", ""))
        found[name] = {"@id": f"#source-{quote(name, safe='')}", "@type": "CreativeWork",
                       "name": name, "description": f"Workload: {source.get('origin', '')}",
                       "license": str(source.get("licence", ""))}
    return [found[name] for name in sorted(found)]


def metadata(about: dict[str, Any], specs: list[dict[str, Any]],
             sizes: dict[str, int]) -> dict[str, Any]:
    """The JSON-LD document. `sizes` has every file but the two that are written after it."""
    names = sorted(sizes)
    software, sources, authors = _software(specs), _sources(specs), people(about["authors"])
    actions = [_run(spec, names) for spec in specs]
    root: dict[str, Any] = {
        "@id": "./", "@type": "Dataset", "name": about["title"],
        "description": "servelab results: " + "; ".join(
            f"{spec['id']}, {spec['title'] or 'untitled'} ({spec['points']} points, "
            f"{spec['hardware'] or 'hardware not recorded'}, "
            f"{spec['model'] or 'model not recorded'}, "
            f"backend {spec['backend'] or 'not recorded'})" for spec in specs),
        "datePublished": max((spec["written"][:10] for spec in specs), default="") or UNDATED,
        "license": reference(about["license"]), "mentions": [reference(a["@id"]) for a in actions],
        "hasPart": [reference(quote(name)) for name in [FACTS, MANIFEST, *names]]}
    if authors:
        root["author"] = [reference(person["@id"]) for person in authors]
    if sources:
        root["isBasedOn"] = [reference(source["@id"]) for source in sources]
    licence = {"@id": about["license"], "@type": "CreativeWork", "name": about["license"],
               "description": "The licence of these results; workloads keep their own"}
    descriptor = {"@id": CRATE, "@type": "CreativeWork", "about": reference("./"),
                  "conformsTo": reference(SPECIFICATION)}
    files = [_file(FACTS, None), _file(MANIFEST, None), *(_file(n, sizes[n]) for n in names)]
    return {"@context": f"{SPECIFICATION}/context",
            "@graph": [descriptor, root, licence, *authors, *software, *sources, *actions, *files]}
