"""Tuned lens: it starts as the logit lens, and approaches the model's own predictions."""

import pytest
import torch
from small_models import LSTM, T5

import minhub_py
from minhub_py import from_pretrained, logit_lens, tokenizer_from_pretrained, tuned_lens
from minhub_py.analysis.tuned_lens import TunedLens

TEXTS = [
    "My lord, the king is dead.",
    "Good night, good night! What news, my friend?",
    "O Romeo, wherefore art thou?",
]


def test_a_trained_lens_is_closer_to_the_model_in_every_layer() -> None:
    name = "minhub/shakespeare-gpt2"
    model, tokenizer = from_pretrained(name), tokenizer_from_pretrained(name)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    lens = tuned_lens(model, tokenizer, TEXTS, steps=12, rate=3e-3)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert not any(parameter.grad is not None for parameter in model.parameters())
    assert list(lens.before) == list(range(6))
    assert all(lens.after[layer] < lens.before[layer] for layer in lens.before)
    plain, tuned = (
        logit_lens(model, tokenizer, TEXTS[0]),
        logit_lens(model, tokenizer, TEXTS[0], lens=lens),
    )
    assert torch.equal(tuned.probs[-1], plain.probs[-1])  # the model's own predictions
    assert not torch.equal(tuned.probs[2], plain.probs[2])
    again = tuned_lens(model, tokenizer, TEXTS, steps=12, rate=3e-3)
    assert again.after == lens.after
    zero = TunedLens(
        {
            2: (
                torch.zeros(model.config.n_embd, model.config.n_embd),
                torch.zeros(model.config.n_embd),
            )
        },
        {},
        {},
    )
    assert torch.equal(logit_lens(model, tokenizer, TEXTS[0], lens=zero).probs, plain.probs)


def test_other_models_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="needs a decoder-only model, not T5"):
        tuned_lens(minhub_py.from_config("t5", **T5), None, [[1, 2]])
    with pytest.raises(ValueError, match="needs a transformer, not .*: use logit_lens"):
        tuned_lens(minhub_py.lstm(**LSTM), None, [[1, 2]])
