"""Packed texts: each text's hidden states are those of the text alone, for each architecture."""

from typing import Any

import pytest
import torch
from references import FEW, TOLERANCE, texts_of

import minhub_py
from minhub_py.models.base import LanguageModel
from minhub_py.models.packed import PackedPast
from minhub_py.training.packing import hidden_of_texts, supports_packing

LENGTHS = (1, 40, 17, 3, 41)  # beyond any window of the cases
BIAS = "packed texts cannot have a bias of attention"


def is_exact(model: LanguageModel) -> bool:
    """Whether packed texts have the hidden states of single texts."""
    texts = [torch.tensor(ids) for ids in texts_of(*LENGTHS)]
    try:
        packed = hidden_of_texts(model, texts)
    except ValueError as error:
        if str(error) != BIAS:
            raise
        return False
    for text, hidden in zip(texts, packed, strict=True):
        expected = model.hidden(text.unsqueeze(0))[0]
        assert not hidden[len(text) :].any()
        if (hidden[: len(text)] - expected).abs().max() > TOLERANCE * expected.abs().max():
            return False
    return True


@torch.no_grad()
@pytest.mark.parametrize("name", FEW)
def test_texts_are_packed_where_that_is_exact(load: Any, name: str) -> None:
    """Texts are padded if more than attention connects positions: a recurrent state, or a bias of
    attention.
    """
    _, model, _ = load(name)
    assert supports_packing(model) == is_exact(model)


def test_a_bias_of_attention_is_rejected_for_packed_texts() -> None:
    idx, q = torch.zeros(1, 5, dtype=torch.int64), torch.zeros(1, 2, 5, 4)
    with pytest.raises(ValueError, match=BIAS):
        PackedPast(idx, [2, 3]).attend(0, q, q, q, bias=torch.zeros(1, 2, 5, 5))


def test_texts_of_recurrent_models_are_padded() -> None:
    assert not supports_packing(
        minhub_py.lstm(vocab_size=9, embedding_size=4, hidden_size=4, num_layers=1)
    )
