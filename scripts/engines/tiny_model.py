"""A Llama of half a million parameters, made of chance: what does a real engine serve where nothing may be fetched?

    python tiny_model.py FOLDER FILE.gguf [ADAPTER ...]

FOLDER gets what vLLM loads (settings, tokenizer, weights), FILE the same weights for llama.cpp, and each ADAPTER is a
folder that gets a LoRA adapter of its own for it, strong enough to make other words. Its answers are word
salad; what counts is that they end at `max_tokens` and not by chance. For that, the rows of the special tokens in the
output head are zero, so that their logit never wins; and the head is wide, so that greedy winners are clear ones.
Run with vLLM's Python; needs numpy, tokenizers, safetensors, gguf.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 1024
WIDTH = 128
INNER = 256
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD = WIDTH // HEADS  # vLLM's attention on CPUs wants a multiple of 32
CONTEXT = 32768
ROPE_BASE = 10000.0
NORM_EPSILON = 1e-5
TRAINING_FILES_MAX = 120
BOS, START, END, PAD = SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Name in a folder of weights (of a layer: after its prefix), name in GGUF, rows, columns.
LAYER = [
    ("self_attn.q_proj", "attn_q", HEADS * HEAD, WIDTH),
    ("self_attn.k_proj", "attn_k", KV_HEADS * HEAD, WIDTH),
    ("self_attn.v_proj", "attn_v", KV_HEADS * HEAD, WIDTH),
    ("self_attn.o_proj", "attn_output", WIDTH, HEADS * HEAD),
    ("mlp.gate_proj", "ffn_gate", INNER, WIDTH),
    ("mlp.up_proj", "ffn_up", INNER, WIDTH),
    ("mlp.down_proj", "ffn_down", WIDTH, INNER),
]
NORMS = [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")]
ADAPTED = ("q_proj", "v_proj")
RANK = 8  # of an adapter
ROTATED = {"attn_q": HEADS, "attn_k": KV_HEADS}


def texts() -> Iterator[str]:
    """Text that every machine has: Python's own library."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(library.glob("*.py"))[:TRAINING_FILES_MAX]:
        yield file.read_text("utf-8", "ignore")


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def make_weights(special: list[int]) -> dict[str, Any]:
    """By the names of a folder of weights; the same on every run."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int, scale: float) -> Any:
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    ones = np.ones(WIDTH, np.float32)
    weights = {"model.embed_tokens.weight": matrix(VOCABULARY, WIDTH, 1.0), "model.norm.weight": ones}
    weights["lm_head.weight"] = matrix(VOCABULARY, WIDTH, 0.5)
    weights["lm_head.weight"][special] = 0.0
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {f"{prefix}{name}.weight": ones for name, _ in NORMS}
        weights |= {f"{prefix}{name}.weight": matrix(rows, cols, cols**-0.5) for name, _, rows, cols in LAYER}
    return weights


def write_folder(folder: Path, tokenizer: Tokenizer, weights: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    bos, end, pad = (tokenizer.token_to_id(token) for token in (BOS, END, PAD))
    ids = {"bos_token_id": bos, "eos_token_id": end, "pad_token_id": pad}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "head_dim": HEAD,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rope_theta": ROPE_BASE, "rms_norm_eps": NORM_EPSILON,
        "tie_word_embeddings": False, "torch_dtype": "float32", **ids,
    }  # fmt: skip
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "chat_template": TEMPLATE}
    names = {"bos_token": BOS, "eos_token": END, "pad_token": PAD, "add_bos_token": False}
    for file, value in (
        ("config.json", config), ("generation_config.json", ids), ("tokenizer_config.json", told | names)
    ):  # fmt: skip
        (folder / file).write_text(json.dumps(value, indent=1))
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def write_adapter(folder: Path, seed: int) -> None:
    """A LoRA adapter in the form of PEFT: the update of each adapted matrix is (alpha / rank) B A."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(LAYERS):
        for name, _, rows, columns in LAYER:
            if name.endswith(ADAPTED):
                prefix = f"base_model.model.model.layers.{layer}.{name}"
                weights[f"{prefix}.lora_A.weight"] = random.standard_normal((RANK, columns)).astype(np.float32)
                weights[f"{prefix}.lora_B.weight"] = random.standard_normal((rows, RANK)).astype(np.float32)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny-llama", "bias": "none",
        "r": RANK, "lora_alpha": RANK, "lora_dropout": 0.0, "target_modules": list(ADAPTED),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))
    save_file(weights, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})


def write_gguf(file: Path, tokenizer: Tokenizer, weights: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny-llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer, tokenizer)
    for ours, theirs in (
        ("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")
    ):  # fmt: skip
        writer.add_tensor(f"{theirs}.weight", weights[f"{ours}.weight"])
    for layer in range(LAYERS):
        for ours, theirs in [*NORMS, *((name, other) for name, other, _, _ in LAYER)]:
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ROTATED:  # llama.cpp wants the two halves of a head's rotation interleaved
                heads = weight.reshape(ROTATED[theirs], 2, HEAD // 2, WIDTH)
                weight = np.ascontiguousarray(heads.swapaxes(1, 2).reshape(weight.shape))
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, tokenizer: Tokenizer) -> None:
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    tokens = [by_id[number] for number in range(VOCABULARY)]
    types = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([types.CONTROL if token in SPECIAL else types.NORMAL for token in tokens])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(tokenizer.token_to_id(BOS))
    writer.add_eos_token_id(tokenizer.token_to_id(END))
    writer.add_pad_token_id(tokenizer.token_to_id(PAD))
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(TEMPLATE)


def main() -> None:
    folder, file, *adapters = map(Path, sys.argv[1:])
    tokenizer = train()
    weights = make_weights([tokenizer.token_to_id(token) for token in SPECIAL])
    write_folder(folder, tokenizer, weights)
    write_gguf(file, tokenizer, weights)
    for seed, adapter in enumerate(adapters, 1):
        write_adapter(adapter, seed)


if __name__ == "__main__":
    main()
