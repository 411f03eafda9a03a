#!/usr/bin/env python3
"""Fits the constants of experiments/base/hardware/*.yaml to measured operator times.

  SERVELAB_DATA=/path/to/data python3 data/fit_hardware.py [device ...]   fit, print errors and YAML
  ... --golden FILE                                also write model values for the C++ unit test

Devices: a100, h100, h200. Each op's shapes are made unique and sorted; rows of even index are
fitted, rows of odd index are held out. Only micro-benchmarks of single operators are used (vidur
and aiconfigurator under SERVELAB_DATA) and CPU time per step (vidur, vllm_lora_h100), never a
served system's throughput or latency.

The formulas are those of engine/backend/cost/op_cost.cc, term by term: change both, then write
tests/unit/backend/op_cost_golden.csv again; tests/unit/backend/op_cost_test.cc compares the two.
Times here are in microseconds.
"""
import argparse
import csv
import gzip
import os
import sys

import numpy as np
from scipy.optimize import minimize

# Data sheets: dense bf16 FLOP/s, memory bytes/s, L2 bytes.
DEVICES = {
    'a100': dict(key='a100_sxm', gen='ampere', sms=108, flops=312e12, bw=2039e9, l2=40 * 2**20),
    'h100': dict(key='h100_sxm', gen='hopper', sms=132, flops=989.4e12, bw=3350e9, l2=50 * 2**20),
    'h200': dict(key='h200_sxm', gen='hopper', sms=132, flops=989.4e12, bw=4800e9, l2=50 * 2**20),
}
TILES = {
    'ampere': [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 256),
               (256, 64), (32, 64), (16, 64), (32, 128)],
    'hopper': [(128, 256), (256, 128), (128, 128), (64, 256), (256, 64), (64, 128), (128, 64),
               (64, 64), (16, 64), (32, 64), (16, 128), (64, 32)],
}
SPLITS = [1, 2, 3, 4, 6, 8, 16]
K_STEP, MIN_SPLIT_K, L2_OVER_DRAM, APPEND_HEADS = 64, 128, 2.0, 4
QUERY_TILE = {'ampere': 64, 'hopper': 128}


def gemm(p, dev, m, n, k):
    bm, bn, s = (np.array(v, float)[None] for v in
                 zip(*[(t[0], t[1], s) for t in TILES[dev['gen']] for s in SPLITS]))
    m, n, k = (np.asarray(v, float)[:, None] for v in (m, n, k))
    waves = np.ceil(np.ceil(m / bm) * np.ceil(n / bn) * s / dev['sms'])
    kk = np.ceil(k / s / K_STEP) * K_STEP
    mma = 2 * bm * bn * kk / (dev['flops'] * p['compute_fraction'] / dev['sms']) * 1e6
    feed = 2 * (bm + bn) * kk / p['sm_feed_bytes_per_s'] * 1e6
    compute = waves * (np.maximum(mma, feed) + p['wave_us'])
    compute = compute * (1 + p['throttle'] * compute / (compute + p['throttle_half_us']))
    memory = 2 * (m * k + n * k + m * n) / (dev['bw'] * p['bandwidth_fraction']) * 1e6
    partial = p['split_us'] + 4 * m * n * (s + 1) / (L2_OVER_DRAM * dev['bw']) * 1e6
    partial = np.where(s > 1, partial, 0)
    time = p['launch_us'] + np.sqrt(np.sqrt(compute**4 + memory**4)) + partial
    return np.where((s > 1) & (k / s < MIN_SPLIT_K), np.inf, time).min(1)


def prefill(p, dev, requests, new, context, heads, kv_heads, head_dim):
    requests, new, context, heads, kv_heads = (
        np.asarray(v, float) for v in (requests, new, context, heads, kv_heads))
    tile_rows = QUERY_TILE[dev['gen']]
    packs = (dev['gen'] == 'hopper') | (new <= 1)
    packed = np.where(packs, heads / kv_heads, 1.0)
    tile_tokens = tile_rows / packed
    full = requests * new / tile_tokens  # tiles per head; padded ones see the whole context
    padded = requests * np.ceil(new / tile_tokens) - full
    last_keys = np.maximum(context + new, p['min_keys'])
    mean_keys = context + (new + 1) / 2
    tile_keys = np.maximum(mean_keys + np.minimum(new, tile_tokens) / 2, p['min_keys'])
    per_key = 4 * head_dim * tile_rows / (dev['flops'] * p['compute_fraction'] / dev['sms']) * 1e6
    work = heads / packed * ((full + padded) * p['cta_us'] +
                             per_key * (full * tile_keys + padded * last_keys)) / dev['sms']
    longest = p['cta_us'] + per_key * last_keys
    compute = work + p['tail_fraction'] * longest
    bytes_ = 2 * head_dim * (2 * requests * new * heads + 2 * kv_heads * requests * (context + new))
    memory = bytes_ / (dev['bw'] * p['bandwidth_fraction']) * 1e6
    tokens = requests * new
    append = np.maximum(tokens * np.minimum(kv_heads, APPEND_HEADS) * p['append_ns'] * 1e-3,
                        tokens * kv_heads * 8 * head_dim / dev['bw'] * 1e6)
    return p['launch_us'] + np.sqrt(compute**2 + memory**2) + append


def decode(p, dev, requests, keys, heads, kv_heads, head_dim, warm=True):
    requests, keys, heads, kv_heads = (
        np.asarray(v, float) for v in (requests, keys, heads, kv_heads))
    group = heads / kv_heads
    ctas = requests * kv_heads
    split = np.clip(dev['sms'] / ctas, 1, np.maximum(1, keys / p['split_keys']))
    if dev['gen'] == 'ampere':
        split = np.where(group > 1, split, 1.0)
    waves = np.ceil(ctas * split / dev['sms'] - 1e-9)
    overhead = waves * (p['cta_us'] + p['row_us'] * group)
    stream = waves * keys / split * 4 * head_dim / p['stream_bytes_per_s'] * 1e6
    bytes_ = ctas * keys * 4 * head_dim
    memory = bytes_ / (dev['bw'] * p['bandwidth_fraction']) * 1e6
    if warm:
        hit = np.clip((1.3 - bytes_ / dev['l2']) / 0.5, 0, 1)
        memory = memory * (1 - hit + hit / p['l2_speedup'])
    memory = np.maximum(memory, stream)
    body = np.maximum(overhead, memory) + p['serial_fraction'] * np.minimum(overhead, memory)
    combine = p['combine_us'] * np.clip(split - 1, 0, 1)
    return p['launch_us'] + body + combine + requests * p['request_ns'] * 1e-3


def all_reduce(p, dev, gpus, bytes_):
    gpus, bytes_ = np.asarray(gpus, float), np.asarray(bytes_, float)
    share = 2 * (gpus - 1) / gpus * bytes_
    base = p['direct_us'] + p['direct_peer_us'] * gpus
    one = base + (gpus - 1) * bytes_ / p['direct_bytes_per_s'] * 1e6
    two = base + p['two_shot_us'] + share / p['direct_bytes_per_s'] * 1e6
    ring = p['ring_us'] + p['ring_peer_us'] * gpus + share / p['ring_bytes_per_s'] * 1e6
    direct = np.where(bytes_ <= p['direct_limit_bytes'], np.minimum(one, two), np.inf)
    return np.minimum(direct, ring)


def elementwise(p, dev, bytes_):
    return p['launch_us'] + np.asarray(bytes_, float) / (dev['bw'] * p['bandwidth_fraction']) * 1e6


# Start values of each op; names ending in _fraction are kept within (0, 1].
START = {
    'gemm': dict(launch_us=3, wave_us=2, compute_fraction=.93, sm_feed_bytes_per_s=60e9,
                 bandwidth_fraction=.85, split_us=1, throttle=.05, throttle_half_us=300),
    'prefill': dict(launch_us=9, cta_us=1.5, compute_fraction=.62, min_keys=80,
                    bandwidth_fraction=.7, tail_fraction=.5, append_ns=1.8),
    'decode': dict(launch_us=11, cta_us=2.6, row_us=.03, bandwidth_fraction=.85,
                   stream_bytes_per_s=24e9, combine_us=4, request_ns=15, l2_speedup=1.5,
                   split_keys=200, serial_fraction=.5),
    'all_reduce': dict(direct_us=4, direct_peer_us=.2, two_shot_us=2, direct_bytes_per_s=120e9,
                       ring_us=5, ring_peer_us=2, ring_bytes_per_s=150e9),
    'elementwise': dict(launch_us=2, bandwidth_fraction=.6),
}
# Shorter measurements are not reported: launch noise, and vidur's resolution of 1 us.
FLOOR_US = {'gemm': 20, 'prefill': 20, 'decode': 20, 'all_reduce': 0, 'elementwise': 5}
LIMITS = {'sm_feed_bytes_per_s': 500e9, 'stream_bytes_per_s': 500e9, 'throttle': .5,
          'throttle_half_us': 5000}
AT_LEAST = {'l2_speedup': 1.0, 'split_us': .1, 'min_keys': 1.0}


def clean(names, theta):
    values = {}
    for name, x in zip(names, np.exp(np.clip(theta, -40, 40))):
        high = 1.0 if name.endswith('_fraction') else LIMITS.get(name, np.inf)
        value = min(max(x, AT_LEAST.get(name, 0.0)), high)
        values[name] = float('%.4g' % value) if value > 1e-3 else 0.0
    return values


def fit(op, dev, shapes, measured, evaluate):
    """Median-seeking robust fit: mean absolute log error plus a third of its root mean square."""
    names = list(START[op])
    fixed = {'direct_limit_bytes': 2 * 2**20} if op == 'all_reduce' else {}
    weight = np.where(measured > 20, 1, .3) if op in ('gemm', 'prefill', 'decode') else 1.0
    log_measured = np.log(measured)

    def loss(theta):
        error = np.log(evaluate({**clean(names, theta), **fixed}, dev, *shapes)) - log_measured
        return (np.mean(weight * np.sqrt(error**2 + .02**2)) +
                .3 * np.sqrt(np.mean(weight * error**2)))

    theta = np.log(list(START[op].values()))
    best = None
    for _ in range(3):  # restarts shake the simplex out of a fold
        result = minimize(loss, theta, method='Nelder-Mead',
                          options=dict(maxfev=2500, xatol=1e-3, fatol=1e-6, adaptive=True))
        if best is None or result.fun < best.fun:
            best = result
        theta = best.x
    return {**clean(names, best.x), **fixed}


def read(path):
    with gzip.open(os.path.join(os.environ['SERVELAB_DATA'], path), 'rt', newline='') as f:
        return list(csv.DictReader(f))


def unique_sorted(rows):
    """[(shape tuple, us)] with equal shapes merged by their median, in shape order."""
    table = {}
    for shape, us in rows:
        table.setdefault(shape, []).append(us)
    return [(shape, float(np.median(us))) for shape, us in sorted(table.items())]


def measured_rows(op, dev):
    key = dev['key']
    if op == 'gemm':
        rows = [((int(r['m']), int(r['n']), int(r['k'])), float(r['latency_ms']) * 1e3)
                for r in read('aiconfigurator/gemm_bf16.csv.gz') if r['device'] == key]
    elif op == 'prefill':
        rows = [((int(r['batch_size']), int(r['isl']), 0, int(r['num_heads']),
                  int(r['num_kv_heads']), 128), float(r['latency_ms']) * 1e3)
                for r in read('aiconfigurator/context_attention_bf16_hd128.csv.gz')
                if r['device'] == key]
    elif op == 'decode':
        rows = [((int(r['batch_size']), int(r['kv_len']), int(r['num_heads']),
                  int(r['num_kv_heads']), 128), float(r['latency_ms']) * 1e3)
                for r in read('aiconfigurator/generation_attention_bf16_hd128.csv.gz')
                if r['device'] == key]
    elif op == 'all_reduce':
        # The better of vLLM's custom kernel (in a CUDA graph) and NCCL at each size.
        best = {}
        for r in read('aiconfigurator/custom_allreduce.csv.gz'):
            if r['device'] == key and r['kernel_source'] == 'vLLM_custom_graph':
                best[(int(r['num_gpus']), int(r['message_size']))] = float(r['latency_ms']) * 1e3
        for r in read('aiconfigurator/nccl.csv.gz'):
            if r['device'] == key and r['op_name'] == 'all_reduce' and r['nccl_dtype'] == 'half':
                shape = (int(r['num_gpus']), int(r['message_size']))
                best[shape] = min(best.get(shape, np.inf), float(r['latency_ms']) * 1e3)
        rows = [(shape, us) for shape, us in best.items() if 1024 <= shape[1] <= 2**28]
    else:
        # vidur times RMS norm and residual add apart; served engines fuse them, which reads two
        # rows and writes two. The activation reads gate and up and writes one.
        rows = []
        for r in read('vidur/mlp_ops_median_ms.csv.gz'):
            if r['device'] != key.split('_')[0] or r['tp'] != '1':
                continue
            tokens, hidden, ffn = (int(r[c]) for c in ('num_tokens', 'n_embd', 'n_expanded_embd'))
            if r['input_layernorm_ms'] and r['add_ms']:
                fused = float(r['input_layernorm_ms']) + float(r['add_ms'])
                rows.append(((tokens * 8 * hidden,), fused * 1e3))
            if r['mlp_act_ms']:
                rows.append(((tokens * 6 * ffn,), float(r['mlp_act_ms']) * 1e3))
    return unique_sorted(rows)


EVALUATE = dict(gemm=gemm, prefill=prefill, decode=decode, all_reduce=all_reduce,
                elementwise=elementwise)


def columns(rows):
    return [np.array(c, float) for c in zip(*[shape for shape, _ in rows])]


def report(op, name, dev, constants, rows, label):
    floor = FLOOR_US[op]
    rows = [r for r in rows if r[1] > floor and (op not in ('prefill', 'decode') or r[0][0] <= 256)]
    measured = np.array([us for _, us in rows])
    error = np.abs(EVALUATE[op](constants, dev, *columns(rows)) - measured) / measured
    median, p90 = np.median(error) * 100, np.percentile(error, 90) * 100
    print('%-5s %-12s %-8s rows %6d  median %5.1f %%  P90 %5.1f %%' %
          (name, op, label, len(rows), median, p90))
    return median, p90


def fit_device(name, golden):
    dev, text = DEVICES[name], []
    for op in START:
        source = dev
        if op == 'elementwise' and name == 'h200':
            continue  # vidur has no H200: the profile takes the H100's
        rows = measured_rows(op, source)
        fit_rows, held_out = rows[::2], rows[1::2]
        used = [r for r in fit_rows if r[1] > .6 * FLOOR_US[op] and
                (op != 'decode' or r[0][0] <= 512)]
        if len(used) > 2500:  # every n-th row: keeps the fit under a minute
            used = used[::-(-len(used) // 2500)]
        constants = fit(op, dev, columns(used), np.array([us for _, us in used]), EVALUATE[op])
        report(op, name, dev, constants, fit_rows, 'fit')
        median, p90 = report(op, name, dev, constants, held_out, 'held-out')
        text.append('%s:  # held-out error: median %.1f %%, P90 %.1f %%' % (op, median, p90))
        text += ['  %s: %.10g' % item for item in constants.items()]
        if golden is not None:
            step = max(1, len(held_out) // 12)
            picked = [shape for shape, _ in held_out[::step]]
            if op == 'prefill':  # no benchmark has earlier context: compare the two codes only
                picked += [(1, 512, 2048, 32, 8, 128), (3, 100, 7000, 32, 32, 128)]
            times = EVALUATE[op](constants, dev, *columns([(s, 0) for s in picked]))
            for shape, us in zip(picked, times):
                golden.append([name, op, '%.9g' % us] + [str(v) for v in shape])
    print('\n# %s\n%s\n' % (name, '\n'.join(text)))


def report_line(name, points):
    points = sorted(points)
    batch, us = (np.array(c, float) for c in zip(*points[::2]))
    slope, base = np.polyfit(batch, us, 1)
    batch, us = (np.array(c, float) for c in zip(*points[1::2]))
    error = np.abs(base + slope * batch - us) / us
    median, p90 = np.median(error) * 100, np.percentile(error, 90) * 100
    print('host (%s): step_us %.0f  sequence_us %.2f  held-out rows %d  median %.1f %%  '
          'P90 %.1f %%' % (name, base, slope, len(us), median, p90))


def host_overheads():
    """Per-step CPU time of a vLLM-like engine on A100: schedule + inputs + sampler + outputs; and
    of vLLM's scheduler alone on the H100 64 GB machine, over runs without a waiting queue."""
    points = []
    for r in read('vidur/cpu_overheads_ms.csv.gz'):
        if r['device'] != 'a100' or r['tensor_parallel_degree'] != '1':
            continue
        parts = [r[c + '_median'] for c in ('schedule', 'prepare_inputs_e2e', 'sampler_e2e',
                                            'process_model_outputs')]
        if all(parts):
            points.append((int(r['batch_size']), sum(map(float, parts)) * 1e3))
    report_line('vidur a100, TP 1', points)
    points = []
    for kind in ('aggregated_rate', 'adapter_rates'):
        for r in read('vllm_lora_h100/scheduler_overhead_metrics_data_%s.csv.gz' % kind):
            if float(r['avg_waiting_queue']) < 1 and float(r['steps']) > 100:
                points.append((float(r['avg_batch_size']),
                               float(r['total_scheduling_time']) / float(r['steps']) * 1e6))
    report_line('vLLM scheduler, H100 64 GB', points)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('devices', nargs='*', default=[])
    parser.add_argument('--golden')
    arguments = parser.parse_args()
    if 'SERVELAB_DATA' not in os.environ:
        sys.exit('set SERVELAB_DATA to the folder with vidur/ and aiconfigurator/')
    golden = [] if arguments.golden else None
    for name in arguments.devices or list(DEVICES):
        if name not in DEVICES:
            sys.exit("unknown device '%s'; known: %s" % (name, ', '.join(DEVICES)))
        fit_device(name, golden)
    host_overheads()
    if golden is not None:
        with open(arguments.golden, 'w', newline='') as f:
            writer = csv.writer(f, lineterminator='\n')
            writer.writerow(['device', 'op', 'us', 'shape'])
            writer.writerows(golden)


if __name__ == '__main__':
    main()
