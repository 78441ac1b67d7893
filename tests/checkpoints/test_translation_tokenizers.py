"""Tokenizers of Marian, M2M100, NLLB, mBART, Pegasus and BART, compared with transformers on 500
texts in ten scripts.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from ten_scripts import SENTENCES, texts

from minhub_py import from_config, save_pretrained, tokenizer_from_pretrained
from minhub_py.checkpoints.tokenizers.languages import languages_of, target_tokenizer
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
SPECIAL = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
TEXTS = [*texts()]


def pieces(lines: list[str], **settings: Any) -> bytes:
    """A small SentencePiece model."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in lines if line.strip()]),
        model_writer=file,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 700, "character_coverage": 1.0, "model_type": "unigram", **settings},
    )
    return file.getvalue()


def of(model: bytes) -> list[str]:
    """The pieces of a model."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(id) for id in range(processor.get_piece_size())]


def numbered(tokens: list[str]) -> str:
    """A vocab.json."""
    return json.dumps({token: id for id, token in enumerate(dict.fromkeys(tokens))})


def write_marian(folder: Path, separate: bool = False, codes: tuple[str, ...] = ()) -> None:
    """Two models of different texts, and a vocabulary in another order."""
    source = pieces([*SENTENCES.values(), *TEXTS[:250]])
    target = pieces([*SENTENCES.values(), *TEXTS[250:]], vocab_size=500)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    normal = [sorted(piece for piece in of(model) if piece[0] != "<") for model in (source, target)]
    start = ["</s>", "<unk>", *codes]
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    if separate:
        (folder / "vocab.json").write_text(numbered([*start, *normal[0], "<pad>"]))
        (folder / "target_vocab.json").write_text(numbered([*start, *normal[1], "<pad>"]))
        settings["target_vocab_file"] = str(folder / "target_vocab.json")
    else:
        (folder / "vocab.json").write_text(numbered([*start, *normal[0], *normal[1], "<pad>"]))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_m2m100(folder: Path) -> None:
    """A BPE of pieces, and a vocabulary in another order."""
    model = pieces([*SENTENCES.values(), *TEXTS], model_type="bpe", **SPECIAL)
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    normal = sorted(piece for piece in of(model) if piece[0] != "<")
    (folder / "vocab.json").write_text(numbered(["<s>", "<pad>", "</s>", "<unk>", *normal]))
    from minhub_py.checkpoints.tokenizers.language_codes import M2M100

    settings = {"tokenizer_class": "M2M100Tokenizer",
                "additional_special_tokens": [f"__{code}__" for code in M2M100]}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_mbart(folder: Path, name: str = "MBartTokenizer") -> None:
    (folder / "sentencepiece.bpe.model").write_bytes(pieces([*SENTENCES.values(), *TEXTS]))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))


def write_nllb(folder: Path) -> None:
    """A tokenizer.json, as in all published repositories."""
    from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, trainers
    from tokenizers.models import BPE

    codes = ["eng_Latn", "deu_Latn", "rus_Cyrl", "zho_Hans"]
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator([*SENTENCES.values(), *TEXTS], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    reference = transformers.NllbTokenizer(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],
        extra_special_tokens=codes,
    )
    reference.save_pretrained(folder)


def write_pegasus(folder: Path) -> None:
    special = {"bos_id": -1, "pad_id": 0, "eos_id": 1, "unk_id": 2}
    (folder / "spiece.model").write_bytes(pieces([*SENTENCES.values(), *TEXTS], **special))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PegasusTokenizer"}')


FORMS: dict[str, Callable[[Path], None]] = {
    "marian": write_marian,
    "marian-codes": lambda folder: write_marian(folder, codes=(">>deu<<", ">>fra<<")),
    "marian-separate": lambda folder: write_marian(folder, separate=True),
    "m2m100": write_m2m100,
    "mbart": write_mbart,
    "mbart50": lambda folder: write_mbart(folder, "MBart50Tokenizer"),
    "nllb": write_nllb,
}
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
