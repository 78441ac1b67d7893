"""An LSTM that was trained on War and Peace: published numbers and texts. The module needs the real
data.
"""

import json
import re

import pytest
import torch
from real_data import real_data
from torch.nn.functional import cross_entropy

import minhub_py

FOLDER = real_data("war-and-peace-lstm")
PROMPT = "The prince answered "
GREEDY = (
    "the soldiers and the same time that he had been sent to the soldiers "
    "and the same time that he had been sent to the sold"
)
SENTENCE = "The prince answered nothing, but she looked at him significantly, awaiting a reply"


@pytest.fixture(scope="module")
def war_and_peace():
    return minhub_py.lstm_from_pretrained(str(FOLDER), device="cpu", dtype="float32")


def encode(text):
    """The token IDs of a text, by vocab.json and the filter of the training on War and Peace."""
    text = re.sub(r"[^A-Za-z0-9 \-\.;,\n\?!]", "", text)
    text = re.sub(" +", " ", re.sub("\n+", " ", text))
    vocabulary = json.loads((FOLDER / "vocab.json").read_text(encoding="utf-8"))
    ids = (
        vocabulary
        if isinstance(vocabulary, dict)
        else {character: id for id, character in enumerate(vocabulary)}
    )
    return torch.tensor([[ids[character] for character in text]])


@torch.no_grad()
def test_logits_match_the_published_ones(war_and_peace):
    logits = war_and_peace(encode(PROMPT))
    assert logits.dtype == torch.float32
    # rounded to four digits
    expected = torch.tensor([-15.5377, -4.0642, -9.3971, -6.7735, -6.2187])
    torch.testing.assert_close(logits[0, -1, :5], expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_greedy_text(war_and_peace):
    tokenizer = minhub_py.tokenizer_from_pretrained(str(FOLDER))
    ids = encode(PROMPT)
    assert tokenizer.encode(PROMPT).ids == ids[0].tolist()

    cache = war_and_peace.new_cache(1, 200)
    logits, result = war_and_peace(ids, cache), []
    for _ in GREEDY:
        result.append(int(logits[0, -1].argmax()))
        logits = war_and_peace(torch.tensor([[result[-1]]]), cache)
    assert result == encode(GREEDY)[0].tolist()
    assert tokenizer.decode(result) == GREEDY
    assert minhub_py.generate(war_and_peace, ids.tolist(), len(GREEDY), temperature=0) == [result]


@torch.no_grad()
def test_loss(war_and_peace):
    ids = encode(SENTENCE)
    loss = cross_entropy(war_and_peace(ids)[0, :-1], ids[0, 1:])
    assert float(loss) == pytest.approx(0.77445, abs=1e-5)
    [scores] = minhub_py.score(war_and_peace, ids.tolist())
    assert float(-scores.mean()) == pytest.approx(0.77445, abs=1e-5)


def test_sizes_are_read_from_the_tensors(war_and_peace):
    config = war_and_peace.config
    sizes = (config.vocab_size, config.embedding_size, config.hidden_size, config.num_layers)
    assert sizes == (70, 32, 128, 4)
    assert not config.tie_word_embeddings
    assert not war_and_peace.training
