"""The CPU engine beside llama.cpp, on one random bf16 Llama of 134M parameters: `make bench-peers`.

    compare.py BUILD_FOLDER [--rounds N] [--threads N]

First greedy tokens of both are compared, so that both compute the same model. Then both run the
same steps by turns, the one that waits stopped (SIGSTOP), since idle threads of either spin. A
ratio compares the fastest repeats of one round; printed are the median of the rounds' ratios and
their range. Exits 1 when a median is below what is asked.
"""
from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import random_model

PROMPTS = 8
GREEDY = 4
AGREE = 0.75  # of greedy tokens; sums in another order turn close calls


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    context: int
    tokens: int
    adapters: int
    asked: float  # of their time over ours

    @property
    def line(self) -> str:
        return f"{self.batch} {self.context} {self.tokens} {self.adapters}"


CASES = (
    Case("prefill, 128 tokens", 1, 0, 128, 0, 1.3),
    Case("prefill, 512 tokens", 1, 0, 512, 0, 1.3),
    Case("decode, batch 1", 1, 64, 1, 0, 1.0),
    Case("decode, batch 8", 8, 64, 1, 0, 1.5),
    Case("decode, batch 32", 32, 64, 1, 0, 1.5),
    Case("decode, batch 8, 8 adapters", 8, 64, 1, 8, 4.0),
)


class Side:
    """An engine in a process of its own, that runs only while it is asked something."""

    def __init__(self, name: str, *command: str | Path) -> None:
        self.name = name
        self.process = subprocess.Popen([str(part) for part in command], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, line: str) -> str:
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} ended with {self.process.wait()} at '{line}'")
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def fastest(self, case: Case) -> float:
        return min(float(seconds) for seconds in self.ask(case.line).split())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def agreement(build: Path, folder: Path, theirs: Side) -> float:
    """The share of greedy tokens that are the same."""
    rng = np.random.default_rng(7)
    same = total = 0
    for _ in range(PROMPTS):
        prompt = ",".join(map(str, rng.integers(0, random_model.VOCAB, 24)))
        answer = theirs.ask(f"greedy {GREEDY} {prompt}").strip().split(",")
        ours = subprocess.run(
            [build / "servelab", "generate", "--model", folder / "hf", "--tokens", prompt,
             "--max-tokens", str(GREEDY)],
            check=True, capture_output=True, text=True).stdout.strip().split(",")
        # One other token, and what follows it answers another question.
        for a, b in zip(ours, answer):
            total += 1
            if a != b:
                break
            same += 1
    return same / total


def compare(build: Path, rounds: int, threads: int) -> int:
    folder = build / "peers"
    random_model.write_model(folder)
    for i in range(random_model.ADAPTERS):
        random_model.write_adapter(folder / f"adapter{i}.gguf", seed=100 + i)
    here = Path(__file__).parent
    theirs = Side("llama.cpp", sys.executable, here / "llama_steps.py", folder, str(threads))
    sides = [theirs]
    try:
        share = agreement(build, folder, theirs)
        print(f"greedy tokens that both give: {share:.0%} (asked: {AGREE:.0%})")
        if share < AGREE:
            return 1
        ours = Side("servelab", build / "tests" / "servelab_step_server", folder / "hf",
                    str(threads), str(random_model.ADAPTERS), str(random_model.RANK))
        sides.append(ours)
        ratios: dict[Case, list[float]] = {case: [] for case in CASES}
        fastest: dict[Case, list[tuple[float, float]]] = {case: [] for case in CASES}
        for side in sides:
            side.ask(CASES[0].line)  # until it has read its model, it would run beside the other
        for index in range(rounds):
            for number, case in enumerate(CASES):
                sides = [ours, theirs] if (index + number) % 2 == 0 else [theirs, ours]
                took = {side: side.fastest(case) for side in sides}
                ratios[case].append(took[theirs] / took[ours])
                fastest[case].append((took[ours], took[theirs]))
    finally:
        for side in sides:
            side.end()

    print(f"{'':28} {'servelab':>10} {'llama.cpp':>10} {'ratio':>6} {'lowest, highest':>16} "
          f"{'asked':>6}")
    met = True
    for case in CASES:
        tokens = case.batch * case.tokens
        mine, other = (tokens / statistics.median(times) for times in zip(*fastest[case]))
        ratio = statistics.median(ratios[case])
        met = met and ratio >= case.asked
        print(f"{case.name:28} {mine:10.0f} {other:10.0f} {ratio:6.2f} "
              f"{min(ratios[case]):8.2f} {max(ratios[case]):7.2f} {case.asked:6.1f}"
              f"{'' if ratio >= case.asked else '  BELOW'}")
    print(f"tokens/s by the median of {rounds} rounds' fastest repeats; ratio: theirs over ours")
    return 0 if met else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    sys.exit(compare(args.build, args.rounds, args.threads))


if __name__ == "__main__":
    main()
