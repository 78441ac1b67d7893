"""Translations: the sequences of transformers, languages by name and code, and long texts."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from translation_models import TASKS, save_languages, save_pair, save_t5

from minhub_py import from_pretrained, tokenizer_from_pretrained, translate
from minhub_py.analysis.language_names import language_code
from minhub_py.analysis.sentences import parts, sentences

CODES = ["eng_Latn", "deu_Latn", "zho_Hans", "zho_Hant"]
TEXTS = ["the dog ran in the house .", "a cat sat on the mat , and the dog sat !", "a mat ."]


def opened(folder: Path) -> tuple[Any, Any]:
    return from_pretrained(folder), tokenizer_from_pretrained(folder)


def expected(reference: Any, tok: Any, ids: list[int], **settings: Any) -> str:
    output = reference.generate(
        torch.tensor([ids]), do_sample=False, **{"max_length": 14, "num_beams": 3, **settings}
    )
    return tok.decode(output[0, 1:].tolist())


def test_languages_select_the_first_tokens_of_both_sides(tmp_path: Path) -> None:
    reference = save_languages(tmp_path, CODES)
    model, tok = opened(tmp_path)
    texts = [TEXTS[0], None, *TEXTS[1:]]
    ids = {code: tok.token_to_id(code) for code in CODES}
    for target, code in (("German", "deu_Latn"), ("de", "deu_Latn"), ("zho_Hant", "zho_Hant")):
        found = translate(model, tok, texts, source="English", target=target)
        assert found[1] is None
        for text, translation in zip(TEXTS, [found[0], *found[2:]], strict=True):
            prompt = [ids["eng_Latn"], *tok.encode(text, add_special_tokens=False).ids, 2]
            assert translation == expected(reference, tok, prompt, forced_bos_token_id=ids[code])
    assert [
        translate(model, tok, [text], source="English", target=target)[0] for text in texts
    ] == found


def test_the_target_language_of_mbart_starts_the_decoder(tmp_path: Path) -> None:
    codes = ["en_XX", "ro_RO"]
    reference = save_languages(
        tmp_path, codes, tokenizer_class="MBartTokenizer", model_type="mbart"
    )
    model, tok = opened(tmp_path)
    english, romanian = map(tok.token_to_id, codes)
    found = translate(model, tok, TEXTS, source="English", target="Romanian")
    for text, translation in zip(TEXTS, found, strict=True):
        prompt = [*tok.encode(text, add_special_tokens=False).ids, 2, english]
        assert translation == expected(reference, tok, prompt, decoder_start_token_id=romanian)


def test_tasks_of_t5_and_pairs_of_marian(tmp_path: Path) -> None:
    reference = save_t5(tmp_path / "t5")
    model, tok = opened(tmp_path / "t5")
    for target, name in (("de", "translation_en_to_de"), ("French", "translation_en_to_fr")):
        settings = dict(TASKS[name])
        prefix = settings.pop("prefix")
        ids = tok.encode(prefix + TEXTS[0]).ids
        assert translate(model, tok, TEXTS[:1], target=target) == [
            expected(reference, tok, ids, **settings)
        ]
    for name, pair in (("named", ("en", "de")), ("unnamed", (None, None))):
        reference = save_pair(tmp_path / name, *pair)
        model, tok = opened(tmp_path / name)
        assert translate(model, tok, TEXTS) == [
            expected(reference, tok, tok.encode(text).ids) for text in TEXTS
        ]
        if pair[0]:
            assert translate(model, tok, TEXTS, source="eng", target="German")
        else:
            with pytest.raises(ValueError, match="do not state its languages"):
                translate(model, tok, TEXTS, target="German")


def test_languages_that_a_model_lacks_have_one_clear_message(tmp_path: Path) -> None:
    save_languages(tmp_path / "nllb", CODES)
    model, tok = opened(tmp_path / "nllb")
    call = {"model": model, "tokenizer": tok, "texts": TEXTS}
    for settings, message in (
        ({"source": "English"}, "needs target: a name, such as English, or one of its codes: eng"),
        ({"target": "German"}, "needs source"),
        ({"source": "Englisch", "target": "German"}, "source: .*did you mean english"),
        ({"source": "en", "target": "Klingon"}, "no language 'Klingon': its codes are eng_Latn"),
        (
            {"source": "en", "target": "Chinese"},
            "several codes for 'Chinese': .*zho_Hans, zho_Hant",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            translate(**call, **settings)
    save_t5(tmp_path / "t5")
    model, tok = opened(tmp_path / "t5")
    with pytest.raises(ValueError, match="no language 'es': its codes are de, fr"):
        translate(model, tok, TEXTS, source="en", target="es")


def test_long_texts_are_divided_at_sentences_with_a_warning(tmp_path: Path) -> None:
    save_languages(tmp_path, CODES, max_position_embeddings=30)
    model, tok = opened(tmp_path)
    call = {"source": "en", "target": "de"}
    sentence = "the cat sat on the mat and the dog ran in the house ."
    texts = ["a cat .", " ".join([sentence] * 5) + "\n\n" + sentence]
    with pytest.warns(UserWarning, match="text 1 exceeded the positions of the model: divided"):
        found = translate(model, tok, texts, **call)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        both, last = translate(model, tok, [f"{sentence} {sentence}", sentence], **call)
        assert found[0] == translate(model, tok, texts[:1], **call)[0]
    assert found[1] == f"{both.strip()} {both.strip()} {last.strip()}\n\n{last.strip()}"
    with pytest.raises(
        ValueError, match="text 0 has a sentence of 42 tokens, and the model has 30"
    ):
        translate(model, tok, ["cat " * 40], **call)
    with pytest.raises(ValueError, match="text 1 is empty"):
        translate(model, tok, ["cat", ""], **call)


def test_sentences_have_their_white_space() -> None:
    text = 'He said "Stop." Then (why?) he left!  Dr. No… 北京。上海！\nA line\n\nEnd'
    pairs = list(sentences(text))
    assert "".join(part + space for part, space in pairs) == text
    assert [part for part, _ in pairs] == [
        'He said "Stop."', "Then (why?)", "he left!", "Dr.", "No…", "北京。", "上海！", "A line", "End",
    ]  # fmt: skip
    assert parts("One. Two. Three.", lambda part: len(part) < 10) == [
        ("One. Two.", " "),
        ("Three.", ""),
    ]
    assert list(sentences("")) == []


@pytest.mark.parametrize(
    ("language", "codes", "expected"),
    [
        ("German", ["en_XX", "de_DE"], "de_DE"),
        ("deu", ["en", "de"], "de"),
        ("DE", ["eng_Latn", "deu_Latn"], "deu_Latn"),
        ("persian", ["pes_Arab", "prs_Arab"], "pes_Arab"),
        ("no", ["nob_Latn", "nno_Latn"], "nob_Latn"),
        ("cmn_Hans", ["cmn_Hans", "cmn_Hant"], "cmn_Hans"),
        ("zh-CN", ["zh_CN", "zh_TW"], "zh_CN"),
    ],
)
def test_languages_by_name_or_code(language: str, codes: list[str], expected: str) -> None:
    assert language_code(language, codes) == expected
