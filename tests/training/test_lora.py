"""Training of adapters."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from training_runs import BUILT_IN, Notes, contents, held_out_losses, same

from minhub_py import from_pretrained, generate, resume, tokenizer_from_pretrained, train
from minhub_py.cli.main import main
from minhub_py.loading.adapters.config import read_config

START = BUILT_IN["gpt2"]
QUICK: dict[str, Any] = {
    "start": START,
    "context": 16,
    "batch": 4,
    "steps": 6,
    "warm_up": 1,
    "evaluate_every": 3,
    "checkpoint_every": 2,
    "evaluate_tokens": 256,
    "threads": 1,
    "learning_rate": 0.02,
}


@pytest.mark.parametrize(
    "settings", [{}, {"quantize": "nf4"}, {"lora": {"r": 3, "dora": True, "dropout": 0.1}}]
)
def test_an_adapter_is_trained_and_resumed_bitwise(
    tmp_path: Path, text: Path, settings: dict[str, Any]
) -> None:
    options = QUICK | {"lora": 4} | settings
    notes = Notes()
    run = train(text, tmp_path / "whole" / "run", listener=notes, **options)
    losses = held_out_losses(run)
    assert losses[-1] < losses[0]
    base = from_pretrained(START, quantize=options.get("quantize"))
    assert notes.trainer.trained
    assert all("factors." in name for name in notes.trainer.trained)
    for name, tensor in base.state_dict().items():
        # in bfloat16 if the processor has it
        frozen = dict(notes.trainer.model.base.state_dict())[name]
        assert torch.equal(frozen, tensor.to(frozen.dtype)), name
    checkpoint = run.files.newest()
    assert checkpoint is not None
    names = {path.name for path in checkpoint.iterdir()}
    assert names >= {
        "adapter_config.json",
        "adapter_model.safetensors",
        "progress.json",
        "optimizer.safetensors",
    }
    assert "model.safetensors" not in names
    assert not (run.folder / "model.safetensors").exists()
    config = read_config(json.loads((run.folder / "adapter_config.json").read_text()), "")
    assert (config.base_model_name_or_path, config.target_modules) == (
        START,
        ("c_attn", "c_fc", "c_proj"),
    )

    stopped = train(text, tmp_path / "parts" / "run", listener=Notes(stop=5), **options)
    assert stopped.losses[-1]["step"] < 6
    resumed = resume(stopped.folder)
    same(contents(resumed.folder), contents(run.folder))
    prompt = [[5, 6, 7]]
    model = run.model
    assert generate(model, prompt, 8, temperature=0) == generate(
        resumed.model, prompt, 8, temperature=0
    )
    with torch.no_grad():
        assert not torch.equal(model(torch.tensor(prompt)), base(torch.tensor(prompt)))
    assert all(
        tensor.dtype == torch.float32
        for tensor in load_file(run.folder / "adapter_model.safetensors").values()
    )


def test_a_run_is_loaded_converted_and_continued_by_its_folder(tmp_path: Path, text: Path) -> None:
    run = train(
        text,
        tmp_path / "run",
        progress=False,
        **(QUICK | {"lora": {"r": 2}, "steps": 2, "evaluate_every": 1}),
    )
    idx = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = run.model(idx)
        assert torch.equal(from_pretrained(run.folder)(idx), expected)
        result = CliRunner().invoke(main, ["convert", str(run.folder), str(tmp_path / "merged")])
        assert result.exit_code == 0, result.output
        assert (from_pretrained(tmp_path / "merged")(idx) - expected).abs().max() <= 1e-4
    again = QUICK | {"start": str(run.folder), "lora": {"r": 2}, "learning_rate": 0.0, "steps": 1}
    continued = train(text, tmp_path / "again", progress=False, **again)
    first, second = (
        load_file(each.folder / "adapter_model.safetensors") for each in (run, continued)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(ValueError, match="is an adapter: continue it with lora=16"):
        train(text, tmp_path / "full", progress=False, **(again | {"lora": {}}))


def test_the_head_of_a_tied_model_is_trained(tmp_path: Path, text: Path) -> None:
    settings = QUICK | {"lora": {"r": 2, "targets": ["lm_head", "c_attn"]}, "steps": 3}
    run = train(text, tmp_path / "run", progress=False, **settings)
    idx = torch.tensor([[5, 6, 7]])
    assert (
        load_file(run.folder / "adapter_model.safetensors")[
            "base_model.model.lm_head.lora_B.weight"
        ]
        .abs()
        .max()
        > 0
    )
    with torch.no_grad():
        expected = run.model(idx)
        assert torch.equal(from_pretrained(START, adapter=run.folder)(idx), expected)
        result = CliRunner().invoke(main, ["convert", str(run.folder), str(tmp_path / "merged")])
        assert result.exit_code == 0, result.output
        assert (from_pretrained(tmp_path / "merged")(idx) - expected).abs().max() <= 1e-4


def test_a_trained_copy_of_an_adapter_is_trained_further(tmp_path: Path) -> None:
    """The head is not frozen: the loss of examples has its gradient."""
    from minhub_py.loading.adapters.attach import attach, new_adapter, save_adapter
    from minhub_py.loading.adapters.config import AdapterConfig

    base = from_pretrained(START)
    config = AdapterConfig(
        r=2, target_modules=("c_attn",), modules_to_save=("lm_head",), base_model_name_or_path=START
    )
    save_adapter(attach(base, new_adapter(base, config, 0)), tmp_path / "first")
    tokenizer_from_pretrained(START).save(str(tmp_path / "first" / "tokenizer.json"))
    row = json.dumps({"prompt": "ROMEO:", "completion": " I am"})
    (tmp_path / "rows.jsonl").write_text("\n".join([row] * 20))
    settings = QUICK | {
        "start": str(tmp_path / "first"),
        "lora": {"r": 2},
        "steps": 2,
        "context": 32,
    }
    run = train(tmp_path / "rows.jsonl", tmp_path / "run", progress=False, **settings)
    copies = [
        load_file(each / "adapter_model.safetensors")["base_model.model.lm_head.weight"]
        for each in (tmp_path / "first", run.folder)
    ]
    assert (copies[0] - copies[1]).abs().max() > 1e-3


def test_the_command_trains_an_adapter(tmp_path: Path, text: Path) -> None:
    words = [
        "train",
        str(text),
        "--from",
        START,
        "--out",
        str(tmp_path / "run"),
        "--lora",
        "3",
        "--lora",
        "alpha=5",
        "--quantize",
        "int8",
        "--steps",
        "1",
        "--context",
        "16",
        "--batch",
        "2",
        "--evaluate-tokens",
        "64",
        "--json",
    ]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "run" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (3, 5)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "--lora r=3 --lora alpha=5 --quantize int8" in card
    base = sum(parameter.numel() for parameter in from_pretrained(START).parameters())
    tensors = load_file(tmp_path / "run" / "adapter_model.safetensors").values()
    trained = sum(tensor.numel() for tensor in tensors)
    size = f"{base + trained:,} parameters, {trained:,} of them trained"
    assert size in card
    again = [*words[:-1], "--out", str(tmp_path / "again")]
    assert f"GPT-2, {size}, on cpu" in CliRunner().invoke(main, again).stderr


def test_gradients_over_quantized_weights_are_exact() -> None:
    """Compared with a float model that has the unpacked weights."""
    from minhub_py.inference.quantize import QuantizedLinear
    from minhub_py.loading.adapters.attach import attach, new_adapter, replace_module
    from minhub_py.loading.adapters.config import AdapterConfig
    from minhub_py.loading.adapters.merge import copy_structure

    for kind in ("int8", "nf4"):
        base = from_pretrained(START, quantize=kind)
        plain = copy_structure(base)
        for name, module in list(base.named_modules()):
            if isinstance(module, QuantizedLinear):
                linear = torch.nn.Linear(module.shape[1], module.shape[0])
                linear.weight, linear.bias = torch.nn.Parameter(module.weight.clone()), module.bias
                replace_module(plain, name, linear)
        gradients = []
        for model in (base, plain):
            adapter = new_adapter(model, AdapterConfig(r=4, target_modules=("c_fc", "c_attn")), 0)
            for factors in adapter.factors.values():
                factors.lora_B.data.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
            view = attach(model, adapter)
            view(torch.tensor([[1, 2, 3, 4]])).square().mean().backward()
            gradients.append([factors.lora_A.grad for factors in adapter.factors.values()])
        for actual, expected in zip(*gradients, strict=True):
            assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_wrong_settings(tmp_path: Path, text: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"start": None}, "lora requires start"),
        ({"lora": {}, "quantize": "nf4"}, "quantize requires lora"),
        ({"quantize": "int3"}, "must be int8 or nf4"),
        (
            {"lora": {"rang": 3}},
            "unknown setting rang; the settings are alora_invocation_tokens, alpha",
        ),
        ({"lora": {"r": 0}}, "r must be an integer from 1 to 16777216, not 0"),
        ({"lora": {"r": 4, "targets": ["nothing"]}}, "matches no linear layer"),
        ({"parallel": "fsdp"}, "does not support"),
    ]
    for changes, message in cases:
        with pytest.raises(ValueError, match=message):
            train(text, tmp_path / "run", **(QUICK | {"lora": 4} | changes))
