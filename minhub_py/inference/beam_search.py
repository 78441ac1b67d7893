"""Beam search for prompts: `beam_search`. beams.py describes the search."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tokenizers import Tokenizer

from minhub_py.inference.arguments import check_integer, decoder_of
from minhub_py.inference.batch import Batch
from minhub_py.inference.beams import BeamSearch, Hypothesis
from minhub_py.inference.limits import check_beams
from minhub_py.inference.prompts import batch_length, check_prompts
from minhub_py.inference.sampling import Sampling, StopCriteria
from minhub_py.inference.token_limits import TokenLimits
from minhub_py.models.base import LanguageModel
from minhub_py.system.habits import with_hints
from minhub_py.system.spelling import SettingError, setting


@with_hints
def beam_search(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int = 64,
    *,
    beams: int = 4,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    no_repeat_ngram_size: int = 0,
    min_new_tokens: int = 0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    eos_id: int | Sequence[int] | Literal["auto"] | None = "auto",
    stop: str | Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
) -> list[list[Hypothesis]]:
    """Search for the most likely sequences of new tokens after each prompt, with scores.

    A step extends `beams` sequences by each token and continues the best of them; complete ones
    are ranked by their scores. Sequences and scores equal transformers. A prompt gets the
    same result in a batch and alone.

        for found in beam_search(model, [ids], beams=4)[0]:
            print(found.score, tokenizer.decode(found.ids))

    Args:
        model: a model of this package.
        prompts: lists of token IDs of any length, at least one ID each.
        max_new_tokens: maximum number of new tokens per prompt.
        beams: number of sequences that a step continues, 1 to 64. 1 is greedy decoding.
        length_penalty: a score is the sum of the log-probabilities divided by the number of new
            tokens to this power, -10 to 10. Values above 0 favor longer sequences, 0 has no effect.
        early_stopping: when the search ends, after `beams` sequences are complete: True at once;
            False if the best incomplete one, at its present length, has a lower score than all of
            them; "never" if no longer sequence can have a higher one.
        no_repeat_ngram_size: sequences of this number of tokens occur at most once; 0 has no
            effect. The prompt counts, except for an encoder-decoder.
        min_new_tokens: number of new tokens before an end token can occur.
        repetition_penalty: as for `generate`. This and the next three arguments change
            log-probabilities, and with them the scores.
        presence_penalty: as for `generate`.
        frequency_penalty: as for `generate`.
        logit_bias: as for `generate`.
        eos_id: as for `generate`.
        stop: as for `generate`.
        tokenizer: as for `generate`.

    Returns:
        For each prompt, at most `beams` sequences in descending order of their scores:
        `Hypothesis(ids, score, end)`. `ids` are the new token IDs; `end` is "stop" after an end
        token or a stop string, and "length" at the maximum number of tokens.

    Raises:
        ValueError: as for `generate`.
    """
    model = decoder_of(model, "beam_search()")
    texts = check_prompts(model, prompts)
    sampling = Sampling(
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
    )
    search = BeamSearch(beams, length_penalty, early_stopping, no_repeat_ngram_size)
    criteria = StopCriteria.of(model, eos_id, stop, tokenizer)
    minimum = check_integer("min_new_tokens", min_new_tokens, 0)
    return search_batch(model, texts, max_new_tokens, search, sampling, criteria, minimum)


def search_of(
    sampling: Sampling,
    beams: int | None = None,
    length_penalty: float = 1.0,
    early_stopping: bool | Literal["never"] = False,
    no_repeat_ngram_size: int = 0,
    speculate: int = 0,
    draft: object = None,
) -> BeamSearch | None:
    """The beam search of the arguments of `generate`, or None. ValueError: settings that have no
    effect together.
    """
    search = BeamSearch(beams or 1, length_penalty, early_stopping, no_repeat_ngram_size)
    if beams is None:
        names = [name for name, value in vars(BeamSearch(1)).items() if vars(search)[name] != value]
        if names:
            raise SettingError(
                f"{setting(names[0])} is a setting of beam search: set {setting('beams')} too"
            )
        return None
    check_beams("beams", beams)
    drawn = {"top_k": None, "top_p": None, "min_p": None}
    names = [name for name, value in drawn.items() if getattr(sampling, name) != value]
    names += ["temperature"] if sampling.temperature not in (0, 1) else []
    names += ["speculate"] if speculate else ["draft"] if draft is not None else []
    if names:
        raise SettingError(
            f"{setting(names[0])} has no effect on beam search: remove it, or {setting('beams')}"
        )
    return search


def search_batch(
    model: LanguageModel,
    texts: list[list[int]],
    max_new_tokens: int,
    search: BeamSearch,
    sampling: Sampling,
    criteria: StopCriteria,
    min_new_tokens: int = 0,
    admissions: Sequence[Mapping[str, Any]] = (),
) -> list[list[Hypothesis]]:
    """The hypotheses of prompts that `check_prompts` returns; none without new tokens.

    admissions: "first" and "start" of `Batch.admit` for each prompt.
    """
    max_new_tokens = check_integer("max_new_tokens", max_new_tokens, 0)
    size = model.output_size
    sampling.check_vocabulary(size)
    limits = TokenLimits(size, minimum=min_new_tokens, ends=criteria.ids)
    results: list[list[Hypothesis]] = [[] for _ in texts]
    if not texts or max_new_tokens == 0:
        return results
    longest = max(batch_length(model, text, max_new_tokens) for text in texts)
    batch = Batch(model, len(texts) * search.beams, longest)
    indices = {
        batch.admit(
            text,
            max_new_tokens,
            sampling=sampling,
            stop=criteria,
            matcher=limits.matcher() if limits.restrict else None,
            search=search,
            first=admission.get("first"),
            start=admission.get("start"),
        ): i
        for i, (text, admission) in enumerate(
            zip(texts, admissions or [{}] * len(texts), strict=True)
        )
    }
    while len(batch):
        for event in batch.step():
            results[indices[event.row]] = list(event.hypotheses)
    return results
