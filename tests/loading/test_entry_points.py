"""`from_config`, and the functions of eight architectures. tests/models has a case of each
architecture.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest

import minhub_py
from minhub_py import from_config
from minhub_py.chat.turns import SAMPLING_FIELDS, ChatSettings, ReplySettings, SamplingSettings
from minhub_py.loading import entry_points
from minhub_py.models.config import older_rope_names
from minhub_py.models.registry import ENTRIES, similar_model_type
from minhub_py.training.settings import CHANGEABLE, ResumeSettings, Settings, TrainSettings

LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 9,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Llama."""
    folder = tmp_path_factory.mktemp("llama")
    minhub_py.save_pretrained(from_config("llama", **LLAMA, max_position_embeddings=32), folder)
    return folder


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("gpt_neo", "gpt_neo"),
        ("gptneo", "gpt_neo"),
        ("xlm-roberta", "xlm-roberta"),
        ("xlmroberta", "xlm-roberta"),
        ("ministral3", "ministral3"),
        ("qwen3_5_text", "qwen3_5_text"),
        ("qwen3_5", "qwen3_5_text"),
        ("qwen35", "qwen3_5_text"),
        ("gemma3", "gemma3_text"),
    ],
)
def test_a_model_is_created_from_a_model_type_or_a_family_of_train(
    name: str, model_type: str
) -> None:
    small: dict[str, Any] = {
        "hidden_size": 96,
        "num_layers" if "neo" in name else "num_hidden_layers": 1,
    }
    config: Any = from_config(name, **small, vocab_size=5).config
    assert config.to_hub()["model_type"] == model_type
    assert (config.hidden_size, config.vocab_size) == (96, 5)


def test_settings_have_the_names_of_config_json() -> None:
    bloom: Any = from_config("bloom", n_layer=1, n_head=2, n_embed=8, vocab_size=5).config
    assert (bloom.num_hidden_layers, bloom.num_attention_heads, bloom.hidden_size) == (1, 2, 8)
    xglm: Any = from_config(
        "xglm", num_layers=1, d_model=8, attention_heads=2, ffn_dim=8, vocab_size=5
    ).config
    assert xglm.hidden_size == 8
    mixtral: Any = from_config(
        "mixtral", num_local_experts=2, num_key_value_heads=1, **LLAMA
    ).config
    assert mixtral.num_experts == 2
    with pytest.raises(
        ValueError, match="BLOOM: n_layer and num_hidden_layers are names of one setting: use one"
    ):
        from_config("bloom", n_layer=1, num_hidden_layers=1)


def test_settings_replace_those_of_the_config(saved: Path, tmp_path: Path) -> None:
    changed: Any = from_config(saved, num_hidden_layers=1, rope_theta=5e5)
    assert changed.training
    assert (changed.config.num_hidden_layers, changed.config.hidden_size) == (1, 16)
    assert changed.config.rope_parameters == {"rope_type": "default", "rope_theta": 5e5}
    assert len(changed.layers) == 1
    again: Any = minhub_py.llama_from_config(saved, num_hidden_layers=1)
    assert again.config.num_hidden_layers == 1
    minhub_py.save_pretrained(
        from_config("bloom", n_layer=2, n_head=2, n_embed=8, vocab_size=5), tmp_path
    )
    bloom: Any = from_config(tmp_path, n_layer=1).config
    assert (bloom.num_hidden_layers, bloom.hidden_size) == (1, 8)


SCALING = {"type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("name", "changes", "rope"),
    [
        ("llama", {"rope_theta": 5.0}, {"rope_type": "default", "rope_theta": 5.0}),
        (
            "llama",
            {"rope_scaling": SCALING},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        ),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 5.0}},
            {"rope_type": "default", "rope_theta": 5.0},
        ),
        (
            "gpt_neox",
            {"rope_theta": 5.0},
            {"rope_type": "default", "rope_theta": 5.0, "partial_rotary_factor": 0.25},
        ),
        (
            "gpt_neox",
            {"rotary_pct": 0.5},
            {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        ),
        (
            "gemma3",
            {"rope_theta": 5.0},
            {
                "full_attention": {"rope_type": "default", "rope_theta": 5.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        (
            "gemma3",
            {"rope_local_base_freq": 5.0},
            {
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5.0},
            },
        ),
        (
            "olmo3",
            {"rope_theta": 5.0},
            {
                kind: {"rope_type": "default", "rope_theta": 5.0}
                for kind in ("full_attention", "sliding_attention")
            },
        ),
    ],
)
def test_rotary_settings_replace_those_of_the_config(
    name: str, changes: dict[str, Any], rope: dict[str, Any], tmp_path: Path
) -> None:
    """A folder has rope_parameters, and settings may have the older names."""
    sizes = LLAMA | ({"head_dim": 8, "num_key_value_heads": 1} if name == "gemma3" else {})
    minhub_py.save_pretrained(from_config(name, **sizes), tmp_path)
    changed: Any = from_config(tmp_path, **changes).config
    assert changed.rope_parameters == rope


def test_contradicting_rotary_settings_are_rejected(tmp_path: Path) -> None:
    minhub_py.save_pretrained(from_config("gpt_neox", **LLAMA), tmp_path)
    for identifier in ("gpt_neox", tmp_path):
        with pytest.raises(ValueError, match=r"two values of rope_theta: 5\.0 and 6\.0"):
            from_config(identifier, rope_theta=5.0, rotary_emb_base=6.0)


def test_unknown_settings_are_rejected_with_a_suggestion(saved: Path) -> None:
    for identifier in ("llama", saved):
        with pytest.raises(
            ValueError, match=r"^Llama has no setting rope_teta; did you mean rope_theta\?$"
        ):
            from_config(identifier, rope_teta=5.0)
    with pytest.raises(
        ValueError,
        match=r"^Mixtral has no setting num_local_expert; did you mean num_local_experts\?$",
    ):
        from_config("mixtral", num_local_expert=2)
    with pytest.raises(
        ValueError, match="^Llama has no setting colour; its settings are model_type, vocab_size"
    ):
        from_config(saved, colour=1)


def test_the_model_type_is_fixed(saved: Path) -> None:
    assert from_config(saved, model_type="llama").config == from_config(saved).config
    for identifier in ("llama", saved):
        with pytest.raises(ValueError, match="llama has model_type llama, not 'mistral'"):
            from_config(identifier, model_type="mistral")


def test_a_model_type_precedes_a_folder_of_its_name(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("llama").symlink_to(saved)
    default: Any = from_config("llama", **LLAMA).config
    folder: Any = from_config(saved).config
    assert (default.max_position_embeddings, folder.max_position_embeddings) == (2048, 32)
    for identifier in ("./llama", Path("llama")):
        assert from_config(identifier).config == folder
    assert minhub_py.llama_from_config("llama").config == folder


def test_from_config_has_the_sizes_and_fresh_weights() -> None:
    pretrained = minhub_py.gpt2_from_pretrained("minhub/shakespeare-gpt2")
    assert not pretrained.training
    for function in (minhub_py.gpt2_from_config, from_config):
        model: Any = function("minhub/shakespeare-gpt2")
        assert model.config == pretrained.config
        assert not (model.wte.weight == pretrained.wte.weight).all()


def test_other_architectures_are_rejected_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"architecture lstm, not gpt2: use from_pretrained\(\) or from_config\(\)"
    ):
        minhub_py.gpt2_from_pretrained("minhub/shakespeare-lstm")
    with pytest.raises(ValueError, match="architecture gpt2, not gptneo"):
        minhub_py.gptneo_from_config("minhub/shakespeare-gpt2")
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        minhub_py.gpt2_from_pretrained("minhub/shakespeare-gpt2", colour=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("family", [name for name in ENTRIES if name not in minhub_py.FAMILIES])
def test_names_of_other_architectures_name_the_general_function(family: str) -> None:
    for name, instead in (
        (family, f'use from_config("{family}", …)'),
        (f"{family}_from_config", r"use from_config(identifier)"),
        (f"{family}_from_pretrained", r"use from_pretrained(identifier)"),
    ):
        with pytest.raises(ImportError) as caught:
            exec(f"from minhub_py import {name}")
        assert str(caught.value) == f"minhub_py has no function {name}: {instead}"


@pytest.mark.parametrize("family", minhub_py.FAMILIES)
def test_the_types_of_settings_are_those_of_the_config(family: str) -> None:
    architecture = ENTRIES[family].architecture
    hints = get_type_hints(getattr(entry_points, f"{architecture.classes[1]}Settings"))
    types = {field.name: written(field.type) for field in dataclasses.fields(architecture.Config)}
    assert {name: written(kind) for name, kind in hints.items() if name in types} == types
    assert set(hints) == {*types, *older_rope_names(architecture.Config)}


def written(kind: Any) -> str:
    """The text of a type, with the items of dicts and lists of any type."""
    text = str(kind) if get_args(kind) else kind.__name__
    return text.replace("dict[str, typing.Any]", "dict").replace("list[typing.Any]", "list")


def test_the_types_of_keywords_are_those_of_the_settings() -> None:
    types = {field.name: field.type for field in dataclasses.fields(Settings)}
    assert get_type_hints(TrainSettings) == types
    assert get_type_hints(ResumeSettings) == {name: types[name] for name in CHANGEABLE}
    replies = {field.name: field.type for field in dataclasses.fields(ReplySettings)}
    assert get_type_hints(SamplingSettings) == {name: replies[name] for name in SAMPLING_FIELDS}
    chat = get_type_hints(ChatSettings)
    automatic = {
        name: kind | Literal["auto"] for name, kind in replies.items() if name in SAMPLING_FIELDS
    }
    assert chat == {**replies, **automatic, "stop": str | Sequence[str]}


def test_fewer_layers_cut_the_settings_of_each_layer(tmp_path: Path) -> None:
    types = ["sliding_attention", "full_attention"] * 2
    sizes = {**LLAMA, "num_hidden_layers": 4}
    original = from_config(
        "gemma3_text", **sizes, head_dim=8, num_key_value_heads=1, layer_types=types
    )
    minhub_py.save_pretrained(original, tmp_path)
    config: Any = from_config(tmp_path, num_hidden_layers=3).config
    assert config.layer_types == types[:3]
    config = from_config(tmp_path, num_hidden_layers=1, layer_types=["full_attention"]).config
    assert config.layer_types == ["full_attention"]
    with pytest.raises(ValueError, match="layer_types describes 4 layers, not 5: set layer_types"):
        from_config(tmp_path, num_hidden_layers=5)


@pytest.mark.parametrize(
    ("name", "similar"), [("mixtrall", "mixtral"), ("gpt-neo", "gpt_neo"), ("lama", "llama")]
)
def test_a_misspelled_model_type_is_not_looked_up_on_the_hub(
    name: str, similar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # a connection would fail
    with pytest.raises(ValueError, match=f"no model type '{name}': did you mean '{similar}'"):
        from_config(name)


def test_published_names_that_continue_a_model_type_are_repositories() -> None:
    for name in ("xlm-roberta-base", "albert-base-v2", "t5-small", "distilgpt2"):
        assert similar_model_type(name) is None
