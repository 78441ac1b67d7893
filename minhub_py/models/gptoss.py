"""GPT-OSS, a mixture of experts: of each layer's many MLPs a router has each position pass through a few.

Sources
    OpenAI (2025), "gpt-oss-120b & gpt-oss-20b Model Card".
    Shazeer et al. (2017), "Outrageously Large Neural Networks", for experts; Xiao et al. (2023), "Efficient Streaming
    Language Models with Attention Sinks"; Peng et al. (2023), "YaRN"; Beltagy et al. (2020), for alternate windows.
    Hub docs: `transformers`, model_type "gpt_oss".

What differs from its siblings
    Llama    has one MLP in each layer, and weights of attention that sum to 1. Here each head has a sink: a learnt
             score beside those of the positions, whose share of the softmax goes nowhere.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)    N = B * T
    C channels, hidden_size    H heads of q    G heads of k and v, H / G of q to each    D head size    V vocabulary
    E experts    K experts of a position    I channels inside an expert    W window, which includes the current position
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from reprlib import repr as brief
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Span
from minhub_py.models import rotary
from minhub_py.models.base import LanguageModel, Step, step
from minhub_py.models.packed import BLOCK, Packed


class RMSNorm(nn.Module):
    """x / sqrt(mean of x²) · weight, over the last dimension; all in float32, unlike Llama's."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)
        return (self.weight * y).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of x (B, H, T, D) by its position's angle; cos, sin (B or 1, 1, T, D/2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: "GPTOSSConfig", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.groups, self.size = config.num_attention_heads, config.kv_heads, config.head_size
        self.window = config.windows[layer]
        self.dropout = config.attention_dropout
        C, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(C, self.heads * self.size, bias=bias)
        self.k_proj = nn.Linear(C, self.groups * self.size, bias=bias)
        self.v_proj = nn.Linear(C, self.groups * self.size, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.size, C, bias=bias)
        self.sinks = nn.Parameter(torch.empty(self.heads))

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = rotate(self.q_proj(x).view(B, T, self.heads, self.size).transpose(1, 2), cos, sin)  # (B, H, T, D)
        k = rotate(self.k_proj(x).view(B, T, self.groups, self.size).transpose(1, 2), cos, sin)  # (B, G, T, D)
        v = self.v_proj(x).view(B, T, self.groups, self.size).transpose(1, 2)
        k, v, seen = span.update(self.layer, k, v)  # (B, G, S, D), (B, G, S, D), (B or 1, S)
        k = k.repeat_interleave(self.heads // self.groups, dim=1)  # (B, H, S, D)
        v = v.repeat_interleave(self.heads // self.groups, dim=1)
        scores = q @ k.transpose(2, 3) * self.size**-0.5  # (B, H, T, S)
        mask = span.mask(seen, self.window)  # (B or 1, 1, T, S), or None
        if mask is None and T > 1:
            mask = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        # The sink takes part in the softmax and is dropped: no fused attention has it.
        sinks = self.sinks.view(1, -1, 1, 1).expand(B, -1, T, 1)
        weights = torch.cat((scores, sinks), dim=3).softmax(dim=3)[..., :-1]  # (B, H, T, S), which sum to less than 1
        y = F.dropout(weights, self.dropout, self.training) @ v  # (B, H, T, D)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, self.heads * self.size))


class Experts(nn.Module):
    """E gated MLPs with biases. Their weights lie together, (E, in, out), as parameters or in MXFP4."""

    def __init__(self, config: "GPTOSSConfig") -> None:
        super().__init__()
        E, C, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit
        self.gate_up_proj = weights_of(config, E, C, 2 * inner)
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(E, 2 * inner))
        self.down_proj = weights_of(config, E, inner, C)
        self.down_proj_bias = nn.Parameter(torch.zeros(E, C))

    def forward(self, x: Tensor, number: int) -> Tensor:
        """What expert `number` makes of x (n, C)."""
        gate_up = x @ weight_of(self.gate_up_proj, number, x.dtype) + self.gate_up_proj_bias[number]  # (n, 2I)
        # In turn: even columns are the gate's, odd ones up's. The gate is clamped from above only.
        gate = gate_up[:, 0::2].clamp(max=self.limit)
        up = gate_up[:, 1::2].clamp(-self.limit, self.limit)
        inner = gate * torch.sigmoid(self.alpha * gate) * (up + 1)  # (n, I)
        return inner @ weight_of(self.down_proj, number, x.dtype) + self.down_proj_bias[number]


def weights_of(config: "GPTOSSConfig", experts: int, inputs: int, outputs: int) -> nn.Parameter | Packed:
    """Fresh weights (E, in, out) in the form that the config says."""
    if config.quantization_config is not None:
        return Packed(experts, inputs, outputs, config.initializer_range)
    return nn.Parameter(torch.empty(experts, inputs, outputs))


def weight_of(weights: nn.Parameter | Packed, number: int, dtype: torch.dtype) -> Tensor:
    """The weight (in, out) of one expert."""
    return weights.expert(number, dtype) if isinstance(weights, Packed) else weights[number]


class MLP(nn.Module):
    def __init__(self, config: "GPTOSSConfig") -> None:
        super().__init__()
        self.top = config.num_experts_per_tok
        self.router = nn.Linear(config.hidden_size, config.num_local_experts)
        self.experts = Experts(config)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)  # (N, C)
        scores, chosen = self.router(rows).topk(self.top, dim=1)  # (N, K) each
        shares = scores.softmax(dim=1)  # after the choice: they sum to 1
        y = torch.zeros_like(rows)
        for number in chosen.unique().tolist():
            row, place = (chosen == number).nonzero(as_tuple=True)  # (n,) each
            y = y.index_add(0, row, self.experts(rows[row], number) * shares[row, place].unsqueeze(1))
        return y.view_as(x)


class Block(nn.Module):
    def __init__(self, config: "GPTOSSConfig", layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), span, cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class GPTOSS(LanguageModel):
    config: "GPTOSSConfig"

    def __init__(self, config: "GPTOSSConfig") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.head_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                nn.init.normal_(parameter, std=config.initializer_range)

    def body(self, idx: Tensor, span: Span) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        cos, sin, _ = self.rope(span.positions)  # (B or 1, T, D/2)
        cos, sin = cos.to(x.dtype).unsqueeze(1), sin.to(x.dtype).unsqueeze(1)  # (B or 1, 1, T, D/2)
        for block in self.layers:
            x = block(x, span, cos, sin)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> list[KeyValues]:
        return [KeyValues(self.config.kv_heads, self.config.head_size, window) for window in self.config.windows]

    def steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.embed_tokens)
        for block in self.layers:
            attn, mlp, experts = block.self_attn, block.mlp, block.mlp.experts
            heads = {"heads": attn.heads, "groups": attn.groups}
            yield step("rms_norm", layer=block.input_layernorm)
            yield step("linear", layers=[attn.q_proj, attn.k_proj, attn.v_proj])
            yield step("rotate", **heads, rope=self.rope)
            yield step("attend", **heads, scale=attn.size**-0.5, window=attn.window, sinks=attn.sinks,
                       dropout=attn.dropout)  # fmt: skip
            yield step("add", layer=attn.o_proj)
            yield step("rms_norm", layer=block.post_attention_layernorm)
            yield step("experts", router=mlp.router, top=mlp.top, gate_up=experts.gate_up_proj,
                       gate_up_bias=experts.gate_up_proj_bias, down=experts.down_proj,
                       down_bias=experts.down_proj_bias, alpha=experts.alpha, limit=experts.limit)  # fmt: skip
        yield step("rms_norm", layer=self.norm)
        yield step("logits", layer=self.embed_tokens if self.lm_head is None else self.lm_head)


YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 4096}  # fmt: skip
# What the published files say of their quantization: the experts are packed, and these are not.
FLOATS = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")


@dataclass(frozen=True)
class GPTOSSConfig:
    """The settings of config.json that change the result, under the Hub's names; defaults are GPT-OSS 120B's."""

    TITLE: ClassVar = "GPT-OSS"
    NO_EFFECT: ClassVar = frozenset({"output_router_logits", "router_aux_loss_coef"})  # a term of the loss in training
    ROPE_DEFAULT: ClassVar = YARN
    DERIVED: ClassVar = ("experts_per_token", "initial_context_length", "num_experts")

    vocab_size: int = 201088
    hidden_size: int = 2880
    intermediate_size: int = 2880
    num_hidden_layers: int = field(default=36, metadata={"range": (1, 4096)})
    num_local_experts: int = 128
    num_experts_per_tok: int = 4
    num_attention_heads: int = 64
    num_key_value_heads: int | None = field(default=8, metadata={"range": (1, 2**24)})  # None: one for each head
    head_dim: int | None = field(default=64, metadata={"range": (2, 2**16)})  # None: hidden_size / heads
    max_position_embeddings: int = field(default=131072, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # None: YARN, not plain rotations
    sliding_window: int | None = field(default=128, metadata={"range": (1, 2**31)})
    layer_types: list[str] | None = None  # "sliding_attention" or "full_attention"; None: in turn
    hidden_act: str = field(default="silu", metadata={"choices": ("silu",)})  # but for swiglu_alpha and swiglu_limit
    attention_bias: bool = True
    attention_dropout: float = 0.0
    swiglu_alpha: float = field(default=1.702, metadata={"range": (0.0, 1e6)})
    swiglu_limit: float = field(default=7.0, metadata={"range": (0.0, 1e6)})
    quantization_config: dict | None = None  # type: ignore[type-arg]  # quant_method mxfp4: of the experts
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"GPT-OSS: num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.kv_heads})"
            )
        if self.num_experts_per_tok > self.num_local_experts:
            raise ValueError(
                f"GPT-OSS: num_experts_per_tok ({self.num_experts_per_tok}) cannot be more than "
                f"num_local_experts ({self.num_local_experts})"
            )
        if self.head_size % 2:
            raise ValueError(f"GPT-OSS: head_dim ({self.head_size}) must be even: positions rotate pairs")
        rotary.check("GPT-OSS", self.rope)
        self.windows  # noqa: B018  # refuses a pattern that does not fit
        if self.quantization_config is not None:
            self._check_quantization(self.quantization_config)

    def _check_quantization(self, settings: Mapping[str, Any]) -> None:
        method = settings.get("quant_method")
        if method != "mxfp4":
            raise ValueError(
                f"GPT-OSS: quantization_config's quant_method is {brief(method)}, which this package does not read; "
                "take the repository of the same model in mxfp4 or in BF16"
            )
        # dequantize says what transformers is to do with the file, and changes no value.
        known: dict[str, Any] = {"quant_method": [method], "dequantize": [True, False]}
        for name, value in settings.items():
            floats = value if name == "modules_to_not_convert" and isinstance(value, list) else None
            if floats is not None or (name == "modules_to_not_convert" and value is None):
                if strange := [each for each in floats or () if each not in FLOATS]:
                    raise ValueError(f"GPT-OSS: quantization_config leaves {brief(strange[0])} unpacked; in a file in "
                                     "mxfp4 all experts are packed, and nothing else")  # fmt: skip
            elif value not in known.get(name, ()):
                raise ValueError(f"GPT-OSS: quantization_config sets {brief(name)} to {brief(value)}, which this "
                                 "package does not know")  # fmt: skip
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % BLOCK:
                raise ValueError(
                    f"GPT-OSS: in mxfp4 {name} must be a multiple of {BLOCK}, which {getattr(self, name)} is not"
                )

    @property
    def kv_heads(self) -> int:
        """G, the heads of k and v."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """D."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters with what it leaves out."""
        given = YARN if self.rope_parameters is None else {"rope_theta": 150000.0, **self.rope_parameters}
        return rotary.completed(given, self.max_position_embeddings)

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer, in positions; None: it attends to everything before it."""
        kinds = {"sliding_attention": self.sliding_window, "full_attention": None}
        if self.layer_types is None:
            return [list(kinds.values())[layer % 2] for layer in range(self.num_hidden_layers)]
        if len(self.layer_types) != self.num_hidden_layers or not set(self.layer_types) <= set(kinds):
            raise ValueError(
                "GPT-OSS: layer_types must hold sliding_attention or full_attention for each of "
                f"{self.num_hidden_layers} layers"
            )
        return [kinds[name] for name in self.layer_types]

    @property
    def num_experts(self) -> int:
        """Another name of num_local_experts."""
        return self.num_local_experts

    @property
    def experts_per_token(self) -> int:
        """Another name of num_experts_per_tok."""
        return self.num_experts_per_tok

    @property
    def initial_context_length(self) -> int:
        """Another name of original_max_position_embeddings."""
        return int(self.rope.get("original_max_position_embeddings", self.max_position_embeddings))

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        settings = asdict(self)
        if self.layer_types is None:
            del settings["layer_types"]  # transformers has the same default, but takes no null
        if self.quantization_config is None:
            del settings["quantization_config"]
        own = {"rope_parameters": self.rope, "head_dim": self.head_size, "num_key_value_heads": self.kv_heads}
        return {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", **settings, **own}

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.max_position_embeddings
