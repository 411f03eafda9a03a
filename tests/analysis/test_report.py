"""The report: what it says, what it escapes, and that it comes whatever is in the results."""
from __future__ import annotations

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from analysis import verdicts
from analysis.claim_file import expectations, load_claims
from analysis.errors import EXPERIMENTS
from analysis.report import cli, content, rendering
from conftest import MAKERS, ROOT, Spec

pytestmark = pytest.mark.xdist_group("report")  # one worker makes it for all
HOSTILE = '<script>alert(1)</script><img src="http://evil/x.png" onerror="x()"> | `a` [b](c) \\ ]]>'
SOURCES = [{"role": "arrivals", "name": "maf2", "origin": "azure/app_totals.csv",
            "sha256": "ab" * 32, "licence": "CC-BY 4.0"}]
CONTEXT = {"servelab": "0.1.0", "compiler": "gcc 12", "processor": "Some CPU", "processors": 2,
           "system": "Linux", "written": "2026-01-02T03:04:05Z"}


class Page(HTMLParser):
    """Elements in order, each with its attributes and the text up to the next one."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.ids: dict[str, str] = {}
        self._row = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        if "id" in found:
            assert found["id"] not in self.ids, f"two elements have the id {found['id']}"
            self.ids[found["id"]] = ""
            self._row = found["id"]

    def handle_data(self, data: str) -> None:
        if self._row:
            self.ids[self._row] += data.replace("\u00a0", " ")

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def with_origin(root: Path, spec_id: str, status: str = "VALID") -> None:
    """A spec whose points say where they come from."""
    spec = Spec(root, spec_id)
    for technique, factor in (("slora", 1.8), ("dlora", 1.0)):
        for seed in range(3):
            spec.add(technique, seed, {"workload.mapping.skewness": 4},
                     {"latency_per_token_mean_s": factor * (1 + seed / 100),
                      "latency_per_token_p90_s": 2 * factor}, status,
                     {"sources": json.dumps(SOURCES), "context": json.dumps(CONTEXT)})
    spec.write(title="Against S-LoRA")


def run(root: Path, *more: str) -> tuple[str, str]:
    """The report of a results folder, as HTML and Markdown."""
    assert cli.main(["--results", str(root), *more]) == 0
    return (root / "report.html").read_text(), (root / "report.md").read_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, str, str]:
    """Results of some figures, and the report of them."""
    root = tmp_path_factory.mktemp("report") / "results"
    for spec_id in ("dlora/fig10", "dlora/fig05", "dlora/fig12"):
        MAKERS[spec_id](root)
    with_origin(root, "dlora/fig14")
    shutil.copytree(root / "dlora/fig10", root / "dlora/fig10_published")
    return root, *run(root)


def test_every_claim_is_there_with_its_verdict(made):
    root, html, markdown = made
    page, claims = Page(html), load_claims()
    found = verdicts.verdicts_of(claims, expectations(), root)
    assert {row.claim.id for row in found} == set(claims) and len(claims) > 200
    for row in found:
        if row.spec_id != row.claim.figure:
            continue
        text = page.ids[content.anchor("claim", row.claim.id)]
        assert row.verdict in text and row.claim.claim.split(",")[0] in text, row.claim.id
        assert rendering.published(row.claim) in text
        assert ("tolerance" in text) == (row.claim.tolerance > 0)
    for name in claims:
        assert f'<a id="{content.anchor("claim", name)}"></a>' in markdown
    assert {row.verdict for row in found} > {"reproduced", "open"}


def test_claims_without_results_are_open_and_say_why(made):
    _, html, _ = made
    text = Page(html).ids["claim-muxserve-fig05-throughput"]
    assert "open" in text and "No spec expects it yet." in text
    assert "to be computed: factor requests_per_s of muxserve over spatial or temporal" in text
    later = Page(html).ids["claim-placement-tab05-fast"]
    assert "on 4 GPUs: what is drawn has no times" in later


def test_counts_are_those_of_the_verdicts(made):
    root, html, _ = made
    found = verdicts.verdicts_of(load_claims(), expectations(), root)
    counts = list(verdicts.counts_of([row for row in found if not row.column]).values())
    last = html[html.index('<tr class="sum">'):]
    cells = re.findall(r"<td[^>]*>(\d+)</td>", last[:last.index("</tr>")])
    assert [int(cell) for cell in cells] == [len(load_claims()), *counts]


def test_verdicts_as_published_are_a_column(made):
    root, html, markdown = made
    found = verdicts.verdicts_of(load_claims(), expectations(), root)
    both = {row.claim.id: row for row in found if row.column}
    second = {name: row for name, row in both.items() if row.claim.paper == "dlora"}
    assert len(second) == 33
    others = [row for row in both.values() if row.claim.paper != "dlora"]
    assert others and all(row.verdict == "unsupported" and row.reason for row in others)
    ran = second["dlora/fig10-merged-mean"]
    assert ran.spec_id == "dlora/fig10_published" and ran.estimate.n == 5
    for text in (Page(html).ids["claim-dlora-fig10-merged-mean"],
                 next(line for line in markdown.splitlines()
                      if 'id="claim-dlora-fig10-merged-mean"' in line)):
        assert f"{ran.estimate.value:.3g}×" in text and ran.verdict in text
    assert html.count('<th scope="col">as published</th>') == len({row.claim.paper
                                                                   for row in both.values()})
    row = html[html.index("dLoRA (OSDI &#39;24), as published"):]
    cells = re.findall(r"<td[^>]*>(\d+)</td>", row[:row.index("</tr>")])
    counts = verdicts.counts_of(list(second.values()))
    assert [int(cell) for cell in cells] == [33, *counts.values()]
    assert "the same in both columns: a property of the trace." in html


def test_a_figure_says_where_it_comes_from(made):
    _, html, markdown = made
    shown = Page(html).ids["figure-dlora-fig14"]
    said = (*SOURCES[0].values(), "2026-01-02 03:04 UTC", "Some CPU, 2 hardware threads, Linux",
            "3: 0 to 2", "6 VALID, 0 INVALID", "Against S-LoRA", "A800-80G", "Llama-2-7B", "twin",
            "build/servelab run")
    for text in said:
        if text not in ("arrivals",):
            assert text in shown, text
    for text in ("azure/app", "CC", "2026", "6 VALID, 0 INVALID", "dlora/fig14/fig14.png"):
        assert text in markdown.replace("\\", ""), text


def test_figures_are_inline_with_alternatives(made):
    root, html, markdown = made
    images = Page(html).of("img")
    assert len(images) == 5 and all(image["src"].startswith("data:image/png;base64,")
                                    and len(image["alt"]) > 20 for image in images)
    for link in re.findall(r"^!\[.*\]\((.*)\)$", markdown, flags=re.MULTILINE):
        assert (root / link).is_file()


def test_what_has_no_results_is_listed_with_its_command(made):
    _, html, markdown = made
    text = Page(html).ids["figure-dlora-fig11a"]
    assert "not run:" in text and "servelab run experiments/dlora/fig11a.yaml" in text
    assert "No spec yet: infinilora/fig01a, infinilora/fig01b" in html
    assert "fig11a.yaml" in markdown


def test_nothing_is_loaded_and_links_stay_inside(made):
    page = Page(made[1])
    assert not {"script", "link", "iframe", "object", "base", "form"} & {
        tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("src", "data:").startswith("data:"), tag
        assert attributes.get("href", "#").startswith("#"), attributes
        if tag == "a":
            assert attributes["href"][1:] in page.ids, attributes["href"]
    style = made[1][made[1].index("<style>"):made[1].index("</style>")]
    assert "url(" not in style and "@import" not in style
    policy = next(entry for entry in page.of("meta")
                  if entry.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'")


def test_the_same_results_give_the_same_bytes(made):
    root, html, markdown = made
    before = {name: (root / name).stat().st_ino for name in ("report.html", "report.md")}
    assert run(root) == (html, markdown)
    assert all((root / name).stat().st_ino != inode for name, inode in before.items())
    assert not list(root.glob(".*.part"))


def test_hostile_texts_are_shown_and_nothing_else(results_root):
    folder = results_root / "experiments"
    (folder / "p").mkdir(parents=True)
    claim = {"figure": "p/f", "claim": HOSTILE, "source": HOSTILE, "published": 1.0,
             "unit": HOSTILE, "compute": {"kind": "value", "metric": HOSTILE, "of": "dlora"}}
    (folder / "claims.yaml").write_text(yaml.safe_dump({
        "p/f-x": claim, "p/f-y\"><script>": claim | {"compute": {}, "unsupported": HOSTILE}}))
    (folder / "p/f.yaml").write_text(yaml.safe_dump({
        "title": HOSTILE, "expect": ["p/f-x"], "text": "```\n</pre></details>" + HOSTILE}))
    (folder / "p/later.yaml").write_text(yaml.safe_dump({"title": HOSTILE}))
    spec = Spec(results_root, "p/f")
    for seed in (0, 1):
        spec.add("dlora", seed, {}, {"latency_per_token_mean_s": 1.0,
                                     "latency_per_token_p90_s": 1.0},
                 datasets={"sources": json.dumps([dict.fromkeys(SOURCES[0], HOSTILE)]),
                           "context": json.dumps(dict.fromkeys(CONTEXT, HOSTILE))})
    spec.write(title=HOSTILE, hardware=HOSTILE, spec=(folder / "p/f.yaml").read_text())
    html, markdown = run(results_root, "--experiments", str(folder))
    page = Page(html)
    assert {"script", "iframe"}.isdisjoint(tag for tag, _ in page.elements)
    assert all(image["src"].startswith("data:") and "onerror" not in image
               for image in page.of("img"))
    assert HOSTILE in page.ids["claim-p-f-x"] and HOSTILE in page.ids["figure-p-f"]
    assert HOSTILE in page.ids["figure-p-later"]
    fence = re.compile(r"^(````+)yaml\n.*?^\1$", re.DOTALL | re.MULTILINE)
    assert fence.search(markdown), "the fence is longer than what it holds"
    outside = fence.sub("", markdown)
    assert "<script" not in outside and "<img" not in outside and "[b](c)" not in outside
    rows = [line for line in outside.splitlines() if line.startswith("| <a id=")]
    assert len(rows) == 2 and all(len(re.findall(r"(?<!\\)\|", row)) == 8 for row in rows)


@pytest.mark.parametrize("damage", ["collected", "point", "png", "invalid"])
def test_damaged_results_are_said_at_their_figure(results_root, capsys, damage):
    with_origin(results_root, "dlora/fig14")
    MAKERS["dlora/fig10"](results_root)
    run(results_root)
    folder = results_root / "dlora/fig14"
    if damage == "invalid":
        with_origin(results_root, "dlora/fig14", status="INVALID")
    else:
        path = {"collected": folder / "collected.h5", "point": folder / "points/k0002.h5",
                "png": folder / "fig14.png"}[damage]
        path.write_bytes(path.read_bytes()[:200])
        os.utime(path, (4e9, 4e9))  # so that the picture is not drawn again
    capsys.readouterr()
    html, markdown = run(results_root)
    what = {"collected": "truncated", "point": "k0002.h5", "png": "cannot be shown",
            "invalid": "no point is VALID"}[damage]
    assert what in Page(html).ids["figure-dlora-fig14"] and what in markdown.replace("\\", "")
    assert what in capsys.readouterr().err
    assert len(Page(html).of("img")) == 1  # the other figure's


def test_an_older_or_absent_picture_is_drawn(results_root):
    with_origin(results_root, "dlora/fig14")
    run(results_root)
    picture = results_root / "dlora/fig14/fig14.png"
    whole = picture.read_bytes()
    picture.write_bytes(b"of other results")
    os.utime(picture, (1, 1))
    run(results_root)
    assert picture.read_bytes() == whole


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_a_figure_whose_code_does_not_fit_the_results(results_root, capsys):
    spec = Spec(results_root, "placement/fig06")
    for rank, prompt in (("[8]", 8), ("[32]", 16)):  # and neither with the other's
        spec.add("vllm-lora", 0, {"runtime.adapter_store": "host", "workload.adapters.ranks": rank,
                                  "workload.lengths.prompt": prompt}, {"tpot_mean_s": 0.1},
                 datasets={"events/value": [0.1], "events/code": [0],
                           "requests/output_tokens": [5]})
    spec.write()
    html, _ = run(results_root, "placement")
    assert "not drawn: KeyError" in Page(html).ids["figure-placement-fig06"]
    assert "reproduced" in Page(html).ids["claim-placement-fig06-short-least"]
    assert "placement/fig01" in html and "dlora/fig10" not in html  # one paper only


def test_bad_input_is_one_line_and_leaves_the_last_report(results_root, capsys):
    folder = results_root / "experiments"
    (folder).mkdir(parents=True)
    (results_root / "report.html").write_text("the last one")
    shutil.copy(EXPERIMENTS / "claims.yaml", folder)
    for arguments, text in ((["nobody"], "no claims of 'nobody'; known papers: dlora, caraserve"),
                            (["--experiments", str(folder / "none")], "none/claims.yaml: ")):
        assert cli.main(["--results", str(results_root), *arguments]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and text in error
    assert (results_root / "report.html").read_text() == "the last one"
    (results_root / "file").write_text("")
    assert cli.main(["--results", str(results_root / "file"), "--experiments", str(folder)]) == 2
    assert capsys.readouterr().err.startswith("report: ")


def test_make_figures_ends_with_the_report():
    text = (ROOT / "Makefile").read_text()
    recipe = text[text.index("\nfigures: "):text.index("\n#! figures/")]
    assert recipe.strip().splitlines()[-1].strip() == '"$$PYTHON" -m analysis.report'


def test_anchors_and_order():
    assert content.anchor("claim", "p/f-1 \"><x>") == "claim-p-f-1-x"
    assert sorted(["fig10", "fig9", "figA1"], key=content.natural) == ["fig9", "fig10", "figA1"]


def test_quantities():
    assert rendering.quantity(2.034, "x") == "2.03×" and rendering.quantity(0.5, "") == "0.5"
    assert rendering.quantity(10, "%") == "10 %"
