"""The architectures of the general decoder (models/decoder.py), as data: names and published sizes.

A config file and a weight table complete an architecture: docs/internals/adding.md.
"""

from dataclasses import dataclass

from minhub_py.models.published import WAVES, Sizes, llama, rope


@dataclass(frozen=True)
class Relative:
    """A row of the registry.

    model: the class; its config's has the same name.    owner: Hub owner of the published sizes.
    module: the model's module, if its name is another.
    """

    name: str
    title: str
    model_type: str
    model: str
    owner: str
    sizes: Sizes
    module: str = ""


_PHI3_MINI = {"rope_parameters": rope(1e4), "sliding_window": 2047}
_PHI4_LONG = [
    1,
    1.118320672,
    1.250641126,
    1.398617824,
    1.564103225,
    1.74916897,
    1.956131817,
    2.187582649,
    2.446418898,
    2.735880826,
    3.059592084,
    3.421605075,
    3.826451687,
    4.279200023,
    4.785517845,
    5.351743533,
    5.984965424,
    6.693110555,
    7.485043894,
    8.370679318,
    9.36110372,
    10.4687158,
    11.70738129,
    13.09260651,
    14.64173252,
    16.37415215,
    18.31155283,
    20.47818807,
    22.90118105,
    25.61086418,
    28.64115884,
    32.03,
    32.1,
    32.13,
    32.23,
    32.6,
    32.61,
    32.64,
    32.66,
    32.7,
    32.71,
    32.93,
    32.97,
    33.28,
    33.49,
    33.5,
    44.16,
    47.77,
]
PHI3: Sizes = {
    "Phi-3-mini-4k-instruct": _PHI3_MINI,
    "phi-4": llama(
        5120,
        17920,
        40,
        40,
        10,
        vocab_size=100352,
        max_position_embeddings=16384,
        bos_token_id=100257,
        eos_token_id=100265,
        pad_token_id=100349,
        rope_parameters=rope(2.5e5),
    ),
    "Phi-4-mini-instruct": llama(
        3072,
        8192,
        32,
        24,
        8,
        vocab_size=200064,
        max_position_embeddings=131072,
        sliding_window=262144,
        tie_word_embeddings=True,
        bos_token_id=199999,
        eos_token_id=200020,
        pad_token_id=199999,
        rope_parameters=rope(
            1e4,
            rope_type="longrope",
            partial_rotary_factor=0.75,
            short_factor=[1.0] * 48,
            long_factor=_PHI4_LONG,
            original_max_position_embeddings=4096,
        ),
    ),
}
SMOLLM3: Sizes = {
    "SmolLM3-3B": {
        "max_position_embeddings": 65536,
        "rope_parameters": rope(5e6),
        "eos_token_id": 128012,
    }
}


def _granite(
    C: int, inner: int, layers: int, heads: int, kv_heads: int, **settings: object
) -> dict[str, object]:
    return (
        llama(
            C,
            inner,
            layers,
            heads,
            kv_heads,
            max_position_embeddings=131072,
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters=rope(1e7),
        )
        | settings
    )


GRANITE: Sizes = {
    "granite-3.3-2b-base": _granite(
        2048,
        8192,
        40,
        32,
        8,
        vocab_size=49152,
        attention_multiplier=1 / 64,
        logits_scaling=8.0,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
}
_GRANITE4 = {
    "vocab_size": 100352,
    "position_embedding_type": "rope",
    "num_experts": 0,
    "bos_token_id": 100257,
    "eos_token_id": 100257,
    "pad_token_id": 100256,
}
_TENTHS = (5, 15, 25, 35)  # layers with attention


def _granite_h(
    C: int,
    inner: int,
    layers: int,
    heads: int,
    kv_heads: int,
    attention: tuple[int, ...],
    **settings: object,
) -> dict[str, object]:
    types = ["attention" if layer in attention else "mamba" for layer in range(layers)]
    own = {"layer_types": types, "mamba_n_heads": max(48, 2 * C // 64), "mamba_d_state": 128}
    return _granite(
        C, inner, layers, heads, kv_heads,
        **{**_GRANITE4, "rope_parameters": rope(1e4), "position_embedding_type": "nope", **own, **settings},
    )  # fmt: skip


GRANITE_HYBRID: Sizes = {
    "granite-4.0-micro": _granite(
        2560,
        8192,
        40,
        40,
        8,
        **_GRANITE4,
        layer_types=["attention"] * 40,
        attention_multiplier=1 / 64,
        logits_scaling=10.0,
    ),
    "granite-4.0-1b": _granite(
        2048,
        4096,
        40,
        16,
        4,
        **_GRANITE4,
        layer_types=["attention"] * 40,
        attention_multiplier=1 / 128,
        logits_scaling=8.0,
    ),
    "granite-4.0-350m": _granite(
        1024,
        2048,
        28,
        16,
        4,
        **_GRANITE4,
        layer_types=["attention"] * 28,
        attention_multiplier=1 / 64,
        logits_scaling=4.0,
        residual_multiplier=0.263,
        max_position_embeddings=32768,
    ),
    "granite-4.0-h-350m": _granite_h(
        768,
        2048,
        32,
        12,
        4,
        (10, 13, 17, 27),
        attention_multiplier=1 / 64,
        logits_scaling=3.0,
        residual_multiplier=0.246,
        max_position_embeddings=32768,
    ),
    "granite-4.0-h-1b": _granite_h(
        1536, 4096, 40, 12, 4, _TENTHS, attention_multiplier=1 / 128, logits_scaling=6.0
    ),
    "granite-4.0-h-micro": _granite_h(
        2048, 8192, 40, 32, 8, _TENTHS, attention_multiplier=1 / 64, logits_scaling=8.0
    ),
    "granite-4.0-h-tiny": _granite_h(
        1536,
        1024,
        40,
        12,
        4,
        _TENTHS,
        attention_multiplier=1 / 128,
        logits_scaling=6.0,
        num_experts=64,
        num_experts_per_tok=6,
        moe_intermediate_size=512,
    ),
}
_OLMO2 = {
    "vocab_size": 100352,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_parameters": rope(5e5),
    "eos_token_id": 100257,
    "pad_token_id": 100277,
}
OLMO2: Sizes = {
    "OLMo-2-0425-1B": llama(2048, 8192, 16, 16, 16, **_OLMO2),
    "OLMo-2-1124-7B": llama(4096, 11008, 32, 32, 32, **_OLMO2),
    "OLMo-2-1124-13B": llama(5120, 13824, 40, 40, 40, **_OLMO2),
    "OLMo-2-0325-32B": llama(5120, 27648, 64, 40, 8, **_OLMO2),
}

_OLMO3 = {
    "vocab_size": 100278,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 100257,
    "pad_token_id": 100277,
}
_YARN8 = rope(
    5e5,
    rope_type="yarn",
    factor=8.0,
    original_max_position_embeddings=8192,
    beta_fast=32.0,
    beta_slow=1.0,
    attention_factor=1.2079441541679836,
)
OLMO3: Sizes = {
    "Olmo-3-1025-7B": llama(4096, 11008, 32, 32, 32, **_OLMO3, rope_parameters=_YARN8),
    "Olmo-3-1125-32B": llama(5120, 27648, 64, 40, 8, **_OLMO3, rope_parameters=_YARN8),
}
_EXAONE4 = {
    "max_position_embeddings": 131072,
    "bos_token_id": 1,
    "eos_token_id": 361,
    "pad_token_id": 0,
}
_EXAONE_ROPE = {"rope_type": "llama3", "factor": 16.0, **WAVES}
EXAONE4: Sizes = {
    "EXAONE-4.0-1.2B": llama(
        2048,
        4096,
        30,
        32,
        8,
        **{**_EXAONE4, "max_position_embeddings": 65536},
        sliding_window=None,
        sliding_window_pattern=None,
        tie_word_embeddings=True,
        rope_parameters=rope(1e6, **_EXAONE_ROPE),
    ),
    "EXAONE-4.0-32B": llama(
        5120,
        27392,
        64,
        40,
        8,
        **_EXAONE4,
        sliding_window_pattern="LLLG",
        rope_parameters=rope(1e6, **_EXAONE_ROPE),
    ),
}
ERNIE45: Sizes = {"ERNIE-4.5-0.3B-PT": {}}
SEEDOSS: Sizes = {"Seed-OSS-36B-Instruct": {"hidden_size": 5120, "rope_parameters": rope(1e7)}}
INTERNLM3: Sizes = {
    "internlm3-8b-instruct": {"rope_parameters": rope(5e7, rope_type="dynamic", factor=6.0)}
}
HUNYUAN: Sizes = {
    "Hunyuan-7B-Instruct": llama(
        4096,
        14336,
        32,
        32,
        8,
        vocab_size=128167,
        head_dim=128,
        bos_token_id=127958,
        eos_token_id=127960,
        pad_token_id=127961,
        max_position_embeddings=262144,
        tie_word_embeddings=True,
        rope_parameters=rope(1e4, rope_type="dynamic", factor=1.0, alpha=1000.0),
    )
}
_STARCODER2 = {
    "max_position_embeddings": 16384,
    "sliding_window": 4096,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
STARCODER2: Sizes = {
    "starcoder2-3b": {**_STARCODER2, "rope_parameters": rope(999999.4420358813)},
    "starcoder2-7b": llama(4608, 18432, 32, 36, 4, **_STARCODER2, rope_parameters=rope(1e6)),
    "starcoder2-15b": llama(6144, 24576, 40, 48, 4, **_STARCODER2, rope_parameters=rope(1e5)),
}
GLM4: Sizes = {
    "GLM-4-9B-0414": {
        "max_position_embeddings": 32768,
        "rope_parameters": rope(1e4, partial_rotary_factor=0.5),
    },
    "GLM-4-32B-0414": llama(
        6144,
        23040,
        61,
        48,
        8,
        max_position_embeddings=32768,
        rms_norm_eps=1e-5,
        attention_bias=False,
        rope_parameters=rope(1e4, partial_rotary_factor=0.5),
    ),
}
COHERE: Sizes = {
    "c4ai-command-r-v01": {"max_position_embeddings": 131072, "rope_parameters": rope(8e6)},
    "aya-23-8B": llama(4096, 14336, 32, 32, 8, rope_parameters=rope(1e4)),
}
COHERE2: Sizes = {
    "c4ai-command-r7b-12-2024": llama(
        4096,
        14336,
        32,
        32,
        8,
        max_position_embeddings=132096,
        logit_scale=0.25,
        rope_parameters=rope(5e4),
    )
}
STABLELM: Sizes = {
    "stablelm-3b-4e1t": {"rope_parameters": rope(1e4, partial_rotary_factor=0.25)},
    "stablelm-2-1_6b": llama(
        2048,
        5632,
        24,
        32,
        32,
        vocab_size=100352,
        use_qkv_bias=True,
        bos_token_id=100257,
        eos_token_id=100257,
        rope_parameters=rope(1e4, partial_rotary_factor=0.25),
    ),
    "stablelm-2-12b": llama(
        5120,
        13824,
        40,
        32,
        8,
        vocab_size=100352,
        qk_layernorm=True,
        use_parallel_residual=True,
        bos_token_id=100257,
        eos_token_id=100257,
        rope_parameters=rope(1e4, partial_rotary_factor=0.25),
    ),
}
ARCEE: Sizes = {
    "AFM-4.5B": llama(
        2560,
        18432,
        36,
        20,
        4,
        vocab_size=128004,
        head_dim=128,
        max_position_embeddings=65536,
        bos_token_id=128000,
        eos_token_id=128001,
        pad_token_id=128001,
        rope_parameters=rope(
            1e4, rope_type="yarn", factor=20.0, original_max_position_embeddings=4096
        ),
    )
}
JAIS2: Sizes = {"Jais-2-8B-Chat": {}}
NEMOTRON: Sizes = {
    "Minitron-4B-Base": llama(
        3072, 9216, 32, 24, 8, head_dim=128, rope_parameters=rope(1e4, partial_rotary_factor=0.5)
    )
}

RELATIVES = (
    Relative("olmo2", "OLMo 2", "olmo2", "Olmo2", "allenai", OLMO2),
    Relative("olmo3", "OLMo 3", "olmo3", "Olmo3", "allenai", OLMO3, "olmo2"),
    Relative("phi3", "Phi-3", "phi3", "Phi3", "microsoft", PHI3),
    Relative("smollm3", "SmolLM3", "smollm3", "SmolLM3", "HuggingFaceTB", SMOLLM3),
    Relative("granite", "Granite", "granite", "Granite", "ibm-granite", GRANITE),
    Relative("exaone4", "EXAONE 4", "exaone4", "Exaone4", "LGAI-EXAONE", EXAONE4),
    Relative("ernie45", "ERNIE 4.5", "ernie4_5", "Ernie45", "baidu", ERNIE45),
    Relative("seedoss", "Seed-OSS", "seed_oss", "SeedOSS", "ByteDance-Seed", SEEDOSS),
    Relative("internlm3", "InternLM 3", "internlm3", "InternLM3", "internlm", INTERNLM3),
    Relative("hunyuan", "Hunyuan", "hunyuan_v1_dense", "Hunyuan", "tencent", HUNYUAN),
    Relative("starcoder2", "StarCoder 2", "starcoder2", "StarCoder2", "bigcode", STARCODER2),
    Relative("glm4", "GLM-4", "glm4", "GLM4", "zai-org", GLM4),
    Relative("cohere", "Command R", "cohere", "Cohere", "CohereForAI", COHERE),
    Relative("cohere2", "Command R7B", "cohere2", "Cohere2", "CohereForAI", COHERE2, "cohere"),
    Relative("stablelm", "StableLM", "stablelm", "StableLM", "stabilityai", STABLELM),
    Relative("arcee", "Arcee", "arcee", "Arcee", "arcee-ai", ARCEE),
    Relative("jais2", "Jais 2", "jais2", "Jais2", "inceptionai", JAIS2),
    Relative("nemotron", "Nemotron", "nemotron", "Nemotron", "nvidia", NEMOTRON),
)
