"""Tokenizers: load, encode, decode, inspect, save."""

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from r_bridge.arguments import character, frame, id_rows, setting
from r_bridge.convert import Frame, Numeric
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


def tokenizer_from_json(session: Session, json: str) -> int:
    """Load a tokenizer from the text of a tokenizer.json, as of `train_tokenizer`."""
    import tokenizers

    return session.add(Tokenizer(tokenizers.Tokenizer.from_str(json)))


def train_tokenizer(
    session: Session, texts: list[str], vocab_size: int, model: str, special_tokens: list[str]
) -> str:
    """Train a tokenizer. Returns the text of its tokenizer.json."""
    from minhub_py.checkpoints.tokenizers.encoder_tokenizer import train_wordpiece
    from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

    train = {"bpe": train_byte_level_bpe, "wordpiece": train_wordpiece}[model]
    return train(texts, vocab_size, special_tokens).to_str()


def padding_token(session: Session, tokenizer: Tokenizer, token: str | None) -> dict[str, object]:
    """The token for padding and its ID: `token`, or the one of the tokenizer's files.

    ValueError: the vocabulary lacks it, or the files name none.
    """
    from minhub_py.checkpoints.tokenizers import special_tokens
    from minhub_py.checkpoints.tokenizers.tokenizer import FILES

    tok = tokenizer.tokenizer
    found, id = special_tokens.padding_token(tok, FILES.get(tok), token)
    return {"token": found, "id": id}


def encode_batch(
    session: Session,
    tokenizer: Tokenizer,
    texts: list[str],
    add_special_tokens: bool,
    pairs: list[str] | None = None,
    padding: dict[str, object] | None = None,
    truncation: dict[str, object] | None = None,
) -> dict[str, object]:
    """The concatenated token IDs, type IDs and masks of all texts, and the number of tokens of each
    text.

    pairs: the second text of each pair.    padding, truncation: settings of the library.
    """
    from minhub_py.checkpoints.tokenizers.tokenizer import working

    inputs = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
    if truncation is not None and add_special_tokens:
        # The library does not truncate at all to fewer tokens.
        least = tokenizer.tokenizer.num_special_tokens_to_add(pairs is not None)
        if setting(truncation["max_length"]) < least:
            raise ValueError(
                f"max_length must be at least {least}, the number of special tokens: call"
                f" tok$enable_truncation() with {least} or more"
            )
    with working(tokenizer.tokenizer), _lengths(tokenizer, padding, truncation) as encode:
        encodings = encode(inputs, add_special_tokens=add_special_tokens)
        rows = [encoding.ids for encoding in encodings]
        types = [encoding.type_ids for encoding in encodings]
        masks = [encoding.attention_mask for encoding in encodings]
    with working(tokenizer.tokenizer):
        warn_of_unknown(tokenizer.tokenizer, [*texts, *(pairs or ())], rows)
    lengths = np.array([len(row) for row in rows], np.int32)
    count = int(lengths.sum())

    def vector(values: list[list[int]]) -> Numeric:
        return np.fromiter(itertools.chain.from_iterable(values), np.int32, count)

    return {
        "ids": vector(rows),
        "type_ids": vector(types),
        "attention_mask": vector(masks),
        "lengths": lengths,
    }


@contextmanager
def _lengths(
    tokenizer: Tokenizer, padding: dict[str, object] | None, truncation: dict[str, object] | None
) -> Iterator[Callable[..., list["tokenizers.Encoding"]]]:
    """The tokenizer's `encode_batch_fast` with padding and truncation, which other functions must
    not see.
    """
    tok = tokenizer.tokenizer
    try:
        if padding is not None:
            given = {name: setting(value) for name, value in padding.items()}
            tok.enable_padding(**{n: value for n, value in given.items() if value is not None})
        if truncation is not None:
            tok.enable_truncation(**{name: setting(value) for name, value in truncation.items()})
        yield tok.encode_batch_fast
    except Exception as error:
        if type(error) is not Exception or not str(error).startswith("Truncation error"):
            raise
        raise ValueError(
            f"a text cannot be truncated ({error}): choose another strategy or a larger max_length"
        ) from error
    finally:
        tok.no_padding()
        tok.no_truncation()


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
