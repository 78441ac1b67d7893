"""BERT, an encoder with bidirectional attention, with RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT,
ELECTRA, ALBERT.

Sources
    Devlin et al. (2019), "BERT"; Liu et al. (2019), "RoBERTa"; Conneau et al. (2020), "Unsupervised
        Cross-lingual Representation Learning at Scale" (XLM-R); Martin et al. (2020), "CamemBERT";
        Sanh et al. (2019), "DistilBERT"; Clark et al. (2020), "ELECTRA"; Lan et al. (2020),
        "ALBERT".
    Hub docs: `transformers`, model_types "bert", "roberta", "xlm-roberta", "camembert",
        "distilbert", "electra" and "albert".

Differences from similar architectures
    GPT-2     attends to previous positions only, and norms the input of attention and MLP. Here all
              tokens attend to all tokens, and the sums with the residual stream are normed.
    roberta, xlm-roberta, camembert    count positions from the ID of the padding token, without
    padding tokens. distilbert    has no token types and no pooler.    electra    may project
    smaller embeddings to C. albert    projects its embeddings to C. Its layers share a few groups
    of blocks, usually a single block.

Notation
    B batch rows    T positions    C channels, hidden_size    E size of the embeddings    H heads
    D head size, C / H V vocabulary
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.encoder import Encoder
from minhub_py.models.heads import HeadSettings, MaskedLMHead, SequenceHead, TokenHead
from minhub_py.models.layers import counted_positions
from minhub_py.models.settings import unavailable
from minhub_py.models.steps import (
    Add,
    AddPositions,
    AddTypes,
    Attend,
    Embed,
    HiddenStates,
    Linear,
    Norm,
    Step,
    StoreResidual,
)
from minhub_py.system.json_text import JsonObject

NAMES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "albert": "Albert",
}
ROBERTA = ("roberta", "xlm-roberta", "camembert")


class Attention(nn.Module):
    def __init__(self, config: "BertConfig") -> None:
        super().__init__()
        C = config.hidden_size
        self.heads, self.dropout = config.num_attention_heads, config.attention_probs_dropout_prob
        self.scale = (C // self.heads) ** -0.5
        self.q, self.k, self.v, self.o = (nn.Linear(C, C) for _ in range(4))

    def forward(self, x: Tensor, past: Past, layer: int) -> Tensor:
        # (B, H, T, D) each
        q, k, v = (split_heads(project(x), self.heads) for project in (self.q, self.k, self.v))
        dropout = self.dropout if self.training else 0.0
        # (B, H, T, D)
        y = past.attend(layer, q, k, v, scale=self.scale, causal=False, dropout=dropout)
        return self.o(merge_heads(y))


class Block(nn.Module):
    def __init__(self, config: "BertConfig") -> None:
        super().__init__()
        C, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.attention = Attention(config)
        self.attention_norm = nn.LayerNorm(C, eps=eps)
        self.fc1, self.fc2 = nn.Linear(C, inner), nn.Linear(inner, C)
        self.mlp_norm = nn.LayerNorm(C, eps=eps)
        self.act, self.dropout = (
            ACTIVATIONS[config.hidden_act],
            nn.Dropout(config.hidden_dropout_prob),
        )
        self.mlp_dropout = nn.Dropout(
            0.0 if config.model_type == "albert" else config.hidden_dropout_prob
        )

    def forward(self, x: Tensor, past: Past, layer: int) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, past, layer)))
        return self.mlp_norm(x + self.mlp_dropout(self.fc2(self.act(self.fc1(x)))))


class Bert(Encoder):
    config: "BertConfig"

    def __init__(self, config: "BertConfig") -> None:
        super().__init__()
        self.config = config
        C, E, eps = (
            config.hidden_size,
            config.embedding_size or config.hidden_size,
            config.layer_norm_eps,
        )
        self.embed_tokens = nn.Embedding(config.vocab_size, E)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, E)
        self.embed_types = (
            nn.Embedding(config.type_vocab_size, E) if config.model_type != "distilbert" else None
        )
        self.norm = nn.LayerNorm(E, eps=eps)
        self.project = nn.Linear(E, C) if E != C or config.model_type == "albert" else None
        self.layers = nn.ModuleList()  # of blocks; of ALBERT's groups of blocks
        for _ in range(
            config.num_hidden_layers if config.model_type != "albert" else config.num_hidden_groups
        ):
            group = (Block(config) for _ in range(config.inner_group_num))
            self.layers.append(
                nn.ModuleList(group) if config.model_type == "albert" else Block(config)
            )
        self.drop = nn.Dropout(config.hidden_dropout_prob)
        self.head = head_of(config)
        self.init_weights(config.initializer_range)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embed_tokens

    @property
    def blocks(self) -> list[Any]:
        """Each layer's block."""
        if self.config.model_type != "albert":
            return list(self.layers)
        count = self.config.num_hidden_layers
        groups: list[Any] = [self.layers[int(i / (count / len(self.layers)))] for i in range(count)]
        return [block for group in groups for block in group]

    def positions(self, idx: Tensor, past: Past) -> Tensor:
        """The row of the position embedding for each token (B or 1, T)."""
        if self.config.uncounted_token is None:
            return past.positions
        return counted_positions(idx, self.config.uncounted_token)

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        x = self.embed_tokens(idx) + self.embed_positions(self.positions(idx, past))  # (B, T, E)
        if self.embed_types is not None:
            x = x + self.embed_types(torch.zeros_like(idx) if token_types is None else token_types)
        x = self.drop(self.norm(x))
        if self.project is not None:
            x = self.project(x)  # (B, T, C)
        for layer, block in enumerate(self.blocks):
            x = block(x, past, layer)
        return x

    def steps(self) -> Iterator[Step]:
        act, p = self.config.hidden_act, self.drop.p
        yield Embed(self.embed_tokens)
        yield AddPositions(
            self.embed_positions, self.config.first_position, self.config.uncounted_token
        )
        if self.embed_types is not None:
            yield AddTypes(self.embed_types)
        yield Norm(self.norm, to_residual=True, dropout=p)
        if self.project is not None:
            yield Linear([self.project])
            yield StoreResidual()
        for block in self.blocks:
            attn = block.attention
            yield Linear([attn.q, attn.k, attn.v])
            yield Attend(attn.heads, attn.heads, attn.scale, causal=False, dropout=attn.dropout)
            yield Add(attn.o, dropout=p)
            yield Norm(block.attention_norm, to_residual=True)
            yield Linear([block.fc1], act)
            yield Add(block.fc2, dropout=block.mlp_dropout.p)
            yield Norm(block.mlp_norm, to_residual=True)
        yield HiddenStates(self.config.hidden_size)


def head_of(config: "BertConfig") -> nn.Module | None:
    """The head of the checkpoint."""
    C, E, kind = config.hidden_size, config.embedding_size or config.hidden_size, config.model_type
    labels = len(config.labels)
    p = (
        config.hidden_dropout_prob
        if config.classifier_dropout is None
        else config.classifier_dropout
    )
    if config.head == "masked_lm":
        act = ACTIVATIONS[config.hidden_act if kind in ("bert", "distilbert", "albert") else "gelu"]
        norm = nn.LayerNorm(E, eps=config.layer_norm_eps)
        own_bias = kind not in ("distilbert", "electra")
        return MaskedLMHead(
            C, E, config.vocab_size, act, norm, True, config.tie_word_embeddings, own_bias
        )
    if config.head == "sequence":
        name = {"distilbert": "relu", "electra": "gelu"}.get(kind, "tanh")
        first = p if kind in (*ROBERTA, "electra") else 0.0
        return SequenceHead(C, labels, ACTIVATIONS[name], dropout=p, input_dropout=first)
    if config.head == "questions":
        return TokenHead(C, 2, dropout=config.qa_dropout if kind == "distilbert" else 0.0)
    p = config.hidden_dropout_prob if kind == "distilbert" else p
    return TokenHead(C, labels, dropout=p) if config.head == "tokens" else None


@dataclass(frozen=True)
class BertConfig(HeadSettings):
    """The settings of config.json that change the result. Defaults: bert-base."""

    TITLE: ClassVar = "BERT"
    IS_ENCODER: ClassVar = True
    NO_EFFECT: ClassVar = frozenset(
        """
        pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
        pooler_size_per_head pooler_type directionality gradient_checkpointing sinusoidal_pos_embds
        tie_weights_ summary_type summary_use_proj summary_activation
        summary_last_dropout summary_first_dropout generator_size
        net_structure_type gap_size num_memory_blocks down_scale_factor layers_to_keep
        """.split()
    )
    ONLY_VALUE: ClassVar = {
        "is_decoder": False,
        "is_causal": False,
        "position_embedding_type": "absolute",
    }
    # DistilBERT's and ALBERT's names of the settings.
    ALIASES: ClassVar = {
        "distilbert": {
            "dim": "hidden_size",
            "n_layers": "num_hidden_layers",
            "n_heads": "num_attention_heads",
            "hidden_dim": "intermediate_size",
            "activation": "hidden_act",
            "dropout": "hidden_dropout_prob",
            "attention_dropout": "attention_probs_dropout_prob",
            "seq_classif_dropout": "classifier_dropout",
        },
        "albert": {"classifier_dropout_prob": "classifier_dropout"},
    }
    DEFAULTS: ClassVar = {
        "bert": {},
        "roberta": {"vocab_size": 50265, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        "xlm-roberta": {"vocab_size": 30522, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        "camembert": {"vocab_size": 30522, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        "distilbert": {"classifier_dropout": 0.2},
        "electra": {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "embedding_size": 128},
        "albert": {"vocab_size": 30000, "hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384,
                   "embedding_size": 128, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0,
                   "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.1, "bos_token_id": 2,
                   "eos_token_id": 3},
    }  # fmt: skip

    model_type: str = "bert"
    vocab_size: int = 30522
    hidden_size: int = 768
    embedding_size: int | None = field(  # None: hidden_size
        default=None, metadata={"range": (1, 2**24), "model_types": ("electra", "albert")}
    )
    num_hidden_layers: int = field(default=12, metadata={"range": (1, 4096)})
    num_hidden_groups: int = field(
        default=1, metadata={"range": (1, 4096), "model_types": ("albert",)}
    )
    inner_group_num: int = field(
        default=1, metadata={"range": (1, 4096), "model_types": ("albert",)}
    )
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = field(default="gelu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None  # None: hidden_dropout_prob
    qa_dropout: float = field(default=0.1, metadata={"model_types": ("distilbert",)})
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"BERT: hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads "
                f"({self.num_attention_heads})"
            )
        if self.model_type == "distilbert" and self.layer_norm_eps != 1e-12:
            raise ValueError(
                f"BERT: layer_norm_eps must be 1e-12 for distilbert, not {self.layer_norm_eps}"
            )
        if self.num_hidden_groups > self.num_hidden_layers:
            raise ValueError(
                f"BERT: num_hidden_groups ({self.num_hidden_groups}) must be at most"
                f" num_hidden_layers ({self.num_hidden_layers})"
            )

    @property
    def uncounted_token(self) -> int | None:
        """The padding token, if positions do not count it (layers.counted_positions)."""
        return (self.pad_token_id or 0) if self.model_type in ROBERTA else None

    @property
    def first_position(self) -> int:
        """The row of the position embedding for the first token."""
        return 0 if self.uncounted_token is None else self.uncounted_token + 1

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.max_position_embeddings - self.first_position

    @property
    def head(self) -> str | None:
        """See `HeadSettings`. ELECTRA's pretraining head detects replaced tokens and is not
        supported.
        """
        name = (self.architectures or [""])[0]
        return None if name == "ElectraForPreTraining" else super().head

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        dropped = unavailable(self, self.model_type)
        settings = self.hub_settings(NAMES[self.model_type])
        settings = {name: value for name, value in settings.items() if name not in dropped}
        for hub, name in self.ALIASES.get(self.model_type, {}).items():
            if name in settings:
                settings[hub] = settings.pop(name)
        if self.model_type == "distilbert":
            del settings["layer_norm_eps"], settings["type_vocab_size"]
        return settings
