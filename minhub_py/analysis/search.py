"""Similarity of text embeddings, and semantic search. Embeddings are dense, sparse, or one vector per
token.
"""

from collections.abc import Iterable, Sequence
from reprlib import repr as brief
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from minhub_py.analysis.sparse import similarity_of_sparse
from minhub_py.analysis.token_vectors import late_interaction
from minhub_py.inference.arguments import check_integer
from minhub_py.system.tables import Columns

Similarity = Literal["cosine", "dot", "euclidean", "manhattan", "maxsim", "meanmaxsim"]
DENSE = ("cosine", "dot", "euclidean", "manhattan")
SPARSE = ("dot", "cosine")
PER_TOKEN = ("maxsim", "meanmaxsim")


def similarity(a: object, b: object = None, method: Similarity | None = None) -> Tensor:
    """Compute the similarity of each pair of embeddings.

    Args:
        a: Embeddings of shape (N, C), or one of shape (C,): a tensor, an array or a list; sparse
            embeddings, a sparse tensor; or one vector per token, a list of tensors (T, C).
        b: Embeddings of shape (M, C); default: `a`.
        method: "cosine", "dot", or the negative "euclidean" or "manhattan" distance; for sparse
            embeddings "dot" or "cosine"; for one vector per token "maxsim", the sum over the
            vectors of `a` of the largest dot product with a vector of `b`, or "meanmaxsim", the
            mean. Default: the first, as in sentence-transformers.

    Returns:
        Similarities of shape (N, M), float32.

    Raises:
        ValueError: The embeddings differ in size or kind, or `method` is unknown.
    """
    left = embeddings_of("a", a)
    right = left if b is None else embeddings_of("b", b)
    sizes = [width(left), width(right)]
    if None not in sizes and sizes[0] != sizes[1]:
        raise ValueError(
            f"embeddings of a have {sizes[0]} dimensions, and those of b {sizes[1]}: use the same"
            " model"
        )
    if isinstance(left, list) and isinstance(right, list):
        return late_interaction(left, right, check_method(method, PER_TOKEN) == "meanmaxsim")
    if isinstance(left, list) or isinstance(right, list):
        raise ValueError("a and b must be of one kind: one of them has one vector per token")
    if left.is_sparse or right.is_sparse:
        return similarity_of_sparse(left, right, check_method(method, SPARSE))
    match check_method(method, DENSE):
        case "cosine":
            return F.normalize(left, dim=1) @ F.normalize(right, dim=1).T
        case "dot":
            return left @ right.T
        case "euclidean":
            return -torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
        case _:
            return -torch.cdist(left, right, p=1)


def width(x: Tensor | list[Tensor]) -> int | None:
    """C, the number of dimensions of embeddings; None for no texts.

    ValueError: vectors per token have different numbers of dimensions.
    """
    if isinstance(x, Tensor):
        return x.size(1)
    sizes = sorted({vectors.size(1) for vectors in x})
    if len(sizes) > 1:
        raise ValueError(
            f"embeddings have {sizes[0]} and {sizes[1]} dimensions: use the same model"
        )
    return sizes[0] if sizes else None


def quoted(name: str) -> str:
    """The name in quotes."""
    return f'"{name}"'


def check_method(method: str | None, methods: Sequence[str]) -> str:
    """The method; by default the first. ValueError: these embeddings do not support it."""
    if method is None:
        return methods[0]
    if method not in methods:
        names = f"{', '.join(map(quoted, methods[:-1]))} or {quoted(methods[-1])}"
        kind = {DENSE: "", SPARSE: " for sparse embeddings", PER_TOKEN: " for vectors per token"}
        raise ValueError(f"method must be {names}{kind[tuple(methods)]}, not {brief(method)}")
    return method


def search(query: object, texts: object, k: int = 10, method: Similarity | None = None) -> Columns:
    """Find the embeddings that are most similar to each query.

        query = embed(model, tokenizer, ["how to train a model"], prompt="query")
        search(query, embed(model, tokenizer, texts), k=3)

    Args:
        query: Embeddings of the queries, of shape (N, C) or (C,), or as in `similarity`.
        texts: Embeddings of the texts, of shape (M, C), or as in `similarity`.
        k: Number of texts per query.
        method: As in `similarity`.

    Returns:
        Columns with at most `k` rows per query, the most similar text first: query and text (their
        numbers, from 0), rank (from 1) and score. Missing texts, whose embeddings are NaN, are not
        found, and missing queries have no rows.

    Raises:
        ValueError: As in `similarity`.
    """
    scores = similarity(query, texts, method).nan_to_num(-torch.inf)
    k = min(
        check_integer("k", k, 1),
        int((scores > -torch.inf).sum(dim=1).max()) if scores.numel() else 0,
    )
    best = scores.topk(k, dim=1)
    present = (best.values > -torch.inf).flatten().numpy()
    return Columns(
        {
            "query": np.repeat(np.arange(len(scores)), k)[present],
            "text": best.indices.flatten().numpy()[present],
            "rank": np.tile(np.arange(1, k + 1), len(scores))[present],
            "score": best.values.flatten().numpy()[present],
        }
    )


def embeddings_of(name: str, values: object) -> Tensor | list[Tensor]:
    """Embeddings as a tensor (N, C), float32, dense or sparse, or as a list of tensors (T, C).

    ValueError: they are not numbers of one or two dimensions.
    """
    if isinstance(values, Tensor) and values.layout != torch.strided:
        if values.dim() not in (1, 2):
            raise ValueError(f"{name} must be embeddings, as embed() returns them")
        x = values.detach().float().cpu().to_sparse_coo()
        return (x.unsqueeze(0) if x.dim() == 1 else x).coalesce()
    if isinstance(values, Sequence) and not isinstance(values, str):
        first = next(iter(values), None)
        if getattr(first, "ndim", None) == 2:
            return [matrix(f"{name}[{number}]", rows) for number, rows in enumerate(values)]
    return matrix(name, values)


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
