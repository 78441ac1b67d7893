"""NomicBERT, an encoder with rotary positions and a gated MLP, with GTE, JinaBERT and
jina-embeddings-v3.

Sources
    Nussbaum et al. (2024), "Nomic Embed"; Zhang et al. (2024), "mGTE"; Günther et al. (2023), "Jina
        Embeddings 2"; Sturua et al. (2024), "jina-embeddings-v3". Su et al. (2021), "RoFormer", for
        rotary positions; Press et al. (2022), "ALiBi"; Shazeer (2020), "GLU Variants".
    Hub docs: `transformers`, model_types "nomic_bert", "gte" and "jina_embeddings_v3". JinaBERT is
        code of its repositories, with the model_type "bert"; here it is "jina_bert".

Differences from similar architectures
    bert          has learned positions and an MLP without a gate. Both norm the sums with the
                  residual stream.
    modernbert    norms the input of attention and MLP.
    nomic_bert    has no biases in attention and MLP.    gte    may have no token types; its older
    files have the model_type "new" and scale the rotation by "ntk".    jina_embeddings_v3    has no
    gate.    jina_bert    has ALiBi in place of the rotation.    jina_bert_code    norms q and k
    over all heads, and adds the normed result of attention to its input.

Notation
    B batch rows    T positions    C channels, hidden_size    H heads    D head size    V vocabulary
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models import rotary
from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.encoder import Encoder
from minhub_py.models.heads import HeadSettings, MaskedLMHead, SequenceHead, TokenHead
from minhub_py.models.layers import ALiBi
from minhub_py.models.rotary import Rotation
from minhub_py.models.settings import SUMMARY, Positions, unavailable
from minhub_py.models.steps import (
    Add,
    AddToSaved,
    AddTypes,
    Attend,
    Embed,
    Gate,
    HiddenStates,
    Linear,
    Norm,
    Rotate,
    SaveResidual,
    Step,
)

NAMES = {
    "nomic_bert": "NomicBert",
    "gte": "Gte",
    "jina_embeddings_v3": "JinaEmbeddingsV3",
    "jina_bert": "JinaBert",
    "jina_bert_code": "JinaBert",
}
JINA_BERT = ("jina_bert", "jina_bert_code")
ROTARY = ("nomic_bert", "gte", "new", "jina_embeddings_v3")
# The repository with the code of JinaBERT, which other packages run.
CODE = {
    "jina_bert": "jinaai/jina-bert-implementation",
    "jina_bert_code": "jinaai/jina-bert-v2-qk-post-norm",
}
AUTO_CLASSES = {
    "AutoModel": "Model",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
    "AutoModelForQuestionAnswering": "ForQuestionAnswering",
}
GATES = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}  # name of a gated MLP -> activation


class Attention(nn.Module):
    def __init__(self, config: "NomicBertConfig", layer: int) -> None:
        super().__init__()
        C, inner, bias = config.hidden_size, config.inner_size, config.attention_bias
        self.layer, self.heads = layer, config.num_attention_heads
        self.scale, self.dropout = config.head_size**-0.5, config.attention_probs_dropout_prob
        self.q, self.k, self.v = (nn.Linear(C, inner, bias=bias) for _ in range(3))
        self.o = nn.Linear(inner, C, bias=bias)
        norms = config.model_type == "jina_bert_code"
        self.q_norm, self.k_norm = (norm_of(config) if norms else None for _ in range(2))

    def forward(
        self, x: Tensor, past: Past, rotation: Rotation | None, bias: Tensor | None
    ) -> Tensor:
        """Attention of x (B, T, C). bias: (1, H, T, T), or None."""
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (split_heads(heads, self.heads) for heads in (q, k, v))  # (B, H, T, D) each
        if rotation is not None:
            q, k = rotation(q, k)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(
            self.layer, q, k, v, scale=self.scale, bias=bias, causal=False, dropout=dropout
        )
        return self.o(merge_heads(y))


class MLP(nn.Module):
    """An MLP whose activation is multiplied by a second projection, if it has a gate."""

    def __init__(self, config: "NomicBertConfig") -> None:
        super().__init__()
        C, inner, kind = config.hidden_size, config.intermediate_size, config.model_type
        gated = kind != "jina_embeddings_v3"
        self.gate = nn.Linear(C, inner, bias=False) if gated else None
        self.fc1 = nn.Linear(C, inner, bias=not gated)
        self.fc2 = nn.Linear(inner, C, bias=kind != "nomic_bert")
        self.act = ACTIVATIONS[config.mlp_act]
        has_dropout = kind in ("gte", *JINA_BERT)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if has_dropout else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.fc1(x)) if self.gate is None else self.act(self.gate(x)) * self.fc1(x)
        return self.fc2(self.dropout(h))


class Block(nn.Module):
    def __init__(self, config: "NomicBertConfig", layer: int) -> None:
        super().__init__()
        self.attention, self.attention_norm = Attention(config, layer), norm_of(config)
        self.mlp, self.mlp_norm = MLP(config), norm_of(config)
        self.sum_norm = norm_of(config) if config.model_type == "jina_bert_code" else None
        p = config.hidden_dropout_prob
        self.dropout = nn.Dropout(p)
        self.mlp_dropout = nn.Dropout(0.0 if config.model_type in JINA_BERT else p)

    def forward(
        self, x: Tensor, past: Past, rotation: Rotation | None, bias: Tensor | None
    ) -> Tensor:
        y = self.attention_norm(x + self.dropout(self.attention(x, past, rotation, bias)))
        x = y if self.sum_norm is None else self.sum_norm(x + y)
        return self.mlp_norm(x + self.mlp_dropout(self.mlp(x)))


class NomicBert(Encoder):
    config: "NomicBertConfig"

    def __init__(self, config: "NomicBertConfig") -> None:
        super().__init__()
        self.config = config
        C, kind = config.hidden_size, config.model_type
        self.rope = rotary.rope_of(config.rope, config.head_size) if kind in ROTARY else None
        self.alibi = None if kind in ROTARY else ALiBi.of(config.num_attention_heads)
        self.embed_tokens = nn.Embedding(config.vocab_size, C)
        count = config.type_vocab_size
        self.embed_types = nn.Embedding(count, C) if count else None
        self.norm = norm_of(config)
        self.layers = nn.ModuleList(
            Block(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.drop = nn.Dropout(config.hidden_dropout_prob)
        self.head = head_of(config)
        self.init_weights(config.initializer_range)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embed_tokens

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, C)
        if self.embed_types is not None:
            x = x + self.embed_types(torch.zeros_like(idx) if token_types is None else token_types)
        x = self.drop(self.norm(x))
        rotation = None if self.rope is None else Rotation(self.rope, past.positions, x.dtype)
        # (1, H, T, T)
        bias = None if self.alibi is None else self.alibi(past.positions, past.attended).to(x.dtype)
        for block in self.layers:
            x = block(x, past, rotation, bias)
        return x

    def steps(self) -> Iterator[Step]:
        block: Any
        yield Embed(self.embed_tokens)
        if self.embed_types is not None:
            yield AddTypes(self.embed_types)
        yield Norm(self.norm, to_residual=True, dropout=self.drop.p)
        for block in self.layers:
            attn, mlp, p = block.attention, block.mlp, block.dropout.p
            yield Linear([attn.q, attn.k, attn.v])
            if self.rope is not None or attn.q_norm is not None:
                yield Rotate(
                    attn.heads, attn.heads, self.rope, attn.q_norm, attn.k_norm, all_heads=True
                )
            yield Attend(
                attn.heads,
                attn.heads,
                attn.scale,
                bias=self.alibi,
                causal=False,
                dropout=attn.dropout,
            )
            if block.sum_norm is None:
                yield Add(attn.o, dropout=p)
                yield Norm(block.attention_norm, to_residual=True)
            else:
                yield SaveResidual()
                yield Add(attn.o, dropout=p)
                yield AddToSaved(block.attention_norm)
                yield Norm(block.sum_norm, to_residual=True)
            if mlp.gate is None:
                yield Linear([mlp.fc1], self.config.mlp_act)
            else:
                yield Linear([mlp.gate, mlp.fc1])
                yield Gate(self.config.mlp_act, dropout=mlp.dropout.p)
            yield Add(mlp.fc2, dropout=block.mlp_dropout.p)
            yield Norm(block.mlp_norm, to_residual=True)
        yield HiddenStates(self.config.hidden_size)


def norm_of(config: "NomicBertConfig") -> nn.LayerNorm:
    """A layer norm."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


def head_of(config: "NomicBertConfig") -> nn.Module | None:
    """The head of the checkpoint."""
    C, kind, labels = config.hidden_size, config.model_type, len(config.labels)
    p = config.classifier_dropout
    p = config.hidden_dropout_prob if p is None else p
    if config.head == "masked_lm":
        act = F.gelu if kind in ("gte", "jina_embeddings_v3") else ACTIVATIONS[config.hidden_act]
        biases = bool(config.head_biases)
        return MaskedLMHead(
            C,
            C,
            config.vocab_size,
            act,
            norm_of(config),
            biases,
            config.tie_word_embeddings,
            own_bias=kind != "gte" and biases,
            output_bias=biases,
        )
    if config.head == "sequence":
        first = p if kind == "jina_embeddings_v3" else 0.0
        return SequenceHead(C, labels, ACTIVATIONS["tanh"], dropout=p, input_dropout=first)
    if config.head == "questions":
        return TokenHead(C, 2)
    return TokenHead(C, labels, dropout=p) if config.head == "tokens" else None


@dataclass(frozen=True)
class NomicBertConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: nomic-embed-text-v1.5."""

    TITLE: ClassVar = "NomicBERT"
    IS_ENCODER: ClassVar = True
    ONLY_VALUE: ClassVar = {
        "is_decoder": False,
        "is_causal": False,
        "causal": False,
        "prenorm": False,
        "parallel_block": False,
        "parallel_block_tied_norm": False,
        "qkv_proj_bias": False,
        "mlp_fc2_bias": False,
        "use_rms_norm": False,
        "num_experts": 0,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_head_dim": False,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "layer_norm_type": "layer_norm",
        "logn_attention_scale": False,
    }
    NO_EFFECT: ClassVar = SUMMARY | frozenset(
        """
        add_pooling_layer dense_seq_output embd_pdrop n_ctx fused_bias_fc fused_dropout_add_ln pad_vocab_size_multiple
        reorder_and_upcast_attn use_flash_attn use_xentropy logn_attention_clip1 pack_qkv
        unpad_inputs use_memory_efficient_attention emb_pooler model_max_length
        matryoshka_dimensions matryoshka_dim gradient_checkpointing
        expert_choice_router ffn_div moe_every_n_layers moe_impl moe_normalize_expert_weights
        moe_resid_pdrop moe_top_k num_shared_experts router_aux_loss_coef
        """.split()
    )
    # Names in the files of Nomic's own code.
    ALIASES: ClassVar = {
        "nomic_bert": {
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "n_positions": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_eps",
            "resid_pdrop": "hidden_dropout_prob",
            "attn_pdrop": "attention_probs_dropout_prob",
            "rotary_emb_base": "rope_theta",
        },
    }
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "nomic_bert": {},
        "gte": {"vocab_size": 250048, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "type_vocab_size": 1,
                "pad_token_id": 1, "max_position_embeddings": 8192},
        "new": {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "type_vocab_size": 1},
        "jina_embeddings_v3": {"vocab_size": 250002, "hidden_size": 1024, "num_hidden_layers": 24,
                               "num_attention_heads": 16, "intermediate_size": 4096, "hidden_act": "gelu",
                               "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "type_vocab_size": 1,
                               "max_position_embeddings": 8194, "layer_norm_eps": 1e-5, "pad_token_id": 1,
                               "bos_token_id": 0, "eos_token_id": 2},
        "jina_bert": {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
                      "max_position_embeddings": 8192, "position_embedding_type": "alibi"},
        "jina_bert_code": {"vocab_size": 61056, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
                           "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 8192,
                           "position_embedding_type": "alibi"},
    }  # fmt: skip
    THETAS: ClassVar = {"nomic_bert": 1e3, "gte": 1.6e5, "new": 1e4, "jina_embeddings_v3": 2e4}
    POSITIONS: ClassVar = {
        "gte": "rope",
        **dict.fromkeys(JINA_BERT, "alibi"),
        "jina_embeddings_v3": "rotary",
    }

    model_type: str = "nomic_bert"
    vocab_size: int = 30528
    hidden_size: int = 768
    num_hidden_layers: int = field(default=12, metadata={"range": (1, 4096)})
    num_attention_heads: int = 12
    # None: hidden_size / heads
    head_dim: int | None = field(
        default=None, metadata={"range": (2, 2**16), "model_types": ("nomic_bert",)}
    )
    intermediate_size: int = 3072
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    # Nomic's name of the gated MLP; None: hidden_act
    activation_function: str | None = field(
        default=None,
        metadata={"choices": (None, "swiglu", "geglu"), "model_types": ("nomic_bert",)},
    )
    # Jina's name of it
    feed_forward_type: str = field(
        default="geglu", metadata={"choices": ("geglu", "reglu"), "model_types": JINA_BERT}
    )
    # False: the masked-LM head has no biases, as in files of Nomic's own code
    mlp_fc1_bias: bool | None = field(
        default=None, metadata={"choices": (None, False), "model_types": ("nomic_bert",)}
    )
    max_position_embeddings: int = 2048
    position_embedding_type: str | None = None
    type_vocab_size: int = field(default=2, metadata={"range": (0, 2**24)})
    rope_parameters: dict | None = field(  # type: ignore[type-arg]
        default=None, metadata={"model_types": ROTARY}
    )
    rotary_scaling_factor: float | None = field(
        default=None, metadata={"range": (1, 1e6), "model_types": ("nomic_bert",)}
    )
    max_trained_positions: int = field(default=2048, metadata={"model_types": ("nomic_bert",)})
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    classifier_dropout: float | None = field(default=None, metadata={"range": (0.0, 1.0)})
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"NomicBERT: hidden_size ({self.hidden_size}) must be a multiple of"
                f" num_attention_heads ({self.num_attention_heads})"
            )
        self.replace_older_settings()
        kind = self.model_type
        positions = self.POSITIONS.get(kind)
        if self.position_embedding_type not in (None, positions):
            raise ValueError(
                f"NomicBERT: config.json sets position_embedding_type to"
                f" {self.position_embedding_type!r}; a {kind} model has {positions} only"
            )
        if kind in ROTARY:
            if self.head_size % 2:
                raise ValueError(
                    f"NomicBERT: the head size ({self.head_size}) must be even: rotary embeddings"
                    " rotate pairs"
                )
            rotary.check("NomicBERT", self.rope)
        if self.head == "questions" and kind in ("nomic_bert", "gte"):
            raise ValueError(f"NomicBERT: a {kind} model has no question answering head")

    def replace_older_settings(self) -> None:
        """Replace settings of the repositories' own code by transformers' settings."""
        rope: dict[str, Any] = rotary.completed(
            self.rope_parameters, self.context_length, self.THETAS.get(self.model_type, 1e4)
        )
        settings: dict[str, object] = {}
        if self.rotary_scaling_factor is not None:
            # Longer texts would have other angles, which depend on their length.
            scaled = {**rope, "rope_type": "dynamic", "factor": self.rotary_scaling_factor}
            length = min(self.max_position_embeddings, self.max_trained_positions)
            settings = {"rope_parameters": scaled, "max_position_embeddings": length}
        if self.model_type in ("gte", "new"):
            if rope["rope_type"] == "ntk":
                rotary.check("NomicBERT", {**rope, "rope_type": "linear"})
                # Peng & Quesnelle (2023): a larger theta, and all frequencies divided by a root.
                factor = rope["factor"]
                root = factor ** (2 / self.head_size)
                theta = rope["rope_theta"] * factor
                rope = {"rope_type": "linear", "rope_theta": theta, "factor": root}
            settings = {"rope_parameters": rope, "model_type": "gte"}
        if self.activation_function is not None:
            settings["hidden_act"] = GATES[self.activation_function]
        settings |= {"rotary_scaling_factor": None, "activation_function": None}
        for name, value in settings.items():
            object.__setattr__(self, name, value)

    @property
    def head_size(self) -> int:
        """D."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def inner_size(self) -> int:
        """The channels of all heads, H * D."""
        return self.head_size * self.num_attention_heads

    @property
    def attention_bias(self) -> bool:
        """Whether the projections of attention have biases."""
        return self.model_type != "nomic_bert"

    @property
    def head_biases(self) -> int:
        """0 for a masked-LM head without biases, otherwise 1."""
        return int(self.mlp_fc1_bias is None)

    @property
    def mlp_act(self) -> str:
        """The activation of the MLP."""
        is_jina = self.model_type in JINA_BERT
        return GATES[self.feed_forward_type] if is_jina else self.hidden_act

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters with defaults."""
        theta = self.THETAS[self.model_type]
        return rotary.completed(self.rope_parameters, self.max_position_embeddings, theta)

    def to_hub(self) -> dict[str, object]:
        """The config.json of this model for transformers; for JinaBERT, of its code."""
        kind = self.model_type
        older = {"rotary_scaling_factor", "max_trained_positions", "activation_function"}
        dropped = unavailable(self, kind).keys() | older
        dropped |= set() if kind in JINA_BERT else {"position_embedding_type"}
        settings = {
            name: value
            for name, value in self.hub_settings(NAMES[kind]).items()
            if name not in dropped and not (name == "mlp_fc1_bias" and value is None)
        }
        if kind == "nomic_bert":
            settings["head_dim"] = self.head_size
        if kind in JINA_BERT:
            code = CODE[kind]
            auto = {
                name: f"{code}--modeling_bert.JinaBert{suffix}"
                for name, suffix in AUTO_CLASSES.items()
            }
            return {
                **settings,
                "auto_map": {
                    "AutoConfig": f"{code}--configuration_bert.JinaBertConfig",
                    **auto,
                },
            }
        return settings | {"rope_parameters": self.rope}
