"""The tokenizer of a model whose source and target texts have a tokenizer each, such as Marian.

`PairedTokenizer` has the methods of `tokenizers.Tokenizer`. As transformers' MarianTokenizer, it
encodes texts of the source language, which the encoder reads, and decodes tokens of the target
language, which the model generates. `source_tokenizer` and `target_tokenizer` are the two sides, to
decode the tokens of a prompt and to encode a target; they return other tokenizers unchanged.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from tokenizers import Tokenizer

AnyTokenizer = TypeVar("AnyTokenizer")  # or None


class PairedTokenizer:
    """Encodes with the tokenizer `source`, and decodes with the tokenizer `target`.

    All methods but those below are of the source.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self.source, self.target = source, target

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("source", "target"):  # while it is copied
            raise AttributeError(name)
        return getattr(self.source, name)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token IDs of the target."""
        return self.target.decode(ids, skip_special_tokens=skip_special_tokens)

    def decode_batch(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = True
    ) -> list[str]:
        """The texts of lists of token IDs of the target."""
        return self.target.decode_batch(sequences, skip_special_tokens=skip_special_tokens)

    def id_to_token(self, id: int) -> str | None:
        """The token of an ID of the target."""
        return self.target.id_to_token(id)


def source_tokenizer(tokenizer: AnyTokenizer) -> AnyTokenizer:
    """The tokenizer of texts that a model reads."""
    pair: Any = tokenizer
    return pair.source if isinstance(pair, PairedTokenizer) else pair  # type: ignore[return-value]


def target_tokenizer(tokenizer: AnyTokenizer) -> AnyTokenizer:
    """The tokenizer of texts that a model generates."""
    pair: Any = tokenizer
    return pair.target if isinstance(pair, PairedTokenizer) else pair  # type: ignore[return-value]
