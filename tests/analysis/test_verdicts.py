"""Claims, how their values are computed, and every kind of verdict."""
from __future__ import annotations

import csv
import importlib
import math

import numpy as np
import pytest
import yaml

import cluster_results
from analysis import compute, verdicts
from analysis.claim_file import Claim, ClaimsError, expectations, load_claims
from analysis.errors import EXPERIMENTS
from analysis.results import Results
from analysis.stats import Estimate
from conftest import MAKERS, ROOT, Spec

FACTOR = {"kind": "factor", "metric": "m", "of": "slow", "over": "fast", "reduce": "max"}


def claim(**settings) -> Claim:
    return Claim(**{"id": "p/f-x", "figure": "p/f", "claim": "slower", "published": 2.0,
                    "unit": "x", "tolerance": 0.1, "compute": FACTOR, **settings})


def results_of(root, seeds: int = 5, status: str = "VALID", spread: float = 0.02,
               factor: float = 2.0, value: float = 1.0, name: str = "m") -> Results:
    """slow is `factor` times fast at x = 1, and a third of that more at x = 2."""
    spec = Spec(root, "p/f")
    for x in (1, 2):
        for technique in ("slow", "fast"):
            for seed in range(seeds):
                rng = np.random.default_rng([seed, x, *technique.encode()])
                mean = value * (factor * (1 + (x - 1) / 3) if technique == "slow" else 1.0)
                spec.add(technique, seed, {"w.x": x}, {name: mean * (1 + rng.normal(0, spread))},
                         status)
    spec.write()
    return Results.load("p/f", root)


@pytest.mark.parametrize("published, expected", [
    (2.67, "reproduced"), (2.5, "reproduced"),   # within 10 % of about 2.67
    (5.0, "same direction"), (1.2, "same direction"),
    (0.5, "not reproduced"),                     # the paper has the opposite effect
])
def test_near(results_root, published, expected):
    found = verdicts.judge(claim(published=published), results_of(results_root))
    assert found.verdict == expected
    assert found.estimate.value == pytest.approx(2.67, rel=0.05) and found.estimate.n == 5
    assert found.at == "x=2"


def test_inside_the_interval(results_root):
    found = verdicts.judge(claim(published=2.2, tolerance=0.0),
                           results_of(results_root, spread=0.2))
    assert found.estimate.low < 2.2 < found.estimate.high
    assert (found.verdict, found.reason) == ("reproduced", "inside the interval")


def test_an_interval_that_holds_no_effect_as_well_is_open(results_root):
    results = results_of(results_root, seeds=2, spread=0.3, factor=1.1)
    found = verdicts.judge(claim(published=3.0), results)
    assert found.estimate.low < 1 < 3 < found.estimate.high
    assert found.verdict == "open" and "more seeds" in found.reason


def test_no_effect_is_not_reproduced(results_root):
    found = verdicts.judge(claim(published=3.0), results_of(results_root, factor=0.75, spread=0.1))
    assert found.estimate.low < 1 < found.estimate.high < 3
    assert found.verdict == "not reproduced"


def test_one_seed_has_no_interval(results_root):
    results = results_of(results_root, seeds=1)
    far = verdicts.judge(claim(published=9.0), results)
    assert (far.verdict, far.reason) == ("open", "one seed: no interval")
    assert verdicts.judge(claim(published=2.67), results).verdict == "reproduced"
    assert math.isnan(far.estimate.low)


@pytest.mark.parametrize("compare, published, expected", [
    ("at-least", 2.5, "reproduced"), ("at-least", 4.0, "not reproduced"),
    ("at-most", 3.0, "reproduced"), ("at-most", 2.0, "not reproduced"),
])
def test_bounds(results_root, compare, published, expected):
    results = results_of(results_root)
    found = verdicts.judge(claim(compare=compare, published=published, tolerance=0.0), results)
    assert found.verdict == expected


@pytest.mark.parametrize("compare, low, value, high, expected", [
    ("near", 2.19, 2.199, 2.21, "reproduced"), ("near", 2.19, 2.201, 2.21, "same direction"),
    ("near", 1.79, 1.801, 1.81, "reproduced"), ("near", 1.79, 1.799, 1.81, "same direction"),
    ("near", 1.99, 2.3, 2.31, "reproduced"), ("near", 2.01, 2.3, 2.31, "same direction"),
    # the end of the interval that is kinder to the claim, and 10 % of 2
    ("at-least", 1.0, 1.5, 1.801, "reproduced"), ("at-least", 1.0, 1.5, 1.799, "not reproduced"),
    ("at-most", 2.199, 2.5, 3.0, "reproduced"), ("at-most", 2.201, 2.5, 3.0, "not reproduced"),
])
def test_both_sides_of_each_edge(compare, low, value, high, expected):
    found = verdicts._compared(claim(compare=compare), Estimate(value, low, high, 5))
    assert found[0] == expected


def test_never_worse_looks_at_the_interval_of_every_position(results_root):
    spec = Spec(results_root, "p/f")
    # the larger mean is uncertain, the smaller one is worse beyond doubt
    for x, values in ((1, [0.6, 1.4, 1.9]), (2, [1.10, 1.11, 1.12])):
        for seed, value in enumerate(values):
            spec.add("ours", seed, {"x": x}, {"m": value})
            spec.add("theirs", seed, {"x": x}, {"m": 1.0})
    spec.write()
    never = claim(published=1, compare="at-most", tolerance=0.0, compute={
        "kind": "factor", "metric": "m", "of": "ours", "over": ["theirs"], "reduce": "every"})
    found = verdicts.judge(never, Results.load("p/f", results_root))
    assert (found.verdict, found.at) == ("not reproduced", "x=2")


def test_unknown_metric_is_unsupported(results_root):
    found = verdicts.judge(claim(compute=FACTOR | {"metric": "none"}), results_of(results_root))
    assert found.verdict == "unsupported" and "has no metric summary.none" in found.reason


def test_nan_is_open(results_root):
    found = verdicts.judge(claim(), results_of(results_root, value=math.nan))
    assert (found.verdict, found.reason) == ("open", "no point has a value of m")


def test_invalid_points_are_no_result(results_root):
    found = verdicts.judge(claim(published=2.67), results_of(results_root, status="INVALID"))
    assert (found.verdict, found.reason) == ("invalid", "20 of 20 points are INVALID")


def test_invalid_points_of_others_do_not_matter(results_root):
    spec = Spec(results_root, "p/f")
    for technique, status in (("slow", "VALID"), ("fast", "VALID"), ("other", "INVALID")):
        for seed in (0, 1):
            spec.add(technique, seed, {"x": 1}, {"m": 2.0 if technique == "slow" else 1.0}, status)
    spec.write()
    assert verdicts.judge(claim(), Results.load("p/f", results_root)).verdict == "reproduced"


def test_absent_technique_and_position_are_open(results_root):
    results = results_of(results_root)
    absent = verdicts.judge(claim(compute=FACTOR | {"of": "nobody"}), results)
    assert (absent.verdict, absent.reason) == ("open", "no point of nobody")
    nowhere = verdicts.judge(claim(compute=FACTOR | {"where": {"x": 7}}), results)
    assert (nowhere.verdict, nowhere.reason) == ("open", "no point has x=7")
    several = verdicts.judge(claim(compute={key: FACTOR[key] for key in FACTOR if key != "reduce"}),
                             results)
    assert several.verdict == "open" and "needs `reduce` or `where`" in several.reason


def test_a_declared_gap_is_unsupported(results_root):
    gap = claim(compute={}, unsupported="needs NVLink")
    assert verdicts.judge(gap, results_of(results_root)).verdict == "unsupported"
    found = verdicts.verdicts_of({"p/f-x": gap}, {}, results_root / "none")
    assert [(row.verdict, row.reason) for row in found] == [("unsupported", "needs NVLink")]


def test_where_restricts(results_root):
    found = verdicts.judge(claim(compute=FACTOR | {"where": {"x": 1}}), results_of(results_root))
    assert found.estimate.value == pytest.approx(2.0, rel=0.05)


def test_rate_factor_and_its_bound(results_root):
    MAKERS["dlora/fig11a"](results_root)
    results = Results.load("dlora/fig11a", results_root)
    params = {"kind": "rate-factor", "metric": cluster_results.MEAN, "of": "dlora", "over": "rr",
              "along": "rate", "limit": 0.5}
    found = verdicts.judge(claim(published=3.33, compute=params), results)
    assert found.verdict == "reproduced"
    far = verdicts.judge(claim(published=3.33, compute=params | {"limit": 50}), results)
    assert far.verdict == "open" and "dlora is within the limit at the last rate, 256" in far.reason
    rate = compute.found_values(results, {"kind": "rate", "metric": cluster_results.MEAN,
                                          "of": "rr", "along": "rate", "limit": 0.5})
    assert rate[0].estimate.value == pytest.approx(30, rel=0.1)


def test_rate_factor_by_panel(results_root):
    MAKERS["dlora/fig09"](results_root)
    params = load_claims()["dlora/fig09-vllm-13b"].compute
    found = compute.found_values(Results.load("dlora/fig09", results_root), params)
    assert sorted(one.at for one in found) == ["trace=maf1-d01", "trace=maf2"]
    assert all(one.estimate.value == pytest.approx(5, rel=0.1) for one in found)


def test_rate_factor_over_several(results_root):
    MAKERS["dlora/fig11a"](results_root)
    params = {"kind": "rate-factor", "metric": cluster_results.MEAN, "of": "dlora",
              "over": ["rr", "proactive"], "along": "rate", "limit": 0.5}
    found = compute.found_values(Results.load("dlora/fig11a", results_root), params)
    assert [one.at for one in found] == ["rr", "proactive"]
    alone = compute.found_values(Results.load("dlora/fig11a", results_root),
                                 params | {"over": "proactive"})
    assert found[1].estimate == alone[0].estimate != found[0].estimate


def test_increase_and_decrease_are_percentages(results_root):
    results = results_of(results_root, spread=0.01)  # slow over fast: 2 and 2.67
    sides = {"metric": "m", "where": {"x": 1}}
    more = compute.found_values(results, sides | {"kind": "increase", "of": "slow", "over": "fast"})
    assert more[0].estimate.value == pytest.approx(100, rel=0.05)
    less = compute.found_values(results, sides | {"kind": "decrease", "of": "fast", "over": "slow"})
    assert less[0].estimate.value == pytest.approx(50, rel=0.05)
    for one in (more[0].estimate, less[0].estimate):
        assert one.low < one.value < one.high and one.n == 5
    worse = compute.found_values(results, sides | {"kind": "decrease", "of": "slow",
                                                   "over": "fast"})
    assert worse[0].estimate.value == pytest.approx(-100, rel=0.05)
    opposite = claim(published=40, unit="%", compute=sides | {
        "kind": "decrease", "of": "slow", "over": "fast"})
    assert verdicts.judge(opposite, results).verdict == "not reproduced"


def test_a_method_is_open_until_something_computes_it(results_root):
    by_hand = claim(compute={}, method="the paper's table, counted")
    found = verdicts.judge(by_hand, results_of(results_root))
    assert (found.verdict, found.reason) == ("open", "not computed yet: the paper's table, counted")


def test_a_figure_that_cannot_compute_its_value_is_open(results_root):
    results = results_of(results_root, name="itl_p50_s")
    foreign = claim(compute={"kind": "figure", "figure": "caraserve/fig04", "value": "bgmv"})
    assert verdicts.judge(foreign, results).verdict == "unsupported"  # no such swept settings
    spec = Spec(results_root, "p/g")
    spec.add("bgmv", 0, {"workload.requests": 4, "workload.adapters.ranks": "[8,64]"},
             {"itl_p50_s": 0.1})
    spec.write()
    found = verdicts.judge(foreign, Results.load("p/g", results_root))
    assert found.verdict == "open" and "cannot compute bgmv from these results" in found.reason


def test_rise_fall_and_across(results_root):
    MAKERS["dlora/fig12"](results_root)
    results = Results.load("dlora/fig12", results_root)
    fall = {"kind": "fall", "metric": "requests_per_s", "of": "vllm-uniform", "along": "count"}
    assert compute.found_values(results, fall)[0].estimate.value == pytest.approx(8**0.5)
    assert compute.found_values(results, fall | {"kind": "rise"})[0].estimate.value == (
        pytest.approx(8**-0.5))
    MAKERS["dlora/fig13"](results_root)
    apart = load_claims()["dlora/fig13-sm"]
    found = verdicts.judge(apart, Results.load("dlora/fig13", results_root))
    assert found.verdict == "reproduced" and found.estimate.n == 3


def test_linear_fit(results_root):
    spec = Spec(results_root, "p/f")
    for x, y in ((1, 1.0), (2, 2.0), (4, 4.0), (8, 8.5)):
        spec.add("a", 0, {"x": x}, {"m": y})
    spec.write()
    fit = claim(published=0.96, compare="at-least", compute={
        "kind": "linear-fit", "metric": "m", "of": "a", "along": "x"})
    found = verdicts.judge(fit, Results.load("p/f", results_root))
    assert found.verdict == "reproduced" and found.estimate.value > 0.99


def test_log_scale_is_the_geometric_mean(results_root):
    spec = Spec(results_root, "p/f")
    for seed, value in enumerate((2.0, 8.0)):
        spec.add("a", seed, {}, {"m": value})
    spec.write()
    results = Results.load("p/f", results_root)
    params = {"kind": "value", "metric": "m", "of": "a"}
    assert compute.found_values(results, params)[0].estimate.value == 5
    assert compute.found_values(results, params | {"scale": "log"})[0].estimate.value == (
        pytest.approx(4))


# claims.yaml and the command

ENTRY = {"figure": "p/f", "claim": "slower", "published": 2.0, "unit": "x", "tolerance": 0.1,
         "compute": FACTOR}


def experiments(root, entries: dict, expect: list[str]) -> list[str]:
    """An experiments folder with claims.yaml and one spec; the arguments of the command."""
    (root / "experiments/p").mkdir(parents=True, exist_ok=True)
    (root / "experiments/claims.yaml").write_text(yaml.safe_dump(entries, sort_keys=False))
    (root / "experiments/p/f.yaml").write_text(yaml.safe_dump({"expect": expect}))
    return ["--experiments", str(root / "experiments"), "--results", str(root)]


def test_the_command_prints_a_table_and_writes_a_csv(results_root, capsys):
    results_of(results_root)
    arguments = experiments(results_root, {
        "p/f-good": ENTRY | {"published": 2.67}, "p/f-far": ENTRY | {
            "published": 9.0, "cause": "a slower disk", "experiment": "make figures/p/g"},
        "q/g-later": ENTRY | {"figure": "q/g"}}, ["p/f-good", "p/f-far"])
    assert verdicts.main([*arguments, "p"]) == 0
    shown = capsys.readouterr().out
    assert "2 verdicts: 1 reproduced, 1 same direction, 0 not reproduced, 0 open" in shown
    assert "a slower disk (make figures/p/g)" in shown and "q/g-later" not in shown
    rows = list(csv.DictReader((results_root / "verdicts.csv").open()))
    assert [(row["claim"], row["verdict"]) for row in rows] == [
        ("p/f-good", "reproduced"), ("p/f-far", "same direction"), ("q/g-later", "open")]
    assert rows[0]["seeds"] == "5" and float(rows[0]["low"]) < 2.67 < float(rows[0]["high"])
    assert rows[2]["reason"] == "no spec expects it yet" and rows[2]["value"] == ""


def test_absent_and_damaged_results_are_open(results_root, capsys):
    arguments = experiments(results_root, {"p/f-x": ENTRY}, ["p/f-x"])
    assert verdicts.main([*arguments, "--list"]) == 0
    assert "no results" in capsys.readouterr().out
    path = results_of(results_root).path
    path.write_bytes(path.read_bytes()[:100])
    assert verdicts.main([*arguments, "--list"]) == 0
    assert "1 open" in capsys.readouterr().out


def lines_of(arguments: list[str], capsys) -> list[str]:
    assert verdicts.main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_all_papers_are_counted_and_what_changed_is_said(results_root, capsys):
    entries = {"p/f-good": ENTRY | {"published": 2.67}, "p/f-far": ENTRY | {"published": 9.0},
               "q/g-later": ENTRY | {"figure": "q/g"}}
    arguments = experiments(results_root, entries, ["p/f-good", "p/f-far"])
    shown = lines_of(arguments, capsys)
    assert [line.split() for line in shown[1:4]] == [
        ["p", *"000200"], ["q", *"000100"], ["all", *"000300"]]
    assert "No verdicts to compare with: this is the first run." in shown
    assert "/verdicts.csv, " in shown[-1]
    assert "report.html" in shown[-1] and not any("slower" in line for line in shown)
    results_of(results_root)
    shown = lines_of(arguments, capsys)
    assert [line.split() for line in shown[1:4]] == [
        ["p", *"110000"], ["q", *"000100"], ["all", *"110100"]]
    said = shown.index("Changed since the last run:")
    assert shown[said + 1:said + 4] == ["  p/f-good: open -> reproduced",
                                        "  p/f-far: open -> same direction", ""]
    assert "Nothing changed since the last run." in lines_of(arguments, capsys)
    del entries["q/g-later"]
    arguments = experiments(results_root, entries, ["p/f-good", "p/f-far"])
    assert "  q/g-later: open -> absent" in lines_of([*arguments, "--list"], capsys)


def both_columns(root, **as_published) -> list[str]:
    """p/f, where slow is 2.7 times fast, and p/f_published, where it is 5.3 times; the command's
    arguments."""
    results_of(root)
    spec = Spec(root, "p/f_published")
    for x in (1, 2):
        for technique, value in (("slow", 4.0 * (1 + (x - 1) / 3)), ("fast", 1.0)):
            for seed in range(5):
                noise = 1 + 0.01 * np.random.default_rng([seed, x, len(technique)]).normal()
                spec.add(technique, seed, {"w.x": x}, {"m": value * noise, "other": 1.0 * noise})
    spec.write()
    entry = ENTRY | {"published": 5.0, "cause": "it is slow", "experiment": "make figures/p/g"}
    arguments = experiments(root, {
        "p/f-both": entry | {"as_published": as_published} if as_published else entry,
        "p/f-same": entry | {"as_published": {"same": "it is a property of the trace"}},
        "p/f-one": entry}, ["p/f-both", "p/f-same", "p/f-one"])
    (root / "experiments/p/f_published.yaml").write_text(yaml.safe_dump({"expect": ["p/f-both"]}))
    return arguments


def test_what_runs_as_published_is_a_second_column(results_root, capsys):
    shown = lines_of([*both_columns(results_root), "--list"], capsys)
    lines = {line.split()[0]: line for line in shown if line.startswith("p/f-")}
    assert "as published, 95 % CI" in shown[0]
    assert lines["p/f-both"].split("x  ")[-1].split()[0:2] == ["same", "direction"]
    assert lines["p/f-both"].endswith(" reproduced") and "5.33 [" in lines["p/f-both"]
    assert lines["p/f-same"].count("same direction") == 2
    assert lines["p/f-one"].count("2.6") == 1 and not lines["p/f-one"].endswith("reproduced")
    text = " ".join(" ".join(shown).split())
    assert "as published: the same in both columns: it is a property of the trace" in text
    assert "3 verdicts: 0 reproduced, 3 same direction" in text
    assert "2 as published: 1 reproduced, 1 same direction" in text
    rows = [row for row in csv.DictReader((results_root / "verdicts.csv").open())]
    assert [(row["claim"], row["spec"], row["column"]) for row in rows] == [
        ("p/f-both", "p/f", ""), ("p/f-both", "p/f_published", "as published"),
        ("p/f-same", "p/f", ""), ("p/f-same", "p/f", "as published"), ("p/f-one", "p/f", "")]
    shown = lines_of([*both_columns(results_root)], capsys)
    assert [line.split() for line in shown[1:4]] == [
        ["p", *"030000"], ["published", *"110000"], ["all", *"030000"]]
    assert "Nothing changed since the last run." in shown


def test_the_second_column_has_its_own_metric_and_cause(results_root, capsys):
    arguments = both_columns(results_root, metric="other", cause="all are alike",
                             experiment="make figures/p/h")
    text = " ".join(" ".join(lines_of([*arguments, "--list"], capsys)).split())
    assert "as published: all are alike (make figures/p/h)" in text
    rows = list(csv.DictReader((results_root / "verdicts.csv").open()))
    assert float(rows[1]["value"]) == pytest.approx(1, rel=0.05)
    assert (rows[1]["verdict"], rows[1]["cause"]) == ("not reproduced", "all are alike")
    assert (rows[0]["verdict"], rows[0]["cause"]) == ("same direction", "it is slow")


def test_what_cannot_be_had_as_published_says_why(results_root, capsys):
    results_of(results_root)
    entry = ENTRY | {"as_published": {"unsupported": "its costs are fitted to these runs"}}
    shown = lines_of([*experiments(results_root, {"p/f-fitted": entry}, ["p/f-fitted"]), "--list"],
                     capsys)
    line = next(line for line in shown if line.startswith("p/f-fitted"))
    assert line.endswith("unsupported") and "2.6" in line
    text = " ".join(" ".join(shown).split())
    assert "as published: its costs are fitted to these runs" in text
    assert "1 as published: 0 reproduced, 0 same direction, 0 not reproduced, 0 open, 0 invalid, " \
        "1 unsupported" in text


def test_what_has_not_run_as_published_is_open(results_root, capsys):
    arguments = both_columns(results_root)
    (results_root / "p/f_published/collected.h5").unlink()
    text = " ".join(" ".join(lines_of([*arguments, "--list"], capsys)).split())
    assert "as published: no results" in text
    assert "2 as published: 0 reproduced, 1 same direction, 0 not reproduced, 1 open" in text


def test_many_changes_are_counted_and_the_whole_stays_short(results_root, capsys):
    names = [f"p{paper}/f-{letter}" for paper in range(5) for letter in "abcdefgh"]
    arguments = experiments(results_root, {name: ENTRY | {"figure": name[:4]} for name in names},
                            [])
    lines_of(arguments, capsys)
    path = results_root / "verdicts.csv"
    path.write_text(path.read_text().replace(",open,", ",reproduced,"))
    shown = lines_of(arguments, capsys)
    assert "  and 35 reproduced -> open" in shown and len(shown) < 20


@pytest.mark.parametrize("damage, said", [
    (lambda text: "", "had no rows"),
    (lambda text: text[:len(text) - 30], "was damaged"),
    (lambda text: text.replace("verdict", "outcome", 1), "had no column verdict"),
    (lambda text: text.replace(",open,", ",splendid,"), "was damaged"),
    (lambda text: text + '"', "was damaged"),
])
def test_earlier_verdicts_that_cannot_be_read_are_one_line(results_root, capsys, damage, said):
    arguments = experiments(results_root, {"p/f-x": ENTRY}, ["p/f-x"])
    whole = lines_of(arguments, capsys)
    path = results_root / "verdicts.csv"
    path.write_text(damage(path.read_text()))
    shown = lines_of(arguments, capsys)
    assert len(shown) == len(whole)
    assert [line for line in shown if said in line and "No verdicts to compare with" in line]
    assert "Nothing changed since the last run." in lines_of(arguments, capsys)


@pytest.mark.parametrize("entry, part", [
    ({"publishd": 2}, "unknown key 'publishd'; known: figure"),
    ({"unit": None, "published": "many"}, "'published' must be a number"),
    ({"compare": "about"}, "'compare' must be one of near, at-least, at-most"),
    ({"compute": {"kind": "facter"}}, "whose kind is one of value, factor"),
    ({"compute": {"kind": "value", "metric": "m"}}, "kind value needs 'of'"),
    ({"compute": FACTOR | {"metrik": 1}}, "unknown key 'metrik'"),
    ({"compute": FACTOR | {"reduce": "all"}}, "'reduce' must be one of max, min, every"),
    ({"cause": "slow"}, "'cause' and 'experiment' go together"),
    ({"method": "by hand"}, "'method' is in place of 'compute'"),
    ({"compute": None, "method": "by hand", "unsupported": "no"}, "in place of 'unsupported'"),
    ({"compute": {}}, "needs 'compute', 'method' with a sentence, or 'unsupported'"),
    ({"claim": 3}, "'claim' must be a text"), ({"source": ["7.1"]}, "'source' must be a text"),
    ({"compute": {"kind": "figure", "figure": "p/none", "value": "x"}},
     "compute names the figure 'p/none', which has no module"),
    ({"as_published": {"sam": "x"}}, "as_published has an unknown key 'sam'; known: same"),
    ({"as_published": {"same": "x", "metric": "m"}}, "'same' in as_published is in place of all"),
    ({"as_published": {"unsupported": "x", "metric": "m"}}, "'unsupported' in as_published is in"),
    ({"as_published": {"cause": "x"}}, "'cause' and 'experiment' of as_published go together"),
    ({"as_published": "same"}, "'as_published' must be a map of texts"),
])
def test_mistakes_in_claims_are_one_line(results_root, capsys, entry, part):
    arguments = experiments(results_root, {"p/f-x": {**ENTRY, **entry}}, [])
    assert verdicts.main(arguments) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "p/f-x: " in line and part in line


def test_missing_claims_and_unknown_papers(results_root, capsys):
    assert verdicts.main(["--experiments", str(results_root / "none")]) == 2
    arguments = experiments(results_root, {"p/f-x": ENTRY}, [])
    assert verdicts.main([*arguments, "paper"]) == 2
    assert "no claims of 'paper'; known papers: p" in capsys.readouterr().err
    (results_root / "experiments/claims.yaml").write_text("- a list\n")
    with pytest.raises(ClaimsError, match="must be a map"):
        load_claims(results_root / "experiments/claims.yaml")


def test_specs_and_claims_of_this_tree_know_each_other():
    claims, expected = load_claims(), expectations()
    assert set(expected) <= set(claims), "a spec expects what claims.yaml does not have"
    for name, entry in claims.items():
        assert name.startswith(f"{entry.figure}-") or entry.figure == "placement/tab01"
        spec = EXPERIMENTS / f"{entry.figure}.yaml"
        assert name in expected or not spec.is_file(), f"no spec expects {name}"
        if "metric" in entry.compute and entry.figure.startswith("dlora/"):
            labels = {item if isinstance(item, str) else item.get("label", item["technique"])
                      for item in yaml.safe_load(spec.read_text())["techniques"]}
            assert set(compute.labels_of(entry.compute)) <= labels, name


FIGURES = {
    "dlora": "fig02b fig05 fig06 fig07 fig09 fig10 fig11a fig11b fig12 fig13 fig14 fig15",
    "caraserve": "fig03 fig04 fig05 fig09 fig10 fig11 fig12 fig13 fig14 fig15 fig16 fig17 fig18 "
                 "fig19 fig20 tab01",
    "placement": "fig01 fig04 fig05 fig06 fig07 fig08 fig09 fig10 fig11 fig12 figA13 figC14 tab01 "
                 "tab02 tab03 tab04 tab05",
    "muxserve": "fig01 fig02 fig03 fig05 fig06 fig07 fig08 fig09 fig10 fig11 fig12",
    "infinilora": "fig01a fig01b fig05 fig06 fig11 fig12 fig13 fig14 tab01 iar kernels"}


def test_every_figure_with_data_in_the_papers_has_claims():
    listed = {f"{paper}/{name}" for paper, names in FIGURES.items() for name in names.split()}
    assert {entry.figure for entry in load_claims().values()} == listed


def test_every_claim_says_where_it_stands_and_figures_can_compute_theirs():
    for name, entry in load_claims().items():
        assert entry.source, name
        if entry.compute.get("kind") == "figure":
            path = compute.figure_path(entry.compute["figure"])
            module = importlib.import_module(f"analysis.figures.{path.stem}")
            assert callable(module.claim_value), name


def test_make_figures_ends_with_the_verdicts():
    text = (ROOT / "Makefile").read_text()
    recipe = text[text.index("\nfigures: "):text.index("\ncpu-figures: ")]
    lines = [line.strip() for line in recipe.splitlines()]
    drawn = [line.startswith('"$$PYTHON" -m analysis.draw') for line in lines].index(True)
    assert lines[drawn + 1] == '"$$PYTHON" -m analysis.verdicts'


def test_numbers_are_short():
    assert verdicts.value_text(Estimate(1.23456, 1.0, 2.0, 3)) == "1.23 [1, 2]"
    assert verdicts.value_text(verdicts.NOTHING) == "-"
