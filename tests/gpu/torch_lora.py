#!/usr/bin/env python3
"""Times the LoRA operation in PyTorch (gather, then two batched products) on the GPU.

    torch_lora.py [--bench FILE] [--json FILE] [--seconds S]

The shapes are those of servelab_cuda_bench; rows have the same keys. With --bench FILE (what
`servelab_cuda_bench --json FILE` wrote in the same run) each row also prints how many times faster
our kernel is. Exits 0, saying "skipped" and why, where PyTorch or a GPU is missing.
"""
import argparse
import json
import re
import statistics
import sys
from pathlib import Path

import check

HIDDEN = 4096
SHAPE = re.compile(r"rows=(\d+) adapters=(\d+) rank=(\d+) hidden=(\d+) targets=(\d+)$")


def default_shapes():
    decodes = [(batch, batch, rank) for batch in (1, 4, 16, 32, 64, 128, 256)
               for rank in (8, 16, 32, 64, 128)]
    prefills = [(2048, adapters, rank) for adapters in (1, 8, 32) for rank in (8, 16, 32, 64, 128)]
    return [f"rows={rows} adapters={adapters} rank={rank} hidden={HIDDEN} targets=1"
            for rows, adapters, rank in decodes + prefills]


def lora(torch, x, a, b, y, slots):
    """y += 0.5 * (x A^T) B^T; x, y [segments, rows, hidden], a [slots, rank, hidden],
    b [slots, hidden, rank]."""
    t = torch.bmm(x, a.index_select(0, slots).transpose(1, 2))
    y.baddbmm_(t, b.index_select(0, slots).transpose(1, 2), alpha=0.5)


def is_right(torch, x, a, b, before, y, slots):
    """Against the definition in f64, for the first segments."""
    for i in range(min(4, len(slots))):
        slot = int(slots[i])
        t = x[i].double() @ a[slot].double().T
        expected = before[i].double() + 0.5 * (t @ b[slot].double().T)
        if (y[i].double() - expected).norm() > 1e-2 * expected.norm():
            return False
    return True


def graph_of(torch, calls):
    """The calls as one CUDA graph, so that the host's share of each is left out, as for ours."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def median_seconds(torch, run, budget_s):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    times, total = [], 0.0
    while len(times) < 5 or (total < budget_s and len(times) < 200):
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
        total += times[-1]
    return statistics.median(times)


def measure(torch, shape, l2_bytes, budget_s):
    rows, adapters, rank, hidden, targets = map(int, SHAPE.match(shape).groups())
    each = rows // adapters
    weights = 2 * 2 * adapters * rank * hidden * targets
    moved = weights + 2 * rows * hidden * (1 + 2 * targets)
    sets = max(2, min(256, int(3 * l2_bytes / moved) + 1))
    make = lambda *size: torch.rand(size, device="cuda", dtype=torch.bfloat16) - 0.5
    x = make(sets, adapters, each, hidden)
    before = make(sets, adapters, each, hidden)
    slots = torch.arange(sets * adapters, device="cuda").view(sets, adapters)
    layers = [(0.1 * make(sets * adapters, rank, hidden), 0.1 * make(sets * adapters, hidden, rank),
               before.clone()) for _ in range(targets)]

    def call(i):
        for a, b, y in layers:
            lora(torch, x[i], a, b, y[i], slots[i])

    call(sets - 1)
    correct = all(is_right(torch, x[-1], a, b, before[-1], y[-1], slots[-1]) for a, b, y in layers)
    graph = graph_of(torch, [lambda i=i: call(i) for i in range(sets)])
    seconds = median_seconds(torch, graph.replay, budget_s) / sets
    return {"name": "torch_lora", "shape": shape, "ms": seconds * 1e3, "bytes": moved,
            "flops": 2 * each * weights // 2, "launches": 4 * targets, "correct": correct,
            "device": torch.cuda.get_device_name()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", help="rows of servelab_cuda_bench")
    parser.add_argument("--json", help="where to write the rows")
    parser.add_argument("--seconds", type=float, default=20, help="of timing")
    args = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: PyTorch is missing: {error}")
        return 0
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        return 0

    ours, bandwidth = [], None
    if args.bench:
        card, *ours = check.read_rows(Path(args.bench))
        bandwidth = card["copy_bytes_per_s"]
    # One-hot einsum is dLoRA's way, not a way that PyTorch would be asked to take.
    shapes = [row["shape"] for row in ours
              if SHAPE.match(row["shape"]) and row["name"] != "lora_einsum"] or default_shapes()
    shapes = list(dict.fromkeys(shapes))
    l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 50 << 20)
    correct = True
    written = open(args.json, "w", encoding="utf-8") if args.json else None
    for shape in shapes:
        row = measure(torch, shape, l2_bytes, args.seconds / len(shapes))
        if bandwidth:
            row["share_of_copy_bandwidth"] = row["bytes"] / bandwidth / (row["ms"] * 1e-3)
        correct = correct and row["correct"]
        print(f"{row['name']:14} {shape:52} {row['ms'] * 1e3:9.2f} us"
              f"{'' if row['correct'] else '  WRONG'}", end="")
        for other in ours:
            if other["shape"] == shape and other["name"] != "lora_einsum":
                ratio = row["ms"] / other["ms"]
                row["ratio_to_" + other["name"]] = ratio
                print(f"  {other['name']}: {ratio:.2f} x faster", end="")
        print(flush=True)
        if written:
            print(json.dumps(row | {"torch": torch.__version__}), file=written, flush=True)
        torch.cuda.empty_cache()
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
