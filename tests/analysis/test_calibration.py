"""The picture of a calibration's fit."""
from __future__ import annotations

from pathlib import Path

import pytest

from analysis import calibration

FROM_ROWS = """line,kind,measured_us,fitted_us,unseen_us,step,token
2,step,10000,11000,12000,6000,5000
3,step,20000,19000,18000,6000,13000
4,run,40000,40000,30000,6000,34000
"""
OF_AN_ENGINE = """kind,decodes,dense_us,attention_us,lora_us,total_us,fitted_us,placement_us
step,1,80,15,5,100,110,90
step,8,160,30,10,200,190,210
host_load,,,,,50,,
"""


def test_errors_and_shares_of_both_kinds(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(FROM_ROWS)
    figure = calibration.draw(rows)
    errors, made_of = figure.axes
    labels = [line.get_label() for line in errors.get_lines() if line.get_label()[0] != "_"]
    # 1,000 of 21,000 and of 39,000 us.
    assert labels == ["runs, fitted: 1, SMAPE 0.0 %", "steps, fitted: 2, SMAPE 3.7 %",
                      "runs, not seen by the fit: 1, SMAPE 14.3 %",
                      "steps, not seen by the fit: 2, SMAPE 7.2 %"]
    assert [bar.get_width() for bar in made_of.patches] == pytest.approx([33.7, 66.3], abs=0.1)

    engine = tmp_path / "engine.csv"
    engine.write_text(OF_AN_ENGINE)
    errors, made_of = calibration.draw(engine).axes
    assert len(errors.get_lines()[0].get_xdata()) == 2
    assert len(made_of.patches) == 3


def test_writes_both_files_and_refuses_others(tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text(FROM_ROWS)
    assert calibration.main([str(rows), "--out", str(tmp_path / "pictures")]) == 0
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["rows.pdf",
                                                                              "rows.png"]
    for text, said in (("a,b\n1,2\n", "no row has fitted_us"),
                       (FROM_ROWS.replace("10000", "ten"), "column measured_us")):
        rows.write_text(text)
        assert calibration.main([str(rows)]) == 2
        assert said in capsys.readouterr().err
    assert calibration.main([str(tmp_path / "none.csv")]) == 2
