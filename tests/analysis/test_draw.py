"""Draws every figure from synthetic results: whole files, not blank, the same bytes each time."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import matplotlib.image
import numpy as np
import pytest

from analysis import draw, style
from analysis.results import Results
from conftest import MAKERS, ROOT, Spec, edited, fig07, latency_spec


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
    modules = {path.stem for path in draw.FIGURES.glob("[a-z]*_*.py")}
    tested = {spec_id.replace("/", "_") for spec_id in MAKERS} - {"mine_skewness"}
    in_test_cpu_figures = {"caraserve_fig04", "caraserve_fig09", "placement_tab01"}
    in_test_cpu_figures |= {f"placement_fig0{number}" for number in (1, *range(4, 10))}
    in_test_step_figures = {"muxserve_fig03"}
    assert modules == tested | in_test_cpu_figures | in_test_step_figures


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
    results.attributes["figure"] = "cpu"  # what a run records without `figure`
    assert draw.module_for(results).__name__.endswith("generic")
    results.attributes["figure"] = "dlora/fig14"
    assert draw.module_for(results).__name__.endswith("dlora_fig14")


def test_short_run_has_fewer_panels(results_root, monkeypatch):
    fig07(results_root, hours=0.05)
    text = texts(monkeypatch, "dlora/fig07", results_root)
    assert "(a) whole run" in text and "busiest 1 h" not in text


def test_failed_write_leaves_the_old_picture(tmp_path, monkeypatch):
    (tmp_path / "f.pdf").write_bytes(b"old")
    sync = style.os.fsync
    synced = []

    def full(file):
        synced.append(file)
        if len(synced) == 2:
            raise OSError(28, "No space left on device")
        sync(file)

    monkeypatch.setattr(style.os, "fsync", full)
    with pytest.raises(OSError):
        style.save(style.plt.figure(), tmp_path, "f")
    assert [path.name for path in tmp_path.iterdir()] == ["f.pdf"]
    assert (tmp_path / "f.pdf").read_bytes() == b"old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("part", [".skewness.pdf.part", ".skewness.png.part"])
def test_full_disk_is_one_line(results_root, capsys, part):
    MAKERS["mine/skewness"](results_root)
    (results_root / "mine/skewness" / part).symlink_to("/dev/full")
    assert draw.main(["--results", str(results_root), "mine/skewness"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert "No space left on device" in shown.err
    assert not list((results_root / "mine/skewness").glob("*.p[dn][fg]"))


def test_full_stdout_is_one_line(results_root):
    MAKERS["mine/skewness"](results_root)
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, "-m", "analysis.draw", "--results",
                               str(results_root), "mine/skewness"], cwd=ROOT, text=True,
                              stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr == "draw: stdout cannot be written: No space left on device\n"


def test_unknown_figure_is_told_with_the_known_ones(results_root, capsys):
    latency_spec(results_root, "mine/cpu", ["slora", "dlora"]).unlink()
    spec = Spec(results_root, "mine/cpu")
    spec.add("slora", 0, {}, {"latency_per_token_mean_s": 1.0})
    spec.write(figure="dlora/fig1O")
    assert draw.main(["--results", str(results_root), "mine/cpu"]) == 2
    line = capsys.readouterr().err
    assert "there is no figure 'dlora/fig1O'; known: caraserve/a10g, caraserve/fig03, " in line


def test_variants_of_a_spec_without_drawing_code_are_drawn_as_it_is(results_root):
    latency_spec(results_root, "smoke/more", ["slora", "dlora"]).unlink()
    spec = Spec(results_root, "smoke/more")
    spec.add("slora", 0, {}, {"latency_per_token_mean_s": 1.0, "latency_per_token_p90_s": 2.0})
    spec.write(figure="smoke/dlora")
    assert draw.main(["--results", str(results_root), "smoke/more"]) == 0
    assert (results_root / "smoke/more/more.png").is_file()


def two_metrics(root: Path, techniques: list[str], statuses: list[str], **more) -> None:
    """Two seeds of each technique without a sweep: mean 1 and 3, P90 2 and 6."""
    spec = Spec(root, "mine/plain")
    for technique, status in zip(techniques, statuses):
        for seed in (0, 1):
            spec.add(technique, seed, {}, {"latency_per_token_mean_s": 1.0 + 2 * seed,
                                           "latency_per_token_p90_s": 2.0 + 4 * seed}, status)
    spec.write(**more)


def test_a_spec_without_a_sweep_is_bars_with_intervals(results_root, monkeypatch):
    two_metrics(results_root, ["slora", "dlora"], ["VALID", "VALID"])
    found = []
    monkeypatch.setattr(style, "save", lambda figure, *_: found.append(figure) or [])
    draw.draw("mine/plain", results_root)
    axes = found[0].axes[0]
    assert [bar.get_height() for bar in axes.patches] == [2.0, 4.0, 2.0, 4.0]
    assert len(axes.containers) == 4  # bars and error bars of two techniques
    assert axes.get_legend_handles_labels()[1] == ["S-LoRA", "dLoRA"]
    style.plt.close(found[0])


def test_nothing_valid_is_not_drawn(results_root, capsys):
    two_metrics(results_root, ["slora"], ["INVALID"])
    assert draw.main(["--results", str(results_root), "mine/plain"]) == 2
    shown = capsys.readouterr()
    assert "no point is VALID; change the spec" in shown.err and shown.err.count("\n") == 1
    assert not list(results_root.rglob("*.p[dn][fg]"))


def test_dollars_are_dollars(results_root, capsys):
    labels = ["cost $_{$", "$\\frac{$ & $$"]
    two_metrics(results_root, labels, ["VALID", "VALID"], trace="a $\\b$ trace", model="$m$ $")
    assert draw.main(["--results", str(results_root), "mine/plain"]) == 0, capsys.readouterr()
    latency_spec(results_root, "mine/sweep", ["slora", "dlora"], 1)
    with edited(results_root / "mine/sweep/collected.h5") as file:
        names = [label + "$_{$" for label in file["columns/technique"].asstr()]
        del file["columns/technique"]
        file["columns/technique"] = names
    assert draw.main(["--results", str(results_root), "mine/sweep"]) == 0, capsys.readouterr()


def test_looks_are_distinct():
    looks = list(style.LOOKS.values())
    assert len({(look.color, look.marker) for look in looks}) == len(looks)
    assert style.look("somebody-new").label == "somebody-new"
