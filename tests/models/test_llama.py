"""Properties of Llama and similar models only; see also the cases of tests/support/cases/llama.py."""

import json
from pathlib import Path

import torch
from references import ids_of
from safetensors.torch import load_file, save_file

import minhub_py


def test_layers_keep_no_more_than_their_window(load) -> None:
    model = load("qwen2-windows")[1]
    assert [keys.size(2) for keys, _ in model.new_cache(2, 50).layers] == [50, 5, 5]
    assert [keys.size(2) for keys, _ in model.new_cache(2, 4).layers] == [4, 4, 4]


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
