"""Attention weights and the logit lens, compared with transformers for every architecture that it
has.

test_architectures.py compares the attention weights of every case.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from references import CASES, FEW, VOCABULARY, save_reference, texts_of
from small_models import LSTM, SINUSOIDAL, T5, tokenizer

import minhub_py
from minhub_py import attention_weights, logit_lens
from minhub_py.analysis import lens
from minhub_py.analysis.attention import AttentionWeights
from minhub_py.analysis.lens import LayerPredictions
from minhub_py.inference.quantize import quantize

LENGTH = 40  # beyond any window of the cases


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(name): transformers' model, with eager attention if possible, and ours of its saved
    file.
    """
    models: dict[str, Any] = {}

    def get(name: str) -> tuple[Any, Any]:
        if name not in models:
            folder = tmp_path_factory.mktemp(name)
            if name == "t5":
                settings, auto_class = {"model_type": "t5", **T5}, "ForSeq2SeqLM"
            else:
                settings, auto_class = CASES[name].settings(name), "ForCausalLM"
            # With eager attention, transformers' Falcon adds the bias of ALiBi twice.
            attention = "sdpa" if settings.get("alibi") else "eager"
            reference = save_reference(settings, folder, auto_class, attn_implementation=attention)
            models[name] = reference, minhub_py.from_pretrained(folder, device="cpu")
        return models[name]

    return get


@torch.no_grad()
def test_t5_returns_the_attention_weights_of_its_encoder(load) -> None:
    reference, model = load("t5")
    [ids] = texts_of(LENGTH)
    expected = reference.encoder(torch.tensor([ids]), output_attentions=True).attentions
    torch.testing.assert_close(
        attention_weights(model, None, ids).weights, torch.cat(expected), rtol=0, atol=2e-5
    )


def test_layers_without_attention_are_omitted(load) -> None:
    _, model = load("qwen3_5_text")
    attention = attention_weights(model, None, texts_of(9)[0])
    assert attention.layers == [
        i for i, kind in enumerate(model.config.kinds, 1) if kind == "full_attention"
    ]
    assert len(attention.weights) == len(attention.layers) < model.config.num_hidden_layers


def test_sinusoidal_attention_weights_reproduce_the_output_of_the_layer() -> None:
    """The architecture is not in transformers: the weights are applied to the values."""
    model = minhub_py.from_config("sinusoidal", **SINUSOIDAL).eval()
    [ids] = texts_of(12)
    weights = attention_weights(model, None, ids).weights
    calls: list[Any] = []
    model.layers[0].self_attn.register_forward_hook(
        lambda _, inputs, y: calls.append((inputs[0], y))
    )
    model(torch.tensor([ids]))
    x, y = calls[0]
    attn = model.layers[0].self_attn
    v = attn.in_proj(x).chunk(3, dim=2)[2].unflatten(2, (4, -1)).transpose(1, 2)
    torch.testing.assert_close(attn.out_proj((weights[:1] @ v).transpose(1, 2).flatten(2)), y)


@torch.no_grad()
@pytest.mark.parametrize(
    "name", [*FEW, "opt-no-last-norm", "gemma2-final-cap", "phi-tied", "gptj-tied"]
)
def test_logit_lens_matches_the_model_and_truncated_models(load, name: str) -> None:
    """The last layer predicts as the model; layer 1 as the model without the layers after it."""
    reference, model = load(name)
    [ids] = texts_of(LENGTH)
    predictions = logit_lens(model, None, ids, n=3)
    output = reference(torch.tensor([ids]), output_hidden_states=True)
    expected = output.logits[0].softmax(dim=1).topk(3, dim=1)
    torch.testing.assert_close(predictions.probs[-1], expected.values, rtol=2e-3, atol=1e-5)
    # except ties
    assert (predictions.predicted[-1, :, 0] == expected.indices[:, 0]).float().mean() > 0.95
    assert predictions.layers == list(range(len(output.hidden_states)))
    assert (
        predictions.predicted.shape
        == predictions.probs.shape
        == (len(predictions.layers), LENGTH, 3)
    )
    if hasattr(model, "layers") and name.split("-", maxsplit=1)[0] in (
        "llama",
        "gemma2",
        "opt",
        "phi",
        "olmo2",
    ):
        truncated = deepcopy(model)
        del truncated.layers[1:]
        if hasattr(truncated.config, "kinds"):  # Gemma iterates over the kinds of its layers
            return
        best = truncated(torch.tensor([ids]))[0].softmax(dim=1).topk(3, dim=1)
        torch.testing.assert_close(predictions.probs[1], best.values)


def test_logit_lens_in_chunks_matches_a_single_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4
    ).eval()
    [ids] = texts_of(37)
    single = logit_lens(model, None, ids)
    monkeypatch.setattr(lens, "POSITIONS", 16)
    chunked = logit_lens(model, None, ids)
    assert chunked.predicted.equal(single.predicted)
    torch.testing.assert_close(chunked.probs, single.probs)


def test_logit_lens_of_an_lstm() -> None:
    model = minhub_py.lstm(**LSTM).eval()
    [ids] = texts_of(9)
    predictions = logit_lens(model, None, ids, n=1)
    assert predictions.layers == [1, 2, 3]  # the embeddings are narrower than the head's input
    expected = model(torch.tensor([ids]))[0].softmax(1).amax(1, keepdim=True).detach()
    torch.testing.assert_close(predictions.probs[-1], expected)
    tied = minhub_py.lstm(**{**LSTM, "embedding_size": 24, "tie_word_embeddings": True}).eval()
    assert logit_lens(tied, None, ids).layers == [0, 1, 2, 3]


@torch.no_grad()
def test_attention_weights_include_replaced_modules_and_hooks() -> None:
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4
    ).eval()
    [ids] = texts_of(9)
    before = attention_weights(model, None, ids).weights
    layer, bias = model.h[1].attn.c_attn, torch.randn(72)
    model.h[1].attn.c_attn = torch.nn.Sequential(layer, Shift(bias))
    replaced = attention_weights(model, None, ids).weights
    torch.testing.assert_close(replaced[0], before[0])
    assert (replaced[1] - before[1]).abs().max() > 0.01
    model.h[1].attn.c_attn = layer
    layer.register_forward_hook(lambda module, inputs, output: output + bias)
    torch.testing.assert_close(attention_weights(model.train(), None, ids).weights, replaced)


class Shift(torch.nn.Module):
    """Adds a constant."""

    def __init__(self, bias: torch.Tensor) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bias


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantized_models(kind: str) -> None:
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=32, n_layer=2, n_head=4
    ).eval()
    quantize(model, kind)
    [ids] = texts_of(9)
    assert attention_weights(model, None, ids).weights.shape == (2, 4, 9, 9)
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0].softmax(dim=1).amax(dim=1)
    torch.testing.assert_close(logit_lens(model, None, ids).probs[-1, :, 0], expected)


def test_tokens_of_a_string_and_plots(tmp_path: Path) -> None:
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4
    ).eval()
    tok = tokenizer()
    text = "the cat sat on the mat."
    attention = attention_weights(model, tok, text)
    assert attention.tokens == ["the", "cat", "sat", "on", "the", "mat", "."]
    assert attention.ids == tok.encode(text).ids
    assert attention.layers == [1, 2]
    predictions = logit_lens(model, tok, text)
    assert predictions.tokens == attention.tokens
    assert set(predictions.names) == set(predictions.predicted.flatten().tolist())
    assert predictions.names.get(tok.token_to_id("cat"), "cat") == "cat"
    plots = [
        (attention, {}),
        (attention, {"layer": 2}),
        (attention, {"layer": 1, "head": 4}),
        (attention, {"head": 1}),
        (predictions, {}),
        (predictions, {"start": 3, "most": 2}),
    ]
    for number, (result, settings) in enumerate(plots):
        path = tmp_path / f"{number}.png"
        assert result.plot(path, **settings).axes
        assert path.read_bytes().startswith(b"\x89PNG")
    figure = attention_weights(model, None, [1, 2]).plot(layer=1, head=1)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["#1", "#2"]


def random_attention(layer_count: int, heads: int, tokens: int) -> AttentionWeights:
    weights = torch.rand(layer_count, heads, tokens, tokens)
    names: list[str | None] = [f"t{number}" for number in range(tokens)]
    return AttentionWeights(names, list(range(tokens)), list(range(1, layer_count + 1)), weights)


def panels_of(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.images]


def ticks(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


@pytest.mark.parametrize(("settings", "names"), [({"layer": 2}, "head"), ({"head": 3}, "layer")])
def test_panels_of_a_layer_or_head_are_labelled_at_the_edges(
    settings: dict[str, int], names: str
) -> None:
    attention = random_attention(5, 4, 9)
    figure = attention.plot(**settings)
    panels = panels_of(figure)
    assert [axes.get_title() for axes in panels] == [
        f"{names} {i + 1}" for i in range(5 if names == "layer" else 4)
    ]
    left = [axes for axes in panels if axes.get_ylabel()]
    bottom = [axes for axes in panels if axes.get_xlabel()]
    assert {axes.get_ylabel() for axes in left} | {axes.get_xlabel() for axes in bottom} == {
        "query",
        "key",
    }
    assert all(ticks(axes.get_yticklabels()) == attention.tokens for axes in left)
    assert all(ticks(axes.get_xticklabels()) == attention.tokens for axes in bottom)
    assert (len(left), len(bottom)) == ((2, 2) if names == "head" else (2, 3))


def test_more_heads_than_fit_are_shown_as_the_mean_of_each_layer() -> None:
    attention = random_attention(30, 9, 6)
    figure = attention.plot()
    panels = panels_of(figure)
    assert [axes.get_title() for axes in panels] == [f"layer {number}" for number in range(1, 31)]
    torch.testing.assert_close(
        torch.as_tensor(panels[7].images[0].get_array()), attention.weights[7].mean(0)
    )
    assert "mean of 9 heads" in figure.get_suptitle()
    width, height = figure.get_size_inches()
    assert 0.7 < width / height < 1.8
    figure.canvas.draw()
    smallest = min(axes.get_window_extent().width / figure.dpi for axes in panels)
    assert smallest > 1.5  # inches


def test_the_lens_mentions_frames_only_if_it_draws_some() -> None:
    for following, expected in ((2, True), (3, False)):
        predictions = LayerPredictions(
            ["a", "b"],
            [1, following],
            [0],
            torch.tensor([[[2], [9]]]),
            torch.ones(1, 2, 1),
            {2: "b", 9: "x"},
        )
        figure = predictions.plot()
        assert ("framed" in figure.axes[0].get_xlabel()) == expected == bool(figure.axes[0].patches)


def test_invalid_arguments_raise_value_errors(load) -> None:
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=10, n_embd=24, n_layer=2, n_head=4
    ).eval()
    for function in (attention_weights, logit_lens):
        for text, message in (
            ("", "the text has no tokens"),
            (None, "the text has no tokens"),
            ([1] * 11, "has 11 tokens, but the model's context length is 10"),
            ([99], "must be whole numbers between 0 and 60, but prompt 0 has 99"),
        ):
            with pytest.raises(ValueError, match=message):
                function(model, tokenizer(), text)
    with pytest.raises(ValueError, match="has no attention"):
        attention_weights(minhub_py.lstm(**LSTM), None, [1, 2])
    with pytest.raises(ValueError, match="the layers of an encoder predict no next token"):
        logit_lens(load("t5")[1], None, [1, 2])
    attention = attention_weights(model, None, [1, 2])
    for settings, message in (
        ({"layer": 3}, "layer must be 1 or 2"),
        ({"layer": 1, "head": 0}, "head must be 1 to 4"),
    ):
        with pytest.raises(ValueError, match=message):
            attention.plot(**settings)
    with pytest.raises(ValueError, match="the text has 2 tokens"):
        logit_lens(model, None, [1, 2]).plot(start=2)
