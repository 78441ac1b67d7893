"""The stored results of the R package pangoling (tests/support/pangoling.py), which R's tests use."""

from pathlib import Path

import pangoling
import pytest
from needs import needs
from r_package import WORDS, word_piece_tokenizer

from minhub_py import save_pretrained

NEEDS = (
    "pangoling in R, and in RETICULATE_PYTHON the path of a Python with PyTorch and transformers 4"
)


@needs("pangoling")
def test_the_stored_results_are_those_of_pangoling(tmp_path: Path) -> None:
    save_pretrained(pangoling.masked_model(len(WORDS)), tmp_path, word_piece_tokenizer())
    results = pangoling.pangoling_results(tmp_path)
    assert results["targets"] == pytest.approx(pangoling.TARGET_LOGPROBS, abs=1e-5)
    tokens = results["tokens"]
    result = dict(
        zip(
            zip(tokens["sentence"], map(int, tokens["mask_n"]), tokens["token"], strict=True),
            tokens["pred"],
            strict=True,
        )
    )
    masks = sorted({key[:2] for key in result})
    expected = {
        (*mask, token): value
        for mask, values in zip(masks, pangoling.MASK_LOGPROBS, strict=True)
        for token, value in zip(WORDS, values, strict=True)
    }
    assert result == pytest.approx(expected, abs=1e-5)
