"""One random Llama of 134M parameters, and adapters for it, in the formats of both engines: a
Hugging Face folder and GGUF, the same bf16 numbers in both."""
from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

LAYERS, HIDDEN, HEADS, HEAD_DIM, FFN, VOCAB, CONTEXT = 12, 768, 12, 64, 2048, 32000, 2048
RANK = 16
ADAPTERS = 8
TARGETS = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}

# The linear layers of a block: Hugging Face's name, GGUF's, rows out, columns in.
LINEAR = (
    ("self_attn.q_proj", "attn_q", HIDDEN, HIDDEN),
    ("self_attn.k_proj", "attn_k", HIDDEN, HIDDEN),
    ("self_attn.v_proj", "attn_v", HIDDEN, HIDDEN),
    ("self_attn.o_proj", "attn_output", HIDDEN, HIDDEN),
    ("mlp.gate_proj", "ffn_gate", FFN, HIDDEN),
    ("mlp.up_proj", "ffn_up", FFN, HIDDEN),
    ("mlp.down_proj", "ffn_down", HIDDEN, FFN),
)


def random_bf16(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal numbers of deviation 0.02 as the 16 bits of bf16."""
    values = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def rotate_pairs(weight: np.ndarray) -> np.ndarray:
    """Rows of q or k as GGUF's llama rotates them: neighbours, not halves as Hugging Face does."""
    return weight.reshape(HEADS, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, at = {}, 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape),
                        "data_offsets": [at, at + bits.nbytes]}
        at += bits.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for bits in tensors.values():
            file.write(bits.tobytes())


def write_model(folder: Path, seed: int = 1) -> Path:
    """Writes folder/hf and folder/model.gguf; returns the latter."""
    rng = np.random.default_rng(seed)
    ones = np.full(HIDDEN, 0x3F80, np.uint16)
    hf = {"model.embed_tokens.weight": random_bf16(rng, VOCAB, HIDDEN)}
    path = folder / "model.gguf"
    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(LAYERS)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(HIDDEN)
    out.add_feed_forward_length(FFN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(HEAD_DIM)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(VOCAB)
    out.add_tokenizer_model("no_vocab")

    def add(name: str, bits: np.ndarray) -> None:
        if bits.ndim == 1:
            out.add_tensor(name, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            out.add_tensor(name, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    add("token_embd.weight", hf["model.embed_tokens.weight"])
    for layer in range(LAYERS):
        for theirs, name, rows, columns in LINEAR:
            bits = random_bf16(rng, rows, columns)
            hf[f"model.layers.{layer}.{theirs}.weight"] = bits
            rotated = rotate_pairs(bits) if name in ("attn_q", "attn_k") else bits
            add(f"blk.{layer}.{name}.weight", np.ascontiguousarray(rotated))
        for theirs, name in (("input_layernorm", "attn_norm"),
                             ("post_attention_layernorm", "ffn_norm")):
            hf[f"model.layers.{layer}.{theirs}.weight"] = ones
            add(f"blk.{layer}.{name}.weight", ones)
    hf["model.norm.weight"] = ones
    add("output_norm.weight", ones)
    hf["lm_head.weight"] = random_bf16(rng, VOCAB, HIDDEN)
    add("output.weight", hf["lm_head.weight"])
    finish(out)

    (folder / "hf").mkdir(exist_ok=True)
    write_safetensors(folder / "hf" / "model.safetensors", hf)
    (folder / "hf" / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False,
    }), encoding="utf-8")
    return path


def write_adapter(path: Path, seed: int) -> Path:
    """An adapter of RANK on q, k, v and o, as GGUF."""
    rng = np.random.default_rng(seed)
    out = gguf.GGUFWriter(path, "llama")
    out.add_type(gguf.GGUFType.ADAPTER)
    out.add_string(gguf.Keys.Adapter.TYPE, "lora")
    out.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(RANK))
    for layer in range(LAYERS):
        for name in TARGETS.values():
            for part, shape in (("a", (RANK, HIDDEN)), ("b", (HIDDEN, RANK))):
                bits = random_bf16(rng, *shape)
                out.add_tensor(f"blk.{layer}.{name}.weight.lora_{part}", bits.view(np.uint8),
                               raw_dtype=gguf.GGMLQuantizationType.BF16)
    finish(out)
    return path


def finish(out: gguf.GGUFWriter) -> None:
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
