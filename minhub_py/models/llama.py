"""Llama in one file, with Mistral, Ministral, Ministral 3, Qwen 2 and Qwen 3, which differ by settings only.

Sources
    Touvron et al. (2023), "LLaMA"; Grattafiori et al. (2024), "The Llama 3 Herd of Models".
    Su et al. (2021), "RoFormer", for rotary positions; Zhang & Sennrich (2019) for RMS norm; Shazeer (2020), "GLU
    Variants", for the gated MLP; Ainslie et al. (2023), "GQA", for KV heads; Peng et al. (2023), "YaRN".
    Jiang et al. (2023), "Mistral 7B", for the window; Yang et al. (2024, 2025), "Qwen2" and "Qwen3".
    Hub docs: `transformers`, model_types "llama", "mistral", "ministral", "ministral3", "qwen2" and "qwen3".

Differences from similar architectures
    GPT-2     has learned positions instead of rotary embeddings, layer norm instead of RMS norm, and biases.

    mistral      a window in every layer         qwen2    biases in q, k and v; optional windows in the last layers
    ministral    a window in some layers         qwen3    a norm of each head of q and k before the rotation
    ministral3   queries that grow with their position

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H query heads    G KV heads    D head size    V vocabulary
    W window, which includes the current position
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.base import ACTIVATIONS, LanguageModel
from minhub_py.models.cache import KeyValues, Layout, Past
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import (
    ALiBi,
    HeadLayerNorm,
    RMSNorm,
    merge_heads,
    scaled,
    sinusoidal_positions,
    split_heads,
)
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import GroupedHeads, check_layer_types, check_multiple, unavailable
from minhub_py.models.steps import (
    Add,
    AddSinusoids,
    Attend,
    Embed,
    Gate,
    Linear,
    LoadResidual,
    Logits,
    Norm,
    Rotate,
    SaveResidual,
    Step,
)
from minhub_py.models.structure import RelativeConfig, Structure

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
WINDOWED = tuple(name for name in ARCHITECTURES if name != "llama")  # model types with a window
MISTRAL = {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 2**17,
           "sliding_window": 4096}  # fmt: skip
QWEN = {"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 2**15,
        "sliding_window": 4096, "bos_token_id": None, "eos_token_id": None}  # fmt: skip
MINISTRAL3_ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                   "original_max_position_embeddings": 16384, "mscale": 1.0, "mscale_all_dim": 1.0,
                   "llama_4_scaling_beta": 0.1}  # fmt: skip


FIRST = 2  # the first row of sinusoidal positions


class Attention(nn.Module):
    def __init__(self, config: "LlamaConfig | RelativeConfig", layer: int) -> None:
        super().__init__()
        C, size, structure = config.hidden_size, config.head_size, config.structure
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.kv_heads
        self.scale = size**-0.5 if structure.scale is None else structure.scale
        self.window, self.dropout = structure.windows[layer], config.attention_dropout
        self.joint, self.norms_last = structure.head_norms == "joint", structure.norms_last
        self.q_proj = nn.Linear(C, self.heads * size, bias=structure.qkv_bias)
        self.k_proj = nn.Linear(C, self.kv_heads * size, bias=structure.qkv_bias)
        self.v_proj = nn.Linear(C, self.kv_heads * size, bias=structure.qkv_bias)
        self.o_proj = nn.Linear(self.heads * size, C, bias=structure.output_bias)
        self.q_norm = head_norm(structure, self.heads, size)
        self.k_norm = head_norm(structure, self.kv_heads, size)

    def forward(self, x: Tensor, past: Past, rotation: Rotation | None, bias: Tensor | None = None) -> Tensor:
        q, k = self.q_proj(x), self.k_proj(x)
        if self.joint:
            q, k = self.normed(q, k)
        q = split_heads(q, self.heads)  # (B, H, T, D)
        k = split_heads(k, self.kv_heads)  # (B, G, T, D)
        v = split_heads(self.v_proj(x), self.kv_heads)
        if not (self.joint or self.norms_last):
            q, k = self.normed(q, k)
        if rotation is not None:
            q, k = rotation(q, k)
        if self.norms_last:
            q, k = self.normed(q, k)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(
            self.layer, q, k, v, scale=self.scale, window=self.window, bias=bias, dropout=dropout,
            upcast=bias is not None,
        )  # (B, H, T, D)  # fmt: skip
        return self.o_proj(merge_heads(y))

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return self.q_norm(q), self.k_norm(k)


class MLP(nn.Module):
    def __init__(self, config: "LlamaConfig | RelativeConfig") -> None:
        super().__init__()
        C, inner, bias = config.hidden_size, config.inner, config.structure.mlp_bias
        self.gate_proj = nn.Linear(C, inner, bias=bias) if config.structure.gated else None
        self.up_proj = nn.Linear(C, inner, bias=bias)
        self.down_proj = nn.Linear(inner, C, bias=bias)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_proj is None:
            return self.down_proj(self.act(self.up_proj(x)))
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: "LlamaConfig | RelativeConfig", layer: int) -> None:
        super().__init__()
        C, structure = config.hidden_size, config.structure
        before, after, self.parallel = structure.norm_before, structure.norm_after, structure.parallel
        self.input_layernorm = norm(structure, C) if before else None
        self.self_attn = Attention(config, layer)
        self.attention_output_norm = norm(structure, C) if after else None
        self.post_attention_layernorm = norm(structure, C) if before and not self.parallel else None
        self.mlp = MLP(config)
        self.mlp_output_norm = norm(structure, C) if after else None
        self.scale, self.dropout = structure.residual_scale, nn.Dropout(structure.dropout)

    def forward(self, x: Tensor, past: Past, rotation: Rotation | None, bias: Tensor | None = None) -> Tensor:
        h = apply(self.input_layernorm, x)
        y = self.output(apply(self.attention_output_norm, self.self_attn(h, past, rotation, bias)))
        if not self.parallel:  # the MLP reads the sum
            x = x + y
            return x + self.output(apply(self.mlp_output_norm, self.mlp(apply(self.post_attention_layernorm, x))))
        return x + y + self.output(self.mlp(h))

    def output(self, y: Tensor) -> Tensor:
        """The output of attention or the MLP as it is added to the stream."""
        y = self.dropout(y)
        return y if self.scale == 1.0 else y * self.scale


def sinusoid_frequencies(size: int) -> tuple[float, ...]:
    """The frequencies of sines and cosines, half of `size` each. Vaswani et al. (2017), as in tensor2tensor."""
    half = size // 2
    return tuple(torch.exp(torch.arange(half, device="cpu").float() * -(math.log(10000) / (half - 1))).tolist())


def norm(structure: Structure, size: int) -> RMSNorm | nn.LayerNorm:
    """A norm of the residual stream."""
    if structure.norm == "rms":
        return RMSNorm(size, structure.eps)
    return nn.LayerNorm(size, structure.eps, bias=structure.norm == "layer")


def head_norm(structure: Structure, heads: int, size: int) -> RMSNorm | HeadLayerNorm | None:
    """A norm of q or k."""
    if structure.head_norms == "layer":
        return HeadLayerNorm(heads, size, structure.eps)
    sizes = {"each": size, "joint": heads * size}
    return RMSNorm(sizes[structure.head_norms], structure.eps) if structure.head_norms else None


def apply(layer: nn.Module | None, x: Tensor) -> Tensor:
    """The layer's output; x without a layer."""
    return x if layer is None else layer(x)


class Llama(LanguageModel):
    config: "LlamaConfig | RelativeConfig"

    def __init__(self, config: "LlamaConfig | RelativeConfig") -> None:
        super().__init__()
        self.config, self.structure = config, config.structure
        structure = self.structure
        self.ropes = [None if rope is None else rotary.rope_of(rope, structure.rotated) for rope in structure.ropes]
        self.rotations = [self.ropes.index(rope) for rope in self.ropes]  # the first layer with the same rotation
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embedding_norm = norm(structure, config.hidden_size) if structure.embedding_norm else None
        self.alibi = ALiBi.of(config.num_attention_heads) if structure.alibi else None
        self.sinusoids = sinusoid_frequencies(config.hidden_size) if structure.sinusoids else None
        self.drop = nn.Dropout(structure.embedding_dropout)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = norm(structure, config.hidden_size)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        if self.structure.embedding_scale is not None:
            x = scaled(x, self.structure.embedding_scale)
        if self.sinusoids is not None:
            x = x + sinusoidal_positions(past.positions + FIRST, list(self.sinusoids)).to(x.dtype)
        x = self.drop(apply(self.embedding_norm, x))
        bias = None if self.alibi is None else self.alibi(past.positions, past.attended)
        dtype = torch.float32 if self.structure.exact_rotation else x.dtype
        rotations: dict[int, Rotation | None] = {}
        for block, rope, number in zip(self.layers, self.ropes, self.rotations, strict=False):  # layers can be deleted
            if number not in rotations:
                rotations[number] = None if rope is None else Rotation(
                    rope.sized(past.size), past.positions, dtype, self.structure.interleaved
                )  # fmt: skip
            x = block(x, past, rotations[number], bias)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        logits = F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)
        return logits if self.structure.logit_scale == 1.0 else logits * self.structure.logit_scale

    def cache_layout(self) -> Layout:
        config = self.config
        return [KeyValues(config.kv_heads, config.head_size, window) for window in self.structure.windows]

    def steps(self) -> Iterator[Step]:
        block: Any
        structure = self.structure
        p = 0.0 if structure.sinusoids else self.drop.p
        yield Embed(self.embed_tokens, scale=structure.embedding_scale, dropout=p)
        if self.sinusoids is not None:
            yield AddSinusoids(self.sinusoids, FIRST, self.config.max_position_embeddings, dropout=self.drop.p)
        if self.embedding_norm is not None:
            yield Norm(self.embedding_norm, to_residual=True)
        for block, rope in zip(self.layers, self.ropes, strict=False):
            attn, mlp, add = block.self_attn, block.mlp, {"scale": block.scale, "dropout": block.dropout.p}
            heads = attn.heads, attn.kv_heads
            if block.parallel:
                yield SaveResidual()
            yield LoadResidual() if block.input_layernorm is None else Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            if rope is not None or attn.q_norm is not None:
                yield Rotate(
                    *heads, rope, attn.q_norm, attn.k_norm, all_heads=attn.joint, interleaved=structure.interleaved,
                    norms_last=attn.norms_last,
                )  # fmt: skip
            yield Attend(
                *heads, attn.scale, attn.window, bias=self.alibi, upcast=self.alibi is not None, dropout=attn.dropout
            )
            yield Add(attn.o_proj, block.attention_output_norm, **add)
            if block.parallel:
                yield Norm(block.input_layernorm, saved=True)  # the norm of the block's input again
            else:
                second = block.post_attention_layernorm
                yield LoadResidual() if second is None else Norm(second)
            if mlp.gate_proj is None:
                yield Linear([mlp.up_proj], self.config.hidden_act)
            else:
                yield Linear([mlp.gate_proj, mlp.up_proj])
                yield Gate(self.config.hidden_act)
            yield Add(mlp.down_proj, block.mlp_output_norm, **add)
        yield Norm(self.norm)
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        yield Logits(head, scale=structure.logit_scale)


@dataclass(frozen=True)
class LlamaConfig(HeadSettings, GroupedHeads):
    """The settings of config.json that change the result. Defaults: Llama 2 7B."""

    TITLE: ClassVar = "Llama"
    NO_EFFECT: ClassVar = frozenset({"pretraining_tp", "rope_interleaved", "is_llama_config"})
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
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
    num_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: num_attention_heads
    head_dim: int | None = field(default=None, metadata={"range": (2, 2**16)})  # None: hidden_size / heads
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-6
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and others
    attention_bias: bool = field(default=False, metadata={"model_types": ("llama", "qwen3")})
    mlp_bias: bool = field(default=False, metadata={"model_types": ("llama",)})
    sliding_window: int | None = field(default=None, metadata={"range": (1, 2**31), "model_types": WINDOWED})
    use_sliding_window: bool = field(default=False, metadata={"model_types": ("qwen2", "qwen3")})
    # Layers before the first window
    max_window_layers: int = field(default=28, metadata={"range": (0, 4096), "model_types": ("qwen2", "qwen3")})
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
                f"Llama: without head_dim, hidden_size ({self.hidden_size}) must be a multiple of "
                f"num_attention_heads ({self.num_attention_heads})"
            )
        if self.head_size % 2:
            raise ValueError(f"Llama: head_dim ({self.head_size}) must be even: positions rotate pairs")
        rotary.check("Llama", self.rope, grows=self.model_type == "ministral3")
        self.windows  # noqa: B018  # checks the pattern

    @property
    def inner(self) -> int:
        """The width of the MLP."""
        return self.intermediate_size

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters with defaults."""
        return rotary.completed(self.rope_parameters, self.max_position_embeddings)

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer, in positions; None for all previous positions."""
        count, kind = self.num_hidden_layers, self.model_type
        qwen = kind.startswith("qwen")
        window = self.sliding_window if self.use_sliding_window or not qwen else None
        first = self.max_window_layers if qwen else 0
        natural = [window if layer >= first else None for layer in range(count)]
        if self.layer_types is None:
            return natural
        kinds = {"full_attention": None, "sliding_attention": window}
        check_layer_types("Llama", self.layer_types, kinds, count)
        windows = [kinds[name] for name in self.layer_types]
        # Only Ministral and Qwen read layer_types; for the others it must equal their pattern.
        if windows != natural and kind in ("llama", "mistral", "ministral3"):
            raise ValueError(f"Llama: a {kind} model has no layer_types, but config.json sets it")
        return windows

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return Structure(
            self.windows, [self.rope] * self.num_hidden_layers, self.head_size, eps=self.rms_norm_eps,
            qkv_bias=self.attention_bias or self.model_type == "qwen2", output_bias=self.attention_bias,
            mlp_bias=self.mlp_bias, head_norms="each" if self.model_type == "qwen3" else "",
        )  # fmt: skip

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model for transformers."""
        dropped = unavailable(self, self.model_type)
        dropped |= dict.fromkeys(HeadSettings.__dataclass_fields__)
        settings = {name: value for name, value in asdict(self).items() if name not in dropped}
        settings |= {"rope_parameters": self.rope, "head_dim": self.head_size}
        if self.layer_types is None:  # transformers reads a mistral model with layer_types, even null, as a ministral
            del settings["layer_types"]
        return settings | self.hub_head(ARCHITECTURES[self.model_type])
