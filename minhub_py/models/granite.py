"""Granite 3 and 4: Llama with four factors, of the embeddings, the scores, the added outputs and
the logits.

Sources
    Soule & Bergmann (2024), "IBM Granite 3.0"; the factors: Yang et al. (2022), "Tensor Programs
        V".
    Hub docs: `transformers`, model_types "granite" and "granitemoehybrid".

Differences from similar architectures
    Llama    has none of the factors, and divides the scores by the root of the head size.

    granitemoehybrid    Granite 4. Most layers of the sizes with an "h" have a selective state space, Mamba 2's
                        (state_space.py), in place of attention. Rotary positions only with position_embedding_type
                        "rope". Some sizes have experts in addition to the MLP.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.decoder import Attention, Decoder
from minhub_py.models.experts import Routing
from minhub_py.models.layers import BlockList, RMSNorm, scaled
from minhub_py.models.mixture import Mixture
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import check_layer_types
from minhub_py.models.state_space import Mamba2Mixer, check_auto, check_step_limit
from minhub_py.models.steps import (
    Add,
    Attend,
    Embed,
    Gate,
    Linear,
    Logits,
    Norm,
    Rotate,
    SaveResidual,
    Step,
)
from minhub_py.models.structure import DecoderConfig, Factors, Structure, biases
from minhub_py.system.json_text import JsonObject


class Granite(Decoder):
    config: "GraniteConfig"


class HybridBlock(nn.Module):
    def __init__(self, config: "GraniteHybridConfig", layer: int) -> None:
        super().__init__()
        C, eps, act = config.hidden_size, config.rms_norm_eps, config.hidden_act
        is_mamba = config.kinds[layer] == "mamba"
        self.scale = config.residual_multiplier
        self.input_layernorm = RMSNorm(C, eps)
        self.self_attn = None if is_mamba else Attention(config, layer)
        self.mamba = config.mixer(layer) if is_mamba else None
        self.post_attention_layernorm = RMSNorm(C, eps)
        self.mlp = GatedMLP(C, config.intermediate_size, act)
        routing = Routing(config.num_experts_per_tok, normalize=True, factor=self.scale)
        self.experts = (
            Mixture(config.num_experts, C, config.moe_intermediate_size, act, routing)
            if config.num_experts
            else None
        )

    def forward(self, x: Tensor, past: Past, rotation: Rotation | None) -> Tensor:
        h = self.input_layernorm(x)
        if self.self_attn is not None:
            x = x + self.scale * self.self_attn(h, past, rotation)
        elif self.mamba is not None:
            x = x + self.scale * self.mamba(h, past)
        h = self.post_attention_layernorm(x)
        x = x + self.scale * self.mlp(h)
        return x if self.experts is None else x + self.experts(h)

    def steps(self, rope: rotary.Rope | None) -> Iterator[Step]:
        attn, mlp, norm = self.self_attn, self.mlp, self.post_attention_layernorm
        yield Norm(self.input_layernorm)
        if attn is not None:
            heads = attn.heads, attn.kv_heads
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            if rope is not None:
                yield Rotate(*heads, rope)
            yield Attend(*heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.o_proj, scale=self.scale)
        elif self.mamba is not None:
            yield from self.mamba.steps(self.scale)
        if self.experts is not None:  # read the same x as the MLP
            yield SaveResidual()
        yield Norm(norm)
        yield Linear([mlp.gate_proj, mlp.up_proj])
        yield Gate(mlp.activation)
        yield Add(mlp.down_proj, scale=self.scale)
        if self.experts is not None:
            yield Norm(norm, saved=True)
            yield self.experts.step()


class GraniteHybrid(LanguageModel):
    config: "GraniteHybridConfig"

    def __init__(self, config: "GraniteHybridConfig") -> None:
        super().__init__()
        self.config, self.factors = config, config.structure.factors
        rope = config.structure.ropes[0]
        self.rope = None if rope is None else rotary.rope_of(rope, config.rotated)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = BlockList(
            HybridBlock(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)
        for block in self.layers:
            if block.mamba is not None:
                block.mamba.init_weights(config.initializer_range)

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
        keys = KeyValues(self.config.kv_heads, self.config.head_size)
        return [
            keys if block.mamba is None else block.mamba.cache_layout() for block in self.layers
        ]

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens, scale=self.factors.embeddings)
        for block in self.layers:
            yield from block.steps(self.rope)
        yield Norm(self.norm)
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        yield Logits(head, scale=self.factors.logits)


@dataclass(frozen=True)
class GraniteConfig(DecoderConfig):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Granite"
    MODEL_TYPE: ClassVar = "granite"
    ARCHITECTURE: ClassVar = "GraniteForCausalLM"

    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: float = field(default=1.0, metadata={"range": (1e-6, 1e6)})
    attention_multiplier: float = field(default=1.0, metadata={"range": (1e-6, 1e6)})
    residual_multiplier: float = field(default=1.0, metadata={"range": (1e-6, 1e6)})
    logits_scaling: float = field(default=1.0, metadata={"range": (1e-6, 1e6)})
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    @property
    def structure(self) -> Structure:
        """What distinguishes this model from Llama."""
        return self.declared(
            eps=self.rms_norm_eps,
            biases=biases(self.attention_bias, self.attention_bias, self.mlp_bias),
            factors=Factors(
                embeddings=None if self.embedding_multiplier == 1 else self.embedding_multiplier,
                scores=self.attention_multiplier,
                residual=self.residual_multiplier,
                logits=1 / self.logits_scaling,
            ),
        )


# names of layer types in files, in transformers 5 and before
KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


@dataclass(frozen=True)
class GraniteHybridConfig(GraniteConfig):
    """The settings of config.json that change the result. Defaults: transformers'."""

    TITLE: ClassVar = "Granite 4"
    MODEL_TYPE: ClassVar = "granitemoehybrid"
    ARCHITECTURE: ClassVar = "GraniteMoeHybridForCausalLM"
    # The MLP of all tokens is a shared expert there.
    ALIASES: ClassVar = {
        "granitemoehybrid": {
            "shared_intermediate_size": "intermediate_size",
            "intermediate_size": "moe_intermediate_size",
            "layers_block_type": "layer_types",
            "num_local_experts": "num_experts",
        }
    }
    ONLY_VALUE: ClassVar = {"mlp_bias": False}
    NO_EFFECT: ClassVar = frozenset(
        "output_router_logits router_aux_loss_coef mamba_chunk_size normalization_function"
        " init_method time_step_min time_step_max".split()
    )

    intermediate_size: int = 1024
    moe_intermediate_size: int = 11008  # of an expert
    num_experts: int = field(default=8, metadata={"range": (0, 1024)})
    num_experts_per_tok: int = field(default=2, metadata={"range": (0, 16)})
    # "mamba" or "attention" (or the newer names of KINDS); None: mamba
    layer_types: list[str] | None = None
    position_embedding_type: str | None = field(
        default=None, metadata={"choices": (None, "rope", "nope")}
    )
    mamba_n_heads: int = 128
    # None or "auto": mamba_expand · hidden_size / mamba_n_heads
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
        check_layer_types(self.TITLE, self.layer_types or self.kinds, KINDS, self.num_hidden_layers)
        if self.num_experts_per_tok > self.num_experts > 0 or (
            self.num_experts and not self.num_experts_per_tok
        ):
            raise ValueError(
                f"Granite 4: num_experts_per_tok ({self.num_experts_per_tok}) must be between 1 and"
                f" num_local_experts ({self.num_experts})"
            )
        if "mamba" not in self.kinds:
            return
        inner, heads = self.mamba_expand * self.hidden_size, self.mamba_n_heads
        if heads * self.mamba_head_size != inner or heads % self.mamba_n_groups:
            raise ValueError(
                f"Granite 4: mamba_n_heads ({heads}) must divide mamba_expand · hidden_size"
                f" ({inner}) into heads of mamba_d_head ({self.mamba_d_head!r:.80}), and be a"
                f" multiple of mamba_n_groups ({self.mamba_n_groups})"
            )

    @property
    def kinds(self) -> list[str]:
        """mamba or attention, for each layer."""
        return [KINDS[name] for name in self.layer_types or ["mamba"] * self.num_hidden_layers]

    @property
    def mamba_head_size(self) -> int:
        """Number of channels of a head of Mamba (P)."""
        size, inner = self.mamba_d_head, self.mamba_expand * self.hidden_size
        return size if isinstance(size, int) else inner // self.mamba_n_heads

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
            self.rms_norm_eps,
            self.hidden_act,
            self.mamba_proj_bias,
            self.mamba_conv_bias,
        )

    @property
    def structure(self) -> Structure:
        """The differences of the attention and the factors from Llama's."""
        structure = super().structure
        if self.position_embedding_type == "rope":
            return structure
        return replace(structure, ropes=[None] * self.num_hidden_layers)

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = super().to_hub()
        for name in ("mlp_bias", "time_step_limit"):
            del settings[name]
        inner = settings.pop("moe_intermediate_size")
        settings["shared_intermediate_size"] = settings["intermediate_size"]
        settings["num_local_experts"] = settings.pop("num_experts")
        if self.num_experts:
            settings["intermediate_size"] = inner
        settings["layer_types"] = self.kinds  # transformers 4 accepts these names only
        if "mamba" not in self.kinds:  # transformers checks them without such a layer, too
            settings |= {"mamba_n_heads": 1, "mamba_d_head": "auto"}
        return settings
