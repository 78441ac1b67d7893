"""T5 with a sequence classification head, compared with transformers' T5ForSequenceClassification."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_weights import draw
from references import assert_close
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, T5ForSequenceClassification

import minhub_py
from minhub_py import activations, classify, generate, save_pretrained, train
from minhub_py.export.torchscript import save_torchscript
from minhub_py.loading.inspection import inspect, verify
from minhub_py.models.t5 import T5Classifier

SMALL = {
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 44,
    "num_layers": 2,
    "num_heads": 4,
    "num_labels": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
CASES: dict[str, dict[str, Any]] = {
    "t5": {},
    "gated": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 1,
              "classifier_dropout": 0.3, "problem_type": "multi_label_classification"},
    "ids": {"decoder_start_token_id": 7, "eos_token_id": 9, "pad_token_id": 3,
            "id2label": {0: "no", 1: "yes", 2: "perhaps"}, "label2id": {"no": 0, "yes": 1, "perhaps": 2}},
}  # fmt: skip
Pair = tuple[Any, Any, Path]


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """transformers' model, ours, and the folder."""
    folder = tmp_path_factory.mktemp("t5")
    settings = {"decoder_start_token_id": 0, **SMALL, **CASES[request.param]}
    reference = T5ForSequenceClassification(AutoConfig.for_model("t5", **settings)).eval()
    draw(reference)
    reference.save_pretrained(folder)
    return reference, minhub_py.from_pretrained(folder, device="cpu"), folder


def rows_of(config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Token IDs (3, 40) and their mask. Each text ends with eos_token_id."""
    ids = torch.randint(10, 61, (3, 40), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, length in enumerate((40, 30, 3)):
        ids[row, length - 1], ids[row, length:], mask[row, length:] = (
            config.eos_token_id,
            config.pad_token_id,
            0,
        )
    return ids, mask


def tokenizer_of(config: Any) -> Tokenizer:
    """A tokenizer of the words w0 to w60, which appends </s> as T5's do."""
    end = config.eos_token_id
    vocab = {f"w{number}": number for number in range(61)} | {"</s>": end}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", end)]
    )
    return tokenizer


@torch.no_grad()
def test_scores_equal_transformers(pair: Pair) -> None:
    """With a mask, the padding has no effect; without, the encoder attends to it."""
    reference, model, _ = pair
    assert isinstance(model, T5Classifier)
    ids, mask = rows_of(model.config)
    expected = reference(ids, attention_mask=mask).logits
    assert (expected[0] - expected[1]).abs().max() > 0.01
    assert_close(model(ids, mask), expected)
    assert_close(model(ids), reference(ids).logits)
    assert_close(model(ids[2:, :3]), expected[2:])
    twice = ids[:1].clone()
    twice[0, 20] = model.config.eos_token_id  # as in a pair of texts
    assert_close(model(twice), reference(twice).logits)
    with pytest.raises(ValueError, match="a text must end with token ID"):
        model(ids[:, :39])


def test_gradients_equal_transformers(pair: Pair) -> None:
    reference, model, _ = pair
    ids, mask = rows_of(model.config)
    for scores in (model(ids, mask), reference(ids, attention_mask=mask).logits):
        torch.nn.functional.cross_entropy(scores, torch.arange(3)).backward()
    assert_close(model.head.dense.weight.grad, reference.classification_head.dense.weight.grad)
    assert_close(model.shared.weight.grad, reference.transformer.shared.weight.grad)


def test_transformers_loads_what_is_saved(pair: Pair, tmp_path: Path) -> None:
    reference, model, folder = pair
    save_pretrained(model, tmp_path)
    again, report = T5ForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
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
    ids, _ = rows_of(model.config)
    save_torchscript(model, tmp_path / "model.pt")
    assert_close(torch.jit.load(tmp_path / "model.pt")(ids[:1]), model(ids[:1]))
    quantized = minhub_py.from_pretrained(folder, device="cpu", quantize="int8")
    assert 0 < (quantized(ids[:1]) - model(ids[:1])).abs().max() < 0.2 * model(ids[:1]).abs().max()


@torch.no_grad()
def test_activations_of_encoder_and_decoder_equal_transformers(pair: Pair) -> None:
    reference, model, _ = pair
    ids = rows_of(model.config)[0][:1]
    outputs = reference(ids, output_hidden_states=True)
    for point, states in (
        ("encoder.final", outputs.encoder_last_hidden_state),
        ("final", outputs.decoder_hidden_states[-1]),
    ):
        assert_close(activations(model, None, ids[0].tolist(), point)[point], states[0])


@torch.no_grad()
def test_classify_equals_transformers(pair: Pair) -> None:
    reference, model, _ = pair
    tokenizer = tokenizer_of(model.config)
    texts = ["w11 w12 w50 w33", "w21", "", None]
    columns = classify(model, tokenizer, texts)
    logits = torch.cat(
        [reference(torch.tensor([tokenizer.encode(text).ids])).logits for text in texts[:3]]
    )
    is_multi_label = model.config.problem_type is not None
    expected = logits.sigmoid() if is_multi_label else logits.softmax(dim=1)
    probs = np.stack([columns[f"prob_{label}"] for label in model.config.labels], axis=1)
    np.testing.assert_allclose(probs[:3], expected.numpy(), atol=1e-5)
    assert columns["label"] == [model.config.labels[i] for i in expected.argmax(dim=1)] + [None]
    tokenizer.post_processor = None
    with pytest.raises(ValueError, match="use the tokenizer of this model"):
        classify(model, tokenizer, texts)
    with pytest.raises(ValueError, match=r"this T5 has a classification head, .* or classify\(\)"):
        generate(model, [[11, 12, model.config.eos_token_id]], 3)


@pytest.mark.parametrize("lora", [{}, {"lora": 4}], ids=["all-weights", "lora"])
def test_training_learns_labels(tmp_path: Path, lora: dict[str, int]) -> None:
    """From a T5 without a classification head. The label follows from the last word."""
    torch.manual_seed(0)
    model = minhub_py.from_config("t5", **SMALL)
    tokenizer = tokenizer_of(model.config)
    save_pretrained(model, tmp_path / "t5", tokenizer)
    rows = [
        (f"w{10 + i // 2 % 20} " * (1 + i // 2 % 5) + f"w{40 + i % 2}", "ab"[i % 2])
        for i in range(200)
    ]
    table = tmp_path / "labels.csv"
    table.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    settings = {
        "objective": "labels",
        "steps": 60,
        "learning_rate": 0.01,
        "progress": False,
        **lora,
    }
    train(table, tmp_path / "run", start=str(tmp_path / "t5"), **settings)
    trained = minhub_py.from_pretrained(tmp_path / "run", device="cpu")
    assert classify(trained, tokenizer, ["w12 w40", "w12 w12 w41"])["label"] == ["a", "b"]
