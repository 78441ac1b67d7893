"""BART with a sequence classification head, compared with transformers'
BartForSequenceClassification; bart-large-mnli in zero-shot classification.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bart_models import SMALL, draw
from references import assert_close
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, BartForSequenceClassification

import minhub_py
from minhub_py import classify, generate, save_pretrained, train
from minhub_py.export.torchscript import save_torchscript
from minhub_py.loading.inspection import inspect, verify
from minhub_py.models.bart import BartClassifier

NLI = {"id2label": {0: "contradiction", 1: "neutral", 2: "entailment"},
       "label2id": {"contradiction": 0, "neutral": 1, "entailment": 2}}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "nli": NLI,
    "other": {"num_labels": 2, "classifier_dropout": 0.3, "scale_embedding": True,
              "decoder_layers": 1, "problem_type": "multi_label_classification"},
}  # fmt: skip
Pair = tuple[Any, Any, Path]


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """transformers' model, ours, and the folder."""
    folder = tmp_path_factory.mktemp("bart")
    settings = {**SMALL, **CASES[request.param]}
    reference = BartForSequenceClassification(AutoConfig.for_model("bart", **settings)).eval()
    draw(reference)
    reference.save_pretrained(folder)
    return reference, minhub_py.from_pretrained(folder, device="cpu"), folder


def tokenizer_of() -> Tokenizer:
    """A tokenizer of the words w0 to w60, and BART's special tokens."""
    special = {"<s>": 0, "<pad>": 1, "</s>": 2}
    vocab = {f"w{number}": number for number in range(3, 61)} | special
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([*special])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Token IDs (3, 40) and their mask. Each text ends with </s>."""
    ids = torch.randint(10, 61, (3, 40), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, length in enumerate((40, 30, 3)):
        ids[row, length - 1], ids[row, length:], mask[row, length:] = 2, 1, 0
    return ids, mask


@torch.no_grad()
def test_scores_equal_transformers(pair: Pair) -> None:
    reference, model, _ = pair
    assert isinstance(model, BartClassifier)
    ids, mask = rows()
    expected = reference(ids, attention_mask=mask).logits
    assert (expected[0] - expected[1]).abs().max() > 0.01
    assert_close(model(ids, mask), expected)
    assert_close(model(ids[2:, :3]), expected[2:])
    twice = ids[:1].clone()
    twice[0, 20] = 2  # as in a pair of texts
    assert_close(model(twice), reference(twice).logits)
    with pytest.raises(ValueError, match="a text must end with token ID"):
        model(ids[:, :39])


def test_gradients_equal_transformers(pair: Pair) -> None:
    reference, model, _ = pair
    ids, mask = rows()
    labels = torch.tensor([0, 1, 1])
    for scores in (model(ids, mask), reference(ids, attention_mask=mask).logits):
        torch.nn.functional.cross_entropy(scores, labels).backward()
    assert_close(model.head.dense.weight.grad, reference.classification_head.dense.weight.grad)
    assert_close(model.shared.weight.grad, reference.model.shared.weight.grad)


def test_transformers_loads_what_is_saved(pair: Pair, tmp_path: Path) -> None:
    reference, model, folder = pair
    save_pretrained(model, tmp_path)
    again, report = BartForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values())
    tensors = reference.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.state_dict().items())
    for name in ("id2label", "problem_type", "classifier_dropout"):
        assert getattr(again.config, name) == getattr(reference.config, name)
    assert (
        minhub_py.from_pretrained(tmp_path, device="cpu").config.to_hub() == model.config.to_hub()
    )
    assert verify(str(folder))["problems"] == []
    assert inspect(str(folder))["parameters"]["total"] == sum(
        weight.numel() for weight in model.parameters()
    )


@torch.no_grad()
def test_quantized_and_torchscript(pair: Pair, tmp_path: Path) -> None:
    _, model, folder = pair
    ids, _ = rows()
    save_torchscript(model, tmp_path / "model.pt")
    assert_close(torch.jit.load(tmp_path / "model.pt")(ids[:1]), model(ids[:1]))
    quantized = minhub_py.from_pretrained(folder, device="cpu", quantize="int8")
    assert 0 < (quantized(ids[:1]) - model(ids[:1])).abs().max() < 0.2 * model(ids[:1]).abs().max()


@torch.no_grad()
def test_classify_equals_transformers(pair: Pair) -> None:
    reference, model, _ = pair
    tokenizer = tokenizer_of()
    texts = ["w11 w12 w50 w33", "w21", "", None]
    columns = classify(model, tokenizer, texts)
    logits = torch.cat(
        [reference(torch.tensor([tokenizer.encode(text).ids])).logits for text in texts[:3]]
    )
    is_multi_label = model.config.problem_type is not None
    expected = logits.sigmoid() if is_multi_label else logits.softmax(dim=1)
    probs = np.stack([columns[f"prob_{label}"] for label in model.config.labels], axis=1)
    np.testing.assert_allclose(probs[:3], expected.numpy(), atol=1e-5)
    with pytest.raises(
        ValueError, match=r"this BART has a classification head, .* or classify\(\)"
    ):
        generate(model, [[11, 12, 2]], 3)


@torch.no_grad()
def test_zero_shot_classification_equals_transformers(pair: Pair) -> None:
    """A label's probability is that of entailment among all labels, as in transformers'
    pipeline.
    """
    reference, model, _ = pair
    if model.config.labels[-1] != "entailment":
        return
    tokenizer, texts, labels = tokenizer_of(), ["w11 w12 w50", "w21 w22"], ["w30", "w31", "w32"]
    columns = classify(model, tokenizer, texts, labels=labels, hypothesis="w40 {} w41")
    for row, text in enumerate(texts):
        logits = torch.cat(
            [
                reference(torch.tensor([tokenizer.encode(text, f"w40 {label} w41").ids])).logits
                for label in labels
            ]
        )
        expected = logits[:, 2].softmax(dim=0)
        actual = [columns[f"prob_{label}"][row] for label in labels]
        np.testing.assert_allclose(actual, expected.numpy(), atol=1e-5)


def test_training_learns_labels(tmp_path: Path) -> None:
    """From a BART without a classification head. The label follows from the last word."""
    torch.manual_seed(0)
    model = minhub_py.from_config("bart", **SMALL, dropout=0.0)
    tokenizer = tokenizer_of()
    save_pretrained(model, tmp_path / "bart", tokenizer)
    examples = [
        (f"w{10 + i // 2 % 20} " * (1 + i // 2 % 5) + f"w{40 + i % 2}", "ab"[i % 2])
        for i in range(100)
    ]
    table = tmp_path / "labels.csv"
    table.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in examples))
    train(table, tmp_path / "run", start=str(tmp_path / "bart"), objective="labels", steps=60,
          learning_rate=0.005, progress=False)  # fmt: skip
    trained = minhub_py.from_pretrained(tmp_path / "run", device="cpu")
    assert classify(trained, tokenizer, ["w12 w40", "w12 w12 w41"])["label"] == ["a", "b"]
