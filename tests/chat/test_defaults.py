"""Default sampling settings of chats."""

import json
from pathlib import Path
from typing import Any

import gguf_files
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

import minhub_py
from minhub_py.chat.defaults import default_sampling

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NEUTRAL = {
    "temperature": 1.0,
    "top_k": None,
    "top_p": None,
    "repetition_penalty": 1.0,
    "min_p": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": None,
}
DEFAULTS = {**NEUTRAL, "temperature": 0.7, "top_p": 0.95}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (None, DEFAULTS),
        ({"eos_token_id": 3, "transformers_version": "4.50.0"}, DEFAULTS),
        (
            {"temperature": 0.6, "top_p": 0.9, "do_sample": True},
            {**NEUTRAL, "temperature": 0.6, "top_p": 0.9},
        ),
        ({"top_k": 64}, {**NEUTRAL, "top_k": 64}),
        ({"do_sample": True}, NEUTRAL),
        ({"do_sample": False}, {**NEUTRAL, "temperature": 0.0}),
        (
            {"repetition_penalty": 1.05, "top_k": None, "min_p": 0.1},
            {**DEFAULTS, "repetition_penalty": 1.05, "min_p": 0.1},
        ),
        ({"top_k": 0, "top_p": 1.0}, {**NEUTRAL, "top_p": 1.0}),
    ],
)
def test_a_folder_and_its_model_have_the_same_default_sampling(
    file: dict[str, Any] | None, expected: dict[str, Any], tmp_path: Path
) -> None:
    minhub_py.save_pretrained(minhub_py.llama(**SIZES), tmp_path)
    if file is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(file))
    assert default_sampling(tmp_path) == default_sampling(str(tmp_path)) == expected
    assert default_sampling(minhub_py.from_pretrained(tmp_path)) == expected


def test_a_new_model_has_the_default_settings() -> None:
    assert default_sampling(minhub_py.llama(**SIZES)) == DEFAULTS


def test_a_gguf_file_has_default_sampling(tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))

    def recommend(writer: Any) -> None:
        writer.add_sampling_temp(0.6)
        writer.add_sampling_top_k(20)
        writer.add_sampling_min_p(0.0625)
        writer.add_sampling_penalty_repeat(1.05)

    expected = {
        **NEUTRAL,
        "temperature": 0.6,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "min_p": 0.0625,
    }
    path = gguf_files.write(tmp_path / "model.gguf", model, change=recommend)
    assert default_sampling(path) == expected
    assert default_sampling(minhub_py.from_pretrained(path)) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("temperature", "hot"), ("top_p", 1.5), ("top_k", 2.5), ("top_p", [0.9])],
)
def test_an_error_names_the_value_out_of_range(name: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(ValueError, match=rf"generation_config\.json of the model: {name} must be"):
        default_sampling(tmp_path)
