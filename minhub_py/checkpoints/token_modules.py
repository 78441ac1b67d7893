"""Modules of sentence-transformers that compute sparse embeddings, and one vector per token.

Sources: Formal et al. (2021), "SPLADE v2"; Khattab & Zaharia (2020), "ColBERT"; the file formats of
sentence-transformers 5 and 6 and of PyLate 1, whose models sentence-transformers loads, too.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from typing import Annotated, TypedDict

from torch import Tensor

from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.shapes import Within, read_json

SPLADE_POOLINGS = ("max", "sum")
SPLADE_ACTIVATIONS = ("relu", "log1p_relu")
EXPANSIONS = ("fixed", "min")
# Settings of PyLate's config_sentence_transformers.json, which sentence-transformers 6 stores in
# the settings of the modules.
PYLATE_SETTINGS = (
    "query_length",
    "document_length",
    "query_expansion",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "query_prefix",
    "document_prefix",
    "skiplist_words",
)
QUERY_LENGTH = 32  # PyLate's default
Length = Annotated[int, Within(1, 2**24)]


class ExpansionSettings(TypedDict, total=False):
    """The setting query_expansion of a transformer module."""

    strategy: str
    attend: bool
    token: str
    length: Length


class LateInteraction(TypedDict, total=False):
    """Settings of vectors per token: of a transformer module, or in PyLate of the repository."""

    query_length: Length
    document_length: Length
    query_expansion: ExpansionSettings
    do_query_expansion: bool
    attend_to_expansion_tokens: bool
    query_prefix: str
    document_prefix: str
    skiplist_words: list[str]


class MaskSettings(TypedDict, total=False):
    """The settings of a module MultiVectorMask."""

    skiplist_words: list[str]
    skiplist_tasks: list[str]
    keep_only_token_ids: list[int]


class SpladeSettings(TypedDict, total=False):
    """The settings of a module SpladePooling."""

    pooling_strategy: str
    activation_function: str


@dataclass(frozen=True)
class Splade:
    """Sparse embeddings: log(1 + relu(logit)) of the masked-LM logits, pooled over the positions.

    pooling: "max" or "sum".    log_twice: whether the logarithm is applied twice, as in OpenSearch.
    """

    pooling: str = "max"
    log_twice: bool = False

    def __call__(self, logits: Tensor) -> Tensor:
        """The weight (V,) of each token of the vocabulary, from logits (T, V)."""
        if self.pooling == "max":  # before the logarithm, which keeps the order
            return self.activated(logits.amax(dim=0))
        return self.activated(logits).sum(dim=0)

    def activated(self, x: Tensor) -> Tensor:
        """The logarithm."""
        x = x.relu().log1p()
        return x.log1p() if self.log_twice else x


@dataclass(frozen=True)
class Expansion:
    """Mask tokens that fill a query up to `length` tokens.

    truncates: whether longer queries are truncated.    attend: whether other tokens attend to them.
    token: None: the mask token.
    """

    length: int
    truncates: bool
    attend: bool
    token: str | None = None


@dataclass(frozen=True)
class TokenVectors:
    """One vector per token, for late interaction (ColBERT). Without a task, texts are documents.

    query_length, document_length: maximum lengths; None: the repository's.
    skipped: words without a vector, if they are one token, in texts of `skipped_tasks`.
    """

    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()
    skipped_tasks: tuple[str, ...] = ("document",)


def read_splade(path: Path) -> Splade:
    """The settings of a module SpladePooling. ValueError: unknown."""
    settings = read_json(path, SpladeSettings) if path.exists() else SpladeSettings()
    pooling = settings.get("pooling_strategy") or "max"
    activation = settings.get("activation_function") or "relu"
    for name, value, choices in (
        ("pooling_strategy", pooling, SPLADE_POOLINGS),
        ("activation_function", activation, SPLADE_ACTIVATIONS),
    ):
        if value not in choices:
            raise ValueError(
                f"{path} has {name} {brief(value)}; supported are {', '.join(choices)}"
            )
    return Splade(pooling, activation == "log1p_relu")


def splade_files(splade: Splade) -> dict[str, object]:
    """The settings of a module SpladePooling with these values."""
    activation = SPLADE_ACTIVATIONS[splade.log_twice]
    return {"pooling_strategy": splade.pooling, "activation_function": activation}


def read_token_vectors(
    mask: Path | None, transformer: LateInteraction, repository: JsonMapping, where: Path
) -> TokenVectors:
    """The settings of late interaction.

    mask: the settings of a module MultiVectorMask.    transformer, repository: the settings of the
    transformer module and of config_sentence_transformers.json, from the file `where`.
    ValueError: a setting is not supported.
    """
    masks = read_json(mask, MaskSettings) if mask is not None and mask.exists() else MaskSettings()
    if masks.get("keep_only_token_ids"):
        raise ValueError(f"{mask} has keep_only_token_ids, for images: it is not supported")
    is_pylate = any(name in repository for name in PYLATE_SETTINGS)
    settings: JsonObject = {**(pylate_settings(repository) if is_pylate else {}), **transformer}
    skipped = masks.get("skiplist_words") or []
    tasks = masks.get("skiplist_tasks")
    if mask is None:  # PyLate skips punctuation by default
        words = repository.get("skiplist_words")
        skipped = list(string.punctuation) if words is None else words
    return TokenVectors(
        settings.get("query_length"),
        settings.get("document_length"),
        read_expansion(settings.get("query_expansion"), where),
        tuple(skipped),
        ("document",) if tasks is None else tuple(tasks),
    )


def pylate_settings(repository: Mapping[str, object]) -> dict[str, object]:
    """PyLate's settings in the form of sentence-transformers 6."""
    length, expansion = repository.get("query_length"), repository.get("query_expansion")
    if "query_expansion" not in repository and repository.get("do_query_expansion") is not False:
        expansion = {
            "strategy": "fixed",
            "attend": bool(repository.get("attend_to_expansion_tokens")),
            "length": length or QUERY_LENGTH,
        }
        length = None
    return {
        "query_length": length,
        "document_length": repository.get("document_length"),
        "query_expansion": expansion,
    }


def read_expansion(settings: ExpansionSettings | None, where: Path) -> Expansion | None:
    """The expansion of queries. ValueError: a value is missing or unknown."""
    if settings is None:
        return None
    strategy, length = settings.get("strategy"), settings.get("length")
    if strategy not in EXPANSIONS or length is None:
        raise ValueError(
            f"{where} has query_expansion {brief(settings)}: it needs a length and a strategy,"
            f" {' or '.join(EXPANSIONS)}"
        )
    attend = bool(settings.get("attend"))
    return Expansion(length, strategy == "fixed", attend, settings.get("token"))


def transformer_settings(vectors: TokenVectors) -> dict[str, object]:
    """The settings of late interaction that belong to the transformer module."""
    expansion = vectors.expansion
    settings = {
        "query_length": vectors.query_length,
        "document_length": vectors.document_length,
        "query_expansion": None
        if expansion is None
        else {
            "strategy": EXPANSIONS[0 if expansion.truncates else 1],
            "attend": expansion.attend,
            "token": expansion.token,
            "length": expansion.length,
        },
    }
    return {name: value for name, value in settings.items() if value is not None}


def mask_files(vectors: TokenVectors) -> dict[str, object]:
    """The settings of a module MultiVectorMask with these values."""
    return {
        "skiplist_words": list(vectors.skipped),
        "skiplist_tasks": list(vectors.skipped_tasks),
        "keep_only_token_ids": None,
    }


def prefixes(repository: JsonMapping) -> dict[str, str]:
    """PyLate's text before each query and each document, which is one token if the tokenizer has
    it.
    """
    names = (("query", "query_prefix"), ("document", "document_prefix"))
    return {name: repository.get(setting) or "" for name, setting in names if setting in repository}
