"""Text generation, next tokens and scores. Prompts and texts are strings or token IDs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from r_bridge.arguments import character, frame, id_rows, is_text, scalar
from r_bridge.convert import Character, Frame, Numeric, as_array
from r_bridge.methods.tokenizers import warn_of_unknown
from r_bridge.objects import Model, Session, Tokenizer

if TYPE_CHECKING:
    import tokenizers

    from minhub_py.chat.reply_batch import ReplyBatch
    from minhub_py.inference.beams import BeamSearch
    from minhub_py.inference.sampling import Sampling, StopCriteria
    from minhub_py.inference.speculative import DraftModel


# beams that are computed together, between checks for an interrupt
ROWS_OF_SEARCH = 16


def biases(columns: Mapping[str, Numeric] | None) -> dict[int, float] | None:
    """The logit_bias of R: its columns `id` and `bias`, or None."""
    if columns is None:
        return None
    ids, values = (as_array(columns[name]).reshape(-1) for name in ("id", "bias"))
    return {int(id): float(value) for id, value in zip(ids, values, strict=True)}


def search_settings(values: Mapping[str, object] | None) -> dict[str, Any]:
    """A beam search's settings, whose values in R are vectors of one element."""
    kinds = {"length_penalty": float, "early_stopping": bool}
    return {
        name: "never" if value == ["never"] else scalar(value, kinds.get(name, int))
        for name, value in (values or {}).items()
    }


def generate(
    session: Session,
    model: Model,
    prompts: object,
    tokenizer: Tokenizer | None,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    repetition_penalty: float,
    seeds: Numeric,
    eos_id: object,
    stop: list[str],
    stream: bool,
    speculate: int = 0,
    min_p: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[str, Numeric] | None = None,
    draft: Model | None = None,
    mtp: bool = False,
    search: Mapping[str, object] | None = None,
    chat: bool = False,
    system: str | None = None,
) -> dict[str, object]:
    """The new text and token IDs for each prompt, and the numbers of proposed and accepted draft
    tokens.

    search: settings of a beam search.

    stream: also send the text of the only prompt as it is generated.    draft: a smaller model.
    mtp: draft with the model's head for multi-token prediction.
    chat: each prompt is a user message, after the message `system`, and the new text its reply.
    """
    from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, until
    from minhub_py.inference.arguments import decoder_of
    from minhub_py.inference.beam_search import search_of
    from minhub_py.inference.generate import drafts_of, stream_batch
    from minhub_py.inference.prompts import check_prompts
    from minhub_py.inference.sampling import Sampling, StopCriteria

    decoder_of(model.module, "generate()")
    as_text = is_text(prompts)
    stops = tuple(stop or ())
    tok: Any = find_tokenizer(model, tokenizer, needed=True) if as_text or stops else None
    sampling = Sampling(
        temperature,
        top_k,
        top_p,
        repetition_penalty,
        min_p,
        presence_penalty,
        frequency_penalty,
        biases(logit_bias),
    )
    sampling.check_vocabulary(model.module.output_size)
    eos_ids = "auto" if eos_id is None else [int(id) for id in as_array(eos_id).reshape(-1)]
    criteria = StopCriteria.of(model.module, eos_ids, stops, tok)
    replies = None
    if chat:
        messages = cast("list[str]", prompts)
        replies = reply_batch(model, tokenizer, messages, system, max_new_tokens, criteria)
        criteria = replies.stop
    rows = prompt_ids(model, tok, prompts) if replies is None else replies.prompts
    drafts = (
        drafts_of(model.module, "mtp")
        if mtp
        else None
        if draft is None
        else draft_model(model, draft)
    )
    outputs: list[list[int]] = [[] for _ in rows]
    beams = search_of(sampling, speculate=speculate, draft=drafts, **search_settings(search))

    def generate_ids() -> Iterator[int]:
        if beams is not None:
            for row, sequence in search_rows(
                session, model, rows, max_new_tokens, beams, sampling, criteria
            ):
                outputs[row] = sequence
                yield from sequence
            return
        prompts = check_prompts(model.module, rows)
        row_seeds = [int(seed) for seed in seeds]
        limits = None if replies is None else replies.limits
        draws = (max_new_tokens, sampling, row_seeds, criteria, speculate, drafts, limits)
        for row, id in stream_batch(model.module, prompts, *draws):
            session.check_cancelled()
            outputs[row].append(id)
            yield id

    def decode(row: int, ids: Iterable[int]) -> Iterator[str]:
        if replies is not None:
            return replies.text(row, ids)
        context = [] if model.module.encoder_decoder else rows[row]
        return until(decode_stream(tok, ids, context), stops)

    texts = None
    if as_text and stream:
        pieces = []
        for piece in decode(0, generate_ids()):
            pieces.append(piece)
            session.emit(piece)
        texts = character(["".join(pieces)])
    else:
        total = len(rows) * max_new_tokens
        for completed, _ in enumerate(generate_ids(), 1):
            session.progress(completed, total)
        session.progress(total, total)
        if as_text:
            texts = character("".join(decode(row, ids)) for row, ids in enumerate(outputs))
    return {
        "texts": texts,
        "ids": [np.array(ids, np.int32) for ids in outputs],
        "drafts": None if drafts is None else np.array([drafts.proposed, drafts.accepted], float),
    }


def search_rows(
    session: Session,
    model: Model,
    rows: list[list[int]],
    max_new_tokens: int,
    beams: "BeamSearch",
    sampling: "Sampling",
    criteria: "StopCriteria",
) -> Iterator[tuple[int, list[int]]]:
    """Beam search: the index of each prompt and the token IDs of the best sequence."""
    from minhub_py.inference.beam_search import search_batch
    from minhub_py.inference.prompts import check_prompts

    prompts = check_prompts(model.module, rows)
    size = max(ROWS_OF_SEARCH // beams.beams, 1)
    for start in range(0, len(prompts), size):
        session.check_cancelled()
        part = prompts[start : start + size]
        results = search_batch(model.module, part, max_new_tokens, beams, sampling, criteria)
        for row, hypotheses in enumerate(results, start):
            yield row, hypotheses[0].ids if hypotheses else []


def reply_batch(
    model: Model,
    tokenizer: Tokenizer | None,
    messages: list[str],
    system: str | None,
    max_new_tokens: int,
    criteria: "StopCriteria",
) -> "ReplyBatch":
    """The prompts of messages without previous turns. ValueError: a prompt exceeds the context."""
    from minhub_py.chat.reply_batch import ReplyBatch

    template, context = model.conversation(tokenizer).template, model.module.config.context_length
    replies = ReplyBatch(template, messages, system, max_new_tokens, context, criteria)
    warn_of_unknown(template.tokenizer, messages, replies.prompts)
    return replies


def draft_model(model: Model, draft: Model) -> "DraftModel":
    """The source of draft tokens for a model. ValueError: it has another tokenizer, or cannot make
    drafts.
    """
    from minhub_py.inference.arguments import decoder_of
    from minhub_py.inference.speculative import DraftModel

    tokenizers = [
        tok for tok in (model.optional_tokenizer(), draft.optional_tokenizer()) if tok is not None
    ]
    if len(tokenizers) == 2 and tokenizers[0].get_vocab() != tokenizers[1].get_vocab():
        raise ValueError(
            "draft must be a model with the tokenizer of the model: it has another vocabulary"
        )
    return DraftModel(decoder_of(draft.module, "draft="))


def next_tokens(
    session: Session, model: Model, prompts: object, tokenizer: Tokenizer | None, n: int
) -> Frame:
    """The `n` most likely next tokens of each prompt."""
    from minhub_py.analysis.surprisal import next_tokens as predict

    tok = find_tokenizer(model, tokenizer, needed=is_text(prompts))
    columns = predict(
        model.module, None, prompt_ids(model, tok, prompts), n, progress=session.progress
    )
    columns |= {"prompt": columns["context"], "token": token_texts(tok, columns["id"].tolist())}
    return frame(columns, "prompt", "token", "id", "prob", "logprob", from_1=("prompt",))


def score(
    session: Session,
    model: Model,
    texts: list[str],
    tokenizer: Tokenizer | None,
    targets: object = None,
    bits: bool = False,
    sep: str = " ",
) -> Frame:
    """The log-probability of each token of a text after the first, or of each token of its target.

    bits: add surprisal and entropy.    sep: separates a text and its target; ignored for IDs and
    encoder-decoders.
    """
    from minhub_py.analysis.segments import target_ids
    from minhub_py.checkpoints.tokenizers.paired import target_tokenizer
    from minhub_py.inference.arguments import decoder_of
    from minhub_py.inference.generate import score as log_probabilities
    from minhub_py.inference.prompts import check_prompts, check_targets

    decoder_of(model.module, "score()")
    tok = find_tokenizer(model, tokenizer, needed=is_text(texts) or is_text(targets))
    rows, first = encode_texts(model, tok, texts), 1
    prompts = target_rows = None
    if targets is not None:
        prompts = prompt_ids(model, tok, texts)
        if is_text(texts) and is_text(targets) and not model.module.encoder_decoder:
            pairs = target_ids(model.module, tok, texts, targets, sep)
            # An empty target needs a prompt too, which has no effect.
            prompts = [prompt or row for (prompt, _), row in zip(pairs, prompts, strict=True)]
            target_rows = [target for _, target in pairs]
        else:  # an encoder-decoder's answer includes its special tokens
            size = model.module.output_size
            special = model.module.encoder_decoder
            target_rows = encode_texts(model, target_tokenizer(tok), targets, special, size)
        rows, first = target_rows, 0
    bit_columns, scores = {}, list[Any]()
    if bits:
        from minhub_py.analysis.scores import token_scores

        if target_rows is not None:
            check_targets(model.module, target_rows, len(check_prompts(model.module, prompts)))
        pairs_of_scores = list(
            token_scores(model.module, prompts or rows, target_rows, session.progress)
        )
        scores = [logprobs for logprobs, _ in pairs_of_scores]
        bit_columns = {
            "surprisal": 0.0 - concatenate(scores) / np.log(2),
            "entropy": concatenate([entropies for _, entropies in pairs_of_scores]),
        }
    elif prompts is None:
        scores = score_nonempty(session, model, rows)
    else:
        scores = log_probabilities(
            model.module, prompts, targets=target_rows, progress=session.progress
        )
    ids = [id for row in rows for id in row[first:]]
    return Frame(
        {
            "text": np.array(
                [number for number, row in enumerate(rows, 1) for _ in row[first:]], np.int32
            ),
            "position": np.array(
                [position for row in rows for position in range(1 + first, len(row) + 1)], np.int32
            ),
            "token": token_texts(tok, ids),
            "id": np.array(ids, np.int32),
            "logprob": concatenate(scores),
            **bit_columns,
        }
    )


def perplexity(
    session: Session, model: Model, texts: object, tokenizer: Tokenizer | None
) -> object:
    """Each text's perplexity: exp of the mean surprisal (nats) of its tokens after the first,
    or NA.
    """
    from minhub_py.inference.arguments import decoder_of

    decoder_of(model.module, "perplexity()")
    tok = find_tokenizer(model, tokenizer, needed=True) if is_text(texts) else None
    scores = [
        as_array(values)
        for values in score_nonempty(session, model, encode_texts(model, tok, texts))
    ]
    perplexities = [
        np.exp(-values.astype(np.float64).mean()) if len(values) else 0.0 for values in scores
    ]
    return np.ma.MaskedArray(perplexities, [len(values) == 0 for values in scores], np.float64)


def score_nonempty(session: Session, model: Model, rows: list[list[int]]) -> list[object]:
    """The result of minhub_py.score for each text, with an empty tensor for a text without tokens."""
    import torch

    from minhub_py.inference.generate import score as log_probabilities

    scores = iter(
        log_probabilities(model.module, [row for row in rows if row], progress=session.progress)
    )
    return [next(scores) if row else torch.empty(0) for row in rows]


def concatenate(scores: Sequence[object]) -> object:
    """Concatenate tensors to one array."""
    return np.concatenate([as_array(values) for values in scores]) if scores else np.empty(0)


@overload
def find_tokenizer(
    model: Model, tokenizer: Tokenizer | None, *, needed: Literal[True]
) -> "tokenizers.Tokenizer": ...


@overload
def find_tokenizer(model: Model, tokenizer: Tokenizer | None, *, needed: bool) -> Any: ...


def find_tokenizer(
    model: Model, tokenizer: Tokenizer | None, *, needed: bool
) -> "tokenizers.Tokenizer | None":
    """A tokenizer, by default the model's own; None if the model has none. ValueError: none, but it
    is needed.
    """
    if tokenizer is not None:
        return tokenizer.tokenizer
    return model.tokenizer if needed else model.optional_tokenizer()


def encode_texts(
    model: Model,
    tokenizer: Any,
    texts: object,
    add_special_tokens: bool = True,
    size: int | None = None,
) -> list[list[int]]:
    """The token IDs of texts, which are strings or token IDs.

    size: number of token IDs; the model's vocab_size by default.
    """
    size = size or model.module.config.vocab_size
    if not is_text(texts):
        return id_rows(texts, size)
    from minhub_py.checkpoints.tokenizers.tokenizer import working

    with working(tokenizer):
        rows = [
            encoding.ids
            for encoding in tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        ]
        warn_of_unknown(tokenizer, texts, rows)
    if (largest := max((max(row, default=0) for row in rows), default=0)) >= size:
        raise ValueError(
            f"the tokenizer does not match the model: ids must be at most {size - 1}, not"
            f" {largest}; use the model's own tokenizer"
        )
    return rows


def prompt_ids(model: Model, tokenizer: Any, prompts: object) -> list[list[int]]:
    """The token IDs of prompts that the model continues. ValueError: a prompt is empty."""
    from minhub_py.checkpoints.tokenizers.tokenizer import without_end

    rows = encode_texts(model, tokenizer, prompts)
    if is_text(prompts) and not model.module.encoder_decoder:
        rows = [without_end(tokenizer, row) for row in rows]
    return nonempty(rows)


def nonempty(rows: list[list[int]]) -> list[list[int]]:
    """The token IDs of texts. ValueError: a text is empty."""
    for number, row in enumerate(rows, 1):
        if not row:
            raise ValueError(
                f"prompt {number} has no tokens: pass a text with characters in the model's"
                " vocabulary"
            )
    return rows


def prompt_texts(tokenizer: "tokenizers.Tokenizer | None", ids: list[int]) -> Character | Numeric:
    """The text of each token that a model reads; NA without a tokenizer."""
    from minhub_py.checkpoints.tokenizers.paired import source_tokenizer

    return token_texts(source_tokenizer(tokenizer), ids)


def token_texts(tokenizer: "tokenizers.Tokenizer | None", ids: list[int]) -> Character | Numeric:
    """The text of each token that a model generates; NA without a tokenizer."""
    if tokenizer is None:
        return [None] * len(ids) or character(())
    return character(tokenizer.decode_batch([[id] for id in ids], skip_special_tokens=False))
