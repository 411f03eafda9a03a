#!/usr/bin/env python3
"""Puts a spec on the twin: tests/on_twin.py <SPEC >SPEC. Engines become the twin; of a list that
has both, what is on engines is left out instead."""
from __future__ import annotations

import sys

import yaml

ENGINES = ("cpu", "cuda")


def is_on_engine(node: yaml.Node) -> bool:
    if isinstance(node, yaml.MappingNode):
        return any(key.value == "backend" and is_on_engine(value) for key, value in node.value)
    return node.value in ENGINES


def put_on_twin(node: yaml.Node, key: str = "") -> None:
    """Changes nodes and not values, so that numbers stay as they were written."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            put_on_twin(value, name.value)
    elif isinstance(node, yaml.SequenceNode):
        node.value = [item for item in node.value if not is_on_engine(item)] or node.value
        for item in node.value:
            put_on_twin(item, key)
    elif key == "backend" and node.value in ENGINES:
        node.value = "twin"


if __name__ == "__main__":
    spec = yaml.compose(sys.stdin)
    put_on_twin(spec)
    yaml.serialize(spec, sys.stdout)
