"""Settings of published checkpoints, as data: the sizes that are known without the network.

Each dict maps a repository, or its name if all belong to one owner, to the settings that differ
from the defaults of the architecture's config.
"""

from typing import Any

Sizes = dict[str, dict[str, object]]
# fmt: off

GPT2: Sizes = {
    "gpt2": {},
    "gpt2-medium": {"n_layer": 24, "n_head": 16, "n_embd": 1024},
    "gpt2-large": {"n_layer": 36, "n_head": 20, "n_embd": 1280},
    "gpt2-xl": {"n_layer": 48, "n_head": 25, "n_embd": 1600},
}
OPENAIGPT: Sizes = {"openai-gpt": {}}
GPTNEO: Sizes = {
    "gpt-neo-125m": {"num_layers": 12, "num_heads": 12, "hidden_size": 768},
    "gpt-neo-1.3B": {},
    "gpt-neo-2.7B": {"num_layers": 32, "num_heads": 20, "hidden_size": 2560},
}
_STARCODER = {"n_positions": 8192, "vocab_size": 49152, "bos_token_id": 0, "eos_token_id": 0}
GPTBIGCODE: Sizes = {
    "gpt_bigcode-santacoder": {"n_embd": 2048, "n_layer": 24, "n_head": 16, "n_positions": 2048, "vocab_size": 49280,
                               "bos_token_id": 49152, "eos_token_id": 49152},
    "starcoderbase-1b": {"n_embd": 2048, "n_layer": 24, "n_head": 16, **_STARCODER},
    "starcoderbase": {"n_embd": 6144, "n_layer": 40, "n_head": 48, **_STARCODER},
    "starcoder": {"n_embd": 6144, "n_layer": 40, "n_head": 48, **_STARCODER},
}


def _pythia(C: int, layers: int, heads: int, vocab_size: int = 50304) -> dict[str, object]:
    return {"hidden_size": C, "intermediate_size": 4 * C, "num_hidden_layers": layers, "num_attention_heads": heads,
            "vocab_size": vocab_size, "eos_token_id": 0}


GPTNEOX: Sizes = {
    "pythia-14m": _pythia(128, 6, 4),
    "pythia-70m": _pythia(512, 6, 8),
    "pythia-160m": _pythia(768, 12, 12),
    "pythia-410m": _pythia(1024, 24, 16),
    "pythia-1b": _pythia(2048, 16, 8),
    "pythia-1.4b": _pythia(2048, 24, 16),
    "pythia-2.8b": _pythia(2560, 32, 32),
    "pythia-6.9b": _pythia(4096, 32, 32, 50432),
    "pythia-12b": _pythia(5120, 36, 40, 50688),
    "gpt-neox-20b": {"hidden_act": "gelu_new", "eos_token_id": 0},
}
GPTJ: Sizes = {"gpt-j-6b": {}}
_PHI: dict[str, object] = {"bos_token_id": 50256, "eos_token_id": 50256}
PHI: Sizes = {
    "phi-1": _PHI,
    "phi-1_5": _PHI,
    "phi-2": {**_PHI, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32, "resid_pdrop": 0.1,
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.4}},
}


def _opt(C: int, layers: int, heads: int, **settings: object) -> dict[str, object]:
    return {"hidden_size": C, "ffn_dim": 4 * C, "num_hidden_layers": layers, "num_attention_heads": heads, **settings}


OPT: Sizes = {
    "opt-125m": _opt(768, 12, 12),
    "opt-350m": _opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-2.7b": _opt(2560, 32, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-30b": _opt(7168, 48, 56),
    "opt-66b": _opt(9216, 64, 72),
}


def llama(C: int, inner: int, layers: int, heads: int, kv_heads: int, **settings: object) -> dict[str, object]:
    return {"hidden_size": C, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, **settings}


def rope(theta: float, **settings: object) -> dict[str, object]:
    return {"rope_type": "default", "rope_theta": theta, **settings}


_SMOL = {"vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
         "bos_token_id": 0, "eos_token_id": 0}
_LLAMA3 = {"vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "head_dim": 128,
           "bos_token_id": 128000, "eos_token_id": 128001}
WAVES = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_QWEN = {"bos_token_id": 151643, "eos_token_id": 151643, "rope_parameters": rope(1e6), "tie_word_embeddings": True}
_QWEN25, _QWEN3 = {"model_type": "qwen2", **_QWEN}, {"model_type": "qwen3", **_QWEN}
LLAMA: Sizes = {
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": llama(2048, 5632, 22, 32, 4, rms_norm_eps=1e-5),
    "HuggingFaceTB/SmolLM2-135M": llama(576, 1536, 30, 9, 3, **_SMOL, rope_parameters=rope(1e5)),
    "HuggingFaceTB/SmolLM2-360M": llama(960, 2560, 32, 15, 5, **_SMOL, rope_parameters=rope(1e5)),
    "HuggingFaceTB/SmolLM2-1.7B": llama(2048, 8192, 24, 32, 32, **_SMOL, rope_parameters=rope(1.3e5)),
    "meta-llama/Llama-3.2-1B": llama(2048, 8192, 16, 32, 8, **{**_LLAMA3, "head_dim": 64}, tie_word_embeddings=True,
                                     rope_parameters=rope(5e5, **WAVES, rope_type="llama3", factor=32.0)),
    "meta-llama/Llama-3.2-3B": llama(3072, 8192, 28, 24, 8, **_LLAMA3, tie_word_embeddings=True,
                                     rope_parameters=rope(5e5, **WAVES, rope_type="llama3", factor=32.0)),
    "meta-llama/Llama-3.1-8B": llama(4096, 14336, 32, 32, 8, **_LLAMA3,
                                     rope_parameters=rope(5e5, **WAVES, rope_type="llama3", factor=8.0)),
    "mistralai/Mistral-7B-v0.1": {"model_type": "mistral", "max_position_embeddings": 32768, "rms_norm_eps": 1e-5},
    "mistralai/Mistral-7B-v0.3": {"model_type": "mistral", "vocab_size": 32768, "max_position_embeddings": 32768,
                                  "rms_norm_eps": 1e-5, "sliding_window": None, "rope_parameters": rope(1e6)},
    "Qwen/Qwen2.5-0.5B": llama(896, 4864, 24, 14, 2, **_QWEN25),
    "Qwen/Qwen2.5-1.5B": llama(1536, 8960, 28, 12, 2, **_QWEN25, max_position_embeddings=131072),
    "Qwen/Qwen2.5-7B": llama(3584, 18944, 28, 28, 4, **{**_QWEN25, "tie_word_embeddings": False}, vocab_size=152064,
                             max_position_embeddings=131072),
    "Qwen/Qwen3-0.6B-Base": llama(1024, 3072, 28, 16, 8, **_QWEN3),
    "Qwen/Qwen3-1.7B-Base": llama(2048, 6144, 28, 16, 8, **_QWEN3),
    "Qwen/Qwen3-4B-Base": llama(2560, 9728, 36, 32, 8, **_QWEN3),
    "Qwen/Qwen3-8B-Base": llama(4096, 12288, 36, 32, 8, **{**_QWEN3, "tie_word_embeddings": False}),
}
_GEMMA2 = {"model_type": "gemma2"}
_GEMMA3 = {"model_type": "gemma3_text", "sliding_window": 512, "vocab_size": 262144, "max_position_embeddings": 32768}
_GEMMA3_LARGE = {"model_type": "gemma3_text", "sliding_window": 1024,
                 "rope_parameters": {"full_attention": rope(1e6, rope_type="linear", factor=8.0)}}
GEMMA: Sizes = {
    "gemma-2b": llama(2048, 16384, 18, 8, 1),
    "gemma-7b": {},
    "gemma-2-2b": llama(2304, 9216, 26, 8, 4, **_GEMMA2),
    "gemma-2-9b": llama(3584, 14336, 42, 16, 8, **_GEMMA2),
    "gemma-2-27b": llama(4608, 36864, 46, 32, 16, **_GEMMA2, head_dim=128, query_pre_attn_scalar=144),
    "gemma-3-270m": llama(640, 2048, 18, 4, 1, **_GEMMA3),
    "gemma-3-1b-pt": llama(1152, 6912, 26, 4, 1, **_GEMMA3),
    "gemma-3-4b-pt": llama(2560, 10240, 34, 8, 4, **_GEMMA3_LARGE),
    "gemma-3-12b-pt": llama(3840, 15360, 48, 16, 8, **_GEMMA3_LARGE),
    "gemma-3-27b-pt": llama(5376, 21504, 62, 32, 16, **_GEMMA3_LARGE, head_dim=128, query_pre_attn_scalar=168),
}
_GEMMA4 = {"final_logit_softcapping": 30.0, "eos_token_id": [1, 106]}
_GEMMA4_DENSE = {"num_global_key_value_heads": 4, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
                 "sliding_window": 1024, "max_position_embeddings": 262144}
GEMMA4: Sizes = {
    "gemma-4-E2B": llama(1536, 6144, 35, 8, 1, **_GEMMA4, num_kv_shared_layers=20, use_double_wide_mlp=True,
                         layer_types=[*["sliding_attention"] * 4, "full_attention"] * 7),
    "gemma-4-E4B": llama(2560, 10240, 42, 8, 2, **_GEMMA4, num_kv_shared_layers=18),
    "gemma-4-26B-A4B": llama(
        2816, 2112, 30, 16, 8, **_GEMMA4, **_GEMMA4_DENSE | {"num_global_key_value_heads": 2}, enable_moe_block=True,
        num_experts=128, top_k_experts=8, moe_intermediate_size=704,
    ),
    "gemma-4-31B": llama(5376, 21504, 60, 32, 16, **_GEMMA4, **_GEMMA4_DENSE),
}
_LLAMA4: dict[str, object] = {"bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008], "pad_token_id": 200018}
LLAMA4: Sizes = {
    "Llama-4-Scout-17B-16E": {
        **_LLAMA4, "max_position_embeddings": 2**18,
        "rope_parameters": rope(5e5, rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0,
                                original_max_position_embeddings=8192),
    },
    "Llama-4-Maverick-17B-128E": {
        **_LLAMA4, "max_position_embeddings": 2**18, "num_experts": 128, "interleave_moe_layer_step": 2,
        "use_qk_norm": False,
    },
}
_MXFP4 = {
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"
        ],
        "quant_method": "mxfp4",
    },
    "eos_token_id": 200002,
    "pad_token_id": 199999,
}
GPTOSS: Sizes = {"gpt-oss-20b": {"num_hidden_layers": 24, "num_local_experts": 32, **_MXFP4}, "gpt-oss-120b": _MXFP4}
BLOOM: Sizes = {
    name: {"hidden_size": C, "num_hidden_layers": layers, "num_attention_heads": heads}
    for name, C, layers, heads in (
        ("bloom-560m", 1024, 24, 16), ("bloom-1b1", 1536, 24, 16), ("bloom-1b7", 2048, 24, 16),
        ("bloom-3b", 2560, 30, 32), ("bloom-7b1", 4096, 30, 32),
    )
}
FALCON: Sizes = {
    "falcon-rw-1b": {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "vocab_size": 50304,
                     "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True,
                     "bos_token_id": 1, "eos_token_id": 2},
    "falcon-7b": {},
    "falcon-11B": {"hidden_size": 4096, "num_hidden_layers": 60, "num_attention_heads": 32, "num_kv_heads": 8,
                   "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False,
                   "max_position_embeddings": 8192, "rope_parameters": rope(500042.0)},
    "falcon-40b": {"hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8,
                   "new_decoder_architecture": True},
}
OLMO: Sizes = {
    "OLMo-1B-hf": llama(2048, 8192, 16, 16, 16, tie_word_embeddings=True),
    "OLMo-7B-hf": {},
    "OLMo-1.7-7B-hf": {"max_position_embeddings": 4096, "clip_qkv": 8.0},
}
MPT: Sizes = {
    "mpt-7b": {"d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432},
    "mpt-30b": {"d_model": 7168, "n_layers": 48, "n_heads": 64, "vocab_size": 50432, "max_seq_len": 8192},
}
APERTUS: Sizes = {"Apertus-8B-2509": {"intermediate_size": 21504, "num_key_value_heads": 8}}
XGLM: Sizes = {
    "xglm-564M": {},
    "xglm-1.7B": {"hidden_size": 2048, "intermediate_size": 8192},
    "xglm-2.9B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 48},
    "xglm-7.5B": {"hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32, "num_attention_heads": 32},
}


def _qwen35(C: int, inner: int, layers: int, heads: int, kv_heads: int, values: int, tied: bool) -> dict[str, object]:
    rotary = {**rope(1e7), "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10], "mrope_interleaved": True}
    return llama(C, inner, layers, heads, kv_heads, linear_num_value_heads=values, max_position_embeddings=262144,
                 tie_word_embeddings=tied, eos_token_id=248044, rope_parameters=rotary)


QWEN35: Sizes = {
    "Qwen3.5-0.8B": _qwen35(1024, 3584, 24, 8, 2, 16, True),
    "Qwen3.5-2B": _qwen35(2048, 6144, 24, 8, 2, 16, True),
    "Qwen3.5-4B": _qwen35(2560, 9216, 32, 16, 4, 32, True),
    "Qwen3.5-9B": _qwen35(4096, 12288, 32, 16, 4, 32, False),
    "Qwen3.5-27B": _qwen35(5120, 17408, 64, 24, 4, 48, False),
}


def _t5(C: int, inner: int, layers: int, heads: int, D: int = 64, **settings: object) -> dict[str, object]:
    return {"d_model": C, "d_ff": inner, "num_layers": layers, "num_heads": heads, "d_kv": D, **settings}


def _t5_1_1(C: int, inner: int, layers: int, heads: int) -> dict[str, object]:
    return _t5(C, inner, layers, heads, feed_forward_proj="gated-gelu", tie_word_embeddings=False)


T5: Sizes = {
    "google-t5/t5-small": _t5(512, 2048, 6, 8),
    "google-t5/t5-base": _t5(768, 3072, 12, 12),
    "google-t5/t5-large": _t5(1024, 4096, 24, 16),
    "google-t5/t5-3b": _t5(1024, 16384, 24, 32, 128),
    "google-t5/t5-11b": _t5(1024, 65536, 24, 128, 128),
    **{
        f"google/{name}-{size}": _t5_1_1(*shape)
        for name in ("t5-v1_1", "flan-t5")
        for size, shape in {
            "small": (512, 1024, 8, 6),
            "base": (768, 2048, 12, 12),
            "large": (1024, 2816, 24, 16),
            "xl": (2048, 5120, 24, 32),
            "xxl": (4096, 10240, 24, 64),
        }.items()
    },
}


def _bart(kind: str, C: int, inner: int, layers: int, **settings: object) -> dict[str, object]:
    return {"model_type": kind, "d_model": C,
            **{f"{side}_{name}": value for side in ("encoder", "decoder")
               for name, value in (("layers", layers), ("ffn_dim", inner), ("attention_heads", C // 64))}, **settings}


_MBART: dict[str, object] = {"scale_embedding": True}
_PEGASUS: dict[str, object] = {"vocab_size": 96103, "activation_function": "relu", "scale_embedding": True}
_NLLB: dict[str, object] = {"vocab_size": 256206}
BART: Sizes = {
    "facebook/bart-base": _bart("bart", 768, 3072, 6, attention_dropout=0.1, activation_dropout=0.1),
    "facebook/bart-large": _bart("bart", 1024, 4096, 12, attention_dropout=0.1, activation_dropout=0.1),
    "facebook/bart-large-cnn": _bart("bart", 1024, 4096, 12, vocab_size=50264, forced_bos_token_id=0),
    "facebook/bart-large-xsum": _bart("bart", 1024, 4096, 12, vocab_size=50264),
    "uclanlp/plbart-base": _bart("plbart", 768, 3072, 6),
    "facebook/mbart-large-cc25": _bart("mbart", 1024, 4096, 12, vocab_size=250027, **_MBART),
    "facebook/mbart-large-50": _bart("mbart", 1024, 4096, 12, vocab_size=250054, decoder_start_token_id=2, **_MBART),
    "facebook/mbart-large-50-many-to-many-mmt": _bart("mbart", 1024, 4096, 12, vocab_size=250054,
                                                      decoder_start_token_id=2, activation_function="relu", **_MBART),
    "google/pegasus-large": _bart("pegasus", 1024, 4096, 16, **_PEGASUS),
    "google/pegasus-xsum": _bart("pegasus", 1024, 4096, 16, max_position_embeddings=512, **_PEGASUS),
    "Helsinki-NLP/opus-mt-en-de": _bart("marian", 512, 2048, 6, vocab_size=58101, max_position_embeddings=512,
                                        activation_function="swish", scale_embedding=True,
                                        bad_words_ids=[[58100]]),
    "facebook/m2m100_418M": _bart("m2m_100", 1024, 4096, 12),
    "facebook/m2m100_1.2B": _bart("m2m_100", 1024, 8192, 24),
    "facebook/nllb-200-distilled-600M": _bart("m2m_100", 1024, 4096, 12, **_NLLB),
    "facebook/nllb-200-distilled-1.3B": _bart("m2m_100", 1024, 8192, 24, **_NLLB),
    "facebook/nllb-200-1.3B": _bart("m2m_100", 1024, 8192, 24, **_NLLB),
    "facebook/nllb-200-3.3B": _bart("m2m_100", 2048, 8192, 24, encoder_attention_heads=16, decoder_attention_heads=16,
                                    **_NLLB),
}


_QWEN3MOE = {"model_type": "qwen3_moe", "num_hidden_layers": 48, "head_dim": 128, "norm_topk_prob": True,
             "bos_token_id": 151643, "eos_token_id": 151645}
QWEN35MOE: Sizes = {"Qwen3.5-35B-A3B": {"model_type": "qwen3_5_moe_text", "max_position_embeddings": 2**18,
                                        "rope_parameters": rope(1e7, partial_rotary_factor=0.25)}}
QWEN3NEXT: Sizes = {"Qwen3-Next-80B-A3B-Instruct": {"model_type": "qwen3_next", "max_position_embeddings": 2**18,
                                                    "rope_parameters": rope(1e7, partial_rotary_factor=0.25),
                                                    "bos_token_id": 151643, "eos_token_id": 151645}}
_LFM2 = {"num_hidden_layers": 16, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "eos_token_id": 7}
LFM2: Sizes = {
    "LFM2-350M": {**_LFM2, "hidden_size": 1024, "intermediate_size": 6656, "num_attention_heads": 16},
    "LFM2-700M": {**_LFM2, "hidden_size": 1536, "intermediate_size": 10240, "num_attention_heads": 24},
    "LFM2-1.2B": {**_LFM2, "hidden_size": 2048, "intermediate_size": 12288},
}
LFM2MOE: Sizes = {
    "LFM2-8B-A1B": {
        "model_type": "lfm2_moe", "num_hidden_layers": 24, "eos_token_id": 7,
        "layer_types": ["full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)],
    },
}
MAMBA: Sizes = {
    f"state-spaces/mamba-{size}-hf": {"hidden_size": C, "num_hidden_layers": layers}
    for size, (C, layers) in {"130m": (768, 24), "370m": (1024, 48), "790m": (1536, 48), "1.4b": (2048, 48),
                              "2.8b": (2560, 64)}.items()
}
MAMBA2: Sizes = {
    **{
        f"AntonV/mamba2-{size}-hf": {
            "model_type": "mamba2", "vocab_size": 50288, "hidden_size": C, "num_hidden_layers": layers,
            "n_groups": 1, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
        }
        for size, (C, layers) in {"130m": (768, 24), "370m": (1024, 48), "780m": (1536, 48), "1.3b": (2048, 48),
                                  "2.7b": (2560, 64)}.items()
    },
    "mistralai/Mamba-Codestral-7B-v0.1": {"model_type": "mamba2"},
}
FALCONMAMBA: Sizes = {
    "tiiuae/falcon-mamba-7b": {
        "model_type": "falcon_mamba", "vocab_size": 65024, "hidden_size": 4096, "num_hidden_layers": 64,
        "tie_word_embeddings": False, "eos_token_id": 11, "pad_token_id": 11,
    },
}
RWKV: Sizes = {
    f"rwkv-4-{size}-pile": {"hidden_size": C, "num_hidden_layers": layers}
    for size, (C, layers) in {"169m": (768, 12), "430m": (1024, 24), "1b5": (2048, 24), "3b": (2560, 32),
                              "7b": (4096, 32), "14b": (5120, 40)}.items()
}
BAMBA: Sizes = {
    "ibm-ai-platform/Bamba-9B-v1": {
        "vocab_size": 128256, "mamba_d_state": 128, "attn_layer_indices": [9, 18, 27], "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
}
FALCONH1: Sizes = {
    "Falcon-H1-0.5B-Base": {
        "vocab_size": 32784, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 36,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 16384,
        "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_state": 128, "mamba_norm_before_gate": False,
        "embedding_multiplier": 5.656854249492381, "lm_head_multiplier": 0.0390625,
        "mlp_multipliers": [0.8838834764831844, 0.5859375], "key_multiplier": 0.39062499999999994,
        "attention_out_multiplier": 0.9375, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.23570226039551587,
        "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
        "rope_parameters": {"rope_theta": 1e11}, "eos_token_id": 11,
    },
}
_NEMOTRONH = {"max_position_embeddings": 8192, "eos_token_id": 3}
NEMOTRONH: Sizes = {
    "Nemotron-H-8B-Base-8K": {
        **_NEMOTRONH, "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    },
    "NVIDIA-Nemotron-Nano-9B-v2": {
        "hidden_size": 4480, "intermediate_size": 15680, "num_attention_heads": 40, "mamba_head_dim": 80,
        "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        "max_position_embeddings": 2**17, "eos_token_id": 12,
    },
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {
        "hidden_size": 2688, "intermediate_size": 1856, "num_key_value_heads": 2, "mamba_num_heads": 64,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712, "routed_scaling_factor": 2.5, "max_position_embeddings": 2**18,
    },
}
JAMBA: Sizes = {"Jamba-v0.1": {}}
MIXTRAL: Sizes = {
    "mistralai/Mixtral-8x7B-v0.1": {"max_position_embeddings": 2**15},
    "mistralai/Mixtral-8x22B-v0.1": {"hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56,
                                     "num_attention_heads": 48, "max_position_embeddings": 2**16},
}
OLMOE: Sizes = {"allenai/OLMoE-1B-7B-0924": {"model_type": "olmoe", "intermediate_size": 1024}}
GRANITEMOE: Sizes = {
    "ibm-granite/granite-3.0-1b-a400m-base": {
        "model_type": "granitemoe", "vocab_size": 49155, "hidden_size": 1024, "intermediate_size": 512,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8, "num_experts": 32,
        "num_experts_per_tok": 8, "max_position_embeddings": 4096, "tie_word_embeddings": True,
        "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "logits_scaling": 6.0, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    },
}
QWEN2MOE: Sizes = {
    "Qwen/Qwen1.5-MoE-A2.7B": {"model_type": "qwen2_moe", "max_position_embeddings": 8192, "bos_token_id": 151643,
                               "eos_token_id": 151643, "rope_parameters": {"rope_theta": 1e6}},
}
QWEN3MOE: Sizes = {
    "Qwen/Qwen3-30B-A3B": {**_QWEN3MOE, "max_position_embeddings": 40960, "rope_parameters": {"rope_theta": 1e6}},
}


def _encoder(C: int, layers: int, heads: int, head: str = "", **settings: object) -> dict[str, object]:
    """head: the class of the transformers model; none for a body without a head."""
    return {"hidden_size": C, "intermediate_size": 4 * C, "num_hidden_layers": layers, "num_attention_heads": heads,
            "architectures": [head] if head else None, **settings}


def _roberta(C: int, layers: int, heads: int, model_type: str, vocab_size: int) -> dict[str, object]:
    head = "RobertaForMaskedLM" if model_type == "roberta" else "XLMRobertaForMaskedLM"
    return _encoder(C, layers, heads, head, model_type=model_type, vocab_size=vocab_size, layer_norm_eps=1e-5,
                    max_position_embeddings=514, type_vocab_size=1)


BERT: Sizes = {
    "google-bert/bert-base-uncased": _encoder(768, 12, 12, "BertForMaskedLM"),
    "google-bert/bert-large-uncased": _encoder(1024, 24, 16, "BertForMaskedLM"),
    "sentence-transformers/all-MiniLM-L6-v2": _encoder(384, 6, 12),
}
ROBERTA: Sizes = {
    "FacebookAI/roberta-base": _roberta(768, 12, 12, "roberta", 50265),
    "FacebookAI/roberta-large": _roberta(1024, 24, 16, "roberta", 50265),
    "FacebookAI/xlm-roberta-base": _roberta(768, 12, 12, "xlm-roberta", 250002),
    "FacebookAI/xlm-roberta-large": _roberta(1024, 24, 16, "xlm-roberta", 250002),
}
DISTILBERT: Sizes = {
    "distilbert/distilbert-base-uncased": {
        "num_hidden_layers": 6, "model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"]
    },
}
ELECTRA: Sizes = {  # without the head, which detects replaced tokens
    "google/electra-small-discriminator": {"model_type": "electra"},
    "google/electra-base-discriminator": _encoder(768, 12, 12, model_type="electra", embedding_size=768),
}
ALBERT: Sizes = {
    f"albert-{size}-v2": _encoder(*shape, "AlbertForMaskedLM", model_type="albert")
    for size, shape in {
        "base": (768, 12, 12),
        "large": (1024, 24, 16),
        "xlarge": (2048, 24, 16),
        "xxlarge": (4096, 12, 64),
    }.items()
}
MPNET: Sizes = {
    "microsoft/mpnet-base": {"layer_norm_eps": 1e-5, "max_position_embeddings": 514,
                             "architectures": ["MPNetForMaskedLM"]},
    "sentence-transformers/all-mpnet-base-v2": {"layer_norm_eps": 1e-5, "max_position_embeddings": 514},
}
MODERNBERT: Sizes = {
    "ModernBERT-base": {"classifier_pooling": "mean", "architectures": ["ModernBertForMaskedLM"]},
    "ModernBERT-large": {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28,
                         "num_attention_heads": 16, "classifier_pooling": "mean",
                         "architectures": ["ModernBertForMaskedLM"]},
}


def _deberta(C: int, layers: int, heads: int, **settings: Any) -> dict[str, object]:
    """Without a head: the published ones detect replaced tokens, or are not trained."""
    settings = {"model_type": "deberta-v2", "pos_att_type": "p2c|c2p", **settings}
    return _encoder(C, layers, heads, relative_attention=True, position_biased_input=False, **settings)


_DEBERTA3 = {"position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True}
DEBERTA: Sizes = {
    f"deberta-{size}": _deberta(*shape, model_type="deberta", vocab_size=50265)
    for size, shape in {"base": (768, 12, 12), "large": (1024, 24, 16)}.items()
}
DEBERTAV2: Sizes = {
    "deberta-v2-xlarge": _deberta(1536, 24, 24, **_DEBERTA3, conv_kernel_size=3, conv_act="gelu"),
    "deberta-v3-xsmall": _deberta(384, 12, 6, **_DEBERTA3),
    "deberta-v3-small": _deberta(768, 6, 12, **_DEBERTA3),
    "deberta-v3-base": _deberta(768, 12, 12, **_DEBERTA3),
    "deberta-v3-large": _deberta(1024, 24, 16, **_DEBERTA3),
    "mdeberta-v3-base": _deberta(768, 12, 12, **_DEBERTA3, vocab_size=251000),
}


def _nomic(**settings: object) -> dict[str, object]:
    return {"max_position_embeddings": 8192, "architectures": ["NomicBertModel"], **settings}


NOMICBERT: Sizes = {
    f"nomic-ai/nomic-embed-text-{version}": _nomic() for version in ("v1", "v1.5")
} | {
    "Snowflake/snowflake-arctic-embed-m-long": _nomic(),
    "nomic-ai/CodeRankEmbed": _nomic(),
}


def _gte(model_type: str, theta: float, factor: float | None, **settings: object) -> dict[str, object]:
    rope = {"rope_type": "default", "rope_theta": theta}
    rope |= {} if factor is None else {"rope_type": "ntk", "factor": factor}
    return {
        "model_type": model_type,
        "max_position_embeddings": 8192,
        "rope_parameters": rope,
        "architectures": ["NewModel"],
        **settings,
    }


_LARGE: dict[str, object] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_MULTILINGUAL: dict[str, object] = {"vocab_size": 250048, "pad_token_id": 1}
GTE: Sizes = {
    "Alibaba-NLP/gte-base-en-v1.5": _gte("new", 5e5, 2.0, type_vocab_size=0),
    "Alibaba-NLP/gte-large-en-v1.5": _gte("new", 1.6e5, 2.0, type_vocab_size=2, **_LARGE),
    "Alibaba-NLP/gte-multilingual-base": _gte(
        "new",
        2e4,
        8.0,
        **{
            **_MULTILINGUAL,
            "architectures": ["NewForTokenClassification"],
            "id2label": {"0": "LABEL_0"},
        },
    ),
    "Snowflake/snowflake-arctic-embed-m-v2.0": _gte(
        "gte", 1.6e5, None, **{**_MULTILINGUAL, "architectures": ["GteModel"]}
    ),
}
JINAV3: Sizes = {
    "jinaai/jina-embeddings-v3-hf": {"architectures": ["JinaEmbeddingsV3Model"]},
}


def _jina(**settings: object) -> dict[str, object]:
    return {"model_type": "jina_bert", "architectures": ["JinaBertModel"], **settings}


JINABERT: Sizes = {
    "jinaai/jina-embeddings-v2-small-en": _jina(
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048
    ),
    "jinaai/jina-embeddings-v2-base-en": _jina(),
    "jinaai/jina-embeddings-v2-base-de": _jina(vocab_size=61056),
}
JINABERTCODE: Sizes = {
    "jinaai/jina-embeddings-v2-base-code": _jina(model_type="jina_bert_code"),
}
EUROBERT: Sizes = {
    f"EuroBERT-{size}": {
        "hidden_size": C,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "rope_parameters": {"rope_type": "default", "rope_theta": 2.5e5},
        "architectures": ["EuroBertForMaskedLM"],
    }
    for size, (C, layers, heads, kv_heads, inner) in {
        "210m": (768, 12, 12, 12, 3072),
        "610m": (1152, 26, 18, 6, 4096),
        "2.1B": (2304, 32, 18, 6, 6144),
    }.items()
}
# The English model; the multilingual one has mmBERT-base.
LAYA: Sizes = {
    "laya": {
        **{name: value for name, value in MODERNBERT["ModernBERT-large"].items() if name != "architectures"},
        "encoder": "answerdotai/ModernBERT-large",
    }
}
EMBEDDINGGEMMA2: Sizes = {"embeddinggemma-2": {"architectures": ["EmbeddingGemma2Model"]}}
