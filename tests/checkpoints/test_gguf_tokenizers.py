"""Tokenizers in GGUF files, compared with the originals."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import sentencepiece
from gguf_cases import WORDS, add_bpe, change, character_bpe, chatty, reference, trained
from gguf_files import write
from sentencepiece_files import LLAMA, OWN, texts, train
from tokenizers import Tokenizer

from minhub_py import from_pretrained, tokenizer_from_pretrained
from minhub_py.checkpoints.tokenizers.sentencepiece import CONTROL, UNKNOWN, read_sentencepiece
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer

# --- Tokenizers


@pytest.mark.parametrize("pre", WORDS)
def test_byte_level_bpe_matches_the_original(pre: str, tmp_path: Path) -> None:
    reference_tokenizer = trained(pre)
    file = write(
        tmp_path / "model.gguf",
        reference("llama"),
        tokenizer=lambda writer: add_bpe(writer, reference_tokenizer, pre),
    )
    ours = tokenizer_from_pretrained(str(file))
    again = Tokenizer.from_str(ours.to_str())
    for text in [*texts(400), "<|im_start|>1234 it's<x>IT'S 5678<|endoftext|>", "é e\u0301 \u212b"]:
        expected, actual, saved = (
            tokenizer.encode(text, add_special_tokens=False).ids
            for tokenizer in (reference_tokenizer, ours, again)
        )
        assert expected == actual == saved
        assert ours.decode(expected) == reference_tokenizer.decode(expected)
    begins = [1] if pre == "llama-bpe" else []
    assert ours.encode("a").ids == begins + reference_tokenizer.encode("a").ids
    assert from_pretrained(file).config.eos_token_id == 0


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_matches_the_original(prefix: bool, tmp_path: Path) -> None:
    """Llama 2's form with a prefix space; Gemma's without it, with user-defined tokens, without an
    "unknown" type.
    """
    own = {} if prefix else {"add_dummy_prefix": False, "user_defined_symbols": OWN}
    (tmp_path / "tokenizer.model").write_bytes(train(**LLAMA, **own))
    reference_tokenizer = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "tokenizer.model")
    )
    pieces = range(reference_tokenizer.vocab_size())

    def kind(id: int) -> int:
        if reference_tokenizer.is_unknown(id) and not prefix:
            return 3
        tests = {
            2: reference_tokenizer.is_unknown,
            3: reference_tokenizer.is_control,
            5: reference_tokenizer.is_unused,
            6: reference_tokenizer.is_byte,
        }
        own_piece = reference_tokenizer.id_to_piece(id) in own.get("user_defined_symbols", ())
        return 4 if own_piece else next((number for number, test in tests.items() if test(id)), 1)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([reference_tokenizer.id_to_piece(id) for id in pieces])
        writer.add_token_scores([reference_tokenizer.get_score(id) for id in pieces])
        writer.add_token_types([kind(id) for id in pieces])
        if not prefix:
            writer.add_unk_token_id(reference_tokenizer.unk_id())
            writer.add_add_space_prefix(False)
            writer.add_add_bos_token(False)

    file = write(tmp_path / "model.gguf", reference("llama"), tokenizer=add)
    ours, usual = tokenizer_from_pretrained(str(file)), read_tokenizer(tmp_path)
    for text in texts(400):
        expected = usual.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == expected
        if not set("<\u2581") & set(text):
            assert expected == reference_tokenizer.encode(text)
    assert ours.encode("a").ids == [1] * prefix + reference_tokenizer.encode("a")


def test_phi3_pieces_of_unknown_type_are_unused(tmp_path: Path) -> None:
    """Old files of Phi-3 list <unk> as a control token and IDs without a token as unknown."""
    (tmp_path / "tokenizer.model").write_bytes(train(**LLAMA))
    theirs = read_sentencepiece(tmp_path / "tokenizer.model")
    kinds = [CONTROL if piece.kind == UNKNOWN else piece.kind for piece in theirs.pieces]

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([*(piece.text for piece in theirs.pieces), "[PAD1]", "[PAD2]"])
        writer.add_token_scores([*(piece.score for piece in theirs.pieces), -1000.0, -1000.0])
        writer.add_token_types([*kinds, UNKNOWN, UNKNOWN])

    ours = tokenizer_from_pretrained(
        str(write(tmp_path / "model.gguf", reference("llama"), tokenizer=add))
    )
    usual = read_tokenizer(tmp_path)
    for text in texts(50):
        assert (
            ours.encode(text, add_special_tokens=False).ids
            == usual.encode(text, add_special_tokens=False).ids
        )


def test_gemma4_matches_the_original(tmp_path: Path) -> None:
    """BPE of characters with merges and bytes; lines and line breaks are separate words in
    llama.cpp.
    """
    theirs = character_bpe()
    saved, ids = json.loads(theirs.to_str()), theirs.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    special = {token["content"]: 3 if token["special"] else 4 for token in saved["added_tokens"]}

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gemma4")
        writer.add_token_list(tokens)
        writer.add_token_types(
            [special.get(token, 6 if token.startswith("<0x") else 1) for token in tokens]
        )
        writer.add_token_merges([" ".join(pair) for pair in saved["model"]["merges"]])
        writer.add_bos_token_id(ids["<bos>"])
        writer.add_unk_token_id(ids["<unk>"])
        writer.add_add_bos_token(False)  # which llama.cpp ignores

    ours = tokenizer_from_pretrained(
        str(write(tmp_path / "model.gguf", reference("llama"), tokenizer=add))
    )
    for text in [*texts(400), "<bos>Two  lines:\n\n\n<|tool_call>{}\r\n", "\u6f22\U0001f999"]:
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == expected, text
        assert ours.decode(expected, skip_special_tokens=False) == theirs.decode(
            expected, skip_special_tokens=False
        )
    assert ours.encode("a").ids == [ids["<bos>"], *theirs.encode("a").ids]


# --- Rejected files


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (
            change("tokenizer.ggml.pre", "poro-chat", "string"),
            "pre 'poro-chat' is not supported; supported are gpt-2",
        ),
        (
            change("tokenizer.ggml.model", "rwkv", "string"),
            "model is 'rwkv'; supported are gpt2, llama, t5, gemma4",
        ),
        (
            change("tokenizer.ggml.model", ["gpt2"], "array"),
            r"model is \['gpt2'\]; .*: use the original",
        ),
        (change("tokenizer.ggml.bos_token_id", 9999), "bos_token_id cannot be 9999"),
        (change("tokenizer.ggml.merges", ["a"], "array"), "is not a valid tokenizer"),
        (
            change("tokenizer.ggml.merges", ["a zzz"], "array"),
            "the result of a merge is not a token",
        ),
        (
            change("tokenizer.ggml.tokens", ["a" * 200_000, "b"], "array"),
            "token of 200,000 characters",
        ),
        (change("tokenizer.ggml.tokens", [1], "array"), "tokens is not a list of strings"),
        (change("tokenizer.ggml.token_type", [1], "array"), "does not have one number per token"),
    ],
)
def test_unsupported_tokenizers_are_rejected_by_name(
    apply: Callable[[gguf.GGUFWriter], None], message: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "model.gguf", reference("llama"), tokenizer=chatty, change=apply)
    with pytest.raises(ValueError, match=message):
        tokenizer_from_pretrained(str(file))


def test_missing_pre_tokenizer_is_accepted_for_gpt2_only(tmp_path: Path) -> None:
    """Old files lack tokenizer.ggml.pre: GPT-2's words are the default, Llama's are unknown."""
    reference_tokenizer = trained("gpt-2")
    for name in ("gpt2", "llama"):
        write(
            tmp_path / f"{name}.gguf",
            reference(name),
            tokenizer=lambda writer: add_bpe(writer, reference_tokenizer, None),
        )
    ours = tokenizer_from_pretrained(str(tmp_path / "gpt2.gguf"))
    assert ours.encode("it's").ids == reference_tokenizer.encode("it's").ids
    with pytest.raises(ValueError, match=r"pre None is not supported"):
        tokenizer_from_pretrained(str(tmp_path / "llama.gguf"))
    with pytest.raises(FileNotFoundError, match="has no tokenizer"):
        read_tokenizer(write(tmp_path / "none.gguf", reference("llama")))
