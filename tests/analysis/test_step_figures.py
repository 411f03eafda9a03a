"""Metrics of single steps, and the figures that are drawn from them."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Spec

from analysis import draw, published, steps
from analysis.errors import ResultsError
from analysis.figures import muxserve_fig03
from analysis.results import Results


def step_datasets(prefill_s: float, decode_s: float, decodes: int = 3) -> dict[str, np.ndarray]:
    """A prefill step that waited for a load in a tenth of its time, and decode steps; half of the
    rest is attention."""
    busy = np.array([prefill_s] + [decode_s] * decodes) * 1e9
    parts = {part: np.zeros(decodes + 1) for part in steps.PARTS}
    parts["load_wait"][0] = busy[0] / 10
    parts["attention"] = parts["dense"] = (busy - parts["load_wait"]) / 2
    return {"steps/prompt_tokens": np.array([128] + [0] * decodes),
            **{f"steps/parts/{name}": values for name, values in parts.items()}}


def sharing(root: Path, decode_at_half: float) -> Results:
    """Prefill in inverse proportion to the share; decode as told, at batch 32 twice as much so."""
    spec = Spec(root, "muxserve/fig03")
    for batch in (1, 32):
        for share in (0.3, 0.5, 1.0):
            slower = 1 if share == 1 else 1 + (decode_at_half - 1) * (2 if batch == 32 else 1)
            spec.add("vllm-lora", 0, {"workload.requests": batch, "engine.device_share": share}, {},
                     datasets=step_datasets(0.02 * batch / share, 0.01 * slower))
    spec.write()
    return Results.load("muxserve/fig03", root)


def test_a_step_of_prompts_is_told_from_decodes_and_waits_count(tmp_path: Path) -> None:
    results = sharing(tmp_path, 1.1)
    assert results.metric("prefill_step_mean_s")[0] == pytest.approx(0.02 / 0.3)
    assert results.metric("decode_step_mean_s")[2] == pytest.approx(0.01)


def test_without_steps_the_remedy_is_named(tmp_path: Path) -> None:
    spec = Spec(tmp_path, "a/b")
    spec.add("slora", 0, {}, {})
    spec.write()
    with pytest.raises(ResultsError, match="has no dataset /steps/prompt_tokens"):
        Results.load("a/b", tmp_path).metric("decode_step_mean_s")


def test_muxserve_fig03(tmp_path: Path) -> None:
    results = sharing(tmp_path, 1.1)
    assert muxserve_fig03.claim_value(results, "decode-at-half") == pytest.approx(1.2)
    table = next(path for path in draw.draw("muxserve/fig03", tmp_path) if path.suffix == ".txt")
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    assert ["prefill", "32", "50", "1280.00", "2.00"] in rows
    assert ["decode", "1", "50", "11.00", "1.10"] in rows


def test_the_artifact_decodes_half_as_slowly_again_on_30_percent() -> None:
    x, y = published.curve("muxserve/fig03", "decode_step_s", "batch 1")
    assert list(x) == [30, 100]
    assert y[0] / y[1] == pytest.approx(1.46, abs=0.01)
