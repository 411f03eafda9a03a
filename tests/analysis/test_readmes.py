"""Every command of every README is typed, every link leads somewhere, every verb exists."""
from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT
from readme_commands import (Command, ReadmeError, Tree, commands_of, fragments_of, spans_of,
                             tracked)
from servelab_runs import needs_servelab

READMES = {name: (ROOT / name).read_text() for name in tracked("README.md", "**/README.md")}
if not READMES:
    pytest.skip("not a git clone: no list of its files", allow_module_level=True)
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = {goal for line in re.findall(r"^([\w/%. -]+):(?!=)", MAKEFILE, flags=re.M)
           for goal in line.split()}


def typed_elsewhere(tree: Tree, command: Command) -> None:
    """tests/readme_example.sh types what is below the heading."""
    if f"'{command.section}'" not in (ROOT / "tests/readme_example.sh").read_text():
        raise ReadmeError(f"{command.readme}:{command.line}: tests/readme_example.sh does not type "
                          f"'{command.section}'")


def dry_run(tree: Tree, command: Command) -> None:
    tree.expect(command, command.text.replace("make", "make --dry-run", 1))


def parsed(tree: Tree, command: Command) -> None:
    """--help of the program or verb has every flag, and servelab's specs are right."""
    words = shlex.split(command.text, comments=True)
    flags = [word for word in words if word.startswith("--")]
    program = words[:2] if words[0] == "build/servelab" else words[:1]
    shown = set(re.findall(r"--[\w-]+", tree.expect(command, f"{shlex.join(program)} --help")))
    if unknown := [flag for flag in flags if flag not in shown]:
        raise ReadmeError(f"{command.readme}:{command.line}: no {unknown} in --help\n"
                          f"$ {command.text}")
    if words[1:2] == ["validate"] and "/" in words[2]:
        tree.expect(command, f"build/servelab check {words[2]}")


def known_data(tree: Tree, command: Command) -> None:
    listed = tree.expect(command, "data/fetch list")
    for name in shlex.split(command.text, comments=True)[1:]:
        if not re.search(rf"^{re.escape(name)} ", listed, flags=re.M):
            raise ReadmeError(f"{command.readme}:{command.line}: data/fetch knows no {name}")


def is_target(tree: Tree, command: Command) -> None:
    """The build makes the programs and libraries that it names."""
    for name in re.findall(r"build/\S*/(?:lib)?(servelab_\w+)", command.text):
        if name not in cmake_names():
            raise ReadmeError(f"{command.readme}:{command.line}: CMake makes no {name}")
    for name in re.findall(r"(?<!build/)\btests/\S+", command.text):
        if not (tree.root / name).is_file():
            raise ReadmeError(f"{command.readme}:{command.line}: no {name}")


@dataclass(frozen=True)
class Exempt:
    """A kind of command that is not typed here, why, and what is done in its place."""

    which: str  # what the section and the command, on two lines, match
    reason: str
    instead: Callable[[Tree, Command], None]


EXEMPT = [
    Exempt(r"## Add your technique in one file\n", "typed by tests/readme_example.sh",
           typed_elsewhere),
    Exempt(r"### On a clean checkout\n", "typed by tests/readme_example.sh", typed_elsewhere),
    Exempt(r".*\nmake (?!report|figures.* FROM=)", "builds, takes minutes, or would start these "
           "tests", dry_run),
    Exempt(r".*\nbuild/servelab calibrate ", "2 min, and wants a quiet machine", parsed),
    Exempt(r".*\nbuild/servelab validate ", "4 min, and wants a quiet machine", parsed),
    Exempt(r".*\ndata/fit_workloads.py ", "half a minute, and needs all traces", parsed),
    Exempt(r".*\ndata/fetch (?!list)", "downloads", known_data),
    Exempt(r".*\nbuild/tests/|.*\npython3 tests/gpu/check_resources.py ",
           "programs that only `make build` builds, some only with the CUDA Toolkit", is_target)]


def exempt(command: Command) -> Exempt | None:
    return next((each for each in EXEMPT
                 if re.match(each.which, f"{command.section}\n{command.text}")), None)


def cmake_names() -> set[str]:
    return {word for name in tracked("*CMakeLists.txt")
            for word in re.findall(r"servelab_\w+", (ROOT / name).read_text())}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    yield Tree(tmp_path)
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def shared_tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("wrong")
    yield Tree(folder)
    shutil.rmtree(folder)


def type_all(tree: Tree, readme: str, text: str) -> None:
    commands = commands_of(readme, text)
    tree.provide(readme, text, [each for each in commands if exempt(each) is None])
    for command in commands:
        if (found := exempt(command)) is not None:
            found.instead(tree, command)
        else:
            tree.type(command)


@needs_servelab
@pytest.mark.parametrize("readme", [name for name, text in READMES.items()
                                    if commands_of(name, text)])
def test_every_command_works_as_it_stands(tree: Tree, readme: str):
    type_all(tree, readme, READMES[readme])


def test_every_exemption_is_used():
    used = {exempt(command) for name, text in READMES.items()
            for command in commands_of(name, text)}
    assert [each.which for each in EXEMPT if each not in used] == []


@needs_servelab
@pytest.mark.parametrize("command, said", [
    ("build/servelab run --no-such-flag my.yaml", "--no-such-flag"),
    ("build/servelab no-such-verb", "no-such-verb"),
    ("build/servelab validate --no-such-flag placement/tab01", "no ['--no-such-flag'] in --help"),
    ("build/servelab validate placement/no_such_spec", "placement/no_such_spec"),
    ("make no-such-verb", "no-such-verb"),
    ("make figures/dlora/fig99", "experiments/dlora/fig99.yaml"),
    ("data/fetch no-such-trace", "knows no no-such-trace"),
    ("build/tests/servelab_no_such_tests", "CMake makes no servelab_no_such_tests"),
    ("srun --no-such-flag build/servelab run my.yaml", "--no-such-flag"),
    ("mpirun -n 2 build/servelab run --no-such-flag my.yaml", "--no-such-flag"),
    ("build/servelab run --emit-jobs c.txt my.yaml && parallel --no-such-flag <c.txt",
     "--no-such-flag")])
def test_a_wrong_command_is_named(shared_tree: Tree, command: str, said: str):
    with pytest.raises(ReadmeError) as caught:
        type_all(shared_tree, "x/README.md", f"# Wrong\n\n    $ {command}\n")
    assert str(caught.value).startswith("x/README.md:3: ")
    assert said in str(caught.value)


def test_what_looks_like_a_command_is_one():
    text = "## A\n    $ a \\\n        b\n    out\n```sh\nc\nd\n```\n    make e  # f\n"
    assert [(each.line, each.text, each.section) for each in commands_of("R", text)] == [
        (2, "a \\\n        b", "## A"), (6, "c\nd", "## A"), (9, "make e  # f", "## A")]
    for hidden in ("    build/servelab list\n", "```bash\nls\n```\n", "```\nls\n```\n"):
        with pytest.raises(ReadmeError, match="R:1: "):
            commands_of("R", hidden)


@pytest.mark.parametrize("readme", READMES)
def test_links_and_anchors_resolve(readme: str):
    assert broken_links(readme, READMES[readme]) == []


def test_a_broken_link_is_found():
    text = "# One two\n[a](#one-two) [b](#three) [c](data/README.md#nothing) [d](no/README.md)"
    assert broken_links("README.md", text) == ["#three", "data/README.md#nothing", "no/README.md"]


def links_of(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```|^    .*?$|`[^`]*`", "", text, flags=re.S | re.M)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose)
            if not re.match(r"https?://", link)]


def broken_links(readme: str, text: str) -> list[str]:
    broken = []
    for link in links_of(text):
        path, _, anchor = link.partition("#")
        target = (ROOT / readme).parent / path if path else None
        if target is not None and not target.exists():
            broken.append(link)
        elif anchor and anchor not in fragments_of(text if target is None else target.read_text()):
            broken.append(link)
    return broken


def test_the_top_one_is_a_page_that_leads_to_all_others():
    assert len(READMES["README.md"].encode()) <= 13_000
    reached, new = set(), {"README.md"}
    while new:
        reached |= new
        new = {str((ROOT / name).parent.joinpath(link.partition("#")[0]).resolve()
                   .relative_to(ROOT)) for name in new for link in links_of(READMES[name])
               if link.partition("#")[0].endswith("README.md")} - reached
    assert sorted(set(READMES) - reached) == []


@pytest.mark.parametrize("readme", READMES)
def test_verbs_flags_and_programs_exist(readme: str):
    text = READMES[readme]
    code = spans_of(text) + [line for command in commands_of(readme, text)
                             for line in command.text.splitlines()]
    setup = (ROOT / ".ci/setup").read_text()
    for words in (span.split("#")[0].split() for span in code):
        if words[:1] == ["make"]:
            for goal in (word for word in words[1:] if not re.search(r"[=<]", word)):
                assert is_goal(goal), f"{readme}: make {goal}"
        for flag in words[1:] if words[:1] == [".ci/setup"] else []:
            assert re.search(rf"^[^#\n]*{flag}\b", setup, flags=re.M), f"{readme}: .ci/setup {flag}"
    for name in re.findall(r"build/[\w/]*/(?:lib)?(servelab_\w+)", text):
        assert name in cmake_names(), f"{readme}: {name}"


def is_goal(goal: str) -> bool:
    if goal.startswith("figures/"):
        return (ROOT / "experiments" / f"{goal.removeprefix('figures/')}.yaml").is_file()
    return any(re.fullmatch(re.escape(each).replace("%", ".+"), goal) for each in TARGETS)
