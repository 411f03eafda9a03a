"""What Python derives from a point's datasets is what the program wrote into its summary."""
from __future__ import annotations

from pathlib import Path

import pytest
from servelab_runs import SPEC, needs_servelab, run

from analysis.summary import derive

TECHNIQUES = ["slora", "dlora", "dlora-artifact", "punica", "peft", "peft-2023",
              "vllm-lora", "vllm-uniform", "merged-only", "unmerged-only"]


@needs_servelab
@pytest.mark.parametrize("cluster", [{}, {"replicas": 3, "max_waiting": 4, "when_full": "reject"}])
def test_summaries_follow_from_datasets(tmp_path: Path, cluster) -> None:
    results = run(tmp_path, {**SPEC, "techniques": TECHNIQUES, "seeds": 2,
                             "record": {"series": True}, "cluster": cluster}, "mine")
    count = len(results.columns["key"])
    assert count == 2 * len(TECHNIQUES)
    for index in range(count):
        point = results.point(index)
        assert derive.check(point) == ([], []), results.columns["technique"][index]
        exact = derive.derive(point).exact
        assert len(exact) > 40 and exact["requests_finished"] > 0
