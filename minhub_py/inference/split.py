"""Which part of each weight belongs to a process, where several share a model: read from the model's `steps`.

A process has some heads of each attention, some of the inner numbers of each MLP, some experts, and some rows of the
vocabulary. So the layer that comes first in a block is split by its outputs, and the layer that ends it by its inputs:
what `add` adds is then a sum over the processes. All else (norms, positions, the residual stream) each process has as a
whole.

Shares need not be equal: 25 heads go to two processes as 12 and 13. Heads of k and v that are fewer than the processes
are kept by each process whose heads of q read them.

A method `_NAME` of `Split` is the rule for the operation NAME; inference/compiled.py says what the operations mean.

Sources: Shoeybi et al. (2019), "Megatron-LM", section 3, for the two ways to split and the split vocabulary; Pope et
al. (2022), "Efficiently Scaling Transformer Inference", for grouped heads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from minhub_py.inference.cache import KeyValues, Layout, Source, State
from minhub_py.inference.processes import part_of
from minhub_py.models.base import Step
from minhub_py.models.packed import Packed
from weights_map.engine import Mapped

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
    """What belongs to process `rank` of `count`.

    cuts: for a parameter, by its identity, a dimension and the parts of it; those that are not here stay whole.
    dropped: biases of sums, by their identity, which the first process adds.
    vocabulary: ids whose rows of the embedding and the head it has.
    layout: what it keeps of the ids that were read.
    """

    def __init__(self, title: str, steps: Iterable[Step], layout: Layout, rank: int, count: int) -> None:
        """title: the model's, for errors.    layout: the whole model's.    ValueError: fewer heads than processes."""
        self.title, self.rank, self.count = title, rank, count
        self.cuts: dict[int, tuple[int, list[range]]] = {}
        self.dropped: set[int] = set()
        self.vocabulary = range(0)
        self.layout: list[KeyValues | State | Source] = []
        self.kept = iter(layout)
        self.inputs: list[range] | None = None  # what of h this process has; None: all
        steps = list(steps)
        for place, (operation, keywords) in enumerate(steps):
            if operation == "linear":
                following = next(step for step in steps[place + 1 :] if step[0] not in PASSED)
                self._linear(keywords["layers"], *following)
            else:
                getattr(self, f"_{operation}")(**keywords)

    def part(self, number: int) -> range:
        """The part of this many things that belongs to this process."""
        return part_of(number, self.rank, self.count)

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
            beta = moved(mine.q, channels + heads * size)
            parts = [*self.channels(**keywords), moved(z, channels), beta, moved(beta, heads)]  # the last: decays
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
        """Give the model, in place, this process's parts of its weights: its layers are smaller then.

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
