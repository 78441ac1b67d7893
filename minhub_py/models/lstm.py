"""An LSTM language model, the recurrent baseline, in one file.

Sources
    Hochreiter & Schmidhuber (1997), "Long Short-Term Memory"; Graves (2013), "Generating Sequences
        With RNNs".
    Tied weights: Press & Wolf (2017), "Using the Output Embedding to Improve Language Models".
    Not in transformers: names and settings follow PyTorch's word language model example.

Differences from similar architectures
    GPT-2, GPT-Neo    cache keys and values of every position and have a context length. An LSTM has
    a recurrent state of fixed size, h and c, and no context length.

Notation
    B batch rows    T positions read in this call    E embedding_size    H hidden_size    L
    num_layers    V vocabulary
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import State
from minhub_py.models.steps import Embed, Logits, Recurrent, Step
from minhub_py.system.device import has_onednn_bfloat16
from minhub_py.system.json_text import JsonObject

MODEL_TYPE = "lstm"
ONEDNN_BFLOAT16 = has_onednn_bfloat16()  # a constant: torch.compile cannot trace the call


class LSTM(LanguageModel):
    config: "LSTMConfig"

    def __init__(self, config: "LSTMConfig") -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.drop = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(
            config.embedding_size,
            config.hidden_size,
            config.num_layers,
            batch_first=True,
            # PyTorch warns about dropout with one layer
            dropout=config.dropout if config.num_layers > 1 else 0.0,
        )
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        nn.init.uniform_(self.embedding.weight, -config.initializer_range, config.initializer_range)
        nn.init.zeros_(self.head.bias)
        # A tied head is the token embedding itself: it has a bias and no weight.
        if config.tie_word_embeddings:
            self.head.register_parameter("weight", None)
        else:
            nn.init.uniform_(self.head.weight, -config.initializer_range, config.initializer_range)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        layers = range(self.config.num_layers)
        # [h, c] of each layer
        states = [state for layer in layers if (state := past.state(layer)) is not None]
        # (L, B, H), (L, B, H)
        h, c = map(torch.stack, zip(*states, strict=True)) if states else (None, None)
        x = self.drop(self.embedding(idx))  # (B, T, E)
        # Autocast selects oneDNN's LSTM in 16 bits, and fails on processors without it: they
        # compute in float32.
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and ONEDNN_BFLOAT16):
            x, (h, c) = self.lstm(x, None if h is None else (h, c))  # (B, T, H)
        for layer in layers:
            past.set_state(layer, (h[layer], c[layer]))
        return self.drop(x)

    def logits(self, x: Tensor) -> Tensor:
        weight = self.embedding.weight if self.config.tie_word_embeddings else self.head.weight
        return F.linear(x, weight, self.head.bias)

    def cache_layout(self) -> list[State]:
        return [State(((self.config.hidden_size,),) * 2)] * self.config.num_layers  # h and c

    def steps(self) -> Iterator[Step]:
        p = self.config.dropout
        yield Embed(self.embedding, dropout=p)
        yield Recurrent(self.lstm, dropout=p)
        yield Logits(
            self.embedding if self.config.tie_word_embeddings else self.head, self.head.bias
        )


@dataclass(frozen=True)
class LSTMConfig:
    """The settings of config.json."""

    TITLE: ClassVar = "LSTM"

    vocab_size: int = 10000
    embedding_size: int = 512
    hidden_size: int = 512
    num_layers: int = field(default=2, metadata={"range": (1, 4096)})
    dropout: float = 0.0  # after the embedding, between layers, before the head
    initializer_range: float = 0.1
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.tie_word_embeddings and self.embedding_size != self.hidden_size:
            raise ValueError(
                f"LSTM: tie_word_embeddings needs embedding_size ({self.embedding_size}) "
                f"equal to hidden_size ({self.hidden_size})"
            )

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, object]:
        """The sizes of a state dict with the tensor names of this file, for checkpoints without
        config.json.
        """
        for name in ("embedding.weight", "lstm.weight_hh_l0"):
            if len(shapes[name]) != 2:
                raise ValueError(f"LSTM: {name} should be a matrix, not of shape {shapes[name]}")
        vocab_size, embedding_size = shapes["embedding.weight"]
        return {
            "vocab_size": vocab_size,
            "embedding_size": embedding_size,
            "hidden_size": shapes["lstm.weight_hh_l0"][1],
            "num_layers": sum(name.startswith("lstm.weight_hh_l") for name in shapes),
            "tie_word_embeddings": "head.weight" not in shapes,
        }

    def to_hub(self) -> JsonObject:
        """The config.json of this model."""
        return {"architectures": ["LSTM"], "model_type": MODEL_TYPE, **asdict(self)}

    @property
    def context_length(self) -> None:
        """No maximum."""
        return None
