"""Word embeddings, compared with the hidden states of transformers averaged by word."""

from pathlib import Path
from typing import Any

import pytest
import torch
from docs_models import byte_tokenizer
from encoders import write_encoder
from random_weights import draw
from transformers import AutoModel, PreTrainedTokenizerFast

from minhub_py import (
    from_config,
    from_pretrained,
    gpt2,
    save_pretrained,
    tokenizer_from_pretrained,
    word_embeddings,
)

TEXTS = ["The cat sat on the mat.", "a dog,  ran\nweather!", None, "", "  lovely "]


def write_decoder(folder: Path) -> Path:
    tokenizer = byte_tokenizer("<|end|>", merges=[("t", "h"), ("th", "e"), ("Ġ", "d"), ("o", "g")])
    model = gpt2(vocab_size=tokenizer.get_vocab_size(), n_embd=32, n_layer=3, n_head=4, n_positions=64)  # fmt: skip
    draw(model)
    save_pretrained(model, folder, tokenizer)
    return folder


def write_modernbert(folder: Path) -> Path:
    tokenizer = byte_tokenizer(merges=[("Ġ", "c"), ("a", "t")])
    settings = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = from_config(
        "modernbert",
        vocab_size=tokenizer.get_vocab_size(),
        intermediate_size=48,
        architectures=["ModernBertModel"],
        pad_token_id=0,
        **settings,
    )
    draw(model)
    save_pretrained(model, folder, tokenizer)
    return folder


@pytest.fixture(
    params=[write_encoder, write_modernbert, write_decoder], ids=["bert", "modernbert", "gpt2"]
)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return request.param(tmp_path / "model")


def expected_words(folder: Path, text: str, layers: list[int]) -> list[torch.Tensor]:
    """For each word, the states (layers, C) of transformers, averaged over its tokens."""
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer_from_pretrained(str(folder)))
    encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    with torch.no_grad():
        states = model(encoded["input_ids"], output_hidden_states=True).hidden_states
    offsets = encoded["offset_mapping"][0].tolist()
    result, position = [], 0
    for word in text.split():
        start = text.index(word, position)
        position = start + len(word)
        # tokens with a character of the word; a token of the space before it is one of them
        first = max(0, start - (len(text[:start]) - len(text[:start].rstrip())))
        rows = [i for i, (a, b) in enumerate(offsets) if first < b <= position and a < b]
        result.append(torch.stack([states[layer][0, rows].mean(dim=0) for layer in layers]))
    return result


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= 5e-5 * b.abs().max())


def test_words_have_the_mean_of_transformers_states(folder: Path) -> None:
    model, tokenizer = from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(str(folder))
    for layers in ([-1], [0], [1, -1]):
        words, joined = word_embeddings(model, tokenizer, TEXTS, layers=layers)
        _, mean = word_embeddings(model, tokenizer, TEXTS, layers=layers, combine="mean")
        expected = [word for text in TEXTS if text for word in expected_words(folder, text, layers)]
        assert close(joined, torch.stack([word.flatten() for word in expected]))
        assert close(mean, torch.stack([word.mean(dim=0) for word in expected]))
    assert words["word"] == [word for text in TEXTS for word in (text or "").split()]
    assert words["text"].tolist() == [0] * 6 + [1] * 4 + [4]
    assert (words["tokens"] > 0).all()
    _, one = word_embeddings(model, tokenizer, TEXTS, layers=-1)
    assert close(one, joined[:, one.size(1) :])


def test_long_texts_have_windows(folder: Path) -> None:
    model, tokenizer = from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(str(folder))
    long = "the cat sat on the mat and a dog ran " * 30
    words, vectors = word_embeddings(model, tokenizer, [long, TEXTS[0]])
    assert len(words["word"]) == len(vectors) == 30 * 10 + 6
    assert vectors.isfinite().all()
    assert close(vectors[-6:], word_embeddings(model, tokenizer, [TEXTS[0]])[1])
    if not model.encoder_only:  # of a causal model, the first words are the same in any text
        short = word_embeddings(model, tokenizer, ["the cat sat on"])[1]
        assert close(vectors[:4], short)


def test_many_texts_have_the_results_of_single_calls(tmp_path: Path) -> None:
    """Texts are computed in batches of 256; one of them has no words."""
    folder = write_decoder(tmp_path / "model")
    model, tokenizer = from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(str(folder))
    texts = [*["the cat", "a dog ran"] * 128, *[""] * 256, None, "the dog"]
    calls: list[tuple[int, int]] = []
    words, vectors = word_embeddings(
        model, tokenizer, texts, progress=lambda *counts: calls.append(counts)
    )
    assert calls == [(256, 514), (512, 514), (514, 514)]
    assert words["text"].tolist() == [
        n for n, text in enumerate(texts) for _ in (text or "").split()
    ]
    assert words["word"][-2:] == ["the", "dog"]
    for number in (0, 255, 513):
        single = word_embeddings(model, tokenizer, [texts[number]])[1]
        assert torch.equal(vectors[torch.from_numpy(words["text"] == number)], single)
    assert word_embeddings(model, tokenizer, [""] * 300)[1].numel() == 0


def test_a_word_that_shares_its_token_has_no_vector(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(merges=[("a", "Ġ"), ("aĠ", "b")])
    tokenizer.pre_tokenizer = type(tokenizer.pre_tokenizer)(add_prefix_space=False, use_regex=False)
    model = gpt2(vocab_size=tokenizer.get_vocab_size(), n_embd=8, n_layer=1, n_head=2, n_positions=16)  # fmt: skip
    words, vectors = word_embeddings(model.eval(), tokenizer, ["a b c"])
    assert words["word"] == ["a", "b", "c"]
    assert words["tokens"].tolist() == [0, 1, 2]
    assert vectors.isnan().all(dim=1).tolist() == [True, False, False]


def test_wrong_arguments_are_errors(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path)
    model, tokenizer = from_pretrained(folder), tokenizer_from_pretrained(str(folder))
    call: Any = word_embeddings
    with pytest.raises(ValueError, match="layer must be a whole number from 0"):
        call(model, tokenizer, TEXTS, layers=[9])
    with pytest.raises(ValueError, match="at least one layer"):
        call(model, tokenizer, TEXTS, layers=[])
    with pytest.raises(ValueError, match='combine must be "join" or "mean"'):
        call(model, tokenizer, TEXTS, combine="sum")
    with pytest.raises(ValueError, match="texts must be a list of strings"):
        call(model, tokenizer, "a")
    words, vectors = call(model, tokenizer, [None, ""])
    assert not words["word"]
    assert len(vectors) == 0
