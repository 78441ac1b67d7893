"""Sparse embeddings (SPLADE): the weight of each token of the vocabulary for a text.

Source: Formal et al. (2021), "SPLADE v2: Sparse Lexical and Expansion Model for Information
Retrieval".
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.encoders import head_output, hidden_states, truncated_inputs
from minhub_py.analysis.predictions import Progress
from minhub_py.analysis.tokens import Text
from minhub_py.checkpoints.sentence_transformers import EmbeddingSettings
from minhub_py.checkpoints.token_modules import Splade
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder
from minhub_py.models.heads import MaskedLMHead


def sparse_embeddings(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    texts: Sequence[Text],
    settings: EmbeddingSettings,
    prompt: str,
    dimensions: int | None,
    progress: Progress | None,
) -> Tensor:
    """The sparse embeddings (N, V) of texts, in COO layout. A missing text has one element, NaN.

    dimensions: the number of largest weights to keep; default: the repository's, or all.
    ValueError: the model has no masked-LM head.
    """
    encoder, splade = splade_model(model), settings.splade or Splade()
    inputs = truncated_inputs(encoder, tokenizer, texts, settings, prompt)
    present = [number for number, row in enumerate(inputs) if row is not None]
    rows = [row for row in inputs if row is not None]
    nan_entry = (torch.tensor([0]), torch.tensor([torch.nan]))
    elements = [nan_entry] * len(texts)
    count = settings.dimensions if dimensions is None else dimensions
    for i, x in hidden_states(encoder, rows, progress):
        elements[present[i]] = nonzero(splade(head_output(encoder, x)), count)
    return sparse_matrix(elements, encoder.config.vocab_size)


def splade_model(model: LanguageModel) -> Encoder:
    """The model. ValueError: it has no masked-LM head."""
    if isinstance(model, Encoder) and isinstance(model.head, MaskedLMHead):
        return model
    names = getattr(model.config, "architectures", None) or [model.config.TITLE]
    raise ValueError(
        "sparse embeddings (SPLADE) need a masked-LM head, which this checkpoint does not have: use"
        f" a checkpoint with an architecture …ForMaskedLM, not {names[0]}"
    )


def nonzero(x: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """The token IDs, ascending, and the values of the nonzero weights (V,). count: of the largest
    weights to keep.
    """
    ids = x.nonzero().squeeze(1)
    if count is not None and count < len(ids):
        ids = ids[x[ids].topk(count).indices.sort().values]
    return ids, x[ids]


def sparse_matrix(elements: Sequence[tuple[Tensor, Tensor]], size: int) -> Tensor:
    """A sparse tensor (N, size) from the columns, ascending, and the values of each row."""
    counts = torch.tensor([len(columns) for columns, _ in elements], dtype=torch.long)
    rows = torch.arange(len(elements)).repeat_interleave(counts)
    columns = torch.cat([columns for columns, _ in elements] or [torch.empty(0).long()])
    values = torch.cat([values for _, values in elements] or [torch.empty(0)])
    return torch.sparse_coo_tensor(
        torch.stack((rows, columns)),
        values,
        (len(elements), size),
        is_coalesced=True,
        check_invariants=False,
    )


def normalized(x: Tensor) -> Tensor:
    """Sparse embeddings (N, V), each divided by its length."""
    x = x.coalesce()
    lengths = torch.zeros(len(x)).index_add(0, x.indices()[0], x.values() ** 2).sqrt()
    values = x.values() / lengths.clamp(min=1e-12)[x.indices()[0]]
    return torch.sparse_coo_tensor(
        x.indices(), values, x.shape, is_coalesced=True, check_invariants=False
    )


def similarity_of_sparse(a: Tensor, b: Tensor, method: str) -> Tensor:
    """Dot products or cosines (N, M), float32, of embeddings; one or both are sparse."""
    if method == "cosine":
        a, b = (normalized(x) if x.is_sparse else F.normalize(x, dim=1) for x in (a, b))
    scores = dot_products(a, b) if b.is_sparse else dot_products(b, a).T
    scores[rows_with_nan(a)] = torch.nan
    scores[:, rows_with_nan(b)] = torch.nan
    return scores


def dot_products(a: Tensor, b: Tensor) -> Tensor:
    """Dot products (N, M) of the rows of a, dense or sparse, and of sparse b.

    PyTorch's products of sparse tensors warn about a beta state.
    """
    b = b.coalesce()
    rows, columns = b.indices()
    scores = torch.zeros(len(a), len(b))
    for i in range(len(a)):
        row = a[i].to_dense() if a.is_sparse else a[i]
        scores[i].index_add_(0, rows, row[columns] * b.values())
    return scores


def rows_with_nan(x: Tensor) -> Tensor:
    """The numbers of the rows that contain NaN."""
    if not x.is_sparse:
        return x.isnan().any(dim=1).nonzero().squeeze(1)
    x = x.coalesce()
    return x.indices()[0][x.values().isnan()].unique()
