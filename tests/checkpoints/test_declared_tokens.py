"""Special and added tokens that only tokenizer_config.json names, compared with transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from minhub_py import tokenizer_from_pretrained
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

TEXT = "the cat<|user|> says <|bot|> hello[PAD]<ret> <tool>the cat"
SIZE = 290
ENTRY = {
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "single_word": False,
    "special": True,
}
DECLARED: dict[str, dict[str, Any]] = {
    "additional_special_tokens": {"additional_special_tokens": ["<|user|>", "<|bot|>"]},
    "objects": {
        "additional_special_tokens": [
            {
                "content": "<|user|>",
                "lstrip": True,
                **dict.fromkeys(("rstrip", "normalized", "single_word"), False),
                "__type": "AddedToken",
            }
        ]
    },
    "extra_special_tokens": {"extra_special_tokens": ["<|bot|>"]},
    "pad_token": {"pad_token": "[PAD]"},
    "added_tokens_decoder": {
        "added_tokens_decoder": {
            "290": {**ENTRY, "content": "<|user|>"},
            "291": {**ENTRY, "content": "<ret>", "special": False, "rstrip": True},
        }
    },
    "other properties": {
        "added_tokens_decoder": {"289": {**ENTRY, "content": "<tool>", "lstrip": True}}
    },
    "a word of the vocabulary": {"additional_special_tokens": ["he"]},
}


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    tokenizer = train_byte_level_bpe(["the cat says hello the cat hello user bot"] * 9, SIZE - 1)
    while tokenizer.get_vocab_size() < SIZE - 1:
        tokenizer.add_tokens([f"unused{tokenizer.get_vocab_size()}"])
    tokenizer.add_special_tokens(["<tool>"])
    return tokenizer


def save(
    folder: Path, words: Tokenizer, settings: dict[str, Any], vocab_size: int | None = SIZE + 20
) -> None:
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    )
    if vocab_size is not None:
        (folder / "config.json").write_text(
            json.dumps({"model_type": "gpt2", "vocab_size": vocab_size})
        )


@pytest.mark.parametrize("name", DECLARED)
def test_declared_tokens_match_transformers(tmp_path: Path, words: Tokenizer, name: str) -> None:
    save(tmp_path, words, DECLARED[name])
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = tokenizer_from_pretrained(str(tmp_path))
    ids = ours.encode(TEXT).ids
    assert ids == reference(TEXT)["input_ids"]
    assert ids != words.encode(TEXT).ids
    # transformers 4 marks them as special, 5 does not
    for skip in (False,) if name == "objects" else (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == reference.decode(
            ids, skip_special_tokens=skip
        )


def test_a_token_without_an_embedding_is_not_added(tmp_path: Path, words: Tokenizer) -> None:
    save(tmp_path, words, {"pad_token": "[PAD]", "additional_special_tokens": ["<|user|>"]}, SIZE)
    ours = tokenizer_from_pretrained(str(tmp_path))
    assert ours.get_vocab_size() == SIZE
    assert ours.encode(TEXT).ids == words.encode(TEXT).ids


def test_without_a_model_all_declared_tokens_are_added(tmp_path: Path, words: Tokenizer) -> None:
    save(tmp_path, words, {"pad_token": "[PAD]"}, None)
    assert tokenizer_from_pretrained(str(tmp_path)).encode("[PAD]").ids == [SIZE]


def test_contradictory_ids_are_reported(tmp_path: Path, words: Tokenizer) -> None:
    save(tmp_path, words, {"added_tokens_decoder": {"300": {**ENTRY, "content": "<|user|>"}}})
    with pytest.warns(
        UserWarning,
        match=r"'<\|user\|>' is not added, because .* the ID 300, which is not the next",
    ):
        ours = tokenizer_from_pretrained(str(tmp_path))
    assert ours.get_vocab_size() == SIZE


@pytest.mark.parametrize(
    "value", [[1], {"x": 1}, 5, "a", {"2": 3}, {"2": {"content": 1}}, ["\ud800"]]
)
@pytest.mark.parametrize(
    "key", ["added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"]
)
def test_values_of_other_types_are_no_tokens(
    tmp_path: Path, words: Tokenizer, key: str, value: Any
) -> None:
    save(tmp_path, words, {key: value})
    assert tokenizer_from_pretrained(str(tmp_path)).get_vocab_size() <= SIZE + 1
