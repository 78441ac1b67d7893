"""Generated text, next tokens and scores. Prompts and texts come as text or as ids."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from r_bridge.convert import Frame, as_array, character, id_rows
from r_bridge.methods.tokenizers import warn_of_unknown
from r_bridge.objects import Caller, Model, Tokenizer


def generate(
    caller: Caller, model: Model, prompts: Any, tokenizer: Tokenizer | None, max_new_tokens: int,
    temperature: float, top_k: int | None, top_p: float | None, repetition_penalty: float,
    seeds: Any, eos_id: Any, stop: Any, stream: bool, speculate: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The new text and ids of each prompt. With `stream`, for one prompt, pieces of text are sent as they are made."""
    from minhub_py.checkpoints.tokenizers.tokenizer import decode_stream, until
    from minhub_py.inference.generate import check_prompts, stream_batch
    from minhub_py.inference.sampling import Sampling, StopCriteria

    texts = is_text(prompts)
    stops = tuple(stop or ())
    tok: Any = find_tokenizer(model, tokenizer, needed=True) if texts or stops else None
    rows = _prompt_rows(model, tok, prompts)
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    ids_that_end = "auto" if eos_id is None else [int(id) for id in as_array(eos_id).reshape(-1)]
    ends = StopCriteria.of(model.module, ids_that_end, stops, tok)
    new: list[list[int]] = [[] for _ in rows]

    def ids() -> Iterator[int]:
        all_seeds = [int(seed) for seed in seeds]
        ids_given = check_prompts(model.module, rows)
        for row, id in stream_batch(model.module, ids_given, max_new_tokens, sampling, all_seeds, ends, speculate):
            caller.check()
            new[row].append(id)
            yield id

    written = None
    if texts and stream:
        pieces = []
        for piece in until(decode_stream(tok, ids(), _before(model, rows[0])), stops):
            pieces.append(piece)
            caller.emit(piece)
        written = ["".join(pieces)]
    else:
        total = len(rows) * max_new_tokens
        for done, _ in enumerate(ids(), 1):
            caller.progress(done, total)
        caller.progress(total, total)
        if texts:
            both = zip(rows, new, strict=True)
            written = ["".join(until(decode_stream(tok, ids, _before(model, prompt)), stops)) for prompt, ids in both]
    return {
        "texts": None if written is None else character(written),
        "ids": [np.array(ids, np.int32) for ids in new],
    }


def next_tokens(caller: Caller, model: Model, prompts: Any, tokenizer: Tokenizer | None, n: int) -> Frame:
    """The `n` likeliest next tokens of each prompt, one prompt's rows after the other's."""
    from minhub_py.analysis.surprisal import next_tokens as evaluate

    tok = find_tokenizer(model, tokenizer, needed=is_text(prompts))
    found = evaluate(model.module, None, _prompt_rows(model, tok, prompts), n, progress=caller.progress)
    return Frame({
        "prompt": (found["context"] + 1).astype(np.int32),
        "token": token_texts(tok, found["id"].tolist()),
        "id": found["id"].astype(np.int32),
        "prob": found["prob"],
        "logprob": found["logprob"],
    })  # fmt: skip


def score(
    caller: Caller, model: Model, texts: Any, tokenizer: Tokenizer | None, targets: Any = None, bits: bool = False,
    sep: str = " ",
) -> Frame:  # fmt: skip
    """The log-probability of each token after a text's first, or of each of its target, given the text.

    bits: surprisal and entropy, too.    sep: joins a text and its target; unused for ids and encoder-decoders.
    """
    from minhub_py.analysis.surprisal import target_ids
    from minhub_py.inference.generate import check_prompts, check_targets
    from minhub_py.inference.generate import score as evaluate

    tok = find_tokenizer(model, tokenizer, needed=is_text(texts) or is_text(targets))
    rows, first = _rows(model, tok, texts), 1
    prompts = given = None
    if targets is not None:
        prompts = _prompt_rows(model, tok, texts)
        if is_text(texts) and is_text(targets) and not model.module.encoder_decoder:
            pairs = target_ids(model.module, tok, texts, targets, sep)
            # The prompt of an empty target is arbitrary, but must not be empty.
            prompts = [prompt or row for (prompt, _), row in zip(pairs, prompts, strict=True)]
            given = [target for _, target in pairs]
        else:  # special tokens at the ends of an answer belong to it
            given = _rows(model, tok, targets, model.module.encoder_decoder)
        rows, first = given, 0
    more, scores = {}, list[Any]()
    if bits:
        from minhub_py.analysis.scores import token_scores

        if given is not None:
            check_targets(model.module, given, len(check_prompts(model.module, prompts)))
        found = list(token_scores(model.module, prompts or rows, given, caller.progress))
        scores = [logprobs for logprobs, _ in found]
        entropies = np.concatenate([each for _, each in found]) if found else np.empty(0)
        more = {"surprisal": 0.0 - np.concatenate(scores) / np.log(2) if scores else np.empty(0), "entropy": entropies}
    elif prompts is None:
        scores = _scores(caller, model, rows)
    else:
        scores = evaluate(model.module, prompts, targets=given, progress=caller.progress)
    ids = [id for row in rows for id in row[first:]]
    return Frame({
        "text": np.array([number for number, row in enumerate(rows, 1) for _ in row[first:]], np.int32),
        "position": np.array([place for row in rows for place in range(1 + first, len(row) + 1)], np.int32),
        "token": token_texts(tok, ids),
        "id": np.array(ids, np.int32),
        "logprob": np.concatenate([as_array(values) for values in scores]) if scores else np.empty(0),
        **more,
    })  # fmt: skip


def perplexity(caller: Caller, model: Model, texts: Any, tokenizer: Tokenizer | None) -> Any:
    """Perplexity: exp of the mean surprise (nats) of each text's tokens after the first; NA where there are none."""
    tok = find_tokenizer(model, tokenizer, needed=True) if is_text(texts) else None
    scores = _scores(caller, model, _rows(model, tok, texts))
    values = np.array([np.exp(-as_array(each).astype(np.float64).mean()) if len(each) else 0.0 for each in scores])
    return np.ma.MaskedArray(values, [len(each) == 0 for each in scores])


def _scores(caller: Caller, model: Model, rows: list[list[int]]) -> list[Any]:
    """Scores as of minhub_py.score; an empty tensor for a text without a token."""
    import torch

    from minhub_py.inference.generate import score as evaluate

    some = iter(evaluate(model.module, [row for row in rows if row], progress=caller.progress))
    return [next(some) if row else torch.empty(0) for row in rows]


def is_text(value: Any) -> bool:
    """Whether R has sent text, not ids."""
    return (isinstance(value, list) and all(isinstance(text, str) for text in value)) or (
        isinstance(value, np.ndarray) and value.dtype.kind == "U"
    )


def find_tokenizer(model: Model, given: Tokenizer | None, *, needed: bool) -> Any:
    """The tokenizer given, else the model's own; None if there is none and none is needed."""
    if given is not None:
        return given.tokenizer
    return model.tokenizer if needed else model.find_tokenizer()


def _rows(model: Model, tokenizer: Any, texts: Any, add_special_tokens: bool = True) -> list[list[int]]:
    """Rows of ids for texts, which are text or already ids."""
    size = model.module.config.vocab_size
    if not is_text(texts):
        return id_rows(texts, size)
    from minhub_py.checkpoints.tokenizers.tokenizer import working

    with working(tokenizer):
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)]
        warn_of_unknown(tokenizer, texts, rows)
    if (largest := max((max(row, default=0) for row in rows), default=0)) >= size:
        raise ValueError(f"the tokenizer is another model's: it gives the id {largest}, this model's go to {size - 1}")
    return rows


def _prompt_rows(model: Model, tokenizer: Any, prompts: Any) -> list[list[int]]:
    rows = _rows(model, tokenizer, prompts)
    for number, row in enumerate(rows, 1):
        if not row:
            raise ValueError(f"prompt {number} has no token that the model knows: give it some text")
    return rows


def _before(model: Model, prompt: list[int]) -> list[int]:
    """The ids before the first new one in its text; the text that an encoder-decoder writes begins with none."""
    return [] if model.module.encoder_decoder else prompt


def token_texts(tokenizer: Any, ids: list[int]) -> Any:
    """The text of each id by itself; NA without a tokenizer."""
    if tokenizer is None:
        return [None] * len(ids) or character(())
    return character(tokenizer.decode_batch([[id] for id in ids], skip_special_tokens=False))
