"""Merged adapters, and the commands that take an adapter."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import random_adapter
from click.testing import CliRunner
from peft_files import BASES, Case, PeftFile
from references import assert_close, ids_of, random_model, save_reference
from safetensors.torch import load_file

from minhub_py import from_pretrained, generate, save_pretrained, tokenizer_from_pretrained
from minhub_py.cli.main import main
from minhub_py.export.torchscript import save_torchscript
from minhub_py.loading.adapters.attach import attach
from minhub_py.loading.adapters.fit import read_adapter
from minhub_py.loading.adapters.merge import merge


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose Hub tensors are permuted, and two adapters: a, and b with DoRA."""
    path = tmp_path_factory.mktemp("neox")
    model = random_model("gpt_neox")
    save_pretrained(model, path / "base")
    random_adapter(model, path / "a")
    random_adapter(model, path / "b", 1, use_dora=True)
    return path


@pytest.mark.parametrize("name", ["a", "b"])
@torch.no_grad()
def test_a_merged_checkpoint_computes_the_same_as_its_adapter(
    folder: Path, tmp_path: Path, name: str
) -> None:
    adapted = from_pretrained(folder / "base", adapter=folder / name)
    expected = adapted(ids_of(2))
    assert_close(merge(adapted)(ids_of(2)), expected, 1e-5)
    for layout in ("hub", "native"):
        run("convert", folder / "base", tmp_path / layout, "--merge", folder / name, "--to", layout)
        merged = from_pretrained(tmp_path / layout)
        assert_close(merged(ids_of(2)), expected, 1e-5)
        assert type(merged.layers[0].attention.query_key_value) is torch.nn.Linear
    run(
        "convert",
        folder / "base",
        tmp_path / "model.pt",
        "--merge",
        folder / name,
        "--to",
        "torchscript",
    )
    assert_close(torch.jit.load(tmp_path / "model.pt")(ids_of(2)), expected, 1e-5)


def test_a_trained_head_of_a_tied_model_is_merged(tmp_path: Path) -> None:
    base = tmp_path / "base"
    save_reference(BASES["gpt2 tied"], base)
    settings = {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]}
    case = Case(settings, "lm_head.weight", targets=("attn.c_attn",), base="gpt2")
    adapter = PeftFile(case, True, load_file(base / "model.safetensors")).write(
        tmp_path / "adapter"
    )
    run("convert", base, tmp_path / "out", "--merge", adapter)
    merged, adapted = from_pretrained(tmp_path / "out"), from_pretrained(base, adapter=adapter)
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    )
    assert "lm_head.weight" in load_file(tmp_path / "out" / "model.safetensors")
    with torch.no_grad():
        assert_close(merged(ids_of(1, 20) % 60), adapted(ids_of(1, 20) % 60), 1e-5)


def test_merging_into_quantized_weights_is_rejected(folder: Path) -> None:
    with pytest.raises(ValueError, match="cannot be merged into quantized weights"):
        merge(from_pretrained(folder / "base", adapter=folder / "a", quantize="int8"))


def test_generate_uses_an_adapter(tmp_path: Path) -> None:
    model = from_pretrained("minhub/shakespeare-gpt2")
    random_adapter(model, tmp_path / "a")
    options = ("ROMEO:", "-n", "12", "--temperature", "0", "--json")
    plain = json.loads(run("generate", "minhub/shakespeare-gpt2", *options).stdout)
    adapted = json.loads(
        run("generate", "minhub/shakespeare-gpt2", "--adapter", tmp_path / "a", *options).stdout
    )
    [expected] = generate(
        from_pretrained("minhub/shakespeare-gpt2", adapter=tmp_path / "a"),
        [prompt_of(model)],
        12,
        temperature=0,
    )
    assert adapted["ids"] == expected != plain["ids"]
    message = run(
        "generate", "minhub/shakespeare-gpt2", "--adapter", tmp_path / "nothing", *options, code=1
    ).stderr
    assert "nothing" in message


def prompt_of(model: Any) -> list[int]:
    ids: list[int] = tokenizer_from_pretrained("minhub/shakespeare-gpt2").encode("ROMEO:").ids
    return ids


def test_a_merged_checkpoint_has_the_tokenizer_of_the_adapter(folder: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_from_pretrained("minhub/shakespeare-gpt2")
    tokenizer.save(str(folder / "base" / "tokenizer.json"))
    shutil.copytree(folder / "a", tmp_path / "a")
    run("convert", folder / "base", tmp_path / "plain", "--merge", tmp_path / "a")
    tokenizer.add_special_tokens(["<|call|>"])
    tokenizer.save(str(tmp_path / "a" / "tokenizer.json"))
    run("convert", folder / "base", tmp_path / "added", "--merge", tmp_path / "a")
    ids = [
        tokenizer_from_pretrained(tmp_path / name).token_to_id("<|call|>")
        for name in ("plain", "added")
    ]
    assert ids == [None, tokenizer.token_to_id("<|call|>")]


@torch.no_grad()
def test_factors_of_a_head_are_written_as_torchscript(tmp_path: Path) -> None:
    model = random_model("gpt2")  # tied
    adapted = attach(
        model,
        read_adapter(random_adapter(model, tmp_path / "a", target_modules=("lm_head",)), model),
    )
    save_torchscript(adapted, tmp_path / "model.pt", {})
    assert (adapted(ids_of(2)) - model(ids_of(2))).abs().max() > 0.1
    assert_close(torch.jit.load(tmp_path / "model.pt")(ids_of(2)), adapted(ids_of(2)), 1e-5)
