"""PEFT's settings of LoRA adapters in five ways: over the base, merged, saved, read by PEFT, and in
the C decoder.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from needs import package
from peft_files import BASES, CASES, TABLE, PeftFile, logits
from references import assert_close, save_reference
from safetensors.torch import load_file, save_file
from torch import Tensor

from minhub_py import from_pretrained, save_adapter
from minhub_py.cli.main import main
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.loading.adapters.merge import merge

IDS = torch.randint(50, (1, 24), generator=torch.Generator().manual_seed(3))
IDS[0, :4] = torch.tensor([3, 7, 4, 5])  # the trained tokens


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    for name, settings in BASES.items():
        save_reference(settings, folder / name)
    return folder


def peft_file(bases: Path, name: str, tied: bool) -> tuple[Path, PeftFile]:
    """A case's base, and its file."""
    case = CASES[name]
    base = bases / (case.base + " tied" * tied)
    return base, PeftFile(case, tied, load_file(base / "model.safetensors"))


def inputs(file: PeftFile) -> Tensor:
    """Token IDs, with those that the adapter adds."""
    added = range(50, file.case.rows) if file.case.rows > 60 else range(0)
    return torch.cat([IDS, torch.tensor([[*added]], dtype=torch.long)], 1)


def reference_logits(file: PeftFile, folder: Path) -> Tensor:
    """transformers' logits with the weights that the file means."""
    import transformers

    folder.mkdir()
    settings = BASES[file.case.base] | {"vocab_size": file.case.rows}
    (folder / "config.json").write_text(json.dumps(settings))
    weights = {name: tensor.contiguous() for name, tensor in file.weights().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return logits(transformers.AutoModelForCausalLM.from_pretrained(folder), inputs(file))


@pytest.mark.parametrize(("name", "tied"), TABLE)
def test_a_setting_has_its_meaning_in_every_way(
    name: str, tied: bool, bases: Path, tmp_path: Path
) -> None:
    import transformers

    base, file = peft_file(bases, name, tied)
    folder, ids = file.write(tmp_path / "adapter"), inputs(file)
    expected = reference_logits(file, tmp_path / "reference")
    adapted = from_pretrained(base, adapter=folder)
    assert adapted.config.vocab_size == file.case.rows
    assert_close(logits(adapted, ids), expected)
    assert (
        (logits(adapted.adapter(None), IDS % 50) - logits(adapted, IDS % 50)[..., :60]).abs().max()
        > 0.1
        if file.case.rows >= 60
        else True
    )

    assert_close(logits(merge(adapted), ids), expected)
    result = CliRunner().invoke(
        main, ["convert", str(base), str(tmp_path / "merged"), "--merge", str(folder)]
    )
    assert result.exit_code == 0, result.output
    assert_close(logits(from_pretrained(tmp_path / "merged"), ids), expected)
    assert_close(
        logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged"), ids),
        expected,
    )

    save_adapter(adapted, tmp_path / "saved")
    assert_close(logits(from_pretrained(base, adapter=tmp_path / "saved"), ids), expected)
    saved = load_file(tmp_path / "saved" / "adapter_model.safetensors")
    stored = load_file(folder / "adapter_model.safetensors")
    assert all(torch.equal(stored[key], tensor) for key, tensor in saved.items())

    runner = runner_of(adapted)
    assert isinstance(runner, NativeRunner)
    cache = runner.new_cache(1, ids.size(1))
    assert_close(runner.forward({0: ids[0].tolist()}, cache, every=True), expected[0])


@pytest.mark.filterwarnings("ignore")  # PEFT's warnings about tied weights
@pytest.mark.parametrize(("name", "tied"), TABLE)
def test_peft_reads_our_files_and_writes_the_same_names(
    name: str, tied: bool, bases: Path, tmp_path: Path
) -> None:
    """Its logits are ours, from a file with its names and from the file that we save."""
    peft = package("peft")
    import transformers

    base, file = peft_file(bases, name, tied)
    folder, ids = file.write(tmp_path / "adapter"), inputs(file)
    adapted = from_pretrained(base, adapter=folder)
    save_adapter(adapted, tmp_path / "saved")

    def reference() -> Any:
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
        if file.case.rows != model.config.vocab_size:
            model.resize_token_embeddings(file.case.rows)
        return model

    config = {
        key: value
        for key, value in file.config().items()
        if key not in ("peft_type", "inference_mode")
    }
    config["base_model_name_or_path"] = str(base)
    new = peft.get_peft_model(reference(), peft.LoraConfig(**config))
    new.save_pretrained(tmp_path / "peft")
    theirs = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    assert {key: tensor.shape for key, tensor in file.with_prefix().items()} == {
        key: tensor.shape for key, tensor in theirs.items()
    }
    for source in ("adapter", "saved"):
        wrapped = peft.PeftModel.from_pretrained(reference(), tmp_path / source).eval()
        assert_close(logits(adapted, ids), logits(wrapped, ids))
    written = json.loads((tmp_path / "saved" / "adapter_config.json").read_text())
    read = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    for key, value in written.items():
        if key not in (
            "base_model_name_or_path",
            "inference_mode",
            "layers_pattern",
            "layers_to_transform",
        ):
            assert (
                sorted(value) == sorted(read[key])
                if isinstance(value, list)
                else value == read[key]
            ), key
