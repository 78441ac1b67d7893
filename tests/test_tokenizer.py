"""Tokenizers: built from each form of file, and streams of text that never show half a character."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from minhub_py import decode_stream, tokenizer_from_pretrained
from minhub_py.tokenizer import byte_level_bpe, characters, describe_unknown, unknown_characters, until

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    """OpenAI's BPE, from the project's real data beside the checkout."""
    folder = DATA / "gpt2-tokenizer"
    if not folder.exists() and os.environ.get("CI") != "true":
        pytest.skip(f"the real GPT-2 tokenizer is not beside this checkout ({folder})")
    return tokenizer_from_pretrained(str(folder))


def test_the_published_ids_of_gpt2(gpt2: Tokenizer) -> None:
    assert gpt2.encode("Hello world ").ids == [15496, 995, 220]
    text = (
        "No duty is imposed on the rich, rights of the poor is a hollow phrase ... "
        "Enough languishing in custody. Equality"
    )
    expected = (
        "2949 7077 318 10893 319 262 5527 11 2489 286 262 3595 318 257 20596 9546 2644 31779 2786 3929 287 10804 13 "
        "31428"
    )
    assert gpt2.encode(text).ids == [int(id) for id in expected.split()]
    assert gpt2.decode(gpt2.encode(text).ids) == text
    assert gpt2.encode("a<|endoftext|>b").ids == [64, 50256, 65]
    assert gpt2.decode([64, 50256, 65]) == "ab"  # special tokens are not text


def test_bpe_equals_transformers(gpt2: Tokenizer) -> None:
    from transformers import GPT2TokenizerFast

    folder = DATA / "gpt2-tokenizer"
    theirs = GPT2TokenizerFast(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    text = (Path(__file__).parent.parent / "minhub_py" / "gpt2.py").read_text() + "naïve 漢字 🎉🎉 \u200d\n\n\t  x  "
    assert gpt2.encode(text).ids == theirs(text)["input_ids"]


def test_pieces_join_to_the_text_and_none_is_half_a_character(gpt2: Tokenizer) -> None:
    for text in ("Hello wörld 🎉 naïve — 漢字 👩‍👩‍👧", " leading", "a\n\nb", "🎉" * 20):
        ids = gpt2.encode(text).ids
        pieces = list(decode_stream(gpt2, ids))
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)
    assert len(list(decode_stream(gpt2, gpt2.encode("one two three four").ids))) == 4  # each as soon as it is known


def test_ids_that_are_no_text_do_not_stop_a_stream(gpt2: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(50256) for _ in range(rng.randrange(1, 40))]
        streamed, whole = "".join(decode_stream(gpt2, ids)), gpt2.decode(ids)
        assert whole.startswith(streamed)
        rest = whole[len(streamed) :]  # what is held back is the last id's: a character not yet whole
        assert "\ufffd" in rest or not rest


def test_characters() -> None:
    tokenizer = characters("abc \n")
    assert tokenizer.encode("cab\n a").ids == [2, 0, 1, 4, 3, 0]
    assert tokenizer.decode([2, 0, 1, 4, 3, 0]) == "cab\n a"
    assert tokenizer.encode("axb").ids == [0, 1]  # no id for what is not in it
    known = characters({"<unk>": 0, "a": 1, "b": 2})
    assert known.encode("axyb").ids == [1, 0, 0, 2]
    again = Tokenizer.from_str(tokenizer.to_str())
    assert again.encode("cab\n a").ids == [2, 0, 1, 4, 3, 0]


@pytest.mark.parametrize("vocabulary", [["<unk>", "a", "b"], {"<unk>": 0, "a": 1, "b": 2}], ids=["list", "mapping"])
def test_a_vocabulary_without_merges_is_of_characters(tmp_path: Path, vocabulary) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = tokenizer_from_pretrained(str(tmp_path))
    assert tokenizer.encode("abba?").ids == [1, 2, 2, 1, 0]
    assert tokenizer.decode([1, 2]) == "ab"


def test_tokenizer_json_comes_first(tmp_path: Path) -> None:
    characters("xyz").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.json").write_text('["a"]')
    assert tokenizer_from_pretrained(str(tmp_path)).encode("zx").ids == [2, 0]


def test_special_tokens_are_those_that_the_files_name(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "<end>": 2}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "<end>"}, "pad_token": "<no>"})
    )
    tokenizer = tokenizer_from_pretrained(str(tmp_path))
    assert tokenizer.encode("ab<end>a").ids == [0, 1, 2, 0]
    assert tokenizer.decode([0, 2, 1]) == "ab"
    assert tokenizer.get_vocab_size() == 3  # <no> has no embedding, so it gets no id


def test_added_tokens_and_settings_are_those_of_transformers(gpt2: Tokenizer, tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    for name in ("vocab.json", "merges.txt"):
        shutil.copy(DATA / "gpt2-tokenizer" / name, tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|user|>": 50257, "<|bot|>": 50258}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    ours = tokenizer_from_pretrained(str(tmp_path))
    theirs = GPT2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), add_prefix_space=True)
    assert ours.encode("Hello there").ids == theirs("Hello there")["input_ids"] != gpt2.encode("Hello there").ids
    assert ours.encode("<|user|>").ids == [50257]
    assert 50258 in ours.encode("Hello<|bot|> you").ids
    assert ours.decode([50257, 50258]) == "<|user|><|bot|>"  # added, but not special
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "bos_token": "<|endoftext|>"}))
    assert tokenizer_from_pretrained(str(tmp_path)).encode("Hello").ids == [50256, 15496]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|user|>": 60000}))
    with pytest.raises(ValueError, match=r"the added token '<\|user\|>' the id 60000, which is not the next one"):
        tokenizer_from_pretrained(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, FileNotFoundError, "has no tokenizer, neither tokenizer.json nor vocab.json"),
        ({"tokenizer.json": "{"}, ValueError, "tokenizer.json is no tokenizer"),
        ({"vocab.json": "[1, 2]"}, ValueError, "should map tokens to ids, or list characters"),
        ({"vocab.json": "{"}, ValueError, "vocab.json is not valid JSON"),
        (
            {"vocab.json": '{"a": 0, "b": 1, "ab": 2}', "merges.txt": "a b c"},
            ValueError,
            "each line should be two symbols",
        ),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b"}, ValueError, "do not fit each other"),
    ],
)
def test_damaged_files(tmp_path: Path, files, error, message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        tokenizer_from_pretrained(str(tmp_path))


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["ab", "cd"], [], "abcd"),
        (["ab", "cd"], ["bc"], "a"),
        (["a", "b", "c"], ["abx", "c"], "ab"),
        (["aab", "aac"], ["aac"], "aab"),
        (["x", "y"], ["yz"], "xy"),  # what only began like a stop string is text after all
        (["one\n\ntwo"], ["\n\n", "e"], "on"),
    ],
)
def test_text_up_to_a_stop_string(pieces, stops, expected: str) -> None:
    assert "".join(until(pieces, stops)) == expected


def test_unknown_characters_are_found_and_nothing_else_is() -> None:
    letters = characters("abc <>|endoftx")
    assert unknown_characters(letters, "a\u00e9b a\u00e9c\U0001f600") == ["\u00e9", "\U0001f600"]
    assert unknown_characters(letters, "a cab") == unknown_characters(letters, "") == []
    assert unknown_characters(letters, "ab", [0]) == []  # they are the caller's, and b has a token all the same
    told = describe_unknown(letters, [chr(number) for number in range(0x4E00, 0x4E0C)])
    assert told.startswith("not in the tokenizer's vocabulary, and left out: '\u4e00' '\u4e01' ")
    assert told.endswith("'\u4e09' \u2026")
    some = characters(["<unk>", "a", "n"])
    assert unknown_characters(some, "<unk>a\u00e9") == ["<", ">", "k", "u", "\u00e9"]
    assert describe_unknown(some, ["u"]) == "not in the tokenizer's vocabulary, and read as <unk>: 'u'"
    every_byte = {char: id for id, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    assert unknown_characters(byte_level_bpe(every_byte, []), "\u00e9\x00\U0001f600") == []


def test_what_is_normalized_or_part_of_a_word_is_no_unknown_character() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "to": 1, "be": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.WordPiece()
    assert unknown_characters(words, "to be") == []
    letters = characters("to be")
    letters.normalizer = normalizers.Lowercase()
    assert unknown_characters(letters, "To b\u00c9") == ["\u00c9"]
