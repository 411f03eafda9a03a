#!/usr/bin/env python3
"""Rows for `servelab validate --measured` and `servelab calibrate --from` out of published runs of
vLLM 0.8.5 with LoRA on an H100 64 GB.

    data/vllm_rows.py --table FOLDER [--judged OUT.csv] [--profiling OUT.csv]

FOLDER has real_runs_llama.csv, twin_mean_runs_llama.csv and lora_load_times.csv: numbers that the
placement paper's authors published in FerranAgulloLopez/GPULLMAdapterOptimization@bae36e2dad
(Apache-2.0), a row for each run's folder. `--judged` gets the 131 runs that their twin was judged
by, with its predictions; `--profiling` the rest of what they measured of Llama-3.1-8B on 0.8.5:
361 runs with other rates and ranks, micro-benchmarks of single batches, what its scheduler took by
batch and queue (means over runs, of which model they do not say), and loads. No setting is in both.
"""
import argparse
import csv
import gzip
import pathlib
import re
import sys

JUDGED = "/digital_twin_modelling/real_results/{}/"
OTHERS = "/ml_modelling/test_dataset/{}/"
# Micro-benchmarks: thousands of requests at once, in batches of the first number. With LoRA: slots,
# rank, output tokens, adapters. Without: prompt tokens of which one comes out, or output tokens.
LORA_STEP = re.compile(r"/{}/overhead_small/output/_\d+_(\d+)_(\d+)__1_(\d+)_(\d+)$")
BASE_STEP = re.compile(r"/{}/(?:initial_points_small/)?output/_\d+__1_(\d+)$")
PROMPT_STEP = re.compile(r"/{}/input/_\d+__\d+_1$")
STEP_TOKENS = 2048  # at most, in one step
SETTINGS = ["engine.adapter_slots", "engine.slot_rank", "workload.adapters.count",
            "workload.adapters.ranks", "workload.popularity.weights"]
OUTCOMES = ["tokens_per_s", "itl_ms", "ttft_ms"]
TWIN = "published-twin"
SCHEDULING = [f"scheduler_overhead_metrics_data_{kind}.csv.gz"
              for kind in ("adapter_rates", "aggregated_rate")]


def numbers(values) -> str:
    return f"[{' '.join(f'{value:g}' for value in values)}]"


def ranks_of(group: str, widest: int) -> list[int]:
    """Of adapters in turn: sizes in the folder's name, or all from 8 to the widest."""
    sizes = re.search(r"size_([\d-]+)", group)
    if sizes:
        return [int(size) for size in sizes.group(1).split("-")]
    return [rank for rank in (8, 16, 32) if rank <= widest]


def run_row(row: dict[str, str]) -> dict[str, object]:
    *_, group, name = row["path"].rstrip("/").split("/")
    slots, adapters, widest = map(int, name.strip("_").split("_"))
    weights = sorted(map(float, row["rates"].split()), reverse=True)
    return {"engine.adapter_slots": slots, "engine.slot_rank": widest,
            "workload.adapters.count": adapters,
            "workload.adapters.ranks": numbers(ranks_of(group, widest)),
            "workload.popularity.weights": numbers(weights),
            "measured.tokens_per_s": round(float(row["in_tps"]) + float(row["out_tps"]), 2),
            "measured.itl_ms": row["itl"], "measured.ttft_ms": row["ttft"]}


def step_row(row: dict[str, str], model: str) -> dict[str, object] | None:
    path = row["path"].rstrip("/")
    lora, base, prompt = (re.search(kind.pattern.format(re.escape(model)), path)
                          for kind in (LORA_STEP, BASE_STEP, PROMPT_STEP))
    seconds, prompts, outputs = (float(row[name]) for name in ("dur", "in_tok", "out_tok"))
    if prompt:
        # Steps are full of prompts from first to last.
        step_s = STEP_TOKENS * seconds / prompts
        return {"measured.itl_ms": round(1e3 * step_s, 3), "step.decodes": 0,
                "step.prefill_tokens": STEP_TOKENS, "step.adapters": 0, "step.context": 0}
    if not lora and not base:
        return None
    step_s = float(row["itl"]) / 1e3
    batch = outputs / seconds * step_s  # of decodes, by Little's law
    slots, rank, output, served = map(int, lora.groups()) if lora else (0, 0, int(base.group(1)), 0)
    # Requests draw their adapters alike: so many distinct ones are in a batch.
    distinct = served * (1 - (1 - 1 / served) ** batch) if served else 0
    settings = {"engine.adapter_slots": slots, "engine.slot_rank": rank,
                "workload.adapters.count": served, "workload.adapters.ranks": numbers([rank])}
    return (settings if lora else {}) | {
        "measured.itl_ms": row["itl"], "step.decodes": round(batch, 2),
        "step.prefill_tokens": round(prompts / seconds * step_s, 3),
        "step.adapters": round(distinct, 3),
        "step.context": prompts / float(row["succ"]) + output / 2}


def scheduling_row(row: dict[str, str]) -> dict[str, object]:
    per_step_ms = 1e3 * float(row["total_scheduling_time"]) / float(row["steps"])
    return {"engine.adapter_slots": row["gpu_loras"],
            "measured.scheduling_ms": f"{per_step_ms:.6f}",
            "step.decodes": f"{float(row['avg_batch_size']):.3f}",
            "step.waiting": f"{float(row['avg_waiting_queue']):.3f}"}


def table(rows: list[dict[str, object]], columns: list[str]) -> str:
    lines = [",".join(columns)]
    lines += [",".join(str(row.get(column, "")) for column in columns) for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=pathlib.Path, required=True)
    parser.add_argument("--model", default="llama-3.1-8b-instruct",
                        help="as folders name it; of qwen-2.5-7b-instruct there are steps only")
    parser.add_argument("--judged", type=pathlib.Path)
    parser.add_argument("--profiling", type=pathlib.Path)
    options = parser.parse_args()

    def read(name: str) -> list[dict[str, str]]:
        try:
            path = options.table / name
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        except OSError as problem:
            sys.exit(f"vllm_rows: error: {options.table / name}: {problem.strerror}")

    runs = read("real_runs_llama.csv")
    model = options.model
    if options.judged:
        twins = {tuple(row["path"].rstrip("/").split("/")[-2:]): row
                 for row in read("twin_mean_runs_llama.csv")}
        rows = []
        for run in runs:
            if JUDGED.format(model) not in run["path"]:
                continue
            twin = twins[tuple(run["path"].rstrip("/").split("/")[-2:])]
            rows.append(run_row(run) | {
                f"{TWIN}.tokens_per_s": round(float(twin["total_throughput"]), 2),
                f"{TWIN}.itl_ms": round(float(twin["itl"]), 3),
                f"{TWIN}.ttft_ms": round(float(twin["ttft"]), 2)})
        columns = SETTINGS + [f"{who}.{what}" for who in ("measured", TWIN) for what in OUTCOMES]
        options.judged.write_text(table(rows, columns), encoding="utf-8")
    if options.profiling:
        rows = [run_row(run) for run in runs if OTHERS.format(model) in run["path"]]
        rows += [row for run in runs if (row := step_row(run, model))]
        rows += [{"measured.load_ms": round(1e3 * float(row["activate_s"]), 3)}
                 for row in read("lora_load_times.csv")]
        for name in SCHEDULING:
            rows += [scheduling_row(row) for row in read(name)]
        columns = SETTINGS + [f"measured.{what}"
                              for what in (*OUTCOMES, "load_ms", "scheduling_ms")]
        columns += [f"step.{what}"
                    for what in ("decodes", "prefill_tokens", "adapters", "context", "waiting")]
        options.profiling.write_text(table(rows, columns), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
