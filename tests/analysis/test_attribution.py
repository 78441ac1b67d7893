"""Logit attribution, head scores, rollout, directions and probes."""

from typing import Any

import numpy as np
import pytest
import torch
from needs import need
from random_weights import draw
from references import FEW, VOCABULARY, random_model, texts_of
from small_models import LSTM, SINUSOIDAL, T5

import minhub_py
from minhub_py import attention_weights, attribution, direction, head_scores, probe
from minhub_py.analysis.points import norms_between_additions


@torch.no_grad()
@pytest.mark.parametrize("name", FEW)
def test_attribution_with_a_frozen_norm_scale_sums_to_the_logit_difference(name: str) -> None:
    model = random_model(name)
    [ids] = texts_of(30)
    if norms_between_additions(model.steps()):
        with pytest.raises(ValueError, match="use patching"):
            attribution(model, None, ids, 3, 7)
        return
    parts = attribution(model, None, ids, 3, 7, position=20)
    row = model(torch.tensor([ids]))[0, 20]
    cap = getattr(model.config, "final_logit_softcapping", None)
    if cap:
        row = cap * torch.atanh(row.double() / cap)
    expected = float(row[3] - row[7])
    scale = max(map(abs, parts.values))
    assert parts.logit == pytest.approx(expected, abs=1e-4 * scale)
    assert sum(parts.values) == pytest.approx(parts.logit, abs=1e-4 * scale)
    assert abs(parts.values[-1]) < 1e3
    assert len(parts.components) >= 4
    heads = attribution(model, None, ids, 3, 7, position=20, heads=True)
    assert sum(heads.values) == pytest.approx(parts.logit, abs=1e-4 * scale)
    if "layers.1.attn" in parts.components:
        of_layer = [
            value
            for name, value in zip(heads.components, heads.values, strict=True)
            if name.startswith(("layers.1.heads.", "layers.1.attn"))
        ]
        complete = parts.values[parts.components.index("layers.1.attn")]
        assert sum(of_layer) == pytest.approx(complete, abs=1e-4 * scale)


@torch.no_grad()
def test_attribution_of_bias_is_exactly_that_of_norm_and_head() -> None:
    """A model whose final norm and head have biases: the part "bias" is w · β + b."""
    model = minhub_py.from_config(
        "phi",
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=30,
    )
    draw(model)
    parts = attribution(model.eval(), None, [1, 2, 3], 5)
    expected = model.lm_head.weight[5] @ model.final_layernorm.bias + model.lm_head.bias[5]
    assert parts.values[-1] == pytest.approx(float(expected), abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("heads", [False, True])
def test_attribution_of_an_encoder_decoder_includes_cross_attention(heads: bool) -> None:
    model = minhub_py.from_config("t5", **T5).eval()
    draw(model)
    text, target = [5, 6, 7, 8], [9, 4, 11]
    expected = model(torch.tensor([text]), torch.tensor([[model.decoder_start, *target]]))[0, 2]
    parts = attribution(model, None, text, 3, 7, position=2, heads=heads, target=target)
    scale = max(map(abs, parts.values))
    assert parts.logit == pytest.approx(float(expected[3] - expected[7]), abs=1e-4 * scale)
    assert sum(parts.values) == pytest.approx(parts.logit, abs=1e-4 * scale)
    assert abs(parts.values[-1]) < 1e-4 * scale  # the head and the norms have no bias
    assert {"embeddings", "layers.1.cross", "layers.2.mlp"} <= set(parts.components)
    assert not any(name.startswith("encoder.") for name in parts.components)
    start = attribution(model, None, text, 3)
    logits = model(torch.tensor([text]), torch.tensor([[model.decoder_start]]))[0, 0]
    assert start.logit == pytest.approx(float(logits[3]), rel=1e-3, abs=1e-4)


def test_architectures_without_a_sum_of_parts_are_rejected_by_name() -> None:
    for model in (minhub_py.from_config("sinusoidal", **SINUSOIDAL), minhub_py.lstm(**LSTM)):
        with pytest.raises(
            ValueError,
            match=f"such as GPT-2, Llama and T5, not this {model.config.TITLE}: use patch",
        ):
            attribution(model, None, [1, 2], 3)
    with pytest.raises(ValueError, match="target is for an encoder-decoder"):
        attribution(random_model("gpt2"), None, [1, 2], 3, target=[1])
    with pytest.raises(ValueError, match="head_scores.* needs a decoder-only model"):
        head_scores(minhub_py.from_config("t5", **T5))


@torch.no_grad()
def induction_model(vocabulary: int = 32, positions: int = 48) -> Any:
    """A transformer built by hand: head 1 of layer 1 copies the previous token, head 1 of layer 2
    is an induction head.

    The stream has a one-hot token, a one-hot position, and a copy of the previous token.
    """
    width = 2 * vocabulary + positions + (-(2 * vocabulary + positions) % 2)
    model = minhub_py.gpt2(
        vocab_size=vocabulary,
        n_positions=positions,
        n_embd=width,
        n_layer=2,
        n_head=1,
        n_inner=1,
        bos_token_id=None,
        layer_norm_epsilon=1e-5,
    )
    for name, parameter in model.named_parameters():
        parameter.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
    tokens, indices = torch.arange(vocabulary), torch.arange(positions)
    model.wte.weight[tokens, tokens] = 1
    model.wpe.weight[indices, vocabulary + indices] = 1
    copy = vocabulary + positions  # channels of the previous token
    for layer, (query, _key) in enumerate([("next", "place"), ("token", "copy")]):
        attn = model.h[layer].attn
        q, k, v = attn.c_attn.weight.split(width)
        if query == "next":
            q[indices[:-1], vocabulary + indices[1:]] = 40  # position p asks for position p - 1
            k[indices, vocabulary + indices] = 40
            v[tokens, tokens] = 1
            attn.c_proj.weight[copy + tokens, tokens] = 1
        else:
            q[tokens, tokens] = 40
            k[tokens, copy + tokens] = 40
    return model.eval()


def test_an_induction_transformer_built_by_hand_scores_one() -> None:
    scores = head_scores(induction_model(), length=20, samples=2)
    # Random tokens repeat by chance, so that the induction head also attends to other copies.
    assert scores.previous_token[0, 0] > 0.99
    assert scores.induction[1, 0] > 0.6
    assert scores.induction[0, 0] < 0.1
    assert scores.previous_token[1, 0] < 0.2
    assert head_scores(induction_model(vocabulary=400), length=20).induction[1, 0] > 0.95


def test_rows_of_the_rollout_sum_to_one() -> None:
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=3, n_head=4
    ).eval()
    attention = attention_weights(model, None, texts_of(12)[0])
    rollout = attention.rollout()
    torch.testing.assert_close(rollout.sum(-1), torch.ones(3, 12))
    mixed = attention.weights.mean(1) / 2 + torch.eye(12) / 2
    torch.testing.assert_close(rollout[2], mixed[2] @ mixed[1] @ mixed[0])
    with pytest.raises(ValueError, match="attention in each layer"):
        attention_weights(random_model("qwen3_5_text"), None, [1, 2, 3]).rollout()


def test_directions_separate_their_texts() -> None:
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4
    ).eval()
    draw(model)
    positive, negative = [[1, 2, 5], [3, 4, 5]], [[1, 2, 9], [3, 4, 9]]
    mean = direction(model, None, positive, negative, "layers.2.resid")
    rows = [
        minhub_py.activations(model, None, texts, "layers.2.resid", pool="last")["layers.2.resid"]
        for texts in (positive, negative)
    ]
    torch.testing.assert_close(mean.vector, rows[0].mean(0) - rows[1].mean(0))
    assert mean.accuracy == 1.0
    assert mean.projections[0].shape == (2,)
    pca = direction(model, None, positive, negative, "layers.2.resid", method="pca")
    assert pca.vector.norm() == pytest.approx(1)
    assert float(pca.unit @ mean.unit) > 0.7
    with pytest.raises(ValueError, match="needs pairs"):
        direction(model, None, positive, negative[:1], "layers.2.resid", method="pca")
    with pytest.raises(ValueError, match="same activations"):
        direction(model, None, positive, positive, "layers.2.resid")


def test_probe_finds_a_linear_feature_and_is_at_chance_for_shuffled_labels() -> None:
    need("sklearn")
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 6))
    y = np.where(x[:, 2] > 0, "plural", "singular")
    groups = np.arange(200) // 4
    result = probe(x, y, groups=groups, bootstrap=200)
    assert result.metric == "accuracy"
    assert result.classes == ["plural", "singular"]
    assert result.score > 0.9
    assert result.interval[0] <= result.score <= result.interval[1]
    assert abs(result.control - 0.5) < 0.15
    assert result.coef[0].argmin() == 2
    assert all(len(set(result.folds[groups == group])) == 1 for group in range(50))
    assert np.mean(result.predictions == y) == result.score
    numbers = probe(x, x[:, 1] * 2 + 0.1 * random.normal(size=200), bootstrap=50)
    assert numbers.metric == "r2"
    assert numbers.score > 0.95 > numbers.control
    with pytest.raises(ValueError, match="5 folds need at least 5 groups, not 2"):
        probe(x, y, groups=np.arange(200) // 100)
    for missing in (
        {"y": ["a", None, "b", "a"]},
        {"y": ["a", "b", "b", "a"], "groups": ["x", float("nan"), "y", "z"]},
    ):
        with pytest.raises(ValueError, match="y and groups must not contain missing"):
            probe(x[:4], folds=2, **missing)
    with pytest.raises(ValueError, match="a row for each of the 3 labels"):
        probe(x, ["a", "b", "a"])
