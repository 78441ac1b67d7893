"""Properties of Llama 4 only; tests/support/cases/llama4.py has the cases."""

from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.llama4 import FAMILY, SMALL
from guarantees import RUNNER, assert_same
from random_weights import draw
from references import LENGTH, assert_close, ids_of, random_model
from transformers import AutoConfig, AutoModelForImageTextToText

import minhub_py
from minhub_py.inference.native_runner import runner_of
from minhub_py.models.config import read
from minhub_py.models.llama4 import Llama4Config

VISION = {
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "vision_output_dim": 24,
    "projector_input_dim": 20,
    "projector_output_dim": 24,
}


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama4_text", "llama4_text-interleaved", "llama4_text-dense"])
def test_text_models_match_the_multimodal_class(name: str, tmp_path: Path) -> None:
    text = {key: value for key, value in FAMILY.settings(name).items() if key != "model_type"}
    settings = {"text_config": text, "vision_config": deepcopy(VISION), "image_token_index": 60}
    reference = AutoModelForImageTextToText.from_config(AutoConfig.for_model("llama4", **settings))
    draw(reference.eval())
    reference.save_pretrained(tmp_path)
    ids = ids_of(2, 60) % 50  # without the tokens of images
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    # the outer class of transformers 5.24 fails without images
    assert_close(model(ids), reference.language_model(ids).logits)
    runner = runner_of(model)
    assert type(runner) is RUNNER
    result = runner.forward({0: ids[0].tolist()}, runner.new_cache(1, 60), every=True)
    assert_close(result, model(ids)[0])


def test_layers_keep_no_more_than_their_chunk(load) -> None:
    model = load("llama4_text")[1]
    assert [keys.size(2) for keys, _ in model.new_cache(2, 50).layers] == [7, 50]


@torch.no_grad()
def test_a_chunk_ends_before_the_next_one() -> None:
    """A changed token changes the later positions of its chunk only, if no layer attends to all."""
    model = random_model("llama4_text-theta")  # chunks of 7
    ids = ids_of(1, 21)
    other = ids.clone()
    other[0, 9] = (ids[0, 9] + 1) % 61
    changed = (model(ids) != model(other)).any(dim=2)[0].nonzero().flatten().tolist()
    assert changed == list(range(9, 14))


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_quantized_experts_match_forward(load, kind: str, dtype: str) -> None:
    """The same in one call, in chunks, and in a batch. All experts: rounding selects no others."""
    model = minhub_py.from_pretrained(
        load("llama4_text-all-experts")[2], device="cpu", quantize=kind, dtype=dtype
    )
    runner = runner_of(model)
    assert type(runner) is RUNNER
    ids = ids_of(1)[0].tolist()
    result = runner.forward({0: ids}, runner.new_cache(1, LENGTH), every=True, exact=True).clone()
    expected = model(torch.tensor([ids]))[0].float()
    error = ((result - expected).square().mean() / expected.square().mean()).sqrt()
    assert error < (2e-3 if dtype == "float32" else 0.1)
    cache = runner.new_cache(1, LENGTH)
    pieces = [
        runner.forward({0: ids[start:end]}, cache, every=True, exact=True).clone()
        for start, end in pairwise((0, 13, 14, 15, LENGTH))
    ]
    assert_same(torch.cat(pieces), result, dtype)
    cache = runner.new_cache(3, LENGTH)
    rows = runner.forward({0: ids[:5], 1: ids[:40], 2: ids[:2]}, cache, exact=True)
    assert_same(rows, result[[4, 39, 1]], dtype)


def test_settings_of_published_files_are_read() -> None:
    """Scout's llama3 factors are equal; older files have a number for attn_temperature_tuning."""
    published: dict[str, Any] = {
        **SMALL,
        "model_type": "llama4_text",
        "_attn_implementation_autoset": True,
        "attn_temperature_tuning": 4,
        "cache_implementation": "hybrid",
        "for_llm_compressor": False,
        "moe_layers": [0, 1],
        "no_rope_layers": [],
        "output_router_logits": False,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
    }
    config = read(Llama4Config, published)
    assert config.rope["rope_theta"] == 5e5
    assert config.to_hub()["attn_temperature_tuning"] is True
    assert config.rotates == [True, True]
