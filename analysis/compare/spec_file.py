"""The effective spec of a comparison, made from another spec or from options.

It is edited as YAML nodes, so that every value stays as it was written; and each value remembers
where it came from, so that what `servelab run` says about a line of the effective spec can be told
as a place in the user's spec, or as an option.
"""
from __future__ import annotations

import copy
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

import yaml

from analysis.slo_limits import nearest
from analysis.verb import VerbError

RATE = "workload.arrivals.rate"
_FILES = ("model", "hardware", "workload")  # keys whose values may be paths beside the spec
_ENTRY = re.compile(r"(?:(?P<label>[^=(),]+)=)?(?P<name>[^=(),]+?)\s*(?:\((?P<settings>.*)\))?")


@dataclass(frozen=True)
class Technique:
    """One of --techniques: `[label=]name[(key=value, ...)]`."""

    label: str
    name: str                             # a technique, or a label of the spec
    settings: tuple[tuple[str, str], ...]  # dotted path in a technique's entry, YAML


def _split(text: str) -> list[str]:
    """At commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        depth += (char in "([{") - (char in ")]}") if not quote else 0
        if char == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def parse_techniques(text: str) -> list[Technique]:
    """Raises VerbError."""
    found: list[Technique] = []
    for part in _split(text):
        match = _ENTRY.fullmatch(part)
        if match is None:
            raise VerbError(f"--techniques: '{part}' is not name, name(parameter=value, ...) or "
                            "label=name(...)")
        settings = []
        for setting in _split(match["settings"] or ""):
            path, equals, value = (piece.strip() for piece in setting.partition("="))
            if not equals or not value:
                raise VerbError(f"--techniques: '{setting}' in '{part}' is not parameter=value")
            is_own = path == "route" or path.split(".")[0] in ("with", "route_with", "engine")
            settings.append((path if is_own else f"with.{path}", value))
        label = (match["label"] or part).strip()
        if any(label == other.label for other in found):
            raise VerbError(f"--techniques: '{label}' is there twice; to compare a technique with "
                            "itself, give it labels, such as a=dlora,b=dlora")
        found.append(Technique(label, match["name"].strip(), tuple(settings)))
    if len(found) < 2:
        raise VerbError("--techniques needs two techniques or more, with commas between them")
    return found


def _scalar(text: str, quoted: bool = False) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style='"' if quoted else None)


def _map(flow: bool = False) -> yaml.MappingNode:
    return yaml.MappingNode("tag:yaml.org,2002:map", [], flow_style=flow)


def _list(nodes: list[yaml.Node]) -> yaml.SequenceNode:
    return yaml.SequenceNode("tag:yaml.org,2002:seq", nodes, flow_style=False)


def member(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == key:
                return value
    return None


def _put(node: yaml.MappingNode, key: str, value: yaml.Node) -> yaml.ScalarNode:
    """Returns the key's node, which is new."""
    named = _scalar(key)
    for at, (name, _) in enumerate(node.value):
        if name.value == key:
            node.value[at] = (named, value)
            return named
    node.value.append((named, value))
    return named


def _drop(node: yaml.MappingNode, key: str) -> None:
    node.value = [(name, value) for name, value in node.value if name.value != key]


def _walk(node: yaml.Node) -> Iterator[yaml.Node]:
    yield node
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield name
            yield from _walk(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _walk(item)


class SpecFile:
    """A spec as a tree of YAML nodes."""

    def __init__(self, root: yaml.MappingNode, source: str) -> None:
        self.root = root
        self.source = source  # a path, or "" without a spec
        self._is_written = True  # places in the tree are places in the source
        self._origins: dict[int, str] = {}
        self._kept: list[yaml.Node] = []  # ids of nodes in _origins stay theirs

    @classmethod
    def read(cls, path: Path, whole: Callable[[Path], str] | None = None) -> "SpecFile":
        """A file that extends another spec is read as `whole(path)`, the text of both. Raises
        VerbError."""
        spec = cls._parsed_file(path, lambda: path.read_text(encoding="utf-8"))
        if whole is None or spec.value("extends") is None:
            return spec
        spec = cls._parsed_file(path, lambda: whole(path))
        spec._is_written = False
        return spec

    @classmethod
    def _parsed_file(cls, path: Path, text: Callable[[], str]) -> "SpecFile":
        try:
            root = yaml.compose(text(), Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
            raise VerbError(f"{path}{where}: {error.problem or error.context}") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise VerbError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(root, yaml.MappingNode):
            raise VerbError(f"{path}: a spec must be a map of settings")
        return cls(root, str(path))

    @classmethod
    def empty(cls) -> "SpecFile":
        return cls(_map(), "")

    def value(self, path: str) -> yaml.Node | None:
        node: yaml.Node | None = self.root
        for key in path.split("."):
            node = member(node, key)
        return node

    def put(self, path: str, text: str, origin: str) -> None:
        """Sets a dotted path to YAML text, making sections on the way. Raises VerbError."""
        keys = path.split(".")
        if not all(keys):
            raise VerbError(f"{origin}: '{path}' is not a path such as workload.arrivals.rate")
        if keys[0] == "sweep":  # its keys are paths
            keys = ["sweep", path[len("sweep."):]] if len(keys) > 1 else keys
        elif path in self.swept():
            raise VerbError(f"{origin}: the spec sweeps {path}; give its values with "
                            f"--set 'sweep.{path}=[...]', or drop the sweep with "
                            "--set 'sweep={}'")
        section = self._section(keys[:-1], origin)
        self._came_from(_put(section, keys[-1], self._parsed(text, origin)), origin)

    def _parsed(self, text: str, origin: str) -> yaml.Node:
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError:
            raise VerbError(f"{origin}: '{text}' is not YAML") from None
        return self._came_from(_scalar("") if node is None else node, origin)

    def _came_from(self, node: yaml.Node, origin: str) -> yaml.Node:
        """Notes the origin of a new node and all below it."""
        for inner in _walk(node):
            self._origins[id(inner)] = origin
            self._kept.append(inner)
        return node

    def _section(self, keys: list[str], origin: str) -> yaml.MappingNode:
        node: yaml.MappingNode = self.root
        for depth, key in enumerate(keys):
            inner = member(node, key)
            if inner is None:
                inner = self._came_from(_map(), origin)
                self._came_from(_put(node, key, inner), origin)
            elif keys[:depth + 1] == ["workload"] and isinstance(inner, yaml.ScalarNode):
                named, inner = inner, _map()
                _put(inner, "extends", named)
                _put(node, key, inner)
            if not isinstance(inner, yaml.MappingNode):
                raise VerbError(f"{origin}: '{'.'.join(keys[:depth + 1])}' is not a section")
            node = inner
        return node

    def drop(self, *keys: str) -> None:
        for key in keys:
            _drop(self.root, key)

    def sweep_maps(self) -> list[yaml.MappingNode]:
        sweep = member(self.root, "sweep")
        maps = sweep.value if isinstance(sweep, yaml.SequenceNode) else [sweep]
        return [node for node in maps if isinstance(node, yaml.MappingNode)]

    def swept(self) -> list[str]:
        """The paths that the sweep sets."""
        paths: dict[str, None] = {}
        for node in self.sweep_maps():
            for name, value in node.value:
                if name.value == "zip" and isinstance(value, yaml.SequenceNode):
                    paths |= {key.value: None for inner in value.value
                              if isinstance(inner, yaml.MappingNode) for key, _ in inner.value}
                elif name.value not in ("zip", "techniques"):
                    paths[name.value] = None
        return list(paths)

    def entries(self) -> dict[str, yaml.Node]:
        """The spec's own techniques, by label."""
        node = member(self.root, "techniques")
        found: dict[str, yaml.Node] = {}
        for entry in node.value if isinstance(node, yaml.SequenceNode) else []:
            named = (entry if isinstance(entry, yaml.ScalarNode) else
                     member(entry, "label") or member(entry, "technique"))
            if isinstance(named, yaml.ScalarNode):
                found[named.value] = entry
        return found

    def use_techniques(self, chosen: list[Technique]) -> None:
        """Replaces the techniques. Raises VerbError where the sweep goes by technique and leaves
        one of them out."""
        own = self.entries()
        nodes = []
        for one in chosen:
            origin = f"--techniques {one.label}"
            entry = copy.deepcopy(own.get(one.name))
            if entry is None or isinstance(entry, yaml.ScalarNode):
                entry = _map(flow=True)
                _put(entry, "technique", _scalar(one.name, one.name not in own))
            _put(entry, "label", _scalar(one.label, quoted=True))
            self._came_from(entry, origin)
            for path, text in one.settings:
                section, _, key = path.rpartition(".")
                at = entry if not section else member(entry, section)
                if at is None:
                    at = self._came_from(_map(flow=True), origin)
                    _put(entry, section, at)
                _put(at, key, self._parsed(text, origin))
            nodes.append(entry)
        _put(self.root, "techniques", _list(nodes))
        self._restrict_sweep([one.label for one in chosen])

    def _restrict_sweep(self, labels: list[str]) -> None:
        maps = self.sweep_maps()
        if all(member(node, "techniques") is None for node in maps):
            return
        kept, covered = [], set()
        for node in maps:
            names = member(node, "techniques")
            here = (labels if names is None else
                    [item.value for item in names.value if item.value in labels])
            if names is not None and here:
                _put(node, "techniques", _list([_scalar(label, True) for label in here]))
            covered |= set(here)
            kept += [node] if here else []
        absent = [label for label in labels if label not in covered]
        if absent:
            raise VerbError(f"--techniques {absent[0]}: the sweep of {self.source} goes by "
                            f"technique and has no positions for it; give a sweep for all, such "
                            f"as --set 'sweep={{{(self.swept() or ['path'])[0]}: [...]}}'")
        _put(self.root, "sweep", _list(kept))

    def only(self, labels: list[str]) -> "SpecFile":
        """A copy with some of its techniques."""
        part = copy.copy(self)
        part.root = copy.deepcopy(self.root)
        # Copies of nodes have origins, too: the walk meets them in the same order.
        part._origins = {id(twin): self._origins[id(node)]
                         for node, twin in zip(_walk(self.root), _walk(part.root))
                         if id(node) in self._origins}
        part._kept = list(_walk(part.root))
        entries = part.entries()
        _put(part.root, "techniques", _list([entries[label] for label in labels]))
        part._restrict_sweep(labels)
        return part

    def search(self, rates: dict[str, list[float]], seed: int) -> "SpecFile":
        """A copy that runs each technique at rates of its own, with one seed."""
        part = self.only(list(rates))
        maps = []
        for label, values in rates.items():
            node = _map()
            _put(node, "techniques", _list([_scalar(label, True)]))
            _put(node, RATE, part._parsed("[" + ", ".join(f"{value:.10g}" for value in values)
                                          + "]", "--find-rate"))
            maps.append(node)
        _put(part.root, "sweep", _list(maps))
        part.put("seeds", f"[{seed}]", "--seeds")
        return part

    def point_files_at(self, folder: Path) -> None:
        """Makes paths to files beside the source relative to the folder that the spec moves to."""
        if not self.source:
            return
        beside = Path(self.source).parent
        places = [(self.root, key) for key in _FILES]
        if isinstance(workload := member(self.root, "workload"), yaml.MappingNode):
            places.append((workload, "extends"))
        for node in self.sweep_maps():
            places += [(node, key) for key in _FILES]
            zipped = member(node, "zip")
            for inner in zipped.value if isinstance(zipped, yaml.SequenceNode) else []:
                places += [(inner, key) for key in _FILES]
        for node, key in places:
            value = member(node, key)
            for scalar in (value.value if isinstance(value, yaml.SequenceNode) else [value]):
                if (isinstance(scalar, yaml.ScalarNode)
                        and ("/" in scalar.value or scalar.value.endswith((".yaml", ".yml")))
                        and (beside / scalar.value).exists()):
                    scalar.value = os.path.relpath(beside / scalar.value, folder)

    def text(self, heading: str = "") -> str:
        comment = "".join(f"# {line}\n" for line in heading.splitlines())
        return comment + yaml.serialize(self.root, Dumper=yaml.SafeDumper, width=100,
                                        allow_unicode=True)

    def told(self, message: str, path: Path, heading: str = "") -> str:
        """The message with places in the effective spec at `path` as places in the source, or as
        options."""
        found = re.search(re.escape(str(path)) + r":(\d+)(?::(\d+))?", message)
        if found is None:
            return message
        line, column = int(found[1]), int(found[2] or 1)
        written = yaml.compose(self.text(heading), Loader=yaml.SafeLoader)
        best, origin = None, self.source or "options"
        for mine, theirs in zip(_walk(self.root), _walk(written)):
            mark = theirs.start_mark
            if mark.line + 1 != line or mark.column + 1 > column:
                continue
            distance = column - mark.column - 1
            if best is None or distance <= best:
                best, origin = distance, self._origin(mine) or origin
        return message[:found.start()] + origin + message[found.end():]

    def _origin(self, node: yaml.Node) -> str:
        if id(node) in self._origins:
            return self._origins[id(node)]
        if not self._is_written:
            return self.source
        mark = node.start_mark
        return f"{self.source}:{mark.line + 1}:{mark.column + 1}" if mark else ""


def find_label(name: str, labels: list[str], option: str) -> str:
    """Raises VerbError with the nearest label."""
    if name not in labels:
        raise VerbError(f"{option}: no technique here is '{name}'; {nearest(name, labels)}")
    return name
