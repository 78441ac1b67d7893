"""The config.json of published checkpoints: read as by transformers, or rejected with the correct
reason.

The settings are from the Hub's files, except settings that all of them have (architectures,
torch_dtype, transformers_version, use_cache). The numbers of parameters are published ones, if the
exact number is known.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from minhub_py.inference.quantize import count as count_of
from minhub_py.loading.files import open_files
from minhub_py.models.rotary import rope_of
from minhub_py.models.skeleton import skeleton

Settings = dict[str, Any]
BOOKKEEPING = {"torch_dtype": "bfloat16", "transformers_version": "4.46.0", "use_cache": True}


def settings(
    model_type: str,
    C: int,
    inner: int,
    layers: int,
    heads: int,
    groups: int,
    vocab: int,
    context: int,
    **settings: Any,
) -> Settings:
    return {
        **BOOKKEEPING,
        "model_type": model_type,
        "hidden_size": C,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        **settings,
    }


LLAMA = {
    "attention_bias": False,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    **LLAMA,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "rope_theta": 500000.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
}
WAVES = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
MISTRAL = {
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN = {
    "attention_dropout": 0.0,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
QWEN3 = {
    **QWEN,
    "attention_bias": False,
    "rope_scaling": None,
    "sliding_window": None,
    "head_dim": 128,
}
YARN = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 16.0,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
    "rope_theta": 1000000.0,
    "rope_type": "yarn",
    "type": "yarn",
}
# The other settings of mistral3 files.
VISION = {
    "hidden_size": 1024,
    "image_size": 1540,
    "intermediate_size": 4096,
    "model_type": "pixtral",
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_hidden_layers": 24,
    "patch_size": 14,
}
MISTRAL3 = {
    "model_type": "mistral3",
    "image_token_index": 10,
    "multimodal_projector_bias": False,
    "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "vision_config": VISION,
    "vision_feature_layer": -1,
}
SMOLLM2 = settings(
    "llama",
    576,
    1536,
    30,
    9,
    3,
    49152,
    8192,
    **{
        **LLAMA,
        "tie_word_embeddings": True,
        "rope_theta": 100000,
        "rope_scaling": None,
        "is_llama_config": True,
        "rope_interleaved": False,
    },
)
QWEN25_05B = settings(
    "qwen2",
    896,
    4864,
    24,
    14,
    2,
    151936,
    32768,
    **QWEN,
    max_window_layers=24,
    sliding_window=32768,
    tie_word_embeddings=True,
)
QWEN25_7B = settings(
    "qwen2",
    3584,
    18944,
    28,
    28,
    4,
    152064,
    32768,
    **QWEN,
    max_window_layers=28,
    sliding_window=131072,
    tie_word_embeddings=False,
)
QWEN3_06B = settings(
    "qwen3",
    1024,
    3072,
    28,
    16,
    8,
    151936,
    40960,
    **QWEN3,
    max_window_layers=28,
    tie_word_embeddings=True,
)
LLAMA32_1B = settings(
    "llama",
    2048,
    8192,
    16,
    32,
    8,
    128256,
    131072,
    **{**LLAMA3, "tie_word_embeddings": True},
    head_dim=64,
    rope_scaling={**WAVES, "factor": 32.0},
)
DEVSTRAL = settings(
    "ministral3",
    5120,
    32768,
    40,
    32,
    8,
    131072,
    393216,
    head_dim=128,
    rms_norm_eps=1e-05,
    sliding_window=None,
    rope_parameters={
        **YARN,
        "factor": 48.0,
        "rope_theta": 1e8,
        "original_max_position_embeddings": 8192,
    },
)

PHI35_ROPE = {
    "type": "longrope",
    "long_factor": [1.08, 1.11, 1.14] * 16,
    "short_factor": [1.0, 1.02, 1.03] * 16,
}
READ: dict[str, tuple[Settings, int | None]] = {
    "meta-llama/Llama-3.1-8B-Instruct": (
        settings(
            "llama",
            4096,
            14336,
            32,
            32,
            8,
            128256,
            131072,
            **LLAMA3,
            rope_scaling={**WAVES, "factor": 8.0},
        ),
        8_030_261_248,
    ),
    "meta-llama/Llama-3.2-1B-Instruct": (LLAMA32_1B, 1_235_814_400),
    "unsloth/Llama-3.2-1B-Instruct": (
        {**LLAMA32_1B, "pad_token_id": 128004, "unsloth_fixed": True},
        1_235_814_400,
    ),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": (
        settings(
            "llama",
            2048,
            5632,
            22,
            32,
            4,
            32000,
            2048,
            **LLAMA,
            rope_scaling=None,
            rope_theta=10000.0,
        ),
        1_100_048_384,
    ),
    "HuggingFaceTB/SmolLM2-135M": ({**SMOLLM2, "bos_token_id": 0, "eos_token_id": 0}, 134_515_008),
    "HuggingFaceTB/SmolLM2-135M-Instruct": (
        {
            **SMOLLM2,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
        },
        134_515_008,
    ),
    "mistralai/Mistral-7B-v0.1": (
        settings(
            "mistral",
            4096,
            14336,
            32,
            32,
            8,
            32000,
            32768,
            **MISTRAL,
            rope_theta=10000.0,
            sliding_window=4096,
        ),
        7_241_732_096,
    ),
    "mistralai/Mistral-7B-Instruct-v0.3": (
        settings(
            "mistral",
            4096,
            14336,
            32,
            32,
            8,
            32768,
            32768,
            **MISTRAL,
            rope_theta=1000000.0,
            sliding_window=None,
            attention_dropout=0.0,
            is_decoder=False,
            pruned_heads={},
            chunk_size_feed_forward=0,
            max_length=20,
            id2label={"0": "LABEL_0", "1": "LABEL_1"},
            label2id={"LABEL_0": 0, "LABEL_1": 1},
        ),
        7_248_023_552,
    ),
    # The language model of a multimodal file: 24 billion parameters with the vision tower.
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": (
        {
            **MISTRAL3,
            "text_config": settings(
                "mistral",
                5120,
                32768,
                40,
                32,
                8,
                131072,
                131072,
                head_dim=128,
                rms_norm_eps=1e-05,
                rope_theta=1e9,
                sliding_window=None,
            ),
        },
        23_572_403_200,
    ),
    "mistralai/Ministral-3-8B-Instruct-2512-BF16": (
        {
            **MISTRAL3,
            "text_config": settings(
                "ministral3",
                4096,
                14336,
                34,
                32,
                8,
                131072,
                262144,
                head_dim=128,
                rms_norm_eps=1e-05,
                sliding_window=None,
                rope_parameters=YARN,
            ),
        },
        None,
    ),
    "Qwen/Qwen2.5-0.5B": ({**QWEN25_05B, "eos_token_id": 151643, "use_mrope": False}, 494_032_768),
    # Windows are off, although the first layer with a window is set.
    "Qwen/Qwen2.5-1.5B-Instruct": (
        settings(
            "qwen2",
            1536,
            8960,
            28,
            12,
            2,
            151936,
            32768,
            **QWEN,
            max_window_layers=21,
            sliding_window=32768,
            tie_word_embeddings=True,
        ),
        1_543_714_304,
    ),
    "Qwen/Qwen2.5-7B-Instruct": (QWEN25_7B, 7_615_616_512),
    "Qwen/Qwen3-0.6B": (QWEN3_06B, 596_049_920),
    "Qwen/Qwen3-0.6B, as transformers 4.54 saves it": (
        {**QWEN3_06B, "layer_types": ["full_attention"] * 28, "rope_theta": 1000000},
        596_049_920,
    ),
    "openai/gpt-oss-20b": (
        settings(
            "gpt_oss",
            2880,
            2880,
            24,
            64,
            8,
            201088,
            131072,
            attention_bias=True,
            attention_dropout=0.0,
            eos_token_id=200002,
            experts_per_token=4,
            head_dim=64,
            initial_context_length=4096,
            layer_types=["sliding_attention", "full_attention"] * 12,
            num_experts_per_tok=4,
            num_local_experts=32,
            output_router_logits=False,
            pad_token_id=199999,
            rms_norm_eps=1e-05,
            rope_theta=150000,
            rope_scaling={
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "rope_type": "yarn",
                "original_max_position_embeddings": 4096,
                "truncate": False,
            },
            router_aux_loss_coef=0.9,
            sliding_window=128,
            swiglu_limit=7.0,
            tie_word_embeddings=False,
            quantization_config={
                "quant_method": "mxfp4",
                "modules_to_not_convert": [
                    "model.layers.*.self_attn",
                    "model.layers.*.mlp.router",
                    "model.embed_tokens",
                    "lm_head",
                ],
            },
        ),
        20_914_757_184,
    ),
    # Without head_dim, which is 128 for all sizes, also where hidden_size / heads differs.
    "Qwen/Qwen3-8B": (
        settings(
            "qwen3",
            4096,
            12288,
            36,
            32,
            8,
            151936,
            40960,
            max_window_layers=36,
            tie_word_embeddings=False,
            **{name: value for name, value in QWEN3.items() if name != "head_dim"},
        ),
        8_190_735_360,
    ),
    "ibm-granite/granite-3.1-2b-base": (
        settings(
            "granite",
            2048,
            8192,
            40,
            32,
            8,
            49152,
            131072,
            rms_norm_eps=1e-05,
            rope_theta=5000000.0,
            attention_multiplier=0.015625,
            embedding_multiplier=12.0,
            logits_scaling=8.0,
            residual_multiplier=0.22,
            tie_word_embeddings=True,
        ),
        2_533_525_504,
    ),
    "HuggingFaceTB/SmolLM3-3B": (
        settings(
            "smollm3",
            2048,
            11008,
            36,
            16,
            4,
            128256,
            65536,
            rms_norm_eps=1e-06,
            rope_theta=5000000.0,
            no_rope_layer_interval=4,
            no_rope_layers=[1, 1, 1, 0] * 9,
            tie_word_embeddings=True,
        ),
        3_075_098_624,
    ),
    "tencent/Hy-MT2-7B": (
        settings(
            "hunyuan_v1_dense",
            4096,
            14336,
            32,
            32,
            8,
            128167,
            262144,
            add_classification_head=False,
            attention_bias=False,
            attention_dropout=0.1,
            attention_head_dim=128,
            head_dim=128,
            bos_token_id=127958,
            eos_token_id=127960,
            pad_id=127961,
            pad_token_id=127961,
            sep_token_id=127962,
            cla_share_factor=2,
            class_num=0,
            dense_list=[4096, 0],
            im_end_id=5,
            im_newline_id=11,
            im_start_id=4,
            mask_init_id=12,
            mlp_bias=False,
            norm_type="rms",
            org_vocab_size=128167,
            pool_type="last",
            pretraining_tp=1,
            rms_norm_eps=1e-05,
            rope_theta=10000.0,
            text_end_id=7,
            text_start_id=6,
            tie_word_embeddings=True,
            use_cla=False,
            use_qk_norm=True,
            use_rotary_pos_emb=True,
            rope_scaling={
                "alpha": 1000.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "type": "dynamic",
            },
        ),
        7_504_568_320,
    ),
    "microsoft/Phi-3.5-mini-instruct": (
        settings(
            "phi3",
            3072,
            8192,
            32,
            32,
            32,
            32064,
            131072,
            rms_norm_eps=1e-05,
            rope_theta=10000.0,
            original_max_position_embeddings=4096,
            rope_scaling=PHI35_ROPE,
            sliding_window=262144,
        ),
        3_821_079_552,
    ),
}

GPTQ = {
    "bits": 4,
    "damp_percent": 0.01,
    "desc_act": False,
    "group_size": 128,
    "quant_method": "gptq",
    "sym": True,
}
AWQ = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
FP8 = {
    "activation_scheme": "static",
    "dequantize": False,
    "modules_to_not_convert": ["lm_head"],
    "quant_method": "fp8",
    "weight_block_size": None,
}
BITSANDBYTES = {
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_type": "nf4",
    "load_in_4bit": True,
    "quant_method": "bitsandbytes",
}
# Repositories with quantized weights, and their settings without quantization_config.
QUANTIZED: dict[str, tuple[Settings, Settings]] = {
    "mistralai/Devstral-Small-2-24B-Instruct-2512": (
        {**MISTRAL3, "tie_word_embeddings": False, "text_config": DEVSTRAL},
        FP8,
    ),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": (QWEN25_7B, AWQ),
    "Qwen/Qwen2.5-0.5B-Instruct-GPTQ-Int4": (QWEN25_05B, GPTQ),
}
LONGROPE = {
    "long_factor": [1.08, 1.11, 1.14],
    "short_factor": [1.0, 1.02, 1.03],
    "type": "longrope",
}
REFUSED: dict[str, tuple[Settings, str]] = {
    "unsloth/Qwen2.5-7B-Instruct-bnb-4bit": (
        {**QWEN25_7B, "quantization_config": BITSANDBYTES},
        (
            r"weights are quantized \(quant_method 'bitsandbytes'\).* take the repository of the same"
            r" model in BF16"
        ),
    ),
    # The same rope in a model of type llama, and other settings that llama does not support.
    "a llama with longrope": (
        {**SMOLLM2, "rope_scaling": LONGROPE},
        r"rope_type 'longrope' is not one of default, linear",
    ),
    "a llama with layers that are not rotated": (
        {**SMOLLM2, "no_rope_layers": [1, 1, 1, 0]},
        "no_rope_layers",
    ),
    "a llama with Granite's scales": (
        {**SMOLLM2, "residual_multiplier": 0.22},
        "residual_multiplier",
    ),
    "a qwen2 with three positions": ({**QWEN25_05B, "use_mrope": True}, "sets use_mrope to True"),
}


def described(folder: Path, settings: Settings) -> tuple[Any, Any]:
    (folder / "config.json").write_text(json.dumps(settings))
    files = open_files(folder)
    return files.architecture, files.config


@pytest.mark.parametrize("name", READ)
def test_it_is_read_as_transformers_reads_it(name: str, tmp_path: Path) -> None:
    settings, published = READ[name]
    family, config = described(tmp_path, settings)
    ours = skeleton(family.Model, config)
    count = count_of(ours)
    assert published in (count, None)

    text = settings.get("text_config", settings)
    reference_model = AutoConfig.for_model(
        **{key: value for key, value in text.items() if "js_config" not in key}
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(reference_model)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    rope = type(model.model.rotary_emb)(reference_model)
    structure = getattr(config, "structure", None)  # of the general decoder
    ours = rope_of(config.rope, getattr(config, "rotated", config.head_size)).sized(0)
    frequencies, amplitude = ours.frequencies, ours.amplitude
    torch.testing.assert_close(torch.tensor(frequencies), rope.inv_freq, rtol=1e-6, atol=0)
    assert amplitude == pytest.approx(rope.attention_scaling)
    kinds = (
        getattr(reference_model, "layer_types", None)
        or ["sliding_attention"] * reference_model.num_hidden_layers
    )
    window = getattr(reference_model, "sliding_window", None)
    assert (structure or config).windows == [
        window if kind == "sliding_attention" else None for kind in kinds
    ]
    for setting in (
        "rms_norm_eps",
        "max_position_embeddings",
        "tie_word_embeddings",
        "hidden_act",
        "eos_token_id",
    ):
        assert getattr(config, setting) == getattr(reference_model, setting), setting


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_repositories_have_the_config_of_their_model(name: str, tmp_path: Path) -> None:
    settings, quantization = QUANTIZED[name]
    plain = described(tmp_path, settings)
    assert described(tmp_path, {**settings, "quantization_config": quantization}) == plain


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_for_a_true_reason(name: str, tmp_path: Path) -> None:
    settings, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        described(tmp_path, settings)
