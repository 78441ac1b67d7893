"""Llama and its kin, in one file: Mistral, Ministral, Ministral 3, Qwen 2 and Qwen 3 differ from it by flags only.

Sources
    Touvron et al. (2023), "LLaMA"; Grattafiori et al. (2024), "The Llama 3 Herd of Models".
    Su et al. (2021), "RoFormer", for rotary positions; Zhang & Sennrich (2019) for RMS norm; Shazeer (2020), "GLU
    Variants", for the gated MLP; Ainslie et al. (2023), "GQA", for grouped heads; Peng et al. (2023), "YaRN".
    Jiang et al. (2023), "Mistral 7B", for the window; Yang et al. (2024, 2025), "Qwen2" and "Qwen3".
    Hub docs: `transformers`, model_types "llama", "mistral", "ministral", "ministral3", "qwen2" and "qwen3".

What differs from its siblings
    GPT-2     learns its positions instead of rotating q and k, norms by mean and variance, and has biases everywhere.

    mistral      a window on every layer         qwen2    biases in q, k and v; windows on the last layers, if at all
    ministral    a window on some layers         qwen3    a norm of each head of q and k before they are rotated
    ministral3   queries that grow with their position

Notation
    B batch rows    T positions read in this call    S positions attended to (cached and new)
    C channels, hidden_size    H heads of q    G heads of k and v, H / G of q to each    D head size    V vocabulary
    W window, which includes the current position
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from reprlib import repr as brief
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# The settings that a rope_type has beside rope_theta: (needed, optional).
ROPE_TYPES: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, {"original_max_position_embeddings"}),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor"}, {"original_max_position_embeddings"}),
    "yarn": (
        {"factor"},
        {"original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
         "truncate", "llama_4_scaling_beta", "max_position_embeddings"},
    ),
}  # fmt: skip
MISTRAL = {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 2**17,
           "sliding_window": 4096}  # fmt: skip
QWEN = {"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 2**15,
        "sliding_window": 4096, "bos_token_id": None, "eos_token_id": None}  # fmt: skip
MINISTRAL3_ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
                   "original_max_position_embeddings": 16384, "mscale": 1.0, "mscale_all_dim": 1.0,
                   "llama_4_scaling_beta": 0.1}  # fmt: skip


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


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of x (B, H, T, D) by its position's angle; cos, sin (B or 1, 1, T, D/2).

    Halves, not neighbours: the Hub's checkpoints have q and k in that order.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: "LlamaConfig", layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.groups, self.size = config.num_attention_heads, config.kv_heads, config.head_size
        self.window = config.windows[layer]
        self.dropout = config.attention_dropout
        C, normed = config.hidden_size, config.model_type == "qwen3"
        bias = config.attention_bias or config.model_type == "qwen2"
        self.q_proj = nn.Linear(C, self.heads * self.size, bias=bias)
        self.k_proj = nn.Linear(C, self.groups * self.size, bias=bias)
        self.v_proj = nn.Linear(C, self.groups * self.size, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.size, C, bias=config.attention_bias)
        self.q_norm = RMSNorm(self.size, config.rms_norm_eps) if normed else None
        self.k_norm = RMSNorm(self.size, config.rms_norm_eps) if normed else None

    def forward(self, x: Tensor, place: "Place", cache: "Cache | None") -> Tensor:
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.heads, self.size)
        k = self.k_proj(x).view(B, T, self.groups, self.size)
        v = self.v_proj(x).view(B, T, self.groups, self.size).transpose(1, 2)  # (B, G, T, D)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q = rotate(q.transpose(1, 2), place.cos, place.sin)  # (B, H, T, D)
        k = rotate(k.transpose(1, 2), place.cos, place.sin)  # (B, G, T, D)
        if place.growth is not None:
            q = q * place.growth
        seen = place.positions
        if cache is not None:
            k, v, seen = cache.update(self.layer, place.positions, k, v)  # (B, G, S, D), (B, G, S, D), (B or 1, S)
        if self.heads != self.groups:
            k = k.repeat_interleave(self.heads // self.groups, dim=1)  # (B, H, S, D)
            v = v.repeat_interleave(self.heads // self.groups, dim=1)
        mask = place.mask(seen, self.window)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True if mask is None and T > 1 else False,  # noqa: SIM210  # torch.compile needs a branch
        )  # (B, H, T, D)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, self.heads * self.size))


class MLP(nn.Module):
    def __init__(self, config: "LlamaConfig") -> None:
        super().__init__()
        C, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(C, inner, bias=bias)
        self.up_proj = nn.Linear(C, inner, bias=bias)
        self.down_proj = nn.Linear(inner, C, bias=bias)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: "LlamaConfig", layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, place: "Place", cache: "Cache | None") -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), place, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, config: "LlamaConfig") -> None:
        super().__init__()
        self.config = config
        self.frequencies, self.amplitude = rotary(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        # Tied weights: the head is the token embedding itself, so a tied model has no parameter for it.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def new_cache(self, batch_size: int, max_length: int, spare: int = 0) -> "Cache":
        """Buffers for `batch_size` rows of at most `max_length` positions, in the model's dtype and device.

        spare: positions that layers with a window keep beyond it; for inference/compiled.py.
        """
        return Cache(self.config, batch_size, max_length, spare, like=self.norm.weight)

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
            raise TypeError(f"Llama: idx must be a LongTensor (B, T), as torch.tensor([ids]) gives it, not {kind}")
        if idx.dim() != 2 or not idx.numel():
            raise ValueError(f"Llama: idx must be (B, T) with at least one id, not {tuple(idx.shape)}")
        T = idx.size(1)
        lengths = [0] if cache is None else cache.lengths
        self._check(idx, max(lengths) + T, cache)
        x = self.embed_tokens(idx)  # (B, T, C)
        place = Place(self, lengths, T, like=x)
        for block in self.layers:
            x = block(x, place, cache)
        if cache is not None:
            cache.advance(T)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        """The last part of `forward`: (B, T, V) from (B, T, C)."""
        return F.linear(x, self.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)

    def steps(self) -> Iterator[tuple[Any, ...]]:
        """`forward` for one new id after those in a cache, as plain operations (see inference/compiled.py)."""
        block: Any
        yield "embed", self.embed_tokens
        for block in self.layers:
            attn, mlp = block.self_attn, block.mlp
            yield "rms_norm", block.input_layernorm
            yield "linear", [attn.q_proj, attn.k_proj, attn.v_proj], None
            yield "rotate", attn.heads, attn.groups, attn.q_norm, attn.k_norm, self.rotation
            yield "attend", attn.heads, attn.groups, attn.size**-0.5, attn.window
            yield "add", attn.o_proj
            yield "rms_norm", block.post_attention_layernorm
            yield "linear", [mlp.gate_proj, mlp.up_proj], None
            yield "gate", self.config.hidden_act
            yield "add", mlp.down_proj
        yield "rms_norm", self.norm
        yield "logits", self.embed_tokens if self.lm_head is None else self.lm_head, None

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cos and sin of the angles at `positions` (…), each (…, D/2), and the growth of queries (…), or None.

        float32 whatever the weights are: in 16 bits, far positions would all be the same.
        """
        angles = positions.float().unsqueeze(-1) * torch.tensor(self.frequencies, device=positions.device)
        growth, rope = None, self.config.rope
        if beta := rope.get("llama_4_scaling_beta"):
            growth = 1 + beta * torch.log(1 + torch.floor(positions / rope["original_max_position_embeddings"]))
        return angles.cos() * self.amplitude, angles.sin() * self.amplitude, growth

    def _check(self, idx: Tensor, longest: int, cache: "Cache | None") -> None:
        limit = self.config.max_position_embeddings
        if longest > limit:
            raise ValueError(f"Llama: {longest} positions; this model has {limit} (max_position_embeddings)")
        if cache is not None and (longest > cache.max_length or idx.size(0) != len(cache.lengths)):
            raise ValueError(
                f"Llama: {idx.size(0)} rows of {longest} positions do not fit a cache of "
                f"{len(cache.lengths)} rows of {cache.max_length}"
            )
        # On a GPU the check would wait for the device; there CUDA's own assertion catches a bad id.
        if idx.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = torch.aminmax(idx)
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(f"Llama: ids must be 0 to {self.config.vocab_size - 1}, not {low} to {high}")


class Place:
    """What one call knows of its T new positions, the same for all layers: rotations, growth of queries, masks.

    positions (B, T), or (1, T) where all rows are at the same place; cos, sin (B or 1, 1, T, D/2).
    """

    def __init__(self, model: Llama, lengths: list[int], T: int, like: Tensor) -> None:
        device = like.device
        if min(lengths) == max(lengths):  # a set of lengths would make torch.compile start anew at each token
            lengths = lengths[:1]
        self.start, self.length, self.ragged = lengths[0], T, len(lengths) > 1
        starts = torch.tensor(lengths, device=device).unsqueeze(1)
        self.positions = starts + torch.arange(T, device=device)
        cos, sin, growth = model.rotation(self.positions)  # (B or 1, T, D/2)
        self.cos, self.sin = cos.to(like.dtype).unsqueeze(1), sin.to(like.dtype).unsqueeze(1)
        self.growth = None if growth is None else growth.to(like.dtype)[:, None, :, None]  # (B or 1, 1, T, 1)
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}

    def mask(self, seen: Tensor, window: int | None) -> Tensor | None:
        """Which of the positions `seen` (B or 1, S) each query attends to, (B or 1, 1, T, S).

        None: causal from the first position, or one query that attends to all. Negative positions are not there.
        """
        S = seen.size(1)
        if (S, window) not in self._masks:
            queries = self.positions.unsqueeze(2)  # (B, T, 1)
            keys = seen.unsqueeze(1)  # (B, 1, S)
            allowed = (keys <= queries) & (keys >= 0)
            if window is not None:
                allowed = allowed & (keys > queries - window)
            near = window is None or self.start + self.length <= window  # no key is too far back
            plain = not self.ragged and near and (self.start == 0 or self.length == 1)
            self._masks[S, window] = None if plain else allowed.unsqueeze(1)
        return self._masks[S, window]


class Cache:
    """The keys and values of all layers, allocated once. Rows may hold different numbers of positions.

    keys, values: one (B, G, size, D) tensor per layer; size is max_length where a layer sees everything. A layer with a
    window keeps the window and `spare` positions only, as a ring: position p is in slot p % size.
    lengths: positions read, one int per row.
    Zeros, not empty: a masked key that happens to be NaN would still spoil the softmax. As the buffers are written in
    place, no gradient flows from one call to the next.
    """

    def __init__(self, config: "LlamaConfig", batch_size: int, max_length: int, spare: int, like: Tensor) -> None:
        self.windows = config.windows
        shapes = [
            (batch_size, config.kv_heads, max_length if window is None else min(window + spare, max_length),
             config.head_size)
            for window in config.windows
        ]  # fmt: skip
        self.keys = [like.new_zeros(shape) for shape in shapes]
        self.values = [like.new_zeros(shape) for shape in shapes]
        self.max_length = max_length
        self.lengths = [0] * batch_size

    def update(self, layer: int, positions: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keep the new k and v (B, G, T, D); all that may be attended to, (B, G, S, D), and its positions (B or 1, S).

        `positions` (B or 1, T) are those of the new ones.
        """
        keys, values = self.keys[layer], self.values[layer]
        size, T = keys.size(2), k.size(2)
        rows = torch.arange(k.size(0), device=k.device).unsqueeze(1)  # (B, 1)
        if size == self.max_length:
            S = max(self.lengths) + T
            if positions.size(0) == 1:  # every row at the same place: plain slices
                keys[:, :, S - T : S] = k
                values[:, :, S - T : S] = v
            else:
                keys[rows, :, positions] = k.transpose(1, 2)
                values[rows, :, positions] = v.transpose(1, 2)
            return keys[:, :, :S], values[:, :, :S], torch.arange(S, device=k.device).unsqueeze(0)

        # A ring: what is in reach is read before the new ones take the place of the oldest.
        window = self.windows[layer] or size
        P = min(window - 1, max(self.lengths))
        past = positions[:, :1] + torch.arange(-P, 0, device=k.device)  # (B or 1, P); negative where nothing was read
        slots = past % size
        old_k, old_v = keys[rows, :, slots].transpose(1, 2), values[rows, :, slots].transpose(1, 2)
        slots = positions[:, -size:] % size
        keys[rows, :, slots] = k[:, :, -size:].transpose(1, 2)
        values[rows, :, slots] = v[:, :, -size:].transpose(1, 2)
        seen = torch.cat((past, positions), dim=1)
        return torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2), seen

    def buffers(self) -> tuple[list[Tensor], list[Tensor]]:
        """The keys and the values of each layer."""
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
class LlamaConfig:
    """The settings of config.json that change the result, under the Hub's names; defaults are Llama 2 7B's."""

    TITLE: ClassVar = "Llama"
    NO_EFFECT: ClassVar = frozenset({"pretraining_tp", "rope_interleaved", "is_llama_config"})
    DEFAULTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "llama": {},
        "mistral": MISTRAL,
        "ministral": MISTRAL,
        "ministral3": {**MISTRAL, "vocab_size": 2**17, "num_hidden_layers": 34, "head_dim": 128, "sliding_window": None,
                       "max_position_embeddings": 2**18, "rms_norm_eps": 1e-5, "pad_token_id": 11,
                       "rope_parameters": MINISTRAL3_ROPE},
        "qwen2": QWEN,
        "qwen3": {**QWEN, "head_dim": 128},
    }  # fmt: skip

    model_type: str = "llama"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    num_attention_heads: int = 32
    num_key_value_heads: int | None = field(default=None, metadata={"range": (1, 2**24)})  # None: one for each head
    head_dim: int | None = field(default=None, metadata={"range": (2, 2**16)})  # None: hidden_size / heads
    hidden_act: str = field(default="silu", metadata={"choices": tuple(ACTIVATIONS)})
    max_position_embeddings: int = field(default=2048, metadata={"range": (1, 2**31)})
    rms_norm_eps: float = 1e-6
    rope_parameters: dict | None = None  # type: ignore[type-arg]  # rope_type, rope_theta and what belongs to the type
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = field(default=None, metadata={"range": (1, 2**31)})
    use_sliding_window: bool = False  # Qwen
    max_window_layers: int = field(default=28, metadata={"range": (0, 4096)})  # Qwen: layers before the first window
    layer_types: list[str] | None = None  # "full_attention" or "sliding_attention"
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"Llama: num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.kv_heads})"
            )
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"Llama: without head_dim, hidden_size ({self.hidden_size}) must be a multiple of "
                f"num_attention_heads ({self.num_attention_heads})"
            )
        if self.head_size % 2:
            raise ValueError(f"Llama: head_dim ({self.head_size}) must be even: positions rotate pairs")
        for name in sorted(self._others()):
            if getattr(self, name) != _default(name):
                raise ValueError(f"Llama: a {self.model_type} model has no {name}, but config.json sets it")
        self._check_rope()
        self.windows  # noqa: B018  # refuses a pattern that does not fit

    def _others(self) -> set[str]:
        """The settings that models of this model_type do not have."""
        qwen, kind = self.model_type.startswith("qwen"), self.model_type
        absent = set() if qwen else {"use_sliding_window", "max_window_layers"}
        absent |= {"sliding_window"} if kind == "llama" else set()
        absent |= set() if kind in ("llama", "qwen3") else {"attention_bias"}
        return absent | (set() if kind == "llama" else {"mlp_bias"})

    def _check_rope(self) -> None:
        rope = self.rope
        kind = rope["rope_type"]
        if kind not in list(ROPE_TYPES):  # a kind from a file may be anything
            raise ValueError(f"Llama: rope_parameters' rope_type {brief(kind)} is not one of {', '.join(ROPE_TYPES)}")
        needed, optional = ROPE_TYPES[kind]
        if missing := sorted(needed - set(rope)):
            raise ValueError(f"Llama: rope_parameters of rope_type {kind} lacks {', '.join(missing)}")
        known = needed | optional | {"rope_type", "rope_theta"}
        if self.model_type != "ministral3":
            known.discard("llama_4_scaling_beta")
        for name, value in rope.items():
            if name == "partial_rotary_factor" and value == 1:
                continue
            if name not in known:
                raise ValueError(f"Llama: rope_parameters has {brief(name)}, which rope_type {kind} does not know")
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
            if name != "rope_type" and not (isinstance(value, bool) if name == "truncate" else number):
                raise ValueError(f"Llama: rope_parameters' {name} cannot be {brief(value)}")
            least = {"rope_theta": 1, "factor": 0, "original_max_position_embeddings": 0}.get(name, -1)
            if name != "rope_type" and value <= least:
                raise ValueError(f"Llama: rope_parameters' {name} must be above {least}, not {brief(value)}")
        if kind == "llama3" and not 0 < rope["low_freq_factor"] < rope["high_freq_factor"]:
            raise ValueError("Llama: rope_parameters' low_freq_factor must be above 0 and below high_freq_factor")

    @property
    def kv_heads(self) -> int:
        """G, the heads of k and v."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """D."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters with what it leaves out: rope_type, rope_theta, original_max_position_embeddings."""
        given = {name: value for name, value in (self.rope_parameters or {}).items() if value is not None}
        rope = {"rope_type": "default", "rope_theta": 10000.0, **given}
        if rope["rope_type"] in ("llama3", "yarn"):
            rope.setdefault("original_max_position_embeddings", self.max_position_embeddings)
        return rope

    @property
    def windows(self) -> list[int | None]:
        """The window of each layer, in positions; None: it attends to everything before it."""
        count, kind = self.num_hidden_layers, self.model_type
        qwen = kind.startswith("qwen")
        window = self.sliding_window if self.use_sliding_window or not qwen else None
        first = self.max_window_layers if qwen else 0
        natural = [window if layer >= first else None for layer in range(count)]
        if self.layer_types is None:
            return natural
        kinds = {"full_attention": None, "sliding_attention": window}
        if len(self.layer_types) != count or not set(self.layer_types) <= set(kinds):
            raise ValueError(
                f"Llama: layer_types must hold full_attention or sliding_attention for each of {count} layers"
            )
        given = [kinds[name] for name in self.layer_types]
        # Only Ministral and Qwen read layer_types; for the others it may say what is so anyway.
        if given != natural and kind in ("llama", "mistral", "ministral3"):
            raise ValueError(f"Llama: a {kind} model has no layer_types, but config.json sets it")
        return given

    def to_hub(self) -> dict[str, Any]:
        """The config.json of this model, as transformers reads it."""
        settings = {name: value for name, value in asdict(self).items() if name not in self._others()}
        settings |= {"rope_parameters": self.rope, "head_dim": self.head_size}
        if self.layer_types is None:  # transformers takes a mistral model that names them, even null, for a ministral
            del settings["layer_types"]
        return {"architectures": [ARCHITECTURES[self.model_type]], **settings}

    @property
    def context_length(self) -> int:
        """The most positions that the model can see at once."""
        return self.max_position_embeddings


def _default(name: str) -> Any:
    return next(item.default for item in fields(LlamaConfig) if item.name == name)


def rotary(config: LlamaConfig) -> tuple[list[float], float]:
    """The angle per position of each of the D/2 pairs, and the factor of cos and sin, for each rope_type.

    Plain numbers and no buffer: nothing to load, to move, or to round when the model is cast to 16 bits.
    """
    rope, D = config.rope, config.head_size
    kind, theta = rope["rope_type"], rope["rope_theta"]
    pairs = torch.arange(0, D, 2, dtype=torch.float32, device="cpu") / D
    frequencies = 1.0 / theta**pairs
    factor, original = rope.get("factor", 1.0), rope.get("original_max_position_embeddings", 1)
    amplitude = 1.0
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "llama3":  # long waves are stretched, short ones are not, and those between by degrees
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        waves = 2 * math.pi / frequencies
        part = (original / waves - low) / (high - low)
        between = (1 - part) * frequencies / factor + part * frequencies
        stretched = torch.where(waves > original / low, frequencies / factor, between)
        frequencies = torch.where(waves < original / high, frequencies, stretched)
    elif kind == "yarn":  # YaRN's equations 18 to 23

        def turns(count: float) -> float:
            """The pair that turns so many times within the original context."""
            return D * math.log(original / (count * 2 * math.pi)) / (2 * math.log(theta))

        low, high = turns(rope.get("beta_fast") or 32), turns(rope.get("beta_slow") or 1)
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, D - 1)
        span = high - low or 0.001
        ramp = ((torch.arange(D // 2, dtype=torch.float32, device="cpu") - low) / span).clamp(0, 1)
        frequencies = frequencies / factor * ramp + frequencies * (1 - ramp)

        def scale(mscale: float) -> float:
            return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

        both = rope.get("mscale") and rope.get("mscale_all_dim")
        usual = scale(rope["mscale"]) / scale(rope["mscale_all_dim"]) if both else scale(1.0)
        amplitude = float(rope.get("attention_factor", usual))
    return frequencies.tolist(), amplitude
