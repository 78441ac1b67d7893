"""A training text's tokens: files, tokenizers, windows and streams."""

import json
import os
import random
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import SERVER
from torch import Tensor
from training_runs import (
    BUILT_IN,
    TEXT,
    TINY,
    Notes,
    ids_of,
    in_a_child,
    prepared,
    resume_in_child,
    verses,
)

from minhub_py import tokenizer_from_pretrained, train
from minhub_py.checkpoints.tokenizers.tokenizer import (
    characters,
    read_tokenizer,
    train_byte_level_bpe,
)
from minhub_py.training.data import DataLoader, Tokens, split_at_words

# --- Tokenizers and tokenized data


def test_several_files_are_one_text(tmp_path: Path) -> None:
    """The files are concatenated unchanged; the last tenth of the characters is held out."""
    texts = ["\ufeffOne,\r\ntwo\rthree\n" * 40, "vier → fünf 漢字 😀\n" * 33, "x"]
    content = "".join(texts)
    run, tokenizer = prepared(tmp_path, [text.encode() for text in texts], held_out=0.1)
    assert sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id) == sorted(set(content))
    cut = int(len(content) * 0.9)
    corpus = run.corpus
    assert corpus.texts == ["text0.txt", "text1.txt", "text2.txt"]
    assert corpus.characters == len(content) - cut
    assert run.characters_per_token == 1
    assert tokenizer.decode(ids_of(corpus.train)) == content[:cut]
    assert tokenizer.decode(ids_of(corpus.held_out)) == content[cut:]


def test_long_texts_are_read_in_chunks(tmp_path: Path) -> None:
    """Chunks never split a character, for characters of every length in UTF-8."""
    content = "aé→😀 b\r\n" * 9000
    run, tokenizer = prepared(
        tmp_path, [content[:33_333].encode(), content[33_333:].encode()], held_out=0.25
    )
    cut = int(len(content) * 0.75)
    assert tokenizer.decode(ids_of(run.corpus.train)) == content[:cut]
    assert tokenizer.decode(ids_of(run.corpus.held_out)) == content[cut:]
    run = train(
        tmp_path / "text0.txt",
        tmp_path / "bpe",
        tokenizer="bpe",
        vocab_size=300,
        listener=Notes(0),
        **TINY,
    )
    cut = int(33_333 * 0.9)
    assert ids_of(run.corpus.train) == run.tokenizer.encode(content[:cut]).ids
    assert ids_of(run.corpus.held_out) == run.tokenizer.encode(content[cut:33_333]).ids


def test_a_bpe_is_trained_on_the_training_text_only(tmp_path: Path) -> None:
    """The held-out text consists of a word that the training text does not contain."""
    learnt, held_out = verses(9000), "zyxwvu " * 150
    content = (learnt + held_out)[:10_000]
    run, tokenizer = prepared(tmp_path, [content.encode()], tokenizer="bpe", vocab_size=400)
    vocabulary = tokenizer.get_vocab()
    assert len(vocabulary) == 400
    assert vocabulary["<|endoftext|>"] == 0
    assert "Ġthe" in vocabulary or any(
        token.startswith("Ġ") and len(token) > 2 for token in vocabulary
    )
    assert not any("zy" in token for token in vocabulary)
    assert tokenizer.to_str() == train_byte_level_bpe([learnt], 400).to_str()
    assert ids_of(run.corpus.train) == tokenizer.encode(content[:9000]).ids
    assert ids_of(run.corpus.held_out) == tokenizer.encode(content[9000:]).ids
    assert run.characters_per_token == 1000 / run.corpus.held_out.count
    assert tokenizer.decode(tokenizer.encode("é 漢\n").ids) == "é 漢\n"


def test_chunks_have_the_token_ids_of_the_entire_text(bpe_folder: Path) -> None:
    """For unusual white space, punctuation and special tokens, with tokenizers of one and of two
    files.
    """
    tokenizers = [read_tokenizer(bpe_folder), train_byte_level_bpe([verses(9000)], 500)]
    parts = [
        "a",
        "the",
        "of",
        "1",
        "23",
        ".",
        "!?",
        "'s",
        "'",
        " ",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "\u3000",
        "\xa0",
        "\u2028",
        "\x85",
        "\x0b",
        "\x1c",
        "\x1f",
        "\u200b",
        "\ufeff",
        "é",
        "e\u0301",
        "漢字",
        "😀",
        "<|endoftext|>",
    ]
    draw = random.Random(0)
    cuts = 0
    for _ in range(1500):
        text = "".join(draw.choices(parts, k=draw.randint(1, 25)))
        size = draw.randint(1, 6)
        pieces = list(
            split_at_words(text[start : start + size] for start in range(0, len(text), size))
        )
        assert "".join(pieces) == text
        cuts += len(pieces) - 1
        for tokenizer in tokenizers:
            actual = [
                id
                for piece in pieces
                for id in tokenizer.encode(piece, add_special_tokens=False).ids
            ]
            assert actual == tokenizer.encode(text, add_special_tokens=False).ids, (text, pieces)
    assert cuts > 1500


def test_a_text_without_white_space_is_split() -> None:
    pieces = list(split_at_words("漢" * 2**14 for _ in range(40)))
    assert "".join(pieces) == "漢" * (40 * 2**14)
    assert max(map(len, pieces)) < 20 * 2**14


@pytest.mark.parametrize("source", ["built-in", "folder with two files", "more than 16 bits"])
def test_a_run_can_use_an_existing_tokenizer(tmp_path: Path, bpe_folder: Path, source: str) -> None:
    """The run uses the tokenizer's token IDs, vocabulary size and tokenizer.json."""
    if source == "built-in":
        name, count, dtype = BUILT_IN["gptneo"], 65, "<u2"
    elif source == "folder with two files":
        name, count, dtype = str(bpe_folder), 600, "<u2"
    else:
        name, count, dtype = str(tmp_path / "many"), 70_000, "<u4"
        many = [chr(0x20000 + number) for number in range(70_000 - len(set(TEXT)))] + sorted(
            set(TEXT)
        )
        (tmp_path / "many").mkdir()
        (tmp_path / "many" / "tokenizer.json").write_text(characters(many).to_str())
    run, tokenizer = prepared(tmp_path, [TEXT.encode()], tokenizer=name, layers=1)
    cut = int(len(TEXT) * 0.9)
    expected = tokenizer_from_pretrained(name)
    assert tokenizer.to_str() == expected.to_str()
    assert ids_of(run.corpus.train) == expected.encode(TEXT[:cut]).ids
    assert ids_of(run.corpus.held_out) == expected.encode(TEXT[cut:]).ids
    assert run.corpus.train.dtype == dtype
    assert run.model.config.vocab_size == count


def test_a_note_lists_characters_without_a_token(tmp_path: Path, text: Path) -> None:
    text.write_text(TEXT.replace("e", "é"))
    notes = Notes(0)
    train(text, tmp_path / "run", tokenizer=BUILT_IN["gpt2"], listener=notes, **TINY)
    assert any("é" in note for note in notes.notes)


# --- Training and evaluation batches


@pytest.fixture
def numbers(tmp_path: Path) -> Tokens:
    """The token IDs 0, 1, 2 … equal their positions."""
    np.arange(1000, dtype="<u2").tofile(tmp_path / "numbers.bin")
    return Tokens(tmp_path / "numbers.bin", "<u2", 1000)


def test_windows_start_at_all_positions(numbers: Tokens) -> None:
    tokens = Tokens(numbers.path, "<u2", 1000)
    windows = DataLoader(tokens, batch=50, context=16, seed=7, carry=False)
    starts = set()
    for step in range(300):
        rows, fresh = windows.at(step, slice(0, 50))
        assert fresh
        assert rows.shape == (50, 17)
        assert torch.equal(rows - rows[:, :1], torch.arange(17).expand(50, 17))
        starts |= set(rows[:, 0].tolist())
        assert torch.equal(windows.at(step, slice(10, 13))[0], rows[10:13])
    assert starts == set(range(1000 - 16))


@pytest.mark.parametrize(("batch", "context"), [(1, 16), (3, 16), (7, 10), (57, 16)])
def test_streams_are_consecutive(numbers: Tokens, batch: int, context: int) -> None:
    """A sequence starts where the previous one ends; an epoch reads nearly all tokens once; offsets
    differ by epoch.
    """
    streams = DataLoader(numbers, batch, context, seed=7, carry=True)
    before: Tensor | None = None
    epochs: list[list[int]] = []
    for step in range(300):
        rows, fresh = streams.at(step, slice(0, batch))
        assert rows.shape == (batch, context + 1)
        assert torch.equal(rows - rows[:, :1], torch.arange(context + 1).expand(batch, context + 1))
        assert fresh == (before is None or not torch.equal(rows[:, 0], before[:, -1]))
        if fresh:
            epochs.append([])
        epochs[-1] += rows[:, :-1].flatten().tolist()
        assert torch.equal(streams.at(step, slice(batch // 2, batch))[0], rows[batch // 2 :])
        before = rows
    for read in epochs[:-1]:
        assert len(read) == len(set(read))
        assert len(read) >= 1000 - (batch + 1) * context - batch
    assert len({read[0] for read in epochs}) > 1 or len(epochs) < 6


# --- Memory


def measured(folder: Path, pipe: Any) -> None:
    """Resume a run in a child process and send its peak memory in bytes."""
    resume_in_child(folder)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


@pytest.mark.parametrize("family", ["gpt2", "lstm"])
def test_memory_does_not_grow_with_the_text(tmp_path: Path, text: Path, family: str) -> None:
    """Sparse files of 1 MB and of 1 GB, which occupy no disk space."""
    peaks = []
    for size in (10**6, 10**9):
        settings = TINY | {
            "batch": 32,
            "steps": 40,
            "evaluate_every": 40,
            "checkpoint_every": 40,
            "layers": 1,
        }
        run = train(
            text,
            tmp_path / str(size),
            family=family,
            listener=Notes(0),
            evaluate_tokens=2**14,
            **settings,
        )
        about = json.loads((run.folder / "tokens" / "tokens.json").read_text())
        for name in ("train", "held_out"):
            os.truncate(run.folder / "tokens" / f"{name}.bin", size)
            about[name] = size // 2
        (run.folder / "tokens" / "tokens.json").write_text(json.dumps(about))
        receiver, sender = SERVER.Pipe(duplex=False)
        assert in_a_child(measured, run.folder, sender) == 0
        peaks.append(receiver.recv())
    assert peaks[1] < peaks[0] + 10 * 2**20
