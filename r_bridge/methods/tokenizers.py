"""Tokenizers: load, encode, decode, look into, save."""

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from r_bridge.convert import Frame, character, id_rows
from r_bridge.objects import Caller, Tokenizer


def tokenizer_from_pretrained(
    caller: Caller, identifier: str, revision: str, token: str | None, local_files_only: bool
) -> int:
    """Load the tokenizer of a repository, folder or built-in."""
    from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_from_pretrained as read

    return caller.keep(Tokenizer(read(identifier, revision, token=token, local_files_only=local_files_only)))


def tokenizer_from_file(caller: Caller, path: str) -> int:
    """Load a tokenizer.json."""
    from minhub_py.checkpoints.tokenizers.tokenizer import parse

    return caller.keep(Tokenizer(parse(Path(path))))


def encode_batch(caller: Caller, tokenizer: Tokenizer, texts: Any, add_special_tokens: bool) -> dict[str, Any]:
    """The ids of all texts, one after the other, and how many each text has."""
    from minhub_py.checkpoints.tokenizers.tokenizer import working

    with working(tokenizer.tokenizer):
        found = tokenizer.tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        rows = [encoding.ids for encoding in found]
        warn_of_unknown(tokenizer.tokenizer, texts, rows)
    lengths = np.array([len(row) for row in rows], np.int32)
    return {"ids": np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum())), "lengths": lengths}


def decode_batch(caller: Caller, tokenizer: Tokenizer, ids: Any, skip_special_tokens: bool) -> Any:
    """The text of each row of ids."""
    rows = id_rows(ids, tokenizer.size)
    return character(tokenizer.tokenizer.decode_batch(rows, skip_special_tokens=skip_special_tokens))


def id_to_token(caller: Caller, tokenizer: Tokenizer, ids: Any) -> Any:
    """The token of each id as in the vocabulary; NA if there is none."""
    [row] = id_rows(ids, 2**31 - 1)
    return character(tokenizer.tokenizer.id_to_token(id) for id in row)


def token_to_id(caller: Caller, tokenizer: Tokenizer, tokens: Any) -> Any:
    """The id of each token; NA if there is none."""
    ids = [tokenizer.tokenizer.token_to_id(token) for token in tokens]
    return np.ma.MaskedArray([id or 0 for id in ids], [id is None for id in ids], np.int32)


def vocab(caller: Caller, tokenizer: Tokenizer, with_added_tokens: bool) -> Frame:
    """All tokens with their ids, in the order of the ids."""
    items = sorted(tokenizer.tokenizer.get_vocab(with_added_tokens).items(), key=lambda item: item[1])
    return Frame({
        "token": character(token for token, _ in items),
        "id": np.array([id for _, id in items], np.int32),
    })  # fmt: skip


def vocab_size(caller: Caller, tokenizer: Tokenizer, with_added_tokens: bool) -> int:
    """The number of tokens."""
    return tokenizer.tokenizer.get_vocab_size(with_added_tokens)  # type: ignore[no-any-return]


def save_tokenizer(caller: Caller, tokenizer: Tokenizer, path: str, pretty: bool) -> None:
    """Write a tokenizer.json."""
    from minhub_py.checkpoints.transfer import publish

    text = tokenizer.tokenizer.to_str(pretty=pretty)
    publish(Path(path), lambda draft: draft.write_text(text, encoding="utf-8"))


def warn_of_unknown(tokenizer: Any, texts: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Warn of characters without a token: the result is that of another text."""
    from minhub_py.checkpoints.tokenizers.tokenizer import describe_unknown, unknown_characters

    if lost := unknown_characters(tokenizer, "".join(texts), itertools.chain.from_iterable(rows)):
        warnings.warn(describe_unknown(tokenizer, lost), stacklevel=2)
