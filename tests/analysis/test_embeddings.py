"""Hidden states and embeddings against transformers' `hidden_states`, for every family, layer and pooling.

Those of every case are in test_architectures.py, which has the models.
"""

import json
import math
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from cases import ARCHITECTURES
from random_weights import draw
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, T5EncoderModel

import minhub_py
from minhub_py import embed
from minhub_py.analysis import embeddings as module
from minhub_py.analysis.hidden_states import States
from minhub_py.inference.quantize import quantize
from minhub_py.models.cache import Past

TOLERANCE = 5e-5  # of the largest number
VOCABULARY = 61
CASES = {name: cases for cases in ARCHITECTURES.values() for name in cases.cases}
FEW = [name for cases in ARCHITECTURES.values() for name in cases.few]
LSTM = {"vocab_size": VOCABULARY, "embedding_size": 16, "hidden_size": 24, "num_layers": 3}
SINUSOIDAL = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 36, "max_position_embeddings": 64}  # fmt: skip
T5 = {"vocab_size": VOCABULARY, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2,
      "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}  # fmt: skip


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(name): the reference, and our model of the file that it saves. They are shared: leave them as they are."""
    made: dict[str, Any] = {}

    def get(name: str) -> tuple[Any, Any]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            settings = CASES[name].settings(name)
            reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**deepcopy(settings))).eval()
            draw(reference)
            reference.save_pretrained(folder)
            (folder / "generation_config.json").unlink(missing_ok=True)
            (folder / "config.json").write_text(json.dumps(settings))
            made[name] = reference, minhub_py.from_pretrained(folder, device="cpu")
        return made[name]

    return get


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    """transformers' encoder, and our model of the same file."""
    folder = tmp_path_factory.mktemp("t5")
    settings = {"model_type": "t5", **T5, "feed_forward_proj": "gated-gelu"}
    reference = AutoConfig.for_model(**settings)
    both = AutoModelForSeq2SeqLM.from_config(reference).eval()
    draw(both)
    both.save_pretrained(folder)
    return T5EncoderModel.from_pretrained(folder).eval(), minhub_py.from_pretrained(folder, device="cpu")


def texts_of(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
def states_of(reference: Any, ids: list[int]) -> list[torch.Tensor]:
    """transformers' states of one text, (T, C) each, the embeddings first."""
    found = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return [state[0] for state in found]


def assert_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == torch.float32
    assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


def assert_embeds(model: Any, texts: list[list[int]], wanted: list[list[torch.Tensor]]) -> None:
    """wanted: for each text its states by layer."""
    layers = len(wanted[0])
    for layer in range(-layers, layers):
        assert_close(embed(model, None, texts, layer=layer), torch.stack([each[layer].mean(0) for each in wanted]))
        assert_close(
            embed(model, None, texts, layer=layer, pool="last"), torch.stack([each[layer][-1] for each in wanted])
        )
        found = embed(model, None, texts, layer=layer, pool="none")
        for each, states in zip(found, wanted, strict=True):
            assert_close(each, states[layer])


@pytest.mark.parametrize("name", FEW)
def test_poolings(load, name: str) -> None:
    """Ragged batches, every layer and pooling; texts beyond any window."""
    reference, model = load(name)
    texts = texts_of(17, 3, 40, 1, 40, 29)
    assert_embeds(model, texts, [states_of(reference, ids) for ids in texts])


def test_t5(t5) -> None:
    reference, model = t5
    texts = texts_of(17, 3, 40, 3, 1, 40)
    assert_embeds(model, texts, [states_of(reference, ids) for ids in texts])


def test_lstm() -> None:
    model = minhub_py.lstm(**LSTM).eval()
    texts = texts_of(5, 12, 1)
    wanted = []
    for ids in texts:
        x = model.embedding(torch.tensor([ids]))
        states = [x[0]]
        for layer in range(3):
            one = nn.LSTM(x.size(-1), 24, batch_first=True)
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                setattr(one, f"{part}_l0", getattr(model.lstm, f"{part}_l{layer}"))
            x, _ = one(x)
            states.append(x[0])
        wanted.append([state.detach() for state in states])
    assert_embeds(model, texts, wanted)


def test_sinusoidal() -> None:
    """It is not in transformers: its own blocks."""
    model = minhub_py.sinusoidal(**SINUSOIDAL).eval()
    texts = texts_of(5, 12, 1)
    wanted = []
    for ids in texts:
        idx = torch.tensor([ids])
        past = Past(idx)
        states = [model.embedding(idx) + model.positions(past.positions)]
        for block in model.layers:
            states.append(block(states[-1], past))
        wanted.append([state[0].detach() for state in states])
    assert_embeds(model, texts, wanted)


@pytest.mark.parametrize("name", ["gpt2", "gpt_oss", "qwen3_5_text"])
def test_long_texts_are_read_in_pieces(load, monkeypatch, name: str) -> None:
    """With a cache: as those that are read at once."""
    reference, model = load(name)
    texts = texts_of(60, 7)
    wanted = [states_of(reference, ids) for ids in texts]
    monkeypatch.setattr(module, "TOKENS", 16)
    monkeypatch.setattr(module, "CHUNK", 9)
    assert_embeds(model, texts, wanted)


def test_beyond_the_context() -> None:
    """By the rule of `score`: each token is in the context by which the next one is predicted."""
    model = minhub_py.gpt2(vocab_size=VOCABULARY, n_positions=12, n_embd=24, n_layer=2, n_head=4).eval()
    [ids] = texts_of(31)
    found = embed(model, None, [ids, ids[:3]], pool="none")[0]
    logprobs = model.logits(found[:-1]).log_softmax(-1).gather(1, torch.tensor(ids[1:]).unsqueeze(1))[:, 0]
    torch.testing.assert_close(logprobs, minhub_py.score(model, [ids])[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(embed(model, None, [ids])[0], found.mean(0))
    assert torch.equal(embed(model, None, [ids], pool="last")[0], found[-1])


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantized(kind: str) -> None:
    """As a model of the weights that the codes stand for."""
    for model in (minhub_py.gpt2(vocab_size=VOCABULARY, n_positions=40, n_embd=32, n_layer=2, n_head=4),
                  minhub_py.lstm(**LSTM)):  # fmt: skip
        quantize(model.eval(), kind)
        texts = texts_of(9, 20)
        plain = deepcopy(model)
        found = embed(model, None, texts, layer=1)
        again = embed(plain, None, texts[1:], layer=1)
        assert_close(found[1:], again)
        last = embed(model, None, texts, pool="none")
        for ids, states in zip(texts, last, strict=True):
            with torch.no_grad():
                assert_close(model.logits(states), model(torch.tensor([ids]))[0])


def test_16_bits(load) -> None:
    reference, model = load("llama")
    texts = texts_of(17, 30)
    found = embed(deepcopy(model).bfloat16(), None, texts)
    wanted = torch.stack([states_of(reference, ids)[-1].mean(0) for ids in texts])
    assert found.dtype == torch.float32
    assert (found - wanted).square().mean() < 0.01 * wanted.square().mean()


def tokenizer() -> Tokenizer:
    words = ["<unk>", *"the a cat dog sat ran on in mat house and . , !".split()]
    found = Tokenizer(models.WordLevel({word: id for id, word in enumerate(words)}, unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    return found


def test_texts() -> None:
    """Strings in their order, missing ones as NaN, whatever holds them."""
    model = minhub_py.gpt2(vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4).eval()
    texts = ["the cat sat on the mat.", None, "", "a dog ran", math.nan, np.str_("the house")]
    found = embed(model, tokenizer(), texts)
    assert found.shape == (6, 24)
    assert found.isnan().all(dim=1).tolist() == [False, True, True, False, True, False]
    assert not found.requires_grad
    assert not found.is_inference()  # a classifier can be trained on them
    for place in (0, 3, 5):
        ids = tokenizer().encode(texts[place]).ids
        assert_close(found[place : place + 1], embed(model, None, [ids]))
    parts = embed(model, tokenizer(), texts, pool="none")
    assert [len(part) for part in parts] == [7, 0, 0, 3, 0, 2]
    assert embed(model, tokenizer(), []).shape[0] == 0
    assert embed(model, tokenizer(), [None, ""]).shape == (2, 24)
    assert embed(model, tokenizer(), np.array(["a cat", "a dog"])).shape == (2, 24)


def test_many_texts_in_one_order(monkeypatch) -> None:
    """Batches of any size: what comes of a text depends on no other."""
    model = minhub_py.gpt2(vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4).eval()
    texts = texts_of(*torch.randint(1, 40, (200,), generator=torch.Generator().manual_seed(3)).tolist())
    heard = []
    found = embed(model, None, texts, progress=lambda done, total: heard.append((done, total)))
    assert heard[-1] == (sum(map(len, texts)),) * 2
    assert len(heard) > 3
    assert heard == sorted(heard)
    monkeypatch.setattr(module, "TOKENS", 1)
    assert_close(found, embed(model, None, texts), 1e-5)


def test_the_model_stays_as_it_is() -> None:
    """In training mode there is no dropout, and no hook is left; only the layers that are needed run."""
    model = minhub_py.gpt2(vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=3, n_head=4, resid_pdrop=0.5)
    texts = texts_of(9, 20)
    model.train()
    found = embed(model, None, texts)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(found, embed(model.eval(), None, texts))
    ran = []
    states = States(model, "embed()")
    for block in states.model.h:
        forward = block.mlp.forward
        block.mlp.forward = lambda x, forward=forward, block=block: (ran.append(block), forward(x))[1]
    states.read(torch.tensor(texts[:1]), (1,))
    assert len(ran) == 1


def test_layers_of_somebody_else() -> None:
    """A layer that somebody has put in the place of the model's own."""

    class Doubled(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.layer(x)

    model = minhub_py.gpt2(vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4).eval()
    model.h[0].ln_1 = Doubled(model.h[0].ln_1)
    texts = texts_of(9, 20)
    for ids, states in zip(texts, embed(model, None, texts, pool="none"), strict=True):
        with torch.no_grad():
            assert_close(model.logits(states), model(torch.tensor([ids]))[0])


def test_mistakes() -> None:
    model = minhub_py.gpt2(vocab_size=VOCABULARY, n_positions=40, n_embd=24, n_layer=2, n_head=4).eval()
    for arguments, settings, message in (
        ((None, ["a cat"]), {}, "tokenizer must be a tokenizers.Tokenizer"),
        ((tokenizer(), "a cat"), {}, "texts must be a list of texts"),
        ((tokenizer(), ["a cat", 3]), {}, "texts must be strings, or lists of ids; number 1 is 3"),
        ((tokenizer(), [[1, 99]]), {}, "must be whole numbers between 0 and 60, but prompt 0 has 99"),
        ((tokenizer(), ["a cat"]), {"layer": 3}, "from 0, the embeddings, to 2, "),
        ((tokenizer(), ["a cat"]), {"layer": -4}, "from -1, the last, to -3"),
        ((tokenizer(), ["a cat"]), {"layer": 1.5}, "layer must be a whole number"),
        ((tokenizer(), ["a cat"]), {"pool": "max"}, 'pool must be "mean", "last" or "none"'),
    ):
        with pytest.raises(ValueError, match=message):
            embed(model, *arguments, **settings)
    with pytest.raises(ValueError, match="takes a model, not its name"):
        embed("gpt2", tokenizer(), ["a cat"])
    model.h[1].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="cannot look into a model with hooks"):
        embed(model, tokenizer(), ["a cat"])
