"""Packed texts: the hidden states of each text are those of the text alone, for each architecture."""

from typing import Any

import pytest
import torch
from references import FEW, assert_close, texts_of

import minhub_py
from minhub_py.models.attention import PackedPast
from minhub_py.training.packing import hidden_of_texts, supports_packing

LENGTHS = (1, 40, 17, 3, 41)  # beyond any window of the cases
# A recurrent state, or a bias of attention, also connects positions.
UNPACKED = {"bloom", "lfm2", "lfm2_moe", "qwen3_5_text", "qwen3_next", "qwen3_5_moe_text"}
PACKED = [name for name in FEW if name.partition("-")[0] not in UNPACKED]


@torch.no_grad()
@pytest.mark.parametrize("name", PACKED)
def test_packed_texts_equal_single_texts(load: Any, name: str) -> None:
    _, model, _ = load(name)
    assert supports_packing(model)
    texts = [torch.tensor(ids) for ids in texts_of(*LENGTHS)]
    packed = hidden_of_texts(model, texts)
    for text, hidden in zip(texts, packed, strict=True):
        assert_close(hidden[: len(text)], model.hidden(text.unsqueeze(0))[0])
        assert not hidden[len(text) :].any()


def test_a_bias_of_attention_is_rejected_for_packed_texts() -> None:
    idx, q = torch.zeros(1, 5, dtype=torch.int64), torch.zeros(1, 2, 5, 4)
    with pytest.raises(ValueError, match="packed texts cannot have a bias of attention"):
        PackedPast(idx, [2, 3]).attend(0, q, q, q, bias=torch.zeros(1, 2, 5, 5))


def test_other_architectures_are_padded(load: Any) -> None:
    for name in sorted(set(FEW) - set(PACKED)):
        assert not supports_packing(load(name)[1]), name
    assert not supports_packing(
        minhub_py.lstm(vocab_size=9, embedding_size=4, hidden_size=4, num_layers=1)
    )
