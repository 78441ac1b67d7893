"""Decoders with a sequence classification head, such as Qwen3 rerankers, compared with
transformers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from guarantees import assert_same
from paths import TEXT
from random_weights import draw
from references import CASES, FIRST, assert_close
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import AutoModelForSequenceClassification as AutoModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

import minhub_py
from minhub_py import classify, embed, generate, rerank, save_pretrained
from minhub_py.checkpoints.tokenizers.tokenizer import train_byte_level_bpe
from minhub_py.export.torchscript import save_torchscript
from minhub_py.inference.encoder_runner import TorchEncoder, encoder_runner
from minhub_py.loading.adapters.heads import classifier_config
from minhub_py.loading.inspection import inspect, verify
from minhub_py.models.encoder import Classifier
from minhub_py.models.registry import ENTRIES, architecture_of
from minhub_py.models.steps import DeltaRule, Rotate, SelectiveScan
from minhub_py.training.settings import Settings

LABELS = {"num_labels": 3, "pad_token_id": 0}
# Settings of these types in addition to those of tests/support/cases.
EXTRA: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"problem_type": "multi_label_classification"},
    "mistral": {
        "id2label": {0: "no", 1: "yes", 2: "perhaps"},
        "label2id": {"no": 0, "yes": 1, "perhaps": 2},
    },
}
DECODERS = {
    kind: entry.architecture
    for entry in ENTRIES.values()
    for kind in entry.model_types
    if not entry.architecture.is_encoder
    and not entry.architecture.encoder_class
    and not entry.architecture.Model.encoder_decoder
}
TYPES = [kind for kind in DECODERS if kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES]


def settings_of(model_type: str, **settings: Any) -> dict[str, Any]:
    """The config.json of a small classifier."""
    name = FIRST[model_type]
    return {**CASES[name].settings(name), **LABELS, **EXTRA.get(model_type, {}), **settings}


def write(folder: Path, model_type: str, **settings: Any) -> Any:
    """A random checkpoint as transformers writes it, and its model."""
    settings = settings_of(model_type, **settings)
    reference = AutoModel.from_config(AutoConfig.for_model(**settings)).eval()
    draw(reference)
    reference.save_pretrained(folder)
    return reference


@pytest.fixture(scope="module", params=TYPES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any, Path]:
    """transformers' model, ours, and the folder."""
    folder = tmp_path_factory.mktemp("classifier")
    reference = write(folder, request.param)
    return reference, minhub_py.from_pretrained(folder, device="cpu"), folder


def rows_of() -> tuple[torch.Tensor, torch.Tensor]:
    # With seed 1, Qwen 3.5's gradients of a token are five times those of other seeds, and each side
    # differs from float64 by 1e-5 to 5e-5 of them.
    ids = torch.randint(1, 61, (3, 40), generator=torch.Generator().manual_seed(2))
    ids[1, 30:], ids[2, 3:] = 0, 0
    return ids, (ids != 0).long()


def test_decoders_that_transformers_classifies_with_can_have_a_head() -> None:
    assert [kind for kind in TYPES if not DECODERS[kind].classifies] == []


@torch.no_grad()
def test_scores_equal_transformers(pair: tuple[Any, Any, Path]) -> None:
    """With padding, with and without a mask; a padding token at the end of a text is not its last
    token.
    """
    reference, model, _ = pair
    assert isinstance(model, Classifier)
    ids, mask = rows_of()
    expected = reference(ids, attention_mask=mask).logits
    assert_close(model(ids, mask), expected)
    assert_close(model(ids), expected)
    assert_close(model(ids[2:, :3]), expected[2:])
    assert_close(model(ids[2:, :4]), reference(ids[2:, :4]).logits)
    assert (model(ids[:1, :39]) - expected[:1]).abs().max() > 0.01  # the last token matters
    with pytest.raises(ValueError, match="padding must be at the end of a text"):
        model(ids.flip(1), mask.flip(1))


def test_gradients_equal_transformers(pair: tuple[Any, Any, Path], tmp_path: Path) -> None:
    reference, model, _ = pair
    ids, mask = rows_of()
    for network, scores in (
        (model, model(ids, mask)),
        (reference, reference(ids, attention_mask=mask).logits),
    ):
        network.zero_grad()
        torch.nn.functional.cross_entropy(scores, torch.arange(3)).backward()
    head, expected = model.head.out.weight.grad, reference.score.weight.grad
    assert_close(head, expected)
    assert_close(model.token_embedding.weight.grad, reference.get_input_embeddings().weight.grad)


def test_texts_do_not_change_each_other(pair: tuple[Any, Any, Path]) -> None:
    _, model, _ = pair
    ids, mask = rows_of()
    texts = [row[:count].tolist() for row, count in zip(ids, mask.sum(dim=1).tolist(), strict=True)]
    runner = encoder_runner(model)
    states = runner.hidden_states(texts)
    singles = torch.cat([runner.hidden_states([text]) for text in texts])
    if needs_padding(model):
        assert isinstance(runner, TorchEncoder)
        assert_close(states, singles)
    else:
        assert_same(states, singles)
        assert_close(states, TorchEncoder(model).hidden_states(texts))


def needs_padding(model: Classifier) -> bool:
    """Whether the C decoder does not compute several texts in one call."""
    steps = list(model.steps())
    ropes = [step.rope for step in steps if isinstance(step, Rotate) and step.rope is not None]
    return any(isinstance(step, DeltaRule | SelectiveScan) for step in steps) or any(
        rope.short for rope in ropes
    )


def test_transformers_loads_what_is_saved(pair: tuple[Any, Any, Path], tmp_path: Path) -> None:
    reference, model, folder = pair
    save_pretrained(model, tmp_path)
    again, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is type(reference)
    assert not any(report.values())
    tensors = reference.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.state_dict().items())
    assert again.config.id2label == reference.config.id2label
    assert again.config.problem_type == reference.config.problem_type
    assert (
        minhub_py.from_pretrained(tmp_path, device="cpu").config.to_hub() == model.config.to_hub()
    )
    assert verify(str(folder))["problems"] == []
    assert inspect(str(folder))["parameters"]["total"] == sum(
        weight.numel() for weight in model.parameters()
    )


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["qwen3", "gemma3_text"])
def test_quantized_and_torchscript(model_type: str, tmp_path: Path) -> None:
    write(tmp_path / "model", model_type)
    model = minhub_py.from_pretrained(tmp_path / "model", device="cpu")
    ids, _ = rows_of()
    save_torchscript(model, tmp_path / "model.pt")
    assert_close(torch.jit.load(tmp_path / "model.pt")(ids[:1]), model(ids[:1]))
    quantized = minhub_py.from_pretrained(tmp_path / "model", device="cpu", quantize="int8")
    assert (quantized(ids[:1]) - model(ids[:1])).abs().max() < 0.2 * model(ids[:1]).abs().max()


def test_a_language_model_is_not_a_classifier(tmp_path: Path) -> None:
    """Labels in its config.json have no effect. A missing head is refused by name."""
    settings = settings_of("qwen3", num_labels=2, id2label={0: "a", 1: "b"})
    reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    reference.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    model = minhub_py.from_pretrained(tmp_path, device="cpu")
    assert model.config.head is None
    assert not model.encoder_only
    with pytest.raises(ValueError, match="needs a sequence classification head"):
        classify(model, None, ["a"])
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["Qwen3ForSequenceClassification"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match="has no weights of the head of Qwen3ForSequenceClassification"
    ):
        minhub_py.from_pretrained(tmp_path)


def test_training_refuses_a_classifier(pair: tuple[Any, Any, Path]) -> None:
    reference, model, folder = pair
    architecture = architecture_of(reference.config.model_type)
    with pytest.raises(ValueError, match=r"train\(\) needs a model that predicts the next token"):
        Settings(start=str(folder)).tuned_config(architecture, model.config)


# Texts


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A tokenizer like Qwen's: it appends a token that is also the padding token."""
    tokenizer = train_byte_level_bpe([TEXT.read_text(encoding="utf-8")], 400)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<think>", "</think>"])
    tokenizer.add_tokens(["yes", "no"])
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>",
        pair="$A $B <|endoftext|>",
        special_tokens=[("<|endoftext|>", end)],
    )
    return tokenizer


@pytest.fixture(scope="module")
def make(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory):
    def load(labels: int) -> tuple[Any, Any]:
        folder = tmp_path_factory.mktemp("qwen3")
        settings = {
            "vocab_size": tokenizer.get_vocab_size(),
            "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
            "max_position_embeddings": 400,
            "num_labels": labels,
        }
        reference = write(folder, "qwen3", **settings)
        return reference, minhub_py.from_pretrained(folder, device="cpu")

    return load


TEXTS = ["The king is dead", "Long live the king!", "", "a " * 500]


@torch.no_grad()
def test_classify_equals_transformers(make: Any, tokenizer: Tokenizer) -> None:
    reference, model = make(3)
    columns = classify(model, tokenizer, TEXTS[:2])
    expected = torch.cat(
        [reference(torch.tensor([tokenizer.encode(text).ids])).logits for text in TEXTS[:2]]
    )
    probs = np.stack([columns[f"prob_LABEL_{i}"] for i in range(3)], axis=1)
    np.testing.assert_allclose(probs, expected.softmax(dim=1).numpy(), atol=1e-5)
    assert not np.isnan(classify(model, tokenizer, TEXTS)["prob"]).any()
    assert embed(model, tokenizer, TEXTS).shape == (4, 32)
    bare = Tokenizer.from_str(tokenizer.to_str())
    bare.post_processor = processors.ByteLevel()
    # a text without tokens
    assert classify(model, bare, ["", TEXTS[0]])["label"] == [None, columns["label"][0]]
    with pytest.raises(
        ValueError, match=r"this Llama has a classification head, .* or classify\(\)"
    ):
        generate(model, [[1, 2]], 3)


@torch.no_grad()
def test_rerank_equals_transformers(make: Any, tokenizer: Tokenizer) -> None:
    """Without an instruction, a plain pair; with it, Qwen3-Reranker's prompt."""
    reference, model = make(1)
    pairs = [tokenizer.encode("Who is dead?", text).ids for text in TEXTS[:3]]
    prompts = [
        tokenizer.encode(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the"
            ' Query and the Instruct provided. Note that the answer can only be "yes" or'
            ' "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Find news\n<Query>: Who is'
            f" dead?\n<Document>: {text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
            add_special_tokens=False,
        ).ids
        for text in TEXTS[:3]
    ]
    for rows, instruction in ((pairs, None), (prompts, "Find news")):
        columns = rerank(model, tokenizer, "Who is dead?", TEXTS[:3], instruction=instruction)
        expected = torch.cat(
            [reference(torch.tensor([ids])).logits[:, 0] for ids in rows]
        ).sigmoid()
        assert columns["text"].tolist() == expected.argsort(descending=True).tolist()
        np.testing.assert_allclose(
            columns["score"], expected.sort(descending=True).values.numpy(), atol=1e-5
        )
    assert len(rerank(model, tokenizer, "Who?", TEXTS)["score"]) == 4


def test_a_file_with_an_unknown_head_names_its_tensors(tmp_path: Path) -> None:
    write(tmp_path, "qwen3")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "score.bias": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"score\.bias"):
        minhub_py.from_pretrained(tmp_path)


def test_the_error_for_a_missing_head_lists_the_architectures_without_one() -> None:
    config = minhub_py.lstm(vocab_size=9, embedding_size=4, hidden_size=4).config
    with pytest.raises(
        ValueError, match=r"LSTM has no classification head: use .* except Gemma 4, LFM2, LSTM"
    ):
        classifier_config(config, ["a", "b"])
