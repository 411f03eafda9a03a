#!/usr/bin/env python3
"""Rows for `servelab validate --measured` out of what S-LoRA's authors measured on an A10G.

    data/slora_rows.py --table benchmark_results_a10g.csv --slora OUT.csv --peft OUT.csv

The table has numbers of S-LoRA/S-LoRA@c1ddf48878 (benchmarks/paper, Apache-2.0), a row for each
line of its *.jsonl. `--slora` gets S-LoRA's synthetic benchmarks and those without a limit of
adapters in ablation_mem; `--peft` those of Hugging Face PEFT. ITL follows from latency and first
token, as all outputs are known (data/slora_requests.py).

Column `part` splits them by workload: profiles are fitted to the rows `fitted` and judged by the
rows `judged`. The rest is neither: `earlier`, of an older series of S-LoRA's runs whose workload is
a fitted one, or without adapters; `ranks`, workloads that PEFT's profile was fitted to, measured
with other ranks, which it hardly feels.
"""
import argparse
import csv
import pathlib
import sys

import slora_requests

RANKS = {"S1": "[8]", "S2": "[64 32 16 8]"}
# Adapters, exponent, requests/s, cv.
FITTED = {
    "slora": {(1, 1, 2, 1), (50, 1, 2, 1), (200, 1, 1, 1), (200, 1, 2, 1), (200, 1, 2, 6),
              (0, 1, 2.5, 1), (10, 1, 2.5, 1), (100, 1, 2.5, 1)},
    "peft": {(1, 1, 2, 1), (50, 1, 2, 1), (200, 1, 1, 1), (200, 1, 2, 1), (200, .1, 2, 1),
             (200, .6, 2, 1), (200, 1, 2, 2), (200, 1, 2, 6)},
}


def is_of(system: str, file: str) -> bool:
    if "a10g" not in file:
        return False
    if system == "peft":
        return "paper/peft/" in file
    # Two benchmarks are in the earlier series only: skew, and no adapters at 2 requests/s.
    if "synthetic/slora/backup/" in file:
        return "_alpha_" in file or "_num_adapters_" in file
    return "synthetic/slora/" in file or "ablation_mem_a10g_S1_dm" in file \
        or "ablation_mem_a10g_S2_dm" in file


def row_of(system: str, row: dict[str, str]) -> dict[str, object] | None:
    file = row["file"]
    adapters = int(float(row["cfg_num_adapters"]))
    exponent, rate, cv = (float(row[f"cfg_{name}"]) for name in ("alpha", "req_rate", "cv"))
    is_earlier = "backup/" in file
    if is_earlier and "_num_adapters_" in file and adapters > 0:
        return None  # the later series has them
    workload = (adapters, exponent, rate, cv)
    setting = "S1" if "S1" in file else "S2"
    part = "fitted" if workload in FITTED[system] else "judged"
    if system == "slora" and is_earlier and (part == "fitted" or adapters == 0):
        part = "earlier"
    if system == "peft" and setting == "S2" and part == "fitted":
        part = "ranks"
    _, prompts, outputs, _ = slora_requests.requests(rate, cv)
    latency, first = float(row["avg_latency"]), float(row["avg_first_token_latency"])
    return {"workload.adapters.ranks": RANKS[setting], "workload.adapters.count": adapters,
            "workload.popularity.exponent": f"{exponent:g}",
            "workload.arrivals.trace": f"data/slora/rate{rate:g}_cv{cv:g}.csv",
            "measured.tokens_per_s":
                f"{float(row['throughput']) * (prompts.mean() + outputs.mean()):.6g}",
            "measured.latency_s": f"{latency:.6g}",
            "measured.ttft_s": f"{first:.6g}",
            "measured.itl_ms": f"{1e3 * (latency - first) / (outputs.mean() - 1):.6g}",
            "part": part, "source": file}


def write(path: pathlib.Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=pathlib.Path, required=True)
    for system in FITTED:
        parser.add_argument(f"--{system}", type=pathlib.Path, metavar="OUT.csv")
    options = parser.parse_args()
    with options.table.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    for system in FITTED:
        rows = [own for row in table if is_of(system, row["file"])
                and (own := row_of(system, row)) is not None]
        if not rows:
            print(f"{options.table}: has no rows of {system}", file=sys.stderr)
            return 1
        if getattr(options, system):
            write(getattr(options, system), rows)
            parts = [row["part"] for row in rows]
            print(", ".join(f"{parts.count(part)} {part}" for part in sorted(set(parts))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
