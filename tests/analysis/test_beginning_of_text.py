"""The beginning-of-text token: the tokenizer's, even if config.json's bos_token_id is a word of the
tokenizer.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from minhub_py import gpt2, minimal_pairs, save_pretrained, tokenizer_from_pretrained, word_logprobs
from minhub_py.checkpoints.tokenizers.surroundings import bos_token_id
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

WORDS = ["the", "cat", "says", "hello"]
SIZES = {"n_embd": 32, "n_head": 2, "n_layer": 1, "n_positions": 32}


def saved(
    folder: Path, bos: int | None, settings: dict[str, Any], before: bool = False
) -> tuple[Any, Tokenizer]:
    """A model whose config names `bos`, and a tokenizer with the settings. before: it adds
    <|endoftext|> itself.
    """
    tokenizer = train_byte_level_bpe([" ".join(WORDS)] * 9, 280)
    if before:
        special = "<|endoftext|>"
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{special} $A", special_tokens=[(special, 0)]
        )
    model = gpt2(
        vocab_size=tokenizer.get_vocab_size(), bos_token_id=bos, eos_token_id=0, **SIZES
    ).eval()
    save_pretrained(model, folder, tokenizer)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model, tokenizer_from_pretrained(str(folder))


@pytest.mark.parametrize(
    "before", [False, True], ids=["named in tokenizer_config.json", "added to each text"]
)
def test_the_tokenizer_decides_and_a_contradiction_is_reported_once(
    tmp_path: Path, before: bool
) -> None:
    """As in german-gpt2, whose bos_token_id is a word, and whose tokenizer names <|endoftext|>."""
    word = 260
    settings = {} if before else {"bos_token": "<|endoftext|>"}
    model, tokenizer = saved(tmp_path, word, settings, before)
    with pytest.warns(
        UserWarning,
        match=rf"bos_token_id is {word}, '.+', but the tokenizer's beginning of text is 0",
    ):
        actual = word_logprobs(model, tokenizer, WORDS, bos=True)
    right = gpt2(vocab_size=model.config.vocab_size, bos_token_id=0, eos_token_id=0, **SIZES).eval()
    right.load_state_dict(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = word_logprobs(right, tokenizer, WORDS, bos=True)
        again = word_logprobs(model, tokenizer, WORDS, bos=True)
        pairs = [
            minimal_pairs(m, tokenizer, [("the cat", "cat the")], bos=True) for m in (model, right)
        ]
    assert actual["logprob"].tolist() == again["logprob"].tolist() == expected["logprob"].tolist()
    assert repr(pairs[0]) == repr(pairs[1])


@pytest.mark.parametrize(
    ("bos", "settings", "expected"),
    [
        (5, {}, 5),  # the tokenizer has no name for it
        (None, {"bos_token": "<|endoftext|>"}, 0),
        (None, {}, None),
        (0, {"bos_token": {"content": "<|endoftext|>"}}, 0),
        (5, {"bos_token": None}, 5),
    ],
)
def test_without_a_contradiction_either_names_the_token(
    tmp_path: Path, bos: int | None, settings: dict[str, Any], expected: int | None
) -> None:
    model, tokenizer = saved(tmp_path, bos, settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bos_token_id(tokenizer, model.config) == expected
