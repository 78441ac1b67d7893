"""Log-probabilities identify tokens: their bytes, and their offsets in the text."""

import json

import pytest
from served_models import user
from tokenizers import Tokenizer, decoders, models

from minhub_py.checkpoints.tokenizers.token_bytes import token_bytes, token_label
from minhub_py.serve.engine import token_text
from minhub_py.serve.models import ServedModel

TEXT = "Ein schöner Tag – für «alle» 😀"


def chunks_of(http, body: dict) -> list[dict]:
    *events, done, _ = http.post("/v1/completions", json={**body, "stream": True}).text.split(
        "\n\n"
    )
    assert done == "data: [DONE]"
    return [json.loads(event[6:])["choices"][0] for event in events]


def check_offsets(choice: dict) -> None:
    """Each token that is a complete text begins at its offset."""
    text, logprobs = choice["text"], choice["logprobs"]
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets)
    assert len(offsets) == len(logprobs["tokens"])
    for token, start in zip(logprobs["tokens"], offsets, strict=True):
        shown = (
            token.startswith("bytes:")
            or token == "<|endoftext|>"
            or text[start : start + len(token)] == token
        )
        assert shown, (token, start, text)


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("special", [False, True])
def test_offsets_index_the_text_of_complete_and_streamed_completions(
    http, main_model: ServedModel, echo: bool, special: bool
) -> None:
    """Also if the prompt has special tokens, which the echo does not contain, and characters of
    several tokens.
    """
    ids = main_model.tokenizer.encode(TEXT).ids
    [end] = main_model.end_ids
    prompt = [end, *ids, end, *ids] if special else ids
    body = {
        "prompt": prompt,
        "max_tokens": 40,
        "ignore_eos": True,
        "logprobs": 2,
        "seed": 3,
        "echo": echo,
    }
    [choice] = http.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"].startswith(TEXT) is echo
    check_offsets(choice)
    assert len(choice["logprobs"]["tokens"]) == 40 + echo * len(prompt)
    assert max(choice["logprobs"]["text_offset"]) > len(choice["text"]) // 2
    chunks = chunks_of(http, body)
    assert len(chunks) > 10
    offsets = [offset for chunk in chunks for offset in chunk["logprobs"]["text_offset"]]
    assert offsets == choice["logprobs"]["text_offset"]


def test_the_bytes_of_the_tokens_are_the_text(http, main_model: ServedModel) -> None:
    """Many tokens of this reply are parts of characters."""
    body = {
        "messages": user("Hi"),
        "max_tokens": 60,
        "logprobs": True,
        "top_logprobs": 20,
        "seed": 4,
        "temperature": 2,
        "logit_bias": {str(main_model.tokenizer.token_to_id(token)): 20 for token in "ðÃâĢ"},
    }
    [choice] = http.post("/v1/chat/completions", json=body).json()["choices"]
    tokens = choice["logprobs"]["content"]
    data = b"".join(bytes(token["bytes"]) for token in tokens)
    assert len(choice["message"]["content"]) > 30
    assert data.decode(errors="replace").startswith(choice["message"]["content"])
    assert any(token["token"].startswith("bytes:") for token in tokens)
    for token in tokens:
        assert token["top_logprobs"]
        labels = [top["token"] for top in token["top_logprobs"]]
        assert len(set(labels)) == len(labels) == 20
        for top in (token, *token["top_logprobs"]):
            assert top["token"] == token_label(bytes(top["bytes"]))


def test_most_likely_tokens_have_different_keys_in_completions(
    http, main_model: ServedModel
) -> None:
    ids = [main_model.tokenizer.token_to_id(token) for token in "ðŁĺĢ"]
    assert main_model.tokenizer.decode(ids) == "😀"
    body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 20}
    [choice] = http.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"] == "😀"
    assert choice["logprobs"]["tokens"] == [
        "bytes:\\xf0",
        "bytes:\\x9f",
        "bytes:\\x98",
        "bytes:\\x80",
    ]
    assert choice["logprobs"]["text_offset"] == [0] * 4
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [20] * 3


def test_tokens_of_bytes_have_the_bytes_of_their_name() -> None:
    """SentencePiece with byte fallback, as in Llama 2 and Gemma."""
    names = ["<unk>", "▁a", "<0xE2>", "<0x41>", "�", "é", "<0x80>"]
    tokenizer = Tokenizer(
        models.BPE({name: id for id, name in enumerate(names)}, [], byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    found = [token_bytes(tokenizer, id, token_text(tokenizer, id)) for id in range(1, len(names))]
    assert found == [b" a", b"\xe2", b"A", "�".encode(), "é".encode(), b"\x80"]
    assert [token_label(data) for data in found] == [
        " a",
        "bytes:\\xe2",
        "A",
        "�",
        "é",
        "bytes:\\x80",
    ]
