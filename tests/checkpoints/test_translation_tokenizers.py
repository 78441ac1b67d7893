"""Tokenizers of Marian, M2M100, NLLB, mBART, Pegasus and BART, compared with transformers on 500
texts in ten scripts.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from ten_scripts import SENTENCES
from translation_files import FORMS, TEXTS, write_marian, write_pegasus

from minhub_py import from_config, save_pretrained, tokenizer_from_pretrained
from minhub_py.checkpoints.tokenizers.languages import languages_of
from minhub_py.checkpoints.tokenizers.paired import target_tokenizer
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
CODES = {
    "m2m100": ("en", "de"),
    "mbart": ("en_XX", "de_DE"),
    "mbart50": ("de_DE", "pl_PL"),
    "nllb": ("deu_Latn", "rus_Cyrl"),
}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(form): the folder, transformers' tokenizer and ours."""
    loaded: dict[str, Any] = {}

    def get(form: str) -> tuple[Path, Any, Any]:
        if form not in loaded:
            folder = tmp_path_factory.mktemp(form)
            FORMS[form](folder)
            name = json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"]
            reference = getattr(transformers, name).from_pretrained(folder)
            loaded[form] = folder, reference, tokenizer_from_pretrained(str(folder))
        return loaded[form]

    return get


@pytest.mark.parametrize("form", FORMS)
def test_token_ids_match_transformers(load, form: str) -> None:
    _, reference, tokenizer = load(form)
    assert len(TEXTS) == 500
    wrong = [text for text in TEXTS if tokenizer.encode(text).ids != reference(text)["input_ids"]]
    assert wrong == []
    ids = [set(tokenizer.encode(text).ids) for text in SENTENCES.values()]
    unknown = tokenizer.token_to_id("<unk>")
    assert sum(unknown in row for row in ids) < 8


@pytest.mark.parametrize("form", FORMS)
def test_decoded_texts_match_transformers(load, form: str) -> None:
    _, reference, tokenizer = load(form)
    if form == "marian-separate":
        return  # see below
    for text in SENTENCES.values():
        ids = tokenizer.encode(text).ids
        expected = reference.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids).strip() == expected.strip()


@pytest.mark.parametrize("form", CODES)
def test_translation_inputs_match_transformers(load, form: str) -> None:
    """The source text, the forced first token, and the target text, for any pair of languages."""
    _, reference, tokenizer = load(form)
    source, target = CODES[form]
    languages = languages_of(tokenizer)
    assert languages is not None
    assert {source, target} <= {*languages.codes}
    for text in SENTENCES.values():
        inputs = reference._build_translation_inputs(
            text,
            **({} if form == "m2m100" else {"return_tensors": None}),
            src_lang=source,
            tgt_lang=target,
        )
        assert languages.source_ids(text, source=source, target=target) == inputs["input_ids"]
        forced = languages.first_id(target)
        start = languages.start_id(target)
        # mBART's decoder begins with the language
        assert inputs["forced_bos_token_id"] == (start if form == "mbart" else forced)
        assert (form == "mbart") == (forced is None) == (start is not None)
        reference.tgt_lang = target
        labels = reference(text_target=text)["input_ids"]
        assert languages.target_ids(text, target=target) == labels
    with pytest.raises(ValueError, match="the model has no language 'xx'"):
        languages.source_ids("a", source="xx", target=target)
    with pytest.raises(ValueError, match="the model has no language 'yy'"):
        languages.source_ids("a", source=source, target="yy")
    with pytest.raises(ValueError, match="the model marks the source language: state it"):
        languages.source_ids("a", source=None, target=target)


def test_marian_marks_the_target_language_in_the_source_text(load) -> None:
    _, reference, tokenizer = load("marian-codes")
    languages = languages_of(tokenizer)
    assert languages is not None
    assert languages.codes == ["deu", "fra"]
    assert not languages.marks_source
    for text in SENTENCES.values():
        expected = reference(f">>deu<< {text}")["input_ids"]
        assert languages.source_ids(text, source=None, target="deu") == expected
        assert tokenizer.encode(f">>deu<< {text}").ids == expected
    assert languages.first_id("deu") is languages.start_id("deu") is None
    assert languages_of(load("marian")[2]) is None


@pytest.mark.parametrize("form", ["marian", "marian-separate"])
def test_the_target_language_has_its_own_model(load, form: str) -> None:
    _, reference, tokenizer = load(form)
    target = target_tokenizer(tokenizer)
    assert target is not tokenizer
    for text in TEXTS:
        assert target.encode(text).ids == reference(text_target=text)["input_ids"]
    for text in SENTENCES.values():
        ids = target.encode(text).ids
        expected = reference.decode(ids, skip_special_tokens=True)
        assert target.decode(ids).strip() == expected.strip()
    assert target_tokenizer(load("m2m100")[2]) is load("m2m100")[2]


@pytest.mark.parametrize("form", FORMS)
def test_saved_tokenizers_match(load, form: str, tmp_path: Path) -> None:
    """Ours and transformers' of a saved folder encode as before."""
    _, reference, tokenizer = load(form)
    model = from_config("marian", vocab_size=8, d_model=8, encoder_layers=1, decoder_layers=1,
                        encoder_ffn_dim=8, decoder_ffn_dim=8, encoder_attention_heads=1,
                        decoder_attention_heads=1, decoder_start_token_id=1, pad_token_id=1)  # fmt: skip
    save_pretrained(model, tmp_path, tokenizer)
    again = read_tokenizer(tmp_path)
    theirs = type(reference).from_pretrained(tmp_path)
    for text in TEXTS[:60]:
        expected = tokenizer.encode(text).ids
        assert again.encode(text).ids == expected
        assert theirs(text)["input_ids"] == expected
        assert (
            target_tokenizer(again).encode(text).ids == target_tokenizer(tokenizer).encode(text).ids
        )


def test_pegasus_has_its_pretraining_tokens_first(tmp_path: Path) -> None:
    """transformers 5 cannot read the file alone: the expected IDs are SentencePiece's + 103."""
    write_pegasus(tmp_path)
    model = sentencepiece.SentencePieceProcessor(
        model_proto=(tmp_path / "spiece.model").read_bytes()
    )
    tokenizer = tokenizer_from_pretrained(str(tmp_path))
    for text in SENTENCES.values():
        expected = [id + 103 for id in model.encode(text)]
        assert tokenizer.encode(text).ids == [*expected, 1]
    assert tokenizer.encode("a <mask_1> b").ids[1:-1].count(2) == 1
    assert tokenizer.token_to_id("<unk_102>") == 104


def test_bart_surrounds_texts_as_roberta(tmp_path: Path) -> None:
    from encoder_tokenizers import write_roberta

    from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

    source = tmp_path / "bpe"
    source.mkdir()
    train_byte_level_bpe(TEXTS, 500).model.save(str(source))
    write_roberta(tmp_path, source)
    (tmp_path / "config.json").write_text('{"model_type": "bart"}')
    tokenizer = tokenizer_from_pretrained(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BartTokenizer"}')
    reference = transformers.BartTokenizer.from_pretrained(tmp_path)
    for text in TEXTS[:100]:
        assert tokenizer.encode(text).ids == reference(text)["input_ids"]
        assert tokenizer.encode(text, "b").ids == reference(text, "b")["input_ids"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", '{"</s>": 0, "<unk>": 2}', "the token IDs are not 0 to 1"),
        ("vocab.json", '{"</s>": 0, "<pad>": 1}', "has no <unk>"),
        ("source.spm", "x", "is not a SentencePiece model"),
        ("target.spm", None, r"target\.spm"),
        ("vocab.json", None, r"vocab\.json is missing: copy the files"),
    ],
)
def test_corrupt_and_missing_files_are_named(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    write_marian(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_tokenizer(tmp_path)
