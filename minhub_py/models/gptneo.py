"""GPT-Neo, a GPT whose layers look by turns at everything and at a local window, in one file.

Sources
    Black et al. (2021), "GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-Tensorflow".
    Local attention: Beltagy et al. (2020), "Longformer"; Child et al. (2019), "Sparse Transformers".
    Reference implementation: EleutherAI's gpt-neo; Hub docs: `transformers`, model_type "gpt_neo".

What differs from its siblings
    GPT-2     scales its scores by 1/sqrt(D), has q, k, v in one matrix with biases, and sees everything in all layers.
    LSTM      carries a state of fixed size instead of keys and values, and knows no positions.

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, hidden_size    H heads    D head size, C / H    V vocabulary
    W window_size    P past positions still in reach    N blocks of a long local attention
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from reprlib import repr as brief
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MODEL_TYPE = "gpt_neo"


def tanh_gelu(x: Tensor) -> Tensor:
    """The approximation that Hendrycks & Gimpel (2016) give."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": tanh_gelu,  # GPT-Neo's own
    "gelu_pytorch_tanh": tanh_gelu,
    "gelu_fast": tanh_gelu,
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


def local_attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, window: int, dropout: float) -> Tensor:
    """Attention of each query to itself and the W - 1 positions before it, without paying for any other key.

    q (B, H, T, D); k, v (B, H, P + T, D), the last T of them at the queries' own positions; starts (B,), the first
    query's position in each row. Queries go in N blocks of W, each against the keys in its reach: T * 2W scores.
    """
    B, H, T, D = q.shape
    P = k.size(2) - T
    block = min(T, window)
    N = -(-T // block)
    reach = P if N == 1 else window  # keys before each block's first query
    pad = N * block - T
    q = F.pad(q, (0, 0, 0, pad))
    k = F.pad(k, (0, 0, reach - P, pad))
    v = F.pad(v, (0, 0, reach - P, pad))

    q = q.view(B, H, N, block, D).transpose(1, 2).reshape(B * N, H, block, D)
    k = k.unfold(2, block + reach, block).permute(0, 2, 1, 4, 3).reshape(B * N, H, block + reach, D)
    v = v.unfold(2, block + reach, block).permute(0, 2, 1, 4, 3).reshape(B * N, H, block + reach, D)

    query = torch.arange(block, device=q.device).unsqueeze(1)  # (block, 1)
    key = torch.arange(block + reach, device=q.device) - reach  # (block + reach,), 0 at the block's first query
    # The window includes the current position: at W = 4, position 5 sees 2 3 4 5.
    band = (key <= query) & (key > query - window)  # (block, block + reach)
    first = starts.unsqueeze(1) + torch.arange(N, device=q.device) * block  # (B, N), each block's first position
    exists = first.unsqueeze(-1) + key >= 0  # (B, N, block + reach)
    mask = (band & exists.unsqueeze(2)).view(B * N, 1, block, block + reach)

    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=1.0)
    return y.view(B, N, H, block, D).transpose(1, 2).reshape(B, H, N * block, D)[:, :, :T]


class Attention(nn.Module):
    def __init__(self, config: "GPTNeoConfig", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads = config.num_heads
        self.window = config.window_size if config.attention_layers[layer] == "local" else None
        self.dropout = config.attention_dropout
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.resid_dropout = nn.Dropout(config.resid_dropout)

    def forward(self, x: Tensor, positions: Tensor, cache: "Cache | None") -> Tensor:
        B, T, C = x.shape
        q = self.q_proj(x).view(B, T, self.num_heads, -1).transpose(1, 2)  # (B, H, T, D)
        k = self.k_proj(x).view(B, T, self.num_heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.num_heads, -1).transpose(1, 2)
        # One new position can look at its cache as it lies there: the order of a ring is no matter.
        attend = self.attend_locally if self.window is not None and T > 1 else self.attend_everywhere
        y = attend(q, k, v, positions, cache).to(x.dtype)  # (B, H, T, D)
        return self.resid_dropout(self.out_proj(y.transpose(1, 2).reshape(B, T, C)))

    # Two traps. GPT-Neo does not scale its scores by 1/sqrt(D), as it was trained without: scale=1.0.
    # Unscaled scores are large, so q, k and the softmax are float32 whatever the weights are.

    def attend_everywhere(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, cache: "Cache | None") -> Tensor:
        T = q.size(2)
        mask = None
        if cache is not None:
            cache.write(self.layer, positions, k, v)
            size = cache.keys[self.layer].size(2)
            S = min(max(cache.lengths) + T, size)
            k, v = cache.keys[self.layer][:, :, :S], cache.values[self.layer][:, :, :S]
            if self.window is not None and size > self.window:  # how far back is what stands in each slot of the ring?
                back = (positions - torch.arange(S, device=q.device)) % size  # (B, S), as T is 1
                mask = ((back < self.window) & (back <= positions)).view(-1, 1, 1, S)
            elif S > T and (T > 1 or min(cache.lengths) < max(cache.lengths)):
                mask = (positions.unsqueeze(-1) >= torch.arange(S, device=q.device)).unsqueeze(1)  # (B, 1, T, S)
        return F.scaled_dot_product_attention(
            q.float(),
            k.float(),
            v.float(),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True if mask is None and T > 1 else False,  # noqa: SIM210  # torch.compile needs a branch
            scale=1.0,
        )

    def attend_locally(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, cache: "Cache | None") -> Tensor:
        assert self.window is not None
        if cache is not None:
            new_k, new_v = k, v
            past = min(max(cache.lengths), self.window - 1)
            if past:
                before = torch.arange(-past, 0, device=q.device)
                old_k, old_v = cache.read(self.layer, positions[:, :1] + before)
                k, v = torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2)  # (B, H, P + T, D)
            cache.write(self.layer, positions, new_k, new_v)
        dropout = self.dropout if self.training else 0.0
        return local_attention(q.float(), k.float(), v.float(), positions[:, 0], self.window, dropout)


class MLP(nn.Module):
    def __init__(self, config: "GPTNeoConfig") -> None:
        super().__init__()
        inner = config.intermediate_size or 4 * config.hidden_size
        self.c_fc = nn.Linear(config.hidden_size, inner)
        self.c_proj = nn.Linear(inner, config.hidden_size)
        self.act = ACTIVATIONS[config.activation_function]
        self.dropout = nn.Dropout(config.resid_dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: "GPTNeoConfig", layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, positions: Tensor, cache: "Cache | None") -> Tensor:
        x = x + self.attn(self.ln_1(x), positions, cache)
        return x + self.mlp(self.ln_2(x))


class GPTNeo(nn.Module):
    def __init__(self, config: "GPTNeoConfig") -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.drop = nn.Dropout(config.embed_dropout)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        """As GPT-2 does: projections onto the residual stream shrink with its depth."""
        std = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Attention | MLP):
            projection = module.out_proj if isinstance(module, Attention) else module.c_proj
            nn.init.normal_(projection.weight, std=std / math.sqrt(2 * self.config.num_layers))

    def new_cache(self, batch_size: int, max_length: int, spare: int = 0) -> "Cache":
        """Buffers for `batch_size` rows of at most `max_length` positions, in the model's dtype and device.

        spare: positions that local layers keep beyond their window; for inference/compiled.py.
        """
        return Cache(self.config, batch_size, max_length, spare, like=self.ln_f.weight)

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
            raise TypeError(f"GPT-Neo: idx must be a LongTensor (B, T), as torch.tensor([ids]) gives it, not {kind}")
        if idx.dim() != 2 or not idx.numel():
            raise ValueError(f"GPT-Neo: idx must be (B, T) with at least one id, not {tuple(idx.shape)}")
        B, T = idx.shape
        lengths = cache.lengths if cache is not None else [0] * B
        self._check(idx, max(lengths) + T, cache)
        starts = torch.tensor(lengths, device=idx.device).unsqueeze(1)
        positions = starts + torch.arange(T, device=idx.device)  # (B, T)

        x = self.drop(self.wte(idx) + self.wpe(positions))  # (B, T, C)
        for block in self.h:
            x = block(x, positions, cache)
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
            yield "linear", [block.attn.q_proj, block.attn.k_proj, block.attn.v_proj], None
            yield "attend", block.attn.num_heads, block.attn.num_heads, 1.0, block.attn.window
            yield "add", block.attn.out_proj
            yield "norm", block.ln_2
            yield "linear", [block.mlp.c_fc], self.config.activation_function
            yield "add", block.mlp.c_proj
        yield "norm", self.ln_f
        yield "logits", self.wte if self.lm_head is None else self.lm_head, None

    def _check(self, idx: Tensor, longest: int, cache: "Cache | None") -> None:
        if longest > self.config.max_position_embeddings:
            raise ValueError(
                f"GPT-Neo: {longest} positions; this model has {self.config.max_position_embeddings} "
                "(max_position_embeddings)"
            )
        if cache is not None and (longest > cache.max_length or idx.size(0) != len(cache.lengths)):
            raise ValueError(
                f"GPT-Neo: {idx.size(0)} rows of {longest} positions do not fit a cache of "
                f"{len(cache.lengths)} rows of {cache.max_length}"
            )
        # On a GPU the check would wait for the device; there CUDA's own assertion catches a bad id.
        if idx.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = torch.aminmax(idx)
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(f"GPT-Neo: ids must be 0 to {self.config.vocab_size - 1}, not {low} to {high}")


class Cache:
    """The keys and values of all layers, allocated once. Rows may hold different numbers of positions.

    keys, values: one (B, H, size, D) tensor per layer; size is max_length in a global layer. A local layer keeps
    the window and `spare` positions only, as a ring: position p is in slot p % size. With those to spare, the
    decoder may store that many positions before it attends from the first of them, and take them back.
    lengths: positions read, one int per row.
    Zeros, not empty: a masked key that happens to be NaN would still spoil the softmax. As the buffers are written in
    place, no gradient flows from one call to the next.
    """

    def __init__(self, config: "GPTNeoConfig", batch_size: int, max_length: int, spare: int, like: Tensor) -> None:
        D = config.hidden_size // config.num_heads
        sizes = [
            max_length if kind == "global" else min(config.window_size + spare, max_length)
            for kind in config.attention_layers
        ]
        self.keys = [like.new_zeros(batch_size, config.num_heads, size, D) for size in sizes]
        self.values = [like.new_zeros(batch_size, config.num_heads, size, D) for size in sizes]
        self.max_length = max_length
        self.lengths = [0] * batch_size

    def write(self, layer: int, positions: Tensor, k: Tensor, v: Tensor) -> None:
        """Write the new k and v (B, H, T, D) at `positions` (B, T); a ring keeps the last `size` of them."""
        keys, values = self.keys[layer], self.values[layer]
        size = keys.size(2)
        rows = torch.arange(k.size(0), device=k.device).unsqueeze(1)  # (B, 1)
        slots = positions[:, -size:] % size
        keys[rows, :, slots] = k[:, :, -size:].transpose(1, 2)
        values[rows, :, slots] = v[:, :, -size:].transpose(1, 2)

    def read(self, layer: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values at `positions` (B, P), each (B, H, P, D). What stands before position 0 is anything."""
        keys, values = self.keys[layer], self.values[layer]
        rows = torch.arange(positions.size(0), device=positions.device).unsqueeze(1)
        slots = positions % keys.size(2)
        return keys[rows, :, slots].transpose(1, 2), values[rows, :, slots].transpose(1, 2)

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
        """Make `row` a copy of the one row of `source`, whose rings must be of the same size where they are full."""
        length = source.lengths[0]
        for mine, theirs in zip(self.keys + self.values, source.keys + source.values, strict=True):
            filled = min(length, theirs.size(2))
            mine[row, :, :filled] = theirs[0, :, :filled]
        self.lengths[row] = length


@dataclass(frozen=True)
class GPTNeoConfig:
    """The settings of config.json that change the result, under the Hub's names; defaults are GPT-Neo 1.3B's."""

    TITLE: ClassVar = "GPT-Neo"
    NO_EFFECT: ClassVar = frozenset(
        """
        summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout classifier_dropout
        """.split()
    )
    DERIVED: ClassVar = ("attention_layers",)  # a property here, which config.json may repeat

    vocab_size: int = 50257
    max_position_embeddings: int = 2048
    hidden_size: int = 2048
    num_layers: int = field(default=24, metadata={"range": (1, 4096)})
    num_heads: int = 16
    attention_types: list | None = None  # type: ignore[type-arg]  # [[["global", "local"], 12]]; None: by turns
    window_size: int = 256
    intermediate_size: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: 4 * hidden_size
    activation_function: str = field(default="gelu_new", metadata={"choices": tuple(ACTIVATIONS)})
    resid_dropout: float = 0.0
    embed_dropout: float = 0.0
    attention_dropout: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"GPT-Neo: hidden_size ({self.hidden_size}) must be a multiple of num_heads ({self.num_heads})"
            )
        self.attention_layers  # noqa: B018  # refuses a pattern that does not fit

    @property
    def attention_layers(self) -> list[str]:
        """The kind of each layer: attention_types written out, so [[["local"], 2]] is local, local."""
        if self.attention_types is None:
            return [("global", "local")[layer % 2] for layer in range(self.num_layers)]
        try:
            # No count of nothing or less, no empty list: writing those out could take forever, or end at another total.
            sound = all(
                isinstance(kinds, list | tuple) and kinds and type(count) is int and count > 0
                for kinds, count in self.attention_types
            )
        except (TypeError, ValueError):
            sound = False
        if not sound:
            raise ValueError(
                'GPT-Neo: attention_types must look like [[["global", "local"], 12]], not '
                f"{brief(self.attention_types)}"
            )
        total = sum(len(kinds) * count for kinds, count in self.attention_types)
        if total != self.num_layers:  # before the pattern is written out: a count can be anything
            raise ValueError(
                f"GPT-Neo: attention_types describes {brief(total)} layers, num_layers is {self.num_layers}"
            )
        for kind in (kind for kinds, _ in self.attention_types for kind in kinds):
            if kind not in ("global", "local"):
                raise ValueError(f"GPT-Neo: attention_types knows global and local, not {brief(kind)}")
        return [kind for kinds, count in self.attention_types for _ in range(count) for kind in kinds]

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        return {
            "architectures": ["GPTNeoForCausalLM"],
            "model_type": MODEL_TYPE,
            **asdict(self),
            "attention_types": self.attention_types or [[self.attention_layers, 1]],
            "attention_layers": self.attention_layers,
        }

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.max_position_embeddings
