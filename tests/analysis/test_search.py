"""`similarity` and `search`: missing and empty embeddings, and embeddings that do not fit."""

import numpy as np
import pytest
import torch

from minhub_py import search, similarity

VECTORS = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
MISSING = torch.full((1, 2), torch.nan)


def test_a_missing_query_has_no_rows() -> None:
    found = search(torch.cat((MISSING, VECTORS[:1])), torch.cat((VECTORS, MISSING)), k=10)
    assert found["query"].tolist() == [1, 1, 1]
    assert found["text"].tolist() == [0, 1, 2]
    assert found["rank"].tolist() == [1, 2, 3]
    assert np.isfinite(found["score"]).all()
    per_token = [torch.empty(0, 2), VECTORS[:2]]
    assert set(search(per_token, [VECTORS, VECTORS[:1]])["query"]) == {1}


def test_one_sparse_embedding_is_a_row() -> None:
    sparse = VECTORS.to_sparse()
    assert torch.equal(similarity(sparse[1], sparse), similarity(VECTORS[1], VECTORS, "dot"))
    with pytest.raises(ValueError, match="a must be embeddings"):
        similarity(torch.ones(1, 1, 2).to_sparse())


def test_no_sparse_embeddings_have_no_similarities() -> None:
    empty = torch.empty(0, 2).to_sparse()
    assert similarity(empty, VECTORS.to_sparse()).shape == (0, 3)
    assert similarity(VECTORS.to_sparse(), empty).shape == (3, 0)
    assert len(search(VECTORS.to_sparse(), empty)["text"]) == 0


def test_vectors_per_token_of_several_sizes_are_rejected() -> None:
    with pytest.raises(ValueError, match="embeddings have 2 and 3 dimensions: use the same model"):
        similarity([torch.ones(2, 2), torch.ones(2, 3)], [torch.ones(2, 2)])
