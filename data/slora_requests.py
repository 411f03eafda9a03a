#!/usr/bin/env python3
"""Writes data/slora/rate<R>_cv<C>.csv: the requests of S-LoRA's synthetic benchmarks.

    data/slora_requests.py [--out FOLDER] [--check]

S-LoRA's benchmarks draw from NumPy's generator, whose streams do not change between versions, with
seed 42: for 300 s of R requests/s first the adapters' shares, then prompts and outputs, uniform
over 8 to 511, then gamma gaps with coefficient of variation C. So its requests can be had again
exactly. `draw` is where a request's adapter stands among all adapters' shares, whatever their
number and skew, which are left to a spec. A prompt is "Hello " so many times: two tokens more, its
first and the last blank's. `--check` says whether the files are what this writes.
"""
import argparse
import pathlib
import sys

import numpy as np

SEED, DURATION_S, TOKENS, PROMPT_MORE = 42, 300, (8, 512), 2
SETTINGS = [(1, 1), (1.5, 1), (2, 1), (2.5, 1), (2, 2), (2, 4), (2, 6), (2, 8)]  # requests/s, cv


def requests(rate: float, cv: float) -> tuple[np.ndarray, ...]:
    """Arrivals in s, prompts, outputs, and draws of the adapters in [0, 1)."""
    rng = np.random.RandomState(SEED)
    count = int(rate * DURATION_S)
    # power(a) is U^(1/a): adapter i of n is drawn where U is in [(i/n)^a, ((i+1)/n)^a).
    draws = rng.power(1.0, count)
    prompts = rng.randint(*TOKENS, count) + PROMPT_MORE
    outputs = rng.randint(*TOKENS, count)
    at = np.cumsum(rng.gamma(1 / cv**2, cv**2 / rate, count))
    return at, prompts, outputs, draws


def table(rate: float, cv: float) -> str:
    lines = [f"{t:.6f},{prompt},{output},{draw:.12f}"
             for t, prompt, output, draw in zip(*requests(rate, cv))]
    return "\n".join(["t_s,input_tokens,output_tokens,draw", *lines]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).with_name("slora"))
    parser.add_argument("--check", action="store_true",
                        help="write nothing; 1 where a file differs")
    options = parser.parse_args()
    differs = []
    for rate, cv in SETTINGS:
        path = options.out / f"rate{rate:g}_cv{cv:g}.csv"
        if options.check:
            if not path.is_file() or path.read_text() != table(rate, cv):
                differs.append(path.name)
        else:
            options.out.mkdir(parents=True, exist_ok=True)
            path.write_text(table(rate, cv))
    if differs:
        print(f"not what this writes: {', '.join(differs)}", file=sys.stderr)
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
