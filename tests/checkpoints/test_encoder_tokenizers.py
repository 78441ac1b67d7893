"""Tokenizers of encoders without a tokenizer.json, compared with transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from encoder_tokenizers import texts, train_unigram, write_roberta, write_vocabulary
from paths import TEXT
from tokenizers import Tokenizer
from transformers import (
    AlbertTokenizer,
    BertTokenizer,
    CamembertTokenizer,
    DebertaTokenizer,
    DebertaV2Tokenizer,
    MPNetTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)
from transformers.convert_slow_tokenizer import CamembertConverter, XLMRobertaConverter

from minhub_py import tokenizer_from_pretrained
from minhub_py.checkpoints.tokenizers.sentencepiece import read_sentencepiece

CASED = {"do_lower_case": False}
SETTINGS: list[dict[str, Any]] = [
    {},
    CASED,
    {"strip_accents": False},
    {**CASED, "strip_accents": True},
    {"tokenize_chinese_chars": False, "do_lower_case": True, "strip_accents": None},
    {
        "mask_token": {"content": "[MASK]", "lstrip": True, "__type": "AddedToken"},
        "cls_token": "[CLS]",
    },
]


def assert_equal_ids(ours: Tokenizer, reference: Any) -> None:
    """Texts and pairs have the IDs and token types of transformers' tokenizer, also after saving."""
    again = Tokenizer.from_str(ours.to_str())
    previous = "and so on"
    for text in texts():
        for pair in ((text,), (text, previous)):
            actual, expected = ours.encode(*pair), reference(*pair, return_token_type_ids=True)
            assert actual.ids == again.encode(*pair).ids == expected["input_ids"], pair
            assert actual.type_ids == expected["token_type_ids"], pair
        single = ours.encode(text)
        assert ours.decode(single.ids) == reference.backend_tokenizer.decode(single.ids)
        previous = text or previous  # transformers ignores an empty second text


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    write_vocabulary(folder, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return folder


@pytest.mark.parametrize(
    "settings", SETTINGS, ids=lambda settings: " ".join(settings) or "defaults"
)
def test_wordpiece_matches_transformers(
    bert_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    shutil.copy(bert_folder / "vocab.txt", tmp_path)
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert_equal_ids(
        tokenizer_from_pretrained(str(tmp_path)), BertTokenizer.from_pretrained(tmp_path)
    )


def test_wordpiece_follows_the_definition(bert_folder: Path) -> None:
    """Long words and words with unknown parts are one unknown token; a zero-width space is dropped."""
    tokenizer = tokenizer_from_pretrained(str(bert_folder))
    assert tokenizer.encode("y" * 101).tokens == ["[CLS]", "[UNK]", "[SEP]"]
    assert tokenizer.encode("the𝔵").tokens == ["[CLS]", "[UNK]", "[SEP]"]
    assert tokenizer.encode("t\u200bhe").ids == tokenizer.encode("The").ids
    assert tokenizer.encode("a", "b").type_ids == [0, 0, 0, 1, 1]


def test_mpnet_wordpiece_matches_transformers(tmp_path: Path) -> None:
    write_vocabulary(
        tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "[CLS]", "[SEP]", "<mask>"]
    )
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    ours = tokenizer_from_pretrained(str(tmp_path))
    assert_equal_ids(ours, MPNetTokenizer.from_pretrained(tmp_path))
    (tmp_path / "config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "MPNetTokenizerFast", "do_lower_case": true}'
    )
    assert tokenizer_from_pretrained(str(tmp_path)).to_str() == ours.to_str()


@pytest.mark.parametrize(
    "settings", [{}, {"add_prefix_space": True}], ids=["defaults", "add_prefix_space"]
)
def test_roberta_byte_level_bpe_matches_transformers(
    bpe_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    tokens = write_roberta(tmp_path, bpe_folder)
    mask = {
        "content": "<mask>",
        "lstrip": True,
        "rstrip": False,
        "single_word": False,
        "normalized": False,
        "__type": "AddedToken",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "mask_token": mask}))
    reference = RobertaTokenizer.from_pretrained(tmp_path)
    assert_equal_ids(tokenizer_from_pretrained(str(tmp_path)), reference)
    # the mask's setting is the default
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = tokenizer_from_pretrained(str(tmp_path))
    assert_equal_ids(ours, reference)
    the = ours.encode("the", add_special_tokens=False).ids
    assert ours.encode("the <mask>").ids == [0, *the, len(tokens) - 1, 2]


@pytest.fixture(scope="module")
def unigram() -> bytes:
    return train_unigram()


FAMILIES: dict[str, tuple[Any, Any]] = {
    "xlm-roberta": (XLMRobertaTokenizer, XLMRobertaConverter),
    "camembert": (CamembertTokenizer, CamembertConverter),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_sentencepiece_encoders_match_transformers(
    tmp_path: Path, unigram: bytes, family: str
) -> None:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(unigram)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    ours = tokenizer_from_pretrained(str(tmp_path))
    reference_tokenizer = sentencepiece.SentencePieceProcessor(model_proto=unigram)
    # As transformers' from_pretrained(), which needs the package protobuf for it.
    pieces = [
        (reference_tokenizer.id_to_piece(id), reference_tokenizer.get_score(id))
        for id in range(reference_tokenizer.get_piece_size())
    ]
    charsmap = read_sentencepiece(tmp_path / "sentencepiece.bpe.model").charsmap
    tokenizer_class, converter = FAMILIES[family]
    assert_equal_ids(
        ours,
        tokenizer_class(**converter.convert_from_spm(pieces), _spm_precompiled_charsmap=charsmap),
    )
    shift = {"xlm-roberta": 1, "camembert": 4}[family]
    start, end = {"xlm-roberta": (0, 2), "camembert": (5, 6)}[family]
    assert ours.encode("The house").ids == [
        start,
        *(id + shift for id in reference_tokenizer.encode("The house")),
        end,
    ]
    assert (
        ours.token_to_id("<mask>")
        == reference_tokenizer.get_piece_size() + shift
        == ours.get_vocab_size() - 1
    )
    assert ours.encode("\U00100000").ids[-2] == 3  # unknown


BERT_PIECES = {"bos_piece": "[CLS]", "eos_piece": "[SEP]"}


def test_deberta_sentencepiece_matches_sentencepiece(tmp_path: Path) -> None:
    """transformers 5 leaves out the normalization of the file, so that it has other IDs for 197 of
    these texts.
    """
    pieces = {
        "pad_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 3,
        "pad_piece": "[PAD]",
        "unk_piece": "[UNK]",
    }
    model = train_unigram(**BERT_PIECES, **pieces)
    (tmp_path / "spm.model").write_bytes(model)
    ours = tokenizer_from_pretrained(str(tmp_path))
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    # The library tokenizers treats some control characters and combining accents as other
    # characters.
    plain = [text for text in texts() if not set("\x00\x85\u2028\u0301[<") & set(text)]
    assert len(plain) > 300
    for text in plain:
        assert ours.encode(text).ids == [1, *reference.encode(text), 2], text
    size = reference.get_piece_size()
    assert ours.token_to_id("[MASK]") == size == ours.get_vocab_size() - 1
    assert size in ours.encode("the [MASK] end").ids
    pair = ours.encode("the", "end")
    assert pair.tokens.count("[SEP]") == 2
    assert pair.type_ids == [0] * (pair.tokens.index("[SEP]") + 1) + [1] * (
        len(pair) - pair.tokens.index("[SEP]") - 1
    )


@pytest.mark.parametrize(
    "settings", [{}, {"split_by_punct": True}, {"do_lower_case": True}], ids=str
)
def test_deberta_settings_match_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    pieces = {
        "pad_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "unk_id": 3,
        "pad_piece": "[PAD]",
        "unk_piece": "[UNK]",
    }
    model = train_unigram(**BERT_PIECES, **pieces, normalization_rule_name="identity")
    (tmp_path / "spm.model").write_bytes(model)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "DebertaV2Tokenizer", **settings})
    )
    ours = tokenizer_from_pretrained(str(tmp_path))
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    entries = [
        (reference.id_to_piece(id), reference.get_score(id))
        for id in range(reference.get_piece_size())
    ]
    expected = DebertaV2Tokenizer(vocab=entries, unk_id=3, **settings)
    for text in TEXT.read_text(encoding="utf-8").splitlines()[:300]:
        assert ours.encode(text.strip()).ids == expected(text.strip())["input_ids"], text


def test_albert_sentencepiece_matches_transformers(tmp_path: Path) -> None:
    pieces = {
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": 2,
        "eos_id": 3,
        "user_defined_symbols": ["[MASK]"],
    }
    model = train_unigram(**BERT_PIECES, **pieces)
    (tmp_path / "spiece.model").write_bytes(model)
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    entries = [
        (reference.id_to_piece(id), reference.get_score(id))
        for id in range(reference.get_piece_size())
    ]
    charsmap = read_sentencepiece(tmp_path / "spiece.model").charsmap
    ours, expected = (
        tokenizer_from_pretrained(str(tmp_path)),
        AlbertTokenizer(vocab=entries, _spm_precompiled_charsmap=charsmap),
    )
    assert_equal_ids(ours, expected)


def test_deberta_byte_level_bpe_has_bert_s_special_tokens(bpe_folder: Path, tmp_path: Path) -> None:
    write_roberta(tmp_path, bpe_folder)
    names = {
        "<s>": "[CLS]",
        "</s>": "[SEP]",
        "<pad>": "[PAD]",
        "<unk>": "[UNK]",
        "<mask>": "[MASK]",
    }
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    vocabulary = {names.get(token, token): id for token, id in vocabulary.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "config.json").write_text('{"model_type": "deberta"}')
    ours = tokenizer_from_pretrained(str(tmp_path))
    reference = DebertaTokenizer.from_pretrained(tmp_path)
    for text in texts():
        if "[MASK]" not in text:
            assert ours.encode(text).ids == reference(text)["input_ids"]
    the, mask = ours.encode("the", add_special_tokens=False).ids, ours.token_to_id("[MASK]")
    # the mask includes the space before it
    assert ours.encode("the [MASK]").ids == [0, *the, mask, 2]
    assert ours.encode("a", "b").type_ids == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"vocab.txt": "a\nb\n"},
            r"vocab\.txt is not a valid tokenizer .*the vocabulary has no '\[UNK\]'",
        ),
        ({"vocab.txt": "[UNK]\na\n[CLS]"}, r"the vocabulary has no \[SEP\]"),
        ({"vocab.txt": b"\xff[UNK]"}, "is not UTF-8 text"),
        ({"vocab.txt": "[UNK]\n" + "a" * 1001}, "token of 1,001 characters"),
        (
            {
                "vocab.txt": "[UNK]\n[CLS]\n[SEP]",
                "tokenizer_config.json": '{"do_lower_case": "yes"}',
            },
            "do_lower_case cannot be 'yes'",
        ),
        (
            {
                "vocab.txt": "[UNK]",
                "tokenizer_config.json": '{"tokenizer_class": "BertJapaneseTokenizer"}',
            },
            "belongs to a 'BertJapaneseTokenizer', which is not supported",
        ),
        ({"sentencepiece.bpe.model": b"\n\x01"}, "is not a SentencePiece model"),
    ],
)
def test_corrupt_vocabularies_are_rejected(
    tmp_path: Path, files: dict[str, str | bytes], message: str
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(ValueError, match=message):
        tokenizer_from_pretrained(str(tmp_path))


def test_tokenizer_json_takes_precedence_over_do_lower_case(
    bert_folder: Path, tmp_path: Path
) -> None:
    tokenizer = tokenizer_from_pretrained(str(bert_folder))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(CASED | {"tokenizer_class": "BertTokenizer"})
    )
    assert tokenizer_from_pretrained(str(tmp_path)).encode("THE").ids == tokenizer.encode("the").ids
