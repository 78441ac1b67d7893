"""Tensor parallelism: several processes compute as one model, each with its share of every large weight.

A process has some heads of each attention, some of the inner numbers of each MLP, some experts, and some rows of the
vocabulary. So the layer that comes first in a block is split by its outputs, and the layer that ends it by its inputs:
what `add` adds is then a sum over the processes. All else (norms, positions, the residual stream) each process has as a
whole. There is one sum for each block, or for two that read the same, one for the embedding, and the logits, which are
brought together at the end.

`Split` reads from a model's `steps` which part of each weight belongs to a process. `Run` computes the steps with these
parts. No family is named here: inference/compiled.py says what the operations mean. What `Split` has no rule for is
refused by name.

Shares need not be equal: 25 heads go to two processes as 12 and 13. Heads of k and v that are fewer than the processes
are kept by each process whose heads of q read them.

Sources: Shoeybi et al. (2019), "Megatron-LM", section 3, for the two ways to split and the split vocabulary; Pope et
al. (2022), "Efficiently Scaling Transformer Inference", for grouped heads.
Notation: that of the model files; H', G' heads of this process.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Layout, Memory, Source, Span, State
from minhub_py.inference.processes import Processes
from minhub_py.models.base import ACTIVATIONS, EncoderDecoder, LanguageModel, Step
from minhub_py.models.delta import delta_rule
from minhub_py.models.packed import Packed
from minhub_py.torchscript import rms_norm, rotate, scaled
from weights_map.engine import Mapped

NOT_WHOLE = "a model that is split among processes cannot be saved or converted: load it without parallel="
Kept = TypeVar("Kept", KeyValues, State, Source)

# What stands between a `linear` and the operation that says how its outputs belong together.
PASSED = ("rotate",)


@dataclass(frozen=True)
class Heads:
    """The heads of an attention that belong to a process: `q` of them, which read the groups `k` of keys and values."""

    q: range
    k: range
    groups: tuple[int, ...]  # for each head of q the group that it reads, counted from the first of this process

    def rows(self, heads: int, groups: int, size: int, gate: bool) -> list[range]:
        """Their rows in a projection to q, k and v side by side, whose heads have `size` numbers.

        gate: each head of q is followed by its gate.
        """
        before = heads * (1 + gate)  # heads before those of k
        k, v = (span_of(self.k, size, start) for start in (before, before + groups))
        return [span_of(self.q, size * (1 + gate)), k, v]


def span_of(mine: range, size: int, start: int = 0) -> range:
    """The numbers of things that have `size` numbers each, the first of which is number `start` of them."""
    return range((start + mine.start) * size, (start + mine.stop) * size)


def moved(mine: range, by: int) -> range:
    """A range that begins so many numbers later."""
    return range(mine.start + by, mine.stop + by)


class Split:
    """What belongs to process `rank` of `count`: of each parameter, by its identity, a dimension and parts of it.

    ValueError: an operation that cannot be split, or fewer heads than processes.
    """

    def __init__(self, model: LanguageModel, rank: int, count: int) -> None:
        self.title, self.rank, self.count = model.config.TITLE, rank, count
        self.cuts: dict[int, tuple[int, list[range]]] = {}
        self.dropped: set[int] = set()  # biases of sums, which one process adds
        self.layout: list[KeyValues | State | Source] = []
        self.inputs: list[range] | None = None  # what of h this process has; None: all
        self.vocabulary = range(0)
        self.kept = iter(model.cache_layout())
        if isinstance(model, EncoderDecoder):
            self._read(list(model.encoder_steps()))
        self._read(list(model.steps()))

    def _read(self, steps: Sequence[Step]) -> None:
        """Split the weights of steps."""
        for place, (operation, keywords) in enumerate(steps):
            rule = getattr(self, f"_{operation}", None)
            known = inspect.signature(getattr(Run, operation)).parameters if hasattr(Run, operation) else keywords
            given = [name for name, value in keywords.items() if value is not None and value is not False]
            unknown = [name for name in given if name not in known]
            if rule is None or unknown:
                raise ValueError(
                    f"{self.title}: {' with '.join((operation, *unknown[:1]))} cannot be split among processes; load "
                    "this model in one, without parallel=, --tensor-parallel or torchrun"
                )
            if operation == "linear":
                following = next(step for step in steps[place + 1 :] if step[0] not in PASSED)
                self._linear(keywords["layers"], *following)
            else:
                rule(**keywords)

    def part(self, number: int) -> range:
        """The part of this many things that belongs to this process: the same number everywhere, or one more."""
        return range(number * self.rank // self.count, number * (self.rank + 1) // self.count)

    def heads(self, heads: int, groups: int | None) -> Heads:
        """The heads of this process. ValueError: there are fewer than processes."""
        groups = groups or heads
        if heads < self.count:
            raise ValueError(f"{self.title}: {heads} heads cannot be split among {self.count} processes: start at most "
                             f"{heads}")  # fmt: skip
        each = heads // groups  # heads of q that read one group
        if groups >= self.count:
            k = self.part(groups)
            q = span_of(k, each)
        else:
            q = self.part(heads)
            k = range(q.start // each, (q.stop - 1) // each + 1)
        return Heads(q, k, tuple(head // each - k.start for head in q))

    def cut(self, parameter: Tensor | None, dim: int, parts: Sequence[range]) -> None:
        """Say what of a parameter belongs to this process."""
        if parameter is not None:
            self.cuts[id(parameter)] = dim, [part for part in parts if part] or [range(0)]

    def _linear(self, layers: Sequence[Any], operation: str, keywords: Mapping[str, Any]) -> None:
        """Split by its outputs, as the operation that follows needs them; one whose outputs all need stays whole."""
        outputs = sum(layer.weight.size(0) for layer in layers)
        if operation == "attend":
            heads, groups = keywords["heads"], keywords.get("groups") or keywords["heads"]
            gate = keywords.get("gate", False)
            size = outputs // (heads * (1 + gate) + 2 * groups)
            mine = self.heads(heads, groups)
            parts, self.inputs = mine.rows(heads, groups, size, gate), [span_of(mine.q, size)]
        elif operation == "cross_attend":
            heads = keywords["heads"]
            parts = self.inputs = [span_of(self.heads(heads, heads).q, outputs // heads)]
        elif operation == "gate":
            half = self.part(outputs // 2)
            parts, self.inputs = [half, moved(half, outputs // 2)], [half]
        elif operation == "delta_rule":
            heads, size, channels = keywords["heads"], keywords["norm"].weight.numel(), len(keywords["conv"].weight)
            mine = self.heads(heads, keywords["groups"])
            z = span_of(mine.q, size)
            b = moved(mine.q, channels + heads * size)
            parts = [*self.channels(**keywords), moved(z, channels), b, moved(b, heads)]
            self.inputs = [z]
        elif operation == "add":
            parts = self.inputs = [self.part(outputs)]
        else:
            self.inputs = None
            return
        start = 0
        for layer in layers:
            end = start + layer.weight.size(0)
            own = [range(max(part.start, start) - start, min(part.stop, end) - start) for part in parts]
            self.cut(layer.weight, 0, own)
            self.cut(layer.bias, 0, own)
            start = end

    def _add(self, layer: Any, **keywords: Any) -> None:
        """Split by its inputs: what each process makes is a term of the sum."""
        assert self.inputs is not None
        self.cut(layer.weight, 1, self.inputs)
        if layer.bias is not None and self.rank > 0:
            self.dropped.add(id(layer.bias))
        self.inputs = None

    def _rotate(
        self, heads: int, groups: int | None = None, q_norm: Any = None, k_norm: Any = None, whole: bool = False,
        **keywords: Any,
    ) -> None:  # fmt: skip
        if whole:
            mine = self.heads(heads, groups)
            self.cut(q_norm.weight, 0, [span_of(mine.q, q_norm.weight.numel() // heads)])
            self.cut(k_norm.weight, 0, [span_of(mine.k, k_norm.weight.numel() // (groups or heads))])

    def _attend(
        self, heads: int, groups: int | None = None, sinks: Tensor | None = None, bias: Any = None,
        both_ways: bool = False, **keywords: Any,
    ) -> None:  # fmt: skip
        mine = self.heads(heads, groups)
        self.cut(sinks, 0, [mine.q])
        self.cut(bias and bias.weight, 1, [mine.q])
        if not both_ways:  # an encoder keeps nothing
            self.layout.append(replace(self.kept_next(KeyValues), heads=len(mine.k)))

    def _cross_attend(self, heads: int, **keywords: Any) -> None:
        self.layout.append(replace(self.kept_next(Source), heads=len(self.heads(heads, heads).q)))

    def _remember(self, heads: int, layers: Sequence[Any]) -> None:
        for layer in layers:
            self.cut(layer.weight, 0, [span_of(self.heads(heads, heads).q, layer.weight.size(0) // heads)])

    def kept_next(self, kind: type[Kept]) -> Kept:
        """What the next layer of the cache keeps."""
        found = next(self.kept)
        assert isinstance(found, kind)
        return found

    def channels(self, heads: int, groups: int, conv: Any, norm: Any, **keywords: Any) -> list[range]:
        """The numbers of q, k and v of the delta rule that belong to this process."""
        mine, values = self.heads(heads, groups), heads * norm.weight.numel()
        keys = (len(conv.weight) - values) // 2
        q = span_of(mine.k, keys // groups)
        return [q, moved(q, keys), moved(span_of(mine.q, values // heads), 2 * keys)]

    def _delta_rule(self, decay: Tensor, bias: Tensor, **keywords: Any) -> None:
        channels, mine = self.channels(**keywords), self.heads(keywords["heads"], keywords["groups"]).q
        self.cut(keywords["conv"].weight, 0, channels)
        self.cut(decay, 0, [mine])
        self.cut(bias, 0, [mine])
        kept = self.kept_next(State)
        (reach, _), (_, *memory) = kept.shapes
        self.layout.append(replace(kept, shapes=((reach, sum(map(len, channels))), (len(mine), *memory))))

    def _embed(self, tokens: Any, **keywords: Any) -> None:
        self.vocabulary = self.part(tokens.weight.size(0))
        self.cut(tokens.weight, 0, [self.vocabulary])

    def _logits(self, layer: Any, bias: Tensor | None = None, **keywords: Any) -> None:
        for each in (layer.weight, bias, getattr(layer, "bias", None)):
            self.cut(each, 0, [self.vocabulary])

    def _experts(
        self, router: Any, gate_up: Tensor | Packed, gate_up_bias: Tensor, down: Tensor | Packed, down_bias: Tensor,
        **keywords: Any,
    ) -> None:  # fmt: skip
        mine = self.part(router.weight.size(0))
        for weight in (gate_up, gate_up_bias, down, down_bias):
            for tensor in (weight.blocks, weight.scales) if isinstance(weight, Packed) else (weight,):
                self.cut(tensor, 0, [mine])

    def _norm(self, **keywords: Any) -> None:
        """Each process has all of what comes of it."""
        self.inputs = None

    _rms_norm = _copy = _place = _norm

    def _keep(self) -> None:
        """Nothing to split."""

    def _gate(self, **keywords: Any) -> None:
        """Nothing to split: number i of one half is with number i of the other."""

    def fill(self, model: nn.Module, tensors: Mapping[str, Tensor], place: Callable[[Tensor], Tensor]) -> None:
        """Give the model that was split this process's parts of its weights, in place. Its layers then are smaller.

        tensors: the weights, of which only those parts are read.    place: brings one to its device and dtype.
        """
        for name, parameter in model.state_dict(keep_vars=True).items():
            path, _, leaf = name.rpartition(".")
            parent = model.get_submodule(path)
            if id(parameter) in self.dropped:
                setattr(parent, leaf, None)
                continue
            found = place(self.share(tensors, name, parameter))
            setattr(parent, leaf, nn.Parameter(found, requires_grad=False) if leaf in parent._parameters else found)

    def share(self, tensors: Mapping[str, Tensor], name: str, parameter: Tensor) -> Tensor:
        """The part of a tensor that belongs to this process, a view of the mapped file where it lies in one piece."""
        if id(parameter) not in self.cuts:
            return tensors[name]
        dim, parts = self.cuts[id(parameter)]
        if dim == 0 and isinstance(tensors, Mapped):
            return tensors.rows(name, parts)
        pieces = [tensors[name].narrow(dim, part.start, len(part)) for part in parts]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


class ParallelModel(LanguageModel):
    """A model for inference whose weights are split among processes; all of them call it with the same ids.

    `generate`, `stream` and `score` take it as any other. It has no weights that could be saved or trained.
    """

    def __init__(
        self, model: LanguageModel, tensors: Mapping[str, Tensor], place: Callable[[Tensor], Tensor],
        processes: Processes,
    ) -> None:  # fmt: skip
        """model: without weights; it is changed.    tensors, place: see `Split.fill`.

        ValueError: see `Split`.
        """
        super().__init__()
        self.config, self.processes = model.config, processes
        self.split = Split(model, processes.rank, processes.count)
        self.split.fill(model, tensors, place)
        self.model = model
        *self.program, (_, self.head) = model.steps()
        self.encoder_program = list(model.encoder_steps()) if isinstance(model, EncoderDecoder) else []

    def body(self, idx: Tensor, span: Span) -> Tensor:
        return self.run(self.program, idx, span).h

    def run(self, steps: Sequence[Step], idx: Tensor, span: Span) -> "Run":
        """The values after some steps, which read ids (B, T)."""
        self.processes.agree(idx)
        run = Run(self, idx, span)
        for operation, keywords in steps:
            getattr(run, operation)(**keywords)
        return run

    def logits(self, x: Tensor) -> Tensor:
        layer, softcap = self.head["layer"], self.head.get("softcap")
        bias = self.head.get("bias")
        bias = getattr(layer, "bias", None) if bias is None else bias
        mine = F.linear(x * self.head.get("scale", 1), layer.weight, bias)  # (B, T, V')
        found = self.processes.side_by_side(mine, self.config.vocab_size)  # (B, T, V)
        return found if softcap is None else softcap * torch.tanh(found / softcap)

    def cache_layout(self) -> Layout:
        return self.split.layout

    def steps(self) -> Iterator[Step]:
        raise ValueError(NOT_WHOLE)

    def state_dict(self, *args: Any, **keywords: Any) -> Any:  # type: ignore[override]
        """ValueError: no process has the whole weights."""
        raise ValueError(NOT_WHOLE)


class ParallelEncoderDecoder(ParallelModel, EncoderDecoder):
    """An encoder-decoder whose weights are split among processes."""

    def encode(self, idx: Tensor) -> Memory:
        found = self.run(self.encoder_program, idx, Span(idx, None)).memory
        layers = [layer for layer, kept in enumerate(self.split.layout) if isinstance(kept, Source)]
        return dict(zip(layers, found, strict=True))


class Run:
    """One call of a model: its steps one after the other, with this process's parts of the weights.

    h is the current value, (B, T, …). What `add` adds to x stays a term of a sum over the processes until x is read.
    """

    def __init__(self, model: ParallelModel, idx: Tensor, span: Span) -> None:
        self.split, self.processes = model.split, model.processes
        self.idx, self.span = idx, span
        self.layer = -1
        self.h = self.gates = self.kept = self.known = torch.empty(0)
        self.term: Tensor | None = None
        self.memory: list[tuple[Tensor, Tensor]] = []  # keys and values of the source, by layer of cross attention
        self.bias: tuple[Any, Tensor] | None = None  # the last one, which most layers share

    @property
    def x(self) -> Tensor:
        """The residual stream (B, T, C), the same in all processes."""
        if self.term is not None:
            self.known = self.known + self.processes.sum(self.term)
            self.term = None
        return self.known

    @x.setter
    def x(self, value: Tensor) -> None:
        self.known, self.term = value, None

    def embed(self, tokens: Any, positions: Any = None, scale: float | None = None, dropout: float = 0.0) -> None:
        mine = self.split.vocabulary
        places = self.idx - mine.start
        elsewhere = (places < 0) | (places >= len(mine))
        rows = F.embedding(places.masked_fill(elsewhere, 0), tokens.weight)
        x = self.processes.sum(rows.masked_fill(elsewhere.unsqueeze(2), 0))  # one process has each id's row
        if scale is not None:
            x = scaled(x, scale)
        if positions is not None:
            x = x + F.embedding(self.span.positions, positions.weight)
        self.x = self.h = x

    def place(self, positions: Any, first: int = 0) -> None:
        self.x = self.h = self.h + F.embedding(self.span.positions + first, positions.weight)

    def keep(self) -> None:
        self.kept = self.x

    def copy(self) -> None:
        self.h = self.x

    def norm(self, layer: Any, kept: bool = False, stream: bool = False) -> None:
        self.h = layer(self.kept if kept else self.x)
        if stream:
            self.x = self.h

    def rms_norm(self, layer: Any, kept: bool = False, plus_one: bool = False, dropout: float = 0.0) -> None:
        self.h = rms_norm(self.kept if kept else self.x, layer.weight, layer.eps, plus_one)

    def linear(self, layers: Sequence[Any], activation: str | None = None, dropout: float = 0.0) -> None:
        found = [F.linear(self.h, layer.weight, layer.bias) for layer in layers]
        self.h = found[0] if len(found) == 1 else torch.cat(found, dim=2)
        if activation is not None:
            self.h = ACTIVATIONS[activation](self.h)

    def gate(self, activation: str, dropout: float = 0.0) -> None:
        gate, up = self.h.chunk(2, dim=2)
        self.h = ACTIVATIONS[activation](gate) * up

    def rotate(
        self, heads: int, rope: Any, groups: int | None = None, q_norm: Any = None, k_norm: Any = None,
        plus_one: bool = False, whole: bool = False, interleaved: bool = False, gate: bool = False,
    ) -> None:  # fmt: skip
        mine = self.split.heads(heads, groups)
        H, G = len(mine.q), len(mine.k)
        if gate:  # one after each head of q
            parts = self.h.unflatten(2, (2 * (H + G), -1))  # (B, T, 2H' + 2G', D)
            self.gates = parts[:, :, 1 : 2 * H : 2].flatten(2)
            self.h = torch.cat((parts[:, :, 0 : 2 * H : 2], parts[:, :, 2 * H :]), dim=2).flatten(2)
        cos, sin, growth = rope(self.span.positions)  # (B or 1, T, R/2) twice, (B or 1, T) or None
        grown = torch.ones_like(cos[..., 0]) if growth is None else growth
        turn = cos.unsqueeze(2), sin.unsqueeze(2), grown[..., None, None]
        q = k = None
        eps = 0.0
        if whole:
            self.h = self.norm_whole(mine, heads, groups or heads, q_norm, k_norm)
        elif q_norm is not None:
            q, k, eps = q_norm.weight, k_norm.weight, q_norm.eps
        self.h = rotate(self.h, H, G, turn, interleaved, q, k, eps, plus_one, False)

    def norm_whole(self, mine: Heads, heads: int, groups: int, q_norm: Any, k_norm: Any) -> Tensor:
        """What one norm of all heads of q, and one of all of k, makes of h: their squares are in several processes."""
        q, k, v = self.h.split([q_norm.weight.numel(), *[k_norm.weight.numel()] * 2], dim=2)
        size, own = k.size(2) // len(mine.k), self.split.part(groups)  # a group may be in several processes
        counted = k[..., (own.start - mine.k.start) * size : (own.stop - mine.k.start) * size]
        squares = torch.stack([part.float().square().sum(dim=2) for part in (q, counted)], dim=2)  # (B, T, 2)
        means = self.processes.sum(squares) / torch.tensor([heads * size, groups * size], device=q.device)
        found = []
        for part, norm, mean in zip((q, k), (q_norm, k_norm), means.unsqueeze(3).unbind(2), strict=True):
            found.append(norm.weight * (part.float() * torch.rsqrt(mean + norm.eps)).to(part.dtype))
        return torch.cat((*found, v), dim=2)

    def attend(
        self, heads: int, scale: float, groups: int | None = None, window: int | None = None, upcast: bool = False,
        softcap: float | None = None, sinks: Tensor | None = None, gate: bool = False, bias: Any = None,
        both_ways: bool = False, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        mine = self.split.heads(heads, groups)
        H, G, dtype = len(mine.q), len(mine.k), self.h.dtype
        parts = self.h.unflatten(2, (H + 2 * G, -1)).transpose(1, 2)  # (B, H' + 2G', T, D)
        q, k, v = parts.split([H, G, G], dim=1)
        seen = self.span.positions
        if not both_ways:
            self.layer += 1
            k, v, seen = self.span.update(self.layer, k, v)  # (B, G', S, D), (B, G', S, D), (B or 1, S)
        if H != G:
            k, v = k[:, mine.groups], v[:, mine.groups]  # (B, H', S, D)
        if upcast:
            q, k, v = q.float(), k.float(), v.float()
        if bias is not None:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.biased(bias, seen, both_ways), scale=scale)
        elif softcap is None and sinks is None:
            mask = self.span.mask(seen, window)  # (B or 1, 1, T, S), or None
            causal = mask is None and q.size(2) > 1
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
        else:
            scores = (q @ k.transpose(2, 3)).float() * scale  # (B, H', T, S)
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            scores = scores.masked_fill(~self.span.allowed(seen, window), -torch.inf)
            if sinks is not None:
                more = sinks.float().view(1, H, 1, 1).expand(*scores.shape[:3], 1)
                scores = torch.cat((scores, more), dim=3)
            y = scores.softmax(dim=3)[..., : k.size(2)].to(dtype) @ v
        self.h = y.to(dtype).transpose(1, 2).flatten(2)  # (B, T, H' * D)
        if gate:
            self.h = self.h * self.gates.sigmoid()

    def biased(self, bias: Any, seen: Tensor, both_ways: bool) -> Tensor:
        """What is added to the scores (B or 1, H', T, S), with minus infinity for later positions but both_ways."""
        if self.bias is None or self.bias[0] is not bias:
            found = bias(self.span.positions, seen)
            self.bias = bias, found if both_ways else found.masked_fill(~self.span.allowed(seen), -torch.inf)
        return self.bias[1]

    def cross_attend(self, heads: int, scale: float, dropout: float = 0.0) -> None:
        self.layer += 1
        k, v, mask = self.span.source(self.layer)  # (B, H', E, D) twice
        q = self.h.unflatten(2, (k.size(1), -1)).transpose(1, 2)  # (B, H', T, D)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        self.h = y.transpose(1, 2).flatten(2)  # (B, T, H' * D)

    def remember(self, heads: int, layers: Sequence[Any]) -> None:
        mine = len(self.split.heads(heads, heads).q)
        k, v = (layer(self.h).unflatten(2, (mine, -1)).transpose(1, 2) for layer in layers)
        self.memory.append((k, v))

    def delta_rule(
        self, heads: int, groups: int, conv: Any, activation: str, decay: Tensor, bias: Tensor, norm: Any
    ) -> None:
        self.layer += 1
        mine = self.split.heads(heads, groups)
        H, G, V, N = len(mine.q), len(mine.k), norm.weight.numel(), len(conv.weight)  # N channels of the convolution
        K, reach = (N - H * V) // (2 * G), conv.weight.size(2) - 1
        mixed, z, b, a = self.h.split([N, H * V, H, H], dim=2)
        B, T, _ = mixed.shape
        past, state = self.span.state(self.layer) or (
            mixed.new_zeros(B, reach, N),
            torch.zeros(B, H, K, V, device=mixed.device),
        )
        mixed = torch.cat((past.to(mixed.dtype), mixed), dim=1)  # (B, reach + T, N)
        past = mixed[:, T:]
        mixed = F.conv1d(mixed.transpose(1, 2), conv.weight, groups=N).transpose(1, 2)
        q, k, v = ACTIVATIONS[activation](mixed).float().split([G * K, G * K, H * V], dim=2)
        q, k = (part.unflatten(2, (G, K)) for part in (q, k))
        q, k = (part * torch.rsqrt(part.square().sum(dim=3, keepdim=True) + 1e-6) for part in (q, k))
        q, k, v = q[:, :, mine.groups] * K**-0.5, k[:, :, mine.groups], v.unflatten(2, (H, V))  # (B, T, H', K or V)
        decays = -decay.float().exp() * F.softplus(a.float() + bias.float())  # (B, T, H')
        q, k, v, decays, betas = (each.transpose(1, 2) for each in (q, k, v, decays, b.float().sigmoid()))
        y, state = delta_rule(q, k, v, decays, betas, state)  # (B, H', T, V)
        self.span.set_state(self.layer, (past, state))
        y = rms_norm(y.transpose(1, 2), norm.weight.float(), norm.eps, False) * F.silu(z.float().unflatten(2, (H, V)))
        self.h = y.flatten(2).to(self.h.dtype)

    def add(self, layer: Any, norm: Any = None, plus_one: bool = False, dropout: float = 0.0) -> None:
        term = F.linear(self.h, layer.weight, layer.bias)
        if norm is not None:
            self.x = self.x + rms_norm(self.processes.sum(term), norm.weight, norm.eps, plus_one)
        else:
            self.term = term if self.term is None else self.term + term

    def experts(
        self, router: Any, gate_up: Tensor | Packed, gate_up_bias: Tensor, down: Tensor | Packed, down_bias: Tensor,
        top: int, alpha: float, limit: float,
    ) -> None:  # fmt: skip
        rows = self.h.flatten(0, 1)  # (B * T, C)
        scores, chosen = router(rows).topk(top, dim=1)
        shares = scores.softmax(dim=1)
        y = torch.zeros_like(rows)
        first = self.split.part(router.weight.size(0)).start
        for number in range(len(down_bias)):
            row, choice = (chosen == first + number).nonzero(as_tuple=True)  # (n,) each
            if len(row):
                both = rows[row] @ expert_of(gate_up, number, y.dtype) + gate_up_bias[number]
                gate, up = both[:, 0::2].clamp(max=limit), both[:, 1::2].clamp(-limit, limit)  # (n, I) each
                inner = gate * torch.sigmoid(alpha * gate) * (up + 1)
                found = inner @ expert_of(down, number, y.dtype) + down_bias[number]
                y = y.index_add(0, row, found * shares[row, choice].unsqueeze(1))
        term = y.view_as(self.h)
        self.term = term if self.term is None else self.term + term


def expert_of(weights: Tensor | Packed, number: int, dtype: torch.dtype) -> Tensor:
    """The weight (in, out) of an expert."""
    return weights.expert(number, dtype) if isinstance(weights, Packed) else weights[number]
