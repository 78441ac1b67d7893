"""Summaries: the sequences of transformers with the settings of the model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from references import save_reference
from small_models import T5, tokenizer

from minhub_py import from_pretrained, gpt2, save_pretrained, summarize, tokenizer_from_pretrained

TEXTS = [
    "the dog ran in the house .",
    "a cat sat on the mat , and the dog sat in the house !",
    "a mat .",
]
TASK = {
    "early_stopping": True,
    "length_penalty": 2.0,
    "max_length": 15,
    "min_length": 6,
    "no_repeat_ngram_size": 3,
    "num_beams": 3,
}
SETTINGS = {
    "model_type": "t5",
    **T5,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "task_specific_params": {"summarization": {**TASK, "prefix": "the cat ran "}},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Any, Any, Any, Path]:
    """transformers' model, the same model here, its tokenizer, and their folder."""
    folder = tmp_path_factory.mktemp("t5")
    reference = save_reference(SETTINGS, folder, "ForSeq2SeqLM")
    tokenizer().save(str(folder / "tokenizer.json"))
    return reference, from_pretrained(folder), tokenizer_from_pretrained(folder), folder


def expected(reference: Any, tok: Any, text: str, settings: dict[str, Any]) -> str:
    ids = torch.tensor([tok.encode(text).ids])
    output = reference.generate(ids, do_sample=False, pad_token_id=0, eos_token_id=1, **settings)
    return tok.decode(output[0, 1:].tolist())


def test_summaries_equal_transformers_with_the_settings_of_the_task(made) -> None:
    reference, model, tok, _ = made
    texts = [TEXTS[0], None, *TEXTS[1:]]
    found = summarize(model, tok, texts)
    assert found[1] is None
    for text, summary in zip(TEXTS, [found[0], *found[2:]], strict=True):
        assert summary == expected(reference, tok, f"the cat ran {text}", TASK)
    assert [summarize(model, tok, [text])[0] for text in texts] == found


def test_arguments_replace_the_settings_of_the_model(made) -> None:
    reference, model, tok, _ = made
    changed = {**TASK, "num_beams": 2, "max_length": 9, "min_length": 1, "length_penalty": 0.5}
    [found] = summarize(
        model, tok, TEXTS[:1], beams=2, max_new_tokens=8, min_new_tokens=0, length_penalty=0.5
    )
    assert found == expected(reference, tok, f"the cat ran {TEXTS[0]}", changed)


def test_generation_config_replaces_the_older_settings_of_config_json(made, tmp_path: Path) -> None:
    reference, model, tok, _ = made
    save_pretrained(model, tmp_path, tok)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["task_specific_params"] == SETTINGS["task_specific_params"]
    config |= {"task_specific_params": None, "num_beams": 2, "max_length": 7}
    (tmp_path / "config.json").write_text(json.dumps(config))
    older = {"num_beams": 2, "max_length": 7}
    found = summarize(from_pretrained(tmp_path), tok, TEXTS)
    assert found == [expected(reference, tok, text, older) for text in TEXTS]
    newer = {"num_beams": 4, "max_length": 11, "length_penalty": 0.8}
    (tmp_path / "generation_config.json").write_text(json.dumps(newer))
    found = summarize(from_pretrained(tmp_path), tok, TEXTS)
    assert found == [expected(reference, tok, text, newer) for text in TEXTS]
    for name, value in {"num_beam_groups": 2, "sequence_bias": [[[3], 1.0]]}.items():
        (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
        with pytest.raises(ValueError, match=f"{name}, which is not supported"):
            summarize(from_pretrained(tmp_path), tok, TEXTS)
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True}))
    with pytest.raises(ValueError, match="do_sample, which is not supported: the search has no"):
        summarize(from_pretrained(tmp_path), tok, TEXTS)
    (tmp_path / "generation_config.json").write_text(json.dumps({"length_penalty": 500}))
    with pytest.raises(ValueError, match="the model's settings of generation: length_penalty must"):
        summarize(from_pretrained(tmp_path), tok, TEXTS, beams=2)


def test_errors_name_the_text_and_the_next_step(made) -> None:
    _, model, tok, _ = made
    with pytest.raises(ValueError, match="text 1 is empty"):
        summarize(model, tok, ["the cat", " "])
    with pytest.raises(ValueError, match="text 0 has 603 tokens, and the model has 512 positions"):
        summarize(model, tok, ["cat " * 600])
    with pytest.raises(ValueError, match="beams must be a whole number"):
        summarize(model, tok, TEXTS, beams=0)
    with pytest.raises(ValueError, match="needs a model with an encoder and a decoder"):
        summarize(gpt2(vocab_size=20, n_embd=8, n_layer=1, n_head=1), tok, TEXTS)
    with pytest.raises(ValueError, match="texts must be a list of strings"):
        summarize(model, tok, "the cat")
