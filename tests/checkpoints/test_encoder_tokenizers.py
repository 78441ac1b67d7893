"""Tokenizers of encoders without a tokenizer.json, compared with transformers."""

import io
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from paths import TEXT
from tokenizers import Tokenizer, models, trainers
from transformers import BertTokenizer, CamembertTokenizer, MPNetTokenizer, RobertaTokenizer, XLMRobertaTokenizer
from transformers.convert_slow_tokenizer import CamembertConverter, XLMRobertaConverter

from minhub_py import tokenizer_from_pretrained
from minhub_py.checkpoints.tokenizers.sentencepiece import read_sentencepiece

DIFFICULT = [
    "",
    " ",
    "Hello, wörld! Don't stop.",
    "Ça va? ÀÉÎÕÜ ñ ø ł İstanbul ıx ß ẞ Å",
    "e\u0301 a\u0308 n\u0303 \u0301\u0301x",
    "漢字かな交じり文。中文 한국어 𠀀㐂",
    "ﬁne oﬃce ½ ² Ⅳ ℡ ｆｕｌｌ　ｗｉｄｔｈ",
    "a\u200bb \u200d \ufeff c\u00add \u00a0e\u3000f",
    "a\x00b\x07c\x7fd \ufffd \t\r\n e\x85f\u2028g",
    "😀 👩‍👩‍👧 🇩🇪 ☺️ a😀b",
    "x" * 100 + " " + "y" * 101 + " end",
    "$5.99 + 3% ~ `code` ^_^ <tag> a_b #1 @you",
    "[CLS] a [SEP] [MASK]. <mask> b<mask>c </s> <s> [UNK] <unk> <pad>",
    "the  <mask>  end   [MASK]  end ",
    "unaffable Thequickbrownfox THE QUICK",
    "ابجد שלום नमस्ते ไทย",
]
CASED = {"do_lower_case": False}
SETTINGS: list[dict[str, Any]] = [
    {},
    CASED,
    {"strip_accents": False},
    {**CASED, "strip_accents": True},
    {"tokenize_chinese_chars": False, "do_lower_case": True, "strip_accents": None},
    {"mask_token": {"content": "[MASK]", "lstrip": True, "__type": "AddedToken"}, "cls_token": "[CLS]"},
]


def texts() -> Iterator[str]:
    """The difficult texts, and random combinations of their characters and words."""
    yield from DIFFICULT
    rng = random.Random(0)
    characters = "".join(DIFFICULT)
    words = [word for text in DIFFICULT for word in text.split(" ")] + TEXT.read_text(encoding="utf-8").split()
    for size in range(300):
        yield "".join(rng.choices(characters, k=size % 40))
        yield "".join(rng.choice(words) + rng.choice([" ", "  ", "", "\n"]) for _ in range(size % 20))


def assert_equal_ids(ours: Tokenizer, theirs: Any) -> None:
    """Texts and pairs have the IDs and token types of transformers' tokenizer, also after saving."""
    again = Tokenizer.from_str(ours.to_str())
    previous = "and so on"
    for text in texts():
        for pair in ((text,), (text, previous)):
            actual, expected = ours.encode(*pair), theirs(*pair, return_token_type_ids=True)
            assert actual.ids == again.encode(*pair).ids == expected["input_ids"], pair
            assert actual.type_ids == expected["token_type_ids"], pair
        single = ours.encode(text)
        assert ours.decode(single.ids) == theirs.backend_tokenizer.decode(single.ids)
        previous = text or previous  # transformers ignores an empty second text


def write_vocabulary(folder: Path, special: list[str]) -> None:
    """A vocab.txt of words and word parts of the test texts, with accents and capitals."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(vocab_size=2500, special_tokens=special, show_progress=False, min_frequency=1)
    words = [word for text in DIFFICULT for word in text.split()] * 3 + TEXT.read_text(encoding="utf-8").split()
    tokenizer.train_from_iterator([*words, *map(str.lower, words), "##ing", "❓"], trainer)
    vocabulary = tokenizer.get_vocab()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__)))


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    write_vocabulary(folder, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return folder


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: " ".join(settings) or "defaults")
def test_wordpiece_matches_transformers(bert_folder: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    shutil.copy(bert_folder / "vocab.txt", tmp_path)
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert_equal_ids(tokenizer_from_pretrained(str(tmp_path)), BertTokenizer.from_pretrained(tmp_path))


def test_wordpiece_follows_the_definition(bert_folder: Path) -> None:
    """Long words and words with unknown parts are one unknown token; a zero-width space is dropped."""
    tokenizer = tokenizer_from_pretrained(str(bert_folder))
    assert tokenizer.encode("y" * 101).tokens == ["[CLS]", "[UNK]", "[SEP]"]
    assert tokenizer.encode("the𝔵").tokens == ["[CLS]", "[UNK]", "[SEP]"]
    assert tokenizer.encode("t\u200bhe").ids == tokenizer.encode("The").ids
    assert tokenizer.encode("a", "b").type_ids == [0, 0, 0, 1, 1]


def test_mpnet_wordpiece_matches_transformers(tmp_path: Path) -> None:
    write_vocabulary(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "[CLS]", "[SEP]", "<mask>"])
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    ours = tokenizer_from_pretrained(str(tmp_path))
    assert_equal_ids(ours, MPNetTokenizer.from_pretrained(tmp_path))
    (tmp_path / "config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MPNetTokenizerFast", "do_lower_case": true}')
    assert tokenizer_from_pretrained(str(tmp_path)).to_str() == ours.to_str()


@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": True}], ids=["defaults", "add_prefix_space"])
def test_roberta_byte_level_bpe_matches_transformers(
    bpe_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    vocabulary = json.loads((bpe_folder / "vocab.json").read_text(encoding="utf-8"))
    del vocabulary["<|endoftext|>"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(vocabulary, key=vocabulary.get), "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(tokens)}))
    shutil.copy(bpe_folder / "merges.txt", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False,
            "__type": "AddedToken"}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "mask_token": mask}))
    theirs = RobertaTokenizer.from_pretrained(tmp_path)
    assert_equal_ids(tokenizer_from_pretrained(str(tmp_path)), theirs)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))  # the mask's setting is the default
    ours = tokenizer_from_pretrained(str(tmp_path))
    assert_equal_ids(ours, theirs)
    the = ours.encode("the", add_special_tokens=False).ids
    assert ours.encode("the <mask>").ids == [0, *the, len(tokens) - 1, 2]


@pytest.fixture(scope="module")
def unigram() -> bytes:
    """A SentencePiece model with XLM-R's settings: NFKC, and the special tokens in its order."""
    lines = [line for line in TEXT.read_text(encoding="utf-8").splitlines() if line][:1500]
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*lines, *(text for text in DIFFICULT[2:7] if text.strip())]), model_writer=file,
        vocab_size=800, hard_vocab_limit=False, minloglevel=2, num_threads=1, model_type="unigram",
    )  # fmt: skip
    return file.getvalue()


FAMILIES: dict[str, tuple[Any, Any]] = {
    "xlm-roberta": (XLMRobertaTokenizer, XLMRobertaConverter),
    "camembert": (CamembertTokenizer, CamembertConverter),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_sentencepiece_encoders_match_transformers(tmp_path: Path, unigram: bytes, family: str) -> None:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(unigram)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    ours = tokenizer_from_pretrained(str(tmp_path))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=unigram)
    # As transformers' from_pretrained(), which needs the package protobuf for it.
    pieces = [(theirs.id_to_piece(id), theirs.get_score(id)) for id in range(theirs.get_piece_size())]
    charsmap = read_sentencepiece(tmp_path / "sentencepiece.bpe.model").charsmap
    tokenizer_class, converter = FAMILIES[family]
    assert_equal_ids(ours, tokenizer_class(**converter.convert_from_spm(pieces), _spm_precompiled_charsmap=charsmap))
    shift = {"xlm-roberta": 1, "camembert": 4}[family]
    start, end = {"xlm-roberta": (0, 2), "camembert": (5, 6)}[family]
    assert ours.encode("The house").ids == [start, *(id + shift for id in theirs.encode("The house")), end]
    assert ours.token_to_id("<mask>") == theirs.get_piece_size() + shift == ours.get_vocab_size() - 1
    assert ours.encode("\U00100000").ids[-2] == 3  # unknown


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.txt": "a\nb\n"}, r"vocab\.txt is not a valid tokenizer .*the vocabulary has no '\[UNK\]'"),
        ({"vocab.txt": "[UNK]\na\n[CLS]"}, r"the vocabulary has no \[SEP\]"),
        ({"vocab.txt": b"\xff[UNK]"}, "is not UTF-8 text"),
        ({"vocab.txt": "[UNK]\n" + "a" * 1001}, "token of 1,001 characters"),
        ({"vocab.txt": "[UNK]\n[CLS]\n[SEP]", "tokenizer_config.json": '{"do_lower_case": "yes"}'},
         "do_lower_case cannot be 'yes'"),
        ({"vocab.txt": "[UNK]", "tokenizer_config.json": '{"tokenizer_class": "BertJapaneseTokenizer"}'},
         "belongs to a 'BertJapaneseTokenizer', which is not supported"),
        ({"sentencepiece.bpe.model": b"\n\x01"}, "is not a SentencePiece model"),
    ],
)  # fmt: skip
def test_corrupt_vocabularies_are_rejected(tmp_path: Path, files: dict[str, str | bytes], message: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(ValueError, match=message):
        tokenizer_from_pretrained(str(tmp_path))


def test_tokenizer_json_takes_precedence_over_do_lower_case(bert_folder: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_from_pretrained(str(bert_folder))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(CASED | {"tokenizer_class": "BertTokenizer"}))
    assert tokenizer_from_pretrained(str(tmp_path)).encode("THE").ids == tokenizer.encode("the").ids
