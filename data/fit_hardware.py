#!/usr/bin/env python3
"""Fits the constants of experiments/base/hardware/*.yaml to measured operator times.

  make program
  SERVELAB_DATA=/path/to/data .venv/bin/python data/fit_hardware.py [device ...]
  .venv/bin/python data/fit_hardware.py --rows rows.csv --profile mine.yaml

Prints errors and YAML. Devices: a100, h100, h200, l40s, rtx4090; or a GPU of your own, whose rows
are `op,shape,us`: gemm,128 4096 4096,21.5 (shapes as in engine/calibrate/op_times.h, with blanks),
and whose profile has its data sheet and extends one for the rest. Each op's shapes are made unique
and sorted; rows of even index are fitted, rows of odd index are held out; ops without rows are left
out. Only micro-benchmarks of single operators are used (vidur, aiconfigurator and llmservingsim
under SERVELAB_DATA) and CPU time per step (vidur, vllm_lora_h100), never a served system's
throughput or latency.

The formulas are engine/backend/cost/op_cost.cc's: the program ($SERVELAB, or build/servelab)
evaluates them, with the data sheet that the device's profile has (engine/calibrate/op_times.h).
Times here are in microseconds.
"""
import argparse
import csv
import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get('SERVELAB', str(ROOT / 'build/servelab'))
# The device's name in aiconfigurator's tables, or the prefix of its tables of llmservingsim (of one
# model: hidden size, heads, KV heads, feed-forward size), and its profile.
DEVICES = {
    'a100': dict(key='a100_sxm', profile='a100-80g'),
    'h100': dict(key='h100_sxm', profile='h100-80g'),
    'h200': dict(key='h200_sxm', profile='h200-141g'),
    'l40s': dict(key='l40s', profile='l40s-48g'),
    'rtx4090': dict(layers='vllm_RTX4090_Llama-3.1-8B_tp1', shape=(4096, 32, 8, 14336),
                    profile='rtx4090-24g'),
}
MIN_ROWS = 20  # to fit an op and judge the fit


class Evaluator:
    """An operator's times over given rows, as a function of the constants."""

    def __init__(self, op, dev, rows):
        self.program = subprocess.Popen([PROGRAM, 'op-times', op, dev['profile'], '--experiments',
                                         str(ROOT / 'experiments')], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for shape, _ in rows:
            self.program.stdin.write(','.join(map(str, shape)) + '\n')
        self.program.stdin.write('\n')
        self.measured = np.array([us for _, us in rows])

    def __call__(self, constants):
        """The rows' times; infinite where the constants are none that a profile may have."""
        text = ', '.join('%s: %r' % item for item in constants.items())
        self.program.stdin.write('{%s}\n' % text)
        self.program.stdin.flush()
        answer = self.program.stdout.readline()
        if answer.startswith('refused: '):
            return np.full(len(self.measured), np.inf)
        times = np.fromstring(answer, sep=' ')
        if len(times) != len(self.measured):
            sys.exit('%s answers %r' % (' '.join(self.program.args), answer[:200]))
        return times

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.communicate()


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


def fit(op, evaluate):
    """Median-seeking robust fit: mean absolute log error plus a third of its root mean square."""
    names = list(START[op])
    fixed = {'direct_limit_bytes': 2 * 2**20} if op == 'all_reduce' else {}
    measured = evaluate.measured
    weight = np.where(measured > 20, 1, .3) if op in ('gemm', 'prefill', 'decode') else 1.0
    log_measured = np.log(measured)

    def loss(theta):
        error = np.log(evaluate({**clean(names, theta), **fixed})) - log_measured
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


def layer_rows(op, dev):
    """Of llmservingsim: vLLM's layers, timed for one model by how many tokens and contexts."""
    hidden, heads, kv_heads, ffn = dev['shape']
    path = 'llmservingsim/%s_%%s.csv.gz' % dev['layers']
    head_dim = hidden // heads
    if op in ('prefill', 'decode'):
        for r in read(path % 'attention'):
            chunk, earlier, batch, context = (int(r[c]) for c in ('prefill_chunk', 'kv_prefill',
                                                                  'n_decode', 'kv_decode'))
            shape = ((1, chunk, earlier) if op == 'prefill' else (batch, context))
            if (batch if op == 'prefill' else chunk) == 0:  # not both in one call
                yield shape + (heads, kv_heads, head_dim), float(r['time_us'])
        return
    qkv = (heads + 2 * kv_heads) * head_dim
    gemms = {'qkv_proj': (qkv, hidden), 'o_proj': (hidden, hidden), 'down_proj': (hidden, ffn),
             'gate_up_proj': (2 * ffn, hidden)}
    moved = {'act_fn': 6 * ffn, 'layernorm': 8 * hidden}  # bytes: reads and writes, as below
    for r in read(path % 'dense'):
        tokens = int(r['tokens'])
        if op == 'gemm' and r['layer'] in gemms:
            yield (tokens, *gemms[r['layer']]), float(r['time_us'])
        elif op == 'elementwise' and r['layer'] in moved:
            yield (tokens * moved[r['layer']],), float(r['time_us'])


def own_rows(path):
    """{op: [(shape, us)]} of a file with the columns op, shape and us."""
    rows = {}
    with open(path, newline='') as f:
        for number, row in enumerate(csv.DictReader(f), start=2):
            try:
                shape, us = tuple(map(int, row['shape'].split())), float(row['us'])
            except (KeyError, TypeError, ValueError):
                sys.exit('%s:%d: expected op,shape,us such as gemm,128 4096 4096,21.5' %
                         (path, number))
            if row['op'] not in START:
                sys.exit("%s:%d: unknown op '%s'; known: %s" %
                         (path, number, row['op'], ', '.join(START)))
            if not us > 0:
                sys.exit('%s:%d: %s us is no time' % (path, number, row['us']))
            rows.setdefault(row['op'], []).append((shape, us))
    return rows


def measured_rows(op, dev):
    if 'rows' in dev:
        return unique_sorted(dev['rows'].get(op, []))
    if 'layers' in dev:
        return unique_sorted(layer_rows(op, dev))
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


def report(op, name, dev, constants, rows, label):
    floor = FLOOR_US[op]
    rows = [r for r in rows if r[1] > floor and (op not in ('prefill', 'decode') or r[0][0] <= 256)]
    with Evaluator(op, dev, rows) as evaluate:
        error = np.abs(evaluate(constants) - evaluate.measured) / evaluate.measured
    median, p90 = np.median(error) * 100, np.percentile(error, 90) * 100
    print('%-5s %-12s %-8s rows %6d  median %5.1f %%  P90 %5.1f %%' %
          (name, op, label, len(rows), median, p90))
    return median, p90


def fit_device(name, dev):
    text = []
    for op in START:
        rows = measured_rows(op, dev)
        if len(rows) < MIN_ROWS:  # the profile takes another device's
            print('%-5s %-12s %d rows, left out: %d are needed' % (name, op, len(rows), MIN_ROWS))
            continue
        fit_rows, held_out = rows[::2], rows[1::2]
        used = [r for r in fit_rows if r[1] > .6 * FLOOR_US[op] and
                (op != 'decode' or r[0][0] <= 512)]
        if len(used) > 2500:  # every n-th row: keeps the fit under a minute
            used = used[::-(-len(used) // 2500)]
        with Evaluator(op, dev, used) as evaluate:
            constants = fit(op, evaluate)
        report(op, name, dev, constants, fit_rows, 'fit')
        median, p90 = report(op, name, dev, constants, held_out, 'held-out')
        text.append('%s:  # held-out error: median %.1f %%, P90 %.1f %%' % (op, median, p90))
        text += ['  %s: %.10g' % item for item in constants.items()]
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
    parser.add_argument('--rows', help='CSV of a GPU of your own, with --profile')
    parser.add_argument('--profile', help='its name or file: what its data sheet says')
    arguments = parser.parse_args()
    if bool(arguments.rows) != bool(arguments.profile):
        parser.error('--rows and --profile go together')
    if arguments.rows:
        name = Path(arguments.profile).stem
        fit_device(name, dict(rows=own_rows(arguments.rows), profile=arguments.profile))
        return
    if 'SERVELAB_DATA' not in os.environ:
        sys.exit('set SERVELAB_DATA to the folder with vidur/ and aiconfigurator/')
    for name in arguments.devices or list(DEVICES):
        if name not in DEVICES:
            sys.exit("unknown device '%s'; known: %s" % (name, ', '.join(DEVICES)))
        fit_device(name, DEVICES[name])
    host_overheads()


if __name__ == '__main__':
    main()
