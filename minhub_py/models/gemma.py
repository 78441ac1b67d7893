"""Gemma, Gemma 2 and the text model of Gemma 3, in one file.

Sources
    Gemma Team (2024), "Gemma"; (2024), "Gemma 2"; (2025), "Gemma 3 Technical Report".
    Su et al. (2021), "RoFormer", for rotary positions; Zhang & Sennrich (2019) for RMS norm; Shazeer (2020), "GLU
    Variants", for the gated MLP; Ainslie et al. (2023), "GQA", for grouped heads; Bello et al. (2016), "Neural
    Combinatorial Optimization", for soft caps by tanh.
    Hub docs: `transformers`, model_types "gemma", "gemma2" and "gemma3_text".

What differs from its siblings
    Llama    does not multiply its embeddings; its norms multiply by their weight, where Gemma's add 1 to it.

    gemma         two norms to a block; every layer sees everything
    gemma2        a norm before and after attention and MLP; soft caps on scores and logits; every other layer is local
    gemma3_text   as gemma2, but q and k are normed and their scores have no cap; of six layers five are local, and
                  those turn faster

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, hidden_size    H heads of q    G heads of k and v, H / G of q to each    D head size    V vocabulary
    W window, which includes the current position
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Span
from minhub_py.models import rotary
from minhub_py.models.base import ACTIVATIONS, LanguageModel, Step, step

FULL, SLIDING = "full_attention", "sliding_attention"


class RMSNorm(nn.Module):
    """x / sqrt(mean of x²) · (1 + weight), over the last dimension, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)
        return (y * (1 + self.weight.float())).to(x.dtype)  # rounded once, after the factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of x (B, H, T, D) by its position's angle; cos, sin (B or 1, 1, T, D/2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def capped_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, cap: float, dropout: float
) -> Tensor:
    """Attention with cap · tanh(score / cap) for each score, which PyTorch's fused attention does not have.

    q (B, H, T, D); k, v (B, H, S, D); mask (B or 1, 1, T, S), or None as `Span.mask` means it.
    """
    T, S = q.size(2), k.size(2)
    if mask is None:
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
    scores = (q @ k.transpose(2, 3)).float() * scale  # (B, H, T, S), float32 whatever the weights are
    scores = cap * torch.tanh(scores / cap)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return F.dropout(weights, dropout).to(v.dtype) @ v


class Attention(nn.Module):
    def __init__(self, config: "GemmaConfig", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.groups, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.window, self.kind = config.windows[layer], config.kinds[layer]
        self.scale, self.cap, self.dropout = config.score_scale, config.score_cap, config.attention_dropout
        C, bias, normed = config.hidden_size, config.attention_bias, config.model_type == "gemma3_text"
        self.q_proj = nn.Linear(C, self.heads * self.size, bias=bias)
        self.k_proj = nn.Linear(C, self.groups * self.size, bias=bias)
        self.v_proj = nn.Linear(C, self.groups * self.size, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.size, C, bias=bias)
        self.q_norm = RMSNorm(self.size, config.rms_norm_eps) if normed else None
        self.k_norm = RMSNorm(self.size, config.rms_norm_eps) if normed else None

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.heads, self.size)
        k = self.k_proj(x).view(B, T, self.groups, self.size)
        v = self.v_proj(x).view(B, T, self.groups, self.size).transpose(1, 2)  # (B, G, T, D)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q = rotate(q.transpose(1, 2), cos, sin)  # (B, H, T, D)
        k = rotate(k.transpose(1, 2), cos, sin)  # (B, G, T, D)
        k, v, seen = span.update(self.layer, k, v)  # (B, G, S, D), (B, G, S, D), (B or 1, S)
        if self.heads != self.groups:
            k = k.repeat_interleave(self.heads // self.groups, dim=1)  # (B, H, S, D)
            v = v.repeat_interleave(self.heads // self.groups, dim=1)
        mask = span.mask(seen, self.window)  # (B or 1, 1, T, S), or None
        dropout = self.dropout if self.training else 0.0
        if self.cap is not None:
            y = capped_attention(q, k, v, mask, self.scale, self.cap, dropout)
        else:
            causal = True if mask is None and T > 1 else False  # noqa: SIM210  # torch.compile needs a branch
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=self.scale
            )
        return self.o_proj(y.transpose(1, 2).reshape(B, T, self.heads * self.size))


class MLP(nn.Module):
    def __init__(self, config: "GemmaConfig") -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """A trap in the Hub's names: `post_attention_layernorm` precedes the MLP in Gemma 1, follows attention later."""

    def __init__(self, config: "GemmaConfig", layer: int) -> None:
        super().__init__()
        C, eps, four = config.hidden_size, config.rms_norm_eps, config.model_type != "gemma"
        self.input_layernorm = RMSNorm(C, eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(C, eps)
        self.pre_feedforward_layernorm = RMSNorm(C, eps) if four else None
        self.mlp = MLP(config)
        self.post_feedforward_layernorm = RMSNorm(C, eps) if four else None

    def forward(self, x: Tensor, span: Span, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.self_attn(self.input_layernorm(x), span, cos, sin)
        if self.pre_feedforward_layernorm is None or self.post_feedforward_layernorm is None:
            x = x + y
            return x + self.mlp(self.post_attention_layernorm(x))
        x = x + self.post_attention_layernorm(y)
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Gemma(LanguageModel):
    config: "GemmaConfig"

    def __init__(self, config: "GemmaConfig") -> None:
        super().__init__()
        self.config = config
        self.ropes = {kind: rotary.rope_of(config.ropes[kind], config.head_dim) for kind in sorted(set(config.kinds))}
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def body(self, idx: Tensor, span: Span) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        # The factor is rounded to the weights' dtype, as it was in training: 55.5 for √3072 in bfloat16.
        x = x * torch.tensor(self.config.hidden_size**0.5, dtype=x.dtype)
        turns = {}
        for kind, rope in self.ropes.items():
            cos, sin, _ = rope(span.positions)  # (B or 1, T, D/2)
            turns[kind] = cos.to(x.dtype).unsqueeze(1), sin.to(x.dtype).unsqueeze(1)  # (B or 1, 1, T, D/2)
        for block, kind in zip(self.layers, self.config.kinds, strict=True):
            x = block(x, span, *turns[kind])
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        logits = F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def cache_layout(self) -> list[KeyValues]:
        return [
            KeyValues(self.config.num_key_value_heads, self.config.head_dim, window) for window in self.config.windows
        ]

    def steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.embed_tokens, scale=self.config.hidden_size**0.5)
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            heads = {"heads": attn.heads, "groups": attn.groups}
            four = block.pre_feedforward_layernorm is not None
            yield step("rms_norm", layer=block.input_layernorm, plus_one=True)
            yield step("linear", layers=[attn.q_proj, attn.k_proj, attn.v_proj])
            norms = {"q_norm": attn.q_norm, "k_norm": attn.k_norm, "plus_one": True}
            yield step("rotate", **heads, rope=self.ropes[attn.kind], **norms)
            yield step("attend", **heads, scale=attn.scale, window=attn.window, softcap=attn.cap, dropout=attn.dropout)
            yield step("add", layer=attn.o_proj, norm=block.post_attention_layernorm if four else None, plus_one=True)
            before_mlp = block.pre_feedforward_layernorm if four else block.post_attention_layernorm
            yield step("rms_norm", layer=before_mlp, plus_one=True)
            yield step("linear", layers=[mlp.gate_proj, mlp.up_proj])
            yield step("gate", activation=self.config.activation)
            yield step("add", layer=mlp.down_proj, norm=block.post_feedforward_layernorm, plus_one=True)
        yield step("rms_norm", layer=self.norm, plus_one=True)
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        yield step("logits", layer=head, softcap=self.config.final_logit_softcapping)


CAP: dict[str, Any] = {"range": (1e-3, 1e9)}
GEMMA2 = {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
          "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096}  # fmt: skip


@dataclass(frozen=True)
class GemmaConfig:
    """The settings of config.json that change the result, under the Hub's names; defaults are Gemma 7B's."""

    TITLE: ClassVar = "Gemma"
    ONLY_VALUE: ClassVar = {"use_bidirectional_attention": False}
    NO_EFFECT: ClassVar = frozenset({"cache_implementation", "sliding_window_size"})
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "gemma": {},
        "gemma2": {**GEMMA2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        "gemma3_text": {**GEMMA2, "vocab_size": 262208, "max_position_embeddings": 2**17},
    }

    model_type: str = "gemma"
    vocab_size: int = 256000
    hidden_size: int = 3072
    intermediate_size: int = 24576
    num_hidden_layers: int = field(default=28, metadata={"range": (1, 4096)})
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    head_dim: int = field(default=256, metadata={"range": (2, 2**16)})
    # transformers reads the first in gemma files and the second in the others, whatever the other one says.
    hidden_act: str = field(default="gelu_pytorch_tanh", metadata={"choices": tuple(ACTIVATIONS)})
    hidden_activation: str | None = field(default=None, metadata={"choices": (*ACTIVATIONS, None)})
    max_position_embeddings: int = field(default=8192, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-6
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # gemma3_text: one for each of the layer types
    rope_local_base_freq: float | None = field(default=None, metadata={"range": (1, 1e12)})  # Gemma 3: local theta
    attention_bias: bool = False
    query_pre_attn_scalar: int | None = field(default=None, metadata={"range": (1, 2**24)})  # scores / √ of it
    attn_logit_softcapping: float | None = field(default=None, metadata=CAP)  # gemma2 only: gemma3_text ignores it
    final_logit_softcapping: float | None = field(default=None, metadata=CAP)
    sliding_window: int | None = field(default=None, metadata={"range": (1, 2**31)})
    sliding_window_pattern: int | None = field(default=None, metadata={"range": (1, 4096)})  # n: each n-th is full
    layer_types: list[str] | None = None  # "full_attention" or "sliding_attention"
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"Gemma: num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"Gemma: head_dim ({self.head_dim}) must be even: positions rotate pairs")
        defaults = {item.name: item.default for item in fields(self)}
        for name in self._others():
            if getattr(self, name) != defaults[name]:
                raise ValueError(f"Gemma: a {self.model_type} model has no {name}, but config.json sets it")
        if SLIDING in self.kinds and self.sliding_window is None:
            raise ValueError("Gemma: there are layers of sliding_attention, but sliding_window is null")
        for rope in self.ropes.values():
            rotary.check("Gemma", rope)

    def _others(self) -> list[str]:
        """The settings that models of this model_type do not have."""
        local = ["rope_local_base_freq", "sliding_window_pattern"]
        newer = ["query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "sliding_window",
                 "layer_types"]  # fmt: skip
        return {"gemma": [*local, *newer], "gemma2": local}.get(self.model_type, [])

    @property
    def activation(self) -> str:
        """The activation of the MLP. "gelu" in a gemma file means the approximation, with which it was trained."""
        if self.model_type != "gemma":
            return self.hidden_activation or "gelu_pytorch_tanh"
        return "gelu_pytorch_tanh" if self.hidden_act == "gelu" else self.hidden_act

    @property
    def score_scale(self) -> float:
        """The factor of the scores. It need not be that of the head size: 144 for 128 in Gemma 2 27B."""
        return float((self.query_pre_attn_scalar or self.head_dim) ** -0.5)

    @property
    def score_cap(self) -> float | None:
        """The soft cap of the scores."""
        return self.attn_logit_softcapping if self.model_type == "gemma2" else None

    @property
    def kinds(self) -> list[str]:
        """The type of each layer."""
        count = self.num_hidden_layers
        if self.layer_types is not None:
            if len(self.layer_types) != count or not set(self.layer_types) <= {FULL, SLIDING}:
                raise ValueError(f"Gemma: layer_types must hold {FULL} or {SLIDING} for each of {count} layers")
            return list(self.layer_types)
        period = {"gemma": 1, "gemma2": 2}.get(self.model_type, self.sliding_window_pattern or 6)
        return [SLIDING if (layer + 1) % period else FULL for layer in range(count)]

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer, in positions; None: it attends to everything before it."""
        return [self.sliding_window if kind == SLIDING else None for kind in self.kinds]

    @property
    def ropes(self) -> dict[str, dict[str, Any]]:
        """rope_parameters of each layer type, with what they leave out. Older files scale those of full layers only."""
        given, context = self.rope_parameters or {}, self.max_position_embeddings
        if self.model_type != "gemma3_text":
            return dict.fromkeys((FULL, SLIDING), rotary.completed(given, context))
        if not any(isinstance(value, dict) for value in given.values()):
            given = {FULL: given}
        if not all(name in (FULL, SLIDING) and isinstance(value, dict | None) for name, value in given.items()):
            raise ValueError(f"Gemma: rope_parameters must hold settings for {FULL} and {SLIDING}, or for the first")
        full, local = given.get(FULL) or {}, given.get(SLIDING) or {}
        apart, theta = self.rope_local_base_freq, local.get("rope_theta")
        if None not in (apart, theta) and apart != theta:
            raise ValueError(f"Gemma: config.json names two values of rope_local_base_freq: {apart} and {theta}")
        return {
            FULL: rotary.completed({"rope_theta": 1e6, **full}, context),
            SLIDING: rotary.completed({"rope_theta": apart or 10000.0, **local}, context),
        }

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        first, nested = self.model_type == "gemma", self.model_type == "gemma3_text"
        dropped = {*self._others(), "rope_local_base_freq", "sliding_window_pattern",
                   "hidden_activation" if first else "hidden_act"}  # fmt: skip
        settings = {name: value for name, value in asdict(self).items() if name not in dropped}
        settings["hidden_act" if first else "hidden_activation"] = self.activation
        settings["rope_parameters"] = self.ropes if nested else self.ropes[FULL]
        if not first:
            settings["layer_types"] = self.kinds
        architecture = {"gemma": "Gemma", "gemma2": "Gemma2"}.get(self.model_type, "Gemma3") + "ForCausalLM"
        return {"architectures": [architecture], **settings}

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.max_position_embeddings
