"""One vector per token, and their comparison by late interaction (ColBERT).

A query's similarity to a document is the sum over the query's vectors of the largest dot
product with a vector of the document (MaxSim).

Source: Khattab & Zaharia (2020), "ColBERT: Efficient and Effective Passage Search via
Contextualized Late Interaction over BERT".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.encoders import Input, hidden_states, truncated_inputs
from minhub_py.analysis.masked import mask_of
from minhub_py.analysis.predictions import Progress
from minhub_py.analysis.tokens import Text
from minhub_py.checkpoints.sentence_transformers import EmbeddingSettings
from minhub_py.checkpoints.token_modules import Expansion, TokenVectors
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder

MAX_PRODUCTS = 2**24  # dot products of tokens at a time


@dataclass(frozen=True)
class TokenInput:
    """A text. attended: the number of its first tokens that tokens attend to.    kept: the positions
    with a vector.
    """

    row: Input
    attended: int
    kept: Tensor


def token_vectors(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: Sequence[Text],
    settings: EmbeddingSettings,
    prompt: str,
    name: str | None,
    progress: Progress | None,
) -> list[Tensor]:
    """The hidden states (T, C), float32, of the tokens with a vector, for each text; (0, C) for a
    missing text.

    name: of the prompt: "query" for queries.
    """
    encoder = token_model(model)
    inputs = token_inputs(encoder, tokenizer, texts, settings, prompt, name)
    numbers = [number for number, text in enumerate(inputs) if text is not None]
    present = [text for text in inputs if text is not None]
    results = [torch.empty(0, encoder.size)] * len(texts)
    rows, attended = [text.row for text in present], [text.attended for text in present]
    for i, x in hidden_states(encoder, rows, progress, attended):
        results[numbers[i]] = x[present[i].kept]
    return results


def kept_ids(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: Sequence[Text],
    settings: EmbeddingSettings,
    prompt: str,
    name: str | None,
) -> list[list[int]]:
    """The token IDs of each text's vectors; empty for a missing text. Arguments as above."""
    inputs = token_inputs(token_model(model), tokenizer, texts, settings, prompt, name)
    return [
        [] if text is None else [text.row.ids[position] for position in text.kept.tolist()]
        for text in inputs
    ]


def token_model(model: LanguageModel) -> Encoder:
    """The model. ValueError: it is a decoder."""
    if not isinstance(model, Encoder):
        raise ValueError(
            f"vectors per token (ColBERT) of a decoder, here {model.config.TITLE}, are not"
            " supported: use an encoder"
        )
    return model


def token_inputs(
    model: Encoder,
    tokenizer: Tokenizer | None,
    texts: Sequence[Text],
    settings: EmbeddingSettings,
    prompt: str,
    name: str | None,
) -> list[TokenInput | None]:
    """Each text's input; None for a missing text. Arguments as above."""
    vectors = settings.tokens or TokenVectors()
    limit, expansion = limit_of_task(settings.max_length, vectors, name), None
    if name == "query":
        expansion = vectors.expansion
    limited = replace(settings, max_length=limit)
    inputs = truncated_inputs(model, tokenizer, texts, limited, prompt)
    if tokenizer is None and (expansion is not None or vectors.skipped):
        raise ValueError("vectors per token (ColBERT) need the tokenizer of the model: pass it")
    skipped = set[int]()
    if tokenizer is not None and (name or "document") in vectors.skipped_tasks:
        skipped = {
            id for word in vectors.skipped if (id := tokenizer.token_to_id(word)) is not None
        }
    results: list[TokenInput | None] = []
    for row in inputs:
        if row is None:
            results.append(None)
            continue
        longer = row if expansion is None else expanded(row, expansion, tokenizer)
        attended = len(row.ids) if expansion is not None and not expansion.attend else None
        positions = [position for position, id in enumerate(longer.ids) if id not in skipped]
        results.append(
            TokenInput(
                longer,
                len(longer.ids) if attended is None else attended,
                torch.tensor(positions).long(),
            )
        )
    return results


def limit_of_task(max_length: int | None, vectors: TokenVectors, name: str | None) -> int | None:
    """The maximum number of tokens of a query, of a document, or of another text."""
    if name == "query" and vectors.expansion is not None:
        if vectors.expansion.truncates:
            return vectors.expansion.length
        if vectors.query_length is not None:
            return max(vectors.query_length, vectors.expansion.length)
        return max_length
    lengths = {"query": vectors.query_length, "document": vectors.document_length}
    return lengths.get(name or "") or max_length


def expanded(row: Input, expansion: Expansion, tokenizer: Tokenizer | None) -> Input:
    """A query, filled with mask tokens."""
    assert tokenizer is not None
    token = mask_of(tokenizer) if expansion.token is None else expansion.token
    id = tokenizer.token_to_id(token)
    if id is None:
        raise ValueError(f"the tokenizer has no token {token!r}, which expands queries")
    padding = max(expansion.length - len(row.ids), 0)
    return replace(row, ids=[*row.ids, *[id] * padding], types=[*row.types, *[0] * padding])


def late_interaction(a: Sequence[Tensor], b: Sequence[Tensor], mean: bool = False) -> Tensor:
    """MaxSim (N, M), float32, of queries and documents, each a tensor (T, C). NaN for a text
    without vectors.

    mean: divide by the number of a query's vectors.
    """
    scores = torch.full((len(a), len(b)), torch.nan)
    queries = [number for number, x in enumerate(a) if len(x)]
    if not queries:
        return scores
    counts = torch.tensor([len(a[number]) for number in queries])
    vectors = torch.cat([a[number] for number in queries])  # (sum of T, C)
    for group in groups_of([len(x) for x in b], max(MAX_PRODUCTS // len(vectors), 1)):
        products = torch.cat([b[number] for number in group]) @ vectors.T
        lengths = torch.tensor([len(b[number]) for number in group])
        best = torch.segment_reduce(products, "max", lengths=lengths, axis=0)  # (M, sum of T)
        sums = torch.segment_reduce(best.T.contiguous(), "sum", lengths=counts, axis=0)
        values = sums / counts.unsqueeze(1) if mean else sums
        scores[torch.tensor(queries).unsqueeze(1), torch.tensor(group)] = values
    return scores


def groups_of(lengths: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Indices of texts with vectors, in groups of about `limit` vectors."""
    group: list[int] = []
    size = 0
    for number, length in enumerate(lengths):
        if not length:
            continue
        if group and size + length > limit:
            yield group
            group, size = [], 0
        group.append(number)
        size += length
    if group:
        yield group
