"""Marian with a vocabulary for each language: texts are read in one, and written in the other.

transformers' model and tokenizer return the expected texts.
"""

import copy
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from bridge_calls import run
from commands import succeeded
from job_runs import read_csv, write_csv
from served_models import connected, served, user
from transformers import MarianTokenizer
from translation_files import save_two_vocabularies

from minhub_py import (
    beam_search,
    complete,
    decode_stream,
    from_pretrained,
    generate,
    score,
    stream,
    tokenizer_from_pretrained,
    translate,
)
from minhub_py.checkpoints.tokenizers.paired import source_tokenizer, target_tokenizer
from r_bridge.arguments import scalar
from r_bridge.service import Service

TEXTS = ["The cat sat on the mat.", "Good morning to all of you"]
NEW = 11


class Pair:
    """The model of a folder, and transformers' texts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.reference = folder, save_two_vocabularies(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.peer: Any = MarianTokenizer.from_pretrained(
                folder, target_vocab_file=str(folder / "target_vocab.json")
            )
        self.model = from_pretrained(folder, device="cpu")
        self.tokenizer = tokenizer_from_pretrained(str(folder))
        self.size = self.model.output_size

    def ids(self, text: str, beams: int) -> list[int]:
        output = self.reference.generate(
            **self.peer([text], return_tensors="pt"), num_beams=beams, max_new_tokens=NEW
        )
        return output[0, 1:].tolist()

    def text(self, text: str, beams: int = 1) -> str:
        return self.peer.decode(self.ids(text, beams), skip_special_tokens=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


def test_generated_tokens_are_decoded_with_the_target_vocabulary(pair: Pair) -> None:
    tokenizer, model = pair.tokenizer, pair.model
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert ids == pair.peer(text).input_ids
        assert source_tokenizer(tokenizer).decode(ids) != tokenizer.decode(ids)
        expected = pair.text(text)
        [new] = generate(model, [ids], NEW, temperature=0)
        assert new == pair.ids(text, 1)
        assert tokenizer.decode(new) == expected
        streamed = stream(model, ids, NEW, temperature=0)
        assert "".join(decode_stream(tokenizer, streamed)) == expected
        assert complete(model, tokenizer, text, max_new_tokens=NEW, temperature=0) == expected
        # stop strings are found in the target's text
        stop = expected[3:5]
        [stopped] = generate(model, [ids], NEW, temperature=0, stop=stop, tokenizer=tokenizer)
        assert stop in tokenizer.decode(stopped)
        assert stop not in tokenizer.decode(stopped[:-1])
    assert copy.deepcopy(tokenizer).decode(new) == tokenizer.decode(new)


def test_beams_translations_and_jobs(pair: Pair, tmp_path: Path) -> None:
    expected = [pair.text(text, 3) for text in TEXTS]
    assert translate(pair.model, pair.tokenizer, TEXTS) == expected
    ids = [pair.tokenizer.encode(text).ids for text in TEXTS]
    found = beam_search(pair.model, ids, NEW, beams=3)
    assert [pair.tokenizer.decode(each[0].ids) for each in found] == expected
    file, out = write_csv(tmp_path / "in.csv", TEXTS), tmp_path / "out.csv"
    succeeded("translate", pair.folder, file, "--out", out)
    assert [row["translation"] for row in read_csv(out)] == expected
    again = tmp_path / "again.csv"
    succeeded("generate", pair.folder, file, "--out", again, "--temperature", 0, "-n", NEW)
    assert [row["generated"] for row in read_csv(again)] == [pair.text(text) for text in TEXTS]
    shown = succeeded("generate", pair.folder, TEXTS[0], "--temperature", 0, "-n", NEW).stdout
    assert shown.rstrip("\n") == pair.text(TEXTS[0])


def expected_logprobs(pair: Pair, text: str, target: str) -> list[float]:
    labels = torch.tensor([pair.peer(text_target=target).input_ids])
    with torch.inference_mode():
        inputs = pair.peer([text], return_tensors="pt")
        logits = pair.reference(**inputs, labels=labels).logits
    return logits.log_softmax(-1)[0].gather(1, labels[0].unsqueeze(1)).squeeze(1).tolist()


def test_scores_of_targets(pair: Pair, tmp_path: Path) -> None:
    """Targets are texts of the target language, in jobs and in R."""
    expected = [expected_logprobs(pair, text, TEXTS[1]) for text in TEXTS]
    ids = target_tokenizer(pair.tokenizer).encode(TEXTS[1]).ids
    prompts = [pair.tokenizer.encode(text).ids for text in TEXTS]
    for found, values in zip(score(pair.model, prompts, targets=[ids] * 2), expected, strict=True):
        assert found.tolist() == pytest.approx(values, abs=1e-4)
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    file.write_text("text,answer\n" + "".join(f'"{text}","{TEXTS[1]}"\n' for text in TEXTS))
    succeeded("score", pair.folder, file, "--target", "answer", "--out", out)
    nats = [-sum(values) for values in expected]
    assert [float(row["nats"]) for row in read_csv(out)] == pytest.approx(nats, abs=1e-3)
    service, path = Service(), str(pair.folder)
    settings = {"family": None, "dtype": "auto", "quantize": None, "token": None}
    settings |= {"identifier": path, "revision": "main", "device": "cpu", "local_files_only": True}
    kind, about = run(service, "from_pretrained", **settings)
    assert kind == "done", about
    model = {"model": scalar(about["number"], int), "tokenizer": None}
    frame = run(service, "score", **model, texts=TEXTS, targets=[TEXTS[1]] * 2)[1]
    assert frame["logprob"] == pytest.approx([*chain(*expected)], abs=1e-4)
    assert "".join(frame["token"][: len(ids)]) == "".join(
        pair.tokenizer.decode([id], skip_special_tokens=False) for id in ids
    )


def test_requests_read_one_vocabulary_and_write_the_other(pair: Pair) -> None:
    with connected(served("pair", pair.folder, max_length=64)) as http:

        def reply(path: str, **fields: Any) -> Any:
            response = http.post(path, json={"model": "pair", **fields})
            return response.json() if response.status_code == 200 else response.json()["error"]

        for text in TEXTS:
            expected = {beams: pair.text(text, beams) for beams in (1, 3)}
            for fields in ({}, {"beams": 3}):
                fields |= {"max_tokens": NEW}
                found = reply("/v1/completions", prompt=text, **fields)
                assert found["choices"][0]["text"] == expected[fields.get("beams", 1)]
                found = reply("/v1/chat/completions", messages=user(text), **fields)
                message = found["choices"][0]["message"]["content"]
                assert message == expected[fields.get("beams", 1)]
        # token IDs of prompts are the source's, all others the target's
        ids = reply("/tokenize", prompt=TEXTS[0], return_token_strs=True)
        assert "".join(ids["token_strs"]) == f" {TEXTS[0]}</s>"
        last = pair.model.config.vocab_size - 1
        prompt = [*ids["tokens"][:-1], last, 0]
        logprobs = reply("/v1/completions", prompt=prompt, logprobs=2, max_tokens=3, temperature=0)
        assert len(logprobs["choices"][0]["logprobs"]["tokens"]) == 2  # then </s>
        for field, value in {
            "logit_bias": {str(pair.size): 1},
            "banned_tokens": [pair.size],
            "allowed_token_ids": [pair.size],
            "stop_token_ids": [pair.size],
        }.items():
            message = reply("/v1/completions", prompt=TEXTS[0], **{field: value})["message"]
            assert str(pair.size - 1) in message
        banned = pair.ids(TEXTS[0], 1)[0]
        for beams in ({}, {"beams": 2}):
            fields = {"prompt": TEXTS[0], "max_tokens": NEW, "banned_tokens": [banned]} | beams
            text = reply("/v1/completions", **fields)["choices"][0]["text"]
            assert pair.peer.decode([banned]) not in text


def test_token_ids_have_the_range_of_their_side(pair: Pair) -> None:
    model, size = pair.model, pair.size
    largest = model.config.vocab_size - 1
    generate(model, [[largest, 0]], 2, logit_bias={size - 1: 1.0})
    beam_search(model, [[largest, 0]], 2, logit_bias={size - 1: 1.0})
    for call in (generate, beam_search, stream):
        prompt: Any = [largest, 0] if call is stream else [[largest, 0]]
        with pytest.raises(ValueError, match=f"token {size}, but the model's token IDs"):
            call(model, prompt, 2, logit_bias={size: 1.0})
    with pytest.raises(ValueError, match=f"targets: token IDs .* between 0 and {size - 1}"):
        score(model, [[largest, 0]], targets=[[size]])
