"""Tokenizers: load, encode, decode, inspect, save."""

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from r_bridge.arguments import character, frame, id_rows
from r_bridge.convert import Frame
from r_bridge.objects import Session, Tokenizer

if TYPE_CHECKING:
    import tokenizers


def tokenizer_from_pretrained(
    session: Session, identifier: str, revision: str, token: str | None, local_files_only: bool
) -> int:
    """Load the tokenizer of a repository, folder or built-in."""
    from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_from_pretrained as load

    return session.add(
        Tokenizer(load(identifier, revision, token=token, local_files_only=local_files_only))
    )


def tokenizer_from_file(session: Session, path: str) -> int:
    """Load a tokenizer.json."""
    from minhub_py.checkpoints.tokenizers.tokenizer import parse

    return session.add(Tokenizer(parse(Path(path))))


def encode_batch(
    session: Session,
    tokenizer: Tokenizer,
    texts: list[str],
    add_special_tokens: bool,
    pairs: list[str] | None = None,
) -> dict[str, object]:
    """The concatenated token IDs and type IDs of all texts, and the number of tokens of each text.

    pairs: the second text of each pair.
    """
    from minhub_py.checkpoints.tokenizers.tokenizer import working

    with working(tokenizer.tokenizer):
        encodings = tokenizer.tokenizer.encode_batch_fast(
            list(texts) if pairs is None else list(zip(texts, pairs, strict=True)),
            add_special_tokens=add_special_tokens,
        )
        rows = [encoding.ids for encoding in encodings]
        types = [encoding.type_ids for encoding in encodings]
        warn_of_unknown(tokenizer.tokenizer, [*texts, *(pairs or ())], rows)
    lengths = np.array([len(row) for row in rows], np.int32)
    count = int(lengths.sum())
    return {
        "ids": np.fromiter(itertools.chain.from_iterable(rows), np.int32, count),
        "type_ids": np.fromiter(itertools.chain.from_iterable(types), np.int32, count),
        "lengths": lengths,
    }


def decode_batch(
    session: Session, tokenizer: Tokenizer, ids: object, skip_special_tokens: bool
) -> object:
    """The text of each sequence of token IDs."""
    rows = id_rows(ids, tokenizer.size)
    return character(
        tokenizer.tokenizer.decode_batch(rows, skip_special_tokens=skip_special_tokens)
    )


def id_to_token(session: Session, tokenizer: Tokenizer, ids: object) -> object:
    """The vocabulary's token for each ID; NA for an unknown ID."""
    [row] = id_rows(ids, 2**31 - 1)
    return character(tokenizer.tokenizer.id_to_token(id) for id in row)


def token_to_id(session: Session, tokenizer: Tokenizer, tokens: list[str]) -> object:
    """The ID of each token; NA for an unknown token."""
    ids = [tokenizer.tokenizer.token_to_id(token) for token in tokens]
    return np.ma.MaskedArray([id or 0 for id in ids], [id is None for id in ids], np.int32)


def vocab(session: Session, tokenizer: Tokenizer, with_added_tokens: bool) -> Frame:
    """All tokens with their IDs, ordered by ID."""
    items = sorted(
        tokenizer.tokenizer.get_vocab(with_added_tokens).items(), key=lambda item: item[1]
    )
    return frame(
        {"token": [token for token, _ in items], "id": np.array([id for _, id in items], np.int32)}
    )


def vocab_size(session: Session, tokenizer: Tokenizer, with_added_tokens: bool) -> int:
    """The number of tokens."""
    return tokenizer.tokenizer.get_vocab_size(with_added_tokens)  # type: ignore[no-any-return]


def save_tokenizer(session: Session, tokenizer: Tokenizer, path: str, pretty: bool) -> None:
    """Save a tokenizer.json."""
    from minhub_py.checkpoints.transfer import publish

    text = tokenizer.tokenizer.to_str(pretty=pretty)
    publish(Path(path), lambda draft: draft.write_text(text, encoding="utf-8"))


def warn_of_unknown(
    tokenizer: "tokenizers.Tokenizer", texts: Sequence[str], rows: Sequence[Sequence[int]]
) -> None:
    """Warn about characters without a token, which the result does not include."""
    from minhub_py.checkpoints.tokenizers.tokenizer import describe_unknown, unknown_characters

    if characters := unknown_characters(
        tokenizer, "".join(texts), itertools.chain.from_iterable(rows)
    ):
        warnings.warn(describe_unknown(tokenizer, characters), stacklevel=2)
