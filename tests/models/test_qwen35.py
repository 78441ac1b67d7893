"""What only Qwen 3.5 has, beside the cases of tests/support/cases/qwen35.py: texts of several
chunks, and a state.
"""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from cases.qwen35 import FAMILY
from guarantees import RUNNER, assert_same
from random_weights import draw
from references import assert_close, ids_of, read
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

import minhub_py
import weights_map
from minhub_py.inference.batch import Batch
from minhub_py.inference.native_runner import runner_of
from minhub_py.inference.sampling import Sampling
from minhub_py.loading.files import open_files
from minhub_py.models.delta import delta_rule
from minhub_py.models.registry import preset
from minhub_py.models.skeleton import skeleton

LONG = 200  # more than three chunks of 64
FEW = ("qwen3_5_text", "qwen3_5_text-sizes", "qwen3_5_text-types")


def test_chunks_say_what_the_rule_says() -> None:
    """Position by position, as at the top of delta.py, in float64; gradients too."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(1, 2, *shape, generator=generator, dtype=torch.float64)

    q, k, v, before = random(150, 6), random(150, 6), random(150, 5), random(6, 5)
    k, decay, beta = k / k.norm(dim=3, keepdim=True), -(random(150) ** 4), random(150).sigmoid()
    inputs = [tensor.requires_grad_() for tensor in (q, k, v, decay, beta, before)]
    state, outputs = before, []
    for i in range(150):
        state = state * decay[:, :, i, None, None].exp()
        answer = torch.einsum("bhkv,bhk->bhv", state, k[:, :, i])
        delta = beta[:, :, i, None] * (v[:, :, i] - answer)
        state = state + k[:, :, i, :, None] * delta[:, :, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, i]))
    expected = torch.stack(outputs, dim=2)
    by, by_state = torch.randn_like(expected), torch.randn_like(state)
    gradients = torch.autograd.grad([expected, state], inputs, [by, by_state])
    for chunk in (1, 7, 64, 150):
        actual, after = delta_rule(*inputs, chunk)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(after, state)
        for one, other in zip(
            torch.autograd.grad([actual, after], inputs, [by, by_state]), gradients, strict=True
        ):
            torch.testing.assert_close(one, other)


@torch.no_grad()
@pytest.mark.parametrize("name", FEW)
def test_long_texts(load, name: str) -> None:
    """Of several chunks, at once and in pieces, by `forward` and by the native runner."""
    reference, model, _ = load(name)
    ids = ids_of(2, LONG)
    expected = reference(ids).logits
    assert_close(model(ids), expected)
    for pieces in ([1, 3, 64, 65], [65, 1, 130], [128, 1]):
        assert_close(read(model, ids, pieces, model.new_cache(2, LONG)), expected)
    runner = runner_of(model)
    assert type(runner) is RUNNER
    texts = {row: ids[row].tolist() for row in range(2)}
    actual = runner.forward(texts, runner.new_cache(2, LONG), every=True).clone()
    assert_close(actual, expected.flatten(0, 1))
    cache = runner.new_cache(2, LONG)
    for start, end in pairwise((0, 1, 4, 68, 133, LONG)):
        pieces = runner.forward(
            {row: text[start:end] for row, text in texts.items()}, cache, every=True
        )
        both = torch.cat((actual[start:end], actual[LONG + start : LONG + end]))
        assert_same(pieces, both)


@torch.no_grad()
def test_layers_with_a_state_alone() -> None:
    """The first chunk reaches the last by the state; there is no bound to what a cache takes."""
    kinds = ["linear_attention", "linear_attention"]
    settings = {**FAMILY.small, "num_hidden_layers": 2, "layer_types": kinds}
    model = minhub_py.from_config("qwen3_5_text", **settings).eval()
    draw(model)
    ids = ids_of(1, LONG)
    other = ids.clone()
    other[0, 3] = (ids[0, 3] + 1) % 61
    result = model(ids)
    change = (model(other) - result).abs().amax(dim=2)[0]
    assert change[:3].max() == 0
    assert change[-1] > 1e-4
    # transformers has no cache for such a model
    reference = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("qwen3_5_text", **settings)
    ).eval()
    names = weights_map.to_hub("qwen3_5_text", model.state_dict())
    reference.load_state_dict(dict(names))
    assert_close(result, reference(ids, use_cache=False).logits)
    assert_close(read(model, ids, [1, 3, 64, 65], model.new_cache(1, 2)), result)
    runner = runner_of(model)
    assert_close(
        runner.forward({0: ids[0].tolist()}, runner.new_cache(1, 2), every=True), result[0]
    )


def test_what_a_cache_keeps(load) -> None:
    """Inputs of the convolution and a state in float32; keys and values in the model's dtype."""
    _, _, folder = load("qwen3_5_text-types")
    model = minhub_py.from_pretrained(folder, device="cpu", dtype="bfloat16")
    cache = model.new_cache(2, 50)
    assert [[tuple(tensor.shape) for tensor in layer] for layer in cache.layers] == [
        [(2, 2, 50, 16)] * 2,
        [(2, 1, 3, 80), (2, 1, 4, 8, 12)],
    ] * 2
    assert [tensor.dtype for layer in cache.layers for tensor in layer] == [
        *[torch.bfloat16] * 2,
        *[torch.float32] * 2,
    ] * 2


def test_a_text_that_begins_like_another(load) -> None:
    """A state is copied only where it ends with the common part; the ids are those of a text alone
    either way.
    """
    model = load("qwen3_5_text")[1]
    start, more = ids_of(1, 80)[0].tolist(), ids_of(2, 5)[0].tolist()
    for steps in (1, 4):
        batch = Batch(model, rows=2, max_length=120)
        first = batch.admit(start, 12, sampling=Sampling(temperature=0))
        generated = {first: [event.id for _ in range(steps) for event in batch.step()]}
        second = batch.admit(start + more, 12, sampling=Sampling(temperature=0), like=first)
        generated[second] = []
        with torch.inference_mode():
            shared = batch.cache.has_prefix(0, len(start))
        assert shared == (steps == 1)
        while len(batch):
            for event in batch.step():
                generated[event.row].append(event.id)
        for row, ids in ((first, start), (second, start + more)):
            assert (
                generated[row]
                == minhub_py.generate(model, [ids], 12, temperature=0, eos_id=None)[0]
            )


@pytest.mark.parametrize("names", ["model.language_model.", "language_model.model."])
def test_the_text_model_of_a_multimodal_file(load, names: str, tmp_path: Path) -> None:
    """Settings below text_config; what is for pictures, and for drafts of more than one id, is left
    alone.
    """
    _, model, folder = load("qwen3_5_text")
    settings = json.loads((folder / "config.json").read_text())
    outer = {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": settings,
        "vision_config": {"model_type": "qwen3_5_vision"},
        "image_token_id": 60,
    }
    tensors = {
        key.replace("model.", names, 1) if key.startswith("model.") else key: tensor
        for key, tensor in load_file(folder / "model.safetensors").items()
    }
    tensors |= {
        "mtp.layers.0.mlp.up_proj.weight": torch.zeros(2, 3),
        "model.visual.pos_embed.weight": torch.zeros(2),
    }
    (tmp_path / "config.json").write_text(json.dumps(outer))
    save_file(tensors, tmp_path / "model.safetensors")
    result = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert torch.equal(result(ids_of(1)), model(ids_of(1)))
    # of the text model alone, in transformers' names for it
    minhub_py.save_pretrained(result, tmp_path / "text")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "text").eval()
    assert type(theirs).__name__ == "Qwen3_5ForCausalLM"
    with torch.no_grad():
        assert_close(theirs(ids_of(1)).logits, model(ids_of(1)))


@torch.no_grad()
def test_transformers_multimodal_class_says_the_same(tmp_path: Path) -> None:
    """The names that transformers itself writes for a model with pictures, and its positions in
    three directions.
    """
    text = {
        **FAMILY.small,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 50.0,
            "mrope_section": [1, 1, 0],
            "mrope_interleaved": True,
            "partial_rotary_factor": 0.25,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 16,
        "out_hidden_size": 32,
    }
    reference = AutoModelForImageTextToText.from_config(
        AutoConfig.for_model(
            "qwen3_5", text_config=text, vision_config=vision, image_token_id=59, video_token_id=60
        )
    ).eval()
    draw(reference)
    reference.save_pretrained(tmp_path)
    ids = ids_of(2, 80) % 50  # none that stands for a picture
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert_close(model(ids), reference(ids).logits)


@torch.no_grad()
def test_the_rule_is_never_in_16_bits(load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under autocast, as training in bfloat16 has it, the products of layers are, and the state is
    not.
    """
    autocast = []

    def rule(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        autocast.append(torch.is_autocast_enabled("cpu"))
        return delta_rule(*tensors)

    monkeypatch.setattr("minhub_py.models.delta.delta_rule", rule)
    with torch.autocast("cpu", torch.bfloat16):
        assert load("qwen3_5_text")[1](ids_of(1)).dtype == torch.bfloat16
    assert autocast == [False] * 3


def test_a_published_config_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    """That of Qwen3.5-27B, but for bookkeeping."""
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "dtype": "bfloat16",
        "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
        "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 17408,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 16,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 48, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "num_attention_heads": 24,
        "num_hidden_layers": 64, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "use_cache": True,
        "vocab_size": 248320, "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_type": "default", "rope_theta": 10000000,
            "partial_rotary_factor": 0.25},
    }  # fmt: skip
    outer = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "tie_word_embeddings": False,
        "vision_config": {"model_type": "qwen3_5"},
    }
    (tmp_path / "config.json").write_text(json.dumps(outer))
    files = open_files(tmp_path)
    family, config = files.architecture, files.config
    assert config == replace(preset("Qwen/Qwen3.5-27B")[1], layer_types=text["layer_types"])
    settings = AutoConfig.for_model(**text)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(settings)
    ours = skeleton(family.Model, config)
    shapes = {
        key: tensor.shape
        for key, tensor in weights_map.to_hub(family.model_type, ours.state_dict()).items()
    }
    assert shapes == {key: tensor.shape for key, tensor in theirs.state_dict().items()}
    torch.testing.assert_close(
        torch.tensor(ours.rope.frequencies), type(theirs.model.rotary_emb)(settings).inv_freq
    )
