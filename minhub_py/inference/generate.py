"""Generates and scores sequences: `generate`, `stream` and `score`. batch.py describes randomness
and determinism.

rows.py describes long sequences.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.inference.arguments import check_integer, decoder_of
from minhub_py.inference.batch import Batch
from minhub_py.inference.beam_search import search_batch, search_of
from minhub_py.inference.native.library import MAX_TOKENS
from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.prompts import batch_length, check_ids, check_prompts, check_targets
from minhub_py.inference.sampling import Sampling, StopCriteria, generators
from minhub_py.inference.speculative import DraftModel, DraftSource, PredictionHead
from minhub_py.models.base import LanguageModel
from minhub_py.system.habits import with_hints

logger = logging.getLogger(__name__)


@with_hints
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int = 64,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    min_p: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | Sequence[int] | None = None,
    eos_id: int | Sequence[int] | Literal["auto"] | None = "auto",
    stop: str | Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    speculate: int = 0,
    draft: object = None,
    beams: int | None = None,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    no_repeat_ngram_size: int = 0,
) -> list[list[int]]:
    """Generate new tokens for each prompt.

    A prompt gets the same tokens in a batch and alone. For an encoder-decoder, such as T5, a prompt
    is the encoder's input, and the new tokens are the decoder's output.

    Args:
        model: a model of this package. It is not changed; dropout is off even in training mode.
        prompts: lists of token IDs of any length, at least one ID each.
        max_new_tokens: maximum number of new tokens per prompt.
        temperature: divides the logits before sampling. 0 selects the most likely token (greedy
            decoding).
        top_k: sample from the k most likely tokens.
        top_p: sample from the smallest set of most likely tokens whose probabilities sum to at
            least p.
        repetition_penalty: divides positive logits, and multiplies negative logits, of tokens in
            the prompt and output.
        min_p: excludes tokens that are less likely than min_p times the most likely token.
        presence_penalty: subtracted from the logits of tokens in the output, -2 to 2, as in the
            OpenAI API.
        frequency_penalty: subtracted from a token's logit for each time that the output contains
            it, -2 to 2.
        logit_bias: numbers that are added to the logits of token IDs, -100 to 100.
        seed: one seed for all prompts (equal prompts then get equal tokens) or a list with one seed
            per prompt. None draws seeds from PyTorch's default generator.
        eos_id: a token ID or a list of IDs that end the output, which includes them. "auto" uses
            the model's `eos_token_id`; None disables them.
        stop: a string or a list of strings. The output ends with the token that completes one of
            them. Requires `tokenizer`.
        tokenizer: a `tokenizers.Tokenizer`.
        speculate: maximum number of draft tokens per step (speculative decoding by prompt lookup).
            The output does not change, and repetitive text is generated faster. Drafts adapt to the
            text of each prompt and to the number of prompts. Has no effect
            without the native decoder (on a GPU, for a modified model, or without a C compiler) and
            for an LSTM. At most 8 for models with recurrent layers, whose cache has one state more
            for each draft token.
        draft: a smaller model with the same tokenizer, which proposes the draft tokens instead of
            prompt lookup; `speculate` is then 8 by default. "mtp" uses the model's head for
            multi-token prediction, if it was loaded with `from_pretrained(…, mtp=True)`;
            `speculate` is then 3 by default. The output does not change. A `speculative.DraftModel`
            or `speculative.PredictionHead` also counts the accepted tokens.
        beams: use beam search with this number of beams, 1 to 64, instead of sampling;
            `beam_search` describes it, and also returns scores and further sequences. temperature,
            top_k, top_p and min_p have no effect on it and must not be set.
        length_penalty: setting of beam search, see `beam_search`.
        early_stopping: setting of beam search.
        no_repeat_ngram_size: setting of beam search.

    Returns:
        The new token IDs of each prompt, without the prompt.

    Raises:
        ValueError: an empty prompt, a token ID outside the vocabulary, a setting with a wrong type
            or out of range, a model of another package, or logits that are NaN or infinite.
    """
    model = decoder_of(model, "generate()")
    texts = check_prompts(model, prompts)
    sampling = Sampling(
        temperature,
        top_k,
        top_p,
        repetition_penalty,
        min_p,
        presence_penalty,
        frequency_penalty,
        logit_bias,
    )
    criteria = StopCriteria.of(model, eos_id, stop, tokenizer)
    search = search_of(
        sampling, beams, length_penalty, early_stopping, no_repeat_ngram_size, speculate, draft
    )
    if search is not None:
        searched = search_batch(model, texts, max_new_tokens, search, sampling, criteria)
        return [hypotheses[0].ids if hypotheses else [] for hypotheses in searched]
    results: list[list[int]] = [[] for _ in texts]
    for row, id in stream_batch(
        model, texts, max_new_tokens, sampling, seed, criteria, speculate, draft
    ):
        results[row].append(id)
    return results


@with_hints
def stream(
    model: LanguageModel,
    prompt: Sequence[int],
    max_new_tokens: int = 64,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    min_p: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    eos_id: int | Sequence[int] | Literal["auto"] | None = "auto",
    stop: str | Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    speculate: int = 0,
    draft: object = None,
) -> Iterator[int]:
    """Generate new tokens for one prompt and yield each token ID as soon as it is available.

    `prompt` is a list of token IDs and `seed` an integer or None; see `generate` for the other
    arguments. Errors in arguments are raised by the call, not by the first token.
    """
    model = decoder_of(model, "stream()")
    text = check_ids(model, prompt, None)
    sampling = Sampling(
        temperature,
        top_k,
        top_p,
        repetition_penalty,
        min_p,
        presence_penalty,
        frequency_penalty,
        logit_bias,
    )
    criteria = StopCriteria.of(model, eos_id, stop, tokenizer)
    return (
        id
        for _, id in stream_batch(
            model, [text], max_new_tokens, sampling, seed, criteria, speculate, draft
        )
    )


def score(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    targets: Sequence[Sequence[int]] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[Tensor]:
    """Compute the log-probability of each token of a prompt after the first, or of each token of a
    target.

    A prompt's perplexity is `(-scores.mean()).exp()`.

    Args:
        model: a model of this package.
        prompts: lists of token IDs, at least one ID each.
        targets: a list of token IDs for each prompt, at least one ID each. Required for an
            encoder-decoder.
        progress: called as `progress(done, total)` with numbers of tokens.

    Returns:
        A 1-D float32 tensor on the CPU for each prompt, in nats. Without targets it has one element
        less than the prompt. With targets it has the log-probability of each target token given the
        prompt and the preceding tokens.

    Raises:
        ValueError: an empty prompt or target, a token ID outside the vocabulary, a number of
            targets that differs from the number of prompts, an encoder-decoder without targets, a
            model of another package, or logits that are NaN or infinite.
    """
    model = decoder_of(model, "score()")
    texts = check_prompts(model, prompts)
    if targets is not None:
        pairs = list(zip(texts, check_targets(model, targets, len(texts)), strict=True))
    elif model.encoder_decoder:
        raise ValueError(
            "an encoder-decoder predicts its output, not the prompt: pass the output as score(…,"
            " targets=…)"
        )
    else:
        pairs = [(text[:1], text[1:]) for text in texts]
    runner = runner_of(model)
    results = [torch.tensor([])] * len(pairs)
    lengths = [batch_length(model, text, len(target)) if target else 0 for text, target in pairs]
    scored, total = 0, sum(len(target) for _, target in pairs)
    for group in length_groups(lengths):
        batch = Batch(model, len(group), max(lengths[i] for i in group), runner=runner)
        logprobs: dict[int, list[float | None]] = {
            batch.admit(text, 0, targets=target, generated=int(targets is None)): []
            for text, target in (pairs[i] for i in group)
        }
        while len(batch):
            events = batch.step()
            for event in events:
                logprobs[event.row].append(event.logprob)
            scored += len(events)
            if progress is not None:
                progress(scored, total)
        for i, values in zip(group, logprobs.values(), strict=True):
            results[i] = torch.tensor(values)
        del batch  # frees the KV cache before the next allocation
    return results


def length_groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of positive lengths in ascending order, in groups that are padded to at most
    MAX_TOKENS tokens.
    """
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[i] > MAX_TOKENS:
            yield group
            group = []
        if lengths[i]:
            group.append(i)
    if group:
        yield group


def stream_batch(
    model: LanguageModel,
    texts: list[list[int]],
    max_new_tokens: int,
    sampling: Sampling,
    seed: int | Sequence[int] | None,
    criteria: StopCriteria,
    speculate: int = 0,
    draft: object = None,
    limits: Sequence[int] | None = None,
) -> Iterator[tuple[int, int]]:
    """Generate for prompts that `check_prompts` returns: an iterator of (index of the prompt, new
    token ID).

    limits: the maximum number of new tokens of each prompt, at most max_new_tokens.

    ValueError, at the call: a number out of range, or another number of seeds than of prompts.
    """
    max_new_tokens = check_integer("max_new_tokens", max_new_tokens, 0)
    sampling.check_vocabulary(model.output_size)
    speculate = check_integer("speculate", speculate, 0, " (no drafts)")
    drafts = drafts_of(model, draft)
    speculate = speculate if drafts is None else speculate or drafts.MOST
    random = generators(len(texts), seed)
    limits = [max_new_tokens] * len(texts) if limits is None else limits

    def run() -> Iterator[tuple[int, int]]:
        if not texts or max_new_tokens == 0:
            return
        longest = max(
            batch_length(model, text, limit) for text, limit in zip(texts, limits, strict=True)
        )
        batch = Batch(model, len(texts), longest, drafts=speculate)
        indices = {}
        for i, (text, limit, generator) in enumerate(zip(texts, limits, random, strict=True)):
            row = batch.admit(
                text,
                limit,
                sampling=sampling,
                generator=generator,
                stop=criteria,
                speculate=speculate,
                draft=drafts,
            )
            indices[row] = i
        while len(batch):
            for event in batch.step():
                yield indices[event.row], event.id
        if drafts is not None:
            logger.info("%d of %d draft tokens accepted", drafts.accepted, drafts.proposed)

    return run()


def drafts_of(model: LanguageModel, draft: object) -> DraftSource | None:
    """The source of draft tokens for the argument `draft`. ValueError: it cannot make drafts for
    the model.
    """
    if isinstance(draft, PredictionHead) and draft.model is not model:
        raise ValueError(
            "the PredictionHead is of another model: create PredictionHead(model) or pass"
            " draft='mtp'"
        )
    if draft is None or isinstance(draft, DraftSource):
        return draft
    return PredictionHead(model) if draft == "mtp" else DraftModel(decoder_of(draft, "draft="))
