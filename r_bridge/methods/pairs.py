"""Minimal pairs and test suites."""

import numpy as np

from r_bridge.arguments import frame, scalar, vector_values
from r_bridge.convert import Character, Frame, Numeric
from r_bridge.methods.text import find_tokenizer
from r_bridge.objects import Model, Session, Tokenizer


def read_pairs(session: Session, path: str, by: str | None) -> dict[str, object]:
    """The pairs of BLiMP's files as a frame; an empty list for the suites of SyntaxGym."""
    from pathlib import Path

    from minhub_py.analysis.minimal_pairs import BAD, GOOD, phenomenon_key, read_files

    records, suites = read_files(Path(path))
    if records and suites:
        raise ValueError(
            "pairs contains .jsonl files of pairs and .json files of suites: pass one kind at a"
            " time"
        )
    if suites:
        return {}
    key = phenomenon_key(records, by)
    columns = {"phenomenon": [str(record[key]) for record in records]}
    columns |= {name: [record[name] for record in records] for name in (GOOD, BAD)}
    return {"pairs": frame(columns)}


def pair_logprobs(
    session: Session,
    model: Model,
    good: Character,
    bad: Character,
    bos: object,
    tokenizer: Tokenizer | None,
) -> Frame:
    """The log-probabilities of the sentences of each pair, with NA for missing sentences."""
    from minhub_py.analysis.minimal_pairs import sentence_logprobs
    from minhub_py.analysis.surprisal import refuse_encoder_decoder
    from minhub_py.inference.arguments import decoder_of

    decoder_of(model.module, "minimal_pairs()")
    refuse_encoder_decoder(model.module)
    tok = find_tokenizer(model, tokenizer, needed=True)
    sentences = [text or "" for text in [*(good or []), *(bad or [])]]
    values = np.array(
        sentence_logprobs(model.module, tok, sentences, scalar(bos, bool), session.progress)
    )
    first, second = values[: len(values) // 2], values[len(values) // 2 :]
    return frame({"logprob_good": first, "logprob_bad": second, "difference": first - second})


def suite_results(
    session: Session, model: Model, path: str, bos: object, tokenizer: Tokenizer | None
) -> Frame:
    """The result of each item and prediction of SyntaxGym's suites."""
    from minhub_py.analysis.minimal_pairs import minimal_pairs

    tok = find_tokenizer(model, tokenizer, needed=True)
    columns = minimal_pairs(
        model.module, tok, path, bos=scalar(bos, bool), progress=session.progress
    ).columns
    changed = {
        "item": [str(item) for item in columns["item"]],
        "correct": np.array(columns["correct"], bool),
    }
    return frame(columns | changed, "phenomenon", "item", "formula", "correct")


def pair_accuracies(session: Session, phenomenon: list[str], correct: Numeric) -> Frame:
    """The accuracy of each phenomenon with its interval."""
    from minhub_py.analysis.minimal_pairs import accuracies

    columns = accuracies(list(phenomenon or []), vector_values(correct))
    return frame(columns, "phenomenon", "n", "accuracy", "lower", "upper")
