"""T5's encoder without a decoder, compared with transformers' T5EncoderModel and
T5ForTokenClassification.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from guarantees import ENCODER_RUNNER, assert_same
from random_weights import draw
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, T5EncoderModel, T5ForTokenClassification

import minhub_py
from minhub_py import classify_tokens, embed, generate, save_pretrained, train
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.encoder_runner import TorchEncoder, encoder_runner
from minhub_py.loading.inspection import inspect, verify
from minhub_py.models.t5 import T5Encoder
from minhub_py.serve.loading import task_at

LABELS = {
    "id2label": {0: "O", 1: "B-PER", 2: "I-PER"},
    "label2id": {"O": 0, "B-PER": 1, "I-PER": 2},
}
# Texts are longer than the largest distance with a bucket of its own.
SMALL = {
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 44,
    "num_layers": 3,
    "num_heads": 4,
    **LABELS,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
CASES: dict[str, dict[str, Any]] = {
    "t5": {},
    "gated": {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "classifier_dropout": 0.3,
    },
}
CLASSES = (T5EncoderModel, T5ForTokenClassification)
Pair = tuple[Any, Any, Path]


@pytest.fixture(scope="module", params=[(name, cls) for name in CASES for cls in CLASSES], ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """transformers' model, ours, and the folder."""
    name, cls = request.param
    folder = tmp_path_factory.mktemp("t5")
    reference = cls(AutoConfig.for_model("t5", **SMALL, **CASES[name])).eval()
    draw(reference)
    reference.save_pretrained(folder)
    return reference, minhub_py.from_pretrained(folder, device="cpu"), folder


def rows_of() -> tuple[torch.Tensor, torch.Tensor]:
    """Token IDs (3, 40) and their mask."""
    ids = torch.randint(10, 61, (3, 40), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row, length in enumerate((40, 30, 3)):
        ids[row, length:], mask[row, length:] = 0, 0
    return ids, mask


def output_of(reference: Any, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    output = reference(ids, attention_mask=mask)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 5e-5 * expected.abs().max()


@torch.no_grad()
def test_results_equal_transformers(pair: Pair) -> None:
    """Without padding, and with padding at the end and at the beginning."""
    reference, model, _ = pair
    assert isinstance(model, T5Encoder)
    ids, mask = rows_of()
    assert_close(model(ids), output_of(reference, ids))
    for tokens, kept in ((ids, mask), (ids.flip(1), mask.flip(1))):
        expected = output_of(reference, tokens, kept)
        assert_close(model(tokens, kept)[kept.bool()], expected[kept.bool()])
        assert (output_of(reference, tokens)[2] - expected[2]).abs().max() > 0.01
    assert (output_of(reference, ids)[:, 1:] - output_of(reference, ids[:, 1:])).abs().max() > 0.01


def test_gradients_equal_transformers(pair: Pair) -> None:
    reference, model, _ = pair
    ids, mask = rows_of()
    for output in (model(ids, mask), output_of(reference, ids, mask)):
        torch.nn.functional.cross_entropy(
            output[:, :3].reshape(9, -1), torch.arange(9) % 3
        ).backward()
    body = getattr(reference, "transformer", reference)
    assert_close(model.shared.weight.grad, body.shared.weight.grad)
    bias = body.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    assert_close(model.encoder.relative_bias.weight.grad, bias.grad)


def test_transformers_loads_what_is_saved(pair: Pair, tmp_path: Path) -> None:
    reference, model, folder = pair
    save_pretrained(model, tmp_path)
    again, report = type(reference).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    tensors = reference.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.state_dict().items())
    if model.head is not None:
        assert again.config.id2label == reference.config.id2label
    assert (
        minhub_py.from_pretrained(tmp_path, device="cpu").config.to_hub() == model.config.to_hub()
    )
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [
        type(reference).__name__
    ]
    assert verify(str(folder))["problems"] == []
    assert inspect(str(folder))["parameters"]["total"] == sum(
        weight.numel() for weight in model.parameters()
    )


def test_texts_do_not_change_each_other(pair: Pair) -> None:
    reference, model, _ = pair
    ids, mask = rows_of()
    texts = [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]
    runner = encoder_runner(model)
    assert type(runner) is ENCODER_RUNNER
    result = runner.hidden_states(texts)
    assert_close(result, TorchEncoder(model).hidden_states(texts))
    if model.head is None:
        with torch.no_grad():
            assert_close(result, output_of(reference, ids, mask)[mask.bool()])
    assert_same(torch.cat([runner.hidden_states([text]) for text in texts]), result)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantized_and_torchscript(pair: Pair, tmp_path: Path, kind: str) -> None:
    _, model, folder = pair
    ids, _ = rows_of()
    save_torchscript(model, tmp_path / "model.pt")
    assert_close(torch.jit.load(tmp_path / "model.pt")(ids[:1]), model(ids[:1]))
    quantized = minhub_py.from_pretrained(folder, device="cpu", quantize=kind)
    texts = [ids[0].tolist()]
    expected = TorchEncoder(model).hidden_states(texts)
    result = encoder_runner(quantized).hidden_states(texts)
    # Between the runners the sums of rounded activations differ by a unit of the rounding.
    other = TorchEncoder(quantized).hidden_states(texts)
    assert (result - other).abs().max() <= 5e-3 * other.abs().max()
    error = ((result - expected).square().mean() / expected.square().mean()).sqrt()
    assert 0 < error < (0.2 if kind == "int8" else 0.8)


@torch.no_grad()
def test_calls_use_the_encoder(pair: Pair, tmp_path: Path) -> None:
    reference, model, folder = pair
    vocab = {f"w{number}": number for number in range(61)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = ["w11 w12 w50 w33", "w21"]
    idx = [torch.tensor([tokenizer.encode(text).ids]) for text in texts]
    body = getattr(reference, "transformer", reference)
    mean = torch.cat([body(ids).last_hidden_state.mean(dim=1) for ids in idx])
    assert_close(embed(model, tokenizer, texts), mean)
    assert task_at(folder) == "embedding"
    with pytest.raises(
        ValueError, match="T5 is a text encoder, which does not predict the next token: use embed"
    ):
        generate(model, [[11, 12]], 3)
    if model.head is not None:
        columns = classify_tokens(model, tokenizer, texts, aggregation="none", ignore=())
        probs = torch.cat([reference(ids).logits[0].softmax(dim=1) for ids in idx])
        assert columns["label"] == [LABELS["id2label"][int(label)] for label in probs.argmax(dim=1)]
        np.testing.assert_allclose(columns["prob"], probs.amax(dim=1).numpy(), atol=1e-5)
    save_pretrained(model, tmp_path / "t5", tokenizer)
    table = tmp_path / "labels.csv"
    table.write_text("text,label\n" + "w1,a\nw2,b\n" * 10)
    with pytest.raises(
        ValueError, match="a sequence classification head reads the decoder, which this model lacks"
    ):
        train(
            table,
            tmp_path / "run",
            start=str(tmp_path / "t5"),
            objective="labels",
            steps=1,
            progress=False,
        )


@torch.no_grad()
def test_settings_of_published_encoders(pair: Pair, tmp_path: Path) -> None:
    """Also with is_encoder_decoder from the T5 that the encoder was taken from. A missing head is
    refused by name.
    """
    reference, model, folder = pair
    settings = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(settings | {"is_encoder_decoder": True}))
    ids, _ = rows_of()
    again = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert torch.equal(again(ids), model(ids))
    assert again.config == model.config
    if model.head is not None:
        save_file(
            {n: t for n, t in tensors.items() if "classifier" not in n},
            tmp_path / "model.safetensors",
        )
        message = (
            r"no weights of the head of T5ForTokenClassification.* set architectures to"
            r" \['T5EncoderModel'\]"
        )
        with pytest.raises(ValueError, match=message):
            minhub_py.from_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(
            json.dumps(settings | {"architectures": ["T5EncoderModel"]})
        )
        headless = minhub_py.from_pretrained(tmp_path, device="cpu")
        assert_close(headless(ids), reference.transformer(ids).last_hidden_state)
