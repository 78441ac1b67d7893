"""LFM2 in one file: short convolutions in most layers, attention in the others; LFM2 MoE with a
mixture of experts.

Sources
    Liquid AI (2025), "LFM2 Technical Report". Rotary positions: Su et al. (2021); KV heads: Ainslie
        et al. (2023).
    Hub docs: `transformers`, model_types "lfm2" and "lfm2_moe".

Differences from similar architectures
    Llama       has attention in every layer and no norms of q and k.
    Qwen 3.5    has a convolution, too, but before a recurrent rule; here it is the whole layer.

    lfm2_moe    experts after the first layers; a sigmoid scores them, and a bias balances their choice

Notation
    B batch rows    T new positions    C channels, hidden_size    H query heads    G KV heads    D
    head size V vocabulary    L taps of the convolution
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary, steps
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout, State
from minhub_py.models.experts import Routing
from minhub_py.models.layers import BlockList, RMSNorm
from minhub_py.models.mixture import Mixture
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import Positions, check_layer_types, check_multiple, unavailable
from minhub_py.models.steps import Add, Attend, Embed, Linear, Logits, Norm, Rotate, Step
from minhub_py.system.json_text import JsonObject


class ShortConvolutionLayer(nn.Module):
    """A gated convolution over time: c · conv(b · x), for b, c and x projected from the input."""

    def __init__(self, config: "Lfm2Config", layer: int) -> None:
        super().__init__()
        C, bias = config.hidden_size, config.conv_bias
        # previous positions that the convolution reads
        self.layer, self.lookback = layer, config.conv_L_cache - 1
        self.in_proj = nn.Linear(C, 3 * C, bias=bias)
        self.conv = nn.Conv1d(C, C, config.conv_L_cache, groups=C, bias=bias)  # depthwise
        self.out_proj = nn.Linear(C, C, bias=bias)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        b, c, x = self.in_proj(x).chunk(3, dim=2)  # (B, T, C) each
        inputs = b * x
        [before] = past.state(self.layer) or [
            inputs.new_zeros(inputs.size(0), self.lookback, inputs.size(2))
        ]
        inputs = torch.cat((before.to(inputs.dtype), inputs), dim=1)  # (B, L - 1 + T, C)
        past.set_state(self.layer, [inputs[:, x.size(1) :]])
        return self.out_proj(c * self.conv(inputs.transpose(1, 2)).transpose(1, 2))


class Attention(nn.Module):
    def __init__(self, config: "Lfm2Config", layer: int) -> None:
        super().__init__()
        C, size = config.hidden_size, config.head_size
        self.layer, self.heads, self.kv_heads = (
            layer,
            config.num_attention_heads,
            config.num_key_value_heads,
        )
        self.scale = size**-0.5
        self.q_proj = nn.Linear(C, self.heads * size, bias=False)
        self.k_proj = nn.Linear(C, self.kv_heads * size, bias=False)
        self.v_proj = nn.Linear(C, self.kv_heads * size, bias=False)
        self.out_proj = nn.Linear(self.heads * size, C, bias=False)
        self.q_norm = RMSNorm(size, config.norm_eps)
        self.k_norm = RMSNorm(size, config.norm_eps)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q = split_heads(self.q_proj(x), self.heads)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), self.kv_heads)  # (B, G, T, D)
        v = split_heads(self.v_proj(x), self.kv_heads)
        q, k = rotation(self.q_norm(q), self.k_norm(k))
        return self.out_proj(merge_heads(past.attend(self.layer, q, k, v, scale=self.scale)))


class Block(nn.Module):
    def __init__(self, config: "Lfm2Config", layer: int) -> None:
        super().__init__()
        C, attends = config.hidden_size, config.kinds[layer] == "full_attention"
        self.operator_norm = RMSNorm(C, config.norm_eps)
        self.self_attn = Attention(config, layer) if attends else None
        self.conv = None if attends else ShortConvolutionLayer(config, layer)
        self.ffn_norm = RMSNorm(C, config.norm_eps)
        routing = Routing(
            config.num_experts_per_tok, config.norm_topk_prob, True, config.routed_scaling_factor
        )
        self.mlp = (
            Mixture(
                config.num_experts,
                C,
                config.moe_intermediate_size,
                "silu",
                routing,
                config.use_expert_bias,
            )
            if config.is_sparse(layer)
            else GatedMLP(C, config.inner_size, "silu")
        )

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        h = self.operator_norm(x)
        if self.self_attn is not None:
            x = x + self.self_attn(h, past, rotation)
        elif self.conv is not None:
            x = x + self.conv(h, past)
        return x + self.mlp(self.ffn_norm(x))


class Lfm2(LanguageModel):
    config: "Lfm2Config"

    def __init__(self, config: "Lfm2Config") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.head_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
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
        config = self.config
        keys = KeyValues(config.num_key_value_heads, config.head_size)
        state = State(((config.conv_L_cache - 1, config.hidden_size),), torch.float32)
        return [keys if kind == "full_attention" else state for kind in config.kinds]

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens)
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            yield Norm(block.operator_norm)
            if attn is not None:
                heads = attn.heads, attn.kv_heads
                yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
                yield Rotate(*heads, self.rope, attn.q_norm, attn.k_norm)
                yield Attend(*heads, attn.scale)
                yield Add(attn.out_proj)
            if (conv := block.conv) is not None:
                yield Linear([conv.in_proj])
                yield steps.ShortConvolution(conv.conv)
                yield Add(conv.out_proj)
            yield Norm(block.ffn_norm)
            if isinstance(mlp, Mixture):
                yield mlp.step()
            else:
                yield from mlp.steps()
        yield Norm(self.norm)
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


CLASSES = {"lfm2": "Lfm2ForCausalLM", "lfm2_moe": "Lfm2MoeForCausalLM"}
DENSE, SPARSE = {"model_types": ("lfm2",)}, {"model_types": ("lfm2_moe",)}


@dataclass(frozen=True)
class Lfm2Config(Positions):
    """The settings of config.json that change the result. Defaults: transformers."""

    TITLE: ClassVar = "LFM2"
    NO_EFFECT: ClassVar = frozenset(
        """
        block_dim block_norm_eps block_mlp_init_scale block_out_init_scale block_use_swiglu block_use_xavier_init
        conv_dim conv_dim_out conv_use_xavier_init num_heads use_pos_enc output_router_logits router_aux_loss_coef
        """.split()
    )
    ROPE_DEFAULT: ClassVar = {"rope_type": "default", "rope_theta": 1e6}
    ALIASES: ClassVar = {
        "lfm2": {"tie_embedding": "tie_word_embeddings"},
        "lfm2_moe": {"tie_embedding": "tie_word_embeddings", "num_local_experts": "num_experts"},
    }
    DERIVED: ClassVar = ("head_dim",)
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "lfm2": {},
        "lfm2_moe": {"hidden_size": 2048, "intermediate_size": 7168},
    }

    model_type: str = "lfm2"
    vocab_size: int = 65536
    hidden_size: int = 2560
    intermediate_size: int = 12288
    # older name, has priority
    block_ff_dim: int | None = field(default=None, metadata={"range": (1, 2**24), **DENSE})
    block_auto_adjust_ff_dim: bool = field(default=True, metadata=DENSE)
    block_ffn_dim_multiplier: float | None = field(
        default=1.0, metadata={"range": (0.0, 1e3), **DENSE}
    )
    block_multiple_of: int = field(default=256, metadata=DENSE)
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    layer_types: list[str] | None = None  # "full_attention" or "conv"
    # without layer_types; None: all layers
    full_attn_idxs: list[int] | None = field(default=None, metadata=DENSE)
    conv_L_cache: int = field(default=3, metadata={"range": (2, 1024)})  # noqa: N815  # taps of the convolution
    conv_bias: bool = False
    moe_intermediate_size: int = field(default=1792, metadata=SPARSE)  # of an expert
    # layers before the experts
    num_dense_layers: int = field(default=2, metadata={"range": (0, 4096), **SPARSE})
    num_experts: int = field(default=32, metadata={"range": (1, 1024), **SPARSE})
    num_experts_per_tok: int = field(default=4, metadata={"range": (1, 16), **SPARSE})
    norm_topk_prob: bool = field(default=True, metadata=SPARSE)
    routed_scaling_factor: float = field(default=1.0, metadata={"range": (0.0, 1e3), **SPARSE})
    use_expert_bias: bool = field(default=True, metadata=SPARSE)
    max_position_embeddings: int = field(default=128000, metadata={"range": (1, 2**31)})
    norm_eps: float = 1e-5
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and others
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        check_multiple(self, "num_attention_heads", "num_key_value_heads")
        check_multiple(self, "hidden_size", "num_attention_heads")
        if self.head_size % 2:
            raise ValueError(
                f"LFM2: the head size ({self.head_size}) must be even, because rotary embeddings rotate pairs"
            )
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"LFM2: num_experts_per_tok ({self.num_experts_per_tok}) cannot be more than"
                f" num_experts ({self.num_experts})"
            )
        check_layer_types("LFM2", self.kinds, ("full_attention", "conv"), self.num_hidden_layers)
        rotary.check("LFM2", self.rope)

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.model_type == "lfm2_moe" and layer >= self.num_dense_layers

    @property
    def kinds(self) -> list[str]:
        """full_attention or conv, for each layer."""
        if self.layer_types is not None:
            return self.layer_types
        layers = range(self.num_hidden_layers)
        return [
            "full_attention" if layer in (self.full_attn_idxs or layers) else "conv"
            for layer in layers
        ]

    @property
    def inner_size(self) -> int:
        """The inner width of the MLP."""
        size = self.block_ff_dim or self.intermediate_size
        if self.model_type == "lfm2_moe" or not self.block_auto_adjust_ff_dim:
            return size
        size, unit = int(2 * size / 3), self.block_multiple_of
        size = (
            size
            if self.block_ffn_dim_multiplier is None
            else int(self.block_ffn_dim_multiplier * size)
        )
        return -(-size // unit) * unit

    @property
    def head_size(self) -> int:
        """Number of channels of a head (D)."""
        return self.hidden_size // self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """Alias of head_size, which some files state."""
        return self.head_size

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        settings = {"rope_theta": 1e6, **(self.rope_parameters or {})}
        return rotary.completed(settings, self.max_position_embeddings)

    @property
    def effective(self) -> dict[str, object]:
        """See `Effective.effective`."""
        settings = {
            name: value
            for name, value in super().effective.items()
            if not name.startswith("block_")
        }
        return {**settings, "intermediate_size": self.inner_size}

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        absent = {*unavailable(self, self.model_type), "full_attn_idxs"}
        settings = {name: value for name, value in asdict(self).items() if name not in absent}
        if self.block_ff_dim is None:
            settings.pop("block_ff_dim", None)
        own = {"rope_parameters": self.rope, "layer_types": self.kinds}
        return {"architectures": [CLASSES[self.model_type]], **settings, **own}
