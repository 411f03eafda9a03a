"""The list of faults that `make mutate` plants: it fits the tree, which changes under it."""
from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("mutate", ROOT / "tests/mutation/mutate.py")
mutate = importlib.util.module_from_spec(_spec)
sys.modules["mutate"] = mutate
_spec.loader.exec_module(mutate)


def test_every_fault_can_be_planted():
    faults = mutate.load_faults()
    assert len(faults) >= 60
    areas = ["engine/serve/", "engine/backend/", "baselines/", "engine/workload/",
             "engine/record/", "engine/run/", "engine/model/", "kernels/", "analysis/"]
    for area in areas:
        assert any(fault.file.startswith(area) for fault in faults), area
    for fault in faults:
        text = (ROOT / fault.file).read_text(encoding="utf-8")
        assert fault.planted(text) != text, fault.fault


def test_what_does_not_fit_is_named(tmp_path):
    fault = mutate.Fault("f.cc", "a fault", "twice", "once", "T*")
    with pytest.raises(mutate.ListError, match="f.cc: 'twice' stands there 2 times"):
        fault.planted("twice twice")
    listed = tmp_path / "faults.yaml"
    listed.write_text("- {file: f.cc, fault: a, was: b, is: c}\n")
    with pytest.raises(mutate.ListError, match="no tests"):
        mutate.load_faults(listed)
    listed.write_text("- {file: f.cc, fault: a, was: b, is: c, tests: d, test: e}\n")
    with pytest.raises(mutate.ListError, match="unknown test"):
        mutate.load_faults(listed)


def test_results_are_gone_on_from(tmp_path):
    results = tmp_path / "mutation.json"
    assert mutate.noticed_in(results) == {}
    first, second = (mutate.Fault("f.cc", name, "a", "b", "T*") for name in ("first", "second"))
    rows = [{"result": result, "commit": "c", "planted": mutate.asdict(fault)}
            for fault, result in [(first, "noticed"), (second, "survived")]]
    results.write_text(json.dumps(rows))
    assert mutate.noticed_in(results) == {first: rows[0]}
    results.write_text('[{"result": "noticed"}]')
    with pytest.raises(mutate.ListError, match="mutation.json: holds no results to go on from"):
        mutate.noticed_in(results)
