"""DeBERTa, an encoder with disentangled attention: version 1, 2 and 3.

Sources
    He et al. (2021), "DeBERTa: Decoding-enhanced BERT with Disentangled Attention"; He, Gao & Chen
        (2023), "DeBERTaV3".
    Hub docs: `transformers`, model_types "deberta" (version 1) and "deberta-v2" (2 and 3).

Differences from similar architectures
    bert      adds an embedding of the position to each token. DeBERTa has an embedding of each
              distance: the scores add the products of a query with the distance's key and of a key
              with the distance's query.
    mpnet     adds a number per distance, which does not depend on the tokens.
    deberta   has a row for each distance, and its projections of distances are separate.
    deberta-v2    has rows of distances on a logarithmic scale (position_buckets), may project
              distances and tokens alike (share_att_key), and may have a convolution parallel to the
              first block (v2-xlarge).

Notation
    B batch rows    T positions    C channels, hidden_size    E size of the embeddings    H heads
    D head size, C / H R rows of distances    V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.encoder import Encoder
from minhub_py.models.heads import HeadSettings, MaskedLMHead, SequenceHead, TokenHead
from minhub_py.models.layers import BlockList, Disentangled, disentangled_bias, distance_rows
from minhub_py.models.settings import Positions, unavailable
from minhub_py.models.steps import (
    Add,
    AddPositions,
    AddTypes,
    Attend,
    Convolution,
    Embed,
    HiddenStates,
    Linear,
    Norm,
    SaveResidual,
    Step,
    StoreResidual,
)
from minhub_py.system.json_text import JsonObject

NAMES = {"deberta": "Deberta", "deberta-v2": "DebertaV2"}
# of scores: of queries with the keys of distances, of keys with the queries of distances
TYPES = ("c2p", "p2c")


class Attention(nn.Module):
    def __init__(self, config: "DebertaConfig", layer: int) -> None:
        super().__init__()
        C, types = config.hidden_size, config.position_scores
        self.layer, self.heads, self.dropout = (
            layer,
            config.num_attention_heads,
            config.attention_probs_dropout_prob,
        )
        self.scale = (C // self.heads * config.score_terms) ** -0.5
        is_v1 = config.model_type == "deberta"
        self.q, self.k, self.v, self.o = (
            nn.Linear(C, C),
            nn.Linear(C, C, bias=not is_v1),
            nn.Linear(C, C),
            nn.Linear(C, C),
        )
        self.shared, self.types = config.share_att_key, types
        separate = () if self.shared else types
        self.position_key = nn.Linear(C, C, bias=not is_v1) if "c2p" in separate else None
        self.position_query = nn.Linear(C, C) if "p2c" in separate else None

    @property
    def projections(self) -> tuple[nn.Linear | None, nn.Linear | None]:
        """The projections of distances to keys and to queries; None without these scores."""
        if self.shared:
            return self.k if "c2p" in self.types else None, self.q if "p2c" in self.types else None
        return self.position_key, self.position_query

    def forward(
        self, x: Tensor, past: Past, distances: Tensor | None, rows: Tensor | None
    ) -> Tensor:
        """Attention of x (B, T, C).

        distances: their embeddings (1, R, C), or None.    rows: the row of each query and key, (T,
        T).
        """
        # (B, H, T, D) each
        q, k, v = (split_heads(layer(x), self.heads) for layer in (self.q, self.k, self.v))
        bias = None
        if distances is not None and rows is not None:
            keys, queries = (
                None if layer is None else split_heads(layer(distances), self.heads)
                for layer in self.projections
            )  # (1, H, R, D) each
            bias = disentangled_bias(q, k, keys, queries, rows, self.scale)  # (B, H, T, T)
        dropout = self.dropout if self.training else 0.0
        y = past.attend(
            self.layer, q, k, v, scale=self.scale, bias=bias, causal=False, dropout=dropout
        )
        return self.o(merge_heads(y))


class Block(nn.Module):
    """conv: of the embeddings, added after the first block of some models; otherwise None."""

    def __init__(self, config: "DebertaConfig", layer: int) -> None:
        super().__init__()
        C, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.attention = Attention(config, layer)
        self.attention_norm = nn.LayerNorm(C, eps=eps)
        self.fc1, self.fc2 = nn.Linear(C, inner), nn.Linear(inner, C)
        self.mlp_norm = nn.LayerNorm(C, eps=eps)
        self.act, self.dropout = (
            ACTIVATIONS[config.hidden_act],
            nn.Dropout(config.hidden_dropout_prob),
        )
        self.pos_dropout = nn.Dropout(config.hidden_dropout_prob)
        self.conv, self.conv_norm, taps = None, None, config.conv_kernel_size
        if layer == 0 and taps:
            self.conv = nn.Conv1d(C, C, taps, padding=taps // 2, groups=config.conv_groups)
            self.conv_norm, self.conv_act = nn.LayerNorm(C, eps=eps), ACTIVATIONS[config.conv_act]

    def forward(
        self, x: Tensor, past: Past, distances: Tensor | None, rows: Tensor | None
    ) -> Tensor:
        embedded = x
        distances = None if distances is None else self.pos_dropout(distances)
        x = self.attention_norm(x + self.dropout(self.attention(x, past, distances, rows)))
        x = self.mlp_norm(x + self.dropout(self.fc2(self.act(self.fc1(x)))))
        if self.conv is None or self.conv_norm is None:
            return x
        if past.attended_tokens is not None:
            embedded = embedded * past.attended_tokens.unsqueeze(2)
        y = self.conv(embedded.transpose(1, 2)).transpose(1, 2)
        return self.conv_norm(x + self.conv_act(self.dropout(y)))


class Deberta(Encoder):
    config: "DebertaConfig"

    def __init__(self, config: "DebertaConfig") -> None:
        super().__init__()
        self.config = config
        C, E, eps = (
            config.hidden_size,
            config.embedding_size or config.hidden_size,
            config.layer_norm_eps,
        )
        self.embed_tokens = nn.Embedding(config.vocab_size, E)
        self.embed_positions = (
            nn.Embedding(config.max_position_embeddings, E)
            if config.position_biased_input
            else None
        )
        self.embed_types = (
            nn.Embedding(config.type_vocab_size, E) if config.type_vocab_size else None
        )
        self.project = nn.Linear(E, C, bias=False) if E != C else None
        self.norm = nn.LayerNorm(C, eps=eps)
        self.distances = (
            nn.Embedding(config.distance_rows, C) if config.relative_attention else None
        )
        self.distance_norm = (
            nn.LayerNorm(C, eps=eps) if "layer_norm" in config.norm_rel_ebd else None
        )
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.drop = nn.Dropout(config.hidden_dropout_prob)
        self.head = head_of(config)
        self.init_weights(config.initializer_range)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embed_tokens

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        x = self.embed_tokens(idx)  # (B, T, E)
        if self.embed_positions is not None:
            x = x + self.embed_positions(past.positions)
        if self.embed_types is not None:
            x = x + self.embed_types(
                idx.new_zeros(idx.shape) if token_types is None else token_types
            )
        if self.project is not None:
            x = self.project(x)  # (B, T, C)
        x = self.drop(self.norm(x))
        distances = rows = None
        if self.distances is not None:
            distances = self.distances.weight.unsqueeze(0)  # (1, R, C)
            distances = distances if self.distance_norm is None else self.distance_norm(distances)
            buckets, largest = self.config.buckets, self.config.largest_distance
            positions = past.positions[0]
            rows = distance_rows(
                positions.unsqueeze(1) - positions, self.config.distance_rows, buckets, largest
            )  # (T, T)
        for block in self.layers:
            x = block(x, past, distances, rows)
        return x

    def steps(self) -> Iterator[Step]:
        act, p = self.config.hidden_act, self.drop.p
        yield Embed(self.embed_tokens)
        if self.embed_positions is not None:
            yield AddPositions(self.embed_positions)
        if self.embed_types is not None:
            yield AddTypes(self.embed_types)
        if self.project is not None:
            yield Linear([self.project])
            yield StoreResidual()
        yield Norm(self.norm, to_residual=True, dropout=p)
        for block in self.layers:
            attn, bias = block.attention, None
            if self.distances is not None:
                buckets, largest = self.config.buckets, self.config.largest_distance
                keys, queries = attn.projections
                bias = Disentangled(
                    self.distances, self.distance_norm, keys, queries, buckets, largest, dropout=p
                )
            if block.conv is not None:
                yield SaveResidual()
            yield Linear([attn.q, attn.k, attn.v])
            yield Attend(
                attn.heads, attn.heads, attn.scale, bias=bias, causal=False, dropout=attn.dropout
            )
            yield Add(attn.o, dropout=p)
            yield Norm(block.attention_norm, to_residual=True)
            yield Linear([block.fc1], act)
            yield Add(block.fc2, dropout=p)
            yield Norm(block.mlp_norm, to_residual=True)
            if block.conv is not None and block.conv_norm is not None:
                yield Convolution(block.conv, self.config.conv_act, dropout=p)
                yield Norm(block.conv_norm, to_residual=True)
        yield HiddenStates(self.config.hidden_size)


def head_of(config: "DebertaConfig") -> nn.Module | None:
    """The head of the checkpoint."""
    C, E, labels, p = (
        config.hidden_size,
        config.embedding_size,
        len(config.labels),
        config.hidden_dropout_prob,
    )
    if config.head == "masked_lm":
        size, tied = (E or C, config.tie_word_embeddings) if config.legacy else (C, True)
        norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        return MaskedLMHead(
            C,
            size,
            config.vocab_size,
            ACTIVATIONS[config.hidden_act],
            norm,
            True,
            tied,
            own_bias=True,
        )
    if config.head == "sequence":
        act, last = (
            ACTIVATIONS[config.pooler_hidden_act],
            p if config.cls_dropout is None else config.cls_dropout,
        )
        return SequenceHead(C, labels, act, dropout=last, input_dropout=config.pooler_dropout)
    if config.head == "questions":
        return TokenHead(C, 2)
    return TokenHead(C, labels, dropout=p) if config.head == "tokens" else None


@dataclass(frozen=True)
class DebertaConfig(HeadSettings, Positions):
    """The settings of config.json that change the result. Defaults: transformers' for deberta-v2."""

    TITLE: ClassVar = "DeBERTa"
    IS_ENCODER: ClassVar = True
    NO_EFFECT: ClassVar = frozenset({"padding_idx", "z_steps"})
    ONLY_VALUE: ClassVar = {"talking_head": False, "is_causal": False}
    DEFAULTS: ClassVar = {
        "deberta": {
            "vocab_size": 50265,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
        "deberta-v2": {},
    }

    model_type: str = "deberta-v2"
    vocab_size: int = 128100
    hidden_size: int = 1536
    # None: hidden_size
    embedding_size: int | None = field(default=None, metadata={"range": (1, 2**24)})
    num_hidden_layers: int = field(default=24, metadata={"range": (1, 4096)})
    num_attention_heads: int = 24
    attention_head_size: int | None = field(default=None, metadata={"model_types": ("deberta-v2",)})
    intermediate_size: int = 6144
    hidden_act: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = 512
    type_vocab_size: int = field(default=0, metadata={"range": (0, 2**24)})
    layer_norm_eps: float = 1e-7
    relative_attention: bool = False
    # < 1: max_position_embeddings
    max_relative_positions: int = field(default=-1, metadata={"range": (-1, 2**24)})
    position_buckets: int = field(
        default=-1, metadata={"range": (-1, 2**24), "model_types": ("deberta-v2",)}
    )  # < 1: none
    share_att_key: bool = field(default=False, metadata={"model_types": ("deberta-v2",)})
    pos_att_type: list[str] | str | None = None  # of TYPES, in a list or with | between
    norm_rel_ebd: str = field(default="none", metadata={"model_types": ("deberta-v2",)})
    position_biased_input: bool = True
    conv_kernel_size: int = field(
        default=0, metadata={"range": (0, 1023), "model_types": ("deberta-v2",)}
    )
    conv_groups: int = field(default=1, metadata={"model_types": ("deberta-v2",)})
    conv_act: str = field(
        default="tanh", metadata={"choices": tuple(ACTIVATIONS), "model_types": ("deberta-v2",)}
    )
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    pooler_dropout: float = 0.0
    pooler_hidden_act: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    pooler_hidden_size: int | None = None
    cls_dropout: float | None = None  # None: hidden_dropout_prob
    legacy: bool = True  # the form of the masked-LM head
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        C, H, exact = self.hidden_size, self.num_attention_heads, self.buckets // 2
        if C % H:
            raise ValueError(
                f"DeBERTa: hidden_size ({C}) must be a multiple of num_attention_heads ({H})"
            )
        if self.attention_head_size not in (None, C // H):
            raise ValueError(
                f"DeBERTa: attention_head_size must be {C // H}, not {self.attention_head_size}"
            )
        if self.pooler_hidden_size not in (None, C):
            raise ValueError(
                f"DeBERTa: pooler_hidden_size must be {C}, not {self.pooler_hidden_size}"
            )
        if unknown := set(self.score_types) - set(TYPES):
            raise ValueError(
                f"DeBERTa: pos_att_type must contain {' or '.join(TYPES)}, not {min(unknown)}"
            )
        if self.norm_rel_ebd not in ("none", "layer_norm"):
            raise ValueError(
                f"DeBERTa: norm_rel_ebd must be none or layer_norm, not {self.norm_rel_ebd}"
            )
        if self.buckets and not 1 <= exact < self.largest_distance - 1:
            raise ValueError(
                f"DeBERTa: position_buckets ({self.buckets}) must be at least 2, and half of it"
                f" less than the largest distance ({self.largest_distance - 1})"
            )
        if self.conv_kernel_size and (self.conv_kernel_size % 2 == 0 or C % self.conv_groups):
            raise ValueError(
                f"DeBERTa: conv_kernel_size must be odd, not {self.conv_kernel_size}, and"
                f" hidden_size ({C}) a multiple of conv_groups ({self.conv_groups})"
            )
        if self.head == "masked_lm" and not self.legacy and self.embedding_size not in (None, C):
            raise ValueError(
                f"DeBERTa: with legacy false, embedding_size must be hidden_size ({C})"
            )

    @property
    def score_types(self) -> list[str]:
        """pos_att_type as a list."""
        types = self.pos_att_type or []
        return (
            [part.strip() for part in types.lower().split("|")]
            if isinstance(types, str)
            else list(types)
        )

    @property
    def position_scores(self) -> tuple[str, ...]:
        """The scores that relative positions add."""
        return tuple(name for name in TYPES if name in self.score_types and self.relative_attention)

    @property
    def score_terms(self) -> int:
        """The number of products in a score; its square root divides the score."""
        return 1 + len(self.score_types if self.model_type == "deberta" else set(self.score_types))

    @property
    def buckets(self) -> int:
        """Buckets of distances on each side; 0 for a row for each distance."""
        return max(self.position_buckets, 0)

    @property
    def largest_distance(self) -> int:
        """Further distances have the row of this one."""
        return (
            self.max_relative_positions
            if self.max_relative_positions >= 1
            else self.max_position_embeddings
        )

    @property
    def distance_rows(self) -> int:
        """Number of rows in the table of distances (R)."""
        return 2 * (self.buckets or self.largest_distance)

    @property
    def position_tables(self) -> int:
        """The number of absolute position embeddings: published files have one also if it is not
        used.
        """
        return int(self.position_biased_input)

    @property
    def table_head(self) -> str | None:
        """The head in the weight table, which has two forms of the masked-LM head."""
        return "masked_lm_new" if self.head == "masked_lm" and not self.legacy else self.head

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        dropped = unavailable(self, self.model_type)
        absent = {
            name
            for name in ("embedding_size", "attention_head_size", "pooler_hidden_size")
            if getattr(self, name) is None
        }  # transformers has no null for these
        settings = self.hub_settings(NAMES[self.model_type])
        return {
            name: value
            for name, value in settings.items()
            if name not in dropped and name not in absent
        }
