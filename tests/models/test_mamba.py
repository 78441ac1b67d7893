"""The selective state space of Mamba: the recurrence, its state, and its memory."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from guarantees import RUNNER
from random_weights import draw
from references import CASES, assert_close, configured, random_model, texts_of
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

import minhub_py
from minhub_py.inference.encoder_runner import TorchEncoder, encoder_runner
from minhub_py.inference.native_runner import runner_of
from minhub_py.models.state_space import Mamba1Mixer, Mixer, chunked_scan, selective_scan

NAMES = ("mamba", "mamba2", "falcon_mamba", "granitemoehybrid", "falcon_h1", "jamba")


def inputs(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_scan_of_mamba_1_is_the_recurrence() -> None:
    """For each channel n and number s of its state, in float64."""
    x, dt = inputs(2, 9, 3, seed=4), inputs(2, 9, 3, seed=5).exp()
    b, c = inputs(2, 9, 4, seed=6), inputs(2, 9, 4, seed=7)
    a, d, state = -inputs(3, 4, seed=1).exp(), inputs(3, seed=2), inputs(2, 4, 3, seed=3)
    y, last = selective_scan(x, dt, a, b, c, d, state)
    for t in range(9):
        for n in range(3):
            for s in range(4):
                decay = (dt[:, t, n] * a[n, s]).exp()
                added = dt[:, t, n] * b[:, t, s] * x[:, t, n]
                state[:, s, n] = decay * state[:, s, n] + added
            expected = (c[:, t] * state[:, :, n]).sum(dim=1) + d[n] * x[:, t, n]
            torch.testing.assert_close(y[:, t, n], expected)
    torch.testing.assert_close(last, state)


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_the_scan_of_mamba_2_is_mamba_1s_with_equal_decays(chunk: int) -> None:
    """In chunks of any size, for heads that share b and c."""
    heads, size, states, groups = 6, 5, 7, 2
    x, dt = inputs(2, 13, heads * size, seed=1), inputs(2, 13, heads, seed=2).exp()
    b, c = inputs(2, 13, groups * states, seed=3), inputs(2, 13, groups * states, seed=4)
    a, d, state = (
        -inputs(heads, seed=5).exp(),
        inputs(heads, seed=6),
        inputs(2, heads, states, size, seed=7),
    )
    y, last = chunked_scan(x, dt, a, b, c, d, state, chunk)
    for head in range(heads):
        part, group = slice(head * size, (head + 1) * size), head // (heads // groups)
        of_group = slice(group * states, (group + 1) * states)
        expected, expected_last = selective_scan(
            x[:, :, part],
            dt[:, :, head : head + 1].expand(-1, -1, size),
            a[head].expand(size, states),
            b[:, :, of_group],
            c[:, :, of_group],
            d[head].expand(size),
            state[:, head],
        )
        torch.testing.assert_close(y[:, :, part], expected)
        torch.testing.assert_close(last[:, head], expected_last)


def test_a_large_decay_does_not_round_later_decays() -> None:
    """A token that resets the state, and tokens with small decays after it, in one chunk."""
    dt = torch.full((1, 40, 1), 1e-3, dtype=torch.float64)
    dt[:, 3] = 1e4
    x, b, c = (inputs(1, 40, size, seed=size) for size in (4, 8, 9))
    values = x, dt, torch.tensor([-1.0]).double(), b, c[:, :, :8], torch.zeros(1).double()
    state = torch.zeros(1, 1, 8, 4, dtype=torch.float64)
    expected, _ = chunked_scan(*values, state)
    y, _ = chunked_scan(*(value.float() for value in (*values, state)))
    later = slice(4, None)
    error = (y[:, later] - expected[:, later]).abs().max() / expected[:, later].abs().max()
    assert error < 1e-6


@pytest.mark.parametrize("name", NAMES[:3])
def test_the_cache_has_one_size_for_any_number_of_tokens(name: str) -> None:
    """In bytes, before and after thousands of tokens: a state of 100,000 tokens is as small."""
    model = random_model(name)
    cache = model.new_cache(2, 100_000)
    size = cache.size
    assert size == model.new_cache(2, 1).size
    config = model.config
    N, S, taps = config.inner, config.state_size, config.conv_kernel
    convolved = N + (2 * config.n_groups * S if name == "mamba2" else 0)
    assert size == 2 * 4 * config.num_hidden_layers * (S * N + (taps - 1) * convolved)
    runner = runner_of(model)
    assert type(runner) is RUNNER
    cache = runner.new_cache(2, 4000)
    size = cache.size
    [ids] = texts_of(3000)
    for row in range(2):
        runner.forward({row: ids}, cache)
    assert cache.size == size
    assert cache.lengths == [3000, 3000]


@pytest.mark.parametrize("name", NAMES)
def test_texts_continue_after_a_shared_prefix_as_from_the_start(name: str) -> None:
    """A server's batch with a prefix cache; greedy text is that of single runs without a cache."""
    model = random_model(name)
    [prefix] = texts_of(30)
    prompts = [[*prefix, 5, 6], [*prefix, 7], prefix]
    together = minhub_py.generate(model, prompts, 12, temperature=0, eos_id=None)
    for prompt, text in zip(prompts, together, strict=True):
        ids = list(prompt)
        for _ in range(12):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        assert text == ids[len(prompt) :]


@pytest.mark.parametrize("name", NAMES)
def test_new_models_start_with_slow_decays(name: str) -> None:
    """Δ is between 0.001 and 0.1, and A is -1, -2 and so on, as the authors draw them."""
    mixers = [
        module
        for module in configured(name)[0].new(configured(name)[1]).modules()
        if isinstance(module, Mixer)
    ]
    assert mixers
    for mixer in mixers:
        bias = mixer.dt_proj.bias if isinstance(mixer, Mamba1Mixer) else mixer.dt_bias
        dt = torch.nn.functional.softplus(bias)
        assert 0.00099 < dt.min() < dt.max() < 0.101
        numbers = mixer.A_log[0] if isinstance(mixer, Mamba1Mixer) else mixer.A_log
        torch.testing.assert_close(numbers.exp(), torch.arange(1.0, len(numbers) + 1))


@pytest.mark.parametrize(
    ("name", "layers", "count"),
    [("granitemoehybrid", [2], 3), ("falcon_h1", [1, 2], 2), ("nemotron_h", [3], 4)],
)
def test_attention_weights_have_the_numbers_of_their_layers(
    name: str, layers: list[int], count: int
) -> None:
    """In models whose layers have two caches, or none."""
    weights = minhub_py.attention_weights(random_model(name), None, [1, 2, 3])
    assert (weights.layers, weights.layer_count) == (layers, count)


@torch.inference_mode()
def test_nemotron_h_has_no_lower_limit_of_steps() -> None:
    """The original code has none; transformers has time_step_min in prompts."""
    model = random_model("nemotron_h")
    settings = {**CASES["nemotron_h"].settings("nemotron_h"), "time_step_min": 0.1}
    del settings["model_type"]
    other = minhub_py.from_config("nemotron_h", **settings).eval()
    other.load_state_dict(model.state_dict())
    ids = torch.tensor(texts_of(20))
    assert other(ids).equal(model(ids))


@torch.inference_mode()
@pytest.mark.parametrize("stacked", [False, True])
def test_nemotron_h_reads_experts_apart_and_stacked(tmp_path: Path, stacked: bool) -> None:
    """Published files have them apart; transformers' memory has them stacked. Layers that predict
    further tokens are ignored.
    """
    model = random_model("nemotron_h-experts")
    minhub_py.save_pretrained(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer, part in product((1, 3), ("up_proj", "down_proj")) if stacked else ():
        start = f"backbone.layers.{layer}.mixer.experts"
        matrices = [tensors.pop(f"{start}.{number}.{part}.weight") for number in range(6)]
        tensors[f"{start}.{part}"] = torch.stack(matrices)
    tensors["mtp.layers.0.norm.weight"] = torch.ones(32)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    ids = torch.tensor(texts_of(20))
    assert minhub_py.from_pretrained(tmp_path, device="cpu")(ids).equal(model(ids))


@torch.inference_mode()
def test_small_sigmoids_of_nemotron_h_are_normalized(tmp_path: Path) -> None:
    """The sum by which their weights are divided has a smaller epsilon than LFM2's."""
    name = "nemotron_h-experts-all-experts"
    config = AutoConfig.for_model(**CASES[name].settings(name))
    reference = AutoModelForCausalLM.from_config(config).eval()
    draw(reference)
    for layer in (1, 3):
        reference.model.layers[layer].mixer.gate.weight *= 10
    reference.save_pretrained(tmp_path)
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    texts = texts_of(20)
    ids = torch.tensor(texts)
    expected = reference(ids).logits
    assert_close(model(ids), expected)
    runner = runner_of(model)
    assert type(runner) is RUNNER
    actual = runner.forward({0: texts[0]}, runner.new_cache(1, 20), every=True)
    assert_close(actual, expected[0])


@torch.inference_mode()
def test_nemotron_h_without_experts_ignores_their_settings() -> None:
    settings = CASES["nemotron_h"].settings("nemotron_h")
    del settings["model_type"]
    model = minhub_py.from_config("nemotron_h", **settings, n_group=2, moe_latent_size=16)
    assert (model.config.n_group, model.config.moe_latent_size) == (1, None)


def test_a_classifier_with_mamba_layers_is_computed_by_torch() -> None:
    """Texts of an encoder have no cache, and so no state: the result is that of `forward`."""
    settings = {**CASES["granitemoehybrid"].settings("granitemoehybrid"), "num_labels": 3}
    del settings["model_type"]
    settings |= {"architectures": ["GraniteMoeHybridForSequenceClassification"], "pad_token_id": 0}
    model = minhub_py.from_config("granitemoehybrid", **settings).eval()
    texts = texts_of(9, 23)
    runner = encoder_runner(model)
    assert type(runner) is TorchEncoder
    states = runner.hidden_states(texts)
    with torch.no_grad():
        expected = torch.cat([model.hidden(torch.tensor([ids]))[0] for ids in texts])
    assert_close(states, expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "mamba2", "norm_before_gate": True, "rms_norm": True, "chunk_size": 256,
         "num_heads": 4, "head_dim": 8, "n_groups": 2, "time_step_limit": [0.0, float("inf")]},
        {"model_type": "mamba", "fused_add_norm": True, "ssm_cfg": {}, "d_model": 16, "n_layer": 1},
    ],
)  # fmt: skip
def test_settings_of_published_files_are_read(settings: dict[str, object], tmp_path: Path) -> None:
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(sizes | settings))
    assert minhub_py.from_config(tmp_path).config.hidden_size == 16


@torch.no_grad()
@pytest.mark.parametrize("exact", [True, False])
def test_the_residual_stream_of_a_model_in_16_bits_can_be_float32(exact: bool) -> None:
    """residual_in_fp32, as in transformers: the inputs of the last layer."""
    settings = {**CASES["mamba"].settings("mamba"), "residual_in_fp32": exact}
    reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    del settings["model_type"]
    models = reference, minhub_py.from_config("mamba", **settings)
    layers = reference.backbone.layers[-1], models[1].layers[-1]
    types: list[torch.dtype] = []
    for model, layer in zip(models, layers, strict=True):
        layer.register_forward_pre_hook(lambda _, inputs: types.append(inputs[0].dtype))
        model.eval().bfloat16()(torch.tensor(texts_of(9)))
    assert types == [torch.float32 if exact else torch.bfloat16] * 2
