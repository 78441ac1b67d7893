"""Similarity of text embeddings, and semantic search."""

from collections.abc import Iterable
from reprlib import repr as brief
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minhub_py.inference.arguments import check_integer
from minhub_py.system.tables import Columns

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


def similarity(a: object, b: object = None, method: Similarity = "cosine") -> Tensor:
    """Compute the similarity of each pair of embeddings.

    Args:
        a: Embeddings of shape (N, C), or one of shape (C,): a tensor, an array or a list.
        b: Embeddings of shape (M, C); default: `a`.
        method: "cosine", "dot", or the negative "euclidean" or "manhattan" distance.

    Returns:
        Similarities of shape (N, M), float32.

    Raises:
        ValueError: The embeddings differ in size, or `method` is unknown.
    """
    a = matrix("a", a)
    b = a if b is None else matrix("b", b)
    if a.size(1) != b.size(1):
        raise ValueError(
            f"embeddings of a have {a.size(1)} dimensions, and those of b {b.size(1)}: use the same"
            " model"
        )
    match method:
        case "cosine":
            return F.normalize(a, dim=1) @ F.normalize(b, dim=1).T
        case "dot":
            return a @ b.T
        case "euclidean":
            return -torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
        case "manhattan":
            return -torch.cdist(a, b, p=1)
    raise ValueError(
        f'method must be "cosine", "dot", "euclidean" or "manhattan", not {brief(method)}'
    )


def search(query: object, texts: object, k: int = 10, method: Similarity = "cosine") -> Columns:
    """Find the embeddings that are most similar to each query.

        query = embed(model, tokenizer, ["how to train a model"], prompt="query")
        search(query, embed(model, tokenizer, texts), k=3)

    Args:
        query: Embeddings of the queries, of shape (N, C) or (C,).
        texts: Embeddings of the texts, of shape (M, C).
        k: Number of texts per query.
        method: As in `similarity`.

    Returns:
        Columns with `k` rows per query, the most similar text first: query and text (their numbers,
        from 0), rank (from 1) and score. Missing texts, whose embeddings are NaN, are not found.

    Raises:
        ValueError: As in `similarity`.
    """
    scores = similarity(query, texts, method).nan_to_num(-torch.inf)
    k = min(
        check_integer("k", k, 1),
        int((scores > -torch.inf).sum(dim=1).max()) if scores.numel() else 0,
    )
    best = scores.topk(k, dim=1)
    return Columns(
        {
            "query": np.repeat(np.arange(len(scores)), k),
            "text": best.indices.flatten().numpy(),
            "rank": np.tile(np.arange(1, k + 1), len(scores)),
            "score": best.values.flatten().numpy(),
        }
    )


def matrix(name: str, values: object) -> Tensor:
    """Embeddings as a tensor (N, C), float32. ValueError: they are not numbers of one or two
    dimensions.
    """
    if isinstance(values, Iterable) and not isinstance(values, Tensor):
        try:
            values = torch.as_tensor(np.asarray(values, dtype=np.float32))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} must be embeddings, as embed() returns them, not {brief(values)}"
            ) from error
    if not isinstance(values, Tensor) or values.dim() not in (1, 2):
        raise ValueError(f"{name} must be embeddings, as embed() returns them, not {brief(values)}")
    values = values.detach().float().cpu()
    return values.unsqueeze(0) if values.dim() == 1 else values
