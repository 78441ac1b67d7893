"""Tensor parallelism: several processes compute as one model, each with its share of every large weight.

`Split` (inference/split.py) reads from a model's `steps` which part of each weight belongs to a process. `Run` computes
the steps with these parts: each process has its heads, inner numbers and experts, and a term of what a block adds to
the residual stream, which all have as a whole. There is one sum over the processes for each block, or for two that read
the same, one for the embedding, and the logits, which are brought together at the end.

No family is named here: inference/compiled.py says what the operations mean. What `Run` lacks is refused by name.

Notation: that of the model files; H', G' heads of this process.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minhub_py.inference.cache import Layout, Memory, Source, Span
from minhub_py.inference.processes import Processes
from minhub_py.inference.split import Heads, Split
from minhub_py.models.base import ACTIVATIONS, EncoderDecoder, LanguageModel, Step
from minhub_py.models.delta import delta_rule
from minhub_py.models.packed import Packed
from minhub_py.torchscript import rms_norm, rotate, scaled

NOT_WHOLE = "a model that is split among processes cannot be saved or converted: load it without parallel="


def split_of(model: LanguageModel, rank: int, count: int) -> Split:
    """What of a model belongs to process `rank` of `count`.

    ValueError: an operation that `Run` lacks, or fewer heads than processes.
    """
    steps = [*(model.encoder_steps() if isinstance(model, EncoderDecoder) else ()), *model.steps()]
    for operation, keywords in steps:
        work = logits_of if operation == "logits" else getattr(Run, operation, None)
        known = inspect.signature(work).parameters if work else keywords
        given = [name for name, value in keywords.items() if value is not None and value is not False]
        unknown = [name for name in given if name not in known]
        if not work or unknown:
            raise ValueError(
                f"{model.config.TITLE}: {' with '.join((operation, *unknown[:1]))} cannot be split among processes; "
                "load this model in one, without parallel=, --tensor-parallel or torchrun"
            )
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
        return self.processes.side_by_side(logits_of(x, **self.head), self.config.vocab_size)

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

    h is the current value, (B, T, …). What is added to x stays a term of a sum over the processes until x is read.
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

    def add_term(self, term: Tensor) -> None:
        """Add what this process has of a sum over all to x. Two that stand between readings are one sum."""
        self.term = term if self.term is None else self.term + term

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
            self.add_term(term)

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
        self.add_term(y.view_as(self.h))


def logits_of(
    x: Tensor, layer: Any, bias: Tensor | None = None, softcap: float | None = None, scale: float = 1.0
) -> Tensor:
    """Logits (B, T, V') of this process's rows of the vocabulary."""
    mine = F.linear(x * scale, layer.weight, getattr(layer, "bias", None) if bias is None else bias)
    return mine if softcap is None else softcap * torch.tanh(mine / softcap)


def expert_of(weights: Tensor | Packed, number: int, dtype: torch.dtype) -> Tensor:
    """The weight (in, out) of an expert."""
    return weights.expert(number, dtype) if isinstance(weights, Packed) else weights[number]
