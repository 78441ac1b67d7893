"""Contrastive fine-tuning of text embeddings, compared with sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from docs_models import byte_tokenizer
from encoders import write_classifier, write_sentence_encoder
from needs import needs
from peers_of_embeddings import settings, write_splade, write_tokenizer_settings
from random_weights import draw
from torch.nn.utils.rnn import pad_sequence

from minhub_py import embed, from_pretrained, gpt2, resume, save_pretrained, similarity, train
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.cli.main import main
from minhub_py.training.contrastive import embeddings, margin_loss, ranking_loss

NOUNS, GOOD, BAD = ("cat", "dog", "film", "weather"), ("good", "lovely"), ("bad", "politics")
TRIPLETS = [
    {"anchor": f"the {noun} is {first}", "positive": f"a {second} {noun}", "negative": f"a {other} {noun}"}
    for noun in NOUNS
    for words, others in ((GOOD, BAD), (BAD, GOOD))
    for first, second in (words, words[::-1])
    for other in others
]  # fmt: skip
PAIRS = [{name: row[name] for name in ("anchor", "positive")} for row in TRIPLETS]


def write_start(folder: Path, pooling: str = "mean_tokens") -> Path:
    write_sentence_encoder(
        folder, max_length=24, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0
    )
    content = {f"pooling_mode_{pooling}": True, "word_embedding_dimension": 48}
    settings(folder, "1_Pooling/config.json", content)
    write_tokenizer_settings(folder)
    return folder


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def run_of(tmp_path: Path, rows: list[dict[str, str]], start: Path, **more: Any) -> Any:
    return train(
        write_rows(tmp_path / "rows.jsonl", rows),
        tmp_path / "run",
        start=str(start),
        threads=1,
        progress=False,
        dtype="float32",
        seed=1,
        **{"epochs": 12.0, "learning_rate": 3e-3, **more},
    )


@needs("sentence_transformers")
@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token"])
@pytest.mark.parametrize("loss", ["pairs", "triplets", "margin"])
def test_the_loss_and_its_gradient_equal_those_of_sentence_transformers(
    pooling: str, loss: str, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import (
        MultipleNegativesRankingLoss,
        TripletLoss,
    )

    folder = write_start(tmp_path / "start", pooling)
    rows = TRIPLETS[::5]
    names = ["anchor", "positive"] + (["negative"] if loss != "pairs" else [])
    peer = SentenceTransformer(str(folder), device="cpu")
    criterion = (
        TripletLoss(peer, triplet_margin=0.7)
        if loss == "margin"
        else MultipleNegativesRankingLoss(peer, scale=15.0)
    )
    features = [peer.preprocess([row[name] for row in rows]) for name in names]
    expected = criterion(features, torch.zeros(len(rows)))
    expected.backward()

    model, tokenizer = from_pretrained(folder, device="cpu"), read_tokenizer(folder)
    model.requires_grad_(True)
    ids = [torch.tensor(tokenizer.encode(row[name]).ids) for row in rows for name in names]
    mask = pad_sequence([torch.ones(len(row)) for row in ids], batch_first=True).bool()
    vectors = embeddings(model, pad_sequence(ids, batch_first=True), mask)
    texts = vectors.view(len(rows), len(names), -1).unbind(dim=1)
    found = (
        margin_loss(*texts, 0.7) if loss == "margin" else ranking_loss(texts[0], texts[1:], 15.0)
    )
    assert found.item() / len(rows) == pytest.approx(expected.item(), rel=1e-5)
    (found / len(rows)).backward()
    ours = model.token_embedding.weight.grad
    theirs = dict(peer.named_parameters())["0.model.embeddings.word_embeddings.weight"].grad
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@needs("sentence_transformers")
@pytest.mark.parametrize("lora", [None, 4])
def test_sentence_transformers_loads_the_trained_model(lora: int | None, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    start = write_start(tmp_path / "start")
    more: dict[str, Any] = {"lora": {"r": lora, "targets": "all-linear"}} if lora else {}
    run = run_of(tmp_path, PAIRS, start, **more)
    assert run.settings.objective == "pairs"
    assert run.unit == "nats per pair"
    assert run.best_loss < run.losses[0]["held_out_loss"]
    texts = [row["anchor"] for row in PAIRS[::3]] + ["weather " * 40]
    vectors = embed(run.model, run.tokenizer, texts)
    before = embed(from_pretrained(start, device="cpu"), read_tokenizer(start), texts)
    assert (vectors - before).abs().max() > 1e-2
    folder = run.folder
    if lora:
        folder = tmp_path / "merged"
        result = CliRunner().invoke(main, ["convert", str(run.folder), str(folder)])
        assert result.exit_code == 0, result.output
    peer = SentenceTransformer(str(folder), device="cpu")
    assert peer.max_seq_length == 24
    theirs = torch.tensor(peer.encode(texts))
    assert (theirs - vectors).abs().max() <= 1e-5 * vectors.abs().max()
    assert torch.allclose(embed(from_pretrained(folder), run.tokenizer, texts), vectors, atol=1e-6)


def test_similar_texts_become_more_similar_than_others(tmp_path: Path) -> None:
    run = run_of(tmp_path, TRIPLETS, write_start(tmp_path / "start"), margin=0.3)
    assert run.settings.objective == "triplets"
    columns = [[row[name] for row in TRIPLETS] for name in ("anchor", "positive", "negative")]
    anchors, positives, negatives = (embed(run.model, run.tokenizer, texts) for texts in columns)
    near, far = (similarity(anchors, others).diag() for others in (positives, negatives))
    assert ((near > far).float().mean()) > 0.9


def test_a_decoder_is_trained_by_its_pooled_states_and_a_run_resumes(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer("<|end|>")
    model = gpt2(vocab_size=257, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    draw(model)
    save_pretrained(model, tmp_path / "start", tokenizer)
    run = run_of(tmp_path, TRIPLETS, tmp_path / "start", steps=6, epochs=None, checkpoint_every=3)
    assert (run.folder / "modules.json").exists()
    vectors = embed(run.model, run.tokenizer, ["the cat"])
    assert vectors.shape == (1, 32)
    resumed = resume(run.folder, steps=8, progress=False)
    assert resumed.losses[-1]["step"] == 8
    assert embed(resumed.model, resumed.tokenizer, ["the cat"]).shape == (1, 32)
    model = from_pretrained(run.folder)
    save_pretrained(model, tmp_path / "copy", run.tokenizer)
    copy = from_pretrained(tmp_path / "copy")
    assert torch.equal(*(embed(either, run.tokenizer, ["the cat"]) for either in (model, copy)))


def test_texts_are_in_lower_case_as_the_repository_says(tmp_path: Path) -> None:
    start = write_start(tmp_path / "start")
    file = start / "sentence_bert_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "do_lower_case": True}))
    tokens = json.loads((start / "tokenizer.json").read_text())
    tokens["normalizer"] = None
    (start / "tokenizer.json").write_text(json.dumps(tokens))
    upper = [{name: text.upper() for name, text in row.items()} for row in PAIRS]
    losses = []
    for name, rows in (("lower", PAIRS), ("upper", upper)):
        (tmp_path / name).mkdir()
        run = run_of(tmp_path / name, rows, start, steps=2, epochs=None)
        losses.append(run.losses[-1]["held_out_loss"])
    assert losses[0] == losses[1]


def test_wrong_settings_and_models_are_errors(tmp_path: Path) -> None:
    start = write_start(tmp_path / "start")
    splade, classifier = write_splade(tmp_path / "splade"), write_classifier(tmp_path / "labels")
    empty = [{**PAIRS[0], "positive": None}, *PAIRS[1:]]
    cases: list[tuple[Any, Path, dict[str, Any], str]] = [
        (PAIRS, start, {"accumulate": 2}, "accumulate does not support pairs"),
        (PAIRS, start, {"margin": 1.0}, "margin has no effect without triplets"),
        (TRIPLETS, start, {"margin": 1.0, "scale": 5.0}, "scale has no effect without pairs or"),
        (PAIRS, start, {"objective": "triplets"}, "the objective triplets needs anchor, positive and negative"),
        (PAIRS, splade, {}, "has sparse embeddings or one vector per token"),
        (PAIRS, classifier, {}, "has a classification head"),
        (empty, start, {}, "row 1: positive is missing"),
        ([{"text": "a", "other": "b"}], start, {"scale": 5.0}, "scale has no effect"),
    ]  # fmt: skip
    for number, (rows, folder, more, message) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ValueError, match=message):
            run_of(tmp_path / str(number), rows, folder, **{"batch": 4, **more})
