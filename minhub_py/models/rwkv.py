"""RWKV-4 in one file: layers with a recurrent weighted average of values, without attention.

Sources
    Peng et al. (2023), "RWKV: Reinventing RNNs for the Transformer Era". Initial weights: the code of
        the authors (github.com/BlinkDL/RWKV-LM, RWKV-v4).
    Hub docs: `transformers`, model_type "rwkv".

Differences from similar architectures
    Llama       caches keys and values of every position, and a query selects among them. RWKV has a
                state of fixed size, no queries, no positions and no context length.
    Mamba       has decays that depend on the token. RWKV's are constants of a channel, and the sum of
                the weights divides the result, as in a softmax.
    Llama       computes projections of a token; RWKV of a mixture of the token and the previous one.

`rescale_every`: transformers divides the residual stream by 2 after each `rescale_every` layers of a
model in eval mode, and the outputs that are added to it accordingly, so that it fits float16. Powers
of two are exact, and a norm of x / 2 with epsilon ε equals a norm of x with 4 ε. This file has the same
factors, also for training, where transformers has none, and does not change the weights.

Notation
    B batch rows    T new positions    C channels    N channels of the average    I channels within the
    channel mixing    V vocabulary
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.activations import squared_relu
from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import State
from minhub_py.models.layers import BlockList
from minhub_py.models.settings import Effective
from minhub_py.models.steps import (
    WKV,
    Add,
    Embed,
    Logits,
    Norm,
    Project,
    ScaleResidual,
    Step,
    TokenShift,
)
from minhub_py.system.json_text import JsonObject


def joined(
    n: Tensor, d: Tensor, m: Tensor, n2: Tensor, d2: Tensor, m2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums n · exp(m) + n2 · exp(m2) and d · exp(m) + d2 · exp(m2), both divided by exp of the
    result's m, the larger one.
    """
    # Any m has the same result, so that no gradient flows through the choice.
    largest = torch.maximum(m, m2).detach()
    first, second = (m - largest).exp(), (m2 - largest).exp()
    return first * n + second * n2, first * d + second * d2, largest


def wkv(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The averages (B, T, N), and the state (B, 3, N) after the last position, given the state before
    the first.

        y_t = (Σ_{i<t} exp(k_i - (t - 1 - i) decay) v_i + exp(k_t + bonus) v_t) / (the same without v)

    k, v (B, T, N), decay and bonus (N,), all in float32. A state has the numerator, the denominator,
    and the logarithm by whose exponential both are multiplied; zeros are the state without a token.
    Blocks of √T positions are computed side by side, each without a state, and then joined with the
    state at their start.
    """
    T = k.size(1)
    length = int(T**0.5)
    count = T // length + 1  # at least one position follows the last
    padding = [0, 0, 0, count * length - T]
    ks = F.pad(k, padding).unflatten(1, [count, length])  # (B, blocks, positions of a block, N)
    vs = F.pad(v, padding).unflatten(1, [count, length])
    one = torch.ones_like(ks[:, :, 0])
    n, d, m = 0.0 * one, 0.0 * one, -1e38 * one
    before = [(n, d, m)]  # the states before each position, without the positions before the block
    for t in range(length):
        n, d, m = joined(n, d, m - decay, vs[:, :, t], one, ks[:, :, t])
        before.append((n, d, m))
    sn, sd, sm = state[:, 0], state[:, 1], state[:, 2]
    sm = torch.where(sd > 0, sm, -1e38)
    starts = [(sn, sd, sm)]  # the states before each block
    for block in range(count - 1):
        sm = sm - length * decay
        sn, sd, sm = joined(sn, sd, sm, n[:, block], d[:, block], m[:, block])
        starts.append((sn, sd, sm))
    passed = torch.arange(length, device=k.device).unsqueeze(1) * decay  # (positions of a block, N)
    n, d, m = joined(
        torch.stack([s[0] for s in starts], dim=1).unsqueeze(2),
        torch.stack([s[1] for s in starts], dim=1).unsqueeze(2),
        torch.stack([s[2] for s in starts], dim=1).unsqueeze(2) - passed,
        torch.stack([s[0] for s in before[:length]], dim=2),
        torch.stack([s[1] for s in before[:length]], dim=2),
        torch.stack([s[2] for s in before[:length]], dim=2),
    )
    n, d, m = n.flatten(1, 2), d.flatten(1, 2), m.flatten(1, 2)  # (B, positions, N)
    last = torch.stack((n[:, T], d[:, T], m[:, T]), dim=1)
    n, d, m = joined(n[:, :T], d[:, :T], m[:, :T], v, torch.ones_like(v), k + bonus)
    return n / d, last


def shifted(x: Tensor, previous: Tensor | None) -> Tensor:
    """The previous token's channels at each position of x (B, T, C). previous: before the first
    position, (B, 1, C), or None for zeros.
    """
    start = torch.zeros_like(x[:, :1]) if previous is None else previous.to(x.dtype)
    return torch.cat((start, x[:, :-1]), dim=1)


class TimeMix(nn.Module):
    """The weighted average over time. layer: number of its state in the cache."""

    def __init__(self, config: "RWKVConfig", layer: int) -> None:
        super().__init__()
        C, N = config.hidden_size, config.inner
        self.layer, self.channels, self.inner = layer, C, N
        self.time_decay, self.time_first = (
            nn.Parameter(torch.empty(N)),
            nn.Parameter(torch.empty(N)),
        )
        self.time_mix_key = nn.Parameter(torch.empty(1, 1, C))
        self.time_mix_value = nn.Parameter(torch.empty(1, 1, C))
        self.time_mix_receptance = nn.Parameter(torch.empty(1, 1, C))
        self.key = nn.Linear(C, N, bias=False)
        self.value = nn.Linear(C, N, bias=False)
        self.receptance = nn.Linear(C, N, bias=False)
        self.output = nn.Linear(N, C, bias=False)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        previous, state = past.state(self.layer) or (
            None,
            torch.zeros(x.size(0), 3, self.inner, device=x.device),
        )
        before = shifted(x, previous)
        k = self.key(before.lerp(x, self.time_mix_key.to(x.dtype)))  # (B, T, N)
        v = self.value(before.lerp(x, self.time_mix_value.to(x.dtype)))
        r = self.receptance(before.lerp(x, self.time_mix_receptance.to(x.dtype)))
        with torch.autocast(x.device.type, enabled=False):
            decay, bonus = self.time_decay.float().exp(), self.time_first.float()
            y, state = wkv(k.float(), v.float(), decay, bonus, state)
        past.set_state(self.layer, (x[:, -1:], state))
        return self.output(r.sigmoid() * y.to(r.dtype))

    def steps(self, scale: float) -> Iterator[Step]:
        """The operations; the residual stream gets the result, times `scale`."""
        C, N = self.channels, self.inner
        yield TokenShift((self.time_mix_key, self.time_mix_value, self.time_mix_receptance))
        for number, layer in enumerate((self.key, self.value, self.receptance)):
            yield Project(layer, number * C, precise=False)
        yield WKV(self.time_decay, self.time_first, k=3 * C, v=3 * C + N, r=3 * C + 2 * N)
        yield Add(self.output, scale=scale)


class ChannelMix(nn.Module):
    """An MLP with a gate of the outputs. layer: number of its state in the cache."""

    def __init__(self, config: "RWKVConfig", layer: int) -> None:
        super().__init__()
        C, inner = config.hidden_size, config.intermediate_size or 4 * config.hidden_size
        self.layer, self.channels = layer, C
        self.time_mix_key = nn.Parameter(torch.empty(1, 1, C))
        self.time_mix_receptance = nn.Parameter(torch.empty(1, 1, C))
        self.key = nn.Linear(C, inner, bias=False)
        self.receptance = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(inner, C, bias=False)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        state = past.state(self.layer)
        before = shifted(x, None if state is None else state[0])
        k = self.key(before.lerp(x, self.time_mix_key.to(x.dtype)))  # (B, T, I)
        r = self.receptance(before.lerp(x, self.time_mix_receptance.to(x.dtype)))  # (B, T, C)
        past.set_state(self.layer, (x[:, -1:],))
        return r.sigmoid() * self.value(squared_relu(k))

    def steps(self, scale: float) -> Iterator[Step]:
        """The operations; the residual stream gets the result, times `scale`."""
        C = self.channels
        yield TokenShift((self.time_mix_key, self.time_mix_receptance))
        yield Project(self.receptance, C, precise=False)
        yield Project(self.key, 0, "relu2", precise=False)
        yield Add(self.value, scale=scale, first=3 * C, gate=2 * C)


class Block(nn.Module):
    def __init__(self, config: "RWKVConfig", layer: int) -> None:
        super().__init__()
        C, eps = config.hidden_size, config.layer_norm_epsilon
        # of the added outputs, and of the residual stream after the layer
        self.scale, self.factor = config.factors(layer)
        self.ln1, self.ln2 = nn.LayerNorm(C, eps), nn.LayerNorm(C, eps)
        self.attention = TimeMix(config, 2 * layer)
        self.feed_forward = ChannelMix(config, 2 * layer + 1)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        x = x + self.scale * self.attention(self.ln1(x), past)
        x = x + self.scale * self.feed_forward(self.ln2(x), past)
        return self.factor * x

    @torch.no_grad()
    def init_weights(self, layer: int, layers: int) -> None:
        """Draw the weights as the authors do, with normal distributions in place of orthogonal
        matrices.
        """
        time, channel = self.attention, self.feed_forward
        C, N = time.channels, time.inner
        depth, rest = layer / max(layers - 1, 1), 1 - layer / layers
        speed = (torch.arange(N) / max(N - 1, 1)) ** (0.7 + 1.3 * depth)
        time.time_decay.copy_(8 * speed - 5)
        time.time_first.copy_(math.log(0.3) + 0.5 * ((torch.arange(N) + 1) % 3 - 1))
        ratio = torch.arange(C) / C
        time.time_mix_key.copy_(ratio**rest)
        time.time_mix_value.copy_(ratio**rest + 0.3 * depth)
        time.time_mix_receptance.copy_(ratio ** (0.5 * rest))
        channel.time_mix_key.copy_(ratio**rest)
        channel.time_mix_receptance.copy_(ratio**rest)
        for linear in (time.value, channel.key):
            nn.init.normal_(linear.weight, std=C**-0.5)
        for linear in (time.key, time.receptance, time.output, channel.receptance, channel.value):
            nn.init.zeros_(linear.weight)


class RWKV(LanguageModel):
    config: "RWKVConfig"

    def __init__(self, config: "RWKVConfig") -> None:
        super().__init__()
        self.config = config
        C, layers = config.hidden_size, config.num_hidden_layers
        self.embeddings = nn.Embedding(config.vocab_size, C)
        self.pre_ln = nn.LayerNorm(C, config.layer_norm_epsilon)
        self.blocks = BlockList(Block(config, layer) for layer in range(layers))
        self.ln_out = nn.LayerNorm(C)  # its epsilon is not a setting
        # A tied head is the token embedding itself and has no parameter.
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else nn.Linear(C, config.vocab_size, bias=False)
        for number, block in enumerate(self.blocks):
            block.init_weights(number, layers)
        nn.init.normal_(self.embeddings.weight, std=1e-4)
        if self.lm_head is not None:
            nn.init.normal_(self.lm_head.weight, std=0.5 * C**-0.5)

    def body(self, idx: Tensor, past: Past) -> Tensor:
        x = self.pre_ln(self.embeddings(idx))  # (B, T, C)
        for block in self.blocks:
            x = block(x, past)
        return self.ln_out(x)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embeddings.weight) if self.lm_head is None else self.lm_head(x)

    def cache_layout(self) -> list[State]:
        C, N = self.config.hidden_size, self.config.inner
        # The previous token, and the average, whose state in 16 bits would lose small updates.
        time, channel = State(((1, C), (3, N)), torch.float32), State(((1, C),), torch.float32)
        return [time, channel] * self.config.num_hidden_layers

    def caches(self) -> list[list[int]]:
        return [[2 * layer, 2 * layer + 1] for layer in range(self.config.num_hidden_layers)]

    def steps(self) -> Iterator[Step]:
        yield Embed(self.embeddings)
        yield Norm(self.pre_ln, to_residual=True)
        for block in self.blocks:
            yield Norm(block.ln1)
            yield from block.attention.steps(block.scale)
            yield Norm(block.ln2)
            yield from block.feed_forward.steps(block.scale)
            yield ScaleResidual(block.factor)
        yield Norm(self.ln_out)
        yield Logits(self.embeddings if self.lm_head is None else self.lm_head)


@dataclass(frozen=True)
class RWKVConfig(Effective):
    """The settings of config.json that change the result. Defaults: transformers."""

    TITLE: ClassVar = "RWKV-4"
    ALIASES: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "rwkv": {"context_length": "max_position_embeddings"}
    }

    vocab_size: int = 50277
    hidden_size: int = 4096
    num_hidden_layers: int = field(default=32, metadata={"range": (1, 4096)})
    # N; None: C
    attention_hidden_size: int | None = field(default=None, metadata={"range": (1, 2**24)})
    # I; None: 4 C
    intermediate_size: int | None = field(default=None, metadata={"range": (1, 2**24)})
    # of training; only transformers' CUDA kernel has a maximum
    max_position_embeddings: int = field(default=1024, metadata={"range": (1, 2**31)})
    layer_norm_epsilon: float = 1e-5
    # layers; 0 or less: none
    rescale_every: int = field(default=6, metadata={"range": (-(2**31), 2**31)})
    tie_word_embeddings: bool = False
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0
    pad_token_id: int | None = None

    @property
    def inner(self) -> int:
        """Number of channels of the average (N)."""
        return self.attention_hidden_size or self.hidden_size

    def factors(self, layer: int) -> tuple[float, float]:
        """The factors of a layer's outputs, and of the residual stream after the layer."""
        every = self.rescale_every
        if every <= 0:
            return 1.0, 1.0
        return 0.5 ** (layer // every), 1.0 if (layer + 1) % every else 0.5

    @property
    def context_length(self) -> None:
        """There is no maximum number of positions."""
        return

    def to_hub(self) -> JsonObject:
        """The config.json of this model for transformers."""
        settings = asdict(self)
        settings["context_length"] = settings.pop("max_position_embeddings")
        settings["attention_hidden_size"] = self.inner
        settings["intermediate_size"] = self.intermediate_size or 4 * self.hidden_size
        return {"architectures": ["RwkvForCausalLM"], "model_type": "rwkv", **settings}
