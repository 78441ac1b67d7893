"""Embeddings compared with transformers' `hidden_states`, for every architecture, layer and
pooling.

test_architectures.py compares the hidden states of every case.
"""

import math
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from pairs import with_variants
from random_weights import draw
from references import CASES, FEW, TOLERANCE, VOCABULARY, save_reference, states_of, texts_of
from small_models import LSTM, SINUSOIDAL, T5, tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, T5EncoderModel

import minhub_py
from minhub_py import embed
from minhub_py.analysis import embeddings as module
from minhub_py.analysis.hidden_states import LayerStates
from minhub_py.inference.quantize import quantize
from minhub_py.models.attention import Past


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(name): transformers' model, and ours of its saved file. They are shared: do not change
    them.
    """
    loaded: dict[str, Any] = {}

    def get(name: str) -> tuple[Any, Any]:
        if name not in loaded:
            folder = tmp_path_factory.mktemp(name)
            reference = save_reference(CASES[name].settings(name), folder)
            loaded[name] = reference, minhub_py.from_pretrained(folder, device="cpu")
        return loaded[name]

    return get


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    """transformers' encoder, and our model loaded from the same file."""
    folder = tmp_path_factory.mktemp("t5")
    settings = {"model_type": "t5", **T5, "feed_forward_proj": "gated-gelu"}
    reference = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**settings)).eval()
    draw(reference)
    reference.save_pretrained(folder)
    return T5EncoderModel.from_pretrained(folder).eval(), minhub_py.from_pretrained(
        folder, device="cpu"
    )


def assert_close(
    actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE
) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == torch.float32
    assert (actual - expected).abs().max() <= tolerance * expected.abs().max()


def assert_embeds(model: Any, texts: list[list[int]], expected: list[list[torch.Tensor]]) -> None:
    """Compare every layer and pooling. expected: each text's hidden states, by layer."""
    layers = len(expected[0])
    for layer in range(-layers, layers):
        mean, last = (
            embed(model, None, texts, layer=layer),
            embed(model, None, texts, layer=layer, pool="last"),
        )
        assert_close(mean, torch.stack([states[layer].mean(0) for states in expected]))
        assert_close(last, torch.stack([states[layer][-1] for states in expected]))
        matrices = embed(model, None, texts, layer=layer, pool="none")
        for matrix, states in zip(matrices, expected, strict=True):
            assert_close(matrix, states[layer])


# An architecture for each kind of cache; test_architectures.py compares the hidden states of all.
SOME = ["gpt2", "gemma2", "qwen3_5_text", "mamba2", "jamba"]


@pytest.mark.parametrize("name", with_variants(FEW, SOME))
def test_embeddings_match_transformers(load, name: str) -> None:
    """Ragged batches, and texts longer than any attention window."""
    reference, model = load(name)
    texts = texts_of(17, 3, 40, 1, 40, 29)
    assert_embeds(model, texts, [states_of(reference, ids) for ids in texts])


@pytest.mark.parametrize("name", with_variants(FEW, SOME))
@pytest.mark.parametrize("pool", ["mean", "last", "none"])
def test_several_layers_are_joined_or_averaged(load, name: str, pool: Any) -> None:
    reference, model = load(name)
    texts = texts_of(17, 3, 40)
    layers = [1, -2]
    states = [[states_of(reference, ids)[layer] for layer in layers] for ids in texts]
    reduced = {"mean": lambda x: x.mean(0), "last": lambda x: x[-1], "none": lambda x: x}[pool]
    joined = embed(model, None, texts, layer=layers, pool=pool)
    mean = embed(model, None, texts, layer=np.array(layers), pool=pool, combine="mean")
    for a, b, parts in zip(joined, mean, states, strict=True):
        assert_close(a, reduced(torch.cat(parts, dim=-1)))
        assert_close(b, reduced(torch.stack(parts).mean(0)))


def test_t5_embeddings_match_transformers(t5) -> None:
    reference, model = t5
    texts = texts_of(17, 3, 40, 3, 1, 40)
    assert_embeds(model, texts, [states_of(reference, ids) for ids in texts])


def test_lstm_embeddings_match_single_layer_lstms() -> None:
    model = minhub_py.lstm(**LSTM).eval()
    texts = texts_of(5, 12, 1)
    expected = []
    for ids in texts:
        x = model.embedding(torch.tensor([ids]))
        states = [x[0]]
        for layer in range(3):
            lstm = nn.LSTM(x.size(-1), 24, batch_first=True)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                setattr(lstm, f"{name}_l0", getattr(model.lstm, f"{name}_l{layer}"))
            x, _ = lstm(x)
            states.append(x[0])
        expected.append([state.detach() for state in states])
    assert_embeds(model, texts, expected)
    with pytest.raises(ValueError, match="different sizes"):
        embed(model, None, texts, layer=[0, 1], combine="mean")


def test_sinusoidal_embeddings_match_its_blocks() -> None:
    """The architecture is not in transformers."""
    model = minhub_py.from_config("sinusoidal", **SINUSOIDAL).eval()
    texts = texts_of(5, 12, 1)
    expected = []
    for ids in texts:
        idx = torch.tensor([ids])
        past = Past(idx)
        states = [model.embedding(idx) + model.positions(past.positions)]
        for block in model.layers:
            states.append(block(states[-1], past))
        expected.append([state[0].detach() for state in states])
    assert_embeds(model, texts, expected)


@pytest.mark.parametrize("name", ["gpt2", "gpt_oss", "qwen3_5_text"])
def test_long_texts_in_prefill_chunks_match_transformers(load, monkeypatch, name: str) -> None:
    reference, model = load(name)
    texts = texts_of(60, 7)
    expected = [states_of(reference, ids) for ids in texts]
    monkeypatch.setattr(module, "TOKENS", 16)
    monkeypatch.setattr(module, "CHUNK", 9)
    assert_embeds(model, texts, expected)


def test_texts_beyond_the_context_length_use_the_windows_of_score() -> None:
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=12, n_embd=24, n_layer=2, n_head=4
    ).eval()
    [ids] = texts_of(31)
    states = embed(model, None, [ids, ids[:3]], pool="none")[0]
    logprobs = (
        model.logits(states[:-1])
        .log_softmax(-1)
        .gather(1, torch.tensor(ids[1:]).unsqueeze(1))[:, 0]
    )
    torch.testing.assert_close(logprobs, minhub_py.score(model, [ids])[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(embed(model, None, [ids])[0], states.mean(0))
    assert torch.equal(embed(model, None, [ids], pool="last")[0], states[-1])


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantized_models_match_their_logits(kind: str) -> None:
    for model in (
        minhub_py.gpt2(vocab_size=VOCABULARY, n_positions=40, n_embd=32, n_layer=2, n_head=4),
        minhub_py.lstm(**LSTM),
    ):
        quantize(model.eval(), kind)
        texts = texts_of(9, 20)
        vectors = embed(model, None, texts, layer=1)
        assert_close(vectors[1:], embed(deepcopy(model), None, texts[1:], layer=1))
        last = embed(model, None, texts, pool="none")
        for ids, states in zip(texts, last, strict=True):
            with torch.no_grad():
                assert_close(model.logits(states), model(torch.tensor([ids]))[0])


def test_bfloat16_embeddings_are_close_to_float32(load) -> None:
    reference, model = load("llama")
    texts = texts_of(17, 30)
    vectors = embed(deepcopy(model).bfloat16(), None, texts)
    expected = torch.stack([states_of(reference, ids)[-1].mean(0) for ids in texts])
    assert vectors.dtype == torch.float32
    assert (vectors - expected).square().mean() < 0.01 * expected.square().mean()


def test_missing_and_empty_texts_are_nan() -> None:
    """Lists and arrays of strings are supported; missing texts are NaN."""
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4
    ).eval()
    texts = ["the cat sat on the mat.", None, "", "a dog ran", math.nan, np.str_("the house")]
    vectors = embed(model, tokenizer(), texts)
    assert vectors.shape == (6, 24)
    assert vectors.isnan().all(dim=1).tolist() == [False, True, True, False, True, False]
    assert not vectors.requires_grad
    assert not vectors.is_inference()  # a classifier can be trained on them
    for row in (0, 3, 5):
        ids = tokenizer().encode(texts[row]).ids
        assert_close(vectors[row : row + 1], embed(model, None, [ids]))
    matrices = embed(model, tokenizer(), texts, pool="none")
    assert [len(matrix) for matrix in matrices] == [7, 0, 0, 3, 0, 2]
    assert embed(model, tokenizer(), []).shape[0] == 0
    assert embed(model, tokenizer(), [None, ""]).shape == (2, 24)
    assert embed(model, tokenizer(), np.array(["a cat", "a dog"])).shape == (2, 24)


def test_batch_size_does_not_change_embeddings(monkeypatch) -> None:
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4
    ).eval()
    texts = texts_of(
        *torch.randint(1, 40, (200,), generator=torch.Generator().manual_seed(3)).tolist()
    )
    calls = []
    vectors = embed(model, None, texts, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (sum(map(len, texts)),) * 2
    assert len(calls) > 3
    assert calls == sorted(calls)
    monkeypatch.setattr(module, "TOKENS", 1)
    assert_close(vectors, embed(model, None, texts), 1e-5)


def test_the_model_is_not_changed() -> None:
    """A model in training mode is run without dropout, no hook remains, and later layers do not
    run.
    """
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=3, n_head=4, resid_pdrop=0.5
    )
    texts = texts_of(9, 20)
    model.train()
    vectors = embed(model, None, texts)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(vectors, embed(model.eval(), None, texts))
    ran = []
    states = LayerStates(model, "embed()")
    for block in states.model.h:
        forward = block.mlp.forward
        block.mlp.forward = lambda x, forward=forward, block=block: (ran.append(block), forward(x))[
            1
        ]
    states.compute(torch.tensor(texts[:1]), (1,))
    assert len(ran) == 1


def test_replaced_layers_are_included() -> None:
    class Doubled(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.layer(x)

    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4
    ).eval()
    model.h[0].ln_1 = Doubled(model.h[0].ln_1)
    texts = texts_of(9, 20)
    for ids, states in zip(texts, embed(model, None, texts, pool="none"), strict=True):
        with torch.no_grad():
            assert_close(model.logits(states), model(torch.tensor([ids]))[0])


def test_invalid_arguments_raise_value_errors() -> None:
    model = minhub_py.gpt2(
        vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4
    ).eval()
    for arguments, settings, message in (
        ((None, ["a cat"]), {}, "tokenizer must be a tokenizers.Tokenizer"),
        ((tokenizer(), "a cat"), {}, "texts must be a list of texts"),
        (
            (tokenizer(), ["a cat", 3]),
            {},
            "texts must be strings or lists of token IDs, but text 1 is 3",
        ),
        (
            (tokenizer(), [[1, 99]]),
            {},
            "must be whole numbers between 0 and 60, but prompt 0 has 99",
        ),
        ((tokenizer(), ["a cat"]), {"layer": 3}, r"from 0 \(embeddings\) to 2 "),
        ((tokenizer(), ["a cat"]), {"layer": -4}, r"from -1 \(last layer\) to -3"),
        ((tokenizer(), ["a cat"]), {"layer": 1.5}, "layer must be a whole number"),
        ((tokenizer(), ["a cat"]), {"layer": [1, 3]}, r"from 0 \(embeddings\) to 2 "),
        ((tokenizer(), ["a cat"]), {"layer": []}, "layer must name at least one layer"),
        ((tokenizer(), ["a cat"]), {"combine": "sum"}, 'combine must be "join" or "mean"'),
        ((tokenizer(), ["a cat"]), {"pool": "max"}, 'pool must be "mean", "last" or "none"'),
    ):
        with pytest.raises(ValueError, match=message):
            embed(model, *arguments, **settings)
    with pytest.raises(ValueError, match="takes a model, not its name"):
        embed("gpt2", tokenizer(), ["a cat"])
    model.h[1].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"embed\(\) does not support hooks"):
        embed(model, tokenizer(), ["a cat"])
