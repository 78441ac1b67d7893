"""`minhub inspect` and `minhub verify` of an adapter's folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import random_adapter
from click.testing import CliRunner
from references import random_model
from safetensors.torch import load_file, save_file

from minhub_py import save_pretrained, tokenizer_from_pretrained
from minhub_py.cli.main import main
from minhub_py.loading.adapters.mlx import WEIGHTS as MLX_WEIGHTS


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = random_model("llama")
    save_pretrained(model, tmp_path / "base")
    settings: dict[str, Any] = {
        "alora_invocation_tokens": (7, 8),
        "base_model_name_or_path": str(tmp_path / "base"),
    }
    return random_adapter(model, tmp_path / "adapter", **settings)


def test_inspect_shows_the_base_the_settings_and_the_tensors(folder: Path) -> None:
    report = json.loads(run("inspect", str(folder), "--json"))
    tensors = load_file(folder / "adapter_model.safetensors")
    assert report["base"] == str(folder.parent / "base")
    assert report["settings"]["r"] == 4
    assert report["settings"]["alora_invocation_tokens"] == [7, 8]
    assert report["parameters"] == {"total": sum(tensor.numel() for tensor in tensors.values())}
    assert {each["name"]: tuple(each["shape"]) for each in report["tensors"]} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    text = run("inspect", str(folder))
    assert f"an adapter (LoRA) of {folder.parent / 'base'}" in text
    assert "model.layers.{}.self_attn.q_proj.lora_A.weight" in text
    assert f"{len(tensors)} tensors in total" in text
    assert "model.layers.1.self_attn.q_proj.lora_A.weight" in run(
        "inspect", str(folder), "--tensors"
    )


def test_inspect_reads_adapters_of_mlx(tmp_path: Path) -> None:
    """They do not name their base, so that `verify` cannot compare them."""
    name = "model.layers.1.self_attn.q_proj"
    save_file(
        {f"{name}.lora_a": torch.zeros(32, 4), f"{name}.lora_b": torch.zeros(4, 32)},
        tmp_path / MLX_WEIGHTS,
    )
    parameters = {"rank": 4, "scale": 3.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    settings = {"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": parameters}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    report = json.loads(run("inspect", str(tmp_path), "--json"))
    assert report["base"] is None
    assert report["settings"]["r"] == 4
    assert [each["shape"] for each in report["tensors"]] == [[4, 32], [32, 4]]
    assert "an adapter (LoRA) of an unknown model" in run("inspect", str(tmp_path))
    assert "is an adapter of an unknown model" in run("verify", str(tmp_path), status=1)
    (tmp_path / MLX_WEIGHTS).unlink()
    assert f"is not a complete adapter: it has no {MLX_WEIGHTS}" in run(
        "inspect", str(tmp_path), status=1
    )


def test_verify_compares_an_adapter_with_its_base(folder: Path) -> None:
    assert "no problems found" in run("verify", str(folder))
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    first = next(iter(tensors))
    changed = tensors[first].clone()
    changed[0, :2] = float("nan")
    save_file(tensors | {first: changed}, path)
    assert "2 of " in run("verify", str(folder), status=1)
    save_file({name: tensor for name, tensor in tensors.items() if name != first}, path)
    assert "PROBLEM: " in (text := run("verify", str(folder), status=1))
    assert "missing: model.layers.0." in text
    save_file(tensors, path)
    tokenizer_from_pretrained("minhub/shakespeare-gpt2").save(str(folder / "tokenizer.json"))
    assert "the tokenizer has 65 token IDs, the model only 61" in run(
        "verify", str(folder), status=1
    )
    shutil.rmtree(folder.parent / "base")
    assert "base" in run("verify", str(folder), status=1)
    assert json.loads(run("verify", str(folder), "--json", status=1))["checked"] == []
