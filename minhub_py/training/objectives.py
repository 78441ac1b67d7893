"""A step's loss for data with examples: completions, preference pairs, labels, and masked
words.

Sources
    Rafailov et al. (2023), "Direct Preference Optimization".
    Devlin et al. (2019), "BERT", section 3.1, for masked words.

Rows with `keep` have another loss: the Kullback-Leibler divergence of each target's distribution
from the base model's distribution, times `keep_weight`. It is 0 at the start, and preserves answers
that the other rows would change.

A step's loss is the mean over all of its targets, for any number of micro-batches. The head is
computed for the targets only, in slices of `HEAD_ROWS`, so that the logits of a batch never exist
at the same time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder
from minhub_py.models.lora import Invocation, starting_at
from minhub_py.models.steps import Logits
from minhub_py.system.confusion import confusion_of, f1_of
from minhub_py.system.spelling import setting
from minhub_py.training.checkpoint import HeldOutMeasures
from minhub_py.training.contrastive import embeddings, margin_loss, ranking_loss
from minhub_py.training.examples import EMBEDDING, ExampleCorpus, Examples
from minhub_py.training.memory import groups_of, recomputed
from minhub_py.training.optimizer import random_seed
from minhub_py.training.packing import (
    hidden_after,
    hidden_of_texts,
    supports_packing,
    supports_skipping,
)
from minhub_py.training.pairs import hidden_of_pairs
from minhub_py.training.settings import Settings

HEAD_ROWS = 64
MASKED = 0.15  # fraction of a text's tokens


@dataclass(frozen=True)
class ExampleBatch:
    """Padded sequences. weights: of each token as a target.    scale: 1 / the number of targets of
    the step.

    mask: False for padding.    labels: of the examples, or of the tokens for masked words.    keep:
    of the examples.    options, temperatures: of decisions, see `Examples`.
    adapter_starts: the first position of each sequence that an activated adapter changes; None for
    other models.    sources: the lengths of the prompts, for an encoder-decoder.
    """

    idx: Tensor
    weights: Tensor
    mask: Tensor
    labels: Tensor | None
    keep: Tensor
    targets: float
    adapter_starts: list[int] | None = None
    scale: float = 1.0
    options: Tensor | None = None
    temperatures: Tensor | None = None
    sources: list[int] | None = None

    def to(self, device: torch.device) -> "ExampleBatch":
        """The batch on a device."""
        labels, options, temperatures = (
            None if tensor is None else tensor.to(device)
            for tensor in (self.labels, self.options, self.temperatures)
        )
        return ExampleBatch(
            self.idx.to(device),
            self.weights.to(device),
            self.mask.to(device),
            labels,
            self.keep.to(device),
            self.targets,
            self.adapter_starts,
            self.scale,
            options,
            temperatures,
            self.sources,
        )


class ExampleTask:
    """The batches and the loss of a run on examples.

    objective: see examples.py.    beta: of DPO.    keep_weight: of rows with `keep`.
    mask_id, vocab_size: for masked words.    packed: whether texts are computed without padding
    (packing.py).
    invocation: of an activated adapter.    skipped: whether the tokens before it need no gradients
    (packing.py).    scale, margin: of pairs and triplets (contrastive.py).    pairs: whether the model
    is an encoder-decoder (pairs.py).
    """

    def __init__(
        self,
        objective: str,
        train: Examples,
        held_out: Examples,
        *,
        batch: int,
        micro_batch: int,
        seed: int,
        max_tokens: int,
        beta: float = 0.1,
        keep_weight: float = 1.0,
        classes: int = 0,
        mask_id: int | None = None,
        vocab_size: int = 0,
        packed: bool = False,
        invocation: Invocation | None = None,
        skipped: bool = False,
        scale: float = 20.0,
        margin: float | None = None,
        pairs: bool = False,
    ) -> None:
        self.objective, self.train, self.held_out = objective, train, held_out
        self.batch, self.micro_batch, self.seed, self.max_tokens = (
            batch,
            micro_batch,
            seed,
            max_tokens,
        )
        self.beta, self.keep_weight = beta, keep_weight
        self.classes, self.mask_id, self.vocab_size = classes, mask_id, vocab_size
        self.packed, self.invocation, self.skipped = packed, invocation, skipped
        self.scale, self.margin = scale, margin
        self.pairs = pairs

    def numbers(self, step: int) -> list[int]:
        """The examples of a step: each epoch is another permutation, which depends on the seed and
        its number only.
        """
        count = len(self.train)
        first = step * self.batch
        epochs = {number // count for number in range(first, first + self.batch)}
        orders = {
            epoch: np.random.Generator(np.random.PCG64([self.seed, 2, epoch])).permutation(count)
            for epoch in epochs
        }
        return [
            int(orders[number // count][number % count])
            for number in range(first, first + self.batch)
        ]

    def step_batches(self, step: int, shard: slice) -> list[ExampleBatch]:
        """A step's micro-batches. Examples of similar lengths share one, which needs less
        padding.
        """
        numbers = sorted(self.numbers(step)[shard], key=self.train.length)
        batches = self.batches(self.train, numbers, step)
        scale = 1 / max(sum(batch.targets for batch in batches), 1.0)
        return [replace(batch, scale=scale) for batch in batches]

    def evaluation_batches(self) -> list[list[int]]:
        """The examples of each batch of an evaluation, up to `max_tokens` tokens in total."""
        numbers: list[int] = []
        total = 0
        for number in range(len(self.held_out)):
            total += self.held_out.length(number)
            if numbers and total > self.max_tokens:
                break
            numbers.append(number)
        numbers.sort(key=self.held_out.length)
        return [
            numbers[first : first + self.micro_batch]
            for first in range(0, len(numbers), self.micro_batch)
        ]

    def held_out_batch(self, numbers: Sequence[int]) -> ExampleBatch:
        """A batch of an evaluation."""
        [batch] = self.batches(self.held_out, numbers, 0)
        return batch

    def batches(self, examples: Examples, numbers: Sequence[int], step: int) -> list[ExampleBatch]:
        """Micro-batches of examples in the order of their lengths, as many as for `micro_batch`
        examples each.
        """
        parts = groups_of(
            [examples.length(number) for number in numbers], -(-len(numbers) // self.micro_batch)
        )
        return [self.collate(examples, numbers[part], [step, part.start]) for part in parts]

    def collate(self, examples: Examples, numbers: Sequence[int], seeds: list[int]) -> ExampleBatch:
        """Pad examples at their end."""
        sequences = examples.sequences(numbers)
        length = max(len(ids) for ids, _ in sequences)
        idx = torch.zeros(len(sequences), length, dtype=torch.int64)
        weights, mask = (
            torch.zeros(len(sequences), length),
            torch.zeros(len(sequences), length, dtype=torch.bool),
        )
        for row, (ids, weight) in enumerate(sequences):
            idx[row, : len(ids)], weights[row, : len(ids)], mask[row, : len(ids)] = (
                ids,
                weight,
                True,
            )
        labels = None if examples.labels is None else examples.labels[list(numbers)]
        targets = examples.weight(numbers)
        if self.objective == "masked":
            idx, labels, weights = self.mask_words(idx, weights, seeds)
            targets = float(weights.sum())
        starts = None
        # a reply that contains the invocation does not move the start
        if self.invocation is not None:
            starts = [
                self.invocation.start(ids[: int(weight.argmax())].tolist())
                for ids, weight in sequences
            ]
        options, temperatures = (
            None if tensor is None else tensor[list(numbers)]
            for tensor in (examples.options, examples.temperatures)
        )
        sources = (weights > 0).int().argmax(dim=1).tolist() if self.pairs else None
        return ExampleBatch(
            idx,
            weights,
            mask,
            labels,
            examples.keep[list(numbers)],
            targets,
            starts,
            1.0,
            options,
            temperatures,
            sources,
        )

    def mask_words(
        self, idx: Tensor, weights: Tensor, seeds: list[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Masked tokens: 80 % are the mask token, 10 % a random token, 10 % unchanged. Returns also
        the originals.
        """
        assert self.mask_id is not None
        generator = torch.Generator().manual_seed(random_seed(self.seed, 3, *seeds))
        scores = torch.rand(idx.shape, generator=generator).masked_fill(weights == 0, 2.0)
        chosen = (scores < MASKED) | (scores == scores.amin(dim=1, keepdim=True)) & (weights > 0)
        kind = torch.rand(idx.shape, generator=generator)
        random = torch.randint(self.vocab_size, idx.shape, generator=generator)
        changed = torch.where(kind < 0.8, self.mask_id, torch.where(kind < 0.9, random, idx))
        return torch.where(chosen, changed, idx), idx, chosen.float()

    def loss(
        self,
        model: LanguageModel,
        batch: ExampleBatch,
        scored: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor:
        """The sum of the losses of a batch's targets, float32. units.py defines their unit.

        scored: receives the scores (B, classes), (B, 1) for regression, and labels (B,) of a batch
        with labels.
        """
        if self.objective == "preference":
            return self.preference_loss(model, batch)
        if self.objective == "labels":
            scores = model(batch.idx, batch.mask).float()
            assert batch.labels is not None
            if scored is not None:
                scored.append((scores, batch.labels))
            if self.classes:
                return F.cross_entropy(scores, batch.labels.long(), reduction="sum")
            return F.mse_loss(scores[:, 0], batch.labels.float(), reduction="sum")
        if self.objective == "decision":
            scores = self.decision_scores(model, batch)
            assert batch.labels is not None
            if scored is not None:
                scored.append((scores, batch.labels))
            return F.cross_entropy(scores, batch.labels.long(), reduction="sum")
        if self.objective in EMBEDDING:
            vectors = embeddings(model, batch.idx, batch.mask)
            texts = vectors.view(-1, self.train.per_example, vectors.size(1))
            anchors, *candidates = texts.unbind(dim=1)
            if self.margin is not None:
                return margin_loss(anchors, candidates[0], candidates[1], self.margin)
            return ranking_loss(anchors, candidates, self.scale)
        if self.objective == "masked":
            assert batch.labels is not None
            encoder = cast("Encoder", model)
            hidden = encoder.hidden_states(batch.idx, batch.mask)
            chosen = batch.weights > 0
            return -token_logprobs(encoder.head_of, hidden[chosen], batch.labels[chosen]).sum()
        importance = torch.where(batch.keep, self.keep_weight, 1.0).unsqueeze(1)
        return -(self.logprobs(model, batch) * batch.weights[:, 1:] * importance).sum()

    def decision_scores(self, model: LanguageModel, batch: ExampleBatch) -> Tensor:
        """The scores (B, K) of the options, divided by the temperature; -inf for options that a
        question lacks.
        """
        assert batch.options is not None
        assert batch.temperatures is not None
        hidden = self.hidden(model, batch)
        last = hidden[batch.weights[:, 1:] > 0]  # (B, C)
        logits = torch.cat(
            [model.logits(rows.unsqueeze(0))[0].float() for rows in last.split(HEAD_ROWS)]
        )
        scores = logits.gather(1, batch.options.clamp(min=0)) / batch.temperatures.unsqueeze(1)
        return scores.masked_fill(batch.options < 0, -math.inf)

    def measures(self, scored: Sequence[tuple[Tensor, Tensor]]) -> HeldOutMeasures:
        """Accuracy and macro F1, or R² of a regression, of the examples that `loss` has scored."""
        if not scored:
            return {}
        scores, labels = (
            torch.cat(parts).cpu().double().numpy() for parts in zip(*scored, strict=True)
        )
        if self.objective == "decision":
            return {"accuracy": float((scores.argmax(axis=1) == labels).mean())}
        if not self.classes:
            total = ((labels - labels.mean()) ** 2).sum()
            return {
                "r_squared": (
                    float(1 - ((labels - scores[:, 0]) ** 2).sum() / total) if total else math.nan
                )
            }
        pair = np.stack([labels.astype(np.int64), scores.argmax(axis=1)])
        [f1] = f1_of(confusion_of(pair, self.classes, np.ones((1, len(labels)))))
        return {"accuracy": float((pair[0] == pair[1]).mean()), "f1_macro": float(np.nanmean(f1))}

    def logprobs(self, model: LanguageModel, batch: ExampleBatch) -> Tensor:
        """Each target's log-probability after the first token, (B, T - 1); 0 for other tokens.

        Of rows to keep: minus the divergence of the target's distribution from the reference's.
        """
        hidden = self.hidden(model, batch)
        chosen = batch.weights[:, 1:] > 0
        head = next(step.layer for step in model.steps() if isinstance(step, Logits))
        assert isinstance(head, nn.Module)
        frozen = model.base is not None and not any(
            parameter.requires_grad for parameter in head.parameters()
        )
        result = torch.zeros(chosen.shape, device=hidden.device)
        keep = batch.keep
        if self.objective != "preference" and keep.any():
            kept_targets, chosen = chosen & keep.unsqueeze(1), chosen & ~keep.unsqueeze(1)
            with torch.no_grad():
                assert model.base is not None
                reference = self.hidden(model.base, batch, keep)[kept_targets[keep]]
            result = result.masked_scatter(
                kept_targets, token_logprobs(model.logits, hidden[kept_targets], reference, frozen)
            )
        return result.masked_scatter(
            chosen, token_logprobs(model.logits, hidden[chosen], batch.idx[:, 1:][chosen], frozen)
        )

    def hidden(
        self, model: LanguageModel, batch: ExampleBatch, rows: Tensor | None = None
    ) -> Tensor:
        """The input (rows, T - 1, C) of the head, for all tokens of each row but the last; packed,
        padding is 0.

        rows: (B,), True for the rows to compute; default: all. If `skipped`, the result before an
        activated adapter's start is 0.
        """
        idx, mask, sources = batch.idx, batch.mask, batch.sources
        if rows is not None:
            idx, mask = idx[rows], mask[rows]
        if sources is not None:
            if rows is not None:
                chosen = zip(sources, rows.tolist(), strict=True)
                sources = [source for source, used in chosen if used]
            return hidden_of_pairs(model, idx, mask, sources)
        # the base has no adapter
        starts = None if model.base is None else batch.adapter_starts
        lengths = (mask.sum(dim=1) - 1).clamp(min=1).tolist()
        idx = idx[:, :-1]
        if self.skipped and starts is not None and model.invocation is not None:
            return hidden_after(model, idx, lengths, starts)
        with starting_at(model, starts):
            if not self.packed or min(lengths) == idx.size(1):
                return model.hidden(idx)
            hidden = hidden_of_texts(
                model, [row[:length] for row, length in zip(idx, lengths, strict=True)]
            )
            return F.pad(hidden, (0, 0, 0, idx.size(1) - hidden.size(1)))

    def preference_loss(self, model: LanguageModel, batch: ExampleBatch) -> Tensor:
        """DPO: -log σ(β ((log π(c) - log π_ref(c)) - (log π(r) - log π_ref(r)))); the reference is
        the base.
        """
        policy = self.logprobs(model, batch).sum(dim=1).view(-1, 2)
        with torch.no_grad():
            assert model.base is not None
            reference = self.logprobs(model.base, batch).sum(dim=1).view(-1, 2)
        margin = (policy - reference)[:, 0] - (policy - reference)[:, 1]
        return -F.logsigmoid(self.beta * margin).sum()


class FrozenHead(torch.autograd.Function):
    """`token_logprobs` for a head that is not trained. The forward pass computes the gradient of
    each hidden state.

    A log-probability depends on its own hidden state only, so that the backward pass is one
    multiplication.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor]
    ) -> Tensor:
        values, gradients = [], []
        for rows, ids in zip(hidden.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True):
            with torch.enable_grad():
                leaf = rows.detach().requires_grad_()
                logprobs = slice_logprobs(head, leaf, ids)
                [gradient] = torch.autograd.grad(logprobs.sum(), leaf)
            values.append(logprobs.detach())
            gradients.append(gradient)
        ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        [saved] = ctx.saved_tensors
        return gradients[0].unsqueeze(1) * saved, None, None


def token_logprobs(
    head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, frozen: bool = False
) -> Tensor:
    """The log-probability of each target (N,) from hidden states (N, C), with the head in slices.

    targets: token IDs (N,); or hidden states of a reference (N, C), for minus the divergence from
    its distributions.
    frozen: the head is not trained.
    """
    if frozen and len(hidden) and torch.is_grad_enabled() and hidden.requires_grad:
        result: Tensor = FrozenHead.apply(hidden, targets, head)  # type: ignore[no-untyped-call]
        return result
    parts = []
    for rows, ids in zip(hidden.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True):
        if torch.is_grad_enabled():
            parts.append(recomputed(slice_logprobs, head, rows, ids))
        else:
            parts.append(slice_logprobs(head, rows, ids))
    return torch.cat(parts) if parts else hidden.new_zeros(0)


def slice_logprobs(head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor) -> Tensor:
    """`token_logprobs` of one slice."""
    logits = head(hidden.unsqueeze(0))[0].float()
    if not targets.is_floating_point():
        return -F.cross_entropy(logits, targets, reduction="none")
    with torch.no_grad():
        reference = head(targets.unsqueeze(0))[0].float().log_softmax(dim=-1)
    return -F.kl_div(logits.log_softmax(dim=-1), reference, reduction="none", log_target=True).sum(
        dim=-1
    )


def example_task(
    settings: Settings,
    corpus: ExampleCorpus,
    tokenizer: Tokenizer,
    model: LanguageModel,
    micro_batch: int,
) -> ExampleTask:
    """The batches and the loss of a run. ValueError: the objective does not fit the model."""
    objective, mask_id = corpus.objective, None
    if objective == "masked":
        mask_id = mask_token(tokenizer)
        if getattr(model.config, "head", None) != "masked_lm":
            raise ValueError(
                f"{settings.start} has no head for masked words: use a …ForMaskedLM model"
            )
    if objective == "preference" and model.base is None:
        raise ValueError(
            f"preference pairs need {setting('lora', 16)}: the model without its adapter is the"
            " reference"
        )
    if model.base is None and bool(corpus.train.keep.any() or corpus.held_out.keep.any()):
        raise ValueError(
            f"keep needs {setting('lora', 16)}: the model without its adapter is the reference"
        )
    if model.encoder_decoder and objective != "completion":
        raise ValueError(
            f"{settings.start} is an encoder-decoder: it needs rows with prompt and completion"
        )
    return ExampleTask(
        objective,
        corpus.train,
        corpus.held_out,
        batch=settings.batch,
        micro_batch=micro_batch,
        seed=settings.seed,
        max_tokens=settings.evaluate_tokens,
        beta=settings.beta,
        keep_weight=settings.keep_weight,
        classes=len(corpus.labels),
        mask_id=mask_id,
        vocab_size=model.config.vocab_size,
        packed=supports_packing(model),
        invocation=model.invocation,
        skipped=not settings.checkpointing and supports_skipping(model),
        scale=settings.scale,
        margin=settings.margin,
        pairs=model.encoder_decoder,
    )


def mask_token(tokenizer: Tokenizer) -> int:
    """The ID of the mask token. ValueError: the tokenizer has none."""
    for token in ("[MASK]", "<mask>"):
        if (token_id := tokenizer.token_to_id(token)) is not None:
            return int(token_id)
    raise ValueError("the tokenizer has no mask token: masked words need an encoder")
