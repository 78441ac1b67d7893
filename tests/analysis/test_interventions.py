"""Activations, interventions and patching: identities that hold for each architecture and each kind
of cache.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from needs import need
from random_weights import draw
from references import FEW, VOCABULARY, assert_close, random_model, texts_of
from small_models import LSTM, T5, tokenizer

import minhub_py
from minhub_py import (
    activations,
    attention_weights,
    embed,
    generate,
    intervene,
    logit_lens,
    patching,
    score,
)
from minhub_py.analysis.attribution import factor_of
from minhub_py.analysis.points import ADDED, Points, norms_between_additions
from minhub_py.inference.batch import Batch
from minhub_py.inference.quantize import quantize
from minhub_py.models.steps import ScaleResidual

GPT2 = {"vocab_size": VOCABULARY, "n_positions": 80, "n_embd": 24, "n_layer": 3, "n_head": 4}
CACHES = ["gpt2", "gemma3_text", "lstm", "qwen3_5_text", "t5"]


@cache
def model_of(name: str) -> Any:
    torch.manual_seed(0)
    special: dict[str, Callable[[], Any]] = {
        "gpt2": lambda: minhub_py.gpt2(**GPT2),
        "lstm": lambda: minhub_py.lstm(**LSTM),
        "t5": lambda: minhub_py.from_config("t5", **T5),
        "bert": lambda: minhub_py.from_config(
            "bert",
            vocab_size=VOCABULARY,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=36,
            max_position_embeddings=80,
            architectures=["BertForMaskedLM"],
        ),
    }
    if name not in special:
        return random_model(name)
    model = special[name]()
    draw(model)
    return model.eval()


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    idx = torch.tensor([ids])
    with torch.no_grad():
        result: torch.Tensor = (
            model(idx, torch.tensor([[0, 4, 8, 2, 1]])) if model.encoder_decoder else model(idx)
        )
    return result[0]


def prefix(model: Any) -> str:
    return "encoder." if model.encoder_decoder else ""


@pytest.mark.parametrize("name", [*FEW, "t5"])
def test_embeddings_and_all_contributions_sum_to_the_residual_stream(name: str) -> None:
    model = model_of(name)
    [ids] = texts_of(40)
    points = Points(model)
    sides = [("encoder.", None), ("", ids[:9])] if model.encoder_decoder else [("", None)]
    for start, targets in sides:
        names = [key for key in points.sources if key.startswith(f"{start}layers")]
        names = [key for key in names if key.endswith(ADDED)]
        last = f"{start}layers.{max(points.sources[key].layer for key in names)}.resid"
        result = activations(
            model, None, ids, [f"{start}embeddings", *names, last], targets=targets
        )
        factors = [float(step.factor) for step in model.steps() if isinstance(step, ScaleResidual)]
        parts = {
            key: result[key] * factor_of(key, factors) for key in (f"{start}embeddings", *names)
        }
        total = sum(parts.values())
        if norms_between_additions(model.steps()):
            # the norms of the stream are between the additions
            assert (total - result[last]).abs().max() > 0.1
        else:
            assert_close(total, result[last])


@pytest.mark.parametrize("name", [*CACHES, "bert"])
def test_patching_all_positions_gives_the_clean_logits_bit_for_bit(name: str) -> None:
    model = model_of(name)
    clean, corrupted = texts_of(40, 40)
    first = prefix(model)
    for layer in (1, 2):
        point = f"{first}layers.{layer}.resid"
        stored = activations(model, None, clean, point)
        assert logits(intervene(model, point, "replace", stored), corrupted).equal(
            logits(model, clean)
        )
    part = intervene(model, f"{first}layers.1.resid", "replace", stored[point][:1], positions=[70])
    assert logits(part, corrupted).equal(logits(model, corrupted))  # beyond the text
    # The input of layer 2 is the output of layer 1.
    point = f"{first}layers.1.resid"
    stored = activations(model, None, clean, point)
    half = intervene(model, point, "replace", stored[point][5:20], positions=range(5, 20))
    changed = activations(half, None, corrupted, point)[point]
    assert changed[5:20].equal(stored[point][5:20])
    assert changed[:5].equal(activations(model, None, corrupted, point)[point][:5])


@pytest.mark.parametrize("name", [*CACHES, "bert"])
def test_coefficient_0_leaves_all_logits_unchanged_and_the_model_never_changes(name: str) -> None:
    model = model_of(name)
    [ids] = texts_of(30)
    before = logits(model, ids)
    size = Points(model).find_one(f"{prefix(model)}layers.1.resid").size
    vector = torch.randn(size, generator=torch.Generator().manual_seed(0))
    point = f"{prefix(model)}layers.1.resid"
    assert logits(intervene(model, point, "add", vector, scale=0), ids).equal(before)
    steered = intervene(model, point, "add", vector, scale=5)
    assert (logits(steered, ids) - before).abs().max() > 1e-3
    assert logits(model, ids).equal(before)
    twice = intervene(
        intervene(model, point, "add", vector, scale=2), point, "add", vector, scale=3
    )
    assert_close(logits(twice, ids), logits(steered, ids))


@pytest.mark.parametrize("name", ["gpt2", "gemma3_text", "qwen3_5_text", "t5"])
def test_zeroing_a_head_equals_zeroing_its_columns_of_the_output_projection(name: str) -> None:
    model = model_of(name)
    [ids] = texts_of(30)
    for layer in range(1, Points(model).layers + 1):
        point = Points(model).find_one(f"{prefix(model)}layers.{layer}.heads.2")
        other = deepcopy(model)
        with torch.no_grad():
            other.get_submodule(point.path).weight[:, point.part] = 0
        assert_close(logits(intervene(model, point.name, "zero"), ids), logits(other, ids))


@pytest.mark.parametrize("name", CACHES)
def test_steering_after_the_last_layer_equals_a_computation_by_hand(name: str) -> None:
    model = model_of(name)
    [ids] = texts_of(20)
    point = f"layers.{2 if name == 't5' else Points(model).layers}.resid"
    stored = activations(
        model, None, ids, point, targets=[4, 8, 2, 1, 1] if name == "t5" else None
    )[point]
    vector = torch.randn(stored.size(1), generator=torch.Generator().manual_seed(3))
    norms = {"gpt2": "ln_f", "gemma3_text": "norm", "qwen3_5_text": "norm", "t5": "decoder.norm"}
    steered = stored + 2.5 * vector
    expected = model.logits(
        model.get_submodule(norms[name])(steered) if name in norms else steered
    ).detach()
    assert_close(logits(intervene(model, point, "add", vector, scale=2.5), ids), expected)


@pytest.mark.parametrize("name", CACHES)
def test_a_projected_out_direction_and_a_mean_are_what_they_say(name: str) -> None:
    model, point = model_of(name), f"{prefix(model_of(name))}layers.2.resid"
    [ids] = texts_of(20)
    before = activations(model, None, ids, point)[point]
    vector = 3 * torch.randn(before.size(1), generator=torch.Generator().manual_seed(3))
    changed = activations(intervene(model, point, "project_out", vector), None, ids, point)[point]
    assert (changed @ vector).abs().max() < 1e-5 * (before @ vector).abs().max()
    stored = activations(model, None, texts_of(9, 7), point)
    changed = activations(intervene(model, point, "mean", stored), None, ids, point)[point]
    torch.testing.assert_close(changed, stored[point].mean(0).expand(20, -1))


@pytest.mark.parametrize("name", CACHES)
def test_generate_and_score_with_a_cache_equal_the_forward_pass(name: str) -> None:
    """Positions refer to the text, also if it is computed in chunks or token by token."""
    model = model_of(name)
    ids, other_ids = texts_of(20, 12)
    size = Points(model).find_one("layers.1.resid").size
    value = torch.randn(2, size, generator=torch.Generator().manual_seed(0))
    handle = intervene(model, "layers.1.resid", "replace", value, positions=[3, 22])
    if model.encoder_decoder:
        new = generate(handle, [ids], 25, temperature=0, eos_id=None)[0]
        full = handle(torch.tensor([ids]), torch.tensor([[model.decoder_start, *new[:-1]]]))[0]
    else:
        new, other = generate(handle, [ids, other_ids], 8, temperature=0, eos_id=None)
        assert other == generate(handle, [other_ids], 8, temperature=0, eos_id=None)[0]
        full = handle(torch.tensor([[*ids, *new[:-1]]]))[0, 19:]
        expected = handle(torch.tensor([ids]))[0].log_softmax(-1)[range(19), ids[1:]]
        torch.testing.assert_close(score(handle, [ids])[0], expected.detach(), rtol=1e-4, atol=1e-4)
    assert full.argmax(-1).tolist() == new


def test_threads_use_a_model_and_its_copies_at_the_same_time() -> None:
    model = model_of("gpt2")
    texts = texts_of(9, 25, 40, 17)
    value = torch.randn(24, generator=torch.Generator().manual_seed(0))
    models = [
        model,
        *(
            intervene(model, f"layers.{layer}.resid", "add", value, positions=[3, 7])
            for layer in (1, 2, 3)
        ),
    ]
    pairs = [(running, ids) for running in models for ids in texts] * 5
    expected = [logits(*pair) for pair in pairs]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(logits, *zip(*pairs, strict=True)))
    for actual, expected_value in zip(results, expected, strict=True):
        assert_close(actual, expected_value)


def test_every_analysis_accepts_a_model_with_interventions() -> None:
    tok = tokenizer()
    model = model_of("gpt2")
    handle = intervene(model, "layers.3.resid", "zero")
    lens = logit_lens(handle, None, [1, 2, 3])
    torch.testing.assert_close(lens.probs[-1, :, 0], logits(handle, [1, 2, 3]).softmax(-1).amax(-1))
    zeros = embed(intervene(model, "layers.1.resid", "zero"), None, [[1, 2, 3]], layer=1)
    assert zeros.abs().max() == 0
    words = minhub_py.word_logprobs(handle, tok, ["the", "cat", "sat"])
    assert len(words["logprob"]) == 3
    assert set(words["logprob"][1:].tolist()) != set(
        minhub_py.word_logprobs(model, tok, ["the", "cat", "sat"])["logprob"]
    )
    weights = attention_weights(intervene(model, "embeddings", "zero"), None, [1, 2, 3]).weights
    # equal inputs, equal weights
    torch.testing.assert_close(weights[0, :, 2], torch.full((4, 3), 1 / 3))


def test_quantized_models_support_interventions() -> None:
    for name in ("gpt2", "lstm"):
        model = deepcopy(model_of(name))
        quantize(model, "int8")
        [ids] = texts_of(12)
        point = "layers.1.resid"
        size = Points(model).find_one(point).size
        assert logits(intervene(model, point, "add", torch.ones(size), scale=0), ids).equal(
            logits(model, ids)
        )
        assert activations(model, None, ids, point)[point].shape == (12, size)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "t5", "bert", "lstm"])
def test_patching_rows_equal_single_interventions(name: str) -> None:
    model = model_of(name)
    clean, corrupted = texts_of(6, 6)
    kinds = ("resid",) if name == "lstm" else ("resid", "attn", "mlp", "heads")
    result = patching(model, None, clean, corrupted, (3, 7), kinds=kinds, position=-1)
    first = prefix(model)

    def metric(handle: Any, ids: list[int]) -> float:
        idx = torch.tensor([ids])
        row = handle(idx, torch.tensor([[0]])) if model.encoder_decoder else handle(idx)
        return float(row[0, -1, 3] - row[0, -1, 7])

    assert result.clean == pytest.approx(metric(model, clean), abs=1e-4)
    assert result.corrupted == pytest.approx(metric(model, corrupted), abs=1e-4)
    for kind in kinds:
        point = f"{first}layers.2.{kind}"
        stored = activations(model, None, clean, point)[point]
        if kind == "heads":
            handle = intervene(model, f"{point}.3", "replace", stored.view(6, 4, -1)[:, 2])
        else:
            handle = intervene(model, point, "replace", stored[4:5], positions=4)
        row = 2 if kind == "resid" else 1
        value = float(result.values[kind][row, 2 if kind == "heads" else 4])
        assert value == pytest.approx(metric(handle, corrupted), abs=1e-3)
    table = result.table()
    assert {len(column) for column in table.values()} == {
        sum(values.numel() for values in result.values.values())
    }
    last = result.effects("resid")[-1, -1]
    if name in ("gpt2", "lstm"):
        assert last == pytest.approx(1, abs=1e-3)  # the last position of the last layer decides


def test_patching_takes_a_function_of_the_logits_and_draws_a_plot(tmp_path: Any) -> None:
    model, tok = model_of("gpt2"), tokenizer()
    result = patching(
        model,
        tok,
        "the cat sat",
        "the dog sat",
        lambda rows: float(rows[-1, 5]),
        kinds=["resid", "heads"],
    )
    assert result.clean == pytest.approx(
        float(logits(model, tok.encode("the cat sat").ids)[-1, 5]), abs=1e-4
    )
    need("matplotlib")
    figure = result.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 2000
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["the", "cat → dog", "sat"]


def test_handles_cannot_change_the_model() -> None:
    handle = intervene(model_of("gpt2"), "layers.1.mlp", "zero")
    for change in (handle.train, lambda: handle.to(torch.bfloat16), handle.state_dict):
        with pytest.raises(ValueError, match="intervene"):
            change()
    assert "layers.1.mlp: zero" in repr(handle)
    assert Batch(handle, 1, 8).runner.__class__.__name__ == "TorchRunner"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("layers.9.attn", "zero"),
            "GPT-2 has no point 'layers.9.attn': the points are layers.N.attn",
        ),
        (("layers.1.heads.9", "zero"), "has no point 'layers.1.heads.9'"),
        (([], "zero"), "at must be the name of a point"),
        (("layers.1.attn", "remove"), "how must be one of zero, mean, replace"),
        (("layers.1.attn", "zero", torch.ones(24)), "how='zero' takes no value"),
        (("layers.1.attn", "add"), "how='add' needs a value"),
        (
            ("layers.1.attn", "add", torch.ones(23)),
            r"must be \(24,\) or \(positions, 24\), not \(23,\)",
        ),
        (("layers.1.attn", "project_out", torch.zeros(24)), "one direction"),
    ],
)
def test_wrong_interventions_are_errors(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        intervene(model_of("gpt2"), *arguments)


def test_wrong_activations_and_patchings_are_errors() -> None:
    model = model_of("gpt2")
    with pytest.raises(ValueError, match="clean has 2 tokens and corrupted 3"):
        patching(model, None, [1, 2], [1, 2, 3], (1, 2))
    with pytest.raises(ValueError, match="metric must be a pair of tokens"):
        patching(model, None, [1, 2], [1, 3], 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="LSTM has no attn"):
        patching(model_of("lstm"), None, [1, 2], [1, 3], (4, 5))
    with pytest.raises(ValueError, match="needs position="):
        patching(model_of("bert"), None, [1, 2], [1, 3], (4, 5))
    with pytest.raises(ValueError, match="is a point of the decoder: pass targets"):
        activations(model_of("t5"), None, [1, 2], "layers.1.attn")
    hooked = deepcopy(model)
    hooked.h[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="intervene.* does not support hooks"):
        intervene(hooked, "layers.1.attn", "zero")


def test_activations_are_pooled_by_text() -> None:
    model = model_of("gpt2")
    texts = texts_of(5, 3)
    rows = activations(model, None, texts, "layers.*.heads.1")
    assert list(rows.values) == [f"layers.{layer}.heads.1" for layer in (1, 2, 3)]
    assert rows.texts == [0] * 5 + [1] * 3
    assert rows.positions == [0, 1, 2, 3, 4, 0, 1, 2]
    last = activations(model, None, texts, "layers.2.heads.1", pool="last")["layers.2.heads.1"]
    assert last.equal(rows["layers.2.heads.1"][[4, 7]])
    mean = activations(model, None, texts, "layers.2.heads.1", pool="mean")["layers.2.heads.1"]
    torch.testing.assert_close(mean[1], rows["layers.2.heads.1"][5:].mean(0))
