"""Tensor parallelism: several processes compute as one model, each with its share of every large weight.

`Split` (inference/split.py) reads from a model's `steps` which part of each weight belongs to a process. `Run` computes
the steps with these parts: each process has its heads, inner numbers and experts, and a term of what a block adds to
the residual stream, which all have as a whole. There is one sum over the processes for each block, or for two that read
the same, one for the embedding, and the logits, which are brought together at the end.

models/steps.py documents the operations. Operations that cannot be split are refused by name.

Notation: that of the model files; H', G' heads of this process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minhub_py.export.torchscript import scaled
from minhub_py.inference.processes import Processes
from minhub_py.inference.split import Heads, Split
from minhub_py.models.base import ACTIVATIONS, EncoderDecoder, LanguageModel
from minhub_py.models.cache import EncoderCache, EncoderKeyValues, Layout, Past
from minhub_py.models.delta import gated_delta
from minhub_py.models.experts import gated_mlp, route, weight_of
from minhub_py.models.layers import merge_heads, split_heads, split_qkv
from minhub_py.models.rotary import Rotation
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

NOT_WHOLE = "a model that is split among processes cannot be saved or converted: load it without parallel="


def split_of(model: LanguageModel, rank: int, count: int) -> Split:
    """What of a model belongs to process `rank` of `count`. ValueError: see `Split`."""
    steps = [*(model.encoder_steps() if isinstance(model, EncoderDecoder) else ()), *model.steps()]
    return Split(model.config.TITLE, steps, model.cache_layout(), rank, count)


class ParallelModel(LanguageModel):
    """A model for inference whose weights are split among processes; all of them call it with the same ids.

    `generate`, `stream` and `score` take it as any other. It has no weights that could be saved or trained.
    """

    def __init__(
        self, model: LanguageModel, tensors: Mapping[str, Tensor], place: Callable[[Tensor], Tensor],
        processes: Processes,
    ) -> None:  # fmt: skip
        """model: without weights; it is changed.    tensors, place: see `Split.fill`.

        ValueError: see `split_of`.
        """
        super().__init__()
        self.config, self.processes = model.config, processes
        self.split = split_of(model, processes.rank, processes.count)
        self.split.fill(model, tensors, place)
        self.model = model
        *self.program, head = model.steps()
        assert isinstance(head, Logits)
        self.head = head
        self.encoder_program = list(model.encoder_steps()) if isinstance(model, EncoderDecoder) else []

    def body(self, idx: Tensor, past: Past) -> Tensor:
        return self.run(self.program, idx, past).h

    def run(self, steps: Sequence[Step], idx: Tensor, past: Past) -> "Run":
        """The values after some steps, which read ids (B, T)."""
        self.processes.agree(idx)
        run = Run(self, idx, past)
        for step in steps:
            run.step(step)
        return run

    def logits(self, x: Tensor) -> Tensor:
        return self.processes.side_by_side(logits_of(x, self.head), self.config.vocab_size)

    def cache_layout(self) -> Layout:
        return self.split.layout

    def steps(self) -> Iterator[Step]:
        raise ValueError(NOT_WHOLE)

    def state_dict(self, *args: Any, **keywords: Any) -> Any:  # type: ignore[override]
        """ValueError: no process has the whole weights."""
        raise ValueError(NOT_WHOLE)


class ParallelEncoderDecoder(ParallelModel, EncoderDecoder):
    """An encoder-decoder whose weights are split among processes."""

    def encode(self, idx: Tensor, past: Past | None = None) -> EncoderCache:
        encoder = self.run(self.encoder_program, idx, past or Past(idx)).encoder
        layers = [layer for layer, about in enumerate(self.split.layout) if isinstance(about, EncoderKeyValues)]
        return dict(zip(layers, encoder, strict=True))


class Run:
    """One call of a model: its steps one after the other, with this process's parts of the weights.

    h is the current value, (B, T, …). What is added to x stays a term of a sum over the processes until x is read.
    """

    def __init__(self, model: ParallelModel, idx: Tensor, past: Past) -> None:
        self.split, self.processes = model.split, model.processes
        self.idx, self.past = idx, past
        self.layer = -1
        self.h = self.gates = self.saved = self.known = torch.empty(0)
        self.heads: tuple[Tensor, Tensor, Tensor] | None = None  # q, k and v, after a `Rotate`
        self.term: Tensor | None = None
        self.encoder: list[tuple[Tensor, Tensor]] = []  # keys and values of the encoder, by layer of cross attention
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

    def add_term(self, term: Tensor) -> None:
        """Add what this process has of a sum over all to x. Two that stand between readings are one sum."""
        self.term = term if self.term is None else self.term + term

    def step(self, step: Step) -> None:
        """Compute a step."""
        match step:
            case Embed():
                self.embed(step)
            case AddPositions():
                rows = F.embedding(self.past.positions + step.first, step.positions.weight)
                self.x = self.h = self.h + rows
            case SaveResidual():
                self.saved = self.x
            case LoadResidual():
                self.h = self.x
            case Norm():
                self.h = step.layer(self.saved if step.saved else self.x)
                if step.to_residual:
                    self.x = self.h
            case Linear():
                outputs = [F.linear(self.h, layer.weight, layer.bias) for layer in step.layers]
                self.h = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
                if step.activation is not None:
                    self.h = ACTIVATIONS[step.activation](self.h)
            case Gate():
                gate, up = self.h.chunk(2, dim=2)
                self.h = ACTIVATIONS[step.activation](gate) * up
            case Rotate():
                self.rotate(step)
            case Attend():
                self.attend(step)
            case CrossAttend():
                self.layer += 1
                q = split_heads(self.h, len(self.split.heads(step.heads, step.heads).q))  # (B, H', T, D)
                self.h = merge_heads(self.past.cross_attend(self.layer, q, scale=step.scale))
            case CacheEncoder():
                mine = len(self.split.heads(step.heads, step.heads).q)
                k, v = (split_heads(layer(self.h), mine) for layer in step.layers)
                self.encoder.append((k, v))
            case DeltaRule():
                self.delta_rule(step)
            case Add():
                term = F.linear(self.h, step.layer.weight, step.layer.bias)
                if step.norm is not None:
                    self.x = self.x + step.norm(self.processes.sum(term))
                else:
                    self.add_term(term)
            case Experts():
                self.experts(step)
            case _:
                raise AssertionError(step)

    def embed(self, step: Embed) -> None:
        mine = self.split.vocabulary
        places = self.idx - mine.start
        elsewhere = (places < 0) | (places >= len(mine))
        rows = F.embedding(places.masked_fill(elsewhere, 0), step.tokens.weight)
        x = self.processes.sum(rows.masked_fill(elsewhere.unsqueeze(2), 0))  # one process has each id's row
        if step.scale is not None:
            x = scaled(x, step.scale)
        if step.positions is not None:
            x = x + F.embedding(self.past.positions, step.positions.weight)
        self.x = self.h = x

    def split_h(self, step: Rotate | Attend) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H', T, D), keys and values (B, G', T, D) of h."""
        mine = self.split.heads(step.heads, step.kv_heads)
        H, G = len(mine.q), len(mine.k)
        if step.gate:  # one after each head of q
            parts = split_heads(self.h, 2 * (H + G))  # (B, 2H' + 2G', T, D)
            self.gates = parts[:, 1 : 2 * H : 2]
            q, k, v = parts[:, 0 : 2 * H : 2], *parts[:, 2 * H :].chunk(2, dim=1)
            return q, k, v
        return split_qkv(self.h, H, G)

    def rotate(self, step: Rotate) -> None:
        mine = self.split.heads(step.heads, step.kv_heads)
        if step.all_heads:
            self.h = self.norm_all(mine, step)
        q, k, v = self.split_h(step)
        if not step.all_heads and step.q_norm is not None and step.k_norm is not None:
            q, k = step.q_norm(q), step.k_norm(k)
        q, k = Rotation(step.rope, self.past.positions, q.dtype, step.interleaved)(q, k)
        self.heads = q, k, v

    def norm_all(self, mine: Heads, step: Rotate) -> Tensor:
        """What one norm of all heads of q, and one of all of k, makes of h: their squares are in several processes."""
        heads, groups, q_norm, k_norm = step.heads, step.kv_heads, step.q_norm, step.k_norm
        assert q_norm is not None
        assert k_norm is not None
        q, k, v = self.h.split([q_norm.weight.numel(), *[k_norm.weight.numel()] * 2], dim=2)
        size, own = k.size(2) // len(mine.k), self.split.part(groups)  # a group may be in several processes
        counted = k[..., (own.start - mine.k.start) * size : (own.stop - mine.k.start) * size]
        squares = torch.stack([part.float().square().sum(dim=2) for part in (q, counted)], dim=2)  # (B, T, 2)
        means = self.processes.sum(squares) / torch.tensor([heads * size, groups * size], device=q.device)
        normed = []
        for part, norm, mean in zip((q, k), (q_norm, k_norm), means.unsqueeze(3).unbind(2), strict=True):
            normed.append(norm.weight * (part.float() * torch.rsqrt(mean + norm.eps)).to(part.dtype))
        return torch.cat((*normed, v), dim=2)

    def attend(self, step: Attend) -> None:
        mine = self.split.heads(step.heads, step.kv_heads)
        q, k, v = self.heads or self.split_h(step)
        self.heads = None
        if mine.uneven:
            k, v = k[:, mine.groups], v[:, mine.groups]  # (B, H', T, D)
        bias = step.bias
        if bias is not None:
            if self.bias is None or self.bias[0] is not bias:
                self.bias = bias, bias(self.past.positions, self.past.attended)
            bias = self.bias[1]
        if step.causal:
            self.layer += 1
        y = self.past.attend(
            self.layer, q, k, v, scale=step.scale, window=step.window, softcap=step.softcap, sinks=step.sinks,
            bias=bias, causal=step.causal, upcast=step.upcast,
        )  # fmt: skip
        self.h = merge_heads(y * self.gates.sigmoid() if step.gate else y)  # (B, T, H' * D)

    def delta_rule(self, step: DeltaRule) -> None:
        self.layer += 1
        mine, conv = self.split.heads(step.heads, step.key_heads), step.conv
        H, G, V, N = len(mine.q), len(mine.k), step.norm.weight.numel(), len(conv.weight)  # N channels of `conv`
        K, reach = (N - H * V) // (2 * G), conv.weight.size(2) - 1
        qkv, z, beta, decay = self.h.split([N, H * V, H, H], dim=2)
        B, T, _ = qkv.shape
        inputs, state = self.past.state(self.layer) or (
            qkv.new_zeros(B, reach, N),
            torch.zeros(B, H, K, V, device=qkv.device),
        )
        qkv = torch.cat((inputs.to(qkv.dtype), qkv), dim=1)  # (B, reach + T, N)
        inputs = qkv[:, T:]
        qkv = ACTIVATIONS[step.activation](F.conv1d(qkv.transpose(1, 2), conv.weight, groups=N).transpose(1, 2))
        if mine.uneven:  # a head of q and k for each of v
            q, k, v = qkv.split([G * K, G * K, H * V], dim=2)
            q, k = (part.unflatten(2, (G, K))[:, :, mine.groups].flatten(2) for part in (q, k))
            qkv, G = torch.cat((q, k, v), dim=2), H
        y, state = gated_delta(qkv, beta, decay, step.decay, step.bias, G, state)
        self.past.set_state(self.layer, (inputs, state))
        self.h = step.norm(y, z.unflatten(2, (H, V))).flatten(2)

    def experts(self, step: Experts) -> None:
        tokens = self.h.flatten(0, 1)  # (B * T, C)
        probs, chosen = route(tokens, step.router.weight, step.router.bias, step.top)
        y = torch.zeros_like(tokens)
        first = self.split.part(step.router.weight.size(0)).start
        for number in range(len(step.down_bias)):
            token, choice = (chosen == first + number).nonzero(as_tuple=True)  # (n,) each
            if len(token):
                gate_up, down = (weight_of(weight, number, y.dtype) for weight in (step.gate_up, step.down))
                biases = step.gate_up_bias[number], step.down_bias[number]
                output = gated_mlp(tokens[token], gate_up, biases[0], down, biases[1], step.alpha, step.limit)
                y = y.index_add(0, token, output * probs[token, choice].unsqueeze(1))
        self.add_term(y.view_as(self.h))


def logits_of(x: Tensor, step: Logits) -> Tensor:
    """Logits (B, T, V') of this process's rows of the vocabulary."""
    bias = getattr(step.layer, "bias", None) if step.bias is None else step.bias
    logits = F.linear(x * step.scale, step.layer.weight, bias)
    return logits if step.softcap is None else step.softcap * torch.tanh(logits / step.softcap)
