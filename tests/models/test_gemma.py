"""Properties of Gemma only; see also the cases of tests/support/cases/gemma.py."""

import json
from pathlib import Path

import pytest
import torch
from needs import needs
from random_weights import draw
from references import ids_of
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
)

import minhub_py
from minhub_py.inference.native.library import library
from minhub_py.inference.native_runner import NativeRunner, runner_of

VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def test_layers_keep_no_more_than_their_window(load) -> None:
    assert [keys.size(2) for keys, _ in load("gemma2")[1].new_cache(2, 50).layers] == [7, 50]
    assert [keys.size(2) for keys, _ in load("gemma3_text-usual")[1].new_cache(2, 50).layers] == [
        9,
        9,
        9,
        9,
        9,
        50,
    ]


@torch.no_grad()
def test_the_text_model_of_a_multimodal_file(load, tmp_path: Path) -> None:
    """gemma3: settings are in text_config, end tokens next to it; settings and tensors for images
    are ignored.
    """
    settings = json.loads((load("gemma3_text")[2] / "config.json").read_text())
    config = Gemma3Config(
        text_config=settings, vision_config=VISION, mm_tokens_per_image=4, image_token_index=60
    )
    reference = Gemma3ForConditionalGeneration(config).eval()
    draw(reference)
    reference.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    outer = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 60],
        "text_config": settings,
        "vision_config": VISION,
        "image_token_index": 60,
    }
    (tmp_path / "config.json").write_text(json.dumps(outer))
    model = minhub_py.gemma3_from_pretrained(tmp_path, device="cpu")
    assert model.config.eos_token_id == [1, 60]
    expected = reference(ids_of(2)).logits
    assert (model(ids_of(2)) - expected).abs().max() <= 5e-5 * expected.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_embedding_factor_is_rounded_to_the_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    """√48 is 6.928, and 6.9375 in bfloat16: the first layer's input is bitwise identical to
    transformers'.
    """
    config = AutoConfig.for_model(
        "gemma",
        vocab_size=61,
        hidden_size=48,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    reference = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    draw(reference)
    reference.save_pretrained(tmp_path)
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert next(model.parameters()).dtype == dtype
    actual, expected = [], []
    model.layers[0].register_forward_pre_hook(lambda _, inputs: actual.append(inputs[0]))
    reference.model.layers[0].register_forward_pre_hook(
        lambda _, inputs: expected.append(inputs[0])
    )
    model(ids_of(1)), reference(ids_of(1))
    assert torch.equal(actual[0], expected[0])


@needs("decoder")
@torch.inference_mode()
def test_the_native_runner_rounds_it_too() -> None:
    """A block of zeros adds its bias only; without it, the last norm would remove the factor."""
    settings = {
        "model_type": "gemma",
        "vocab_size": 61,
        "hidden_size": 48,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "attention_bias": True,
    }
    model = minhub_py.from_config("gemma", **settings).to(torch.bfloat16).eval()
    for parameter in model.layers.parameters():
        parameter.zero_()
    model.layers[0].self_attn.o_proj.bias.fill_(4.0)
    model.embed_tokens.weight.normal_(generator=torch.Generator().manual_seed(0))
    runner = runner_of(model)
    assert type(runner) is NativeRunner
    ids = list(range(10))
    # these kernels do not round the inputs of products, even if the default ones do
    library().choose(b"avx2")
    try:
        logits = runner.forward({0: ids}, runner.new_cache(1, 20), every=True)
    finally:
        library().choose(None)
    weight = model.embed_tokens.weight.float()
    x = weight[:10] * 6.9375 + 4
    expected = x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + 1e-6) @ weight.T
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
