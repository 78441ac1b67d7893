"""Adapters that do not fit: each tensor and setting that is not used is named."""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import HubServer
from peft_files import BASES, CASES, Case, E, H, PeftFile
from references import save_reference
from safetensors.torch import load_file, save
from small_models import T5
from torch import Tensor

from minhub_py import from_config, from_pretrained, save_pretrained, train
from minhub_py.loading.adapters.attach import new_adapter
from minhub_py.loading.adapters.config import AdapterConfig

Change = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    for name in ("llama", "llama tied", "gpt2 tied"):
        save_reference(BASES[name], folder / name)
    return folder


def file_of(bases: Path, case: Case, tied: bool) -> tuple[Path, PeftFile]:
    base = bases / (case.base + " tied" * tied)
    return base, PeftFile(case, tied, load_file(base / "model.safetensors"))


def error(
    bases: Path, folder: Path, name: str, change: Change, tied: bool = True, **settings: Any
) -> str:
    """The message for a case's file after a change of its tensors and settings."""
    case = CASES[name]
    base, file = file_of(bases, case, tied)
    file.tensors |= change(file.tensors)
    file.case = Case({**case.settings, **settings}, base=case.base)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        from_pretrained(base, adapter=file.write(folder / "adapter"))
    return str(caught.value)


def rows(name: str, count: int) -> Change:
    """A tensor with another number of rows."""
    return lambda tensors: {name: torch.zeros(count, *tensors[name].shape[1:])}


@pytest.mark.parametrize(
    ("name", "change", "tied", "message"),
    [
        # Item 46 of issue 48: the saved embedding has more or fewer rows than the model.
        (
            "copy of the embedding",
            rows(f"{E}.weight", 64),
            True,
            f"missing: {H}.weight (64, 32) for the tokens of the adapter",
        ),
        (
            "copy of the embedding",
            rows(f"{E}.weight", 50),
            True,
            f"missing: {H}.weight (50, 32) for the tokens of the adapter",
        ),
        (
            "copy of the head",
            rows(f"{H}.weight", 50),
            False,
            f"missing: {E}.weight (50, 32) for the tokens of the adapter",
        ),
        (
            "copies of both",
            rows(f"{E}.weight", 64),
            False,
            f"wrong shape: {E}.weight is (64, 32), not (60, 32)",
        ),
        ("added tokens", rows(f"{H}.weight", 70), False, f"{H}.weight is (70, 32), not (60, 32)"),
        (
            "copies of norms",
            rows("model.norm.weight", 31),
            False,
            "wrong shape: model.norm.weight is (31,), not (32,)",
        ),
        (
            "bias all",
            rows("model.layers.0.self_attn.k_proj.bias", 1),
            True,
            "k_proj.bias is (1,), not (16,)",
        ),
        (
            "tokens",
            rows(f"{E}.token_adapter.trainable_tokens_delta", 3),
            True,
            f"{E} (tokens) is (3, 32), not (2, 32)",
        ),
        ("head", rows(f"{H}.lora_B.weight", 61), True, f"{H} (B) is (61, 4), not (60, 4)"),
        (
            "embedding",
            rows(f"{E}.lora_embedding_B", 31),
            True,
            f"{E} (embedding B) is (31, 4), not (32, 4)",
        ),
        # Values that PEFT shares.
        (
            "tied copies",
            lambda tensors: {f"{H}.weight": tensors[f"{H}.weight"] + 1},
            True,
            f"contradictory: {H}.weight and {E}",
        ),
        (
            "added tokens",
            lambda tensors: {f"{H}.weight": tensors[f"{H}.weight"] + 1},
            True,
            f"contradictory: {H}.weight and {E}",
        ),
        (
            "added tokens, copy",
            lambda tensors: {f"{E}.modules_to_save.weight": tensors[f"{E}.weight"] + 1},
            False,
            f"contradictory: two copies of {E}.weight",
        ),
        (
            "added tokens, trained",
            lambda tensors: {f"{H}.token_adapter.trainable_tokens_delta": torch.zeros(2, 32)},
            True,
            f"contradictory: the tokens of {H} and {E}, which are tied",
        ),
        # Tensors that the settings do not mention.
        (
            "dora",
            lambda _: {f"{H}.lora_A.weight": torch.zeros(4, 32)},
            True,
            "unexpected: base_model.model.lm_head.lora_A.weight",
        ),
        (
            "dora",
            lambda _: {f"{Q}.bias": torch.zeros(32)},
            False,
            f"unexpected: base_model.model.{Q}.bias",
        ),
        (
            "dora",
            lambda _: {f"{Q}.base_layer.bias": torch.zeros(32)},
            False,
            f"unexpected: base_model.model.{Q}.base_layer.bias",
        ),
        (
            "dora",
            lambda _: {"model.norm.weight": torch.zeros(32)},
            False,
            "unexpected: base_model.model.model.norm.weight",
        ),
        (
            "dora",
            lambda _: {f"{E}.token_adapter.trainable_tokens_delta": torch.zeros(1, 32)},
            False,
            "embed_tokens.token_adapter.trainable_tokens_delta",
        ),
        (
            "dora",
            lambda _: {"model.rotary_emb.inv_freq": torch.zeros(4)},
            False,
            "unknown: base_model.model.model.rotary_emb",
        ),
        ("dora", lambda _: {f"{Q}.lora_B.bias": torch.zeros(32)}, False, "lora_bias"),
        (
            "gpt2 bias",
            lambda _: {"transformer.h.0.attn.masked_bias": torch.zeros(1)},
            True,
            "unexpected: base_model.model.",
        ),
        (
            "gpt2 bias",
            lambda _: {"transformer.h.0.attn.bias": torch.zeros(1, 1, 8, 8)},
            True,
            "unexpected: base_model.model.",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    name: str, change: Change, tied: bool, message: str, bases: Path, tmp_path: Path
) -> None:
    assert message in error(bases, tmp_path, name, change, tied)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "tokens",
            {"trainable_token_indices": [3, 60]},
            "contains 60, but model.embed_tokens has 60 rows",
        ),
        ("tokens", {"trainable_token_indices": [3, 3]}, "must be a list of different token IDs"),
        (
            "tokens",
            {"trainable_token_indices": {"wte": [3, 4]}},
            "has model.embed_tokens, but no 'wte'",
        ),
        (
            "tokens",
            {"modules_to_save": ["lm_head"]},
            "cannot be combined with factors or a trained copy of lm_head",
        ),
        (
            "tokens",
            {"target_modules": ["embed_tokens"]},
            "with factors or a trained copy of model.embed_tokens",
        ),
        (
            "tokens",
            {"alora_invocation_tokens": [1]},
            "trainable_token_indices cannot be combined with alora_invocation",
        ),
        (
            "dora",
            {"layers_to_transform": [7]},
            "layers_to_transform exclude all modules that target_modules selects",
        ),
        ("dora", {"modules_to_save": ["self_attn"]}, "modules_to_save exclude all modules"),
    ],
)
def test_settings_that_contradict_each_other_are_named(
    name: str, settings: dict[str, Any], message: str, bases: Path, tmp_path: Path
) -> None:
    assert message in error(bases, tmp_path, name, lambda _: {}, **settings)


def test_missing_factors_of_a_tied_head_are_named(bases: Path, tmp_path: Path) -> None:
    base, file = file_of(bases, CASES["head"], tied=True)
    del file.tensors[f"{H}.lora_A.weight"]
    with pytest.raises(ValueError, match=r"missing: lm_head \(A\)"):
        from_pretrained(base, adapter=file.write(tmp_path / "adapter"))


def test_masks_that_end_with_bias_have_no_effect(bases: Path, tmp_path: Path) -> None:
    """PEFT's bias="all" saved the causal masks of GPT-2 in old versions of transformers."""
    base, file = file_of(
        bases,
        Case({"target_modules": ["c_fc"], "bias": "all"}, targets=("c_fc",), base="gpt2"),
        tied=True,
    )
    names = {name for name in file.state if name.endswith(".bias")}
    file.tensors |= {
        name: torch.ones_like(file.state[name]) for name in names if "c_fc" not in name
    }
    plain = from_pretrained(base, adapter=file.write(tmp_path / "plain"))
    file.tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
    ids = torch.arange(9).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(
            from_pretrained(base, adapter=file.write(tmp_path / "masks"))(ids), plain(ids)
        )


def test_adapters_in_pickles_are_read_and_code_in_them_is_not_run(
    bases: Path, tmp_path: Path
) -> None:
    base, file = file_of(bases, CASES["bias of targets"], tied=False)
    safe, folder = file.write(tmp_path / "safe"), file.write(tmp_path / "pickle")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="not a complete adapter"):
        from_pretrained(base, adapter=folder)
    torch.save(
        {f"base_model.model.{name}": tensor for name, tensor in file.tensors.items()},
        folder / "adapter_model.bin",
    )
    ids = torch.arange(9).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(
            from_pretrained(base, adapter=folder)(ids), from_pretrained(base, adapter=safe)(ids)
        )

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "attacked",)

    (folder / "adapter_model.bin").write_bytes(pickle.dumps({"x": Attack()}))
    with pytest.raises(ValueError, match=r"adapter_model\.bin"):
        from_pretrained(base, adapter=folder)
    assert not (tmp_path / "attacked").exists()


def test_embeddings_of_encoder_decoders_are_rejected() -> None:
    """transformers has separate modules for the embedding of the encoder, which PEFT does not
    change.
    """
    for settings in ({"modules_to_save": ("shared",)}, {"target_modules": ("q", "shared")}):
        with pytest.raises(ValueError, match=r"an adapter of shared\.weight is not supported"):
            new_adapter(
                from_config("t5", **T5), AdapterConfig(**{"target_modules": ("q",), **settings}), 0
            )  # type: ignore[arg-type]


def test_embeddings_are_not_trained(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be " * 200)
    with pytest.raises(
        ValueError, match=r"not of embeddings or tokens, transformer\.wte: choose other targets"
    ):
        train(
            tmp_path / "text.txt",
            tmp_path / "run",
            start="minhub/shakespeare-gpt2",
            lora={"targets": ["wte"]},
            steps=1,
        )


def test_a_quantized_part_of_a_model_is_not_replaced_silently(bases: Path, tmp_path: Path) -> None:
    """Over int8, copies and biases replace the quantized tensors; the result is that over the
    unpacked weights.
    """
    for name in ("bias of targets", "copies of both", "head", "tokens of the head", "embedding"):
        base, file = file_of(bases, CASES[name], tied=False)
        folder = file.write(tmp_path / name)
        quantized = from_pretrained(base, quantize="int8", dtype="float32")
        plain = from_pretrained(base)
        for path, module in quantized.named_modules():
            if hasattr(module, "codes"):
                plain.get_submodule(path).weight = torch.nn.Parameter(module.weight)
        save_pretrained(plain, tmp_path / f"{name} unpacked")
        ids = torch.tensor([[3, 7, 4, 20, 21]])
        with torch.no_grad():
            actual = from_pretrained(base, adapter=folder, quantize="int8", dtype="float32")(ids)
            expected = from_pretrained(tmp_path / f"{name} unpacked", adapter=folder)(ids)
        assert (actual - expected).abs().max() <= 1e-4 * expected.abs().max(), name


def test_inspection_reports_all_settings(bases: Path, tmp_path: Path) -> None:
    from minhub_py.loading.adapters.inspection import inspect_adapter, verify_adapter

    for name in ("other tokens of the head", "added tokens, trained", "embedding dora"):
        base, file = file_of(bases, CASES[name], tied=True)
        folder = file.write(tmp_path / name)
        settings = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(
            json.dumps(settings | {"base_model_name_or_path": str(base)})
        )
        report = inspect_adapter(str(folder))
        assert report is not None
        assert set(report["settings"]) >= set(CASES[name].settings)
        json.dumps(report)
        assert verify_adapter(str(folder))["problems"] == []  # type: ignore[index]


def test_adapters_in_other_formats_are_downloaded(
    hub: HubServer, bases: Path, tmp_path: Path
) -> None:
    """A pickle of PEFT, and an adapter of mlx-lm."""
    base, file = file_of(bases, CASES["bias of targets"], tied=False)
    folder = file.write(tmp_path / "adapter")
    expected, ids = from_pretrained(base, adapter=folder), torch.arange(9).unsqueeze(0)
    (folder / "adapter_model.safetensors").unlink()
    torch.save(
        {f"base_model.model.{name}": tensor for name, tensor in file.tensors.items()},
        folder / "adapter_model.bin",
    )
    hub.add("owner/pickle", folder)
    with torch.no_grad():
        assert torch.equal(from_pretrained(base, adapter="owner/pickle")(ids), expected(ids))
    settings = {
        "fine_tune_type": "lora",
        "lora_parameters": {"rank": 4, "scale": 3.0, "keys": ["self_attn.q_proj"]},
    }
    tensors = {f"{Q}.lora_a": torch.ones(32, 4), f"{Q}.lora_b": torch.ones(4, 32)}
    hub.add(
        "owner/mlx",
        {"adapter_config.json": json.dumps(settings), "adapters.safetensors": save(tensors)},
    )
    assert from_pretrained(base, adapter="owner/mlx").attached.factors.keys() == {Q}
    hub.add("owner/empty", {"adapter_config.json": json.dumps(settings)})
    with pytest.raises(FileNotFoundError, match=r"has no adapter_model\.safetensors"):
        from_pretrained(base, adapter="owner/empty")
