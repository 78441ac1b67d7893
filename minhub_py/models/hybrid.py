"""The parts that decoders with attention and selective state spaces share: Granite 4, Bamba, Falcon H1,
Nemotron H and Jamba.

A layer's cache is keys and values, the state of models/state_space.py, or both. Only keys and
values grow with the text.

Notation: see models/decoder.py and models/state_space.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, LayerCache, Layout
from minhub_py.models.decoder import Attention
from minhub_py.models.layers import BlockList, RMSNorm, scaled
from minhub_py.models.mixture import Mixture
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.rotary import Rotation
from minhub_py.models.state_space import (
    Mamba1Mixer,
    Mamba2Mixer,
    Mixer,
    check_auto,
    check_step_limit,
)
from minhub_py.models.steps import Add, Attend, Embed, Linear, Logits, Norm, Rotate, Step
from minhub_py.models.structure import DecoderConfig
from minhub_py.system.json_text import JsonObject


class HybridConfig(DecoderConfig):
    """The settings of config.json, and the mixer and MLP of each layer."""

    @property
    def kinds(self) -> list[str]:
        """mamba or attention, for each layer."""
        raise NotImplementedError

    def mixer(self, layer: int) -> Mamba1Mixer | Mamba2Mixer:
        """The selective state space of a layer."""
        raise NotImplementedError

    def mlp(self, layer: int) -> GatedMLP | Mixture:
        """The MLP or experts of a layer."""
        raise NotImplementedError


def attention_steps(
    attn: Attention, rope: rotary.Rope | None, scale: float = 1.0
) -> Iterator[Step]:
    """The operations of attention for its input h."""
    heads = attn.heads, attn.kv_heads
    yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
    if rope is not None:
        yield Rotate(*heads, rope)
    yield Attend(*heads, attn.scale, dropout=attn.dropout)
    yield Add(attn.o_proj, scale=scale)


class HybridBlock(nn.Module):
    """Attention or a selective state space, and an MLP or experts."""

    def __init__(self, config: HybridConfig, layer: int) -> None:
        super().__init__()
        C, structure = config.hidden_size, config.structure
        is_mamba = config.kinds[layer] == "mamba"
        self.scale = structure.factors.residual
        self.keys = KeyValues(config.kv_heads, config.head_size)
        self.input_layernorm = RMSNorm(C, structure.eps)
        self.self_attn = None if is_mamba else Attention(config, layer)
        self.mamba = config.mixer(layer) if is_mamba else None
        self.post_attention_layernorm = RMSNorm(C, structure.eps)
        self.mlp = config.mlp(layer)

    def forward(self, x: Tensor, past: Past, rotation: Rotation | None) -> Tensor:
        h = self.input_layernorm(x)
        if self.self_attn is not None:
            x = x + self.scale * self.self_attn(h, past, rotation)
        elif self.mamba is not None:
            x = x + self.scale * self.mamba(h, past)
        return x + self.feed_forward(self.post_attention_layernorm(x))

    def feed_forward(self, h: Tensor) -> Tensor:
        """The output of the MLP or experts as it is added to the residual stream."""
        return self.scale * self.mlp(h)

    def cache_layout(self) -> list[LayerCache]:
        """The caches of the layer."""
        return [self.keys if self.mamba is None else self.mamba.cache_layout()]

    def steps(self, rope: rotary.Rope | None) -> Iterator[Step]:
        """The operations of the layer."""
        yield Norm(self.input_layernorm)
        if self.self_attn is not None:
            yield from attention_steps(self.self_attn, rope, self.scale)
        elif self.mamba is not None:
            yield from self.mamba.steps(self.scale)
        yield from self.mlp_steps()

    def mlp_steps(self) -> Iterator[Step]:
        """The operations of the norm and of the MLP or experts."""
        yield Norm(self.post_attention_layernorm)
        if isinstance(self.mlp, Mixture):
            yield self.mlp.step()
        else:
            yield from self.mlp.steps(scale=self.scale)


class Hybrid(LanguageModel):
    """The embedding, the layers, the norm and the head."""

    BLOCK: ClassVar[type] = HybridBlock
    config: HybridConfig

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.config, self.factors = config, config.structure.factors
        rope = config.structure.ropes[0]
        self.rope = None if rope is None else rotary.rope_of(rope, config.rotated)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = BlockList(
            self.BLOCK(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.structure.eps)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)
        for module in self.layers.modules():
            if isinstance(module, Mixer):
                module.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        if self.factors.embeddings is not None:
            x = scaled(x, self.factors.embeddings)
        rotation = None if self.rope is None else Rotation(self.rope, past.positions, x.dtype)
        for block in self.layers:
            x = block(x, past, rotation)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        logits = F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)
        return logits if self.factors.logits == 1.0 else logits * self.factors.logits

    def cache_layout(self) -> Layout:
        return [cache for block in self.layers for cache in block.cache_layout()]

    def caches(self) -> list[list[int]]:
        numbers = count()
        return [[next(numbers) for _ in block.cache_layout()] for block in self.layers]

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens, scale=self.factors.embeddings)
        for block in self.layers:
            yield from block.steps(self.rope)
        yield Norm(self.norm)
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        yield Logits(head, scale=self.factors.logits)


def layer_kinds(layers: int, attention: Sequence[int]) -> list[str]:
    """`HybridConfig.kinds` of a model with attention in these layers."""
    return ["attention" if layer in attention else "mamba" for layer in range(layers)]


@dataclass(frozen=True)
class Mamba2Settings(HybridConfig):
    """The settings of Mamba 2 with the names of Granite 4, Bamba and Falcon H1.

    INNER: the settings that determine the channels of the scan.
    """

    INNER: ClassVar[str] = "mamba_expand · hidden_size"

    mamba_n_heads: int = 128
    # None or "auto": the channels of the scan / mamba_n_heads
    mamba_d_head: int | str | None = field(default="auto", metadata={"range": (1, 2**24)})
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = field(default=4, metadata={"range": (2, 1024)})
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: list | None = None  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_auto(self.TITLE, "mamba_d_head", self.mamba_d_head)
        check_step_limit(self.TITLE, self.time_step_limit)
        object.__setattr__(self, "time_step_limit", None)

    def check_heads(self) -> None:
        """ValueError: the heads do not divide the channels of the scan."""
        heads = self.mamba_n_heads
        if heads * self.mamba_head_size != self.inner or heads % self.mamba_n_groups:
            raise ValueError(
                f"{self.TITLE}: mamba_n_heads ({heads}) must divide {self.INNER}"
                f" ({self.inner}) into heads of mamba_d_head ({self.mamba_d_head!r:.80}), and be a"
                f" multiple of mamba_n_groups ({self.mamba_n_groups})"
            )

    @property
    def inner(self) -> int:
        """Number of channels of the scan (N)."""
        return self.mamba_expand * self.hidden_size

    @property
    def mamba_head_size(self) -> int:
        """Number of channels of a head of Mamba (P)."""
        size = self.mamba_d_head
        return size if isinstance(size, int) else self.inner // self.mamba_n_heads

    def mixer(self, layer: int) -> Mamba2Mixer:
        """The selective state space of a layer."""
        return Mamba2Mixer(
            layer,
            self.hidden_size,
            self.mamba_n_heads,
            self.mamba_head_size,
            self.mamba_d_state,
            self.mamba_n_groups,
            self.mamba_d_conv,
            self.structure.eps,
            self.hidden_act,
            self.mamba_proj_bias,
            self.mamba_conv_bias,
        )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = super().to_hub()
        del settings["time_step_limit"]
        return settings
