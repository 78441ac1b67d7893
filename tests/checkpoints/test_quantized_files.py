"""Folders with weights in FP8, GPTQ, AWQ and compressed-tensors' formats: values, blocks, commands
and errors.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import random_adapter
from click.testing import CliRunner
from quantized_files import (
    AWQ,
    FILES,
    FP8,
    FP8_FILES,
    GPTQ,
    INTEGER_FILES,
    compressed,
    write_quantized,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

import weights_map
from minhub_py import from_pretrained, generate
from minhub_py.cli.main import main
from minhub_py.inference.quantize import Quantized
from minhub_py.loading.inspection import inspect, verify
from minhub_py.models.base import LanguageModel
from minhub_py.models.registry import architecture_of

UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"
PROMPT = [[1, 2, 3, 4]]


def convert(folder: Path, out: Path, *options: str) -> None:
    result = CliRunner().invoke(main, ["convert", str(folder), str(out), *options])
    assert result.exit_code == 0, result.output


def hub(model: LanguageModel) -> dict[str, Tensor]:
    model_type = architecture_of(model.config.to_hub()["model_type"]).model_type
    return dict(weights_map.to_hub(model_type, model.state_dict(), model.config))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FILES)
def test_weights_are_those_of_the_reference(name: str, dtype: str, tmp_path: Path) -> None:
    folder, weights = write_quantized(tmp_path / "model", name)
    model = from_pretrained(folder, device="cpu", dtype=dtype)
    actual = hub(model)
    assert actual.keys() == weights.keys()
    for key, weight in weights.items():
        torch.testing.assert_close(actual[key], weight.to(getattr(torch, dtype)), rtol=0, atol=0)
    assert len(generate(model, PROMPT, 4, temperature=0)[0]) == 4


@pytest.mark.parametrize("name", FP8_FILES)
def test_fp8_has_the_dtype_of_the_other_weights(name: str, tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        folder, _ = write_quantized(tmp_path / str(dtype), name, dtype=dtype)
        model = from_pretrained(folder, device="cpu")
        assert {tensor.dtype for tensor in model.state_dict().values()} == {dtype}


TYPES = {
    "gptq": "Q4_0",
    "gptq-no-g_idx": "Q4_0",
    "gptq-asymmetric": "Q5_0",
    "gptq_v2": "Q5_0",
    "gptq-desc_act": "int8",
    "gptq-one-group": "Q4_0",
    "gptq-8": "Q8_0",
    "gptq-8-asymmetric": "int8",
    "awq": "Q5_0",
    "awq-one-group": "Q5_0",
    "packed": "Q4_0",
    "packed-asymmetric": "Q5_0",
    "packed-8": "Q8_0",
    "int8": "Q8_0",
    "int8-groups": "int8",
}


@pytest.mark.parametrize("name", TYPES)
def test_integers_become_blocks_with_the_same_values(name: str, tmp_path: Path) -> None:
    assert TYPES.keys() == INTEGER_FILES.keys()
    folder, weights = write_quantized(tmp_path / "model", name)
    model = from_pretrained(folder, device="cpu")
    layers = {
        path: module for path, module in model.named_modules() if isinstance(module, Quantized)
    }
    assert {layer.kind for layer in layers.values()} == {TYPES[name]}
    assert len(layers) == 14
    if TYPES[name] != "int8":
        for path, layer in layers.items():
            torch.testing.assert_close(
                layer.weight, weights[f"model.{path}.weight"], rtol=0, atol=0
            )
    assert len(generate(model, PROMPT, 4, temperature=0)[0]) == 4


def test_scales_that_float16_cannot_represent_become_int8(tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path / "model", "packed")
    scale = torch.full((128, 2), 1.7e-6, dtype=torch.bfloat16)
    change(folder, {f"{UP}.weight_scale": scale})
    model = from_pretrained(folder, device="cpu")
    kinds = [module.kind for module in model.modules() if isinstance(module, Quantized)]
    assert sorted(kinds) == 13 * ["Q4_0"] + ["int8"]


MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {},  # biases
    "qwen3_moe": {
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
    },
    "phi3": {"pad_token_id": None},  # fused projections
}


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("name", ["fp8-block", "gptq", "awq", "packed"])
def test_fused_projections_and_experts_are_read(name: str, model_type: str, tmp_path: Path) -> None:
    folder, weights = write_quantized(tmp_path / "model", name, model_type, **MODELS[model_type])
    model = from_pretrained(folder, device="cpu", dtype="float32")
    actual = hub(model)
    assert actual.keys() == weights.keys()
    for key, weight in weights.items():
        torch.testing.assert_close(actual[key], weight, rtol=0, atol=0)
    if name == "fp8-block":
        return
    blocks = from_pretrained(folder, device="cpu")
    kinds = {module.kind for module in blocks.modules() if isinstance(module, Quantized)}
    assert kinds == {TYPES[name]}
    paths = {path for path, module in blocks.named_modules() if isinstance(module, Quantized)}
    assert any("experts" in path for path in paths) == (model_type == "qwen3_moe")
    ids = torch.tensor(PROMPT)
    torch.testing.assert_close(blocks(ids), model(ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["fp8-block", "gptq"])
def test_modules_that_are_not_converted_stay(name: str, tmp_path: Path) -> None:
    folder, weights = write_quantized(tmp_path / "model", name, floats="layers.0.mlp.down")
    actual = hub(from_pretrained(folder, device="cpu", dtype="float32"))
    for key, weight in weights.items():
        torch.testing.assert_close(actual[key], weight, rtol=0, atol=0)
    if name == "gptq":
        model = from_pretrained(folder, device="cpu")
        count = sum(isinstance(module, Quantized) for module in model.modules())
        assert count == 13


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_zeros_as_biases_of_layers_without_a_bias_are_not_used(
    model_type: str, tmp_path: Path
) -> None:
    folder, weights = write_quantized(tmp_path / "model", "gptq", model_type)
    add(folder, {f"{DOWN}.bias": torch.zeros(64, dtype=torch.float16)})
    assert hub(from_pretrained(folder, device="cpu", dtype="float32")).keys() == weights.keys()
    convert(folder, tmp_path / "plain")
    assert load_file(tmp_path / "plain" / "model.safetensors").keys() == weights.keys()
    change(folder, {f"{DOWN}.bias": torch.ones(64, dtype=torch.float16)})
    with pytest.raises(ValueError, match="layers.0.mlp.down_proj.bias"):
        from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("name", ["fp8-block", "gptq"])
def test_tied_embeddings_are_shared(name: str, tmp_path: Path) -> None:
    folder, weights = write_quantized(tmp_path / "model", name, tie_word_embeddings=True)
    model = from_pretrained(folder, device="cpu", dtype="float32")
    assert model.config.tie_word_embeddings
    assert hub(model).keys() == weights.keys()


@pytest.mark.parametrize("name", ["fp8-block", "gptq-desc_act", "awq", "packed-asymmetric"])
def test_convert_writes_a_plain_checkpoint(name: str, tmp_path: Path) -> None:
    folder, weights = write_quantized(tmp_path / "model", name)
    for dtype in ("float32", "bfloat16"):
        out = tmp_path / dtype
        convert(folder, out, "--dtype", dtype)
        config = json.loads((out / "config.json").read_text())
        assert "quantization_config" not in config
        assert config["dtype"] == dtype
        saved = load_file(out / "model.safetensors")
        assert saved.keys() == weights.keys()
        for key, weight in weights.items():
            assert torch.equal(saved[key], weight.to(getattr(torch, dtype)))


def test_inspect_and_verify_describe_the_weights(tmp_path: Path) -> None:
    for name, dtype in (("fp8-block", "float8_e4m3fn"), ("gptq-8", "gptq, 8 bits")):
        folder, weights = write_quantized(tmp_path / name, name)
        report = inspect(str(folder))
        dtypes = {tensor["hub"]: tensor["dtype"] for tensor in report["tensors"]}
        assert dtypes.keys() == weights.keys()
        assert dtypes["model.layers.1.mlp.up_proj.weight"] == dtype
        assert dtypes["model.norm.weight"] == "bfloat16"
        assert verify(str(folder))["problems"] == []


def change(folder: Path, changes: dict[str, Tensor | None]) -> None:
    """Change tensors in the shards of a folder; None deletes one."""
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name in changes.keys() & tensors.keys():
            tensor = changes[name]
            if tensor is None:
                del tensors[name]
            else:
                tensors[name] = tensor
        save_file(tensors, file)


def add(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Add tensors to the first shard of a folder."""
    file = "model-00001-of-00002.safetensors"
    save_file({**load_file(folder / file), **tensors}, folder / file)


def test_verify_reports_a_scale_that_is_not_a_number(tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path / "model", "fp8-tensor")
    name = "model.layers.0.mlp.up_proj.weight"
    change(folder, {f"{name}_scale_inv": torch.tensor(torch.nan)})
    [problem] = verify(str(folder))["problems"]
    assert problem.startswith(f"{name}: 8192 of 8192 values are NaN or infinite")


@pytest.mark.parametrize("name", ["fp8-block", "gptq", "awq"])
def test_int8_and_adapters_start_from_the_dequantized_weights(name: str, tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path / "model", name, dtype=torch.float32)
    convert(folder, tmp_path / "plain")
    plain = from_pretrained(tmp_path / "plain", device="cpu")
    adapter = random_adapter(plain, tmp_path / "adapter")
    ids = torch.tensor(PROMPT)
    settings: dict[str, Any]
    for settings in ({"quantize": "int8"}, {"adapter": adapter, "quantize": "none"}):
        actual, expected = (
            from_pretrained(place, device="cpu", **settings)(ids)
            for place in (folder, tmp_path / "plain")
        )
        assert torch.equal(actual, expected)
    with_adapter = from_pretrained(folder, device="cpu", adapter=adapter)
    torch.testing.assert_close(with_adapter(ids), expected, rtol=1e-4, atol=1e-4)
    convert(folder, tmp_path / "merged", "--merge", str(adapter))
    torch.testing.assert_close(
        from_pretrained(tmp_path / "merged", device="cpu")(ids), expected, rtol=1e-4, atol=1e-4
    )


PROBLEMS: dict[str, tuple[str, dict[str, Tensor | None], str]] = {
    "no scale": (
        "fp8-block",
        {f"{UP}.weight_scale_inv": None},
        f"{UP}.weight lacks {UP}.weight_scale_inv: download",
    ),
    "another grid": (
        "fp8-block",
        {f"{UP}.weight_scale_inv": torch.ones(3, 4)},
        rf"{UP}.weight is corrupt: the scale has the shape \(3, 4\), .* blocks of 32 x 16",
    ),
    "no zero points": ("gptq", {f"{UP}.qzeros": None}, f"{UP}.qweight lacks {UP}.qzeros"),
    "three bits": (
        "gptq",
        {f"{UP}.qzeros": torch.zeros(2, 12, dtype=torch.int32)},
        "the codes have 3 bits; supported are 4 and 8",
    ),
    "other groups": (
        "gptq-no-g_idx",
        {
            f"{UP}.scales": torch.ones(4, 128, dtype=torch.float16),
            f"{UP}.qzeros": torch.zeros(4, 16, dtype=torch.int32),
        },
        "it has scales for 4 groups; 64 inputs in groups of 32 have 2",
    ),
    "an order of other inputs": (
        "gptq",
        {f"{UP}.g_idx": torch.zeros(63, dtype=torch.int32)},
        r"its g_idx has the shape \(63,\), not \(64,\)",
    ),
    "a group that does not exist": (
        "gptq",
        {f"{UP}.g_idx": torch.full((64,), 2, dtype=torch.int32)},
        rf"model: {UP}.weight is corrupt: g_idx names a group that is not one of 2",
    ),
    "words of 64 bits": (
        "gptq",
        {f"{UP}.qweight": torch.zeros(8, 128, dtype=torch.int64)},
        f"{UP}.qweight is corrupt: its codes have the dtype int64, not int32",
    ),
    "words as floats": (
        "awq",
        {f"{UP}.qzeros": torch.zeros(2, 16)},
        f"{UP}.qweight is corrupt: its zeros have the dtype float32, not int32",
    ),
    "an order that is not a number": (
        "gptq-desc_act",
        {f"{UP}.g_idx": torch.full((64,), torch.nan)},
        "its groups have the dtype float32, not int32 or int64",
    ),
    "scales of other outputs": (
        "awq",
        {f"{UP}.scales": torch.ones(2, 64, dtype=torch.float16)},
        r"its scales has the shape \(2, 64\), not \(2, 128\)",
    ),
    "no shape": ("packed", {f"{UP}.weight_shape": None}, f"lacks {UP}.weight_shape"),
    "another shape": (
        "packed",
        {f"{UP}.weight_shape": torch.tensor([128, 640])},
        "weight_packed has 8 words for 640 inputs",
    ),
    "a weight of another model": (
        "fp8-tensor",
        {f"{UP}.weight": torch.zeros(64, 64).to(torch.float8_e4m3fn)},
        r"layers.0.mlp.up_proj.weight is \(64, 64\), the config says \(128, 64\)",
    ),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_corrupt_weights_are_named(problem: str, tmp_path: Path) -> None:
    name, changes, message = PROBLEMS[problem]
    folder, _ = write_quantized(tmp_path / "model", name)
    change(folder, changes)
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder, device="cpu")


def test_a_weight_that_is_stored_twice_is_named(tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path / "model", "gptq")
    add(folder, {f"{UP}.weight": torch.zeros(128, 64)})
    with pytest.raises(ValueError, match=f"{UP}.weight is stored both quantized and as floats"):
        from_pretrained(folder, device="cpu")


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path / "model", "gptq")
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"{shard.name} is corrupt or truncated"):
        from_pretrained(folder, device="cpu")


def test_floats_with_a_quantization_config_are_rejected(tmp_path: Path) -> None:
    folder, _ = write_quantized(tmp_path / "model", "gptq", floats="")
    with pytest.raises(ValueError, match="no weight is quantized in this format: delete"):
        from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("name", ["gptq", "awq", "packed"])
def test_integers_without_a_quantization_config_name_the_file(tmp_path: Path, name: str) -> None:
    folder, _ = write_quantized(tmp_path / "model", name)
    settings = json.loads((folder / "config.json").read_text())
    del settings["quantization_config"]
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(
        ValueError, match=r"has no quantization_config .* download config\.json again"
    ):
        from_pretrained(folder, device="cpu")


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "bits": ({**GPTQ, "bits": 3}, "sets bits to 3, which is not supported .only 4, 8.: use"),
    "marlin": ({**GPTQ, "checkpoint_format": "marlin"}, "sets checkpoint_format to 'marlin'"),
    "older marlin": ({**GPTQ, "is_marlin_format": True}, "sets is_marlin_format to True"),
    "not compressed": (
        {**compressed("pack-quantized"), "quantization_status": "initialized"},
        "sets quantization_status to 'initialized'",
    ),
    "rotation": ({**GPTQ, "rotation": "hadamard"}, "sets rotation to 'hadamard'"),
    "group_size": ({**GPTQ, "group_size": 0}, "sets group_size to 0"),
    "gemv": ({**AWQ, "version": "gemv"}, "sets version to 'gemv'.* .only None, 'gemm', 'GEMM'."),
    "AWQ bits": ({**AWQ, "bits": 8}, "sets bits to 8"),
    "fp4": ({**FP8, "expert_dtype": "fp4"}, "sets expert_dtype to 'fp4'"),
    "block": ({**FP8, "weight_block_size": [128]}, r"sets weight_block_size to \[128\]"),
    "nvfp4": (compressed("nvfp4-pack-quantized"), "sets format to 'nvfp4-pack-quantized'"),
    "two bits": (compressed("pack-quantized", num_bits=2), "sets num_bits to 2"),
    "sparse": (
        {**compressed("pack-quantized"), "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sets sparsity_config to",
    ),
    "rotations": (
        {**compressed("int-quantized"), "transform_config": {"config_groups": {"R1": {}}}},
        "sets transform_config to",
    ),
    "no groups": (
        {**compressed("int-quantized"), "config_groups": {}},
        "sets config_groups to {}",
    ),
    "hqq": ({"quant_method": "hqq"}, "quant_method 'hqq'"),
    "no method": ({"bits": 4}, "quant_method None"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_are_not_supported_are_named(name: str, tmp_path: Path) -> None:
    quantization, message = SETTINGS[name]
    folder, _ = write_quantized(tmp_path / "model", "gptq")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder, device="cpu")
