"""Fine-tuning of encoders with shared layers, with disentangled attention, and with a gated MLP:
labels, masked words, adapters.
"""

import json
from pathlib import Path
from typing import Any

import jina_reference
import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

import minhub_py
from minhub_py import classify, from_pretrained, save_pretrained, tokenizer_from_pretrained, train
from minhub_py.cli.main import main

jina_reference.register()
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
RELATIVE = {"relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("Albert", {"embedding_size": 16}),
    "deberta": ("Deberta", RELATIVE),
    "debertav2": (
        "DebertaV2",
        {
            **RELATIVE,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "conv_kernel_size": 3,
        },
    ),
    "nomicbert": ("NomicBert", {}),
    "gte": ("Gte", {"hidden_dropout_prob": 0.0}),
    "jinabert": ("JinaBert", {}),
    "eurobert": ("EuroBert", {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}),
}
TEXTS = [
    (f"{first} {noun} was {word}", word in ("good", "fine"))
    for first in ("a", "the")
    for noun in ("film", "play")
    for word in ("good", "bad", "fine", "poor")
] * 3


@pytest.fixture(params=KINDS)
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small encoder with a masked-LM head and a WordPiece tokenizer."""
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"good bad film play fine poor a the was is".split(),
    ]
    tokenizer = Tokenizer(
        models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.Lowercase(),
        pre_tokenizers.Whitespace(),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    name, settings = KINDS[request.param]
    torch.manual_seed(0)
    family = request.param
    model = minhub_py.from_config(
        family, **SIZES, **settings, vocab_size=len(words), architectures=[f"{name}ForMaskedLM"]
    )
    save_pretrained(model, tmp_path / "start", tokenizer)
    return tmp_path / "start"


@pytest.mark.parametrize("lora", [None, 4])
def test_encoders_learn_labels_that_transformers_predicts(
    start: Path, tmp_path: Path, lora: int | None
) -> None:
    rows = [json.dumps({"text": text, "label": "yes" if good else "no"}) for text, good in TEXTS]
    (tmp_path / "labels.jsonl").write_text("\n".join(rows))
    more: dict[str, Any] = {"lora": {"r": lora, "targets": "all-linear"}} if lora else {}
    run = train(
        tmp_path / "labels.jsonl",
        tmp_path / "run",
        start=str(start),
        context=64,
        threads=1,
        progress=False,
        dtype="float32",
        learning_rate=1e-2 if lora else 3e-3,
        epochs=12.0,
        **more,
    )
    assert run.best_loss < 0.4
    texts = ["the film was good", "a play was poor"]
    answers = classify(run.model, run.tokenizer, texts)
    assert answers["label"] == ["yes", "no"]
    folder = run.folder
    if lora:
        folder = tmp_path / "merged"
        result = CliRunner().invoke(main, ["convert", str(run.folder), str(folder)])
        assert result.exit_code == 0, result.output
    reference = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = torch.tensor([run.tokenizer.encode(text).ids for text in texts])
    with torch.no_grad():
        expected = reference(ids).logits.softmax(dim=1)[:, 1]
    assert torch.allclose(torch.tensor(answers["prob_yes"]), expected, atol=1e-5)


def test_encoders_learn_masked_words(start: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(text for text, _ in TEXTS))
    run = train(
        tmp_path / "text.txt",
        tmp_path / "run",
        start=str(start),
        context=64,
        threads=1,
        progress=False,
        dtype="float32",
        objective="masked",
        learning_rate=5e-3,
        steps=30,
    )
    assert run.best_loss < run.losses[0]["held_out_loss"]
    again, tokenizer = (
        from_pretrained(run.folder, device="cpu"),
        tokenizer_from_pretrained(str(run.folder)),
    )
    reference = AutoModelForMaskedLM.from_pretrained(run.folder).eval()
    ids = torch.tensor([tokenizer.encode("the [MASK] was good").ids])
    with torch.no_grad():
        assert torch.allclose(again(ids), reference(ids).logits, atol=1e-4)
