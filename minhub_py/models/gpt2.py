"""GPT-2, the decoder-only transformer, in one file.

Sources
    Radford et al. (2019), "Language Models are Unsupervised Multitask Learners".
    Reference implementation: OpenAI's gpt-2 (TensorFlow); Hub docs: `transformers`, model_type "gpt2".

What differs from its siblings
    GPT-Neo   has no bias in q, k, v, does not scale its scores, and alternates global with local layers.
    LSTM      carries a state of fixed size instead of keys and values, and knows no positions.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, n_embd    H heads    D head size, C / H    V vocabulary
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MODEL_TYPE = "gpt2"


def tanh_gelu(x: Tensor) -> Tensor:
    """The approximation that Hendrycks & Gimpel (2016) give."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": tanh_gelu,  # GPT-2's own
    "gelu_pytorch_tanh": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


class Attention(nn.Module):
    def __init__(self, config: "GPT2Config", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.n_head = config.n_head
        self.dropout = config.attn_pdrop
        self.upcast = config.reorder_and_upcast_attn
        self.scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self.scale /= layer + 1
        # OpenAI's Conv1D is a Linear stored (in, out): the weight table transposes it.
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None, cache: "Cache | None") -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)  # each (B, T, C)
        q = q.view(B, T, self.n_head, -1).transpose(1, 2)  # (B, H, T, D)
        k = k.view(B, T, self.n_head, -1).transpose(1, 2)
        v = v.view(B, T, self.n_head, -1).transpose(1, 2)
        if cache is not None:
            k, v = cache.update(self.layer, positions, k, v)  # (B, H, S, D)
        if self.upcast:  # scores and softmax in float32, whatever the weights are
            q, k, v = q.float(), k.float(), v.float()
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True if mask is None and T > 1 else False,  # noqa: SIM210  # torch.compile needs a branch
            scale=self.scale,
        )  # (B, H, T, D)
        y = y.to(x.dtype).transpose(1, 2).reshape(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config: "GPT2Config") -> None:
        super().__init__()
        inner = config.n_inner or 4 * config.n_embd
        self.c_fc = nn.Linear(config.n_embd, inner)
        self.c_proj = nn.Linear(inner, config.n_embd)
        self.act = ACTIVATIONS[config.activation_function]
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: "GPT2Config", layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None, cache: "Cache | None") -> Tensor:
        x = x + self.attn(self.ln_1(x), positions, mask, cache)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self, config: "GPT2Config") -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        self.lm_head = None if config.tie_word_embeddings else nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        """The paper's section 2.3: projections onto the residual stream shrink with its depth."""
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Attention | MLP):
            nn.init.normal_(module.c_proj.weight, std=std / math.sqrt(2 * self.config.n_layer))

    def new_cache(self, batch_size: int, max_length: int, spare: int = 0) -> "Cache":
        """Buffers for `batch_size` rows of at most `max_length` positions, in the model's dtype and device.

        It has no need of `spare`, which is for families that keep a window.
        """
        return Cache(self.config, batch_size, max_length, like=self.ln_f.weight)

    def forward(self, idx: Tensor, cache: "Cache | None" = None) -> Tensor:
        """Logits (B, T, V) of the next id at each position of `idx` (B, T), int64.

        With a cache the positions follow those it holds, and it is updated in place.
        TypeError: `idx` is no tensor of whole numbers.
        ValueError: an id outside the vocabulary, or more positions than the model or the cache has.
        """
        return self.logits(self.hidden(idx, cache))

    def hidden(self, idx: Tensor, cache: "Cache | None" = None) -> Tensor:
        """The first part of `forward`: (B, T, C), what the head makes logits of."""
        if not isinstance(idx, Tensor) or idx.dtype not in (torch.int64, torch.int32):
            kind = idx.dtype if isinstance(idx, Tensor) else type(idx).__name__
            raise TypeError(f"GPT-2: idx must be a LongTensor (B, T), as torch.tensor([ids]) gives it, not {kind}")
        if idx.dim() != 2 or not idx.numel():
            raise ValueError(f"GPT-2: idx must be (B, T) with at least one id, not {tuple(idx.shape)}")
        B, T = idx.shape
        lengths = cache.lengths if cache is not None else [0] * B
        longest = max(lengths) + T
        self._check(idx, longest, cache)
        if min(lengths) == max(lengths):  # a set of lengths would make torch.compile start anew at each token
            positions = torch.arange(lengths[0], longest, device=idx.device)  # (T,)
        else:
            starts = torch.tensor(lengths, device=idx.device).unsqueeze(1)
            positions = starts + torch.arange(T, device=idx.device)  # (B, T)
        mask = None  # no mask: causal from the start, or one new position that sees all before it
        if positions.dim() == 2 or (lengths[0] > 0 and T > 1):
            mask = positions.unsqueeze(-1) >= torch.arange(longest, device=idx.device)  # (T, S) or (B, T, S)
            mask = mask.unsqueeze(-3)  # one mask for all heads

        x = self.drop(self.wte(idx) + self.wpe(positions))  # (B, T, C)
        for block in self.h:
            x = block(x, positions, mask, cache)
        if cache is not None:
            cache.advance(T)
        return self.ln_f(x)

    def logits(self, x: Tensor) -> Tensor:
        """The last part of `forward`: (B, T, V) from (B, T, C)."""
        return F.linear(x, self.wte.weight) if self.lm_head is None else self.lm_head(x)

    def steps(self) -> Iterator[tuple[Any, ...]]:
        """`forward` for one new id after those in a cache, as plain operations (see inference/compiled.py)."""
        block: Any
        yield "embed", self.wte, self.wpe
        for block in self.h:
            yield "norm", block.ln_1
            yield "linear", [block.attn.c_attn], None
            yield "attend", block.attn.n_head, block.attn.n_head, block.attn.scale, None
            yield "add", block.attn.c_proj
            yield "norm", block.ln_2
            yield "linear", [block.mlp.c_fc], self.config.activation_function
            yield "add", block.mlp.c_proj
        yield "norm", self.ln_f
        yield "logits", self.wte if self.lm_head is None else self.lm_head, None

    def _check(self, idx: Tensor, longest: int, cache: "Cache | None") -> None:
        if longest > self.config.n_positions:
            raise ValueError(f"GPT-2: {longest} positions; this model has {self.config.n_positions} (n_positions)")
        if cache is not None and (longest > cache.max_length or idx.size(0) != len(cache.lengths)):
            raise ValueError(
                f"GPT-2: {idx.size(0)} rows of {longest} positions do not fit a cache of "
                f"{len(cache.lengths)} rows of {cache.max_length}"
            )
        # On a GPU the check would wait for the device; there CUDA's own assertion catches a bad id.
        if idx.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = torch.aminmax(idx)
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(f"GPT-2: ids must be 0 to {self.config.vocab_size - 1}, not {low} to {high}")


class Cache:
    """The keys and values of all layers, allocated once. Rows may hold different numbers of positions.

    keys, values: one (B, H, max_length, D) tensor per layer.    lengths: positions filled, one int per row.
    Zeros, not empty: a masked key that happens to be NaN would still spoil the softmax. As the buffers are written in
    place, no gradient flows from one call to the next.
    """

    def __init__(self, config: "GPT2Config", batch_size: int, max_length: int, like: Tensor) -> None:
        shape = (batch_size, config.n_head, max_length, config.n_embd // config.n_head)
        self.keys = [like.new_zeros(shape) for _ in range(config.n_layer)]
        self.values = [like.new_zeros(shape) for _ in range(config.n_layer)]
        self.max_length = max_length
        self.lengths = [0] * batch_size

    def update(self, layer: int, positions: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new k and v (B, H, T, D) at `positions` (T,) or (B, T); give all that is there, (B, H, S, D)."""
        T = k.size(2)
        keys, values = self.keys[layer], self.values[layer]
        if positions.dim() == 1:  # every row at the same place: plain slices
            start = self.lengths[0]
            keys[:, :, start : start + T] = k
            values[:, :, start : start + T] = v
        else:
            rows = torch.arange(k.size(0), device=k.device).unsqueeze(1)  # (B, 1)
            keys[rows, :, positions] = k.transpose(1, 2)
            values[rows, :, positions] = v.transpose(1, 2)
        S = max(self.lengths) + T
        return keys[:, :, :S], values[:, :, :S]

    def buffers(self) -> tuple[list[Tensor], list[Tensor]]:
        """What `steps` keeps for each layer."""
        return self.keys, self.values

    def advance(self, T: int) -> None:
        """Count T more positions in every row."""
        self.lengths = [length + T for length in self.lengths]

    def clear(self, row: int) -> None:
        """Make a row empty."""
        self.lengths[row] = 0

    def select(self, rows: list[int]) -> None:
        """Keep these rows only, in this order."""
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]
        self.lengths = [self.lengths[row] for row in rows]

    def set_row(self, row: int, source: "Cache") -> None:
        """Make `row` a copy of the one row of `source`."""
        length = source.lengths[0]
        for mine, theirs in zip(self.keys + self.values, source.keys + source.values, strict=True):
            mine[row, :, :length] = theirs[0, :, :length]
        self.lengths[row] = length


@dataclass(frozen=True)
class GPT2Config:
    """The settings of config.json that change the result, under the Hub's names; defaults are GPT-2 124M's."""

    TITLE: ClassVar = "GPT-2"
    # n_ctx is the old twin of n_positions; the others are for heads of other tasks.
    NO_EFFECT: ClassVar = frozenset(
        """
        summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
        n_ctx n_special predict_special_tokens
        """.split()
    )

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = field(default=12, metadata={"range": (1, 4096)})
    n_head: int = 12
    n_inner: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: 4 * n_embd
    activation_function: str = field(default="gelu_new", metadata={"choices": tuple(ACTIVATIONS)})
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head:
            raise ValueError(f"GPT-2: n_embd ({self.n_embd}) must be a multiple of n_head ({self.n_head})")

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        return {"architectures": ["GPT2LMHeadModel"], "model_type": MODEL_TYPE, **asdict(self)}

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.n_positions
