"""Laya, an encoder that answers typed questions: ModernBERT with layers of a decision head.

Sources
    Convai Innovations (2026), Laya: the package `laya` 0.4 and its checkpoints (Apache-2.0).
    Warner et al. (2024), "Smarter, Better, Faster, Longer", for ModernBERT, and so for mmBERT.
    Vaswani et al. (2017) for the layers of the head, which are PyTorch's nn.TransformerEncoderLayer.

Differences from similar architectures
    ModernBERT          its body. Here the vector of the question's type is added to each hidden
                        state, and layers with biases and without positions follow.
    JevForDecision      is a decoder: one linear layer scores the answers after the prompt. Here a
                        mark before each option in the prompt is scored.

Notation
    B batch rows    T positions    C channels, hidden_size    A actions
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.attention import Past, merge_heads, split_heads
from minhub_py.models.heads import HeadSettings
from minhub_py.models.layers import BlockList
from minhub_py.models.modernbert import ModernBert, ModernBertConfig
from minhub_py.models.steps import (
    Add,
    AddTypes,
    Attend,
    HiddenStates,
    Linear,
    LoadResidual,
    Norm,
    Step,
)
from minhub_py.system.json_text import JsonObject

# In the order of the rows of the embedding and of the file's temperatures.
QUESTION_TYPES = ("choice", "score", "noul")
HEAD_SIZE, DROPOUT, EPS = 64, 0.1, 1e-5
# Numbers about the scores, further inputs of the layer for actions.
ACTION_FEATURES, ACTION_WIDTH = 4, 256


class DecisionLayer(nn.Module):
    def __init__(self, layer: int, C: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, max(1, C // HEAD_SIZE)
        self.scale = (C // self.heads) ** -0.5
        self.attention_norm, self.mlp_norm = nn.LayerNorm(C, EPS), nn.LayerNorm(C, EPS)
        self.q, self.k, self.v, self.o = (nn.Linear(C, C) for _ in range(4))
        self.wi, self.wo = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        y = self.attention_norm(x)
        q, k, v = (split_heads(project(y), self.heads) for project in (self.q, self.k, self.v))
        dropout = DROPOUT if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, causal=False, dropout=dropout)
        x = x + self.drop(self.o(merge_heads(y)))
        return x + self.drop(self.wo(self.drop(F.relu(self.wi(self.mlp_norm(x))))))

    def steps(self) -> Iterator[Step]:
        """The operations."""
        yield Norm(self.attention_norm)
        yield Linear([self.q, self.k, self.v])
        yield Attend(self.heads, self.heads, self.scale, causal=False, dropout=DROPOUT)
        yield Add(self.o, dropout=DROPOUT)
        yield Norm(self.mlp_norm)
        yield Linear([self.wi], "relu", dropout=DROPOUT)
        yield Add(self.wo, dropout=DROPOUT)


class OptionHead(nn.Module):
    """Scores (B, T): the score of an option at its mark.

    act, act_out: layers for the probability of an action, which only the package `laya` computes.
    temperature: one per type of question, which the package ignores, too: it reads its settings.
    """

    temperature: Tensor

    def __init__(self, C: int, actions: int) -> None:
        super().__init__()
        self.norm, self.dense, self.out = nn.LayerNorm(C, EPS), nn.Linear(C, C), nn.Linear(C, 1)
        self.act = nn.Linear(C + ACTION_FEATURES, ACTION_WIDTH)
        self.act_out = nn.Linear(ACTION_WIDTH, actions)
        self.register_buffer("temperature", torch.ones(len(QUESTION_TYPES)))

    def forward(self, x: Tensor, embedding: object = None, mask: Tensor | None = None) -> Tensor:
        return self.out(F.gelu(self.dense(self.norm(x)))).squeeze(-1)


class Laya(ModernBert):
    config: "LayaConfig"
    head: OptionHead

    def __init__(self, config: "LayaConfig") -> None:
        super().__init__(config)
        C, L = config.hidden_size, config.num_hidden_layers
        self.embed_types = nn.Embedding(len(QUESTION_TYPES), C)
        self.decision_layers = BlockList(
            DecisionLayer(L + number, C) for number in range(config.head_layers)
        )
        self.head = OptionHead(C, len(config.act_costs or {}) + 1)
        self.init_weights(config.initializer_range)

    def body(self, idx: Tensor, past: Past, token_types: Tensor | None = None) -> Tensor:
        """token_types: the type of the question, at each position; see QUESTION_TYPES."""
        types = torch.zeros_like(idx) if token_types is None else token_types
        x = super().body(idx, past) + self.embed_types(types)
        for layer in self.decision_layers:
            x = layer(x, past)
        return x

    def steps(self) -> Iterator[Step]:
        for step in super().steps():
            if not isinstance(step, HiddenStates):
                yield step
        yield AddTypes(self.embed_types)
        for layer in self.decision_layers:
            yield from layer.steps()
        yield LoadResidual()
        yield HiddenStates(self.config.hidden_size)


@dataclass(frozen=True)
class LayaConfig(ModernBertConfig):
    """The settings of encoder/config.json and rl_agent_config.json that change the result."""

    TITLE: ClassVar = "Laya"
    ONLY_VALUE: ClassVar[Mapping[str, object]] = {
        **ModernBertConfig.ONLY_VALUE,
        "option_layout": "sequential",
    }
    NO_EFFECT: ClassVar = ModernBertConfig.NO_EFFECT | frozenset(
        "amp_dtype gradient_checkpointing".split()
    )

    head_layers: int = field(default=2, metadata={"range": (0, 4096)})
    act_costs: dict | None = None  # type: ignore[type-arg]  # actions of the package
    encoder: str | None = None  # the name of the encoder that was trained
    max_len: int = 512  # of a question with its text, in tokens
    head_max_len: int = 192  # of the question
    # of choice, score and noul, in this order
    temperature: list | None = None  # type: ignore[type-arg]
    # by type and number of options, such as "choice:3-5"; precedes `temperature`
    temperature_by_options: dict | None = None  # type: ignore[type-arg]

    @property
    def head(self) -> str | None:
        """See `HeadSettings`."""
        return "decision"

    @property
    def type_vocab_size(self) -> int:
        """Number of types of questions."""
        return len(QUESTION_TYPES)

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return min(self.max_len, self.max_position_embeddings)

    def to_hub(self) -> JsonObject:
        """All settings, of both files: see `agent_settings` and `encoder_settings`."""
        return {
            **self.encoder_settings(),
            **self.agent_settings(),
            "model_type": "laya",
            "architectures": ["LayaForDecision"],
        }

    def agent_settings(self) -> JsonObject:
        """The content of rl_agent_config.json."""
        own = set(LayaConfig.__dataclass_fields__) - set(ModernBertConfig.__dataclass_fields__)
        return {
            name: value for name, value in asdict(self).items() if name in own and value is not None
        }

    def encoder_settings(self) -> JsonObject:
        """The content of encoder/config.json, which transformers reads."""
        own = set(LayaConfig.__dataclass_fields__) - set(ModernBertConfig.__dataclass_fields__)
        encoder = ModernBertConfig(
            **{
                name: value
                for name, value in asdict(self).items()
                if name not in own and name not in HeadSettings.__dataclass_fields__
            },
            architectures=["ModernBertModel"],
        )
        return encoder.to_hub()

    def further_files(self) -> dict[str, JsonObject]:
        """The further files with settings, which the package `laya` reads, by name."""
        return {
            "rl_agent_config.json": self.agent_settings(),
            "encoder/config.json": self.encoder_settings(),
        }
