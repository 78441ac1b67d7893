"""GPT-OSS, a mixture of experts: a router selects a few of the many MLPs of a layer for each token.
In one file.

Sources
    OpenAI (2025), "gpt-oss-120b & gpt-oss-20b Model Card".
    Shazeer et al. (2017), "Outrageously Large Neural Networks", for experts; Xiao et al. (2023),
        "Efficient Streaming Language Models with Attention Sinks"; Peng et al. (2023), "YaRN";
        Beltagy et al. (2020), for alternate windows.
    Hub docs: `transformers`, model_type "gpt_oss".

Differences from similar architectures
    Llama    has one MLP per layer, and attention weights that sum to 1. Here each head has a sink:
             a learned score in the softmax without a value.

Notation
    B batch rows    T new positions    S attended positions (cached and new)    N = B * T
    C channels, hidden_size    H query heads    G KV heads    D head size    V vocabulary
    E experts    K experts of a token    I channels inside an expert    W window, which includes the
    current position
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from reprlib import repr as brief
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary, steps
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.experts import BLOCK, Packed, Routing, gated_mlp, mixture, route, weight_of
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList, RMSNorm
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import GroupedHeads, check_layer_types, check_multiple
from minhub_py.models.steps import Add, Attend, Embed, Linear, Logits, Norm, Rotate, Step
from minhub_py.system.json_text import JsonObject


class Attention(nn.Module):
    def __init__(self, config: "GPTOSSConfig", layer: int) -> None:
        super().__init__()
        C, size, bias = config.hidden_size, config.head_size, config.attention_bias
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.kv_heads
        self.scale, self.window, self.dropout = (
            size**-0.5,
            config.windows[layer],
            config.attention_dropout,
        )
        self.q_proj = nn.Linear(C, self.heads * size, bias=bias)
        self.k_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(self.heads * size, C, bias=bias)
        self.sinks = nn.Parameter(torch.empty(self.heads))

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q = split_heads(self.q_proj(x), self.heads)  # (B, H, T, D)
        k = split_heads(self.k_proj(x), self.kv_heads)  # (B, G, T, D)
        v = split_heads(self.v_proj(x), self.kv_heads)
        q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(
            self.layer,
            q,
            k,
            v,
            scale=self.scale,
            window=self.window,
            sinks=self.sinks,
            dropout=dropout,
        )
        return self.o_proj(merge_heads(y))


class ColumnExperts(nn.Module):
    """E gated MLPs with biases. Their weights (E, in, out) are parameters, or in MXFP4."""

    def __init__(self, config: "GPTOSSConfig") -> None:
        super().__init__()
        E, C, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        self.gate_up_proj = new_weights(config, E, C, 2 * inner)
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(E, 2 * inner))
        self.down_proj = new_weights(config, E, inner, C)
        self.down_proj_bias = nn.Parameter(torch.zeros(E, C))

    def forward(self, x: Tensor, expert: int) -> Tensor:
        """The output (n, C) of an expert for x (n, C)."""
        gate_up = weight_of(self.gate_up_proj, expert, x.dtype)
        down = weight_of(self.down_proj, expert, x.dtype)
        biases = self.gate_up_proj_bias[expert], self.down_proj_bias[expert]
        return gated_mlp(x, gate_up, biases[0], down, biases[1], self.alpha, self.limit)


def new_weights(
    config: "GPTOSSConfig", experts: int, inputs: int, outputs: int
) -> nn.Parameter | Packed:
    """New weights (E, in, out), in MXFP4 if the config is quantized."""
    if config.quantization_config is not None:
        return Packed(experts, inputs, outputs, config.initializer_range)
    return nn.Parameter(torch.empty(experts, inputs, outputs))


class MLP(nn.Module):
    def __init__(self, config: "GPTOSSConfig") -> None:
        super().__init__()
        self.routing = Routing(config.num_experts_per_tok)
        self.router = nn.Linear(config.hidden_size, config.num_local_experts)
        self.experts = ColumnExperts(config)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)  # (N, C)
        # (N, K) each
        weights, chosen = route(tokens, self.router.weight, self.router.bias, self.routing.top)
        return mixture(tokens, weights, chosen, self.experts).view_as(x)


class Block(nn.Module):
    def __init__(self, config: "GPTOSSConfig", layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), past, rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class GPTOSS(LanguageModel):
    config: "GPTOSSConfig"

    def __init__(self, config: "GPTOSSConfig") -> None:
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
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                nn.init.normal_(parameter, std=config.initializer_range)

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
            attn, mlp, experts = block.self_attn, block.mlp, block.mlp.experts
            heads = attn.heads, attn.kv_heads
            yield Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Rotate(*heads, self.rope)
            yield Attend(*heads, attn.scale, attn.window, sinks=attn.sinks, dropout=attn.dropout)
            yield Add(attn.o_proj)
            yield Norm(block.post_attention_layernorm)
            yield steps.Experts(
                mlp.router,
                mlp.routing,
                [experts.gate_up_proj],
                experts.down_proj,
                experts.gate_up_proj_bias,
                experts.down_proj_bias,
                alpha=experts.alpha,
                limit=experts.limit,
            )
        yield Norm(self.norm)
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
# The published files quantize the experts and exclude these layers.
FLOATS = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")


@dataclass(frozen=True)
class GPTOSSConfig(HeadSettings, GroupedHeads):
    """The settings of config.json that change the result. Defaults: GPT-OSS 120B."""

    TITLE: ClassVar = "GPT-OSS"
    # a term of the loss in training
    NO_EFFECT: ClassVar = frozenset({"output_router_logits", "router_aux_loss_coef"})
    ROPE_DEFAULT: ClassVar = YARN
    DERIVED: ClassVar = ("experts_per_token", "initial_context_length", "num_experts")

    vocab_size: int = 201088
    hidden_size: int = 2880
    intermediate_size: int = 2880
    num_hidden_layers: int = field(default=36, metadata={"range": (1, 4096)})
    num_local_experts: int = 128
    num_experts_per_tok: int = 4
    num_attention_heads: int = 64
    # None: num_attention_heads
    num_key_value_heads: int | None = field(default=8, metadata={"range": (1, 2**24)})
    # None: hidden_size / heads
    head_dim: int | None = field(default=64, metadata={"range": (2, 2**16)})
    max_position_embeddings: int = field(default=131072, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # None: YARN
    sliding_window: int | None = field(default=128, metadata={"range": (1, 2**31)})
    # "sliding_attention" or "full_attention"; None: alternating
    layer_types: list[str] | None = None
    # with swiglu_alpha and swiglu_limit
    hidden_act: str = field(default="silu", metadata={"choices": ("silu",)})
    attention_bias: bool = True
    attention_dropout: float = 0.0
    swiglu_alpha: float = field(default=1.702, metadata={"range": (0.0, 1e6)})
    swiglu_limit: float = field(default=7.0, metadata={"range": (0.0, 1e6)})
    quantization_config: dict | None = None  # type: ignore[type-arg]  # quant_method mxfp4: the experts
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "num_attention_heads", "num_key_value_heads")
        if self.num_experts_per_tok > self.num_local_experts:
            raise ValueError(
                f"GPT-OSS: num_experts_per_tok ({self.num_experts_per_tok}) cannot be more than "
                f"num_local_experts ({self.num_local_experts})"
            )
        if self.head_size % 2:
            raise ValueError(
                f"GPT-OSS: head_dim ({self.head_size}) must be even, because rotary embeddings rotate pairs"
            )
        rotary.check("GPT-OSS", self.rope)
        self.windows  # noqa: B018  # checks the pattern
        if self.quantization_config is not None:
            self._check_quantization(self.quantization_config)

    def _check_quantization(self, settings: Mapping[str, object]) -> None:
        method = settings.get("quant_method")
        if method != "mxfp4":
            raise ValueError(
                f"GPT-OSS: quantization_config's quant_method {brief(method)} is not supported; use"
                " the repository of the same model in mxfp4 or in BF16"
            )
        # dequantize is a setting of transformers' loader without effect on the result.
        choices: dict[str, list[object]] = {"quant_method": [method], "dequantize": [True, False]}
        for name, value in settings.items():
            if name == "modules_to_not_convert" and isinstance(value, list | None):
                if unsupported := [module for module in value or () if module not in FLOATS]:
                    raise ValueError(
                        f"GPT-OSS: modules_to_not_convert contains {brief(unsupported[0])}, but this"
                        " package reads mxfp4 with all experts packed: use another repository"
                    )
            elif value not in choices.get(name, ()):
                raise ValueError(
                    f"GPT-OSS: quantization_config sets {brief(name)} to {brief(value)}, which this"
                    " package does not support"
                )
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % BLOCK:
                raise ValueError(
                    f"GPT-OSS: in mxfp4 {name} must be a multiple of {BLOCK}, not"
                    f" {getattr(self, name)}"
                )

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        settings = (
            YARN
            if self.rope_parameters is None
            else {"rope_theta": 150000.0, **self.rope_parameters}
        )
        return rotary.completed(settings, self.max_position_embeddings)

    @property
    def windows(self) -> list[int | None]:
        """Each layer's window, in positions; None for all previous positions."""
        kinds = {"sliding_attention": self.sliding_window, "full_attention": None}
        if self.layer_types is None:
            return [list(kinds.values())[layer % 2] for layer in range(self.num_hidden_layers)]
        check_layer_types("GPT-OSS", self.layer_types, kinds, self.num_hidden_layers)
        return [kinds[name] for name in self.layer_types]

    @property
    def num_experts(self) -> int:
        """Alias of num_local_experts."""
        return self.num_local_experts

    @property
    def experts_per_token(self) -> int:
        """Alias of num_experts_per_tok."""
        return self.num_experts_per_tok

    @property
    def initial_context_length(self) -> int:
        """Alias of original_max_position_embeddings."""
        return int(self.rope.get("original_max_position_embeddings", self.max_position_embeddings))

    @property
    def effective(self) -> dict[str, object]:
        """See `Effective.effective`."""
        rope = rotary.rope_of(self.rope, self.head_size)
        settings = {
            name: value for name, value in super().effective.items() if name != "layer_types"
        }
        settings |= {"windows": self.windows, "rope_parameters": (rope.frequencies, rope.amplitude)}
        return {**settings, "quantization_config": self.quantization_config is not None}

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = self.without_head()
        if self.layer_types is None:
            del settings["layer_types"]  # transformers has the same default and accepts no null
        if self.quantization_config is None:
            del settings["quantization_config"]
        own = {
            "rope_parameters": self.rope,
            "head_dim": self.head_size,
            "num_key_value_heads": self.kv_heads,
        }
        return {**self.hub_head("GptOssForCausalLM"), "model_type": "gpt_oss", **settings, **own}
