"""Properties of Gemma 4 only; see also the cases of tests/support/cases/gemma4.py."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from guarantees import EXACT
from random_weights import draw
from references import assert_close, ids_of
from safetensors.torch import load_file, save_file

import minhub_py
from minhub_py.inference.native.library import KINDS
from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.quantize import Quantized


def test_only_the_first_layers_cache_and_no_more_than_their_window(load) -> None:
    shapes = [tuple(keys.shape[1:]) for keys, _ in load("gemma4_text")[1].new_cache(2, 50).layers]
    assert shapes == [(2, 7, 8), (2, 50, 16)]  # of four layers
    assert [
        tuple(keys.shape[1:]) for keys, _ in load("gemma4_text-dense")[1].new_cache(2, 50).layers
    ] == [(2, 7, 8), (1, 50, 16), (2, 7, 8), (1, 50, 16)]


@torch.no_grad()
def test_the_text_model_of_a_multimodal_file_with_unused_keys(load, tmp_path: Path) -> None:
    """Settings below text_config; published files also have keys and values of the layers that
    share them.
    """
    _, expected, folder = load("gemma4_text")
    settings = json.loads((folder / "config.json").read_text())
    outer = {
        "model_type": "gemma4",
        "architectures": ["Gemma4ForConditionalGeneration"],
        "eos_token_id": [1, 60],
        "text_config": settings,
        "vision_config": {},
        "audio_config": {},
        "image_token_id": 60,
    }
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = {
        f"model.language_model.{name.removeprefix('model.')}": tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    layer = "model.language_model.layers.{}.self_attn"
    for name in ("k_proj", "v_proj", "k_norm"):
        tensors[f"{layer.format(3)}.{name}.weight"] = tensors[
            f"{layer.format(1)}.{name}.weight"
        ].clone()
    tensors["model.vision_tower.patch_embedder.input_proj.weight"] = torch.zeros(2, 2)
    tensors["model.embed_audio.embedding_projection.weight"] = torch.zeros(2, 2)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert model.config.eos_token_id == [1, 60]
    assert torch.equal(model(ids_of(2)), expected(ids_of(2)))
    del tensors[f"{layer.format(1)}.k_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn\.k_proj"):
        minhub_py.from_pretrained(tmp_path, device="cpu")


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_the_table_of_layer_inputs_stays_in_the_mapped_file(
    load, tmp_path: Path, kind: str
) -> None:
    """Neither a quantized model nor its runner has a copy of the second embedding."""
    minhub_py.save_pretrained(deepcopy(load("gemma4_text")[1]).to(torch.bfloat16), tmp_path)
    model: Any = minhub_py.from_pretrained(tmp_path, device="cpu", quantize=kind)
    assert isinstance(model.embed_tokens, Quantized)
    assert model.new_cache(1, 9).dtype == model.norm.weight.dtype == torch.float32
    assert model(ids_of(1)).dtype == torch.float32
    table = model.embed_tokens_per_layer.weight
    mapped = [
        line.split()[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(tmp_path / "model.safetensors"))
    ]
    assert any(int(start, 16) <= table.data_ptr() < int(end, 16) for start, end in mapped)
    if EXACT:
        runner: Any = runner_of(model)
        [inputs] = [
            operation for operation in runner.operations if operation.kind == KINDS["layer_inputs"]
        ]
        assert inputs.layer_inputs.tokens.data == table.data_ptr()


@torch.inference_mode()
def test_native_logits_match_forward_at_published_head_sizes() -> None:
    """With small scores. Scores have no factor: with random norms of q and k they are near √512,
    and both runners round by more than the tolerance (docs/benchmarks/experiments.md compares them
    with float64).
    """
    model = minhub_py.from_config(
        "gemma4_text",
        vocab_size=61,
        hidden_size=32,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        hidden_size_per_layer_input=0,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"],
    ).eval()
    draw(model)
    for block in model.layers:
        block.self_attn.q_norm.weight.mul_(block.self_attn.q_norm.weight.numel() ** -0.5)
    runner, ids = runner_of(model), ids_of(1)
    result = runner.forward({0: ids[0].tolist()}, runner.new_cache(1, 70), every=True)
    assert_close(result, model(ids)[0])


@torch.inference_mode()
def test_keys_are_shared_without_inputs_per_layer() -> None:
    """transformers 5.23 does not compute such a model. With inputs of zero size the layers are the
    same.
    """
    settings = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "global_head_dim": 16,
        "vocab_size_per_layer_input": 61,
        "sliding_window": 7,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    model = minhub_py.from_config("gemma4_text", **settings, hidden_size_per_layer_input=0).eval()
    other = minhub_py.from_config("gemma4_text", **settings, hidden_size_per_layer_input=4).eval()
    draw(other)
    for block in other.layers:
        block.post_per_layer_input_norm.weight.zero_()
    model.load_state_dict({key: other.state_dict()[key] for key in model.state_dict()})
    ids = ids_of(1, 40)
    assert_close(model(ids), other(ids))
    runner = runner_of(model)
    assert_close(
        runner.forward({0: ids[0].tolist()}, runner.new_cache(1, 40), every=True), other(ids)[0]
    )


@pytest.mark.parametrize("spelling", ["new", "new-two-digits", "old"])
def test_both_spellings_of_global_sizes_are_read(spelling: str, tmp_path: Path) -> None:
    """transformers 5.23 writes per_layer_config, with layer numbers of equal length; older files
    have two settings.
    """
    sizes = {"head_dim": 16, "num_key_value_heads": 1}
    size = (
        {"global_head_dim": 16, "num_global_key_value_heads": 1}
        if spelling == "old"
        else {"per_layer_config": {"5" if spelling == "new" else "05": sizes}}
    )
    config = {
        "model_type": "gemma4_text",
        "hidden_size": 32,
        "num_hidden_layers": 6,
        "attention_k_eq_v": True,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 61,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": 8,
        **size,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = minhub_py.from_config(tmp_path)
    assert model.config.head_sizes == [8, 8, 8, 8, 8, 16]
    assert model.config.kv_heads == [2, 2, 2, 2, 2, 1]
    assert model.config.to_hub()["global_head_dim"] == 16
