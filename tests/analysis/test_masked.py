"""Masked tokens, targets and pseudo-log-likelihoods beyond a model's maximum length, and
missing texts.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pangoling
import pytest
from encoders import CONTEXT, write_masked_lm
from r_package import WORDS, word_piece_tokenizer

from minhub_py import (
    from_pretrained,
    masked_logprobs,
    masked_tokens,
    pseudo_logprobs,
    tokenizer_from_pretrained,
)

LONG = "the cat " * 40


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder: Path = write_masked_lm(tmp_path_factory.mktemp("masked"))
    return from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(folder)


def test_a_mask_beyond_the_maximum_length_has_no_rows_and_a_warning(
    masked: tuple[Any, Any],
) -> None:
    texts = ["a [MASK]", f"the [MASK] {LONG} [MASK]", f"{LONG} [MASK]", "[MASK] dog"]
    message = (
        f"no result for a mask beyond the model's maximum length of {CONTEXT} tokens, in text 1, 2:"
        " shorten"
    )
    with pytest.warns(UserWarning, match=message):
        columns = masked_tokens(*masked, texts, 1)
    assert columns["text"].tolist() == [0, 1, 3]
    assert columns["mask"].tolist() == [0, 0, 0]
    assert columns["logprob"][2] == pytest.approx(
        masked_tokens(*masked, texts[3], 1)["logprob"][0], abs=1e-5
    )
    with pytest.raises(ValueError, match="text 1 has no mask: write"):
        masked_tokens(*masked, ["[MASK]", LONG])


def test_a_target_beyond_the_maximum_length_is_nan(masked: tuple[Any, Any]) -> None:
    """Also if only some of its tokens are beyond it."""
    complete = masked_logprobs(*masked, ["the"], ["zebra"])
    # with the special tokens, there is room for three of five masks
    almost = "the " * (CONTEXT - 5)
    with pytest.warns(UserWarning, match="no result for a target beyond .* in text 0, 2"):
        columns = masked_logprobs(*masked, [almost, "the", LONG], ["zebra", "zebra", "cat"])
    assert columns["tokens"].tolist() == [5, 5, 1]
    assert np.isnan(columns["logprob"]).tolist() == [True, False, True]
    assert columns["logprob"][1] == pytest.approx(complete["logprob"][0], abs=1e-4)


def test_a_text_beyond_the_maximum_length_has_no_pseudo_logprobs(masked: tuple[Any, Any]) -> None:
    fits = "the " * (CONTEXT - 2)
    with pytest.warns(
        UserWarning, match="no result for a text beyond .* in text 1: shorten the text"
    ):
        columns = pseudo_logprobs(*masked, [fits, LONG, None, "", "a dog"])
    assert np.bincount(columns["text"]).tolist() == [CONTEXT - 2, 0, 0, 0, 2]


def test_results_equal_those_of_pangoling() -> None:
    """pangoling masks the tokens of a target together; tests/support/pangoling.py has its results."""
    model, tokenizer = pangoling.masked_model(len(WORDS)), word_piece_tokenizer()
    logprobs = masked_logprobs(
        model, tokenizer, pangoling.CONTEXTS, pangoling.TARGETS, pangoling.AFTER
    )["logprob"]
    assert logprobs == pytest.approx(np.array(pangoling.TARGET_LOGPROBS), abs=1e-5)
    columns = masked_tokens(model, tokenizer, pangoling.SENTENCES, n=len(WORDS))
    results = dict(
        zip(
            zip(columns["text"], columns["mask"], columns["token"], strict=True),
            columns["logprob"],
            strict=True,
        )
    )
    masks = sorted({key[:2] for key in results})
    for mask, values in zip(masks, pangoling.MASK_LOGPROBS, strict=True):
        assert [results[(*mask, token)] for token in WORDS] == pytest.approx(values, abs=1e-5)
