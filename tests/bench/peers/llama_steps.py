"""Steps of llama.cpp, asked for as those of step_server.cc are:

    llama_steps.py FOLDER THREADS

FOLDER has model.gguf and adapter<i>.gguf. One line more: "greedy COUNT TOKEN,TOKEN,..." answers
with the tokens that greedy decoding gives.

llama.cpp has one adapter for a whole batch, and so its server decodes requests of several adapters
one after the other; steps with several adapters are made so here. Each case has a context of its
own, as large as it needs.
"""
from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

import llama_cpp as llama
import numpy as np

REPEATS = 4
PAGE = 256


class Model:
    def __init__(self, folder: Path, threads: int) -> None:
        self.threads = threads
        llama.llama_log_set(quiet, ctypes.c_void_p(0))
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        params.use_mmap = False  # weights may then be laid out for the processor
        self.model = llama.llama_model_load_from_file(str(folder / "model.gguf").encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot read {folder / 'model.gguf'}")
        self.vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.adapters = []
        while (path := folder / f"adapter{len(self.adapters)}.gguf").exists():
            self.adapters.append(llama.llama_adapter_lora_init(self.model, str(path).encode()))
            if not self.adapters[-1]:
                raise SystemExit(f"llama.cpp cannot read {path}")
        self.contexts: dict[tuple[int, int], Context] = {}

    def context(self, batch: int, tokens: int) -> Context:
        """For so many sequences of so many tokens."""
        key = (batch, (tokens + PAGE - 1) // PAGE * PAGE)
        if key not in self.contexts:
            self.contexts[key] = Context(self, *key)
        return self.contexts[key]


class Context:
    def __init__(self, model: Model, batch: int, tokens: int) -> None:
        params = llama.llama_context_default_params()
        params.n_ctx = batch * tokens
        params.n_batch = params.n_ubatch = max(batch, tokens)
        params.n_seq_max = batch
        params.n_threads = params.n_threads_batch = model.threads
        self.model = model
        self.context = llama.llama_init_from_model(model.model, params)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(max(batch, tokens), 0, 1)
        self.length = [0] * batch

    def forget(self, sequence: int, length: int) -> None:
        llama.llama_memory_seq_rm(self.memory, sequence, length, -1)
        self.length[sequence] = length

    def decode(self, slices: list[tuple[int, list[int]]]) -> None:
        """A batch of (sequence, tokens), with logits of each one's last."""
        batch = self.batch
        n = 0
        for sequence, tokens in slices:
            for i, token in enumerate(tokens):
                batch.token[n] = token
                batch.pos[n] = self.length[sequence] + i
                batch.n_seq_id[n] = 1
                batch.seq_id[n][0] = sequence
                batch.logits[n] = i + 1 == len(tokens)
                n += 1
            self.length[sequence] += len(tokens)
        batch.n_tokens = n
        if llama.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama.cpp: a batch did not run")
        llama.llama_synchronize(self.context)

    def use_adapter(self, adapter: int | None) -> None:
        count = 0 if adapter is None else 1
        adapters = (llama.llama_adapter_lora_p_ctypes * 1)()
        if adapter is not None:
            adapters[0] = self.model.adapters[adapter]
        scales = (ctypes.c_float * 1)(1.0)
        if llama.llama_set_adapters_lora(self.context, adapters, count, scales) != 0:
            raise SystemExit("llama.cpp: an adapter cannot be used")

    def step(self, tokens: int, adapters: int) -> None:
        sequences = range(len(self.length))
        if adapters == 0:
            self.decode([(s, [5] * tokens) for s in sequences])
            return
        for adapter in range(adapters):
            self.use_adapter(adapter)
            self.decode([(s, [5] * tokens) for s in sequences if s % adapters == adapter])
        self.use_adapter(None)


@llama.llama_log_callback
def quiet(_level, _text, _data):
    pass


def run_step(model: Model, batch: int, context: int, tokens: int, adapters: int) -> list[float]:
    """Seconds of each repeat, after one that is not counted."""
    here = model.context(batch, context + tokens)
    took = []
    for sequence in range(batch):
        here.forget(sequence, 0)
        if context > 0:
            here.decode([(sequence, [5] * context)])
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        here.step(tokens, adapters)
        took.append(time.perf_counter() - begin)
        for sequence in range(batch):
            here.forget(sequence, context)
    return took[1:]


def greedy(model: Model, count: int, prompt: list[int]) -> list[int]:
    here = model.context(1, len(prompt) + count)
    here.forget(0, 0)
    tokens, out = prompt, []
    for _ in range(count):
        here.decode([(0, tokens)])
        logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(here.context, -1),
                                       shape=(model.vocab,))
        tokens = [int(np.argmax(logits))]
        out += tokens
    return out


def main() -> None:
    model = Model(Path(sys.argv[1]), int(sys.argv[2]))
    print("llama.cpp:", llama.llama_print_system_info().decode(), file=sys.stderr)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "greedy":
            tokens = greedy(model, int(words[1]), [int(t) for t in words[2].split(",")])
            print(",".join(map(str, tokens)), flush=True)
        else:
            took = run_step(model, *map(int, words))
            print(" ".join(f"{seconds:.9f}" for seconds in took), flush=True)


if __name__ == "__main__":
    main()
