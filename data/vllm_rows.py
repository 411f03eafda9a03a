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

JUDGED = "/digital_twin_modelling/real_results/llama-3.1-8b-instruct/"
OTHERS = "/ml_modelling/test_dataset/llama-3.1-8b-instruct/"
# batch, slots, rank, output tokens, adapters; and batch, output tokens without LoRA
LORA_STEP = re.compile(
    r"llama-3.1-8b-instruct/overhead_small/output/_(\d+)_(\d+)_(\d+)__1_(\d+)_(\d+)$")
BASE_STEP = re.compile(r"llama-3.1-8b-instruct/initial_points_small/output/_(\d+)__1_(\d+)$")
STEP_PROMPT = 5  # tokens of their micro-benchmarks' prompts
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


def step_row(row: dict[str, str]) -> dict[str, object] | None:
    path = row["path"].rstrip("/")
    lora, base = LORA_STEP.search(path), BASE_STEP.search(path)
    if not lora and not base:
        return None
    if lora:
        batch, slots, rank, output, served = map(int, lora.groups())
        # Requests draw their adapters alike: so many distinct ones are in a batch.
        distinct = served * (1 - (1 - 1 / served) ** batch)
    else:
        batch, output = map(int, base.groups())
        slots, rank, served, distinct = 300, 8, 1, 0
    return {"engine.adapter_slots": slots, "engine.slot_rank": rank,
            "workload.adapters.count": served, "workload.adapters.ranks": numbers([rank]),
            "measured.itl_ms": row["itl"], "step.decodes": batch,
            "step.prefill_tokens": round(batch * STEP_PROMPT / output, 3),
            "step.adapters": round(distinct, 3), "step.context": STEP_PROMPT + output / 2}


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
    if options.judged:
        twins = {tuple(row["path"].rstrip("/").split("/")[-2:]): row
                 for row in read("twin_mean_runs_llama.csv")}
        rows = []
        for run in runs:
            if JUDGED not in run["path"]:
                continue
            twin = twins[tuple(run["path"].rstrip("/").split("/")[-2:])]
            rows.append(run_row(run) | {
                f"{TWIN}.tokens_per_s": round(float(twin["total_throughput"]), 2),
                f"{TWIN}.itl_ms": round(float(twin["itl"]), 3),
                f"{TWIN}.ttft_ms": round(float(twin["ttft"]), 2)})
        columns = SETTINGS + [f"{who}.{what}" for who in ("measured", TWIN) for what in OUTCOMES]
        options.judged.write_text(table(rows, columns), encoding="utf-8")
    if options.profiling:
        rows = [run_row(run) for run in runs if OTHERS in run["path"]]
        rows += [row for row in map(step_row, runs) if row]
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
