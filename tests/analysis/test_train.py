"""servelab train, and what servelab place makes of its predictors: trees as flat arrays, tables,
bad input. What is committed is what the table says, and the table is what the twin says."""
from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT
from servelab_runs import SERVELAB, needs_servelab

pytest.importorskip("sklearn")
from analysis.train import cli, flat, gap, models, table  # noqa: E402

TABLES = sorted((ROOT / "results/reference/placement").glob("dataset_*.csv.gz"))
PREDICTORS = ROOT / "experiments/base/predictor"
RNG = np.random.default_rng(0)
SETTINGS = {"model": "llama-3.1-8b", "hardware": "h100-64g-vllm-llama-3.1-8b", "backend": "twin",
            "cluster": {"replicas": 1, "route": "round-robin", "stop_at_s": 3600},
            "lora": {"targets": ["q", "k", "v", "o", "gate", "up", "down"]},
            "engine": {"like": "vllm-0.8"},
            "workload": {"duration_s": 3600, "adapters": {},
                         "arrivals": {"process": "poisson", "per_adapter": True},
                         "popularity": {"kind": "weights", "shuffle": True},
                         "lengths": {"source": "fixed", "prompt": 222, "output": 196}}}


def a_table(rows: int = 150) -> table.Table:
    """Of GPUs that starve above 12 requests/s, and serve them up to that."""
    made = []
    for i in range(rows):
        adapters = int(RNG.integers(16, 385))
        rates = tuple(float(rate) for rate in RNG.choice([0.4, 0.1, 0.025, 0.00625], 3))
        ranks = tuple(int(rank) for rank in RNG.choice([8, 16, 32], 3))
        incoming = float(np.resize(rates, adapters).sum()) * 418
        served = min(incoming, 12 * 418)
        made.append(table.Row(int(RNG.integers(8, adapters + 1)), max(ranks), adapters, ranks,
                              rates, f"{i:016x}", "VALID", served, incoming))
    about = {"spec_id": "s", "build_id": "b", "model": SETTINGS["model"],
             "hardware": SETTINGS["hardware"], "settings": SETTINGS}
    return table.Table(about, made)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("train")
    table.write(a_table(), folder / "t.csv.gz")
    assert cli.main(["fit", str(folder / "t.csv.gz"), "--out", str(folder / "p.h5")]) == 0
    return folder / "t.csv.gz", folder / "p.h5"


def place(*arguments: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run([SERVELAB, "place", *arguments], cwd=ROOT, capture_output=True,
                          text=True, check=False)


def some_rows(count: int) -> np.ndarray:
    return np.column_stack([RNG.integers(1, 400, count), RNG.uniform(0, 50, count),
                            RNG.uniform(0, 2, count), RNG.choice([8, 16, 32], count),
                            RNG.uniform(8, 32, count), RNG.uniform(0, 12, count),
                            RNG.integers(1, 400, count)]).astype(np.float32)


def test_flat_trees_predict_what_scikit_learn_does():
    x, tokens, starved = table.arrays(a_table().rows)
    rows = some_rows(2000)
    for target, y in (("throughput", tokens), ("starvation", starved)):
        forest = models.make(target, "rf", {"n_estimators": 9}).fit(x, y)
        tree = models.small_tree(target, x, y)
        for model, merge in ((forest, False), (tree, True)):
            theirs = (model.predict(rows) if target == "throughput"
                      else model.predict_proba(rows)[:, 1])
            ours = flat.flatten(model, merge)
            assert (ours.predict(rows) == theirs).all()
        assert flat.flatten(tree, True).rules <= models.MOST_RULES


@needs_servelab
def test_both_sides_predict_the_same(fitted, tmp_path):
    rows = some_rows(10_000)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(table.FEATURES)
        out.writerows([[f"{value:.9g}" for value in row] for row in rows])
    done = place("--predict", tmp_path / "rows.csv", "--predictor", fitted[1])
    assert done.returncode == 0, done.stderr
    lines = list(csv.DictReader(done.stdout.splitlines()))
    x, tokens, starved = table.arrays(table.read(fitted[0]).served)
    forest = {"throughput": models.make("throughput", "rf", {"n_estimators": 128}).fit(x, tokens),
              "starvation": models.make("starvation", "rf", {"n_estimators": 128}).fit(x, starved)}
    assert [float(line["throughput"]) for line in lines] == forest["throughput"].predict(
        rows).tolist()
    assert [float(line["starvation"]) for line in lines] == forest["starvation"].predict_proba(
        rows)[:, 1].tolist()
    for target, y in (("throughput", tokens), ("starvation", starved)):
        tree = flat.flatten(models.small_tree(target, x, y), True)
        assert [float(line[f"{target}_rules"]) for line in lines] == tree.predict(rows).tolist()


def test_a_table_is_read_as_it_was_written(tmp_path):
    made = a_table(20)
    for name in ("t.csv", "t.csv.gz"):
        table.write(made, tmp_path / name)
        assert table.read(tmp_path / name) == made
    first = (tmp_path / "t.csv.gz").read_bytes()
    table.write(made, tmp_path / "t.csv.gz")
    assert (tmp_path / "t.csv.gz").read_bytes() == first


@pytest.mark.parametrize("spoil, says", [
    (lambda text: text.replace("# {", "{", 1)[:40], "is no table of"),
    (lambda text: text.replace("tokens_per_s", "tokens", 1), ":2: the columns are"),
    (lambda text: text + "1,2,3\n", ":23: is not a row of 9 values"),
    (lambda text: text + "8,8,16,8 8 8,-1.0 0.1 0.1,k,VALID,1,1\n", ":23: needs adapters with"),
])
def test_a_bad_table_is_one_line(tmp_path, capsys, spoil, says):
    table.write(a_table(20), tmp_path / "t.csv")
    (tmp_path / "bad.csv").write_text(spoil((tmp_path / "t.csv").read_text()))
    assert cli.main(["fit", str(tmp_path / "bad.csv"), "--out", str(tmp_path / "p.h5")]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_rows_that_all_starve_or_none_train_nothing(tmp_path, capsys):
    idle = a_table(30)
    table.write(table.Table(idle.about, [row for row in idle.rows if not row.starved]),
                tmp_path / "t.csv")
    assert cli.main(["fit", str(tmp_path / "t.csv"), "--out", str(tmp_path / "p.h5")]) == 2
    assert "needs at least 5 rows that starve" in capsys.readouterr().err


def test_the_margin_is_the_least_that_finds_every_gpu_that_starves():
    class Above:
        """Predicts that more than 10 requests/s starve."""
        def predict(self, rows: np.ndarray) -> np.ndarray:
            return rows[:, 1] > 10

    class Falls:
        """Predicts less throughput with more than 32 slots."""
        def predict(self, rows: np.ndarray) -> np.ndarray:
            return 5000.0 - (rows[:, 6] > 32)

    def found(*starved: bool) -> float:
        return models.margin(Falls(), Above(), x, np.array(starved))

    x = np.zeros((5, 7), dtype=np.float32)
    x[:, 1] = [12, 9, 8, 4, 4]
    x[:, 6] = [8, 16, 24, 8, 64]
    assert found(True, False, False, False, False) == 0
    assert found(True, True, False, False, False) == pytest.approx(0.12)
    assert found(True, True, True, False, False) == pytest.approx(0.26)
    assert np.isnan(found(True, True, True, True, False))
    assert found(True, False, False, False, True) == 0, "nobody would give it 64 slots"


@needs_servelab
def test_a_margin_comes_from_what_was_held_out(fitted, tmp_path, capsys):
    """Of GPUs that starve above 9 requests/s, by models that saw others starve above 12."""
    rows = [table.Row(16, 8, 100, (8,), (rate / 100,), f"{i:x}", "VALID", min(rate, 9) * 418,
                      rate * 418) for i, rate in enumerate(np.linspace(4, 20, 60).tolist())]
    about = a_table(1).about
    table.write(table.Table(about, rows), tmp_path / "h.csv")
    fit = ["fit", str(fitted[0]), "--out", str(tmp_path / "p.h5"), "--held-out",
           str(tmp_path / "h.csv")]
    assert cli.main(fit) == 0
    said = capsys.readouterr().out
    assert "margins: forest" in said and ", of 60 held out" in said
    (tmp_path / "a.csv").write_text(ADAPTERS)
    done = place("--adapters", tmp_path / "a.csv", "--predictor", tmp_path / "p.h5", "--gpus", "1",
                 "--out", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    margin = json.loads((tmp_path / "plan.json").read_text())["margin"]
    assert 0.05 < margin < 0.6 and f"margin {100 * margin:.3g} %" in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("   0"))
    assert line.split()[4] == "5", "rates are printed as they are"
    done = place("--adapters", tmp_path / "a.csv", "--predictor", tmp_path / "p.h5", "--gpus", "1",
                 "--margin", "0", "--out", tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["margin"] == 0
    for other, says in ((about | {"model": "m"}, "is of model 'm', not 'llama-3.1-8b'"),
                        (about, "has 0 rows that starve; a margin needs 20")):
        table.write(table.Table(other, rows[:10]), tmp_path / "h.csv")
        assert cli.main(fit) == 2
        assert says in capsys.readouterr().err


def test_the_fewest_gpus_are_exact():
    """GPUs take 10 requests/s: 8 + 2, 8 + 2, 5 + 5 of seven adapters, however they are listed."""
    def starvation(rows: np.ndarray) -> np.ndarray:
        return (rows[:, 1] > 10).astype(float)

    assert gap.fewest(gap.Workload(8, (8, 5, 2, 8, 5, 2)), starvation, 0) == 3
    assert gap.fewest(gap.Workload(8, (6, 6, 4, 4, 5, 5)), starvation, 0) == 3
    assert gap.fewest(gap.Workload(8, (6, 6, 4, 4, 5, 5)), starvation, 0.2) == 5
    assert gap.fewest(gap.Workload(8, (11, 2)), starvation, 0) == 0
    assert gap.draw(3) == gap.draw(3) and gap.draw(3) != gap.draw(4)
    assert all(24 <= len(gap.draw(seed).rates) <= gap.MOST_ADAPTERS for seed in range(50))


@needs_servelab
def test_gap_says_how_far_greedy_placements_are_from_the_fewest(fitted, tmp_path, capsys):
    assert cli.main(["gap", str(fitted[1]), "--workloads", "2", "--servelab", str(SERVELAB)]) == 0
    assert "more GPUs than the fewest on average over" in capsys.readouterr().out
    assert cli.main(["gap", str(fitted[0]), "--servelab", str(SERVELAB)]) == 2
    assert "is no predictor" in capsys.readouterr().err
    assert cli.main(["gap", str(fitted[1]), "--servelab", str(tmp_path / "no")]) == 2
    assert "build it" in capsys.readouterr().err


def test_figures_of_the_models_are_drawn_from_what_is_committed(tmp_path):
    from analysis.figures import placement_tab03, placement_tab04
    assert 0 < placement_tab03.claim_value(None, "rf-llama") < placement_tab03.claim_value(
        None, "all")
    assert placement_tab04.claim_value(None, "rules") <= models.MOST_RULES
    assert 0.5 < placement_tab04.claim_value(None, "f1") <= 1


ADAPTERS = "name,rank,rate\n" + "".join(f"a{i},{8 if i % 2 else 16},0.05\n" for i in range(100))


@needs_servelab
def test_place_says_where_adapters_go_and_what_vllm_is_told(fitted, tmp_path):
    (tmp_path / "a.csv").write_text(ADAPTERS)
    done = place("--adapters", tmp_path / "a.csv", "--predictor", fitted[1], "--gpus", "4",
                 "--out", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    assert "100 adapters on 1 of 4 GPUs" in done.stdout
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert set(plan["adapters"].values()) == {0} and len(plan["adapters"]) == 100
    line = next(line for line in done.stdout.splitlines() if "vllm serve" in line)
    words = dict(zip(line.split(), line.split()[1:]))
    assert words["--max-lora-rank"] == "16" and words["--max-loras"] == str(plan["slots"][0])
    assert int(words["--max-cpu-loras"]) >= 100 and "a99=adapters/a99" in line
    again = place("--adapters", tmp_path / "a.csv", "--predictor", fitted[1], "--gpus", "4",
                  "--out", tmp_path / "again.json")
    assert again.stdout.replace("again", "plan") == done.stdout
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


@needs_servelab
def test_a_plan_in_use_keeps_what_it_can(fitted, tmp_path):
    def again(text: str, plan: str, *arguments: str | Path) -> tuple[str, dict[str, int]]:
        (tmp_path / "a.csv").write_text(text)
        done = place("--adapters", tmp_path / "a.csv", "--predictor", fitted[1], "--gpus", "4",
                     "--out", tmp_path / plan, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads((tmp_path / plan).read_text())["adapters"]

    _, first = again(ADAPTERS, "first.json")
    kept, same = again(ADAPTERS, "same.json", "--from", tmp_path / "first.json")
    assert "0 of 100 adapters move" in kept and same == first
    said, more = again(ADAPTERS + "new,8,0.05\n", "more.json", "--from", tmp_path / "first.json")
    assert "1 of 101 adapters move or are new" in said and "new: new, to GPU 0" in said
    assert {name: gpu for name, gpu in more.items() if name != "new"} == first
    said, hot = again(ADAPTERS.replace("0.05", "0.3"), "hot.json", "--from",
                      tmp_path / "first.json")
    moved = sum(hot[name] != gpu for name, gpu in first.items())
    assert 0 < moved < 100 and f"{moved} of 100 adapters move" in said


@needs_servelab
def test_adapters_of_a_trace(fitted, tmp_path):
    lines = [{"timestamp": 100 * i, "input_length": 200, "output_length": 200, "adapter": i % 20,
              "rank": 8} for i in range(600)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = place("--trace", tmp_path / "t.jsonl", "--predictor", fitted[1], "--gpus", "2", "--out",
                 tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    assert "20 adapters on" in done.stdout


@needs_servelab
def test_a_spec_runs_a_plan(fitted, tmp_path):
    workload = {**SETTINGS["workload"], "duration_s": 120, "adapters": {"count": 40, "ranks": [8]},
                "popularity": {"kind": "weights", "weights": [0.1]}}
    spec = {**SETTINGS, "title": "t", "cluster": {"replicas": 4, "stop_at_s": 130},
            "workload": workload,
            "techniques": [
        {"technique": "vllm-lora", "label": "place", "route": "proposed",
         "route_with": {"predictor": str(fitted[1])}},
        {"technique": "vllm-lora", "label": "plan", "route": "as-planned",
         "route_with": {"plan": str(tmp_path / "plan.json")}},
        # One slot for 40 adapters; and more slots than memory.
        *({"technique": "vllm-lora", "label": f"{slots} slots", "route": "as-planned",
           "route_with": {"adapters": [f"adapter-{i}" for i in range(40)], "gpu": [2] * 40,
                          "slots": [0, 0, slots]}} for slots in (1, 2000))]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**spec, "techniques": spec["techniques"][:1]}))
    done = place("--spec", tmp_path / "s.yaml", "--predictor", fitted[1], "--gpus", "4", "--out",
                 tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(spec))
    ran = subprocess.run([SERVELAB, "run", tmp_path / "s.yaml", "--out", tmp_path / "r", "-q"],
                         cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    from analysis.results import Results
    results = Results.load("s", tmp_path / "r")
    assert results.metric("gpus_used").tolist() == [1, 1, 1, 1]
    assert results.metric("infeasible_placements").tolist() == [0, 0, 1, 1]
    tokens = results.metric("feasible_tokens_per_s")
    assert tokens[0] == tokens[1] > 0 and np.isnan(tokens[2:]).all()


@needs_servelab
@pytest.mark.parametrize("adapters, arguments, code, says", [
    ("name,rank\na,8\n", [], 2, "'rate'"),
    ("name,rank,rate\na,,1\n", [], 2, "a.csv:2: adapter 'a' has no rank"),
    ("name,rank,rate\na,8,\n", [], 2, "a.csv:2: adapter 'a' has no rate"),
    ("name,rank,rate\na,8,-1\n", [], 2, "a.csv:2"),
    ("name,rank,rate\na,8,1\na,8,1\n", [], 2, "a.csv:3: adapter 'a' is in line 2 too"),
    ("name,rank,rate\n,8,1\n", [], 2, "a.csv:2: the adapter has no name"),
    ("name,rank,rate\na=b,8,1\n", [], 2, "a.csv:2: the adapter's name has a '='"),
    ("name,rank,rate\na,64,1\n", [], 2, "has rank 64, but the predictor knows ranks up to 32"),
    ("name,rank,rate\n", [], 2, "has no adapters"),
    (ADAPTERS, ["--method", "best"], 2, "--method"),
    (ADAPTERS, ["--gpus", "0"], 2, "--gpus"),
    (ADAPTERS, ["--model", "qwen2.5-7b"], 2, "is of model 'llama-3.1-8b', not 'qwen2.5-7b'"),
    (ADAPTERS.replace("0.05", "0.3"), ["--gpus", "1"], 3, "GPUs would serve it"),
    ("name,rank,rate\n" + "a,8,40\n", [], 3, "40 requests/s need"),
])
def test_bad_input_is_one_line(fitted, tmp_path, adapters, arguments, code, says):
    (tmp_path / "a.csv").write_text(adapters)
    gpus = [] if "--gpus" in arguments else ["--gpus", "2"]
    done = place("--adapters", tmp_path / "a.csv", "--predictor", fitted[1], *gpus, *arguments,
                 "--out", tmp_path / "plan.json")
    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stderr
    assert done.stderr.count("servelab: error:") == 1 and not (tmp_path / "plan.json").exists()


@needs_servelab
def test_a_plan_replaces_nothing_that_it_is_made_from(fitted, tmp_path):
    (tmp_path / "a.csv").write_text(ADAPTERS)
    common = ["--adapters", tmp_path / "a.csv", "--predictor", fitted[1], "--gpus", "4"]
    done = place(*common, "--out", tmp_path / "a.csv")
    assert done.returncode == 2 and "would replace" in done.stderr
    assert (tmp_path / "a.csv").read_text() == ADAPTERS
    assert place(*common, "--out", tmp_path / "plan.json").returncode == 0
    done = place(*common, "--from", tmp_path / "plan.json", "--out", tmp_path / "plan.json")
    assert done.returncode == 2 and "plan.json, which is read" in done.stderr


@needs_servelab
def test_a_damaged_predictor_is_one_line(fitted, tmp_path):
    whole = fitted[1].read_bytes()
    (tmp_path / "a.csv").write_text(ADAPTERS)
    flipped = whole[:3000] + bytes([whole[3000] ^ 1]) + whole[3001:]
    for spoiled in (whole[:-1000], flipped, b"", b"no HDF5"):
        (tmp_path / "p.h5").write_bytes(spoiled)
        done = place("--adapters", tmp_path / "a.csv", "--predictor", tmp_path / "p.h5", "--gpus",
                     "2", "--out", tmp_path / "plan.json")
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "p.h5" in done.stderr


@needs_servelab
def test_features_outside_the_training_range_are_said(fitted, tmp_path):
    (tmp_path / "a.csv").write_text("name,rank,rate\na,8,0.01\n")
    done = place("--adapters", tmp_path / "a.csv", "--predictor", fitted[1], "--gpus", "1",
                 "--out", tmp_path / "plan.json")
    assert done.returncode == 0 and "outside of what was trained on: adapters 1" in done.stderr


@needs_servelab
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_rows_of_the_committed_table_come_out_bit_for_bit(path, tmp_path):
    """20 of them that take little time."""
    data = table.read(path)
    rows = [row for row in data.served if row.incoming_tokens_per_s < 2000][:20]
    assert len(rows) == 20
    settings = {name: value for name, value in data.about["settings"].items()
                if name not in ("technique", "seed")}
    zipped = [dict(zip(table.SWEPT, (row.slots, row.slot_rank, row.adapters, list(row.ranks),
                                     list(row.rates)))) for row in rows]
    spec = {**settings, "title": "again", "techniques": ["vllm-lora"], "sweep": {"zip": zipped}}
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(spec))
    done = subprocess.run([SERVELAB, "run", tmp_path / "again.yaml", "--out", tmp_path, "-q"],
                          cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = {row.features().tobytes() + row.slot_rank.to_bytes(4, "little"): row
             for row in table.from_points("again", tmp_path).rows}
    for row in rows:
        same = again[row.features().tobytes() + row.slot_rank.to_bytes(4, "little")]
        assert same.tokens_per_s == row.tokens_per_s
        assert same.incoming_tokens_per_s == row.incoming_tokens_per_s


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_the_committed_predictor_is_that_of_the_committed_table(path, tmp_path):
    import h5py
    data = table.read(path)
    name = f"{data.about['model']}-h100-64g"
    x, tokens, starved = table.arrays(data.served)
    known = cli.known_settings(PREDICTORS / "settings.yaml", data.about["model"])
    held_out = table.read(path.with_name(path.name.replace("dataset", "margin")))
    rows, _, starves = table.arrays(held_out.served)
    pairs = []
    with h5py.File(PREDICTORS / f"{name}.h5") as file:
        for target, y in (("throughput", tokens), ("starvation", starved)):
            settings = known.get(target, {}).get("rf", models.UNSEARCHED[target]["rf"])
            fits = models.make(target, "rf", settings).fit(x, y), models.small_tree(target, x, y)
            pairs.append(fits)
            made = {target: flat.flatten(fits[0]), f"{target}_rules": flat.flatten(fits[1], True)}
            for kind, forest in made.items():
                for column in ("roots", "feature", "right", "value"):
                    stored = file[f"{kind}/{column}"][()]
                    assert np.array_equal(stored, getattr(forest, column)), (kind, column)
        assert file["margins"][()].tolist() == [models.margin(*pair, rows, starves)
                                                for pair in zip(*pairs)]
        assert file.attrs["build_id"] == data.about["build_id"]
