"""A FIFO or a device in a model's folder is rejected; reading it would block, or fill the memory."""

import json
import os
import socket
from pathlib import Path

import pytest
from commands import failed
from gguf_cases import trained
from sentencepiece_files import LLAMA, train

from minhub_py import from_pretrained, llama, save_pretrained, tokenizer_from_pretrained
from minhub_py.chat.templates import chat_template_of
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.export.convert import convert
from minhub_py.loading.files import open_files
from minhub_py.system.files import read_bytes

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
KINDS = ["FIFO", "device"]


def replace(file: Path, kind: str) -> None:
    file.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_pretrained(llama(vocab_size=768, **SIZES), tmp_path / "model", trained("gpt-2"))
    return tmp_path / "model"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "model.safetensors.index.json"]
)
def test_loading_a_model_rejects_them(folder: Path, name: str, kind: str) -> None:
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    replace(folder / name, kind)
    # An index that is not a file does not count as one.
    with pytest.raises(
        (ValueError, FileNotFoundError), match=f"is not a regular file, but a {kind}|has no weights"
    ):
        assert from_pretrained(folder, device="cpu").generation_config is None
    assert failed("inspect", folder) or name == "generation_config.json"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "spiece.model",
        "tekken.json",
        "qwen.tiktoken",
        "vocab.txt",
    ],
)
def test_loading_a_tokenizer_rejects_them(folder: Path, name: str, kind: str) -> None:
    if name in (
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "spiece.model",
        "tekken.json",
        "qwen.tiktoken",
        "vocab.txt",
    ):
        (folder / "tokenizer.json").unlink()
    if name == "merges.txt":
        (folder / "vocab.json").write_text(json.dumps({"a": 0}))
    replace(folder / name, kind)
    with pytest.raises(ValueError, match=f"is not a regular file, but a {kind}"):
        tokenizer_from_pretrained(str(folder))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
)
def test_chat_templates_and_conversion_ignore_or_reject_them(
    folder: Path, name: str, kind: str
) -> None:
    """Templates are used only if they are files."""
    (folder / name).parent.mkdir(exist_ok=True)
    replace(folder / name, kind)
    assert chat_template_of(folder, read_tokenizer(folder)).kind == "plain"
    with pytest.raises(ValueError, match=f"is not a regular file, but a {kind}"):
        convert(open_files(folder), folder.with_name("out"))


@pytest.mark.parametrize("kind", KINDS)
def test_gguf_files_are_regular(tmp_path: Path, kind: str) -> None:
    replace(tmp_path / "model.gguf", kind)
    with pytest.raises((ValueError, FileNotFoundError)):
        from_pretrained(tmp_path / "model.gguf")


def test_sizes_are_checked_before_reading(tmp_path: Path) -> None:
    """Also of a file with holes, which has no data on the disk."""
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="bytes; the maximum"):
        read_bytes(tmp_path / "config.json")
    (tmp_path / "tokenizer.model").write_bytes(train(**LLAMA))
    with pytest.raises(ValueError, match="bytes; the maximum"):
        read_tokenizer(tmp_path)


def test_sockets_are_rejected_and_folders_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match="No such device"):  # Linux does not open them
            read_bytes(tmp_path / "s")
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
