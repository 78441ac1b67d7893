"""Further measures of words: the correction at word boundaries, Rényi entropies, PMI, and lags.

Correction. Tokenizers such as GPT-2's mark the beginning of a word, so that a word's end is known
only from the next token. With B(t) = the probability that the token at position t begins a word, f
a word's first and l its last token:

    log p(word | context) = Σ log p(token) − log B(f) + log B(l + 1)

Both methods compute B from the logits of the same pass. They differ in the tokens that B includes:

    "pimentel"  tokens that begin with the mark, and the end tokens of the model. A text's first word has no mark
                before it: its B(f) is the probability of the tokens without the mark, and of the end tokens.
    "oh"        tokens that begin with the mark. A text's first word has no B(f).

A text's last word has B(l + 1), computed at the position after the text. If the tokenizer
marks the first word, too, its B(f) is computed as for other words.

Sources
    Pimentel & Meister (2024), "How to Compute the Probability of a Word", and their package
        wordsprobability 0.17, which counts the end token twice in B of the first word; here it
        counts once.
    Oh & Schuler (2024), "Leading Whitespaces of Language Models' Subword Vocabulary Pose a Confound
        for Calculating Word Probabilities", and their code (wt_decoding).
    Pimentel, Meister, Wilcox, Levy & Cotterell (2023), "On the Effect of Anticipation on Reading
        Times", for Rényi entropies.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from reprlib import repr as brief
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.predictions import Measure
from minhub_py.checkpoints.tokenizers.surroundings import bos_token_id
from minhub_py.inference.arguments import check_integer
from minhub_py.models.base import LanguageModel
from minhub_py.system.spelling import setting
from minhub_py.system.tables import Columns

METHODS = ("pimentel", "oh")
# of byte-level BPE, SentencePiece, and of tokens that contain the space itself
MARKS = ("Ġ", "▁", " ")
MIN_TOKENS = 2  # tokens with the mark; a vocabulary of characters contains the space only


@dataclass(frozen=True)
class Measures:
    """Requested measures of words, in addition to log-probability, surprisal and entropy.

    correct: "pimentel", "oh" or None.    renyi: orders of Rényi entropies.    premise: the text
    before each word for PMI, or None.    lags: the number of previous words whose values are added.
    """

    correct: str | None = None
    renyi: tuple[float, ...] = ()
    premise: str | None = None
    lags: int = 0

    @property
    def renyi_columns(self) -> dict[str, float]:
        """The order of each column of Rényi entropies."""
        return {f"renyi_{order:g}": order for order in self.renyi}

    @property
    def columns(self) -> list[str]:
        """The names of the additional columns, in order."""
        names = [*self.renyi_columns, *([] if self.premise is None else ["pmi"])]
        return names + [
            f"{name}_lag{lag}"
            for lag in range(1, self.lags + 1)
            for name in ("surprisal", "entropy")
        ]


def measures_of(
    correct: object = None,
    renyi: object = None,
    premise: object = None,
    lags: object = 0,
    *,
    ignored: bool = False,
) -> Measures:
    """Check the arguments of `word_logprobs`. ignored: tokens are ignored. ValueError: an argument
    is wrong.
    """
    if correct is not None and correct not in METHODS:
        raise ValueError(f'correct must be "pimentel", "oh" or None, not {brief(correct)}')
    if correct is not None and ignored:
        raise ValueError("correct is the probability of complete words: leave ignore_regex unset")
    orders: list[Any] = (
        [] if renyi is None else list(renyi) if isinstance(renyi, Iterable) else [renyi]
    )
    for order in orders:
        if isinstance(order, bool) or not isinstance(order, Real) or not float(order) >= 0:
            raise ValueError(
                f"renyi must be an order of 0 or more, such as 0.5, not {brief(order)}"
            )
    if premise is not None and not isinstance(premise, str):
        raise ValueError(f"premise must be a text, not {brief(premise)}")
    unique = tuple(dict.fromkeys(float(order) for order in orders))
    return Measures(correct, unique, premise, check_integer("lags", lags, 0))


def renyi_entropy(order: float) -> Measure:
    """The Rényi entropy (bits) of each distribution: log2 Σ p^order / (1 − order).

    Order 1 is Shannon's entropy, and infinity the surprisal of the most likely token.
    """

    def entropy(shifted: Tensor, weights: Tensor, total: Tensor) -> Tensor:
        if order == 1:
            nats = total.log() - (weights * shifted).sum(dim=-1) / total
        elif math.isinf(order):
            nats = total.log()  # the largest weight is 1
        else:
            nats = ((shifted * order).exp_().sum(dim=-1).log() - order * total.log()) / (1 - order)
        return nats / math.log(2)

    return entropy


def log_probability(ids: Sequence[int]) -> Measure:
    """The log-probability (nats) that the next token is one of `ids`."""
    index = torch.tensor(ids, dtype=torch.long)

    def measure(_: Tensor, weights: Tensor, total: Tensor) -> Tensor:
        return (weights.index_select(-1, index.to(weights.device)).sum(dim=-1) / total).log()

    return measure


@dataclass(frozen=True)
class Boundaries:
    """The tokens at which words begin and end.

    marked: tokens with the mark.    plain: all tokens of text.
    following: the tokens of B after a word, and before a word with the mark.    opening: the tokens
    of B before a text's first word, if it has no mark; empty: no B.
    """

    marked: frozenset[int]
    plain: frozenset[int]
    following: list[int]
    opening: list[int]

    def measures(self) -> dict[str, Measure]:
        """The measures that `correction` requires."""
        sets = {"following": self.following, "opening": self.opening}
        return {name: log_probability(ids) for name, ids in sets.items() if ids}


def boundaries_of(model: LanguageModel, tokenizer: Tokenizer, method: str) -> Boundaries:
    """The tokens at which words begin. ValueError: the tokenizer does not mark the beginning of
    words.
    """
    end = [id for id in end_tokens(model) if id < model.config.vocab_size]
    special: set[int | None] = {
        id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special
    }
    special |= {*end, bos_token_id(tokenizer, model.config), model.decoder_start}
    vocabulary = {
        token: id for token, id in tokenizer.get_vocab().items() if id < model.config.vocab_size
    }
    plain = {token: id for token, id in vocabulary.items() if id not in special}
    by_mark = {
        mark: {id for token, id in plain.items() if token.startswith(mark)} for mark in MARKS
    }
    marked = max(by_mark.values(), key=len)
    if len(marked) < MIN_TOKENS:
        raise ValueError(
            f"{setting('correct')} needs a tokenizer whose tokens mark the beginning of a word, as"
            f" GPT-2's or Llama's do, but this tokenizer does not: leave {setting('correct')} unset"
        )
    if method == "oh":
        return Boundaries(frozenset(marked), frozenset(plain.values()), sorted(marked), [])
    opening = {id for id in plain.values() if id not in marked}
    return Boundaries(
        frozenset(marked),
        frozenset(plain.values()),
        sorted(marked.union(end)),
        sorted(opening.union(end)),
    )


def end_tokens(model: LanguageModel) -> list[int]:
    """The IDs of the model's end-of-sequence tokens; empty if it has none."""
    ids = getattr(model.config, "eos_token_id", None)
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def correction(
    values: Mapping[str, NDArray[np.float64]],
    slots: Iterable[int],
    ids: Sequence[Sequence[int]],
    token_rows: Sequence[Sequence[int]],
    count: int,
    boundaries: Boundaries,
) -> NDArray[np.float64]:
    """The change of each row's log-probability.

    Args:
        values: log B at each position of each text and after it, by name of `Boundaries.measures`.
        slots: The start of each text in `values`.
        ids: The token IDs of each text.
        token_rows: Each token's row; `count` for none.
        count: The number of rows.
        boundaries: The tokens of B.

    ValueError: a word after the first one of a text does not begin with the mark.
    """
    result = np.zeros(count)
    for slot, text, rows in zip(slots, ids, token_rows, strict=False):
        previous = count
        for position, (id, row) in enumerate(zip(text, rows, strict=True)):
            if row not in (count, previous):
                if id in boundaries.marked:
                    result[row] -= values["following"][slot + position]
                elif any(earlier in boundaries.plain for earlier in text[:position]):
                    raise ValueError(
                        f"{setting('correct')} needs words that are separated by a space, but a"
                        " word follows another text without one: join the two words, or leave"
                        f" {setting('correct')} unset"
                    )
                elif boundaries.opening:
                    result[row] -= values["opening"][slot + position]
            if row != count and (position + 1 == len(text) or rows[position + 1] != row):
                result[row] += values["following"][slot + position + 1]
            previous = row
    return result


def add_lags(columns: Columns, texts: Iterable[Sequence[int | None]], lags: int) -> None:
    """Add the surprisal and the entropy of the previous words. texts: the rows of each text's
    words, in order.
    """
    order = [[row for row in rows if row is not None] for rows in texts]
    for lag in range(1, lags + 1):
        for name in ("surprisal", "entropy"):
            values = np.full(len(columns[name]), np.nan)
            for rows in order:
                values[rows[lag:]] = columns[name][rows[:-lag]]
            columns[f"{name}_lag{lag}"] = values
