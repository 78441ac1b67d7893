"""Fingerprints: a change of any byte of a model's files is detected, and unchanged files are hashed
once.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minhub_py import gpt2, save_pretrained
from minhub_py.checkpoints.fingerprint import cache_file, fingerprint, sha256, signature
from minhub_py.checkpoints.tokenizers.tokenizer import characters
from minhub_py.system.lock import BusyError, exclusive

SIZE = 6_000_000  # bytes of a large file, at least


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GPT-2 with a weight file of several megabytes, and an empty cache of digests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    folder = tmp_path / "model"
    model = gpt2(vocab_size=4, n_positions=16, n_embd=256, n_layer=2, n_head=2)
    save_pretrained(model, folder, characters("abc"))
    assert (folder / "model.safetensors").stat().st_size > SIZE
    return folder


def test_each_value_of_each_layer_counts(model: Path) -> None:
    """A fine-tuned model that differs in one layer has another fingerprint, wherever the layer is
    in the file.
    """
    file, prints = model / "model.safetensors", {fingerprint(model)}
    tensors = load_file(file)
    for count, name in enumerate(sorted(tensors), 2):
        changed = {**tensors, name: tensors[name] + 1}
        save_file(changed, file, {"format": "pt", "layout": "hub"})
        prints.add(fingerprint(model))
        assert len(prints) == count, name


@pytest.mark.parametrize("offset", [100_000, 2_600_001, -1])
def test_one_byte_in_place_counts(model: Path, offset: int) -> None:
    """Also if the size and the modification time are restored, as by rsync --times --inplace."""
    file, before = model / "model.safetensors", fingerprint(model)
    while not cached(file):  # a file that was just written is hashed each time
        fingerprint(model)
    times = file.stat()
    with file.open("r+b") as opened:
        opened.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        byte = opened.read(1)[0]
        opened.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        opened.write(bytes([byte ^ 1]))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_mtime_ns == times.st_mtime_ns
    assert fingerprint(model) != before


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_settings_and_tokenizer_count(model: Path, name: str) -> None:
    before, quick = fingerprint(model), signature(model)
    (model / "losses.csv").write_text("of a training run\n")
    assert (fingerprint(model), signature(model)) == (before, quick)
    with (model / name).open("a") as file:
        file.write("\n")
    assert fingerprint(model) != before
    assert signature(model) != quick


def test_the_same_files_elsewhere_are_the_same_model(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "copy")
    assert fingerprint(tmp_path / "copy") == fingerprint(model)
    assert signature(tmp_path / "copy") != signature(model)


def test_a_single_file_is_a_model_too(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"a" * 100)
    (tmp_path / "b.gguf").write_bytes(b"b" * 100)
    assert fingerprint(tmp_path / "a.gguf") != fingerprint(tmp_path / "b.gguf")


def cached(file: Path) -> bool:
    store = cache_file()
    return store is not None and store.exists() and str(file) in json.loads(store.read_bytes())


def test_an_unchanged_file_is_hashed_once(model: Path) -> None:
    file, before = model / "model.safetensors", fingerprint(model)
    while not cached(file):
        assert fingerprint(model) == before
    store = cache_file()
    assert store is not None
    content = json.loads(store.read_bytes())
    assert list(content) == [str(file)]  # small files are not in it
    assert content[str(file)][-1] == sha256(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    content[str(file)][-1] = "0" * 64
    store.write_text(json.dumps(content))
    assert fingerprint(model) != before  # from the cache
    os.utime(file)
    assert fingerprint(model) == before  # hashed again


def test_a_corrupt_cache_is_ignored(model: Path) -> None:
    file, before, store = model / "model.safetensors", fingerprint(model), cache_file()
    assert store is not None
    while not cached(file):
        fingerprint(model)
    for content in (b"", b"[1]", b"\xff", b'{"x": 1}', b'{"x": ["y"]}', b"{"):
        store.write_bytes(content)
        assert fingerprint(model) == before
        assert cached(file)


def test_a_cache_that_cannot_be_written_is_not_needed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(model)
    monkeypatch.setenv("XDG_CACHE_HOME", str(model / "config.json"))  # no folder
    assert fingerprint(model) == before
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "")
    assert fingerprint(model) == before


def test_blobs_of_the_hub_are_named_by_their_hash(model: Path) -> None:
    """A blob's name is its SHA-256, which the download has verified."""
    file, before = model / "model.safetensors", fingerprint(model)
    blob = model.parent / "blobs" / sha256(file)
    blob.parent.mkdir()
    file.rename(blob)
    file.symlink_to(os.path.relpath(blob, model))
    assert fingerprint(model) == before
    blob.write_bytes(b"not read")
    assert fingerprint(model) == before
    other = blob.with_name("f" * 40)  # git's hash of a small file, which is not SHA-256
    blob.rename(other)
    file.unlink()
    file.symlink_to(os.path.relpath(other, model))
    assert fingerprint(model) != before


def test_one_holder_of_a_lock_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        exclusive(lock, "in use"),
        pytest.raises(BusyError, match="in use"),
        exclusive(lock, "in use"),
    ):
        pass
    with exclusive(lock, "in use"):
        pass
