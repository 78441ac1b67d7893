"""Tokenizers from the metadata of GGUF files, and the corresponding files on the Hub.

    tokenizer.ggml.model "gpt2"     byte-level BPE with merges. The word pattern has a name only, tokenizer.ggml.pre
    tokenizer.ggml.model "llama"    SentencePiece BPE: pieces, scores and types, as in a tokenizer.model
    tokenizer.ggml.model "bert"     WordPiece: "\u2581" precedes the beginning of a word, and a later part has no ##
    tokenizer.ggml.model "t5"       SentencePiece unigram of T5 and XLM-RoBERTa
    tokenizer.ggml.model "gemma4"   BPE of characters with merges, and tokens of bytes: Gemma 4

Encoders (the architectures bert and modern-bert) have "bert", "t5" or "gpt2".

Sources: llama.cpp's src/llama-vocab.cpp for word patterns; the models' tokenizer.json for
normalization (NFC) and for words that are not split.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from minhub_py.checkpoints.chat_templates import gguf_templates, template_files
from minhub_py.checkpoints.tokenizers.encoder_tokenizer import (
    FAMILIES,
    set_wordpiece_normalizer,
    surround_pairs,
    wordpiece_tokenizer,
    words_of_unigram,
)
from minhub_py.checkpoints.tokenizers.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePiece,
    check_pieces,
    sentencepiece_tokenizer,
)
from minhub_py.checkpoints.tokenizers.tiktoken import WORDS
from minhub_py.checkpoints.tokenizers.tokenizer_json import check_charsmap
from minhub_py.checkpoints.tokenizers.vocabulary import check_lengths
from minhub_py.system.json_text import JsonMapping, JsonObject

# The word pattern of OpenAI's o200k; its fields are endings and the number of digits in a word.
# Mistral's tekken.json has it without endings.
CASED_WORDS = (
    r"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{0}"
    r"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{0}"
    r"|\p{{N}}{1}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Words:
    """Word splitting of byte-level BPE."""

    pattern: str | None = None  # None: GPT-2's
    digits: bool = False  # each digit is a separate word
    falcon: bool = False  # GPT-2's, but adjacent punctuation and each three digits are words
    nfc: bool = False
    ignore_merges: bool = False  # a word that is a token is not split
    add_bos: bool = False  # the default of add_bos_token


GPT2 = Words()
DIGITS = Words(digits=True)
COMPOSED = Words(nfc=True)
LLAMA3 = Words(WORDS.format("{1,3}"), ignore_merges=True, add_bos=True)
QWEN = Words(WORDS.format(""), nfc=True)
# Qwen 3.5's words include combining marks.
QWEN35 = Words(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    nfc=True,
)
PRE = {
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "roberta-bpe": GPT2,
    "olmo": COMPOSED,
    "mpt": COMPOSED,  # GPT-NeoX uses one of these
    "modern-bert": COMPOSED,
    "falcon": Words(falcon=True),
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "refact": DIGITS,
    "command-r": Words(digits=True, nfc=True),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "lfm2": LLAMA3,
    "falcon-h1": LLAMA3,
    "dbrx": Words(WORDS.format("{1,3}")),
    "qwen2": QWEN,
    "deepseek-r1-qwen": QWEN,
    "qwen35": QWEN35,
    "tekken": Words(CASED_WORDS.format("", ""), ignore_merges=True, add_bos=True),
    "gpt-4o": Words(
        CASED_WORDS.format("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}"), ignore_merges=True
    ),
}
# Types of tokens that are matched before words are split, and whether they are special.
ADDED = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}
# Architectures whose old files lack tokenizer.ggml.pre and use GPT-2's words.
WITHOUT_PRE = ("gpt2", "gptneox", "phi2")
# The family of an encoder by its architecture and tokenizer.ggml.model.
ENCODERS = {
    ("bert", "bert"): "bert",
    ("bert", "t5"): "xlm-roberta",
    ("bert", "gpt2"): "roberta",
    ("modern-bert", "gpt2"): "modernbert",
}


def tokenizer_settings(metadata: Mapping[str, object]) -> dict[str, object]:
    """The settings of special tokens, as in tokenizer_config.json.

    ValueError: the type of tokenizer is not supported, or the metadata is corrupt.
    """
    model = metadata.get("tokenizer.ggml.model")
    if encoder_family(metadata):
        return special_tokens(metadata, {})
    if not isinstance(model, str) or model not in BUILDERS:
        raise ValueError(
            f"tokenizer.ggml.model is {brief(model)}; supported are {', '.join(BUILDERS)}: use the"
            " original repository's tokenizer.json"
        )
    add_bos = words_of(metadata).add_bos if model == "gpt2" else model != "t5"
    settings: dict[str, object] = {
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", add_bos) or model == "gemma4",
        "add_eos_token": metadata.get("tokenizer.ggml.add_eos_token", model == "t5"),
    }
    return settings | special_tokens(metadata, DEFAULT_IDS.get(str(model), {}))


def encoder_family(metadata: Mapping[str, object]) -> str | None:
    """The family of an encoder's tokenizer; None for other architectures."""
    names = metadata.get("general.architecture"), metadata.get("tokenizer.ggml.model")
    return next((family for key, family in ENCODERS.items() if key == names), None)


def special_tokens(metadata: Mapping[str, object], defaults: Mapping[str, int]) -> JsonObject:
    """The special tokens by their names in tokenizer_config.json. ValueError: an ID is invalid."""
    tokens = strings(metadata, "tokens")
    settings = {}
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    if encoder_family(metadata):
        keys |= {"cls": "cls", "sep": "seperator", "mask": "mask"}  # llama.cpp's spelling
    for name, key in keys.items():
        id = metadata.get(f"tokenizer.ggml.{key}_token_id", defaults.get(name))
        if id is not None and not (type(id) is int and 0 <= id < len(tokens)):
            raise ValueError(f"tokenizer.ggml.{key}_token_id cannot be {brief(id)}")
        if id is not None:
            settings[f"{name}_token"] = tokens[id]
    return settings


def words_of(metadata: Mapping[str, object]) -> Words:
    """The word splitting of a byte-level BPE. ValueError: it is not supported."""
    name = metadata.get("tokenizer.ggml.pre")
    if name in (None, "default") and metadata.get("general.architecture") in WITHOUT_PRE:
        name = "gpt-2"
    if not isinstance(name, str) or name not in PRE:
        raise ValueError(
            f"tokenizer.ggml.pre {brief(name)} is not supported; supported are {', '.join(PRE)}"
        )
    return PRE[name]


def gguf_tokenizer(metadata: JsonMapping) -> Tokenizer:
    """The tokenizer, without bos and eos. Call `tokenizer_settings` first, which checks its type.

    ValueError: the metadata is corrupt.
    """
    tokens = strings(metadata, "tokens")
    check_lengths(tokens)
    kinds = [NORMAL] * len(tokens)
    if "tokenizer.ggml.token_type" in metadata:
        kinds = numbers(metadata, "token_type", len(tokens))
    if family := encoder_family(metadata):
        return encoder_tokenizer(metadata, family, tokens, kinds)
    return BUILDERS[metadata["tokenizer.ggml.model"]](metadata, tokens, kinds)


def encoder_tokenizer(
    metadata: Mapping[str, object], family: str, tokens: list[str], kinds: list[int]
) -> Tokenizer:
    """Build an encoder's tokenizer, with special tokens around a text and a pair."""
    names = {**FAMILIES[family].tokens, **special_tokens(metadata, {})}
    mask = names["mask_token"]
    names["mask_token"] = mask if isinstance(mask, str) else mask["content"]
    # Files have cls and sep, or name them bos and eos.
    start, end = (
        special.get(f"{new}_token") or special.get(f"{old}_token") or names[f"{new}_token"]
        for special in [special_tokens(metadata, {})]
        for new, old in (("cls", "bos"), ("sep", "eos"))
    )
    if family == "bert":
        texts = [restored(token, kind) for token, kind in zip(tokens, kinds, strict=True)]
        tokenizer = wordpiece_tokenizer(
            {token: id for id, token in enumerate(texts)}, names["unk_token"]
        )
        set_wordpiece_normalizer(
            tokenizer, {"do_lower_case": metadata.get("tokenizer.ggml.normalizer.lowercase")}
        )
    elif family == "xlm-roberta":
        texts, scores = tokens, numbers(metadata, "scores", len(tokens))
        # Special tokens have the scores that transformers gives them.
        entries = [
            (token, 0.0 if kind in ADDED else score)
            for token, score, kind in zip(tokens, scores, kinds, strict=True)
        ]
        prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        tokenizer = words_of_unigram(entries, charsmap_of(metadata), prefix=prefix)
    else:
        texts, tokenizer = tokens, byte_bpe(metadata, tokens, kinds)
    special = {*names.values(), start, end}
    special |= {token for token, kind in zip(texts, kinds, strict=True) if ADDED.get(kind)}
    lstrip = family != "bert"
    tokenizer.add_tokens(
        [
            AddedToken(
                token,
                special=True,
                normalized=False,
                lstrip=lstrip and token == names["mask_token"],
            )
            for token in texts
            if token in special
        ]
    )
    surround_pairs(
        tokenizer, family, start, end, prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix"))
    )
    return tokenizer


def restored(token: str, kind: int) -> str:
    """A token of WordPiece in its original form."""
    if kind == CONTROL:
        return token
    return token[1:] if token.startswith(SPACE) else f"##{token}"


def charsmap_of(metadata: Mapping[str, object]) -> bytes:
    """The map of characters; empty if missing. ValueError: it is corrupt."""
    array = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if array is None:
        return b""
    if not isinstance(array, np.ndarray) or array.itemsize != 1:
        raise ValueError("tokenizer.ggml.precompiled_charsmap is not an array of bytes")
    charsmap = array.tobytes()
    if charsmap:
        check_charsmap(charsmap)
    return charsmap


def byte_bpe(metadata: Mapping[str, object], tokens: list[str], kinds: list[int]) -> Tokenizer:
    """Build a byte-level BPE."""
    words = words_of(metadata)
    ids, merges = ids_and_merges(metadata, tokens)
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=words.ignore_merges))
    set_words(tokenizer, words, prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix")))
    add_tokens(tokenizer, tokens, kinds)
    return tokenizer


def ids_and_merges(
    metadata: Mapping[str, object], tokens: list[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and merges of a BPE. ValueError: they are invalid."""
    ids = {token: id for id, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        raise ValueError("it has a duplicate token")
    pairs = [merge.split(" ") for merge in strings(metadata, "merges")]
    merges = [(left, right) for left, right in pairs]
    if not all(left + right in ids for left, right in merges):
        raise ValueError("the result of a merge is not a token")
    return ids, merges


def add_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Add the tokens that are matched before words are split."""
    added = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in ADDED]
    tokenizer.add_tokens(
        [AddedToken(token, special=ADDED[kind], normalized=False) for token, kind in added]
    )


def set_words(tokenizer: Tokenizer, words: Words, prefix: bool = False) -> None:
    """Split words as `words` says. prefix: a space before the text."""
    steps: list[pre_tokenizers.PreTokenizer] = (
        [pre_tokenizers.Digits(individual_digits=True)] if words.digits else []
    )
    steps += [pre_tokenizers.Split(Regex(words.pattern), "isolated")] if words.pattern else []
    steps += [pre_tokenizers.Punctuation("contiguous")] if words.falcon else []
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=words.pattern is None))
    if words.falcon:
        steps.append(pre_tokenizers.Digits(individual_digits=False))
        steps.append(pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if words.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()


def character_bpe(metadata: JsonMapping, tokens: list[str], kinds: list[int]) -> Tokenizer:
    """Build the tokenizer of Gemma 4. Characters without a token become bytes; lines and line
    breaks are words.
    """
    ids, merges = ids_and_merges(metadata, tokens)
    id = metadata.get("tokenizer.ggml.unknown_token_id")
    unknown = None if id is None else tokens[id]
    tokenizer = Tokenizer(
        models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    add_tokens(tokenizer, tokens, kinds)
    return tokenizer


def sentencepiece(metadata: JsonMapping, tokens: list[str], kinds: list[int]) -> Tokenizer:
    """Build a SentencePiece BPE, or the unigram model of T5."""
    scores = numbers(metadata, "scores", len(tokens))
    # Gemma 3's files list it as a control token; Phi-3's, also IDs without a token
    if kinds.count(UNKNOWN) != 1:
        unknown = metadata.get(
            "tokenizer.ggml.unknown_token_id", DEFAULT_IDS[metadata["tokenizer.ggml.model"]]["unk"]
        )
        kinds = [UNUSED if kind == UNKNOWN else kind for kind in kinds]
        kinds[unknown] = UNKNOWN
    model = SentencePiece(
        [Piece(*piece) for piece in zip(tokens, scores, kinds, strict=True)],
        model_type=UNIGRAM if metadata["tokenizer.ggml.model"] == "t5" else BPE,
        byte_fallback=BYTE in kinds,
        charsmap=charsmap_of(metadata),
        add_dummy_prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        remove_extra_whitespaces=bool(
            metadata.get("tokenizer.ggml.remove_extra_whitespaces", False)
        ),
    )
    check_pieces(model)
    return sentencepiece_tokenizer(model)


def strings(metadata: Mapping[str, object], key: str) -> list[str]:
    """A list of strings in the metadata. ValueError: it is missing or invalid."""
    items = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError(f"tokenizer.ggml.{key} is not a list of strings")
    return items


def numbers(metadata: Mapping[str, object], key: str, count: int) -> list[Any]:
    """An array of numbers in the metadata. ValueError: it is missing or has another length."""
    array = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(array, np.ndarray) or len(array) != count:
        raise ValueError(f"tokenizer.ggml.{key} does not have one number per token")
    return array.tolist()


def hub_files(metadata: Mapping[str, object]) -> dict[str, bytes]:
    """The companions of a tokenizer.json: tokenizer_config.json, and the file's chat templates."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer_settings(metadata)}
    files = {
        "tokenizer_config.json": (
            (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
        )
    }
    return files | template_files(gguf_templates(metadata))


# tokenizer.ggml.model -> a decoder's tokenizer, and the IDs of special tokens that llama.cpp
# assumes.
BUILDERS = {"gpt2": byte_bpe, "llama": sentencepiece, "t5": sentencepiece, "gemma4": character_bpe}
DEFAULT_IDS = {"llama": {"bos": 1, "eos": 2, "unk": 0}, "t5": {"eos": 1, "unk": 2, "pad": 0}}
