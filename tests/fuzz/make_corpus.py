#!/usr/bin/env python3
"""Writes small seeds for the fuzzers into the folder given: <folder>/<fuzzer>/<seed>."""

import json
import struct
import sys
from pathlib import Path


def safetensors(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(kind, shape, begin, end):
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


FILES = {
    "one": safetensors({"a": tensor("F32", [2, 1], 0, 8)}, struct.pack("<ff", 1, -2)),
    "two": safetensors({"__metadata__": {"format": "pt"}, "a": tensor("BF16", [2], 0, 4),
                        "b": tensor("F16", [1, 1], 4, 6)}, b"\x80\x3f\x00\x40\x00\x3c"),
    "empty": safetensors({}, b""),
    "integers": safetensors({"a": tensor("I64", [], 0, 8)}, bytes(8)),
    "nan": safetensors({"a": tensor("F32", [1], 0, 4)}, struct.pack("<f", float("nan"))),
    "gap": safetensors({"a": tensor("U8", [1], 1, 2)}, bytes(2)),
}

LORA = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"]}
HF = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "intermediate_size": 128, "vocab_size": 160, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
CONFIGS = {
    "list": LORA,
    "pattern": LORA | {"target_modules": r".*\.(?:q|v)_proj|(?!x)[a-z.\d]{2,9}$"},
    "all-linear": LORA | {"target_modules": "all-linear", "exclude_modules": ["o_proj"]},
    "layers": LORA | {"layers_to_transform": [0, 1], "layers_pattern": "layers"},
    "patterns": LORA | {"use_rslora": True, "rank_pattern": {r"layers\.0\..*": 4},
                        "alpha_pattern": {"(q|k)_proj": 2.5}},
    "dora": LORA | {"use_dora": True, "bias": "none", "modules_to_save": None},
    "llama": HF,
    "llama3": HF | {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
    "mistral": HF | {"model_type": "mistral", "architectures": ["MistralForCausalLM"],
                     "sliding_window": 128, "rope_theta": 10000.0},
}


def words(*values):
    return b"".join(struct.pack("<I", value) for value in values)


# As tests/fuzz/rank_messages_fuzz.cc reads them: which message, then the message.
MESSAGES = {
    "hello": b"\0" + words(0x4B4E5253, 1, 1) + b"b" + words(1) + b"m" + words(1, 2) + b"\0"
             + bytes(8) + words(1) + b"h" + words(9),
    "job": b"\2" + words(1, 4) + b"\1" + words(5, 7) + bytes(3)
           + words(1, 8) + b"\1" + words(31, 2, 1, 2)
           + b"\0\2" + bytes(8) + b"\0" + bytes(24)
           + words(1, 3, 1, 5, 1, 0, 7) + b"\1" + bytes(8) + b"\0",
    "reply": b"\3" + bytes(48) + words(1, 5, 0) + bytes(16),
    "load": b"\4" + words(3, 64) + b"\0\1" + bytes(8) + words(1) + b"x",
    "shape": b"\5" + words(2, 1, 0) + b"\0" + words(4) + bytes(4) + b"\1" + words(4, 32)
             + b"\1" + words(32, 4),
    "frame": b"\6" + words(2) + b"\x09ab",
}

LINES = {
    "chosen": [{"config": {"kernel": "bgmv", "prefill": {"alpha_ms": 0.02, "beta_ms": 28},
                           "decode": {"alpha_ms": 0.0036, "beta_ms": 32.07}, "slo_ms": 36,
                           "penalty_ms": 1000, "output_tokens": 60, "idle_is_free": True}},
               {"server": "a", "running": [32, 32, 0], "queued": []},
               {"server": "b", "queued": {"requests": 2, "sum": 96, "max": 64, "base": 1}},
               {"request": "r", "rank": 64, "servers": ["a", "b"]}],
    "gone": [{"server": "a"}, {"server": "a", "gone": True}, {"request": "r", "rank": 0}],
}


def main():
    root = Path(sys.argv[1])
    for name, content in FILES.items():
        path = root / "safetensors_fuzz" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name, content in CONFIGS.items():
        path = root / "adapter_config_fuzz" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    for name, content in MESSAGES.items():
        path = root / "rank_messages_fuzz" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name, content in LINES.items():
        path = root / "score_fuzz" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in content))


if __name__ == "__main__":
    main()
