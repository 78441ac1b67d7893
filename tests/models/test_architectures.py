"""Each architecture compared with transformers: the same files, the same logits. The cases are in
tests/support/cases.

The weights are large, so that attention is far from uniform: a wrong angle, window or group of
heads changes the logits by thousands of times the tolerance. All positions are compared, most of
them beyond the windows.
"""

import json
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ARCHITECTURES
from decoders import KERNELS
from guarantees import RUNNER
from pairs import in_pairs, with_variants
from random_weights import draw
from references import (
    CASES,
    FEW,
    LENGTH,
    LOGPROBS,
    TOLERANCE,
    assert_close,
    assert_identical,
    ids_of,
    model_type_of,
    read,
    states_of,
    texts_of,
)
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

import minhub_py
import weights_map
from minhub_py import attention_weights, embed
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.native_runner import NativeRunner, runner_of
from minhub_py.loading.inspection import inspect
from minhub_py.models.cache import KeyValues, State
from minhub_py.models.config import read as read_settings
from minhub_py.models.registry import ENTRIES, architecture_of, entry_of

GRADIENTS = [name for cases in ARCHITECTURES.values() for name in cases.gradients]
# One for each kind of cache, and experts: the slowest tests of `make test` run with these.
SOME = [
    "gpt2",
    "gemma2",
    "gpt_oss",
    "llama4_text",
    "qwen3_5_text",
    "lfm2-types",
    "mamba2",
    "jamba",
    "rwkv-rescaled",
]


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_logits_match_transformers(load, name: str) -> None:
    """Logits of one row and of three; in one call, and with a cache in chunks, token by token
    beyond any window.
    """
    reference, model, _ = load(name)
    reach = max(
        8 if isinstance(layout, State) else layout.window or 0 for layout in model.cache_layout()
    )
    single = min(reach, 20) + 4
    for rows, several in (
        (1, ([*[1] * single, LENGTH - single], [41, 1, 1, 27])),
        (3, ([3, 1, 11, 1, 30],)),
    ):
        ids = ids_of(rows)
        expected = reference(ids).logits
        assert expected.abs().max() > 3
        assert_close(model(ids), expected)
        for pieces in several:
            assert_close(read(model, ids, pieces, model.new_cache(rows, LENGTH)), expected)


@pytest.mark.parametrize("name", with_variants(CASES, FEW))
def test_hidden_states_match_transformers(load, name: str) -> None:
    """Hidden states of each token of texts of different lengths, in every layer."""
    reference, model, _ = load(name)
    texts = texts_of(3, 40)
    expected = [states_of(reference, ids) for ids in texts]
    for layer in range(len(expected[0])):
        for matrix, states in zip(
            embed(model, None, texts, layer=layer, pool="none"), expected, strict=True
        ):
            assert matrix.dtype == torch.float32
            assert_close(matrix, states[layer])


# With ALiBi, transformers' Falcon adds the bias twice when it returns attention weights.
WITHOUT_WEIGHTS = {name for name in CASES if CASES[name].settings(name).get("alibi")}


@torch.no_grad()
@pytest.mark.parametrize(
    "name", with_variants((name for name in CASES if name not in WITHOUT_WEIGHTS), FEW)
)
def test_attention_weights_match_transformers(load, name: str) -> None:
    reference, model, _ = load(name)
    [ids] = texts_of(40)  # beyond any window of the cases
    if not any(isinstance(layout, KeyValues) for layout in model.cache_layout()):
        with pytest.raises(ValueError, match="no attention"):
            attention_weights(model, None, ids)
        return
    actual = attention_weights(model, None, ids)
    before = reference.config._attn_implementation
    reference.set_attn_implementation("eager")  # the others have no attention weights
    reference.config._attn_implementation = "eager"  # of Falcon, whose setting cannot be changed
    attentions = reference(torch.tensor([ids]), output_attentions=True).attentions
    reference.set_attn_implementation(before)
    reference.config._attn_implementation = before
    expected = [weights for weights in attentions if weights is not None]
    # its scores are not scaled, so that they are large
    tolerance = TOLERANCE if name.startswith("gpt_neo-") else 2e-5
    torch.testing.assert_close(actual.weights, torch.cat(expected), rtol=0, atol=tolerance)
    assert actual.weights.dtype == torch.float32
    assert actual.ids == ids
    sums = actual.weights.sum(dim=3)
    if name.startswith("gpt_oss"):
        assert (sums < 1 + 1e-5).all()
        assert (sums < 0.99).any()
    else:
        torch.testing.assert_close(sums, torch.ones_like(sums))


@torch.no_grad()
@pytest.mark.parametrize("name", FEW)
def test_rows_of_different_lengths_match_single_rows(load, name: str) -> None:
    reference, model, _ = load(name)
    ids, lengths = ids_of(4), [0, 3, 29, 40]
    expected = reference(ids).logits
    cache = model.new_cache(4, LENGTH)
    for row, length in enumerate(lengths):
        if length:
            one = model.new_cache(1, LENGTH)
            model(ids[row : row + 1, :length], one)
            cache.set_row(row, one)
    for size in (1, 4, 1, 9):
        pieces = torch.stack(
            [ids[row, length : length + size] for row, length in enumerate(lengths)]
        )
        actual = model(pieces, cache)
        for row, length in enumerate(lengths):
            assert_close(actual[row], expected[row, length : length + size])
        lengths = [length + size for length in lengths]
    cache.select([3, 1])
    actual = model(torch.stack([ids[3, lengths[3] :][:2], ids[1, lengths[1] :][:2]]), cache)
    assert_close(actual[0], expected[3, lengths[3] : lengths[3] + 2])
    assert_close(actual[1], expected[1, lengths[1] : lengths[1] + 2])


@pytest.mark.parametrize("name", with_variants(CASES, FEW))
def test_transformers_loads_saved_models(load, name: str, tmp_path: Path) -> None:
    """transformers reads equal settings from our file and from the reference's, and then an equal
    model.
    """
    reference, model, folder = load(name)
    minhub_py.save_pretrained(model, tmp_path)
    assert_identical(*(load_file(path / "model.safetensors") for path in (tmp_path, folder)))
    ids = ids_of(1)
    if name in FEW or name in GRADIENTS or settings_in(tmp_path) != settings_in(folder):
        uncached = {"use_cache": False} if CASES[name].cases[name].get("use_cache") is False else {}
        reference_model = AutoModelForCausalLM.from_pretrained(tmp_path, **uncached).eval()
        assert type(reference_model) is type(reference)
        with torch.no_grad():
            assert_close(reference_model(ids).logits, reference(ids).logits, 2e-6)
        # after both calls: the first call of an RWKV divides weights (rescale_every)
        assert_identical(reference_model.state_dict(), reference.state_dict())
    again = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert_identical(again.state_dict(), model.state_dict())
    # Not bitwise identical: MKL's product with a vector depends on the address of the weight.
    assert_close(again(ids), model(ids), 2e-6)


def settings_in(folder: Path) -> dict[str, Any]:
    """The settings of a config.json as transformers reads them, without its version and dtype."""
    return {
        key: value
        for key, value in AutoConfig.from_pretrained(folder).to_dict().items()
        if key
        not in ("transformers_version", "_name_or_path", "architectures", "dtype", "use_cache")
    }


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_match_transformers(name: str) -> None:
    # whose embedding has no gradient in transformers
    settings = {**CASES[name].settings(name), "pad_token_id": None}
    reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings)).double().eval()
    reference.set_experts_implementation("eager")  # their grouped products have no float64
    draw(reference)
    family = architecture_of(settings["model_type"])
    config = read_settings(family.Config, settings)
    model = family.Model(config).double().eval()
    names = dict(weights_map.to_native(family.model_type, reference.state_dict(), config))
    model.load_state_dict({key: names[key] for key in model.state_dict()})
    ids = ids_of(2)
    cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    cross_entropy(reference(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    gradients = {key: value.grad for key, value in reference.named_parameters()}
    expected = weights_map.to_native(family.model_type, gradients, config)
    recurrent = any(isinstance(layout, State) for layout in model.cache_layout())
    for key, parameter in model.named_parameters():
        # The gradient of a bias of k is zero without rotary embedding: it adds the same to all
        # scores. Experts without a token have none.
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        error = (gradient - expected[key]).abs().max() / expected[key].abs().max().clamp_min(1e-9)
        # the rotations and recurrent states are float32 in both
        assert error < (3e-5 if recurrent else 1e-5), (key, error)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name", [f"{name}-all-experts" if f"{name}-all-experts" in CASES else name for name in FEW]
)
def test_16_bit_logits_are_close_to_float32(load, name: str, dtype: torch.dtype) -> None:
    """With experts, all are selected: rounding changes the choice, which differs by more than
    rounding.
    """
    reference, _, folder = load(name)
    model = minhub_py.from_pretrained(folder, device="cpu", dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    ids = ids_of(2)
    with torch.no_grad():
        expected = reference(ids).logits
        actual = read(model, ids, [30, 1, 7], model.new_cache(2, LENGTH))
    assert actual.dtype == dtype
    assert ((actual.float() - expected).square().mean() / expected.square().mean()).sqrt() < 0.08


@pytest.mark.parametrize("name", with_variants(FEW, SOME))
def test_generated_texts_and_scores_match_transformers(load, name: str) -> None:
    """Greedy text equals transformers'; rows of a batch equal single runs; scores follow from the
    logits.
    """
    reference, model, _ = load(name)
    reference.generation_config.eos_token_id = None
    prompts = [ids_of(1, length)[0].tolist() for length in (3, 17, 30)]
    texts = minhub_py.generate(model, prompts, 25, temperature=0, eos_id=None)
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([prompt])
        expected = reference.generate(
            ids,
            max_new_tokens=25,
            do_sample=False,
            pad_token_id=0,
            attention_mask=torch.ones_like(ids),
        )
        assert text == expected[0, len(prompt) :].tolist()
        assert minhub_py.generate(model, [prompt], 25, temperature=0, eos_id=None) == [text]
    rows = minhub_py.generate(model, prompts, 12, seed=[1, 2, 3], eos_id=None)
    assert rows == [
        minhub_py.generate(model, [prompt], 12, seed=seed, eos_id=None)[0]
        for seed, prompt in enumerate(prompts, 1)
    ]
    [scores] = minhub_py.score(model, [prompts[2]])
    with torch.no_grad():
        logits = reference(torch.tensor([prompts[2]])).logits[0]
    expected = (
        logits[:-1]
        .log_softmax(dim=-1)
        .gather(1, torch.tensor(prompts[2][1:]).unsqueeze(1))
        .squeeze(1)
    )
    torch.testing.assert_close(scores, expected, rtol=0, atol=LOGPROBS * logits.abs().max().item())


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("name", FEW)
def test_quantized_logits_are_close_to_float32(load, name: str, kind: str) -> None:
    reference, _, folder = load(name)
    model = minhub_py.from_pretrained(folder, device="cpu", quantize=kind)
    assert type(runner_of(model)) is RUNNER
    ids = ids_of(1)
    with torch.no_grad():
        expected, actual = reference(ids).logits, model(ids)
    error = ((actual - expected).square().mean() / expected.square().mean()).sqrt()
    assert 0 < error < (0.1 if kind == "int8" else 0.6)
    [text] = minhub_py.generate(model, ids[:, :5].tolist(), 12, temperature=0, eos_id=None)
    assert (
        text
        == minhub_py.generate(
            model, ids[:, :5].tolist(), 12, temperature=0, eos_id=None, speculate=4
        )[0]
    )


@pytest.mark.parametrize("name", FEW)
def test_models_are_created_from_a_config_and_from_a_model_type(load, name: str) -> None:
    _, model, folder = load(name)
    fresh = minhub_py.from_config(folder)
    assert fresh.training
    assert fresh.config == model.config
    kind = model_type_of(name)
    [entry] = (entry for entry in ENTRIES.values() if kind in entry.model_types)
    settings = {**CASES[name].small, **CASES[name].fresh}
    for other, model_type in ((entry.name, entry.model_types[0]), (kind, kind)):
        config = minhub_py.from_config(other, **settings).config
        assert config.to_hub()["model_type"] == model_type
    assert type(config) is type(model.config)


@pytest.mark.parametrize("name", FEW)
def test_functions_of_an_architecture_reject_others(load, name: str) -> None:
    _, model, folder = load(name)
    entry = entry_of(model.config.to_hub()["model_type"])
    for family in minhub_py.FAMILIES:
        from_pretrained, from_config = (
            getattr(minhub_py, f"{family}_{function}")
            for function in ("from_pretrained", "from_config")
        )
        if family == entry.name:
            assert torch.equal(from_pretrained(folder, device="cpu")(ids_of(1)), model(ids_of(1)))
            assert from_config(folder).config == model.config
        else:
            for function in (from_pretrained, from_config):
                with pytest.raises(
                    ValueError,
                    match=rf"architecture {entry.name}, not {family}: use from_pretrained",
                ):
                    function(folder)


REFUSED = [(cases, *refusal) for cases in ARCHITECTURES.values() for refusal in cases.refused]


@pytest.mark.parametrize(
    ("cases", "settings", "message"), REFUSED, ids=[str(refusal[1]) for refusal in REFUSED]
)
def test_unsupported_settings_are_rejected(
    load, tmp_path: Path, cases: Any, settings: Any, message: str
) -> None:
    first = next(iter(cases.cases))
    (tmp_path / "model.safetensors").symlink_to(load(first)[2] / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**cases.settings(first), **settings}))
    with pytest.raises(ValueError, match=message):
        minhub_py.from_pretrained(tmp_path)


# settings that published files have, without effect or with the only value that is supported
INEFFECTIVE = {
    "olmo": {"pretraining_tp": 1},
    "falcon-new": {"ff_factor": 4},
    "apertus": {"hidden_dropout": 0.0},
    "nemotron": {"kv_channels": 8},
    "granitemoehybrid": {"time_step_min": 0.001, "time_step_max": 0.1},
    "bamba": {"z_loss_coefficient": 0.0, "num_logits_to_keep": 1},
    "falcon_h1": {"mamba_use_mlp": True, "attn_layer_indices": None, "mamba_chunk_size": 128},
    "nemotron_h": {
        "expand": 2,
        "n_routed_experts": 8,
        "n_group": 2,
        "time_step_rank": 256,
        "norm_eps": 1e-5,
        "num_nextn_predict_layers": 1,
        "mtp_hybrid_override_pattern": "*E",
    },
    "jamba": {"use_mamba_kernels": True, "router_aux_loss_coef": 0.001, "sliding_window": None},
}


@pytest.mark.parametrize("name", INEFFECTIVE)
def test_ineffective_settings_of_published_files_are_read(name: str, tmp_path: Path) -> None:
    configs = []
    for further in ({}, INEFFECTIVE[name]):
        (tmp_path / "config.json").write_text(json.dumps({**CASES[name].settings(name), **further}))
        configs.append(minhub_py.from_config(tmp_path).config)
    assert configs[0] == configs[1]


@pytest.mark.parametrize("name", with_variants(dict.fromkeys((*FEW, *GRADIENTS)), SOME))
def test_torchscript_matches_the_model(load, name: str, tmp_path: Path) -> None:
    """Any batch and length, gradients; parameters under the model's names."""
    _, model, _ = load(name)
    save_torchscript(model, tmp_path / "model.pt")
    script = torch.jit.load(tmp_path / "model.pt")
    assert list(dict(script.named_parameters())) == list(dict(model.named_parameters()))
    with torch.no_grad():
        for rows, length in ((1, 1), (2, 9), (3, LENGTH)):
            assert_close(script(ids_of(rows, length)), model(ids_of(rows, length)), 1e-5)
    script(ids_of(2)).sum().backward()
    assert all(parameter.grad is not None for parameter in script.parameters())


@torch.inference_mode()
@pytest.mark.parametrize(("kernel", "name"), in_pairs(KERNELS, list(CASES)), indirect=["kernel"])
def test_native_logits_match_forward_with_each_kernel(load, kernel, name: str) -> None:
    """The logits of `forward`, with each kernel; bitwise identical in one call, in chunks, and with
    other rows.
    """
    model = load(name)[1]
    runner = runner_of(model)
    assert type(runner) is NativeRunner
    ids = ids_of(1)[0].tolist()
    result = runner.forward({0: ids}, runner.new_cache(1, LENGTH), every=True).clone()
    assert_close(result, model(torch.tensor([ids]))[0])
    cache = runner.new_cache(1, LENGTH)
    positions = pairwise((0, 13, 14, 15, LENGTH))
    pieces = [
        runner.forward({0: ids[start:end]}, cache, every=True).clone() for start, end in positions
    ]
    assert torch.equal(torch.cat(pieces), result)
    cache = runner.new_cache(3, LENGTH)
    first = runner.forward({0: ids[:5], 1: ids[:40], 2: ids[:2]}, cache).clone()
    assert torch.equal(first, result[[4, 39, 1]])
    further = runner.forward({0: ids[5:6], 1: ids[40:44], 2: ids[2:4]}, cache, every=True)
    assert torch.equal(further, result[[5, 40, 41, 42, 43, 2, 3]])


PUBLISHED = [tuple(cases.published.items()) for cases in ARCHITECTURES.values()]
SMALLEST = [min(sizes, key=lambda size: size[1]) for sizes in PUBLISHED if sizes]


@pytest.mark.parametrize(("size", "parameters"), with_variants(chain(*PUBLISHED), SMALLEST))
def test_published_sizes_have_the_published_parameter_counts(size: str, parameters: int) -> None:
    assert inspect(size)["parameters"]["total"] == parameters
