"""Tokenizers from the metadata of GGUF files, and the corresponding files on the Hub.

    tokenizer.ggml.model "gpt2"     byte-level BPE with merges. The word pattern has a name only, tokenizer.ggml.pre
    tokenizer.ggml.model "llama"    SentencePiece BPE: pieces, scores and types, as in a tokenizer.model

Sources: llama.cpp's src/llama-vocab.cpp for word patterns; the models' tokenizer.json for normalization (NFC) and for
words that are not split.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from minhub_py.checkpoints.tokenizers.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    SentencePiece,
    check_pieces,
    sentencepiece_tokenizer,
)  # fmt: skip
from minhub_py.checkpoints.tokenizers.tiktoken import WORDS
from minhub_py.checkpoints.tokenizers.vocabulary import check_lengths

# Mistral's tekken.json has it too.
TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Words:
    """Word splitting of byte-level BPE."""

    pattern: str | None = None  # None: GPT-2's
    digits: bool = False  # each digit is a separate word
    nfc: bool = False
    ignore_merges: bool = False  # a word that is a token is not split
    add_bos: bool = False  # the default of add_bos_token


GPT2 = Words()
DIGITS = Words(digits=True)
COMPOSED = Words(nfc=True)
LLAMA3 = Words(WORDS.format("{1,3}"), ignore_merges=True, add_bos=True)
QWEN = Words(WORDS.format(""), nfc=True)
PRE = {
    "gpt-2": GPT2, "phi-2": GPT2,
    "olmo": COMPOSED, "mpt": COMPOSED,  # GPT-NeoX uses one of these
    "smollm": DIGITS, "starcoder": DIGITS, "refact": DIGITS,
    "llama-bpe": LLAMA3, "llama3": LLAMA3, "llama-v3": LLAMA3,
    "qwen2": QWEN, "deepseek-r1-qwen": QWEN,
    "tekken": Words(TEKKEN_WORDS, ignore_merges=True, add_bos=True),
}  # fmt: skip
# Types of tokens that are matched before words are split, and whether they are special.
ADDED = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}
# Architectures whose old files lack tokenizer.ggml.pre and use GPT-2's words.
WITHOUT_PRE = ("gpt2", "gptneox", "phi2")


def tokenizer_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of special tokens, as in tokenizer_config.json.

    ValueError: the type of tokenizer is not supported, or the metadata is corrupt.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise ValueError(f"tokenizer.ggml.model is {brief(model)}; supported are gpt2 and llama")
    tokens = strings(metadata, "tokens")
    settings: dict[str, Any] = {
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", model == "llama" or words_of(metadata).add_bos),
        "add_eos_token": metadata.get("tokenizer.ggml.add_eos_token", False),
    }
    defaults = {"bos": 1, "eos": 2} if model == "llama" else {}  # as in llama.cpp
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        id = metadata.get(f"tokenizer.ggml.{key}_token_id", defaults.get(name))
        if id is not None and not (type(id) is int and 0 <= id < len(tokens)):
            raise ValueError(f"tokenizer.ggml.{key}_token_id cannot be {brief(id)}")
        if id is not None:
            settings[f"{name}_token"] = tokens[id]
    return settings


def words_of(metadata: Mapping[str, Any]) -> Words:
    """The word splitting of a byte-level BPE. ValueError: it is not supported."""
    name = metadata.get("tokenizer.ggml.pre")
    if name in (None, "default") and metadata.get("general.architecture") in WITHOUT_PRE:
        name = "gpt-2"
    if not isinstance(name, str) or name not in PRE:
        raise ValueError(f"tokenizer.ggml.pre {brief(name)} is not supported; supported are {', '.join(PRE)}")
    return PRE[name]


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer, without bos and eos. Call `tokenizer_settings` first, which checks its type.

    ValueError: the metadata is corrupt.
    """
    tokens = strings(metadata, "tokens")
    check_lengths(tokens)
    kinds = [NORMAL] * len(tokens)
    if "tokenizer.ggml.token_type" in metadata:
        kinds = numbers(metadata, "token_type", len(tokens))
    build = byte_bpe if metadata["tokenizer.ggml.model"] == "gpt2" else sentencepiece
    return build(metadata, tokens, kinds)


def byte_bpe(metadata: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> Tokenizer:
    """Build a byte-level BPE."""
    words = words_of(metadata)
    ids = {token: id for id, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        raise ValueError("it has a duplicate token")
    pairs = [merge.split(" ") for merge in strings(metadata, "merges")]
    merges = [(left, right) for left, right in pairs]
    if not all(left + right in ids for left, right in merges):
        raise ValueError("the result of a merge is not a token")
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=words.ignore_merges))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if words.digits else []
    steps += [pre_tokenizers.Split(Regex(words.pattern), "isolated")] if words.pattern else []
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=words.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if words.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    added = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in ADDED]
    tokenizer.add_tokens([AddedToken(token, special=ADDED[kind], normalized=False) for token, kind in added])
    return tokenizer


def sentencepiece(metadata: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> Tokenizer:
    """Build a SentencePiece BPE."""
    scores = numbers(metadata, "scores", len(tokens))
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    if UNKNOWN not in kinds and unknown is not None:  # Gemma 3's files list it as a control token
        kinds = [*kinds[:unknown], UNKNOWN, *kinds[unknown + 1 :]]
    model = SentencePiece(
        [Piece(*piece) for piece in zip(tokens, scores, kinds, strict=True)],
        model_type=BPE,
        byte_fallback=BYTE in kinds,
        add_dummy_prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        remove_extra_whitespaces=bool(metadata.get("tokenizer.ggml.remove_extra_whitespaces", False)),
    )
    check_pieces(model)
    return sentencepiece_tokenizer(model)


def strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    """A list of strings in the metadata. ValueError: it is missing or invalid."""
    items = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError(f"tokenizer.ggml.{key} is not a list of strings")
    return items


def numbers(metadata: Mapping[str, Any], key: str, count: int) -> list[Any]:
    """An array of numbers in the metadata. ValueError: it is missing or has another length."""
    array = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(array, np.ndarray) or len(array) != count:
        raise ValueError(f"tokenizer.ggml.{key} does not have one number per token")
    return array.tolist()


def hub_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """The companions of a tokenizer.json: tokenizer_config.json, and the chat template if the file has one."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer_settings(metadata)}
    files = {"tokenizer_config.json": (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()}
    if isinstance(template := metadata.get("tokenizer.chat_template"), str):
        files["chat_template.jinja"] = template.encode()
    return files
