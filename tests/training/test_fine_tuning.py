"""Fine-tuning of an existing model."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import BUILT_IN, FAMILY_NAMES, TINY, Notes, contents, held_out_losses, same

from minhub_py import (
    from_config,
    from_pretrained,
    resume,
    save_pretrained,
    tokenizer_from_pretrained,
    train,
)
from minhub_py.checkpoints import local
from minhub_py.training import memory


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_fine_tuning_starts_from_the_model(tmp_path: Path, text: Path, family: str) -> None:
    """Loss, tokenizer and settings are the model's, except dropout; the model's folder is
    unchanged.
    """
    source = local.BUILTIN / f"shakespeare-{family}"
    before = contents(source)
    settings = {
        "context": 16,
        "batch": 2,
        "steps": 2,
        "evaluate_every": 1,
        "warm_up": 1,
        "evaluate_tokens": 256,
    }
    notes = Notes()
    run = train(
        text, tmp_path / "run", start=BUILT_IN[family], dropout=0.25, listener=notes, **settings
    )
    reference = from_pretrained(BUILT_IN[family], device="cpu")
    for name, tensor in reference.state_dict().items():
        assert torch.equal(notes.weights[name], tensor), name
    assert run.tokenizer.to_str() == tokenizer_from_pretrained(BUILT_IN[family]).to_str()
    changed = {
        name
        for name, value in vars(run.model.config).items()
        if value != getattr(reference.config, name)
    }
    assert (
        changed
        == {
            "gpt2": {"embd_pdrop", "resid_pdrop"},
            "gptneo": {"embed_dropout", "resid_dropout"},
            "lstm": {"dropout"},
        }[family]
    )
    [loss] = [row["held_out_loss"] for row in run.losses if row["step"] == 0]
    assert loss != run.losses[1]["held_out_loss"]
    plain = train(text, tmp_path / "plain", start=BUILT_IN[family], learning_rate=0.0, **settings)
    assert held_out_losses(plain) == [loss] * 3
    same(contents(source), before)


def test_a_text_has_passes_and_parts_that_fit_into_memory(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "start": BUILT_IN["gpt2"],
        "epochs": 0.1,
        "threads": 1,
        "progress": False,
    }
    short = train(text, tmp_path / "short", context=16, **options)
    rows = short.corpus.train.count // 16
    assert (short.settings.batch, short.settings.steps) == (8, math.ceil(0.1 * rows / 8))
    assert short.settings.accumulate == 1
    assert train(text, tmp_path / "long", **options).settings.context == 256  # the model's
    monkeypatch.setattr(memory, "free_memory", lambda: 4_000_000)
    small = train(text, tmp_path / "small", **options).settings
    assert small.context is not None
    assert small.context < 256
    assert small.accumulate == 8


def test_fine_tuning_rejects_settings_that_change_the_model(
    tmp_path: Path, text: Path, bpe_folder: Path
) -> None:
    start = BUILT_IN["gpt2"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"family": "lstm"}, "contains a gpt2 model, not lstm: remove family"),
        ({"layers": 2}, "layers: the sizes of .* are fixed; remove this setting"),
        ({"width": 192}, "width: the sizes of .* are fixed"),
        ({"heads": 6}, "heads: the sizes of .* are fixed"),
        ({"context": 257}, "context must be at most 256 for .*, not 257"),
        (
            {"config": {"n_layer": 3}},
            "n_layer: .* has fixed settings; .*attn_pdrop, embd_pdrop, resid_pdrop",
        ),
        ({"tokenizer": str(bpe_folder)}, "the tokenizer has 600"),
        ({"tokenizer": "bpe"}, "token IDs"),
    ]
    for settings, message in cases:
        with pytest.raises(ValueError, match=message):
            train(text, tmp_path / "run", start=start, steps=1, **settings)
        assert not (tmp_path / "run").exists()


def test_a_fine_tuning_run_without_checkpoint_starts_again_from_the_model(
    tmp_path: Path, text: Path
) -> None:
    first = train(text, tmp_path / "first", family="lstm", **TINY)
    settings = {
        "context": 16,
        "batch": 4,
        "steps": 4,
        "evaluate_every": 2,
        "checkpoint_every": 2,
        "threads": 1,
    }
    uninterrupted = train(
        text, tmp_path / "uninterrupted" / "run", start=str(first.folder), **settings
    )
    assert held_out_losses(uninterrupted)[0] == pytest.approx(first.best_loss, rel=1e-6)
    folder = tmp_path / "killed" / "run"
    train(text, folder, start=str(first.folder), listener=Notes(0), **settings)
    shutil.rmtree(folder / "checkpoints")
    for name in ("losses.csv", "model.safetensors", "config.json", "README.md", "tokenizer.json"):
        (folder / name).unlink()
    resume(folder)
    same(contents(folder), contents(uninterrupted.folder))


def test_experts_that_no_token_chooses_are_trained_and_resumed_like_the_others(
    tmp_path: Path, text: Path
) -> None:
    tokenizer = tokenizer_from_pretrained(BUILT_IN["gpt2"])
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    model = from_config(
        "mixtral",
        vocab_size=tokenizer.get_vocab_size(),
        intermediate_size=16,
        num_experts=64,
        num_experts_per_tok=1,
        max_position_embeddings=64,
        **sizes,
    )
    save_pretrained(model, tmp_path / "model", tokenizer)
    options: dict[str, Any] = {
        "steps": 4,
        "batch": 1,
        "context": 4,
        "evaluate_every": 1,
        "checkpoint_every": 1,
        "start": str(tmp_path / "model"),
        "threads": 1,
    }
    # a step has 4 tokens for 64 experts
    expected = train(text, tmp_path / "expected", listener=Notes(), **options)
    train(text, tmp_path / "run", listener=Notes(stop=2), **options)
    assert held_out_losses(resume(tmp_path / "run", progress=False)) == held_out_losses(expected)
