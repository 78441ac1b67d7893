"""Tensor parallelism: each rank has a shard of every large weight, and runs the model's own
`forward`.

`ShardingPlan` reads from a model's `steps` how each weight is divided. In a block, the first layer is
divided by its outputs (column parallel): each rank has some heads, or some channels of the MLP. The
last layer is divided by its inputs (row parallel), so that its outputs are partial sums, which a
hook adds over the ranks. Embedding and head are divided by the vocabulary. Everything else (norms,
positions, router) is replicated. KV heads that are fewer than the ranks are replicated, too.

Sources: Shoeybi et al. (2019), "Megatron-LM", section 3; Pope et al. (2022), "Efficiently Scaling
Transformer Inference", for KV heads.

Notation: as in the model files; H', V' and so on are a rank's share.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.distributed.process_group import ProcessGroup
from minhub_py.models import steps
from minhub_py.models.attention import Past
from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import (
    EncoderCache,
    EncoderKeyValues,
    KeyValues,
    LayerCache,
    Layout,
    State,
)
from minhub_py.models.encoder import EncoderDecoder
from minhub_py.models.experts import BLOCK, ExpertMatrices, Packed
from minhub_py.models.layers import (
    ALiBi,
    HeadLayerNorm,
    LinearLayer,
    RelativeBias,
    RMSNorm,
    rms_norm,
)
from minhub_py.models.steps import Step
from weights_map.conversion import Mapped

INCOMPLETE = (
    "a model that is split among processes cannot be saved or converted: load it without parallel="
)


class Sharded(LanguageModel):
    """The first base class of a split model: `body`, `encode` and `logits` of the model, with a
    rank's shards.
    """

    group: ProcessGroup
    layout: Layout

    def body(self, idx: Tensor, past: Past) -> Tensor:
        self.group.check_equal(idx)
        return super().body(idx, past)

    def encode(self, idx: Tensor, past: Past | None = None) -> EncoderCache:
        self.group.check_equal(idx)
        return super().encode(idx, past)  # type: ignore[misc]  # only an encoder-decoder calls it

    def logits(self, x: Tensor) -> Tensor:
        return self.group.concatenate(super().logits(x), self.config.vocab_size)

    def cache_layout(self) -> Layout:
        return self.layout

    def steps(self) -> Iterator[Step]:
        raise ValueError(INCOMPLETE)

    def state_dict(self, *args: object, **keywords: object) -> dict[str, Tensor]:  # type: ignore[override]
        """ValueError: a rank has only a part of the weights."""
        raise ValueError(INCOMPLETE)


class ShardedEmbedding(nn.Embedding):
    """An embedding that has the rows of some token IDs; the rows of other token IDs are zeros
    before the sum.
    """

    group: ProcessGroup
    ids: range

    def forward(self, idx: Tensor) -> Tensor:
        absent = (idx < self.ids.start) | (idx >= self.ids.stop)
        rows = F.embedding((idx - self.ids.start).masked_fill(absent, 0), self.weight)
        return self.group.sum(rows.masked_fill(absent.unsqueeze(-1), 0))


class ShardedNorm(RMSNorm):
    """One RMS norm over the heads of all ranks."""

    group: ProcessGroup

    def forward(self, x: Tensor) -> Tensor:
        mean = self.group.sum(x.float().square().mean(dim=-1, keepdim=True)) / self.group.size
        return rms_norm(x, self.weight, self.eps, self.offset, mean)


@dataclass(frozen=True)
class Segment:
    """Adjacent channels: `items` (heads, or channels of an MLP) of `size` channels. `share`: the
    items of this rank.
    """

    share: range
    items: int
    size: int = 1


class ShardingPlan:
    """How a model is divided, for one rank. Changes the modules of the model, but not its weights.

    slices: id of a parameter -> a dimension and the ranges of this rank; other parameters are
    replicated.
    biases: ids of the biases of partial sums, which are zero on all ranks except rank 0.
    layout: the cache of this rank.

    ValueError: the heads cannot be divided, or the model has an operation that cannot be divided.
    """

    def __init__(self, model: LanguageModel, group: ProcessGroup) -> None:
        self.title, self.group = model.config.TITLE, group
        self.slices: dict[int, tuple[int, list[range]]] = {}
        self.biases: set[int] = set()
        self.layout: list[LayerCache] = []
        self.parents: dict[object, nn.Module] = {
            child: module for module in model.modules() for child in module.children()
        }
        self.cached: Iterator[LayerCache] = iter(model.cache_layout())
        self.heads = 0  # in the current value h; 0: an MLP's channels
        listed = [
            *(model.encoder_steps() if isinstance(model, EncoderDecoder) else ()),
            *model.steps(),
        ]
        if isinstance(alibi := getattr(model, "alibi", None), ALiBi):
            share = self.segment(len(alibi.slopes)).share
            divided: Any = model
            divided.alibi = replace(alibi, slopes=alibi.slopes[share.start : share.stop])
        for i, step in enumerate(listed):
            self.divide(
                step,
                next(
                    (later for later in listed[i + 1 :] if not isinstance(later, steps.Rotate)),
                    None,
                ),
            )

    def divide(self, step: Step, consumer: Step | None) -> None:  # noqa: PLR0915  # one case per operation
        """Divide a step's weights. consumer: the step that reads its result."""
        match step:
            case steps.Embed():
                rows = self.segment(len(step.tokens.weight))
                self.slice(step.tokens.weight, 0, rows)
                self.replace(step.tokens, ShardedEmbedding, ids=rows.share)
            case steps.Logits():
                for parameter in (step.layer.weight, step.bias, getattr(step.layer, "bias", None)):
                    self.slice(parameter, 0, self.segment(len(step.layer.weight)))
            case steps.Linear():
                self.divide_outputs(step.layers, consumer)
            case steps.Add():
                items = self.heads or step.layer.weight.size(1)
                self.slice(
                    step.layer.weight, 1, self.segment(items, step.layer.weight.size(1) // items)
                )
                self.sum_outputs(step.layer, step.layer.bias)
            case steps.Rotate():
                if step.all_heads and step.q_norm is not None and step.k_norm is not None:
                    D = len(step.q_norm.weight) // step.heads
                    self.slice(step.q_norm.weight, 0, self.segment(step.heads, D))
                    self.slice(step.k_norm.weight, 0, self.kv_segment(step.heads, step.kv_heads, D))
                    self.replace(step.q_norm, ShardedNorm)
                    self.replace(step.k_norm, ShardedNorm)
                elif isinstance(step.q_norm, HeadLayerNorm) and isinstance(
                    step.k_norm, HeadLayerNorm
                ):
                    self.slice(step.q_norm.weight, 0, self.segment(step.heads))
                    self.slice(step.k_norm.weight, 0, self.kv_segment(step.heads, step.kv_heads))
            case steps.Attend():
                self.slice(step.sinks, 0, self.segment(step.heads))
                if isinstance(step.bias, RelativeBias):
                    self.slice(step.bias.weight, 1, self.segment(step.heads))
                if step.causal:  # an encoder caches nothing
                    kv_heads = len(self.kv_segment(step.heads, step.kv_heads).share)
                    self.layout.append(self.with_heads(kv_heads))
            case steps.CrossAttend():
                self.layout.append(self.with_heads(step.heads // self.group.size))
            case steps.CacheEncoder():
                for layer in step.layers:
                    self.slice(
                        layer.weight, 0, self.segment(step.heads, len(layer.weight) // step.heads)
                    )
            case steps.DeltaRule():
                self.slice(step.conv.weight, 0, *self.segments(step, 0)[:3])
                self.slice(step.decay, 0, self.segment(step.heads))
                self.slice(step.bias, 0, self.segment(step.heads))
                step.conv.groups = sum(map(len, self.slices[id(step.conv.weight)][1]))
                state = self.next_state()
                (taps, _), (_, *matrix) = state.shapes
                shapes = ((taps, step.conv.groups), (step.heads // self.group.size, *matrix))
                self.layout.append(replace(state, shapes=shapes))
            case steps.ShortConvolution():
                segment = self.segment(len(step.conv.weight))
                self.slice(step.conv.weight, 0, segment)
                self.slice(step.conv.bias, 0, segment)
                step.conv.groups = len(segment.share)
                state = self.next_state()
                [(taps, _)] = state.shapes
                self.layout.append(replace(state, shapes=((taps, step.conv.groups),)))
            case steps.Experts():
                self.divide_experts(step)
            case (
                steps.Norm()
                | steps.SaveResidual()
                | steps.LoadResidual()
                | steps.AddPositions()
                | steps.Gate()
                | steps.AddSinusoids()
            ):
                pass
            case _:
                raise ValueError(
                    f"{self.title}: {type(step).__name__} layers cannot be split among processes;"
                    " load this model in one process, without parallel=, --tensor-parallel or"
                    " torchrun"
                )

    def with_heads(self, heads: int) -> KeyValues | EncoderKeyValues:
        """The next layer's cache of keys and values, with this rank's number of heads."""
        cache = next(self.cached)
        assert isinstance(cache, KeyValues | EncoderKeyValues)
        return replace(cache, heads=heads)

    def next_state(self) -> State:
        """The next layer's recurrent state."""
        state = next(self.cached)
        assert isinstance(state, State)
        return state

    def divide_outputs(self, layers: Sequence[LinearLayer], consumer: Step | None) -> None:
        """Divide layers by their concatenated outputs, as the consumer needs them."""
        segments = self.segments(consumer, sum(len(layer.weight) for layer in layers))
        self.heads = getattr(consumer, "heads", 0)
        module = self.parents[layers[0]]
        # read by the `forward` of attention modules
        for name in ("heads", "kv_heads", "key_heads"):
            if self.heads and hasattr(module, name):
                setattr(module, name, max(1, getattr(module, name) // self.group.size))
        start = 0
        for layer in layers if segments else ():  # else a projection of the residual stream
            for parameter in (layer.weight, layer.bias):
                self.slice(parameter, 0, *segments, start=start, stop=start + len(layer.weight))
            start += len(layer.weight)

    def segments(self, consumer: Step | None, channels: int) -> list[Segment]:
        """The segments of the value h that `consumer` reads, which has this number of channels."""
        match consumer:
            case steps.Attend():
                H, G, gate = consumer.heads, consumer.kv_heads, 1 + consumer.gate
                D = channels // (H * gate + 2 * G)
                return [self.segment(H, gate * D), *[self.kv_segment(H, G, D)] * 2]
            case steps.CrossAttend():
                return [self.kv_segment(consumer.heads, consumer.heads, channels // consumer.heads)]
            case steps.DeltaRule():  # q, k, v; z; beta; decay
                H, G, V = consumer.heads, consumer.key_heads, len(consumer.norm.weight)
                K = (len(consumer.conv.weight) - H * V) // (2 * G)
                return [
                    *[self.kv_segment(H, G, K)] * 2,
                    *[self.segment(H, V)] * 2,
                    *[self.segment(H)] * 2,
                ]
            case steps.ShortConvolution():
                return [self.segment(channels // 3)] * 3
            case steps.Gate():
                return [self.segment(channels // 2)] * 2 + [
                    Segment(range(1), 1, 1)
                ] * consumer.sigmoid
            case steps.Add():
                return [self.segment(channels)]
        return []

    def segment(self, items: int, size: int = 1) -> Segment:
        return Segment(self.group.share(items), items, size)

    def kv_segment(self, heads: int, kv_heads: int, size: int = 1) -> Segment:
        """KV heads, replicated if they are fewer than the ranks. ValueError: the ranks cannot
        divide the heads.
        """

        def divides(ranks: int) -> bool:
            return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)

        if not divides(self.group.size):
            possible = ", ".join(str(number) for number in range(1, heads + 1) if divides(number))
            raise ValueError(
                f"{self.title}: {heads} heads and {kv_heads} KV heads cannot be split among "
                f"{self.group.size} processes: possible numbers are {possible}"
            )
        first = self.group.rank * kv_heads // self.group.size
        return Segment(range(first, first + max(1, kv_heads // self.group.size)), kv_heads, size)

    def divide_experts(self, step: steps.Experts) -> None:
        """Each rank has a share of the channels inside every expert. Channels with a common scale
        stay together.
        """
        if isinstance(step.down, ExpertMatrices):
            channels = self.segment(step.down.shape[2])
            for weight in (
                weight
                for matrices in step.gate_up
                if isinstance(matrices, ExpertMatrices)
                for weight in matrices.parameters()
            ):
                self.slice(weight, 0, channels)
            for weight in step.down.parameters():
                self.slice(weight, 1, channels)
            self.sum_outputs(self.parents[step.router], None)
            return
        [gate_up] = step.gate_up
        unit = BLOCK if isinstance(step.down, Packed) else 1
        inner = step.down.shape[1] // unit
        rows = self.segment(inner, 2 * unit)  # gate and up are interleaved
        if isinstance(gate_up, Packed) and isinstance(step.down, Packed):
            for name in ("blocks", "scales"):
                self.slice(getattr(gate_up, name), 1, rows)
                self.slice(getattr(step.down, name), 2, self.segment(inner))
        elif isinstance(gate_up, Tensor) and isinstance(step.down, Tensor):
            self.slice(gate_up, 2, rows)
            self.slice(step.down, 1, self.segment(inner))
        self.slice(step.gate_up_bias, 1, rows)
        self.sum_outputs(self.parents[step.router], step.down_bias)

    def slice(
        self,
        parameter: Tensor | None,
        dim: int,
        *segments: Segment,
        start: int = 0,
        stop: int = 2**63,
    ) -> None:
        """Select the channels of this rank in a parameter, which contains the channels from `start`
        to `stop`.
        """
        ranges, offset = [], -start
        for segment in segments:
            first, last = (
                offset + segment.size * end for end in (segment.share.start, segment.share.stop)
            )
            ranges.append(range(max(first, 0), min(last, stop - start)))
            offset += segment.size * segment.items
        if parameter is not None:
            self.slices[id(parameter)] = dim, [part for part in ranges if part] or [range(0)]

    def sum_outputs(self, module: object, bias: Tensor | None) -> None:
        """Add a module's outputs over the ranks; its bias is added on rank 0."""
        assert isinstance(module, nn.Module)
        module.register_forward_hook(lambda module, args, output: self.group.sum(output))
        if bias is not None and self.group.rank > 0:
            self.biases.add(id(bias))

    def replace(self, module: object, kind: type[nn.Module], **attributes: object) -> None:
        """Change a module's class; its parameters stay."""
        assert isinstance(module, nn.Module)
        module.__class__ = kind
        for name, value in {"group": self.group, **attributes}.items():
            setattr(module, name, value)


def shard(
    model: LanguageModel,
    tensors: Mapping[str, Tensor],
    move: Callable[[Tensor], Tensor],
    group: ProcessGroup,
) -> None:
    """Turn a model without weights into a rank's part of it, in place. All ranks must call it with
    the same token IDs.

    tensors: the weights by name; only the shard of this rank is read.    move: moves a tensor to
    its device and dtype.
    ValueError: see `ShardingPlan`.
    """
    plan = ShardingPlan(model, group)
    for name, parameter in model.state_dict(keep_vars=True).items():
        path, _, leaf = name.rpartition(".")
        parent = model.get_submodule(path)
        if id(parameter) in plan.biases:
            tensor = move(torch.zeros(parameter.shape, dtype=parameter.dtype))
        else:
            tensor = move(read_slices(tensors, name, *plan.slices.get(id(parameter), (0, []))))
        setattr(
            parent,
            leaf,
            nn.Parameter(tensor, requires_grad=False) if leaf in parent._parameters else tensor,
        )
    kind: type = type(model)
    model.__class__ = type(kind.__name__, (Sharded, kind), {"__module__": __name__})
    model.group, model.layout = group, plan.layout  # type: ignore[assignment]


def read_slices(
    tensors: Mapping[str, Tensor], name: str, dim: int, ranges: Sequence[range]
) -> Tensor:
    """Ranges of a tensor in a dimension, or all of it without ranges; a view of the mapped file
    where possible.
    """
    if not ranges:
        return tensors[name]
    if dim == 0 and isinstance(tensors, Mapped):
        return tensors.rows(name, ranges)
    parts = [tensors[name].narrow(dim, part.start, len(part)) for part in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
