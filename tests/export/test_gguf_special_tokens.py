"""GGUF files have the folder's tokens around a text, end tokens, and chat templates."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from commands import done
from gguf_cases import trained
from sentencepiece_files import LLAMA, train
from tokenizers import Tokenizer, processors

from minhub_py import from_pretrained, llama, save_pretrained, tokenizer_from_pretrained
from minhub_py.chat.templates import chat_template_of
from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer
from minhub_py.export.gguf import write_gguf
from minhub_py.loading.files import open_files

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
TEXTS = ("", "It's 1234 roses!\n\n", "a<|endoftext|>b<|im_start|>c<x>d")
BEGIN, END = "<|endoftext|>", "<|im_start|>"


def around(tokenizer: Tokenizer, form: str) -> Tokenizer:
    """The tokenizer with special tokens around a text, such as "<|endoftext|> $A"."""
    special = [(token, tokenizer.token_to_id(token)) for token in (BEGIN, END)]
    tokenizer.post_processor = processors.TemplateProcessing(form, special_tokens=special)
    return tokenizer


def folder_of(
    path: Path, tokenizer: Tokenizer | None, settings: dict[str, Any] | None = None, **config: Any
) -> Path:
    """A model folder. settings: of tokenizer_config.json."""
    model = llama(vocab_size=768, **SIZES, **{"bos_token_id": 5, "eos_token_id": 7, **config})
    save_pretrained(model, path, tokenizer)
    if settings is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe"])
@pytest.mark.parametrize("form", ["$A", f"{BEGIN} $A", f"$A {END}", f"{BEGIN} $A {END}"])
@pytest.mark.parametrize(
    "settings", [None, {"add_bos_token": True, "add_eos_token": True}, {"add_bos_token": False}]
)
def test_tokens_around_a_text_are_the_tokenizers(
    tmp_path: Path, pre: str, form: str, settings: dict[str, Any] | None
) -> None:
    """tokenizer_config.json does not change a tokenizer.json; llama-bpe adds a BOS by default."""
    folder = folder_of(tmp_path / "hub", around(trained(pre), form), settings)
    file = tmp_path / "model.gguf"
    write_gguf(open_files(folder), file)
    original, written = read_tokenizer(folder), tokenizer_from_pretrained(str(file))
    for text in TEXTS:
        assert written.encode(text).ids == original.encode(text).ids
    metadata = read_header(file).metadata
    assert metadata["tokenizer.ggml.add_bos_token"] == form.startswith(BEGIN)
    assert metadata["tokenizer.ggml.add_eos_token"] == form.endswith(END)
    ends = from_pretrained(file, device="cpu").config.eos_token_id
    assert ends == ([original.token_to_id(END), 7] if form.endswith(END) else 7)


@pytest.mark.parametrize("config", [{}, {"add_bos_token": False}, {"add_eos_token": True}])
def test_sentencepiece_models_keep_the_tokens_around_a_text(
    tmp_path: Path, config: dict[str, bool]
) -> None:
    folder = folder_of(tmp_path / "hub", None, config, bos_token_id=1, eos_token_id=2)
    (folder / "tokenizer.model").write_bytes(train(**LLAMA))
    write_gguf(open_files(folder), tmp_path / "model.gguf")
    original, written = (
        read_tokenizer(folder),
        tokenizer_from_pretrained(str(tmp_path / "model.gguf")),
    )
    for text in TEXTS[:2]:
        assert written.encode(text).ids == original.encode(text).ids


def test_three_end_tokens_are_written_and_a_fourth_is_reported(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "hub", trained("gpt-2"), eos_token_id=[7, 8, 9, 10])
    with pytest.warns(UserWarning, match="lacks 1 of the 4 tokens that end a text"):
        write_gguf(open_files(folder), tmp_path / "model.gguf")
    assert from_pretrained(tmp_path / "model.gguf", device="cpu").config.eos_token_id == [7, 8, 9]


def test_tokens_around_a_text_that_gguf_cannot_express_are_rejected(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "hub", around(trained("gpt-2"), f"{BEGIN} {END} $A"))
    with pytest.raises(
        ValueError, match="adds 2 tokens before and 0 after each text.*convert to a folder instead"
    ):
        write_gguf(open_files(folder), tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def test_other_pieces_than_the_tokenizers_are_rejected(tmp_path: Path) -> None:
    """A tokenizer.json next to another tokenizer.model, which the file would contain."""
    folder = folder_of(tmp_path / "hub", trained("gpt-2"))
    (folder / "tokenizer.model").write_bytes(train(**LLAMA))
    with pytest.raises(
        ValueError, match=r"a GGUF file cannot express this tokenizer: .* instead of"
    ):
        write_gguf(open_files(folder), tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def test_named_chat_templates_are_kept(tmp_path: Path) -> None:
    """In both forms, as the package gguf writes them, in copies, and in a folder that is written
    from the file.
    """
    templates = {
        "default": "{{ messages[0].content }}",
        "tool_use": "T{{ tools | length }}",
        "rag": "R",
    }
    settings = {
        "chat_template": [{"name": name, "template": text} for name, text in templates.items()]
    }
    listed = folder_of(tmp_path / "listed", trained("gpt-2"), settings)
    separate = folder_of(tmp_path / "separate", trained("gpt-2"), {})
    (separate / "chat_template.jinja").write_text(templates["default"])
    (separate / "additional_chat_templates").mkdir()
    for name in ("tool_use", "rag"):
        (separate / "additional_chat_templates" / f"{name}.jinja").write_text(templates[name])
    for folder in (listed, separate):
        file = folder.with_suffix(".gguf")
        write_gguf(open_files(folder), file)
        metadata = read_header(file).metadata
        assert str(metadata["tokenizer.chat_templates"]) == "an array of 2 strings"
        writer = gguf.GGUFWriter(None, "llama")
        gguf.SpecialVocab(folder).add_to_gguf(writer, quiet=True)
        expected = {
            key: value.value
            for part in writer.kv_data
            for key, value in part.items()
            if "template" in key
        }
        assert {key: metadata[key] for key in expected if not key.endswith("s")} == {
            key: value for key, value in expected.items() if not key.endswith("s")
        }
        done("convert", file, tmp_path / f"{folder.name}-copy.gguf", "--type", "Q8_0")
        done("convert", file, tmp_path / f"{folder.name}-hub")
        done("convert", folder, tmp_path / f"{folder.name}-again")
        for path in (
            file,
            tmp_path / f"{folder.name}-copy.gguf",
            tmp_path / f"{folder.name}-hub",
            tmp_path / f"{folder.name}-again",
        ):
            assert (
                chat_template_of(path, tokenizer_from_pretrained(str(path))).templates == templates
            ), path
