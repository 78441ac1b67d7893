"""T5, an encoder and a decoder in one file: T5 1.0 and 1.1, and FLAN-T5, which is 1.1 taught to follow instructions.

Sources
    Raffel et al. (2020), "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", for the
    whole and for the relative positions; Shazeer (2020), "GLU Variants", for the gated MLP of T5 1.1; Chung et al.
    (2022), "Scaling Instruction-Finetuned Language Models", for FLAN; Zhang & Sennrich (2019) for RMS norm.
    Hub docs: `transformers`, model_type "t5".

What differs from its siblings
    All others are decoders alone. Here a prompt goes through the encoder, whose ids see each other both ways, and the
    decoder writes a text of its own, from decoder_start_token_id on, attending to itself and to the encoder's result.
    Positions are neither learned nor rotated: a number for each head and distance is added to the scores. One table of
    them serves all layers of a stack; cross attention has none. Scores are not scaled. No biases in linear layers.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)    E ids of the source
    C channels, d_model    H heads    D head size, d_kv: H * D may differ from C    V vocabulary
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Memory, Source, Span
from minhub_py.models.base import ACTIVATIONS, EncoderDecoder, Step, step


class RMSNorm(nn.Module):
    """x / sqrt(mean of x²) · weight, over the last dimension; the mean in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


class RelativeBias(nn.Embedding):
    """What is added to a score: a number for each bucket of distances and each head, (buckets, H).

    Near distances have a bucket each. Beyond, a bucket holds ever more of them, on a scale of logarithms, and the last
    all from `far` on. Half of an encoder's buckets are for what comes before, half for what comes after.
    """

    def __init__(self, config: "T5Config", both_ways: bool) -> None:
        super().__init__(config.relative_attention_num_buckets, config.num_heads)
        self.both_ways, self.far = both_ways, config.relative_attention_max_distance

    def buckets(self, distances: Tensor) -> Tensor:
        """The bucket of each distance: a key's position less the query's."""
        count = self.num_embeddings // 2 if self.both_ways else self.num_embeddings
        back = distances.abs() if self.both_ways else (-distances).clamp_min(0)
        near = count // 2
        beyond = (back.float() / near).log() / math.log(self.far / near) * (count - near)
        found = torch.where(back < near, back, (near + beyond.clamp_min(0).long()).clamp_max(count - 1))
        return found + count * (distances > 0) if self.both_ways else found

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:  # type: ignore[override]
        """(B or 1, H, T, S) for queries and keys at these positions, (B or 1, T) and (B or 1, S)."""
        return super().forward(self.buckets(keys.unsqueeze(1) - queries.unsqueeze(2))).permute(0, 3, 1, 2)


class Attention(nn.Module):
    def __init__(self, config: "T5Config") -> None:
        super().__init__()
        self.heads, self.dropout = config.num_heads, config.dropout_rate
        inner = config.num_heads * config.d_kv
        self.q = nn.Linear(config.d_model, inner, bias=False)
        self.k = nn.Linear(config.d_model, inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, D) of x (B, S, C)."""
        k, v = (layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.k, self.v))
        return k, v

    def forward(self, x: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Attention of x (B, T, C) to k and v (B, H, S, D); bias, (B or 1, H, T, S), is added to the scores."""
        q = self.q(x).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, H, T, D)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=1.0)  # (B, H, T, D)
        return self.o(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: "T5Config") -> None:
        super().__init__()
        self.act, self.dropout = ACTIVATIONS[config.dense_act_fn], nn.Dropout(config.dropout_rate)
        C, inner = config.d_model, config.d_ff
        self.wi = None if config.is_gated_act else nn.Linear(C, inner, bias=False)
        self.wi_0 = nn.Linear(C, inner, bias=False) if config.is_gated_act else None
        self.wi_1 = nn.Linear(C, inner, bias=False) if config.is_gated_act else None
        self.wo = nn.Linear(inner, C, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.wi is not None:
            return self.wo(self.dropout(self.act(self.wi(x))))
        return self.wo(self.dropout(self.act(self.wi_0(x)) * self.wi_1(x)))  # type: ignore[misc]


class Block(nn.Module):
    """A block of the encoder, or of the decoder, which has cross attention between attention and MLP."""

    def __init__(self, config: "T5Config", crosses: bool) -> None:
        super().__init__()
        C, eps = config.d_model, config.layer_norm_epsilon
        self.attention_norm, self.attention = RMSNorm(C, eps), Attention(config)
        self.cross_norm = RMSNorm(C, eps) if crosses else None
        self.cross_attention = Attention(config) if crosses else None
        self.mlp_norm, self.mlp = RMSNorm(C, eps), MLP(config)
        self.dropout = nn.Dropout(config.dropout_rate)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Add y to x, within what float16 can hold: T5 was trained in bfloat16, and its stream grows beyond."""
        x = x + self.dropout(y)
        return x.clamp(-65504, 65504) if x.dtype == torch.float16 else x


class Stack(nn.Module):
    def __init__(self, config: "T5Config", layers: int, is_decoder: bool) -> None:
        super().__init__()
        self.relative_bias = RelativeBias(config, both_ways=not is_decoder)
        self.block = nn.ModuleList(Block(config, crosses=is_decoder) for _ in range(layers))
        self.norm = RMSNorm(config.d_model, config.layer_norm_epsilon)


class T5(EncoderDecoder):
    config: "T5Config"

    def __init__(self, config: "T5Config") -> None:
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.drop = nn.Dropout(config.dropout_rate)
        self.encoder = Stack(config, config.num_layers, is_decoder=False)
        self.decoder = Stack(config, config.decoder_layers, is_decoder=True)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.scale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0
        self.init_weights()

    def init_weights(self) -> None:
        """Each matrix so that its outputs are about 1, and the scores too, as nothing scales them later."""
        factor, C = self.config.initializer_factor, self.config.d_model
        for name, parameter in self.named_parameters():
            if name in ("shared.weight", "lm_head.weight"):
                nn.init.normal_(parameter, std=factor)
            elif parameter.dim() == 1:
                nn.init.constant_(parameter, factor)
            else:
                size = self.config.d_kv if name.endswith("attention.q.weight") else 1
                inputs = C if "relative_bias" in name else parameter.size(1)
                nn.init.normal_(parameter, std=factor * (inputs * size) ** -0.5)

    def encode(self, idx: Tensor) -> Memory:
        x = self.drop(self.shared(idx))  # (B, E, C)
        positions = torch.arange(idx.size(1), device=idx.device).unsqueeze(0)
        bias = self.encoder.relative_bias(positions, positions)  # (1, H, E, E): all see all
        block: Any
        for block in self.encoder.block:
            h = block.attention_norm(x)
            x = block.add(x, block.attention(h, *block.attention.keys_values(h), bias))
            x = block.add(x, block.mlp(block.mlp_norm(x)))
        x = self.drop(self.encoder.norm(x))
        blocks: Any = enumerate(self.decoder.block)
        return {2 * i + 1: block.cross_attention.keys_values(x) for i, block in blocks}

    def body(self, idx: Tensor, span: Span) -> Tensor:
        x = self.drop(self.shared(idx))  # (B, T, C)
        bias: Tensor | None = None
        block: Any
        for i, block in enumerate(self.decoder.block):
            h = block.attention_norm(x)
            k, v, seen = span.update(2 * i, *block.attention.keys_values(h))
            if bias is None:  # the same in all layers
                bias = self.decoder.relative_bias(span.positions, seen)  # (B or 1, H, T, S)
                bias = bias.masked_fill(~span.allowed(seen), -torch.inf)
            x = block.add(x, block.attention(h, k, v, bias))
            k, v, mask = span.source(2 * i + 1)
            x = block.add(x, block.cross_attention(block.cross_norm(x), k, v, mask))
            x = block.add(x, block.mlp(block.mlp_norm(x)))
        return self.drop(self.decoder.norm(x))

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x * self.scale, self.shared.weight if self.lm_head is None else self.lm_head.weight)

    def cache_layout(self) -> list[KeyValues | Source]:
        shape = (self.config.num_heads, self.config.d_kv)
        return [KeyValues(*shape), Source(*shape)] * self.config.decoder_layers

    def encoder_steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.shared, dropout=self.drop.p)
        for block in self.encoder.block:
            yield from self._attend(block, self.encoder.relative_bias)
            yield from self._mlp(block)
        yield step("rms_norm", layer=self.encoder.norm, dropout=self.drop.p)
        for block in self.decoder.block:
            cross = block.cross_attention
            yield step("remember", heads=cross.heads, layers=[cross.k, cross.v])

    def steps(self) -> Iterator[Step]:
        block: Any
        yield step("embed", tokens=self.shared, dropout=self.drop.p)
        for block in self.decoder.block:
            cross, p = block.cross_attention, self.drop.p
            yield from self._attend(block, self.decoder.relative_bias)
            yield step("rms_norm", layer=block.cross_norm)
            yield step("linear", layers=[cross.q])
            yield step("cross_attend", heads=cross.heads, scale=1.0, dropout=p)
            yield step("add", layer=cross.o, dropout=p)
            yield from self._mlp(block)
        yield step("rms_norm", layer=self.decoder.norm, dropout=self.drop.p)
        yield step("logits", layer=self.shared if self.lm_head is None else self.lm_head, scale=self.scale)

    def _attend(self, block: Any, bias: RelativeBias) -> Iterator[Step]:
        attn, p = block.attention, self.drop.p
        yield step("rms_norm", layer=block.attention_norm)
        yield step("linear", layers=[attn.q, attn.k, attn.v])
        yield step("attend", heads=attn.heads, scale=1.0, bias=bias, both_ways=bias.both_ways, dropout=p)
        yield step("add", layer=attn.o, dropout=p)

    def _mlp(self, block: Any) -> Iterator[Step]:
        mlp, p, act = block.mlp, self.drop.p, self.config.dense_act_fn
        yield step("rms_norm", layer=block.mlp_norm)
        if mlp.wi is not None:
            yield step("linear", layers=[mlp.wi], activation=act, dropout=p)
        else:
            yield step("linear", layers=[mlp.wi_0, mlp.wi_1])
            yield step("gate", activation=act, dropout=p)
        yield step("add", layer=mlp.wo, dropout=p)


@dataclass(frozen=True)
class T5Config:
    """The settings of config.json that change the result, under the Hub's names; defaults are t5-small's."""

    TITLE: ClassVar = "T5"
    NO_EFFECT: ClassVar = frozenset({"n_positions", "classifier_dropout"})
    ONLY_VALUE: ClassVar = {"is_encoder_decoder": True}
    DERIVED: ClassVar = ("dense_act_fn", "is_gated_act")
    SHARES_A_MISSING_HEAD: ClassVar = True

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = field(default=6, metadata={"range": (1, 4096)})
    num_decoder_layers: int | None = field(default=None, metadata={"range": (1, 4096)})  # None: num_layers
    num_heads: int = 8
    relative_attention_num_buckets: int = field(default=32, metadata={"range": (4, 2**24)})
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    initializer_factor: float = 1.0
    feed_forward_proj: str = field(
        default="relu", metadata={"choices": (*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS))}
    )
    tie_word_embeddings: bool = True
    scale_decoder_outputs: bool | None = None  # None: as tie_word_embeddings
    decoder_start_token_id: int = field(default=0, metadata={"range": (0, 2**24)})
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 1
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        # T5 1.1's files say tie_word_embeddings: false, and mean by it that the decoder's result is not scaled either.
        # transformers 5 writes true for all, and this beside it. Said for good here: a file's own head changes the tie.
        if self.scale_decoder_outputs is None:
            object.__setattr__(self, "scale_decoder_outputs", self.tie_word_embeddings)
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            raise ValueError(
                f"T5: relative_attention_max_distance ({self.relative_attention_max_distance}) must be more than half "
                f"of relative_attention_num_buckets ({self.relative_attention_num_buckets})"
            )
        if self.decoder_start_token_id >= self.vocab_size:
            raise ValueError(
                f"T5: decoder_start_token_id ({self.decoder_start_token_id}) must be below vocab_size "
                f"({self.vocab_size})"
            )

    @property
    def decoder_layers(self) -> int:
        """The decoder's layers."""
        return self.num_decoder_layers or self.num_layers

    @property
    def is_gated_act(self) -> bool:
        """Whether the MLP is gated."""
        return self.feed_forward_proj.startswith("gated-")

    @property
    def dense_act_fn(self) -> str:
        """The MLP's activation: "gated-gelu" means the approximation by tanh, "gelu" alone does not."""
        name = self.feed_forward_proj.removeprefix("gated-")
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else name

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        return {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "is_encoder_decoder": True,
            **asdict(self),
            "num_decoder_layers": self.decoder_layers,
        }

    @property
    def context_length(self) -> None:
        """No bound: the last bucket holds all distances beyond."""
        return
