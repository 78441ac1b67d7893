"""Mixtral in one file, with Qwen 2 and 3 MoE, OLMoE and Granite MoE, which differ by settings: Llama
with experts.

Sources
    Jiang et al. (2024), "Mixtral of Experts"; Muennighoff et al. (2024), "OLMoE: Open
        Mixture-of-Experts Language Models"; Yang et al. (2025), "Qwen3 Technical Report"; Qwen
        team (2024), "Qwen1.5-MoE"; models/llama.py for the rest.
    Hub docs: `transformers`, model_types "mixtral", "olmoe", "qwen2_moe", "qwen3_moe" and
    "granitemoe".

Differences from similar architectures
    Llama        has one MLP per layer.
    GPT-OSS      has sinks in attention, biases, and another gate of its experts.

    mixtral      the weights of a token's experts sum to 1
    olmoe        one norm over all heads of q, and one over all heads of k; the weights of all experts sum to 1
    qwen2_moe    a shared expert of all tokens, with a gate; biases of q, k and v; some layers may have one MLP
    qwen3_moe    a norm of each head of q and k; some layers may have one MLP
    granitemoe   factors of the embedding, the scores, both branches of a layer, and the logits

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H query heads    G KV heads    D head size    V vocabulary
    E experts    K experts of a token    I channels inside an expert
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues
from minhub_py.models.experts import Routing
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList, RMSNorm
from minhub_py.models.mixture import Mixture, SharedExpert
from minhub_py.models.mlp import GatedMLP
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import GroupedHeads, check_multiple, unavailable
from minhub_py.models.steps import Add, Attend, Embed, Linear, Logits, Norm, Rotate, Step
from minhub_py.system.json_text import JsonObject

CLASSES = {
    "mixtral": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
}


class Attention(nn.Module):
    def __init__(self, config: "MixtralConfig", layer: int) -> None:
        super().__init__()
        C, size, kind = config.hidden_size, config.head_size, config.model_type
        bias = config.attention_bias or config.qkv_bias
        self.layer, self.heads, self.kv_heads = layer, config.num_attention_heads, config.kv_heads
        self.scale, self.window, self.dropout = (
            config.scale,
            config.window,
            config.attention_dropout,
        )
        self.all_heads = kind == "olmoe"  # one norm of all heads
        self.q_proj = nn.Linear(C, self.heads * size, bias=bias)
        self.k_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.v_proj = nn.Linear(C, self.kv_heads * size, bias=bias)
        self.o_proj = nn.Linear(self.heads * size, C, bias=config.attention_bias)
        sizes = (self.heads * size, self.kv_heads * size) if self.all_heads else (size, size)
        normed = kind in ("olmoe", "qwen3_moe")
        self.q_norm = RMSNorm(sizes[0], config.rms_norm_eps) if normed else None
        self.k_norm = RMSNorm(sizes[1], config.rms_norm_eps) if normed else None

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        q, k = self.q_proj(x), self.k_proj(x)
        if self.all_heads and self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q = split_heads(q, self.heads)  # (B, H, T, D)
        k = split_heads(k, self.kv_heads)  # (B, G, T, D)
        v = split_heads(self.v_proj(x), self.kv_heads)
        if not self.all_heads and self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        # (B, H, T, D)
        y = past.attend(self.layer, q, k, v, scale=self.scale, window=self.window, dropout=dropout)
        return self.o_proj(merge_heads(y))


class Block(nn.Module):
    def __init__(self, config: "MixtralConfig", layer: int) -> None:
        super().__init__()
        C, inner = config.hidden_size, config.expert_size
        self.input_layernorm = RMSNorm(C, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(C, config.rms_norm_eps)
        self.factor = config.residual_multiplier
        routing = Routing(
            config.num_experts_per_tok, normalize=config.norm_topk_prob, factor=self.factor
        )
        sparse = config.is_sparse(layer)
        self.mlp = (
            Mixture(config.num_experts, C, inner, config.hidden_act, routing)
            if sparse
            else GatedMLP(C, config.intermediate_size, config.hidden_act)
        )
        shared = config.shared_expert_intermediate_size if sparse else 0
        self.shared_expert = SharedExpert(C, shared, config.hidden_act) if shared else None

    def forward(self, x: Tensor, past: Past, rotation: Rotation) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), past, rotation) * self.factor
        h = self.post_attention_layernorm(x)
        if self.shared_expert is not None:
            x = x + self.shared_expert(h)
        return x + self.mlp(h)


class Mixtral(LanguageModel):
    config: "MixtralConfig"

    def __init__(self, config: "MixtralConfig") -> None:
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
        x = self.embed_tokens(idx) * self.config.embedding_multiplier  # (B, T, C)
        rotation = Rotation(self.rope, past.positions, x.dtype)
        for block in self.layers:
            x = block(x, past, rotation)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        logits = F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)
        return logits / self.config.logits_scaling

    def cache_layout(self) -> list[KeyValues]:
        config = self.config
        return [
            KeyValues(config.kv_heads, config.head_size, config.window)
        ] * config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        config = self.config
        yield Embed(
            self.embed_tokens,
            scale=None if config.embedding_multiplier == 1 else config.embedding_multiplier,
        )
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            heads = attn.heads, attn.kv_heads
            yield Norm(block.input_layernorm)
            yield Linear([attn.q_proj, attn.k_proj, attn.v_proj])
            yield Rotate(*heads, self.rope, attn.q_norm, attn.k_norm, attn.all_heads)
            yield Attend(*heads, attn.scale, attn.window, dropout=attn.dropout)
            yield Add(attn.o_proj, scale=block.factor)
            yield Norm(block.post_attention_layernorm)
            if block.shared_expert is not None:
                yield from block.shared_expert.parallel_steps(block.post_attention_layernorm)
            if isinstance(mlp, Mixture):
                yield mlp.step()
            else:
                yield from mlp.steps()
        yield Norm(self.norm)
        yield Logits(
            self.embed_tokens if self.lm_head is None else self.lm_head,
            scale=1 / config.logits_scaling,
        )


QWEN, QWEN2, GRANITE = (
    {"model_types": ("qwen2_moe", "qwen3_moe")},
    {"model_types": ("qwen2_moe",)},
    {"range": (0.0, 1e6), "model_types": ("granitemoe",)},
)


@dataclass(frozen=True)
class MixtralConfig(HeadSettings, GroupedHeads):
    """The settings of config.json that change the result. Defaults: Mixtral 8x7B."""

    TITLE: ClassVar = "Mixtral"
    ONLY_VALUE: ClassVar = {"clip_qkv": None, "router_jitter_noise": 0.0}
    NO_EFFECT: ClassVar = frozenset(
        {"output_router_logits", "router_aux_loss_coef", "max_window_layers"}
    )
    ALIASES: ClassVar = {name: {"num_local_experts": "num_experts"} for name in CLASSES}
    DERIVED: ClassVar = ("layer_types",)
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "mixtral": {},
        "olmoe": {"vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
                  "num_attention_heads": 16, "num_key_value_heads": None, "max_position_embeddings": 4096,
                  "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False, "bos_token_id": None,
                  "eos_token_id": 50279, "pad_token_id": 1},
        "qwen2_moe": {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
                      "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 2**15,
                      "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "rms_norm_eps": 1e-6,
                      "qkv_bias": True, "sliding_window": 4096, "num_experts": 60, "num_experts_per_tok": 4,
                      "norm_topk_prob": False, "bos_token_id": None, "eos_token_id": None},
        "qwen3_moe": {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
                      "num_key_value_heads": 4, "max_position_embeddings": 2**15, "rms_norm_eps": 1e-6,
                      "sliding_window": 4096, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": False,
                      "bos_token_id": None, "eos_token_id": None},
        "granitemoe": {"intermediate_size": 11008, "num_key_value_heads": None, "max_position_embeddings": 2048,
                       "rms_norm_eps": 1e-6},
    }  # fmt: skip

    model_type: str = "mixtral"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 14336  # of an expert; Qwen: of the layers without experts
    moe_intermediate_size: int = field(default=768, metadata=QWEN)  # of an expert
    # of the expert of all tokens; 0: none
    shared_expert_intermediate_size: int = field(default=0, metadata={"range": (0, 2**24), **QWEN2})
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    # None: num_attention_heads
    num_key_value_heads: int | None = field(default=8, metadata={"range": (1, 2**24)})
    # None: hidden_size / heads
    head_dim: int | None = field(
        default=None, metadata={"range": (2, 2**16), "model_types": ("mixtral", "qwen3_moe")}
    )
    # num_local_experts in mixtral's config.json
    num_experts: int = field(default=8, metadata={"range": (1, 1024)})
    num_experts_per_tok: int = field(default=2, metadata={"range": (1, 16)})
    norm_topk_prob: bool = field(
        default=True, metadata={"model_types": ("olmoe", *QWEN["model_types"])}
    )
    decoder_sparse_step: int = field(default=1, metadata=QWEN)  # each n-th layer has experts
    mlp_only_layers: list[int] | None = field(default=None, metadata=QWEN)  # layers without experts
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=2**17, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-5
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and others
    attention_bias: bool = field(
        default=False, metadata={"model_types": ("olmoe", "qwen3_moe", "granitemoe")}
    )
    qkv_bias: bool = field(default=False, metadata=QWEN2)
    # 0 in files of qwen2_moe without windows
    sliding_window: int | None = field(
        default=None,
        metadata={"range": (0, 2**31), "model_types": ("mixtral", *QWEN["model_types"])},
    )
    use_sliding_window: bool = field(default=False, metadata={"model_types": ("qwen3_moe",)})
    # of the scores, in place of 1 / √D
    attention_multiplier: float = field(default=1.0, metadata=GRANITE)
    embedding_multiplier: float = field(default=1.0, metadata=GRANITE)
    residual_multiplier: float = field(default=1.0, metadata=GRANITE)
    logits_scaling: float = field(default=1.0, metadata=GRANITE)  # divides the logits
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        self.drop_unused_labels()
        check_multiple(self, "num_attention_heads", "num_key_value_heads")
        if self.head_dim is None:
            check_multiple(self, "hidden_size", "num_attention_heads")
        if self.head_size % 2:
            raise ValueError(
                f"Mixtral: head_dim ({self.head_size}) must be even, because rotary embeddings rotate pairs"
            )
        if self.logits_scaling == 0:
            raise ValueError(f"Mixtral: logits_scaling must be above 0, not {self.logits_scaling}")
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"Mixtral: num_experts_per_tok ({self.num_experts_per_tok}) cannot be more than the"
                f" number of experts ({self.num_experts})"
            )
        rotary.check("Mixtral", self.rope)

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return (
            layer not in (self.mlp_only_layers or ())
            and (layer + 1) % self.decoder_sparse_step == 0
        )

    @property
    def layer_types(self) -> list[str]:
        """The type of each layer. All have one window, or none."""
        kind = "full_attention" if self.window is None else "sliding_attention"
        return [kind] * self.num_hidden_layers

    @property
    def scale(self) -> float:
        """The factor of attention scores."""
        return (
            self.attention_multiplier if self.model_type == "granitemoe" else self.head_size**-0.5
        )

    @property
    def expert_size(self) -> int:
        """Number of channels inside an expert (I)."""
        is_qwen = self.model_type in ("qwen2_moe", "qwen3_moe")
        return self.moe_intermediate_size if is_qwen else self.intermediate_size

    @property
    def window(self) -> int | None:
        """The window of all layers, in positions; None for all previous positions."""
        used = self.use_sliding_window or self.model_type == "mixtral"
        return self.sliding_window or None if used else None

    @property
    def rope(self) -> JsonObject:
        """rope_parameters with defaults."""
        theta = {"mixtral": 1e6}.get(self.model_type, 10000.0)
        return rotary.completed(
            {"rope_theta": theta, **(self.rope_parameters or {})}, self.max_position_embeddings
        )

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        absent = unavailable(self, self.model_type)
        settings = {
            name: value for name, value in self.without_head().items() if name not in absent
        }
        if self.model_type in ("mixtral", "granitemoe"):
            settings["num_local_experts"] = settings.pop("num_experts")
        own = {"rope_parameters": self.rope, "num_key_value_heads": self.kv_heads}
        if self.model_type in ("mixtral", "qwen3_moe"):
            own["head_dim"] = self.head_size
        if self.model_type in ("qwen2_moe", "qwen3_moe"):
            own["mlp_only_layers"] = self.mlp_only_layers or []
        return {**self.hub_head(CLASSES[self.model_type]), **settings, **own}
