"""Draws every figure from synthetic results: whole files, not blank, the same bytes each time."""
from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from analysis import draw, style
from analysis.results import Results
from conftest import MAKERS, fig07, latency_spec


@pytest.mark.parametrize("spec_id", MAKERS)
def test_draws_the_same_picture_twice(results_root, capsys, spec_id):
    MAKERS[spec_id](results_root)
    name = spec_id.split("/")[-1]
    pictures = [results_root / spec_id / f"{name}.{kind}" for kind in ("pdf", "png")]
    first = []
    for _ in range(2):
        assert draw.main(["--results", str(results_root), spec_id]) == 0
        first.append([path.read_bytes() for path in pictures])
    assert first[0] == first[1]
    assert str(results_root.resolve()) in capsys.readouterr().out
    pixels = matplotlib.image.imread(pictures[1])[:, :, :3]
    assert pixels.shape[1] in (670, 1400)
    assert 0.02 < np.mean(np.any(pixels < 0.95, axis=2)) < 0.9
    # nothing is cut off at the edges
    edges = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert edges.min() > 0.95
    assert b"CreationDate" not in first[0][0] and b"/FontFile2" in first[0][0]
    assert b"/Type3" not in first[0][0]
    assert not list((results_root / spec_id).glob(".*"))


def test_every_figure_module_has_synthetic_results():
    modules = {path.stem for path in draw.FIGURES.glob("*_*.py")} - {"__init__"}
    assert modules == {spec_id.replace("/", "_") for spec_id in MAKERS} - {"mine_skewness"}


def texts(monkeypatch, spec_id: str, root: Path) -> str:
    """All the text of the figures drawn for a spec."""
    found = []

    def record(figure, folder, name):
        found.extend(text.get_text() for text in figure.findobj(match=style.plt.Text))
        style.plt.close(figure)
        return []

    monkeypatch.setattr(style, "save", record)
    draw.draw(spec_id, root)
    return "\n".join(found)


def test_face_of_a_figure(results_root, monkeypatch):
    MAKERS["dlora/fig10"](results_root)
    text = " ".join(texts(monkeypatch, "dlora/fig10", results_root).split())
    assert "backend: twin · hardware: A800-80G · model: Llama-2-7B · trace: embedded" in text
    assert "5 seeds" in text and "servelab 0.1.0" in text and "published (artifact" in text
    assert "INVALID" not in text


def test_invalid_points_are_said_on_the_face(results_root, monkeypatch):
    latency_spec(results_root, "dlora/fig10", ["merged-only", "unmerged-only", "dlora"],
                 invalid=("dlora", 8))
    assert "INVALID: 5 of 60 points" in texts(monkeypatch, "dlora/fig10", results_root)
    factors = (results_root / "dlora/fig10/factors.txt").read_text()
    assert "5 of 60 points are INVALID" in " ".join(factors.split())


def test_one_seed_draws_without_error_bars(results_root, monkeypatch):
    latency_spec(results_root, "dlora/fig14", ["slora", "dlora"], seeds=1)
    assert "1 seed," in texts(monkeypatch, "dlora/fig14", results_root)
    assert "(one seed)" in (results_root / "dlora/fig14/factors.txt").read_text()


def test_figure_attribute_names_the_drawing(results_root):
    latency_spec(results_root, "mine/cpu", ["slora", "dlora"])
    results = Results.load("mine/cpu", results_root)
    assert draw.module_for(results).__name__.endswith("generic")
    results.attributes["figure"] = "dlora/fig14"
    assert draw.module_for(results).__name__.endswith("dlora_fig14")


def test_short_run_has_fewer_panels(results_root, monkeypatch):
    fig07(results_root, hours=0.05)
    text = texts(monkeypatch, "dlora/fig07", results_root)
    assert "(a) whole run" in text and "busiest 1 h" not in text


def test_failed_write_leaves_the_old_picture(tmp_path, monkeypatch):
    (tmp_path / "f.pdf").write_bytes(b"old")
    figure = style.plt.figure()

    def half(part, **_):
        if part.name.endswith(".png.part"):
            raise OSError(28, "No space left on device")
        part.write_bytes(b"half")

    monkeypatch.setattr(figure, "savefig", half)
    with pytest.raises(OSError):
        style.save(figure, tmp_path, "f")
    assert [path.name for path in tmp_path.iterdir()] == ["f.pdf"]
    assert (tmp_path / "f.pdf").read_bytes() == b"old"


def test_looks_are_distinct():
    looks = list(style.LOOKS.values())
    assert len({(look.color, look.marker) for look in looks}) == len(looks)
    assert style.look("somebody-new").label == "somebody-new"
