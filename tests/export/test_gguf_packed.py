"""GGUF files of GPT-OSS with experts in MXFP4, which keep their codes and scales in both
directions.
"""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from references import ids_of

from minhub_py import from_pretrained, gptoss, save_pretrained
from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.export.gguf import write_gguf
from minhub_py.loading.files import open_files
from minhub_py.models.experts import Packed

SMALL = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 7,
    "max_position_embeddings": 96,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with random codes, and scales that differ between blocks."""
    torch.manual_seed(1)
    model = gptoss(**SMALL, quantization_config={"quant_method": "mxfp4"}, initializer_range=0.1)
    for module in model.modules():
        if isinstance(module, Packed):
            module.scales += torch.randint(-2, 3, module.scales.shape).to(torch.uint8)
    save_pretrained(model, tmp_path / "hub")
    return tmp_path / "hub"


@torch.no_grad()
@pytest.mark.parametrize("type", ["F32", "Q8_0"])
def test_experts_keep_their_codes(type: str, folder: Path, tmp_path: Path) -> None:
    write_gguf(open_files(folder), tmp_path / "model.gguf", type)
    model, again = (
        from_pretrained(path, device="cpu") for path in (folder, tmp_path / "model.gguf")
    )
    expected, actual = (dict(each.named_buffers()) for each in (model, again))
    assert len(expected) == 2 * 2 * SMALL["num_hidden_layers"]
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name
    ids = ids_of(1, 30)
    if type == "F32":
        assert torch.equal(again(ids), model(ids))


@pytest.mark.parametrize(
    ("layers", "pattern"),
    [
        (None, None),
        ("sfsf", 2),
        ("ssfs", 3),
        ("ssss", 0),
        ("ffff", 1),
        ("fsfs", [False, True, False, True]),
    ],
)
def test_windows_are_a_period_or_a_list(layers: str | None, pattern: Any, tmp_path: Path) -> None:
    names = {"s": "sliding_attention", "f": "full_attention"}
    types = None if layers is None else [names[layer] for layer in layers]
    model = gptoss(**{**SMALL, "num_hidden_layers": 4}, layer_types=types)
    save_pretrained(model, tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "model.gguf", "F32")
    metadata = read_header(tmp_path / "model.gguf").metadata
    assert metadata.get("gpt-oss.attention.sliding_window_pattern") == pattern
    again = from_pretrained(tmp_path / "model.gguf", device="cpu")
    assert again.config.windows == model.config.windows


def test_experts_are_values_of_the_gguf_package(folder: Path, tmp_path: Path) -> None:
    """Gate and up are separate, with rows along the inputs."""
    write_gguf(open_files(folder), tmp_path / "model.gguf")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    experts = from_pretrained(folder, device="cpu").layers[1].mlp.experts
    for number in range(SMALL["num_local_experts"]):
        gate_up = experts.gate_up_proj.expert(number, torch.float32).t()  # (2I, C)
        down = experts.down_proj.expert(number, torch.float32).t()  # (C, I)
        for name, weight in (("gate", gate_up[0::2]), ("up", gate_up[1::2]), ("down", down)):
            tensor = stored[f"blk.1.ffn_{name}_exps.weight"]
            assert tensor.tensor_type == gguf.GGMLQuantizationType.MXFP4
            values = gguf.quants.dequantize(tensor.data[number], tensor.tensor_type)
            assert torch.equal(torch.from_numpy(values), weight)


def test_other_types_of_experts_are_dequantized(folder: Path, tmp_path: Path) -> None:
    """All experts are in MXFP4, or none: a file whose down_proj has another type has floats."""
    write_gguf(open_files(folder), tmp_path / "model.gguf", "F32")
    reader, writer = (
        gguf.GGUFReader(tmp_path / "model.gguf"),
        gguf.GGUFWriter(tmp_path / "mixed.gguf", "gpt-oss"),
    )
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if tensor.name.endswith("ffn_down_exps.weight"):
            data, kind = gguf.quants.dequantize(data, kind), gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    mixed, packed = (
        from_pretrained(tmp_path / name, device="cpu") for name in ("mixed.gguf", "model.gguf")
    )
    assert not any(isinstance(module, Packed) for module in mixed.modules())
    ids = ids_of(1, 30)
    with torch.no_grad():
        expected = packed(ids)
        assert (mixed(ids) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert read_header(tmp_path / "mixed.gguf").tensors["blk.0.ffn_up_exps.weight"].type == "MXFP4"
