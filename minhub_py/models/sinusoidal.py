"""A decoder in the style of the first transformer: sinusoidal positions, norms after attention and
MLP. In one file.

Sources
    Vaswani et al. (2017), "Attention Is All You Need": the decoder without its encoder.
    christianb93's MLLM, wiki/model.py, with blocks of torch.nn.TransformerEncoder; this model reads
        its files.

Differences from similar architectures
    GPT-2    has learned positions, norms before attention and MLP and one at the end, and a tied
    head. OPT      350M has norms after attention and MLP, too.

Notation
    B batch rows    T new positions    S attended positions (cached and new)
    C channels, hidden_size    H heads    D head size, C / H    P max_position_embeddings    V
    vocabulary
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from minhub_py.models.activations import ACTIVATIONS
from minhub_py.models.attention import Past, merge_heads, split_qkv
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import KeyValues
from minhub_py.models.layers import BlockList
from minhub_py.models.steps import Add, AddPositions, Attend, Embed, Linear, Logits, Norm, Step
from minhub_py.system.json_text import JsonObject

MODEL_TYPE = "sinusoidal"


def sinusoids(positions: int, size: int) -> Tensor:
    """(P, C): number 2i of position p is sin(p / 10000^(2i / C)), and number 2i + 1 its cosine."""
    wavelengths = 10000 ** (torch.arange(0, size, 2) / size)  # (C/2,), over 2 pi
    angles = torch.arange(positions).unsqueeze(1) / wavelengths  # (P, C/2)
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


class SinusoidalPositions(nn.Module):
    """`sinusoids` as a buffer, which a checkpoint overwrites."""

    weight: Tensor

    def __init__(self, config: "SinusoidalConfig") -> None:
        super().__init__()
        self.register_buffer(
            "weight", sinusoids(config.max_position_embeddings, config.hidden_size)
        )

    def forward(self, positions: Tensor) -> Tensor:
        return self.weight[positions]


class Attention(nn.Module):
    def __init__(self, config: "SinusoidalConfig", layer: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, config.num_attention_heads
        self.scale, self.dropout = (
            (config.hidden_size // self.heads) ** -0.5,
            config.attention_dropout,
        )
        self.in_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        q, k, v = split_qkv(self.in_proj(x), self.heads, self.heads)  # (B, H, T, D) each
        dropout = self.dropout if self.training else 0.0
        y = past.attend(self.layer, q, k, v, scale=self.scale, dropout=dropout)  # (B, H, T, D)
        return self.out_proj(merge_heads(y))


class Block(nn.Module):
    def __init__(self, config: "SinusoidalConfig", layer: int) -> None:
        super().__init__()
        C, inner = config.hidden_size, config.intermediate_size
        self.self_attn = Attention(config, layer)
        self.linear1 = nn.Linear(C, inner)
        self.linear2 = nn.Linear(inner, C)
        self.norm1 = nn.LayerNorm(C, eps=config.layer_norm_eps)
        self.norm2 = nn.LayerNorm(C, eps=config.layer_norm_eps)
        self.act = ACTIVATIONS[config.hidden_act]
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = self.norm1(x + self.dropout(self.self_attn(x, past)))
        h = self.dropout(self.act(self.linear1(x)))
        return self.norm2(x + self.dropout(self.linear2(h)))


class Sinusoidal(LanguageModel):
    config: "SinusoidalConfig"

    def __init__(self, config: "SinusoidalConfig") -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = SinusoidalPositions(config)
        self.layers = BlockList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        # Smaller embeddings would be dominated by the positions, with numbers from -1 to 1.
        nn.init.normal_(self.embedding.weight)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.embedding(idx) + self.positions(past.positions)  # (B, T, C)
        for block in self.layers:
            x = block(x, past)
        return x

    def logits(self, x: Tensor) -> Tensor:
        return self.head(x)

    def cache_layout(self) -> list[KeyValues]:
        heads = self.config.num_attention_heads
        return [KeyValues(heads, self.config.hidden_size // heads)] * self.config.num_hidden_layers

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embedding)
        yield AddPositions(self.positions)
        for block in self.layers:
            attn, p = block.self_attn, block.dropout.p
            yield Linear([attn.in_proj])
            yield Attend(attn.heads, attn.heads, attn.scale, dropout=attn.dropout)
            yield Add(attn.out_proj, dropout=p)
            yield Norm(block.norm1, to_residual=True)
            yield Linear([block.linear1], self.config.hidden_act, dropout=p)
            yield Add(block.linear2, dropout=p)
            yield Norm(block.norm2, to_residual=True)
        yield Logits(self.head, self.head.bias)


@dataclass(frozen=True)
class SinusoidalConfig:
    """The settings of config.json. Defaults: MLLM's model of WikiText."""

    TITLE: ClassVar = "Sinusoidal"

    vocab_size: int = 7680
    hidden_size: int = 192
    num_hidden_layers: int = field(default=4, metadata={"range": (1, 4096)})
    num_attention_heads: int = 8
    intermediate_size: int = 1024
    hidden_act: str = field(default="relu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = 48
    layer_norm_eps: float = 1e-5
    dropout: float = 0.2
    attention_dropout: float = 0.2
    # The embeddings are as large as the positions, too large for a head.
    tie_word_embeddings: bool = field(default=False, metadata={"choices": (False,)})
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads or self.hidden_size % 2:
            raise ValueError(
                f"Sinusoidal: hidden_size ({self.hidden_size}) must be even, and a multiple of "
                f"num_attention_heads ({self.num_attention_heads})"
            )

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, object]:
        """The sizes of a state dict with the tensor names of this file, for checkpoints without
        config.json.

        The number of heads is MLLM's, the default; checkpoints with another number need a
        config.json.
        """
        for name in ("embedding.weight", "positions.weight", "layers.0.linear1.weight"):
            if len(shapes[name]) != 2:
                raise ValueError(
                    f"Sinusoidal: {name} should be a matrix, not of shape {shapes[name]}"
                )
        vocab_size, hidden_size = shapes["embedding.weight"]
        return {
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "num_hidden_layers": sum(name.endswith(".norm1.weight") for name in shapes),
            "intermediate_size": shapes["layers.0.linear1.weight"][0],
            "max_position_embeddings": shapes["positions.weight"][0],
        }

    def to_hub(self) -> JsonObject:
        """The config.json of this model."""
        return {"architectures": ["Sinusoidal"], "model_type": MODEL_TYPE, **asdict(self)}

    @property
    def context_length(self) -> int:
        """Maximum number of positions."""
        return self.max_position_embeddings
