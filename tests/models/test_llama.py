"""Properties of Llama and similar models only; see also the cases of tests/support/cases/llama.py."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from guarantees import RUNNER
from random_weights import draw
from references import assert_close, ids_of, random_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

import minhub_py
from minhub_py.inference.native_runner import runner_of


def test_layers_keep_no_more_than_their_window(load) -> None:
    model = load("qwen2-windows")[1]
    assert [keys.size(2) for keys, _ in model.new_cache(2, 50).layers] == [50, 5, 5]
    assert [keys.size(2) for keys, _ in model.new_cache(2, 4).layers] == [4, 4, 4]


VISION = {
    "depth": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 16,
    "out_hidden_size": 32,
}
QWEN = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MROPE = {"rope_type": "default", "rope_theta": 50.0, "mrope_section": [1, 1, 2]}
QWEN_MOE = {**QWEN, "moe_intermediate_size": 20, "num_experts": 6, "num_experts_per_tok": 3}
# model_type, its text model's settings, the same as in older files or None, and the equal model's type
MULTIMODAL = {
    "qwen2_vl": (
        "qwen2_vl",
        {**QWEN, "rope_parameters": MROPE},
        {"rope_theta": 50.0, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
        "qwen2",
    ),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        {**QWEN, "rope_parameters": {**MROPE, "rope_theta": 1e6}},
        {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
        "qwen2",
    ),
    "qwen3_vl": (
        "qwen3_vl",
        {**QWEN, "head_dim": 8, "rope_parameters": {**MROPE, "mrope_interleaved": True}},
        None,
        "qwen3",
    ),
    "qwen3_vl-defaults": ("qwen3_vl", {**QWEN, "head_dim": 16}, None, "qwen3"),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        {
            **QWEN_MOE,
            "head_dim": 12,
            "rope_parameters": {**MROPE, "mrope_section": [2, 2, 2], "mrope_interleaved": True},
        },
        None,
        "qwen3_moe",
    ),
    # The shapes of gate_up_proj do not show whether it is transposed.
    "qwen3_vl_moe-square": (
        "qwen3_vl_moe",
        {
            **QWEN_MOE,
            "moe_intermediate_size": 16,
            "num_experts_per_tok": 1,
            "num_key_value_heads": 1,
        },
        None,
        "qwen3_moe",
    ),
    # neither do the shapes of down_proj
    "qwen3_vl_moe-wide": (
        "qwen3_vl_moe",
        {**QWEN_MOE, "moe_intermediate_size": 32, "attention_bias": True, "rms_norm_eps": 0.1},
        None,
        "qwen3_moe",
    ),
    "qwen3_vl_moe-dense-layers": (
        "qwen3_vl_moe",
        {
            **QWEN_MOE,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "hidden_act": "gelu",
        },
        None,
        "qwen3_moe",
    ),
    "qwen3_vl_moe-defaults": (
        "qwen3_vl_moe",
        {
            "vocab_size": 61,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "moe_intermediate_size": 12,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        },
        None,
        "qwen3_moe",
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", MULTIMODAL)
def test_text_models_of_qwen_match_the_multimodal_class(name: str, tmp_path: Path) -> None:
    """With text_config, and in older files without it, whose tensors have older names."""
    kind, text, older, equal = MULTIMODAL[name]
    vision = {**VISION, "deepstack_visual_indexes": [0]} if "qwen3" in kind else dict(VISION)
    if kind == "qwen2_vl":
        vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2}
    images = {"vision_config": vision, "image_token_id": 59, "video_token_id": 60}
    reference = AutoModelForImageTextToText.from_config(
        AutoConfig.for_model(kind, text_config=deepcopy(text), **deepcopy(images))
    ).eval()
    draw(reference)
    reference.save_pretrained(tmp_path)
    ids = ids_of(2, 60) % 50  # without the tokens of images
    expected = reference(ids).logits
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert_close(model(ids), expected)
    assert model.config.to_hub()["model_type"] == equal
    if older is not None:
        flat = {name: value for name, value in text.items() if name != "rope_parameters"}
        settings = {**flat, **older, "model_type": kind, **images, "vision_token_id": 58}
        (tmp_path / "config.json").write_text(json.dumps(settings))
        tensors = {
            name.replace("model.language_model.", "model.").replace(
                "model.visual.", "visual."
            ): tensor
            for name, tensor in load_file(tmp_path / "model.safetensors").items()
        }
        save_file(tensors, tmp_path / "model.safetensors")
        assert_close(minhub_py.from_pretrained(tmp_path, device="cpu")(ids), expected)
    if equal == "qwen3_moe":
        # transformers writes (E, out, in), the published files have (E, in, out)
        tensors = {
            name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
            for name, tensor in load_file(tmp_path / "model.safetensors").items()
        }
        assert any(".experts." in name for name in tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        model = minhub_py.from_pretrained(tmp_path, device="cpu")
        assert_close(model(ids), expected)
        runner = runner_of(model)
        assert type(runner) is RUNNER
        result = runner.forward({0: ids[0].tolist()}, runner.new_cache(1, 60), every=True)
        assert_close(result, expected[0])
    # the text model alone, in transformers' class of the equal model
    minhub_py.save_pretrained(model, tmp_path / "text")
    assert_close(
        AutoModelForCausalLM.from_pretrained(tmp_path / "text").eval()(ids).logits, expected
    )


@pytest.mark.parametrize("value", [["mrope"], {}, 1])
def test_rope_types_of_wrong_types_are_rejected_by_name(value: object, tmp_path: Path) -> None:
    settings = {**QWEN, "model_type": "qwen2_vl", "rope_scaling": {"type": value}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="rope_type"):
        minhub_py.from_pretrained(tmp_path, device="cpu")


def test_the_text_model_of_a_multimodal_file(load, tmp_path: Path) -> None:
    """mistral3: settings are in text_config, tensors below language_model; those for images are
    ignored.
    """
    _, model, folder = load("ministral3")
    settings = json.loads((folder / "config.json").read_text())
    outer = {
        "model_type": "mistral3",
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": settings,
        "vision_config": {"model_type": "pixtral"},
        "image_token_index": 10,
    }
    for names in ("language_model.model.", "model.language_model."):
        tensors = {
            (
                key.replace("model.", names, 1)
                if key.startswith("model.")
                else key
                if names.startswith("model.")
                else f"language_model.{key}"
            ): tensor
            for key, tensor in load_file(folder / "model.safetensors").items()
        }
        prefix = "model." if names.startswith("model.") else ""
        tensors |= {
            f"{prefix}vision_tower.patch_conv.weight": torch.zeros(2, 3),
            f"{prefix}multi_modal_projector.linear_1.bias": torch.zeros(2),
        }
        (tmp_path / "config.json").write_text(json.dumps(outer))
        save_file(tensors, tmp_path / "model.safetensors")
        result = minhub_py.from_pretrained(tmp_path, device="cpu")
        assert torch.equal(result(ids_of(1)), model(ids_of(1)))


@torch.no_grad()
def test_the_activation_of_apertus_is_exact_for_small_numbers() -> None:
    """e^x - 1 - x, which rounds to noise if it is computed as written, with a factor that shows it."""
    model = random_model("apertus")
    for block in model.layers:
        block.mlp.up_proj.weight *= 1e-4
        block.mlp.down_proj.weight *= 1e4
    ids = ids_of(1, 40)
    runner = runner_of(model)
    assert type(runner) is RUNNER
    result = runner.forward({0: ids[0].tolist()}, runner.new_cache(1, 40), every=True)
    assert_close(result, model(ids)[0])
