"""Llama in one file, with Mistral, Ministral, Ministral 3, Qwen 2 and Qwen 3, which differ by
settings only.

Sources
    Touvron et al. (2023), "LLaMA"; Grattafiori et al. (2024), "The Llama 3 Herd of Models".
    Su et al. (2021), "RoFormer", for rotary positions; Zhang & Sennrich (2019) for RMS norm;
        Shazeer (2020), "GLU Variants", for the gated MLP; Ainslie et al. (2023), "GQA", for KV
        heads; Peng et al. (2023), "YaRN".
    Jiang et al. (2023), "Mistral 7B", for the window; Yang et al. (2024, 2025), "Qwen2" and
        "Qwen3".
    Hub docs: `transformers`, model_types "llama", "mistral", "ministral", "ministral3", "qwen2" and
        "qwen3".

Differences from similar architectures
    GPT-2     has learned positions instead of rotary embeddings, layer norm instead of RMS norm,
    and biases.

    mistral      a window in every layer         qwen2    biases in q, k and v; optional windows in the last layers
    ministral    a window in some layers         qwen3    a norm of each head of q and k before the rotation
    ministral3   queries that grow with their position

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H query heads    G KV heads    D head size    V vocabulary
    W window, which includes the current position
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList, RMSNorm
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import GroupedHeads, check_layer_types, check_multiple, unavailable
from minhub_py.models.steps import Add, Attend, Embed, Gate, Linear, Logits, Norm, Rotate, Step
from minhub_py.system.json_text import JsonObject

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
WINDOWED = tuple(name for name in ARCHITECTURES if name != "llama")  # model types with a window
MISTRAL = {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2**17,
    "sliding_window": 4096,
}
QWEN = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 2**15,
    "sliding_window": 4096,
    "bos_token_id": None,
    "eos_token_id": None,
}
MINISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


class Attention(nn.Module):
    def __init__(self, config: "LlamaConfig", layer: int) -> None:
        super().__init__()
        C, D = config.hidden_size, config.head_size
        self.causal = config.CAUSAL
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.kv_heads
        self.scale, self.window, self.dropout = (
            D**-0.5,
            config.windows[layer],
            config.attention_dropout,
        )
        self.q_proj = nn.Linear(C, self.heads * D, bias=config.qkv_bias)
        self.k_proj = nn.Linear(C, self.kv_heads * D, bias=config.qkv_bias)
        self.v_proj = nn.Linear(C, self.kv_heads * D, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * D, C, bias=config.attention_bias)
        self.q_norm = RMSNorm(D, config.rms_norm_eps) if config.has_head_norms else None
        self.k_norm = RMSNorm(D, config.rms_norm_eps) if config.has_head_norms else None

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q = split_heads(self.q_proj(x), self.heads)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), self.kv_heads)  # (B, G, T, D)
        v = split_heads(self.v_proj(x), self.kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(
            self.layer,
            q,
            k,
            v,
            scale=self.scale,
            window=self.window,
            causal=self.causal,
            dropout=dropout,
        )  # (B, H, T, D)
        return self.o_proj(merge_heads(y))


class MLP(nn.Module):
    def __init__(self, config: "LlamaConfig") -> None:
        super().__init__()
        C, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(C, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(C, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, C, bias=config.mlp_bias)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: "LlamaConfig", layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), past, rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(LanguageModel):
    config: "LlamaConfig"

    def __init__(self, config: "LlamaConfig") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.head_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        rotation = Rotation(self.rope, past.positions, x.dtype)
        for block in self.layers:
            x = block(x, past, rotation)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.kv_heads, self.config.head_size, window)
            for window in self.config.windows
        ]

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens)
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            heads = attn.heads, attn.kv_heads
            yield Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Rotate(*heads, self.rope, attn.q_norm, attn.k_norm)
            yield Attend(*heads, attn.scale, attn.window, causal=attn.causal, dropout=attn.dropout)
            yield Add(attn.o_proj)
            yield Norm(block.post_attention_layernorm)
            yield Linear([mlp.gate_proj, mlp.up_proj])
            yield Gate(self.config.hidden_act)
            yield Add(mlp.down_proj)
        yield Norm(self.norm)
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class LlamaConfig(HeadSettings, GroupedHeads):
    """The settings of config.json that change the result. Defaults: Llama 2 7B."""

    TITLE: ClassVar = "Llama"
    CAUSAL: ClassVar = True
    NO_EFFECT: ClassVar = frozenset({"pretraining_tp", "rope_interleaved", "is_llama_config"})
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "llama": {},
        "mistral": MISTRAL,
        "ministral": MISTRAL,
        "ministral3": {**MISTRAL, "vocab_size": 2**17, "num_hidden_layers": 34, "head_dim": 128, "sliding_window": None,
                       "max_position_embeddings": 2**18, "rms_norm_eps": 1e-5, "pad_token_id": 11,
                       "rope_parameters": MINISTRAL3_ROPE},
        "qwen2": QWEN,
        "qwen3": {**QWEN, "head_dim": 128},
    }  # fmt: skip

    model_type: str = "llama"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    # None: num_attention_heads
    num_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})
    # None: hidden_size / heads
    head_dim: int | None = field(default=None, metadata={"range": (2, 2**16)})
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-6
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and others
    attention_bias: bool = field(default=False, metadata={"model_types": ("llama", "qwen3")})
    mlp_bias: bool = field(default=False, metadata={"model_types": ("llama",)})
    sliding_window: int | None = field(
        default=None, metadata={"range": (1, 2**31), "model_types": WINDOWED}
    )
    use_sliding_window: bool = field(default=False, metadata={"model_types": ("qwen2", "qwen3")})
    # Layers before the first window
    max_window_layers: int = field(
        default=28, metadata={"range": (0, 4096), "model_types": ("qwen2", "qwen3")}
    )
    layer_types: list[str] | None = None  # "full_attention" or "sliding_attention"
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "num_attention_heads", "num_key_value_heads")
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"{self.TITLE}: without head_dim, hidden_size ({self.hidden_size}) must be a multiple of "
                f"num_attention_heads ({self.num_attention_heads})"
            )
        if self.head_size % 2:
            raise ValueError(
                f"{self.TITLE}: head_dim ({self.head_size}) must be even, because rotary embeddings rotate"
                " pairs"
            )
        rotary.check(self.TITLE, self.rope, grows=self.model_type == "ministral3")
        self.windows  # noqa: B018  # checks the pattern

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections to q, k and v have biases."""
        return self.attention_bias or self.model_type == "qwen2"

    @property
    def has_head_norms(self) -> bool:
        """Whether each head of q and k is normalized before the rotation."""
        return self.model_type == "qwen3"

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        return rotary.completed(self.rope_parameters, self.max_position_embeddings)

    @property
    def rotated(self) -> int:
        """The number of rotated numbers of each head."""
        return self.head_size

    @property
    def windows(self) -> list[int | None]:
        """Each layer's window, in positions; None for all previous positions."""
        count, kind = self.num_hidden_layers, self.model_type
        qwen = kind.startswith("qwen")
        window = self.sliding_window if self.use_sliding_window or not qwen else None
        first = self.max_window_layers if qwen else 0
        pattern = [window if layer >= first else None for layer in range(count)]
        if self.layer_types is None:
            return pattern
        kinds = {"full_attention": None, "sliding_attention": window}
        check_layer_types(self.TITLE, self.layer_types, kinds, count)
        windows = [kinds[name] for name in self.layer_types]
        # Only Ministral and Qwen read layer_types; for the others it must equal their pattern.
        if windows != pattern and kind in ("llama", "mistral", "ministral3"):
            raise ValueError(
                f"{self.TITLE}: a {kind} model has no layer_types, but config.json sets it"
            )
        return windows

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        dropped = unavailable(self, self.model_type)
        dropped |= dict.fromkeys(HeadSettings.__dataclass_fields__)
        settings = {name: value for name, value in asdict(self).items() if name not in dropped}
        settings |= {"rope_parameters": self.rope, "head_dim": self.head_size}
        # transformers reads a mistral model with layer_types, even null, as a ministral
        if self.layer_types is None:
            del settings["layer_types"]
        return settings | self.hub_head(ARCHITECTURES[self.model_type])
