"""A GGUF file's tokenizer to write: the opposite direction of
checkpoints/tokenizers/gguf_tokenizer.py.

A byte-level BPE is written with the name of its word pattern, a SentencePiece model with pieces,
scores and types, and Gemma 4's BPE of characters with its merges. A GGUF file's tokenizer is
copied. A folder without a tokenizer is written without a vocabulary.
"""

import json
import re
import warnings
from pathlib import Path
from reprlib import repr as brief

import numpy as np
from tokenizers import Tokenizer, models

from minhub_py.checkpoints.chat_templates import folder_templates, gguf_pairs, gguf_templates
from minhub_py.checkpoints.gguf import GGUFCheckpoint
from minhub_py.checkpoints.gguf_header import Skipped, read_header
from minhub_py.checkpoints.storage import Checkpoint, read_settings
from minhub_py.checkpoints.tokenizers.encoder_tokenizer import FAMILIES
from minhub_py.checkpoints.tokenizers.gguf_tokenizer import PRE, byte_bpe, set_words
from minhub_py.checkpoints.tokenizers.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    read_sentencepiece,
)
from minhub_py.checkpoints.tokenizers.surroundings import named_bos
from minhub_py.checkpoints.tokenizers.tokenizer import (
    encode,
    read_gguf,
    read_tokenizer,
    surrounding_ids,
)
from minhub_py.system.json_text import JsonMapping, JsonObject

# Special tokens of Gemma 4 that llama.cpp writes in its output, for parsers of tool calls and
# reasoning.
VISIBLE = {
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
}
END_KEYS = ("eos", "eot", "eom")
MAX_SPECIAL = 200  # special tokens that are compared
# Text that the word patterns split differently.
PROBE = (
    "I'll We'LL don't 12345 a1b2 x==y!!\n\n  two  spaces\t\ttab \u00e9e\u0301 HelloWorld 3.14"
    " (ok)/end \u4f60\u597d \r\n z"
)


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer | None:
    """The tokenizer to write; None without a tokenizer, and for a GGUF file's copied keys."""
    folder = checkpoint.path
    names = (
        "tokenizer.model",
        "spiece.model",
        "tokenizer.json",
        "vocab.json",
        "tekken.json",
        "merges.txt",
    )
    return (
        read_tokenizer(folder)
        if folder.is_dir() and any((folder / name).exists() for name in names)
        else None
    )


def tokenizer_pairs(
    checkpoint: Checkpoint, config: JsonMapping, tokenizer: Tokenizer | None
) -> JsonObject:
    """The keys of the tokenizer and their values. ValueError: llama.cpp has no tokenizer of this
    kind.
    """
    if isinstance(checkpoint, GGUFCheckpoint):
        metadata = checkpoint.header.metadata
        copied = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
        return {
            key: value for key, value in copied.items() if not isinstance(value, Skipped)
        } | gguf_pairs(gguf_templates(metadata))
    if tokenizer is None:
        return {"tokenizer.ggml.model": "no_vocab"}
    folder, is_gemma4 = checkpoint.path, config["model_type"] == "gemma4_text"
    models = [
        folder / name for name in ("tokenizer.model", "spiece.model") if (folder / name).exists()
    ]
    if is_gemma4 and (folder / "tokenizer.json").exists():
        pairs = character_bpe_pairs(tokenizer, config["vocab_size"])
    elif models:
        pairs = sentencepiece_pairs(models[0], config, tokenizer)
    else:
        pairs = bpe_pairs(tokenizer, config["vocab_size"])
    pairs |= special_pairs(tokenizer, config) | gguf_pairs(templates_of(folder))
    return pairs | (encoder_pairs(folder, pairs) if config["model_type"] == "modernbert" else {})


def check_tokenizer(path: Path, tokenizer: Tokenizer, folder: Path) -> None:
    """ValueError: a written file's tokenizer, or its chat templates, differ from the folder's."""
    written, metadata = read_gguf(path), read_header(path).metadata
    special = [
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    ]
    # A SentencePiece model treats the space before a word differently after a special token.
    marked = "" if "tokenizer.ggml.scores" in metadata else "a".join(special[:MAX_SPECIAL])
    forced = metadata["tokenizer.ggml.model"] == "gemma4" and not surrounding_ids(tokenizer)[0]
    if forced:
        warnings.warn(
            "programs add <bos> to each text of a Gemma 4 file, but the folder's tokenizer does"
            " not: encode without special tokens for the same token IDs",
            stacklevel=3,
        )
    for text in ("", PROBE, marked):
        actual, expected = (
            encode(source, text, add_special_tokens=not forced) for source in (written, tokenizer)
        )
        if actual != expected:
            raise ValueError(
                f"a GGUF file cannot express this tokenizer: {brief(text)} has the tokens"
                f" {brief(actual)} instead of {brief(expected)}"
            )
    if gguf_pairs(gguf_templates(metadata)) != gguf_pairs(templates_of(folder)):
        raise ValueError("the chat templates of the GGUF file differ from the folder's")


def templates_of(folder: Path) -> dict[str, str]:
    """A folder's chat templates by name."""
    return folder_templates(
        folder, read_settings(folder, "special_tokens_map.json", "tokenizer_config.json")
    )[0]


def encoder_pairs(folder: Path, pairs: JsonMapping) -> dict[str, object]:
    """The keys of ModernBERT's tokenizer, which adds special tokens to each text. ValueError: it
    has other words.
    """
    if PRE[pairs["tokenizer.ggml.pre"]] != PRE["modern-bert"]:
        raise ValueError(
            f"llama.cpp has no ModernBERT with the words of {pairs['tokenizer.ggml.pre']}"
        )
    tokens, special = pairs["tokenizer.ggml.tokens"], FAMILIES["modernbert"].tokens
    # llama.cpp's spelling
    keys = {"cls": "cls", "sep": "seperator", "mask": "mask", "unk": "unknown"}
    ids = {
        f"tokenizer.ggml.{key}_token_id": tokens.index(special[f"{name}_token"])
        for name, key in keys.items()
        if special[f"{name}_token"] in tokens
    }
    added = {f"tokenizer.ggml.add_{name}_token": True for name in ("bos", "eos", "sep")}
    return {"tokenizer.ggml.pre": "modern-bert", **ids, **added}


def special_pairs(tokenizer: Tokenizer, config: JsonMapping) -> dict[str, object]:
    """The token IDs of begin, ends and padding, and whether begin and end are added to each text.

    The tokenizer decides, because tokenizer_config.json may lack or contradict its settings.
    ValueError: the tokenizer adds several tokens before or after a text.
    """
    before, after = surrounding_ids(tokenizer)
    if len(before) > 1 or len(after) > 1:
        raise ValueError(
            f"a GGUF file cannot express this tokenizer: it adds {len(before)} tokens before and"
            f" {len(after)} after each text, but at most one is possible"
        )
    ends = config.get("eos_token_id")
    ends = list(dict.fromkeys([*after, *(ends if isinstance(ends, list) else [ends])]))
    named = named_bos(tokenizer)
    ids = {
        "bos": before[0] if before else config.get("bos_token_id") if named is None else named,
        "padding": config.get("pad_token_id"),
        **dict(zip(END_KEYS, ends, strict=False)),
    }
    if len(ends) > len(END_KEYS):
        warnings.warn(
            f"the GGUF file lacks {len(ends) - len(END_KEYS)} of the {len(ends)} tokens that end a"
            " text: stop at"
            f" {', '.join(brief(tokenizer.id_to_token(id)) for id in ends[len(END_KEYS) :])} in the"
            " client",
            stacklevel=3,
        )
    pairs: JsonObject = {
        f"tokenizer.ggml.{name}_token_id": id
        for name, id in ids.items()
        if id is not None and id >= 0
    }
    return pairs | {
        "tokenizer.ggml.add_bos_token": bool(before),
        "tokenizer.ggml.add_eos_token": bool(after),
    }


def bpe_pairs(tokenizer: Tokenizer, vocab_size: int) -> dict[str, object]:
    """The vocabulary, merges and word pattern of a byte-level BPE. ValueError: it is another kind
    of tokenizer.
    """
    saved = json.loads(tokenizer.to_str())
    if saved["model"]["type"] != "BPE" or saved["model"].get("byte_fallback"):
        raise ValueError(
            f"the tokenizer ({saved['model']['type']}) is not a byte-level BPE: for a SentencePiece"
            " model, the folder must contain its tokenizer.model"
        )
    pairs = {"tokenizer.ggml.model": "gpt2", **vocabulary_pairs(tokenizer, vocab_size)}
    return {**pairs, "tokenizer.ggml.pre": pre_of(tokenizer, pairs)}


def vocabulary_pairs(tokenizer: Tokenizer, vocab_size: int) -> JsonObject:
    """A BPE's tokens, their types, and merges."""
    saved = json.loads(tokenizer.to_str())
    tokens = {id: token for token, id in tokenizer.get_vocab().items()}
    kinds = {
        token["id"]: CONTROL if token["special"] else USER_DEFINED
        for token in saved["added_tokens"]
    }
    count = max(vocab_size, max(tokens) + 1)
    merges = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in saved["model"]["merges"]
    ]
    return {
        "tokenizer.ggml.tokens": [tokens.get(id, f"[PAD{id}]") for id in range(count)],
        "tokenizer.ggml.token_type": np.array(
            [kinds.get(id, NORMAL) if id in tokens else UNUSED for id in range(count)], np.int32
        ),
        "tokenizer.ggml.merges": merges,
    }


def character_bpe_pairs(tokenizer: Tokenizer, vocab_size: int) -> JsonObject:
    """The vocabulary and merges of Gemma 4. ValueError: it is another kind of tokenizer."""
    model = json.loads(tokenizer.to_str())["model"]
    if model["type"] != "BPE" or not model.get("byte_fallback"):
        raise ValueError(
            f"the tokenizer ({model['type']}) is not a BPE with tokens of bytes, as Gemma 4's is"
        )
    pairs = {"tokenizer.ggml.model": "gemma4", **vocabulary_pairs(tokenizer, vocab_size)}
    kinds = pairs["tokenizer.ggml.token_type"]
    for id, token in enumerate(pairs["tokenizer.ggml.tokens"]):
        if re.fullmatch("<0x[0-9A-F]{2}>", token):
            kinds[id] = BYTE
        elif token in VISIBLE:
            kinds[id] = USER_DEFINED
    unknown = tokenizer.token_to_id(model["unk_token"] or "")
    pairs |= {} if unknown is None else {"tokenizer.ggml.unknown_token_id": unknown}
    return pairs | {"tokenizer.ggml.add_space_prefix": False}


def pre_of(tokenizer: Tokenizer, pairs: JsonMapping) -> str:
    """The name of the word pattern. ValueError: llama.cpp's patterns in this package split words
    differently.
    """
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding()
    expected = plain.encode(PROBE, add_special_tokens=False).ids
    words = splits(plain)
    ignores = bool(json.loads(plain.to_str())["model"].get("ignore_merges"))
    kinds = pairs["tokenizer.ggml.token_type"].tolist()
    for name, rule in PRE.items():
        splitter = Tokenizer(models.BPE())  # without a vocabulary, whose merges take seconds
        set_words(splitter, rule)
        # Some tokenizers with gpt-4o's words do not set ignore_merges; their merges form each token
        # all the same.
        if splits(splitter) != words or (rule.ignore_merges != ignores and name != "gpt-4o"):
            continue
        candidate = byte_bpe(
            {**pairs, "tokenizer.ggml.pre": name}, pairs["tokenizer.ggml.tokens"], kinds
        )
        if candidate.encode(PROBE, add_special_tokens=False).ids == expected:
            return name
    raise ValueError(
        f"the words of the tokenizer are split by none of {', '.join(PRE)}, so GGUF has no name for"
        " them"
    )


def splits(tokenizer: Tokenizer) -> list[str]:
    """The words of `PROBE`."""
    text = tokenizer.normalizer.normalize_str(PROBE) if tokenizer.normalizer else PROBE
    return (
        [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        if tokenizer.pre_tokenizer
        else [text]
    )


def sentencepiece_pairs(path: Path, config: JsonMapping, tokenizer: Tokenizer) -> dict[str, object]:
    """The pieces of a SentencePiece BPE, or of T5's unigram model. ValueError: it is another
    unigram model.
    """
    model, vocab_size = read_sentencepiece(path), config["vocab_size"]
    if model.model_type != BPE and config["model_type"] != "t5":
        raise ValueError(
            f"the {path.name} is a unigram model, which llama.cpp has for encoders and T5 only"
        )
    tokens = [piece.text for piece in model.pieces]
    scores, kinds = [piece.score for piece in model.pieces], [piece.kind for piece in model.pieces]
    added = {id: token for token, id in tokenizer.get_vocab().items() if id >= len(tokens)}
    for id in range(len(tokens), max(vocab_size, *(id + 1 for id in added), 0)):
        tokens.append(added.get(id, f"[PAD{id}]"))
        scores.append(-1000.0)
        kinds.append(USER_DEFINED if id in added else UNUSED)
    pairs: JsonObject = {
        "tokenizer.ggml.model": "llama" if model.model_type == BPE else "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.add_space_prefix": model.add_dummy_prefix,
    }
    if model.model_type != BPE:
        pairs["tokenizer.ggml.remove_extra_whitespaces"] = model.remove_extra_whitespaces
        if model.charsmap:
            pairs["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(model.charsmap, np.uint8)
    return pairs
