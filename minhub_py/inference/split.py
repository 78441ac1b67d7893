"""Which part of each weight belongs to a process, where several share a model: read from the model's `steps`.

A process has some heads of each attention, some of the inner numbers of each MLP, some experts, and some rows of the
vocabulary. So the layer that comes first in a block is split by its outputs, and the layer that ends it by its inputs:
what `add` adds is then a sum over the processes. All else (norms, positions, the residual stream) each process has as a
whole.

Shares need not be equal: 25 heads go to two processes as 12 and 13. Heads of k and v that are fewer than the processes
are kept by each process whose heads of q read them.

`Split` has a rule for each operation of models/steps.py.

Sources: Shoeybi et al. (2019), "Megatron-LM", section 3, for the two ways to split and the split vocabulary; Pope et
al. (2022), "Efficiently Scaling Transformer Inference", for grouped heads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from minhub_py.inference.processes import part_of
from minhub_py.models.cache import EncoderKeyValues, KeyValues, LayerCache, Layout, State
from minhub_py.models.experts import Packed
from minhub_py.models.steps import (
    Add,
    AddPositions,
    Attend,
    CacheEncoder,
    CrossAttend,
    DeltaRule,
    Embed,
    Experts,
    Gate,
    Linear,
    LoadResidual,
    Logits,
    Norm,
    Rotate,
    SaveResidual,
    Step,
)
from weights_map.engine import Mapped

Kept = TypeVar("Kept", KeyValues, State, EncoderKeyValues)


@dataclass(frozen=True)
class Heads:
    """The heads of an attention that belong to a process: `q` of them, which read the groups `k` of keys and values."""

    q: range
    k: range
    groups: tuple[int, ...]  # for each head of q the group that it reads, counted from the first of this process

    @property
    def uneven(self) -> bool:
        """Whether the heads of q share those of k unequally; then each head of q has a copy of its own."""
        return len(self.q) % len(self.k) > 0 or self.groups != tuple(
            head // (len(self.q) // len(self.k)) for head in range(len(self.q))
        )

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
        self.layout: list[LayerCache] = []
        self.kept = iter(layout)
        self.inputs: list[range] | None = None  # what of h this process has; None: all
        steps = list(steps)
        for place, step in enumerate(steps):
            following = next((each for each in steps[place + 1 :] if not isinstance(each, Rotate)), None)
            self._apply(step, following)

    def _apply(self, step: Step, following: Step | None) -> None:
        """The rule for a step. following: the next step, which determines how the outputs of a `Linear` are grouped."""
        match step:
            case Linear():
                self._linear(step.layers, following)
            case Add():
                self._add(step.layer)
            case Rotate():
                self._rotate(step)
            case Attend():
                self._attend(step)
            case CrossAttend():
                own = self.heads(step.heads, step.heads).q
                self.layout.append(replace(self.kept_next(EncoderKeyValues), heads=len(own)))
            case CacheEncoder():
                for layer in step.layers:
                    own = self.heads(step.heads, step.heads).q
                    self.cut(layer.weight, 0, [span_of(own, layer.weight.size(0) // step.heads)])
            case DeltaRule():
                self._delta_rule(step)
            case Embed():
                self.vocabulary = self.part(step.tokens.weight.size(0))
                self.cut(step.tokens.weight, 0, [self.vocabulary])
            case Logits():
                for each in (step.layer.weight, step.bias, getattr(step.layer, "bias", None)):
                    self.cut(each, 0, [self.vocabulary])
            case Experts():
                self._experts(step)
            case Norm() | LoadResidual() | AddPositions():
                self.inputs = None  # every process has all of the result
            case SaveResidual() | Gate():
                pass  # number i of one half belongs to number i of the other
            case _:
                raise ValueError(
                    f"{self.title}: {type(step).__name__} layers cannot be split among processes; load this model in "
                    "one, without parallel=, --tensor-parallel or torchrun"
                )

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

    def _linear(self, layers: Sequence[Any], following: Step | None) -> None:
        """Split by its outputs, as the operation that follows needs them; one whose outputs all need stays whole."""
        outputs = sum(layer.weight.size(0) for layer in layers)
        match following:
            case Attend():
                size = outputs // (following.heads * (1 + following.gate) + 2 * following.kv_heads)
                mine = self.heads(following.heads, following.kv_heads)
                parts = mine.rows(following.heads, following.kv_heads, size, following.gate)
                self.inputs = [span_of(mine.q, size)]
            case CrossAttend():
                mine = self.heads(following.heads, following.heads)
                parts = self.inputs = [span_of(mine.q, outputs // following.heads)]
            case Gate():
                half = self.part(outputs // 2)
                parts, self.inputs = [half, moved(half, outputs // 2)], [half]
            case DeltaRule():
                heads, size = following.heads, following.norm.weight.numel()
                channels = len(following.conv.weight)
                mine = self.heads(heads, following.key_heads)
                z = span_of(mine.q, size)
                beta = moved(mine.q, channels + heads * size)
                parts = [*self.channels(following), moved(z, channels), beta, moved(beta, heads)]  # the last: decays
                self.inputs = [z]
            case Add():
                parts = self.inputs = [self.part(outputs)]
            case _:
                self.inputs = None
                return
        start = 0
        for layer in layers:
            end = start + layer.weight.size(0)
            own = [range(max(part.start, start) - start, min(part.stop, end) - start) for part in parts]
            self.cut(layer.weight, 0, own)
            self.cut(layer.bias, 0, own)
            start = end

    def _add(self, layer: Any) -> None:
        """Split by its inputs: what each process makes is a term of the sum."""
        assert self.inputs is not None
        self.cut(layer.weight, 1, self.inputs)
        if layer.bias is not None and self.rank > 0:
            self.dropped.add(id(layer.bias))
        self.inputs = None

    def _rotate(self, step: Rotate) -> None:
        if step.all_heads and step.q_norm is not None and step.k_norm is not None:
            mine = self.heads(step.heads, step.kv_heads)
            self.cut(step.q_norm.weight, 0, [span_of(mine.q, step.q_norm.weight.numel() // step.heads)])
            self.cut(step.k_norm.weight, 0, [span_of(mine.k, step.k_norm.weight.numel() // step.kv_heads)])

    def _attend(self, step: Attend) -> None:
        mine = self.heads(step.heads, step.kv_heads)
        self.cut(step.sinks, 0, [mine.q])
        self.cut(step.bias and step.bias.weight, 1, [mine.q])
        if step.causal:  # an encoder caches nothing
            self.layout.append(replace(self.kept_next(KeyValues), heads=len(mine.q if mine.uneven else mine.k)))

    def kept_next(self, kind: type[Kept]) -> Kept:
        """What the next layer of the cache keeps."""
        found = next(self.kept)
        assert isinstance(found, kind)
        return found

    def channels(self, step: DeltaRule) -> list[range]:
        """The numbers of q, k and v of the delta rule that belong to this process."""
        mine, values = self.heads(step.heads, step.key_heads), step.heads * step.norm.weight.numel()
        keys = (len(step.conv.weight) - values) // 2
        q = span_of(mine.k, keys // step.key_heads)
        return [q, moved(q, keys), moved(span_of(mine.q, values // step.heads), 2 * keys)]

    def _delta_rule(self, step: DeltaRule) -> None:
        channels, mine = self.channels(step), self.heads(step.heads, step.key_heads).q
        self.cut(step.conv.weight, 0, channels)
        self.cut(step.decay, 0, [mine])
        self.cut(step.bias, 0, [mine])
        kept = self.kept_next(State)
        (reach, _), (_, *memory) = kept.shapes
        self.layout.append(replace(kept, shapes=((reach, sum(map(len, channels))), (len(mine), *memory))))

    def _experts(self, step: Experts) -> None:
        mine = self.part(step.router.weight.size(0))
        for weight in (step.gate_up, step.gate_up_bias, step.down, step.down_bias):
            for tensor in (weight.blocks, weight.scales) if isinstance(weight, Packed) else (weight,):
                self.cut(tensor, 0, [mine])

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
