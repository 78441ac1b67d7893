"""The weighted average of RWKV-4: the definition, its state, extreme keys, and `rescale_every`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from guarantees import RUNNER
from references import assert_close, configured, ids_of, random_model, texts_of

import minhub_py
from minhub_py.inference.native_runner import runner_of
from minhub_py.models.rwkv import RWKV, RWKVConfig, wkv

# config.json of RWKV/rwkv-4-169m-pile
PUBLISHED = {
    "architectures": ["RwkvForCausalLM"], "attention_hidden_size": 768, "bos_token_id": 0, "context_length": 1024,
    "eos_token_id": 0, "hidden_size": 768, "intermediate_size": 3072, "layer_norm_epsilon": 1e-05,
    "model_type": "rwkv", "num_hidden_layers": 12, "rescale_every": 6, "tie_word_embeddings": False,
    "transformers_version": "4.29.0.dev0", "use_cache": True, "vocab_size": 50277,
}  # fmt: skip


def values(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def average(k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, bonus: torch.Tensor):
    """The definition: a softmax over the previous positions and the current one."""
    outputs = []
    for t in range(k.size(1)):
        age = torch.arange(t - 1, -1, -1, dtype=k.dtype).view(1, t, 1)
        scores = torch.cat((k[:, :t] - age * decay, k[:, t : t + 1] + bonus), dim=1)
        outputs.append((scores.softmax(dim=1) * v[:, : t + 1]).sum(dim=1))
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("sizes", [[23], [1] * 23, [9, 1, 13], [16, 7], [2, 21]])
def test_the_average_is_a_softmax_over_previous_positions(sizes: list[int]) -> None:
    """In chunks of any sizes; each block of a chunk joins the state before it."""
    k, v = 4 * values(2, 23, 5, seed=1), values(2, 23, 5, seed=2)
    decay, bonus = (2 * values(5, seed=3)).exp(), values(5, seed=4)
    state, outputs = torch.zeros(2, 3, 5).double(), []
    for key, value in zip(k.split(sizes, dim=1), v.split(sizes, dim=1), strict=True):
        y, state = wkv(key, value, decay, bonus, state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, dim=1), average(k, v, decay, bonus))


def test_gradients_of_the_average() -> None:
    inputs = [
        values(*shape, seed=9).requires_grad_() for shape in ((1, 6, 2), (1, 6, 2), (2,), (2,))
    ]

    def output(k, v, decay, bonus):
        return wkv(k, v, decay.exp(), bonus, torch.zeros(1, 3, 2).double())[0]

    assert torch.autograd.gradcheck(output, inputs)


@pytest.mark.parametrize("size", [-300.0, 300.0])
def test_keys_beyond_the_range_of_exp(size: float) -> None:
    """exp(-300) is 0 and exp(300) infinite in float32. A state of zeros is no token for any key."""
    k, v = size + values(1, 12, 3, seed=1), values(1, 12, 3, seed=2)
    decay, bonus = values(3, seed=3).exp(), values(3, seed=4)
    arguments = [value.float() for value in (k, v, decay, bonus, torch.zeros(1, 3, 3))]
    assert_close(wkv(*arguments)[0], average(k, v, decay, bonus).float())


@pytest.mark.parametrize("factor", [-500.0, 500.0])
def test_extreme_keys_in_the_native_decoder(factor: float) -> None:
    """The row of the cache had other tokens before."""
    model = random_model("rwkv")
    with torch.no_grad():
        for block in model.blocks:
            block.attention.key.weight.mul_(factor)
    runner = runner_of(model)
    assert type(runner) is RUNNER
    ids = ids_of(1, 40)
    expected = model(ids)[0]
    assert expected.isfinite().all()
    cache = runner.new_cache(2, 50)
    runner.forward({1: [3, 4, 5]}, cache)
    cache.clear(1)
    # a product with a large factor rounds keys by more
    assert_close(runner.forward({1: ids[0].tolist()}, cache, every=True), expected, 1e-3)


def test_the_cache_has_one_size_for_any_number_of_tokens() -> None:
    model = random_model("rwkv-sizes")
    cache = model.new_cache(2, 100_000)
    config = model.config
    size = 2 * 4 * config.num_hidden_layers * (2 * config.hidden_size + 3 * config.inner)
    assert cache.size == model.new_cache(2, 1).size == size
    runner = runner_of(model)
    cache = runner.new_cache(2, 4000)
    size = cache.size
    [ids] = texts_of(3000)
    for row in range(2):
        runner.forward({row: ids}, cache)
    assert cache.size == size
    assert cache.lengths == [3000, 3000]


def test_texts_continue_after_a_shared_prefix_as_from_the_start() -> None:
    model = random_model("rwkv-rescaled")
    [prefix] = texts_of(30)
    prompts = [[*prefix, 5, 6], [*prefix, 7], prefix]
    together = minhub_py.generate(model, prompts, 12, temperature=0, eos_id=None)
    for prompt, text in zip(prompts, together, strict=True):
        ids = list(prompt)
        for _ in range(12):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        assert text == ids[len(prompt) :]


@torch.no_grad()
def test_rescaling_multiplies_the_epsilons_of_norms_by_four() -> None:
    """5 layers, each followed by a factor 1 / 2, in float64."""
    model = random_model("rwkv-rescaled").double()
    plain = RWKV(replace(model.config, rescale_every=0)).double().eval()
    plain.load_state_dict(model.state_dict())
    ids = ids_of(2)
    assert (plain(ids) - model(ids)).abs().max() > 1e-3
    for number, block in enumerate(plain.blocks):
        block.ln1.eps *= 4**number
        block.ln2.eps *= 4**number
    plain.ln_out.eps *= 4**5
    # the averages are float32
    assert_close(model(ids), plain(ids), 1e-5)


@torch.no_grad()
def test_training_mode_has_the_factors_of_eval_mode() -> None:
    model, ids = random_model("rwkv-rescaled"), ids_of(1)
    expected = model(ids)
    assert torch.equal(model.train()(ids), expected)


def test_published_settings_are_read_and_written(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**PUBLISHED, "context_length": 4096}))
    config = minhub_py.from_config(tmp_path).config
    assert config == RWKVConfig(
        hidden_size=768, num_hidden_layers=12, attention_hidden_size=768, intermediate_size=3072,
        max_position_embeddings=4096,
    )  # fmt: skip
    assert config.to_hub()["context_length"] == 4096
    assert config.context_length is None


def test_new_models_have_decays_from_slow_to_fast() -> None:
    architecture, config = configured("rwkv-sizes")
    for block in architecture.new(config).blocks:
        decay = block.attention.time_decay
        assert (decay[0], decay[-1]) == (-5, 3)
        assert (decay.diff() > 0).all()
