"""Gemma, Gemma 2, the text model of Gemma 3, and EmbeddingGemma, in one file.

Sources
    Gemma Team (2024), "Gemma"; (2024), "Gemma 2"; (2025), "Gemma 3 Technical Report".
    Su et al. (2021), "RoFormer", for rotary positions; Zhang & Sennrich (2019) for RMS norm;
        Shazeer (2020), "GLU Variants", for the gated MLP; Ainslie et al. (2023), "GQA", for KV
        heads; Bello et al. (2016), "Neural Combinatorial Optimization", for soft caps by tanh.
    Hub docs: `transformers`, model_types "gemma", "gemma2" and "gemma3_text".

Differences from similar architectures
    Llama    does not scale its embeddings; its norms multiply by their weight, Gemma's by 1 +
    weight.

    gemma         two norms per block; global attention in all layers
    gemma2        norms before and after attention and MLP; soft caps of scores and logits; every second layer is local
    gemma3_text   as gemma2, with norms of q and k instead of soft caps; five of six layers are local, with a smaller
                  rope_theta

    EmbeddingGemma is a gemma3_text with bidirectional attention, an encoder of texts.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H query heads    G KV heads    D head size    V vocabulary
    W window, which includes the current position; of a bidirectional model, the positions on each
    side
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues, Layout
from minhub_py.models.encoder import Encoder
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList, RMSNorm
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import Positions, check_layer_types, check_multiple, unavailable
from minhub_py.models.steps import (
    Add,
    Attend,
    Embed,
    HiddenStates,
    Linear,
    Logits,
    Norm,
    Rotate,
    Step,
)
from minhub_py.system.json_text import JsonObject

FULL, SLIDING = "full_attention", "sliding_attention"


class Attention(nn.Module):
    def __init__(self, config: "GemmaConfig", layer: int) -> None:
        super().__init__()
        C, size, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.layer, self.heads, self.kv_heads = (
            layer,
            config.num_attention_heads,
            config.num_key_value_heads,
        )
        self.window, self.kind = config.windows[layer], config.kinds[layer]
        self.scale, self.softcap, self.dropout = (
            config.score_scale,
            config.score_cap,
            config.attention_dropout,
        )
        self.causal = not config.bidirectional
        normed = config.model_type == "gemma3_text"
        self.q_proj = nn.Linear(C, self.heads * size, bias=bias)
        self.k_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(self.heads * size, C, bias=bias)
        self.q_norm = RMSNorm(size, config.rms_norm_eps, offset=1) if normed else None
        self.k_norm = RMSNorm(size, config.rms_norm_eps, offset=1) if normed else None

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
            softcap=self.softcap,
            causal=self.causal,
            dropout=dropout,
        )  # (B, H, T, D)
        return self.o_proj(merge_heads(y))


class Block(nn.Module):
    """The name `post_attention_layernorm` is ambiguous: it precedes the MLP in Gemma 1 and follows
    attention later.
    """

    def __init__(self, config: "GemmaConfig", layer: int) -> None:
        super().__init__()
        C, eps, four = config.hidden_size, config.rms_norm_eps, config.model_type != "gemma"
        self.input_layernorm = RMSNorm(C, eps, offset=1)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(C, eps, offset=1)
        self.pre_feedforward_layernorm = RMSNorm(C, eps, offset=1) if four else None
        self.mlp = GatedMLP(C, config.intermediate_size, config.activation)
        self.post_feedforward_layernorm = RMSNorm(C, eps, offset=1) if four else None

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        y = self.self_attn(self.input_layernorm(x), past, rotation)
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
        self.ropes = {
            kind: rotary.rope_of(config.ropes[kind], config.head_dim)
            for kind in sorted(set(config.kinds))
        }
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, offset=1)
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings or config.bidirectional
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        # The factor is rounded to the dtype of the weights, as in training: 55.5 for √3072 in
        # bfloat16.
        x = x * torch.tensor(self.config.hidden_size**0.5, dtype=x.dtype)
        rotations = {
            kind: Rotation(rope, past.positions, x.dtype) for kind, rope in self.ropes.items()
        }
        for block, kind in zip(self.layers, self.config.kinds, strict=True):
            x = block(x, past, rotations[kind])
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        logits = F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def cache_layout(self) -> Layout:
        return [
            KeyValues(self.config.num_key_value_heads, self.config.head_dim, window)
            for window in self.config.windows
        ]

    def steps(self) -> Iterator[Step]:
        yield from self.body_steps()
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        yield Logits(head, softcap=self.config.final_logit_softcapping)

    def body_steps(self) -> Iterator[Step]:
        """The steps of `body`."""
        yield Embed(self.embed_tokens, scale=self.config.hidden_size**0.5)
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            heads = attn.heads, attn.kv_heads
            before_mlp = block.pre_feedforward_layernorm  # of four norms
            yield Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Rotate(*heads, self.ropes[attn.kind], attn.q_norm, attn.k_norm)
            yield Attend(
                *heads,
                attn.scale,
                attn.window,
                attn.softcap,
                causal=attn.causal,
                dropout=attn.dropout,
            )
            if before_mlp is None:
                yield Add(attn.o_proj)
                yield Norm(block.post_attention_layernorm)
            else:
                yield Add(attn.o_proj, block.post_attention_layernorm)
                yield Norm(before_mlp)
            yield from mlp.steps(block.post_feedforward_layernorm)
        yield Norm(self.norm)


class EmbeddingGemma(Encoder, Gemma):
    """Gemma 3 with bidirectional attention. It computes hidden states, without a cache and without
    logits.
    """

    config: "GemmaConfig"

    def __init__(self, config: "GemmaConfig") -> None:
        super().__init__(config)
        self.head = None

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embed_tokens

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        return Gemma.body(self, idx, past)

    def steps(self) -> Iterator[Step]:
        yield from self.body_steps()
        yield HiddenStates(self.config.hidden_size)


NEWER = ("gemma2", "gemma3_text")  # model types with the settings of Gemma 2
CAP: dict[str, object] = {"range": (1e-3, 1e9), "model_types": NEWER}
GEMMA2 = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


@dataclass(frozen=True)
class GemmaConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: Gemma 7B."""

    TITLE: ClassVar = "Gemma"
    NO_EFFECT: ClassVar = frozenset({"cache_implementation", "sliding_window_size"})
    LOCAL_THETA: ClassVar = "rope_local_base_freq"
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, object]]] = {
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
    # transformers reads the first in gemma files and the second in the others.
    hidden_act: str = field(default="gelu_pytorch_tanh", metadata={"choices": tuple(ACTIVATIONS)})
    hidden_activation: str | None = field(default=None, metadata={"choices": (*ACTIVATIONS, None)})
    max_position_embeddings: int = field(default=8192, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-6
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # gemma3_text: one per layer type
    # rope_theta of local layers
    rope_local_base_freq: float | None = field(
        default=None, metadata={"range": (1, 1e12), "model_types": ("gemma3_text",)}
    )
    attention_bias: bool = False
    # scores / √query_pre_attn_scalar; None: head_dim
    query_pre_attn_scalar: int | None = field(
        default=None, metadata={"range": (1, 2**24), "model_types": NEWER}
    )
    # gemma2 only: gemma3_text ignores it
    attn_logit_softcapping: float | None = field(default=None, metadata=CAP)
    final_logit_softcapping: float | None = field(default=None, metadata=CAP)
    sliding_window: int | None = field(
        default=None, metadata={"range": (1, 2**31), "model_types": NEWER}
    )
    # n: every n-th layer is global
    sliding_window_pattern: int | None = field(
        default=None, metadata={"range": (1, 4096), "model_types": ("gemma3_text",)}
    )
    # "full_attention" or "sliding_attention"
    layer_types: list[str] | None = field(default=None, metadata={"model_types": NEWER})
    use_bidirectional_attention: bool | None = field(
        default=None, metadata={"model_types": ("gemma3_text",)}
    )
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 1
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "num_attention_heads", "num_key_value_heads")
        if self.head_dim % 2:
            raise ValueError(
                f"Gemma: head_dim ({self.head_dim}) must be even, because rotary embeddings rotate pairs"
            )
        if SLIDING in self.kinds and self.sliding_window is None:
            raise ValueError(
                "Gemma: there are layers of sliding_attention, but sliding_window is null"
            )
        for rope in self.ropes.values():
            rotary.check("Gemma", rope)

    @property
    def bidirectional(self) -> bool:
        """Whether all tokens attend to all tokens, or to those within the window on both sides: an
        encoder.
        """
        return bool(self.use_bidirectional_attention)

    @property
    def head(self) -> str | None:
        """See `HeadSettings`."""
        return None if self.bidirectional else super().head

    @property
    def activation(self) -> str:
        """The activation of the MLP. "gelu" in a gemma file means the tanh approximation, used in
        training.
        """
        if self.model_type != "gemma":
            return self.hidden_activation or "gelu_pytorch_tanh"
        return "gelu_pytorch_tanh" if self.hidden_act == "gelu" else self.hidden_act

    @property
    def score_scale(self) -> float:
        """The factor of the scores. It can differ from 1 / √head_dim: Gemma 2 27B has 144 and 128."""
        return float((self.query_pre_attn_scalar or self.head_dim) ** -0.5)

    @property
    def score_cap(self) -> float | None:
        """The soft cap of the scores."""
        return self.attn_logit_softcapping if self.model_type == "gemma2" else None

    @property
    def kinds(self) -> list[str]:
        """Each layer's type."""
        count = self.num_hidden_layers
        if self.layer_types is not None:
            check_layer_types("Gemma", self.layer_types, (FULL, SLIDING), count)
            return list(self.layer_types)
        period = {"gemma": 1, "gemma2": 2}.get(self.model_type, self.sliding_window_pattern or 6)
        return [SLIDING if (layer + 1) % period else FULL for layer in range(count)]

    @property
    def windows(self) -> list[int | None]:
        """Each layer's window, in positions; None for all previous positions."""
        window = self.sliding_window
        # the number counts the positions on both sides
        if self.bidirectional and window is not None:
            window = window // 2 + 1
        return [window if kind == SLIDING else None for kind in self.kinds]

    @property
    def ropes(self) -> dict[str, JsonObject]:
        """rope_parameters of each layer type, with defaults. Older files scale the global layers
        only.
        """
        parameters, context = self.rope_parameters or {}, self.max_position_embeddings
        if self.model_type != "gemma3_text":
            return dict.fromkeys((FULL, SLIDING), rotary.completed(parameters, context))
        if not any(isinstance(value, dict) for value in parameters.values()):
            parameters = {FULL: parameters}
        if not all(
            name in (FULL, SLIDING) and isinstance(value, dict | None)
            for name, value in parameters.items()
        ):
            raise ValueError(
                f"Gemma: rope_parameters must contain settings for {FULL} and {SLIDING}, or for the"
                " first"
            )
        full, local = parameters.get(FULL) or {}, parameters.get(SLIDING) or {}
        base, theta = self.rope_local_base_freq, local.get("rope_theta")
        if None not in (base, theta) and base != theta:
            raise ValueError(
                f"Gemma: config.json names two values of rope_local_base_freq: {base} and {theta}"
            )
        return {
            FULL: rotary.completed({"rope_theta": 1e6, **full}, context),
            SLIDING: rotary.completed({"rope_theta": base or 10000.0, **local}, context),
        }

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        first, nested = self.model_type == "gemma", self.model_type == "gemma3_text"
        dropped = {
            *unavailable(self, self.model_type),
            "rope_local_base_freq",
            "sliding_window_pattern",
            "hidden_activation" if first else "hidden_act",
            *HeadSettings.__dataclass_fields__,
        }
        settings = {name: value for name, value in asdict(self).items() if name not in dropped}
        settings["hidden_act" if first else "hidden_activation"] = self.activation
        settings["rope_parameters"] = self.ropes if nested else self.ropes[FULL]
        if not first:
            settings["layer_types"] = self.kinds
        architecture = {"gemma": "Gemma", "gemma2": "Gemma2"}.get(
            self.model_type, "Gemma3"
        ) + "ForCausalLM"
        if self.bidirectional:
            architecture = "Gemma3TextModel"
        elif nested and self.head == "sequence":
            architecture = "Gemma3TextForCausalLM"
        return settings | self.hub_head(architecture)
