"""analysis/ has no import circles: neither those that Python would stop at, nor those that imports
inside functions or under TYPE_CHECKING hide."""
from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def imports(root: Path, package: str) -> dict[str, set[str]]:
    """By module, the modules of the package that it names in an import, wherever that stands."""
    files = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
             for path in (root / package).rglob("*.py")}
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: a relative import"
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
                targets = [target if target in files else str(node.module) for target in targets]
            else:
                continue
            graph[name] |= {target for target in targets if target in files}
    return graph


def test_analysis_has_no_import_circles():
    graph = imports(ROOT, "analysis")
    assert {"analysis.metrics", "analysis.point"} <= graph["analysis.results"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" <- ".join(circle.args[1]))


@pytest.mark.parametrize("hidden", ["if TYPE_CHECKING:\n    from p.a import A",
                                    "def f():\n    from p import a", "import p.a"])
def test_hidden_circles_are_found(tmp_path, hidden):
    (tmp_path / "p").mkdir()
    (tmp_path / "p/__init__.py").write_text("")
    (tmp_path / "p/a.py").write_text("from p import b\n")
    (tmp_path / "p/b.py").write_text("import sys\n" + hidden + "\n")
    with pytest.raises(CycleError):
        TopologicalSorter(imports(tmp_path, "p")).prepare()
