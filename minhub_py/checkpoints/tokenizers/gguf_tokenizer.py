"""The tokenizer in a GGUF file's metadata -> a `tokenizers.Tokenizer`, and the files that hold it on the Hub.

    tokenizer.ggml.model "gpt2"     byte-level BPE. Its merges are there; of how a text is cut into words only a name,
                                    tokenizer.ggml.pre. The patterns stand in llama.cpp's src/llama-vocab.cpp
    tokenizer.ggml.model "llama"    sentencepiece's BPE: pieces, scores and kinds, as in a tokenizer.model

What a name of words stands for besides, Unicode's composed form (NFC) and words that are not merged, is as in the
tokenizer.json of the models that have it.
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
    """How a byte-level BPE cuts a text into words."""

    pattern: str | None = None  # None: GPT-2's
    digits: bool = False  # each is a word by itself
    nfc: bool = False
    whole: bool = False  # a word that is a token is not cut
    add_bos: bool = False  # unless the file says otherwise


GPT2 = Words()
DIGITS = Words(digits=True)
COMPOSED = Words(nfc=True)
LLAMA3 = Words(WORDS.format("{1,3}"), whole=True, add_bos=True)
QWEN = Words(WORDS.format(""), nfc=True)
PRE = {
    "gpt-2": GPT2, "phi-2": GPT2,
    "olmo": COMPOSED, "mpt": COMPOSED,  # GPT-NeoX's own is one of these
    "smollm": DIGITS, "starcoder": DIGITS, "refact": DIGITS,
    "llama-bpe": LLAMA3, "llama3": LLAMA3, "llama-v3": LLAMA3,
    "qwen2": QWEN, "deepseek-r1-qwen": QWEN,
    "tekken": Words(TEKKEN_WORDS, whole=True, add_bos=True),
}  # fmt: skip
# Kinds of tokens that a text is searched for first, and whether they are special.
MARKED = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}
# Architectures whose older files name no words.
OLDER = ("gpt2", "gptneox", "phi2")


def tokenizer_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a tokenizer_config.json would say of special tokens.

    ValueError: the tokenizer is of a kind without code, or its metadata is damaged.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"tokenizer.ggml.model is {brief(kind)}; this package reads gpt2 and llama")
    tokens = strings(metadata, "tokens")
    settings: dict[str, Any] = {
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or words_of(metadata).add_bos),
        "add_eos_token": metadata.get("tokenizer.ggml.add_eos_token", False),
    }
    usual = {"bos": 1, "eos": 2} if kind == "llama" else {}  # as in llama.cpp
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        id = metadata.get(f"tokenizer.ggml.{key}_token_id", usual.get(name))
        if id is not None and not (type(id) is int and 0 <= id < len(tokens)):
            raise ValueError(f"tokenizer.ggml.{key}_token_id cannot be {brief(id)}")
        if id is not None:
            settings[f"{name}_token"] = tokens[id]
    return settings


def words_of(metadata: Mapping[str, Any]) -> Words:
    """How a byte-level BPE cuts a text into words. ValueError: it is not known here."""
    name = metadata.get("tokenizer.ggml.pre")
    if name in (None, "default") and metadata.get("general.architecture") in OLDER:
        name = "gpt-2"
    if not isinstance(name, str) or name not in PRE:
        raise ValueError(f"tokenizer.ggml.pre {brief(name)} is not known here; known are {', '.join(PRE)}")
    return PRE[name]


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer, without what it puts around a text. `tokenizer_settings` has checked its kind.

    ValueError: the metadata is damaged.
    """
    tokens = strings(metadata, "tokens")
    check_lengths(tokens)
    no_kinds = "tokenizer.ggml.token_type" not in metadata
    kinds = [NORMAL] * len(tokens) if no_kinds else numbers(metadata, "token_type", len(tokens))
    make = byte_bpe if metadata["tokenizer.ggml.model"] == "gpt2" else sentencepiece
    return make(metadata, tokens, kinds)


def byte_bpe(metadata: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> Tokenizer:
    """A byte-level BPE."""
    words = words_of(metadata)
    ids = {token: id for id, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        raise ValueError("a token is there twice")
    pairs = [merge.split(" ") for merge in strings(metadata, "merges")]
    merges = [(left, right) for left, right in pairs]
    if not all(left + right in ids for left, right in merges):
        raise ValueError("a merge makes no token")
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=words.whole))
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if words.digits else []
    steps += [pre_tokenizers.Split(Regex(words.pattern), "isolated")] if words.pattern else []
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=words.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if words.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    marked = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in MARKED]
    tokenizer.add_tokens([AddedToken(token, special=MARKED[kind], normalized=False) for token, kind in marked])
    return tokenizer


def sentencepiece(metadata: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> Tokenizer:
    """A BPE of sentencepiece's pieces."""
    scores = numbers(metadata, "scores", len(tokens))
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    if UNKNOWN not in kinds and unknown is not None:  # in Gemma 3's files it is one of the control tokens
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
    """A list of the tokenizer's. ValueError: it is missing, or is none of strings."""
    found = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError(f"tokenizer.ggml.{key} is no list of strings")
    return found


def numbers(metadata: Mapping[str, Any], key: str, count: int) -> list[Any]:
    """An array of the tokenizer's numbers. ValueError: it is missing, or has another length."""
    array = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(array, np.ndarray) or len(array) != count:
        raise ValueError(f"tokenizer.ggml.{key} does not fit the tokens")
    return array.tolist()


def hub_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """What stands beside a tokenizer.json on the Hub: tokenizer_config.json, and the chat template if there is one."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer_settings(metadata)}
    files = {"tokenizer_config.json": (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()}
    if isinstance(template := metadata.get("tokenizer.chat_template"), str):
        files["chat_template.jinja"] = template.encode()
    return files
