"""Loading in one pass: the identifier passes through few functions, and config and model are built
once.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import random_adapter
from encoders import write_sentence_encoder
from hub_server import HubServer
from identifier_path import Passage, follow

from minhub_py import from_pretrained, gpt2, gpt2_from_pretrained, llama, save_pretrained
from minhub_py.cli.main import main
from minhub_py.loading.files import open_files

IDS = torch.arange(12).view(2, 6)
SMALL = {
    "vocab_size": 60,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_pretrained(gpt2(**SMALL), tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text('{"eos_token_id": 3}')
    return tmp_path / "model"


@pytest.fixture
def adapter(folder: Path, tmp_path: Path) -> Path:
    """An adapter that names its base."""
    path = random_adapter(from_pretrained(folder), tmp_path / "adapter")
    settings = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(
        json.dumps(settings | {"base_model_name_or_path": str(folder)})
    )
    return path


def loaded(*places: str | Path, **settings: Any) -> Passage:
    """The passage of the first place through from_pretrained(). places: the identifier, and paths
    made from it.
    """
    return follow(lambda: from_pretrained(places[0], device="cpu", **settings), *places)


def built(passage: Passage) -> tuple[int, int, int]:
    """How often a config.json is read, a config is built from settings, and the model is created."""
    names = ("config:read", "config:build", "facts:fit")
    read, build, fit = (
        sum(n for name, n in passage.calls.items() if name.endswith(end)) for end in names
    )
    return read, build, fit


@pytest.mark.parametrize("call", [from_pretrained, gpt2_from_pretrained])
def test_identifier_passes_through_few_functions(folder: Path, call: Callable[..., Any]) -> None:
    passage = follow(lambda: call(folder, device="cpu"), folder)
    assert len(passage.functions) <= 20, passage.functions
    assert len(passage.upward) <= 4, passage.upward


def test_the_identifier_is_followed(folder: Path) -> None:
    """The count misses no function: the first one, those that read files, and methods of the
    checkpoint are in it.
    """
    ends = {name.rpartition(":")[2] for name in loaded(folder).functions}
    assert ends >= {
        "from_pretrained",
        "open_files",
        "locate",
        "read_json",
        "Checkpoint.config",
        "open_tensors",
    }


def test_config_and_model_are_built_once(folder: Path, adapter: Path) -> None:
    for passage in (
        loaded(folder),
        loaded(folder, quantize="int8"),
        loaded(folder, adapter=adapter),
        loaded(adapter),
    ):
        assert built(passage) == (1, 1, 1)


def test_files_of_an_untied_head_change_the_config_without_a_second_reading(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_pretrained(gpt2(**SMALL, tie_word_embeddings=False), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    assert built(loaded(tmp_path)) == (1, 1, 1)
    assert not from_pretrained(tmp_path).config.tie_word_embeddings


def test_adapters_do_not_load_their_base_again(folder: Path, adapter: Path) -> None:
    one, two = (
        from_pretrained(adapter, device="cpu"),
        from_pretrained(folder, adapter=adapter, device="cpu"),
    )
    assert torch.equal(one(IDS), two(IDS))
    assert not torch.equal(one(IDS), from_pretrained(folder, device="cpu")(IDS))
    for passage in (loaded(adapter, folder), loaded(folder, adapter, adapter=adapter)):
        assert (
            max(
                passage.calls[name]
                for name in passage.functions
                if name.endswith((":load", ":open_files"))
            )
            == 1
        )


def test_other_sources_pass_through_few_functions(
    hub: HubServer, folder: Path, adapter: Path, tmp_path: Path
) -> None:
    sentences = write_sentence_encoder(tmp_path / "sentences")
    counts = {
        "quantized": loaded(folder, quantize="nf4"),
        "adapter": loaded(adapter, folder),
        "sentence-transformers": loaded(sentences),
        "built-in": loaded("minhub/shakespeare-gpt2"),
    }
    lengths = {source: len(passage.functions) for source, passage in counts.items()}
    assert max(lengths.values()) <= 37, lengths
    hub.add("owner/model", {path.name: path.read_bytes() for path in folder.iterdir()})
    download = loaded("owner/model", hub.cache)
    cached = loaded("owner/model", hub.cache, local_files_only=True)
    assert hub.fetched() == ["generation_config.json", "config.json", "model.safetensors"]
    assert built(download) == built(cached) == (1, 1, 1)
    assert not [name for name in download.upward if "hub" in name.partition(" ")[0]]


def test_settings_are_checked_before_weights_are_downloaded(hub: HubServer, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    hub.add("owner/model", {path.name: path.read_bytes() for path in folder.iterdir()})
    hub.add(
        "owner/wrong",
        {"config.json": json.dumps(config | {"n_head": 0}), "model.safetensors": b"weights"},
    )
    files = open_files("owner/model", weights="later")
    assert files.config.vocab_size == 60
    with pytest.raises(ValueError, match="n_head cannot be 0"):
        from_pretrained("owner/wrong")
    assert "model.safetensors" not in hub.fetched()
    assert torch.equal(files.complete().checkpoint["transformer.h.0.ln_1.weight"], torch.ones(32))
    assert open_files("owner/model", local_files_only=True).path == files.path
    hub.forget()
    assert files.complete() is files
    assert hub.fetched() == []


def test_an_adapter_of_an_adapter_is_an_error(adapter: Path, folder: Path, tmp_path: Path) -> None:
    second = random_adapter(from_pretrained(folder), tmp_path / "second")
    settings = json.loads((second / "adapter_config.json").read_text())
    (second / "adapter_config.json").write_text(
        json.dumps(settings | {"base_model_name_or_path": str(adapter)})
    )
    with pytest.raises(
        ValueError, match=r"second is an adapter of .*adapter, which is an adapter, too: merge"
    ):
        from_pretrained(second)
    with pytest.raises(ValueError, match="adapter has an adapter already: omit adapter"):
        from_pretrained(adapter, adapter=second)


def test_an_adapter_is_not_silently_dropped(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By conversion to GGUF, and by jobs, which would use the base."""
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    out = tmp_path / "out.jsonl"
    for command in (
        ["convert", str(adapter), str(tmp_path / "model.gguf"), "--to", "gguf"],
        ["words", str(adapter), str(tmp_path / "texts.jsonl"), "--out", str(out)],
    ):
        with pytest.raises(SystemExit) as caught:
            main(command)
        assert caught.value.code == 1
        assert f"{adapter} is an adapter: merge it into" in " ".join(
            capsys.readouterr().err.split()
        )
    assert not out.exists()


def test_a_gguf_file_passes_through_few_functions(tmp_path: Path) -> None:
    from gguf_files import write
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": 60,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    file = write(tmp_path / "model.gguf", LlamaForCausalLM(LlamaConfig(**sizes)), "Q8_0")
    passage = loaded(file)
    assert len(passage.functions) <= 48, passage.functions
    assert built(passage) == (1, 1, 1)
    assert type(from_pretrained(file, quantize="none")) is type(llama(**sizes))
