"""An LSTM language model, the recurrent baseline, in one file.

Sources
    Hochreiter & Schmidhuber (1997), "Long Short-Term Memory"; Graves (2013), "Generating Sequences With RNNs".
    Tied weights: Press & Wolf (2017), "Using the Output Embedding to Improve Language Models".
    There is no reference on the Hub: names and settings are those of PyTorch's word language model example.

What differs from its siblings
    GPT-2, GPT-Neo    keep keys and values of every position and stop at a context length. Here a state of fixed
    size, h and c, is all that is kept of the past, and there is no limit to the positions.

Notation
    B batch rows    T positions read in this call    E embedding_size    H hidden_size    L num_layers    V vocabulary
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MODEL_TYPE = "lstm"


class LSTM(nn.Module):
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
            dropout=config.dropout if config.num_layers > 1 else 0.0,  # PyTorch warns of dropout with one layer
        )
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        nn.init.uniform_(self.embedding.weight, -config.initializer_range, config.initializer_range)
        nn.init.zeros_(self.head.bias)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it, only a bias.
        if config.tie_word_embeddings:
            self.head.register_parameter("weight", None)
        else:
            nn.init.uniform_(self.head.weight, -config.initializer_range, config.initializer_range)

    def new_cache(self, batch_size: int, max_length: int, spare: int = 0) -> "Cache":
        """A zero state for `batch_size` rows, in the model's dtype and device. It has no need of the other two."""
        return Cache(self.config, batch_size, like=self.head.bias)

    def forward(self, idx: Tensor, cache: "Cache | None" = None) -> Tensor:
        """Logits (B, T, V) of the next id at each position of `idx` (B, T), int64.

        With a cache the positions follow those it holds, and it is updated in place.
        TypeError: `idx` is no tensor of whole numbers.
        ValueError: an id outside the vocabulary, or a cache of another number of rows.
        """
        return self.logits(self.hidden(idx, cache))

    def hidden(self, idx: Tensor, cache: "Cache | None" = None) -> Tensor:
        """The first part of `forward`: (B, T, H), what the head makes logits of."""
        if not isinstance(idx, Tensor) or idx.dtype not in (torch.int64, torch.int32):
            kind = idx.dtype if isinstance(idx, Tensor) else type(idx).__name__
            raise TypeError(f"LSTM: idx must be a LongTensor (B, T), as torch.tensor([ids]) gives it, not {kind}")
        if idx.dim() != 2 or not idx.numel():
            raise ValueError(f"LSTM: idx must be (B, T) with at least one id, not {tuple(idx.shape)}")
        self._check(idx, cache)
        state = None if cache is None else (cache.h, cache.c)
        x = self.drop(self.embedding(idx))  # (B, T, E)
        x, (h, c) = self.lstm(x, state)  # (B, T, H), (L, B, H), (L, B, H)
        if cache is not None:
            cache.h, cache.c = h.detach(), c.detach()
            cache.advance(idx.size(1))
        return self.drop(x)

    def logits(self, x: Tensor) -> Tensor:
        """The last part of `forward`: (B, T, V) from (B, T, H)."""
        weight = self.embedding.weight if self.config.tie_word_embeddings else self.head.weight
        return F.linear(x, weight, self.head.bias)

    def steps(self) -> Iterator[tuple[Any, ...]]:
        """`forward` for one new id after those in a cache, as plain operations (see inference/compiled.py)."""
        yield "embed", self.embedding
        for layer in range(self.config.num_layers):
            names = (f"weight_ih_l{layer}", f"weight_hh_l{layer}", f"bias_ih_l{layer}", f"bias_hh_l{layer}")
            weight_ih, weight_hh, bias_ih, bias_hh = (getattr(self.lstm, name) for name in names)
            yield "recur", weight_ih, weight_hh, bias_ih.float() + bias_hh.float()
        yield "logits", self.embedding if self.config.tie_word_embeddings else self.head, self.head.bias

    def _check(self, idx: Tensor, cache: "Cache | None") -> None:
        if cache is not None and cache.h.size(1) != idx.size(0):
            raise ValueError(f"LSTM: {idx.size(0)} rows do not fit a cache of {cache.h.size(1)}")
        # On a GPU the check would wait for the device; there CUDA's own assertion catches a bad id.
        if idx.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = torch.aminmax(idx)
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(f"LSTM: ids must be 0 to {self.config.vocab_size - 1}, not {low} to {high}")


class Cache:
    """The state after what was read so far: h and c, each (L, B, H), updated in place. lengths: ids read in each row.

    It is detached from the graph: training across calls is truncated backpropagation through time.
    """

    def __init__(self, config: "LSTMConfig", batch_size: int, like: Tensor) -> None:
        self.h = like.new_zeros(config.num_layers, batch_size, config.hidden_size)
        self.c = torch.zeros_like(self.h)
        self.lengths = [0] * batch_size

    def buffers(self) -> tuple[list[Tensor], list[Tensor]]:
        """What `steps` keeps for each layer."""
        return list(self.h.unbind(0)), list(self.c.unbind(0))

    def advance(self, T: int) -> None:
        """Count T more ids in every row."""
        self.lengths = [length + T for length in self.lengths]

    def clear(self, row: int) -> None:
        """Make a row empty."""
        self.h[:, row], self.c[:, row], self.lengths[row] = 0, 0, 0

    def select(self, rows: list[int]) -> None:
        """Keep these rows only, in this order."""
        self.h, self.c = self.h[:, rows], self.c[:, rows]
        self.lengths = [self.lengths[row] for row in rows]

    def set_row(self, row: int, source: "Cache") -> None:
        """Make `row` a copy of the one row of `source`."""
        self.h[:, row], self.c[:, row], self.lengths[row] = source.h[:, 0], source.c[:, 0], source.lengths[0]


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
    def from_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The sizes that a state dict, under this file's names, tells by itself (for checkpoints without config)."""
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

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model."""
        return {"architectures": ["LSTM"], "model_type": MODEL_TYPE, **asdict(self)}

    @property
    def context_length(self) -> None:
        """No limit: the state carries on."""
        return None
