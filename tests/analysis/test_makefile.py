"""The Makefile's verbs that need no build."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("MAKE") and name != "SERVELAB_DATA"}
    return subprocess.run(["make", *arguments], cwd=ROOT, env={**environment, **variables},
                          text=True, capture_output=True, timeout=60)


def test_help_is_the_default_and_lists_every_verb():
    shown = make()
    assert shown.returncode == 0 and shown.stdout == make("help").stdout
    listed = {line.split()[1] for line in shown.stdout.splitlines() if line.startswith("  make ")}
    assert listed == {"help", "setup", "build", "test", "figures", "figures/<paper>/<fig>",
                      "report",
                      "cpu-figures", "gpu-bundle", "gpu-check", "gpu-figures", "fuzz", "smoke",
                      "bench", "sanitize", "check-format", "doctor", "clean"}


def test_figures_from_an_archive_need_neither_build_nor_run():
    for goal in ("figures", "figures/dlora/fig99"):
        shown = make("--dry-run", goal, "FROM=some/x.tar.zst").stdout
        assert ".ci/setup --only-python" in shown and "cmake" not in shown
        assert "servelab run" not in shown
        assert "verify 'some/x.tar.zst' --out 'results/from/x'" in shown


def test_unknown_figure_names_the_known_ones_before_building():
    shown = make("figures/dlora/fig99")
    assert shown.returncode != 0 and shown.stdout == ""
    assert "*** no experiments/dlora/fig99.yaml; known: " in shown.stderr


def test_every_unknown_figure_is_named():
    shown = make("figures/dlora/fig99", "figures/dlora/fig98")
    assert ("*** no experiments/dlora/fig99.yaml experiments/dlora/fig98.yaml; known: "
            in shown.stderr)


def test_smoke_specs_can_be_drawn():
    shown = make("--dry-run", "figures/smoke/dlora")
    assert shown.returncode == 0, shown.stderr
    assert "build/servelab run 'experiments/smoke/dlora.yaml'" in shown.stdout
    assert "analysis.draw 'smoke/dlora'" in shown.stdout


def test_figures_runs_papers_specs_and_neither_base_nor_smoke():
    shown = make("--dry-run", "figures").stdout
    assert "-m analysis.draw" in shown
    run = next(line for line in shown.splitlines() if line.startswith("build/servelab run"))
    assert "experiments/base" not in run and "smoke" not in run and "claims" not in run


def test_traces_come_from_the_variable_when_it_is_set():
    assert "SERVELAB_DATA=/some/where" in make("help", SERVELAB_DATA="/some/where").stdout
