"""The language model of Qwen 3.5, in one file: three layers of linear attention for each layer of
softmax attention.

Qwen 3.5 MoE and Qwen 3 Next have experts, and a shared expert, in place of the MLP.

Sources
    Qwen Team (2026), "Qwen3.5". Gated DeltaNet: Yang, Kautz & Hatamizadeh (2024); the rule is in
        delta.py.
    Gated attention: Qiu et al. (2025), "Gated Attention for Large Language Models". Rotary
        positions: Su et al. (2021).
    Hub docs: `transformers`, model_types "qwen3_5_text", "qwen3_5_moe_text" and "qwen3_next", and
        "qwen3_5" and "qwen3_5_moe" (with images; only their text model is supported).

    The head for multi-token prediction (mtp.py) is loaded on request only.

Differences from similar architectures
    Qwen 3    has softmax attention in every layer, without a gate, and rotates whole heads. Its
              norms multiply by their weight; here they multiply by 1 + weight, except the norm of
              DeltaNet.
    LSTM      has a recurrent state of fixed size, too, and computes it sequentially.

Decision models (JevForDecision of transformers) have a linear layer in place of the output head:
scores of the answers to typed questions.

Notation
    B batch rows    T new positions    S attended positions (cached and new)    C channels
    H heads    G KV heads, or heads of q and k in DeltaNet    D head size    R rotated numbers of a
    head K, V key and value size of DeltaNet    N channels of the convolution, 2GK + HV    V also:
    vocabulary
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache, KeyValues, Layout, State
from minhub_py.models.delta import GatedNorm, gated_delta
from minhub_py.models.experts import Routing
from minhub_py.models.heads import DecisionHead, HeadSettings
from minhub_py.models.layers import BlockList, RMSNorm
from minhub_py.models.mixture import Mixture, SharedExpert
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.mtp import MultiTokenPrediction
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import check_layer_types, check_multiple, check_rotated, unavailable
from minhub_py.models.steps import (
    Add,
    Attend,
    DeltaRule,
    Embed,
    Linear,
    Logits,
    Norm,
    PredictionStep,
    Rotate,
    Step,
)
from minhub_py.system.json_text import JsonObject
from minhub_py.system.shapes import convert


class GatedDeltaNet(nn.Module):
    """Linear attention by the gated delta rule, after a short convolution of q, k and v over time."""

    def __init__(self, config: "Qwen35Config", layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.key_heads = (
            layer,
            config.linear_num_value_heads,
            config.linear_num_key_heads,
        )
        self.key_size, self.value_size = config.linear_key_head_dim, config.linear_value_head_dim
        # previous positions that the convolution reads
        self.lookback = config.linear_conv_kernel_dim - 1
        C, N, values = config.hidden_size, config.conv_channels, self.heads * self.value_size
        self.in_proj_qkv = nn.Linear(C, N, bias=False)
        self.in_proj_z = nn.Linear(C, values, bias=False)
        self.in_proj_b = nn.Linear(C, self.heads, bias=False)
        self.in_proj_a = nn.Linear(C, self.heads, bias=False)
        # depthwise
        self.conv1d = nn.Conv1d(N, N, config.linear_conv_kernel_dim, groups=N, bias=False)
        self.act = ACTIVATIONS[config.hidden_act]
        self.A_log = nn.Parameter(torch.empty(self.heads))
        nn.init.uniform_(self.A_log, 0.01, 16).data.log_()
        self.dt_bias = nn.Parameter(torch.ones(self.heads))
        self.norm = GatedNorm(self.value_size, config.rms_norm_eps)
        self.out_proj = nn.Linear(values, C, bias=False)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        B, T, _ = x.shape
        qkv = self.in_proj_qkv(x)  # (B, T, N)
        inputs, state = past.state(self.layer) or (
            qkv.new_zeros(B, self.lookback, qkv.size(2)),
            torch.zeros(B, self.heads, self.key_size, self.value_size, device=x.device),
        )
        qkv = torch.cat((inputs.to(qkv.dtype), qkv), dim=1)  # (B, lookback + T, N)
        inputs = qkv[:, T:]
        qkv = self.act(self.conv1d(qkv.transpose(1, 2)).transpose(1, 2))  # (B, T, N)
        beta, decay = self.in_proj_b(x), self.in_proj_a(x)  # (B, T, H) each
        # a state in 16 bits would lose small updates
        with torch.autocast(x.device.type, enabled=False):
            # (B, T, H, V)
            y, state = gated_delta(
                qkv, beta, decay, self.A_log, self.dt_bias, self.key_heads, state
            )
        past.set_state(self.layer, (inputs, state))
        y = self.norm(y, self.in_proj_z(x).view(B, T, self.heads, self.value_size))
        return self.out_proj(y.flatten(2))


class Attention(nn.Module):
    def __init__(self, config: "Qwen35Config", layer: int) -> None:
        super().__init__()
        C, size, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.layer, self.heads, self.kv_heads = (
            layer,
            config.num_attention_heads,
            config.num_key_value_heads,
        )
        self.scale, self.dropout = size**-0.5, config.attention_dropout
        self.q_proj = nn.Linear(C, self.heads * 2 * size, bias=bias)  # q and gate of each head
        self.k_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(self.heads * size, C, bias=bias)
        self.q_norm = RMSNorm(size, config.rms_norm_eps, offset=1)
        self.k_norm = RMSNorm(size, config.rms_norm_eps, offset=1)

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q, gate = split_heads(self.q_proj(x), self.heads).chunk(2, dim=3)  # (B, H, T, D) each
        k = split_heads(self.k_proj(x), self.kv_heads)  # (B, G, T, D)
        v = split_heads(self.v_proj(x), self.kv_heads)
        q, k = rotation(self.q_norm(q), self.k_norm(k))
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)  # (B, H, T, D)
        return self.o_proj(merge_heads(y * gate.sigmoid()))


class Block(nn.Module):
    def __init__(self, config: "Qwen35Config", layer: int, attends: bool, sparse: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, offset=1)
        self.self_attn = Attention(config, layer) if attends else None
        self.linear_attn = None if attends else GatedDeltaNet(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, offset=1)
        C, act = config.hidden_size, config.hidden_act
        routing = Routing(config.num_experts_per_tok, normalize=config.norm_topk_prob)
        inner = config.moe_intermediate_size
        self.mlp = (
            Mixture(config.num_experts, C, inner, act, routing)
            if sparse
            else GatedMLP(C, config.intermediate_size, config.hidden_act)
        )
        self.shared_expert = (
            SharedExpert(C, config.shared_expert_intermediate_size, act) if sparse else None
        )

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        h = self.input_layernorm(x)
        if self.self_attn is not None:
            x = x + self.self_attn(h, past, rotation)
        elif self.linear_attn is not None:
            x = x + self.linear_attn(h, past)
        h = self.post_attention_layernorm(x)
        if self.shared_expert is not None:
            x = x + self.shared_expert(h)
        return x + self.mlp(h)

    def steps(self, rope: rotary.Rope, activation: str) -> Iterator[Step]:
        attn, delta, mlp = self.self_attn, self.linear_attn, self.mlp
        yield Norm(self.input_layernorm)
        if attn is not None:
            heads = attn.heads, attn.kv_heads
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Rotate(*heads, rope, attn.q_norm, attn.k_norm, gate=True)
            yield Attend(*heads, attn.scale, gate=True, dropout=attn.dropout)
            yield Add(attn.o_proj)
        elif delta is not None:
            yield Linear([delta.in_proj_qkv, delta.in_proj_z, delta.in_proj_b, delta.in_proj_a])
            heads = delta.heads, delta.key_heads
            yield DeltaRule(
                *heads, delta.conv1d, activation, delta.A_log, delta.dt_bias, delta.norm
            )
            yield Add(delta.out_proj)
        yield Norm(self.post_attention_layernorm)
        if self.shared_expert is not None:
            yield from self.shared_expert.parallel_steps(self.post_attention_layernorm)
        if isinstance(mlp, Mixture):
            yield mlp.step()
        else:
            yield from mlp.steps()


class Qwen35(LanguageModel):
    config: "Qwen35Config"

    def __init__(self, config: "Qwen35Config") -> None:
        super().__init__()
        self.config = config
        self.rope = rotary.rope_of(config.rope, config.rotated)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = BlockList(
            Block(config, layer, kind == "full_attention", config.is_sparse(layer))
            for layer, kind in enumerate(config.kinds)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, offset=1)
        # A tied head is the token embedding itself and has no parameter. A decision head replaces it.
        decision = config.decision_head
        tied = config.tie_word_embeddings or decision is not None
        self.lm_head = (
            None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )
        self.proj = (
            None if decision is None else nn.Linear(config.hidden_size, decision.num_verbalizers)
        )
        self.softcap = None if decision is None else decision.softcap
        self.mtp = None
        if config.mtp_layers:  # its cache is separate, and its layer is the first one there
            block = Block(config, 0, True, config.model_type != "qwen3_5_text")
            self.mtp = MultiTokenPrediction(config.hidden_size, config.rms_norm_eps, 1, block)
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        rotation = Rotation(self.rope, past.positions, x.dtype)
        for block in self.layers:
            x = block(x, past, rotation)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        if self.proj is not None:
            scores = self.proj(x)
            if self.softcap is not None:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            return scores
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def prediction_head(self) -> MultiTokenPrediction:
        """The head for multi-token prediction. ValueError: it is not loaded."""
        if self.mtp is None:
            raise ValueError(
                "the model has no head for multi-token prediction: load a checkpoint that has one"
                " with from_pretrained(…, mtp=True)"
            )
        return self.mtp

    def predict(
        self, idx: Tensor, hidden: Tensor, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, T, V) of the token after idx (B, T), and h' (B, T, C), by the head for
        multi-token prediction.

        hidden: (B, T, C), the model's `hidden` before each token of idx, or h'.    cache: with
        `mtp_layout`.

        ValueError: the model has no head.
        """
        head, past = self.prediction_head(), Past(idx, cache)
        x = head(
            self.embed_tokens(idx), hidden, past, Rotation(self.rope, past.positions, hidden.dtype)
        )
        past.finish()
        return self.logits(x), x

    def mtp_layout(self) -> Layout:
        return [KeyValues(self.config.num_key_value_heads, self.config.head_dim)]

    def cache_layout(self) -> Layout:
        config = self.config
        [keys] = self.mtp_layout()
        inputs = (config.linear_conv_kernel_dim - 1, config.conv_channels)
        matrices = (
            config.linear_num_value_heads,
            config.linear_key_head_dim,
            config.linear_value_head_dim,
        )
        state = State((inputs, matrices), torch.float32)
        return [keys if kind == "full_attention" else state for kind in config.kinds]

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embed_tokens)
        for block in self.layers:
            yield from block.steps(self.rope, self.config.hidden_act)
        yield Norm(self.norm)
        if self.proj is not None:
            yield Logits(self.proj, self.proj.bias, softcap=self.softcap)
        else:
            yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)

    def mtp_steps(self) -> Iterator[PredictionStep]:
        yield from self.prediction_head().steps(
            self.embed_tokens, self.rope, self.config.hidden_act
        )
        yield Logits(self.embed_tokens if self.lm_head is None else self.lm_head)


CLASSES = {
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
}
SPARSE = {"model_types": ("qwen3_5_moe_text", "qwen3_next")}
NEXT = {"model_types": ("qwen3_next",)}


@dataclass(frozen=True)
class Qwen35Config(HeadSettings):
    """The settings of config.json that change the result. Defaults: transformers."""

    TITLE: ClassVar = "Qwen 3.5"
    ROPE_NAMES: ClassVar = {"partial_rotary_factor": "partial_rotary_factor"}
    # The state is float32 for all dtypes, as in transformers.
    ONLY_VALUE: ClassVar = {"attn_output_gate": True, "mamba_ssm_dtype": "float32"}
    # mtp_num_hidden_layers: see mtp_layers.
    NO_EFFECT: ClassVar = frozenset(
        {
            "mtp_num_hidden_layers",
            "mtp_use_dedicated_embeddings",
            "output_router_logits",
            "router_aux_loss_coef",
        }
    )
    ALIASES: ClassVar = {
        name: {"num_local_experts": "num_experts"} for name in SPARSE["model_types"]
    }
    DERIVED: ClassVar = ("delta_sizes",)  # of GGUF files
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "qwen3_5_text": {},
        "qwen3_5_moe_text": {
            "hidden_size": 2048,
            "num_hidden_layers": 40,
            "num_key_value_heads": 2,
        },
        "qwen3_next": {
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "num_experts": 512,
            "num_experts_per_tok": 10,
        },
    }

    model_type: str = "qwen3_5_text"
    vocab_size: int = 248320
    hidden_size: int = 4096
    intermediate_size: int = field(
        default=12288, metadata={"model_types": ("qwen3_5_text", "qwen3_next")}
    )
    num_experts: int = field(default=256, metadata={"range": (1, 1024), **SPARSE})
    num_experts_per_tok: int = field(default=8, metadata={"range": (1, 16), **SPARSE})
    moe_intermediate_size: int = field(default=512, metadata=SPARSE)  # of an expert
    shared_expert_intermediate_size: int = field(default=512, metadata=SPARSE)
    norm_topk_prob: bool = field(default=True, metadata=NEXT)
    decoder_sparse_step: int = field(default=1, metadata=NEXT)  # each n-th layer has experts
    # layers without experts, of qwen3_next
    mlp_only_layers: list[int] | None = field(default_factory=list)
    # of multi-token prediction; on request
    mtp_layers: int = field(default=0, metadata={"range": (0, 1)})
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 256
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    layer_types: list[str] | None = None
    full_attention_interval: int = 4  # without layer_types: each n-th layer has softmax attention
    linear_conv_kernel_dim: int = field(default=4, metadata={"range": (2, 1024)})
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta, partial_rotary_factor, …
    attention_bias: bool = False
    attention_dropout: float = 0.0
    max_position_embeddings: int = field(default=32768, metadata={"range": (1, 2**31)})
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    # of a JevForDecision: num_verbalizers, offsets and softcap
    decision: dict | None = None  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        if self.decision_head is None:
            object.__setattr__(self, "decision", None)
        check_multiple(self, "num_attention_heads", "num_key_value_heads")
        check_multiple(self, "linear_num_value_heads", "linear_num_key_heads")
        if self.mlp_only_layers and self.model_type != "qwen3_next":
            raise ValueError(
                f"Qwen 3.5: config.json sets mlp_only_layers to {self.mlp_only_layers}; this "
                f"implementation has [] only for {self.model_type}"
            )
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"Qwen 3.5: num_experts_per_tok ({self.num_experts_per_tok}) cannot be more than "
                f"num_experts ({self.num_experts})"
            )
        if self.layer_types is not None:
            choices = "full_attention", "linear_attention"
            check_layer_types("Qwen 3.5", self.layer_types, choices, self.num_hidden_layers)
        rotary.check("Qwen 3.5", self.rope, partial=True)
        check_rotated("Qwen 3.5", self.rotated, self.head_dim)

    @property
    def decision_head(self) -> DecisionHead | None:
        """The decision head; None for other models. ValueError: its settings are invalid."""
        if self.head != "decision":
            return None
        try:
            return convert(dict(self.decision or {}), DecisionHead)
        except ValueError as error:
            raise ValueError(f"{self.TITLE} with a decision head: {error}") from error

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        sparse = (
            layer not in (self.mlp_only_layers or ())
            and (layer + 1) % self.decoder_sparse_step == 0
        )
        return sparse and self.model_type != "qwen3_5_text"

    @property
    def delta_sizes(self) -> tuple[int, int, int, int]:
        """Key heads, and K, V and value heads of each in DeltaNet."""
        G = self.linear_num_key_heads
        return (
            G,
            self.linear_key_head_dim,
            self.linear_value_head_dim,
            self.linear_num_value_heads // G,
        )

    @property
    def rotated(self) -> int:
        """Number of rotated channels of a head (R)."""
        return int(self.head_dim * self.rope["partial_rotary_factor"])

    @property
    def conv_channels(self) -> int:
        """Number of channels of the convolution (N)."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def kinds(self) -> list[str]:
        """full_attention or linear_attention, for each layer."""
        interval = self.full_attention_interval
        return self.layer_types or [
            "linear_attention" if layer % interval else "full_attention"
            for layer in range(1, self.num_hidden_layers + 1)
        ]

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults, without mrope, which is for images."""
        rope = rotary.completed(self.rope_parameters, self.max_position_embeddings)
        text = {
            name: value
            for name, value in rope.items()
            if name not in ("mrope_section", "mrope_interleaved")
        }
        return {"partial_rotary_factor": 0.25, **text}

    @property
    def effective(self) -> dict[str, object]:
        """See `Effective.effective`; without the settings of images."""
        return {**super().effective, "rope_parameters": self.rope}

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        absent = unavailable(self, self.model_type)
        settings = {
            name: value for name, value in self.without_head().items() if name not in absent
        }
        del settings["full_attention_interval"]
        if settings.pop("mtp_layers"):
            settings["mtp_num_hidden_layers"] = 1
        settings["mlp_only_layers"] = settings["mlp_only_layers"] or []
        if self.model_type != "qwen3_next":
            del settings["mlp_only_layers"]
        settings |= {
            "layer_types": self.kinds,
            "rope_parameters": {**(self.rope_parameters or {}), **self.rope},
        }
        if self.decision is None:
            del settings["decision"]
        if self.head == "decision":
            return {"architectures": ["JevForDecision"], **settings}
        return {**self.hub_head(CLASSES[self.model_type]), **settings}

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.max_position_embeddings
