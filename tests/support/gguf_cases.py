"""Settings of small models that GGUF files contain."""

import json
import struct
from collections.abc import Callable
from typing import Any

import gguf
import torch
from random_weights import draw
from sentencepiece_files import CORPUS, texts
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 64,
    "n_positions": 48,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
}
LLAMA_SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
}
NEOX = {**LLAMA_SIZES, "model_type": "gpt_neox"}
NEOX.pop("num_key_value_heads")
GEMMA = {**LLAMA_SIZES, "head_dim": 24, "tie_word_embeddings": True}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 12,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CASES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2-untied": {**GPT2, "tie_word_embeddings": False, "n_inner": 96, "layer_norm_epsilon": 0.01},
    "llama": {**LLAMA_SIZES, "model_type": "llama"},
    "llama-tied": {**LLAMA_SIZES, "model_type": "llama", "tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama-biases": {**LLAMA_SIZES, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-head-dim": {**LLAMA_SIZES, "model_type": "llama", "head_dim": 24, "rope_parameters": YARN},
    "llama3": {**LLAMA_SIZES, "model_type": "llama", "rope_parameters": LLAMA3, "head_dim": 32},
    "llama-linear": {**LLAMA_SIZES, "model_type": "llama",
                     "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}},
    "qwen2": {**LLAMA_SIZES, "model_type": "qwen2", "rms_norm_eps": 1e-5},
    "qwen3": {**LLAMA_SIZES, "model_type": "qwen3", "head_dim": 24, "rope_parameters": {"rope_type": "default",
              "rope_theta": 1e6}, "tie_word_embeddings": True},
    "qwen3-bias": {**LLAMA_SIZES, "model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "gemma": {**GEMMA, "model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"},
    "gemma2": {**GEMMA, "model_type": "gemma2", "query_pre_attn_scalar": 24, "sliding_window": 8},
    "gemma3": {**GEMMA, "model_type": "gemma3_text", "query_pre_attn_scalar": 24, "sliding_window": 8,
               "num_hidden_layers": 7},
    "phi": {**LLAMA_SIZES, "model_type": "phi"},
    "phi-all": {**LLAMA_SIZES, "model_type": "phi", "num_key_value_heads": 4, "partial_rotary_factor": 1.0,
                "layer_norm_eps": 0.1},
    "gpt_neox": NEOX,
    "gpt_neox-in-turn": {**NEOX, "use_parallel_residual": False, "rotary_pct": 1.0, "attention_bias": False},
    "gpt_neox-tied": {**NEOX, "rotary_pct": 0.5, "tie_word_embeddings": True, "layer_norm_eps": 0.1},
}  # fmt: skip

# Experts are as wide as llama.cpp's blocks of 32; all are selected, or another choice would exceed
# rounding.
EXPERTS = {**LLAMA_SIZES, "num_local_experts": 3, "num_experts_per_tok": 3}
CASES |= {
    "mixtral": {**EXPERTS, "model_type": "mixtral"},
    "qwen3_moe": {
        **EXPERTS,
        "model_type": "qwen3_moe",
        "head_dim": 24,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "olmoe": {**EXPERTS, "model_type": "olmoe", "num_experts_per_tok": 2},
}

IDS = torch.arange(40).unsqueeze(0) * 7 % 64


def reference(name: str) -> Any:
    """A transformers model with large random weights."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CASES[name])).eval()
    draw(model)
    return model


BYTES = pre_tokenizers.ByteLevel
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            BYTES(add_prefix_space=False, use_regex=False),
        ]
    )


# tokenizer.ggml.pre -> the words, the normalizer, and whether words are left whole, as in published
# tokenizer.json.
WORDS: dict[str, tuple[Any, Any, bool]] = {
    "gpt-2": (BYTES(add_prefix_space=False), None, False),
    "olmo": (BYTES(add_prefix_space=False), normalizers.NFC(), False),
    "falcon": (
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Punctuation("contiguous"),
                BYTES(add_prefix_space=False),
                pre_tokenizers.Digits(individual_digits=False),
                pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
            ]
        ),
        None,
        False,
    ),
    "smollm": (
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), BYTES(add_prefix_space=False)]
        ),
        None,
        False,
    ),
    "llama-bpe": (split_by(LLAMA3_WORDS), None, True),
    "dbrx": (split_by(LLAMA3_WORDS), None, False),
    "qwen2": (split_by(LLAMA3_WORDS.replace("{1,3}", "")), normalizers.NFC(), False),
    "gpt-4o": (split_by(GPT4O_WORDS), None, True),
}


def trained(pre: str) -> Tokenizer:
    """A byte-level BPE with special tokens, and an added token that is not special."""
    words, normalizer, whole = WORDS[pre]
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    tokenizer.pre_tokenizer, tokenizer.decoder = words, decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=BYTES.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts(200)), trainer)
    tokenizer.add_tokens(["<x>"])
    return tokenizer


def character_bpe() -> Tokenizer:
    """A BPE of characters in the form of Gemma 4's tokenizer.json."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    # the normalizer leaves none
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*CORPUS, *4 * ["\n\n\n", "\n\n"]], trainer)
    tokenizer = Tokenizer.from_str(
        json.dumps({**json.loads(tokenizer.to_str()), "added_tokens": []})
    )
    tokenizer.add_special_tokens(special[:4])
    tokenizer.add_tokens(["<|tool_call>"])
    return tokenizer


def add_bpe(writer: gguf.GGUFWriter, tokenizer: Tokenizer, pre: str | None) -> None:
    saved = json.loads(tokenizer.to_str())
    ids = {id: token for token, id in tokenizer.get_vocab().items()}
    special = {token["content"]: 3 if token["special"] else 4 for token in saved["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([ids[id] for id in range(len(ids))])
    writer.add_token_types([special.get(ids[id], 1) for id in range(len(ids))])
    writer.add_token_merges([" ".join(pair) for pair in saved["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)


TEMPLATE = "{{ messages[0]['content'] }}"


def chatty(writer: gguf.GGUFWriter) -> None:
    add_bpe(writer, trained("smollm"), "smollm")
    writer.add_chat_template(TEMPLATE)
    writer.add_uint32("tokenizer.ggml.eot_token_id", 5)


def change(key: str, value: Any, kind: str = "uint32") -> Callable[[gguf.GGUFWriter], None]:
    def apply(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        getattr(writer, f"add_{kind}")(key, value)

    return apply


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def info(name: str, shape: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
