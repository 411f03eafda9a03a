#!/usr/bin/env python3
"""Writes tests/golden/models: tiny Hugging Face models, PEFT adapters for them, and what
transformers and PEFT compute with them. Only needed to make the fixtures anew; the tests read what
is committed.

Made with (CPU is enough):
    pip install torch==2.15.0 transformers==5.23.0 peft==0.21.2 safetensors==0.8.0
    python tests/golden/make_model_fixtures.py

<family>/model        config.json and weights; bf16 values, sharded for mistral
<family>/<adapter>    a PEFT folder, saved by PEFT
<family>/expected.json         prompts; for each case ("base" and each adapter) and prompt, the 64
                               tokens that greedy decoding appends, and the smallest difference
                               between the two best logits on that path
<family>/expected.safetensors  "<case>.<prompt>.last": logits behind the prompt, f32;
                               "<case>.<ALL_POSITIONS>.all": logits of every position of one prompt

../rope_frequencies.json       transformers' rotary frequencies of models that people serve

All weights are exactly representable in bf16 and all arithmetic here is in f32.
"""

import json
import shutil
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

ROOT = Path(__file__).resolve().parent / "models"
VOCAB = 160
PROMPT_LENGTHS = (1, 7, 33)
ALL_POSITIONS = 2  # the prompt whose logits are kept for every position
GREEDY_TOKENS = 64
SMALLEST_MARGIN = 2e-3  # rounding differs between machines by less
SHAPE = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_attention_heads=4,
             num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

MODELS = {
    # Wavelengths of the 8 frequencies: one below 16, two between 16 and 64, the rest above, so that
    # each of llama3's three cases occurs.
    "llama": (LlamaForCausalLM, LlamaConfig(
        **SHAPE, num_hidden_layers=3, max_position_embeddings=512, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0,
                             low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64))),
    # A head_dim of its own; the window is longer than every test's context.
    "mistral": (MistralForCausalLM, MistralConfig(
        **SHAPE, num_hidden_layers=2, head_dim=32, max_position_embeddings=1024,
        sliding_window=128, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="default", rope_theta=1000.0))),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(
        **SHAPE, num_hidden_layers=3, max_position_embeddings=256, rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
}

# Name -> (settings, type that the matrices are stored in, edits of the saved adapter_config.json).
ADAPTERS = {
    "llama": {
        "r4": (dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]), torch.float32, {}),
        "r8": (dict(r=8, lora_alpha=4, target_modules="all-linear", use_rslora=True),
               torch.bfloat16, {}),
        "r16": (dict(r=16, lora_alpha=32, target_modules=r".*\.self_attn\.(q|k|v|o)_proj",
                     exclude_modules=r"model\.layers\.1\..*"), torch.bfloat16, {}),
        "r64": (dict(r=64, lora_alpha=96, target_modules=["gate_proj", "up_proj", "down_proj"],
                     layers_to_transform=[0, 2], layers_pattern="layers"), torch.bfloat16, {}),
    },
    "mistral": {
        "r4": (dict(r=4, lora_alpha=8, target_modules=ALL,
                    rank_pattern={"q_proj": 2, r"model.layers.1.self_attn.v_proj": 3},
                    alpha_pattern={r"layers\.0\.mlp\..*": 3, "down_proj": 5}), torch.bfloat16, {}),
        # PEFT switches fan_in_fan_out off for nn.Linear, whatever an adapter says.
        "r8": (dict(r=8, lora_alpha=12, target_modules="all-linear"), torch.bfloat16,
               {"fan_in_fan_out": True}),
        "r16": (dict(r=16, lora_alpha=24,
                     target_modules=r"model\.layers\.[01]\.mlp\.(gate|down)_proj|.*\bk_proj$"),
                torch.float16, {}),
        "r64": (dict(r=64, lora_alpha=10, target_modules=["q_proj", "o_proj", "up_proj"],
                     use_rslora=True, alpha_pattern={"self_attn.o_proj": 14}), torch.bfloat16, {}),
    },
    "qwen2": {
        "r4": (dict(r=4, lora_alpha=12, target_modules=["q_proj", "k_proj", "down_proj"],
                    layers_to_transform=1), torch.bfloat16, {}),
        "r8": (dict(r=8, lora_alpha=16, target_modules=ALL, exclude_modules=["o_proj"]),
               torch.float32, {}),
        "r16": (dict(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj", "up_proj"],
                     rank_pattern={r"layers\.0\..*(q|v)_proj": 8, "q_proj": 12}),
                torch.bfloat16, {}),
        "r64": (dict(r=64, lora_alpha=64, target_modules="all-linear"), torch.bfloat16, {}),
    },
}


def fill(model, generator):
    """Spreads logits over several units and keeps every value representable in bf16."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                value = 1 + 0.1 * noise
            elif name.endswith("bias"):
                value = 0.3 * noise
            elif "embed_tokens" in name or "lm_head" in name:
                value = 0.4 * noise
            else:
                value = 0.15 * noise
            parameter.copy_(value.to(torch.bfloat16).float())


def make_model(family, folder, seed):
    kind, config = MODELS[family]
    model = kind(config)
    fill(model, torch.Generator().manual_seed(seed))
    shard = "140KB" if family == "mistral" else "5GB"
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=shard)
    for extra in folder.glob("generation_config.json"):
        extra.unlink()


def load_base(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                attn_implementation="eager").eval()


def make_adapter(base_folder, folder, settings, dtype, edits, seed):
    torch.manual_seed(seed)
    # Without PEFT's initialisation B is not zero.
    config = LoraConfig(**settings, init_lora_weights=False, task_type="CAUSAL_LM")
    model = get_peft_model(load_base(base_folder), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(parameter.to(torch.bfloat16).float())
                parameter.data = parameter.data.to(dtype)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    saved = json.loads(path.read_text())
    saved["base_model_name_or_path"] = "model"
    for key in ("target_modules", "exclude_modules"):  # PEFT keeps them as sets
        if isinstance(saved.get(key), list):
            saved[key].sort()
    saved.update(edits)
    path.write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")


def greedy(model, prompt):
    """Logits of the prompt, the tokens behind it and the smallest margin on the way."""
    with torch.no_grad():
        tokens = list(prompt)
        first = None
        margin = float("inf")
        for _ in range(GREEDY_TOKENS):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
            if first is None:
                first = logits.clone()
            best = logits[-1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            if margin < SMALLEST_MARGIN:
                return None
            tokens.append(int(best.indices[0]))
    return first, tokens[len(prompt):], margin


def draw_prompt(models, length, generator):
    """A prompt on whose greedy paths no case comes close to a tie, and what each makes of it."""
    for _ in range(200):
        prompt = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
        results = {}
        for case, model in models.items():
            result = greedy(model, prompt)
            if result is None:
                break
            results[case] = result
        else:
            return prompt, results
    raise SystemExit("no prompt without close ties; choose another seed")


def make_family(family, seed):
    folder = ROOT / family
    shutil.rmtree(folder, ignore_errors=True)
    make_model(family, folder / "model", seed)
    models = {"base": load_base(folder / "model")}
    for number, (name, (settings, dtype, edits)) in enumerate(ADAPTERS[family].items()):
        make_adapter(folder / "model", folder / name, settings, dtype, edits, seed + 1 + number)
        models[name] = PeftModel.from_pretrained(load_base(folder / "model"), folder / name,
                                                 autocast_adapter_dtype=True).eval()
        for parameter in models[name].parameters():
            parameter.data = parameter.data.float()
    generator = torch.Generator().manual_seed(seed)
    prompts = []
    cases = {case: {"greedy": [], "smallest_margin": []} for case in models}
    logits = {}
    for index, length in enumerate(PROMPT_LENGTHS):
        prompt, results = draw_prompt(models, length, generator)
        prompts.append(prompt)
        for case, (all_logits, tokens, margin) in results.items():
            logits[f"{case}.{index}.last"] = all_logits[-1].clone()
            if index == ALL_POSITIONS:
                logits[f"{case}.{index}.all"] = all_logits.contiguous()
            cases[case]["greedy"].append(tokens)
            cases[case]["smallest_margin"].append(round(margin, 6))
    for case in cases:
        if case != "base" and cases[case]["greedy"] == cases["base"]["greedy"]:
            raise SystemExit(f"{family}/{case} changes no token")
    save_file(logits, folder / "expected.safetensors")
    with open(folder / "expected.json", "w", encoding="utf-8") as file:
        file.write(json.dumps({"prompts": prompts, "cases": cases}) + "\n")
    spread = {case: round(float(logits[f"{case}.2.all"].std()), 2) for case in cases}
    print(family, "logits' deviations:", spread)


# The head size and rotary settings of Llama 2 and 3.1, Qwen2.5, and two odd ones.
ROPES = [
    (128, dict(rope_type="default", rope_theta=10000.0)),
    (128, dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
               high_freq_factor=4.0, original_max_position_embeddings=8192)),
    (128, dict(rope_type="default", rope_theta=1000000.0)),
    (96, dict(rope_type="default", rope_theta=10000.0)),
    (64, dict(rope_type="linear", rope_theta=10000.0, factor=2.5)),
]


def make_ropes():
    rows = []
    for head_dim, rope in ROPES:
        config = LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4,
                             max_position_embeddings=131072, rope_parameters=dict(rope))
        frequencies = LlamaRotaryEmbedding(config).inv_freq.tolist()
        rows.append(dict(head_dim=head_dim, rope=rope, frequencies=frequencies))
    text = ",\n".join(json.dumps(row) for row in rows)
    (ROOT.parent / "rope_frequencies.json").write_text(f"[{text}]\n", encoding="utf-8")


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    make_ropes()
    for number, family in enumerate(MODELS):
        make_family(family, 1000 * (number + 1))


if __name__ == "__main__":
    main()
