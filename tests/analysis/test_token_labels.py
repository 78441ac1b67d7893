"""Token classification compared with transformers' pipeline on random checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoders import write_classifier, write_encoder
from paths import TEXT
from random_weights import draw
from tokenizers import Tokenizer, processors
from transformers import AutoModelForTokenClassification as AutoModel
from transformers import BertTokenizer, PreTrainedTokenizerFast, TokenClassificationPipeline

import minhub_py
from minhub_py import classify_tokens, from_pretrained, save_pretrained, tokenizer_from_pretrained
from minhub_py.analysis.token_labels import AGGREGATIONS
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe

LABELS = {"0": "O", "1": "B-PER", "2": "I-PER", "3": "B-LOC", "4": "I-LOC", "5": "MISC"}
TEXTS = [
    "The cat sat on the mat, zebra!",
    "a dog ran",
    "Weather ☃ is  lovely today-sports film 42",
    "Xyz politics x-ray, the wheels fell off",
    " ",
]


def save_with_different_labels(model: Any, folder: Path, tokenizer: Tokenizer) -> None:
    """Save a model after its head is changed, so that the labels of TEXTS differ."""
    draw(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        x = torch.cat(
            [model.hidden_states(torch.tensor([tokenizer.encode(text).ids]))[0] for text in TEXTS]
        )
        weight = torch.randn(model.head.out.weight.shape, generator=generator) / x.std()
        model.head.out.weight.copy_(weight)
        model.head.out.bias.copy_(-weight @ x.mean(dim=0))
    save_pretrained(model, folder, tokenizer)


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """Our model and tokenizer, and transformers' pipeline."""
    folder = write_encoder(
        tmp_path_factory.mktemp("tokens"), "BertForTokenClassification", id2label=LABELS
    )
    save_with_different_labels(
        from_pretrained(folder, device="cpu"), folder, tokenizer_from_pretrained(folder)
    )
    return (
        from_pretrained(folder, device="cpu"),
        tokenizer_from_pretrained(folder),
        TokenClassificationPipeline(
            model=AutoModel.from_pretrained(folder).eval(),
            tokenizer=BertTokenizer.from_pretrained(folder),
            device="cpu",
        ),
    )


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """RoBERTa, whose tokens have no prefix inside of words."""
    folder = tmp_path_factory.mktemp("tokens")
    tokenizer = train_byte_level_bpe([TEXT.read_text(encoding="utf-8")], 400)
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>", "<unk>", "<mask>"])
    ends = [(token, tokenizer.token_to_id(token)) for token in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(
        *ends, trim_offsets=True, add_prefix_space=False
    )
    model = minhub_py.from_config(
        "roberta",
        vocab_size=tokenizer.get_vocab_size(),
        architectures=["RobertaForTokenClassification"],
        id2label=LABELS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=44,
        max_position_embeddings=80,
        pad_token_id=tokenizer.token_to_id("<pad>") % 2,
        type_vocab_size=1,
    )
    save_with_different_labels(model.eval(), folder, tokenizer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")
    pipeline = TokenClassificationPipeline(
        model=AutoModel.from_pretrained(folder).eval(), tokenizer=fast, device="cpu"
    )
    return from_pretrained(folder, device="cpu"), tokenizer_from_pretrained(folder), pipeline


def rows_of(columns: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(columns[name] for name in ("text", "start", "end", "label")), strict=True))


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kind", ["wordpiece", "byte_level"])
def test_entities_equal_those_of_transformers(
    kind: str, aggregation: str, request: pytest.FixtureRequest
) -> None:
    model, tokenizer, pipeline = request.getfixturevalue(kind)
    columns = classify_tokens(model, tokenizer, TEXTS, aggregation=aggregation)
    expected = [
        (number, row)
        for number, text in enumerate(TEXTS)
        for row in pipeline(text, aggregation_strategy=aggregation)
    ]
    name = "entity" if aggregation == "none" else "entity_group"
    assert len(expected) > 5
    assert rows_of(columns) == [
        (number, row["start"], row["end"], row[name]) for number, row in expected
    ]
    assert columns["prob"] == pytest.approx(
        np.array([row["score"] for _, row in expected]), abs=1e-5
    )
    assert columns["word"] == [TEXTS[number][row["start"] : row["end"]] for number, row in expected]


def test_the_texts_have_all_labels_and_each_aggregation_differs(wordpiece: Any) -> None:
    model, tokenizer, _ = wordpiece
    labels = {
        name: classify_tokens(model, tokenizer, TEXTS, aggregation=name)["label"]
        for name in AGGREGATIONS
    }
    assert {*classify_tokens(model, tokenizer, TEXTS, aggregation="none", ignore=())["label"]} == {
        *LABELS.values()
    }
    assert len({tuple(row) for row in labels.values()}) == len(AGGREGATIONS)


def test_missing_and_long_texts(wordpiece: Any) -> None:
    model, tokenizer, _ = wordpiece
    long = "the cat " * 100
    columns = classify_tokens(
        model, tokenizer, [None, TEXTS[1], "", long], aggregation="none", ignore=()
    )
    counts = np.bincount(columns["text"], minlength=4).tolist()
    assert counts == [0, 3, 0, 200]
    alone = classify_tokens(model, tokenizer, [TEXTS[1]], aggregation="none", ignore=())
    assert columns["label"][:3] == alone["label"]
    bare = Tokenizer.from_str(tokenizer.to_str())
    bare.post_processor = processors.ByteLevel()
    assert classify_tokens(model, bare, [" ", "a dog"], aggregation="none", ignore=())[
        "text"
    ].tolist() == [1, 1]
    assert {
        name: len(values) for name, values in classify_tokens(model, tokenizer, []).items()
    } == dict.fromkeys(("text", "word", "start", "end", "label", "prob"), 0)


@torch.no_grad()
@pytest.mark.parametrize("stride", [None, 0, 7, 61])
@pytest.mark.parametrize("kind", ["wordpiece", "byte_level"])
def test_tokens_of_long_texts_have_the_labels_of_the_window_with_most_context(
    kind: str, stride: int | None, request: pytest.FixtureRequest
) -> None:
    """Each window by transformers; its context on the shorter side decides, and an end of the text
    is no limit.
    """
    model, tokenizer, pipeline = request.getfixturevalue(kind)
    text = " ".join(TEXTS[:4]) * 5
    encoding, room = (
        tokenizer.encode(text, add_special_tokens=False),
        model.config.context_length - 2,
    )
    count, step = len(encoding.ids), room - (room // 2 if stride is None else stride)
    first, last = tokenizer.encode("a").ids[0], tokenizer.encode("a").ids[-1]
    # context -> probabilities in its windows
    contexts: list[dict[float, list[float]]] = [{} for _ in range(count)]
    for start in range(0, count, step):
        ids = encoding.ids[start : start + room]
        scores = pipeline.model(torch.tensor([[first, *ids, last]])).logits[0, 1:-1].softmax(dim=1)
        for i, row in enumerate(scores):
            left, right = (
                i if start else float("inf"),
                len(ids) - 1 - i if start + room < count else float("inf"),
            )
            contexts[start + i].setdefault(min(left, right), []).append(float(row.max()))
        if start + room >= count:
            break
    assert count > 2 * room
    columns = classify_tokens(
        model, tokenizer, [text], aggregation="none", ignore=(), stride=stride
    )
    assert len(columns["prob"]) == count
    for prob, windows in zip(columns["prob"], contexts, strict=True):
        assert any(abs(prob - expected) < 1e-5 for expected in windows[max(windows)])
    assert columns["start"].tolist() == [start for start, _ in encoding.offsets]


def test_a_stride_of_a_window_is_refused(wordpiece: Any) -> None:
    model, tokenizer, _ = wordpiece
    with pytest.raises(
        ValueError, match="stride must be less than 62, the number of tokens of a window, not 62"
    ):
        classify_tokens(model, tokenizer, ["a"], stride=62)


def test_wrong_calls_name_the_solution(wordpiece: Any, tmp_path: Path) -> None:
    model, tokenizer, _ = wordpiece
    with pytest.raises(
        ValueError, match="aggregation must be one of none, simple, first, average, max, not 'best'"
    ):
        classify_tokens(model, tokenizer, ["a"], aggregation="best")
    other = from_pretrained(write_classifier(tmp_path), device="cpu")
    with pytest.raises(ValueError, match=r"architecture …ForTokenClassification"):
        classify_tokens(other, tokenizer, ["a"])
    with pytest.raises(ValueError, match=r"use classify_tokens\(\)"):
        minhub_py.classify(model, tokenizer, ["a"])
