"""GGUF files of Qwen 3.5 with a head for multi-token prediction: one more block, as llama.cpp's
converter writes it.
"""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf_files import finish
from random_weights import draw
from references import CASES, ids_of

import minhub_py
from minhub_py import generate
from minhub_py.export.gguf import write_gguf
from minhub_py.loading.files import open_files
from minhub_py.loading.pretrained import save_pretrained
from minhub_py.models.config import changed, read
from minhub_py.models.registry import architecture_of

# Names of llama.cpp for the tensors below mtp.layers.0 (gguf-py/gguf/tensor_mapping.py), and below
# mtp.
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "shared_expert.factor": "ffn_gate_inp_shexp", "shared_expert.gate_proj": "ffn_gate_shexp",
    "shared_expert.up_proj": "ffn_up_shexp", "shared_expert.down_proj": "ffn_down_shexp",
}  # fmt: skip
HEAD = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}


def new(name: str) -> Any:
    settings = {**CASES[name].settings(name), "linear_value_head_dim": 8}  # llama.cpp has K = V
    architecture = architecture_of(settings["model_type"])
    model = architecture.new(changed(read(architecture.Config, settings), {"mtp_layers": 1}))
    draw(model)
    return model.eval()


def head_tensors(model: Any, block: int) -> dict[str, torch.Tensor]:
    """The tensors of a model's head by their names in GGUF. Norms are stored as 1 + w."""
    result, experts = {}, {"gate": [], "up": [], "down": []}
    for name, tensor in model.mtp.state_dict().items():
        stem = name.removesuffix(".weight")
        if ".experts." in name:
            experts[name.split(".")[4].removesuffix("_proj")].append(tensor)
            continue
        short = (
            LAYER[stem.removeprefix("layers.0.")] if stem.startswith("layers.0.") else HEAD[stem]
        )
        value = (
            tensor + 1
            if "norm" in name
            else tensor.flatten()
            if stem.endswith("factor")
            else tensor
        )
        result[f"blk.{block}.{short}.weight"] = value
    for part, matrices in experts.items():
        if matrices:
            result[f"blk.{block}.ffn_{part}_exps.weight"] = torch.stack(matrices)
    return result


def with_head(source: Path, target: Path, model: Any, heads: int = 1) -> Path:
    """A copy of a file with a model's head as its last block."""
    reader = gguf.GGUFReader(source)
    name = reader.fields["general.architecture"].contents()
    layers = model.config.num_hidden_layers
    writer = gguf.GGUFWriter(target, name)
    changes = {f"{name}.block_count": layers + heads}
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        part = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = changes.get(field.name, field.contents())
        if field.name.endswith("recurrent_layers"):
            value = [*value, False]
        writer.add_key_value(field.name, value, kind, sub_type=part)
    writer.add_uint32(f"{name}.nextn_predict_layers", heads)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for key, value in head_tensors(model, layers).items():
        writer.add_tensor(key, value.contiguous().numpy())
    finish(writer)
    return target


@pytest.mark.parametrize("name", ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"])
def test_the_head_of_a_gguf_file_is_loaded_on_request(name: str, tmp_path: Path) -> None:
    model = new(name)
    save_pretrained(model, tmp_path / "hub")
    write_gguf(open_files(tmp_path / "hub"), tmp_path / "plain.gguf", type="F32")
    file = with_head(tmp_path / "plain.gguf", tmp_path / "head.gguf", model)
    plain = minhub_py.from_pretrained(file, device="cpu", quantize="none")
    assert plain.mtp is None
    full = minhub_py.from_pretrained(file, device="cpu", quantize="none", mtp=True)
    expected, actual = model.state_dict(), full.state_dict()
    assert actual.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(actual[key], tensor, rtol=1e-6, atol=2e-7)
    with torch.no_grad():
        torch.testing.assert_close(plain(ids_of(1)), full(ids_of(1)), rtol=0, atol=0)
    for quantized in (None, "int8"):
        loaded = minhub_py.from_pretrained(file, device="cpu", quantize=quantized, mtp=True)
        tokens = generate(loaded, [[1, 2, 3]], 20, temperature=0, eos_id=None)
        assert generate(loaded, [[1, 2, 3]], 20, temperature=0, eos_id=None, draft="mtp") == tokens
    with pytest.raises(ValueError, match="no head for multi-token prediction"):
        minhub_py.from_pretrained(tmp_path / "plain.gguf", mtp=True)
    two = with_head(tmp_path / "plain.gguf", tmp_path / "two.gguf", model, heads=2)
    with pytest.raises(
        ValueError, match="it has 2 blocks for multi-token prediction; at most one is supported"
    ):
        minhub_py.from_pretrained(two)
