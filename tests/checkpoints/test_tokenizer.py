"""Tokenizers from each format, and streams of text that never contain an incomplete character."""

import json
import random
import shutil
from pathlib import Path

import pytest
from paths import ROOT
from real_data import real_data
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from minhub_py import decode_stream, tokenizer_from_pretrained
from minhub_py.checkpoints.tokenizers.stop_strings import StopStrings
from minhub_py.checkpoints.tokenizers.tokenizer import (
    byte_level_bpe,
    characters,
    describe_unknown,
    encode,
    unknown_characters,
    until,
)

SIZE = 600  # of the fixture bpe_folder


@pytest.fixture(scope="module")
def bpe(bpe_folder: Path) -> Tokenizer:
    """A byte-level BPE of English, from its two files."""
    return tokenizer_from_pretrained(str(bpe_folder))


def test_gpt2_encodes_to_the_published_ids() -> None:
    gpt2 = tokenizer_from_pretrained(str(real_data("gpt2-tokenizer")))
    assert gpt2.encode("Hello world ").ids == [15496, 995, 220]
    text = (
        "No duty is imposed on the rich, rights of the poor is a hollow phrase ... "
        "Enough languishing in custody. Equality"
    )
    expected = (
        "2949 7077 318 10893 319 262 5527 11 2489 286 262 3595 318 257 20596 9546 2644 31779 2786"
        " 3929 287 10804 13 31428"
    )
    assert gpt2.encode(text).ids == [int(id) for id in expected.split()]
    assert gpt2.decode(gpt2.encode(text).ids) == text
    assert gpt2.encode("a<|endoftext|>b").ids == [64, 50256, 65]


@pytest.mark.parametrize("special", [False, True])
def test_encoding_without_the_gil_gives_the_same_ids(bpe: Tokenizer, special: bool) -> None:
    for text in ("", "a", "Hello, w\u00f6rld \U0001f600 ", "<|endoftext|>x", "\n\n  tab\t" * 100):
        plain = encode(bpe, text, add_special_tokens=special)
        assert encode(bpe, text, add_special_tokens=special, release_gil=True) == plain


def test_special_tokens_are_not_decoded(bpe: Tokenizer) -> None:
    [a, end, b] = bpe.encode("a<|endoftext|>b").ids
    assert end == SIZE - 1
    assert bpe.decode([a, end, b]) == "ab"


def test_byte_level_bpe_matches_transformers(bpe: Tokenizer, bpe_folder: Path) -> None:
    from transformers import GPT2TokenizerFast

    reference_model = GPT2TokenizerFast(
        vocab=str(bpe_folder / "vocab.json"), merges=str(bpe_folder / "merges.txt")
    )
    text = (
        ROOT / "minhub_py" / "models" / "gpt2.py"
    ).read_text() + "naïve 漢字 🎉🎉 \u200d\n\n\t  x  "
    assert bpe.encode(text).ids == reference_model(text)["input_ids"]


def test_decode_stream_yields_complete_characters(bpe: Tokenizer) -> None:
    for text in ("Hello wörld 🎉 naïve — 漢字 👩‍👩‍👧", " leading", "a\n\nb", "🎉" * 20):
        ids = bpe.encode(text).ids
        pieces = list(decode_stream(bpe, ids))
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)
    ids = bpe.encode("one two three four").ids
    assert len(list(decode_stream(bpe, ids))) == len(ids) >= 4  # without delay


def test_decode_stream_continues_after_invalid_utf8(bpe: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(SIZE - 1) for _ in range(rng.randrange(1, 40))]
        streamed, text = "".join(decode_stream(bpe, ids)), bpe.decode(ids)
        assert text.startswith(streamed)
        # the delayed text is an incomplete character of the last ID
        pending = text[len(streamed) :]
        assert "\ufffd" in pending or not pending


def test_character_tokenizer_has_one_id_per_character() -> None:
    tokenizer = characters("abc \n")
    assert tokenizer.encode("cab\n a").ids == [2, 0, 1, 4, 3, 0]
    assert tokenizer.decode([2, 0, 1, 4, 3, 0]) == "cab\n a"
    assert tokenizer.encode("axb").ids == [0, 1]  # unknown characters are dropped
    known = characters({"<unk>": 0, "a": 1, "b": 2})
    assert known.encode("axyb").ids == [1, 0, 0, 2]
    again = Tokenizer.from_str(tokenizer.to_str())
    assert again.encode("cab\n a").ids == [2, 0, 1, 4, 3, 0]


@pytest.mark.parametrize(
    "vocabulary", [["<unk>", "a", "b"], {"<unk>": 0, "a": 1, "b": 2}], ids=["list", "mapping"]
)
def test_vocabulary_without_merges_is_a_character_tokenizer(tmp_path: Path, vocabulary) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = tokenizer_from_pretrained(str(tmp_path))
    assert tokenizer.encode("abba?").ids == [1, 2, 2, 1, 0]
    assert tokenizer.decode([1, 2]) == "ab"


def test_tokenizer_json_takes_precedence_over_vocab_json(tmp_path: Path) -> None:
    characters("xyz").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.json").write_text('["a"]')
    assert tokenizer_from_pretrained(str(tmp_path)).encode("zx").ids == [2, 0]


def test_special_tokens_follow_the_settings_files(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "<end>": 2}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "<end>"}, "pad_token": "<no>"})
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 3}))
    tokenizer = tokenizer_from_pretrained(str(tmp_path))
    assert tokenizer.encode("ab<end>a").ids == [0, 1, 2, 0]
    assert tokenizer.decode([0, 2, 1]) == "ab"
    assert tokenizer.get_vocab_size() == 3  # <no> has no embedding, and so no ID


def test_added_tokens_and_settings_match_transformers(
    bpe: Tokenizer, bpe_folder: Path, tmp_path: Path
) -> None:
    from transformers import GPT2Tokenizer

    for name in ("vocab.json", "merges.txt"):
        shutil.copy(bpe_folder / name, tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|user|>": SIZE, "<|bot|>": SIZE + 1}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    ours = tokenizer_from_pretrained(str(tmp_path))
    reference_model = GPT2Tokenizer(
        str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), add_prefix_space=True
    )
    assert (
        ours.encode("the house").ids
        == reference_model("the house")["input_ids"]
        != bpe.encode("the house").ids
    )
    assert ours.encode("<|user|>").ids == [SIZE]
    assert SIZE + 1 in ours.encode("Hello<|bot|> you").ids
    assert ours.decode([SIZE, SIZE + 1]) == "<|user|><|bot|>"  # added, but not special
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"add_bos_token": True, "bos_token": "<|endoftext|>"})
    )
    assert tokenizer_from_pretrained(str(tmp_path)).encode("the").ids == [
        SIZE - 1,
        *bpe.encode("the").ids,
    ]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|user|>": 60000}))
    with pytest.raises(
        ValueError, match=r"the added token '<\|user\|>' the ID 60000, which is not the next ID"
    ):
        tokenizer_from_pretrained(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, FileNotFoundError, "has no tokenizer, neither tokenizer.json nor vocab.json"),
        ({"tokenizer.json": "{"}, ValueError, "tokenizer.json is not a valid tokenizer"),
        ({"vocab.json": "[1, 2]"}, ValueError, r"vocab.json: \[0\] must be a string, not 1"),
        ({"vocab.json": "{"}, ValueError, "vocab.json is not valid JSON"),
        (
            {"vocab.json": '{"a": 0, "b": 1, "ab": 2}', "merges.txt": "a b c"},
            ValueError,
            "each line should have two symbols",
        ),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b"}, ValueError, "are inconsistent"),
    ],
)
def test_corrupt_files_are_rejected(tmp_path: Path, files, error, message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        tokenizer_from_pretrained(str(tmp_path))


UNKNOWN = {
    "WordPiece": {
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 9,
        "vocab": {"a": 0},
    },
    "WordLevel": {"unk_token": "[UNK]", "vocab": {"a": 0}},
    "Unigram": {"unk_id": None, "vocab": [["a", -1.0]], "byte_fallback": False},
    "BPE": {"unk_token": "[UNK]", "vocab": {"a": 0}, "merges": []},
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_tokenizer_that_fails_in_use_names_its_file(tmp_path: Path, kind: str) -> None:
    """A missing unknown token: known text is encoded, unknown text raises one clear error."""
    content = json.loads(characters("a").to_str()) | {"model": {"type": kind, **UNKNOWN[kind]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = tokenizer_from_pretrained(str(tmp_path))
    assert encode(tokenizer, "a") == [0]
    with pytest.raises(
        ValueError,
        match=r"tokenizer\.json fails for this text \(.*\): it is corrupt, download it again",
    ):
        encode(tokenizer, "é")


@pytest.mark.parametrize(
    "single", [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]
)
def test_tokenizer_that_panics_is_rejected(tmp_path: Path, single) -> None:
    content = json.loads(characters("a").to_str())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [single],
        "pair": [],
        "special_tokens": {},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(
        ValueError,
        match=(
            r"tokenizer\.json is not a valid tokenizer \(.*corrupt or truncated, download it again"
        ),
    ):
        tokenizer_from_pretrained(str(tmp_path))


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["ab", "cd"], [], "abcd"),
        (["ab", "cd"], ["bc"], "a"),
        (["a", "b", "c"], ["abx", "c"], "ab"),
        (["aab", "aac"], ["aac"], "aab"),
        (["x", "y"], ["yz"], "xy"),  # a text that only begins like a stop string is output
        (["one\n\ntwo"], ["\n\n", "e"], "on"),
    ],
)
def test_until_ends_at_the_first_stop_string(pieces, stops, expected: str) -> None:
    assert "".join(until(pieces, stops)) == expected


def test_stop_strings_do_not_depend_on_how_the_text_is_split() -> None:
    """Compared with a plain search after each character; the letters repeat, so that prefixes
    overlap.
    """
    draw = random.Random(0)
    ended = 0
    for _ in range(500):
        text = "".join(draw.choices("ab", k=40))
        stops = [
            "".join(draw.choices("abc", [6, 6, 1], k=draw.randrange(1, 12)))
            for _ in range(draw.randrange(4))
        ]
        ends = [end for end in range(41) if any(text[:end].endswith(stop) for stop in stops)]
        expected = text
        if ends:
            ended += 1
            expected = text[
                : ends[0] - max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))
            ]
        cuts = sorted(draw.sample(range(1, 40), k=draw.randrange(6)))
        pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, 40], strict=True)]
        assert "".join(until(pieces, stops)) == expected
        certain = StopStrings(stops)
        shown = "".join(certain.add(char) for char in text[: ends[0] - 1 if ends else 40])
        assert expected.startswith(shown)  # no part of a stop string is output
        assert len(certain.pending) < max(map(len, stops), default=1)
    assert 100 < ended < 450


def test_stop_string_search_takes_linear_time() -> None:
    """Counts compared characters of the stop strings and of the text."""

    class Counting(str):
        compared = 0

        def __getitem__(self, place):
            Counting.compared += 1
            return str.__getitem__(self, place)

        def find(self, *_):
            raise AssertionError("a search from the beginning")

    for length in (1000, 100_000):
        Counting.compared = 0
        stop = Counting("a" * length + "b")
        text = StopStrings([stop])
        for _ in range(100):
            assert text.add("a" * (length // 100)) == ""
        assert text.add("c") == "a" * length + "c"
        assert Counting.compared < 10 * length


def test_unknown_characters_are_listed() -> None:
    letters = characters("abc <>|endoftx")
    assert unknown_characters(letters, "a\u00e9b a\u00e9c\U0001f600") == ["\u00e9", "\U0001f600"]
    assert unknown_characters(letters, "a cab") == unknown_characters(letters, "") == []
    assert unknown_characters(letters, "ab", [0]) == []  # the IDs are the caller's; b has a token
    message = describe_unknown(letters, [chr(number) for number in range(0x4E00, 0x4E0C)])
    assert message.startswith("not in the tokenizer's vocabulary, and left out: '\u4e00' '\u4e01' ")
    assert message.endswith("'\u4e09' \u2026")
    some = characters(["<unk>", "a", "n"])
    assert unknown_characters(some, "<unk>a\u00e9") == ["<", ">", "k", "u", "\u00e9"]
    assert (
        describe_unknown(some, ["u"]) == "not in the tokenizer's vocabulary, and read as <unk>: 'u'"
    )
    every_byte = {char: id for id, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    assert unknown_characters(byte_level_bpe(every_byte, []), "\u00e9\x00\U0001f600") == []


def test_normalized_characters_and_parts_of_words_are_not_unknown() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "to": 1, "be": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.WordPiece()
    assert unknown_characters(words, "to be") == []
    letters = characters("to be")
    letters.normalizer = normalizers.Lowercase()
    assert unknown_characters(letters, "To b\u00c9") == ["\u00c9"]
