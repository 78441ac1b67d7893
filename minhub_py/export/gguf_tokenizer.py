"""The tokenizer of a GGUF file to write: the opposite direction of checkpoints/tokenizers/gguf_tokenizer.py.

A byte-level BPE is written with the name of its word pattern, a SentencePiece model with pieces, scores and types. The
tokenizer of a GGUF file is copied. A folder without a tokenizer is written without a vocabulary.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from minhub_py.checkpoints.gguf import GGUFCheckpoint
from minhub_py.checkpoints.storage import Checkpoint
from minhub_py.checkpoints.tokenizers.gguf_tokenizer import PRE, byte_bpe, set_words
from minhub_py.checkpoints.tokenizers.sentencepiece import BPE, CONTROL, USER_DEFINED, read_sentencepiece
from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer

UNUSED = 5  # type of a token ID without a token
# Text that the word patterns split differently.
PROBE = (
    "I'll We'LL don't 12345 a1b2 x==y!!\n\n  two  spaces\t\ttab \u00e9e\u0301 HelloWorld 3.14 (ok)/end"
    " \u4f60\u597d \r\n z"
)


def tokenizer_pairs(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the tokenizer and their values. ValueError: llama.cpp has no tokenizer of this kind."""
    if isinstance(checkpoint, GGUFCheckpoint):
        return {key: value for key, value in checkpoint.header.metadata.items() if key.startswith("tokenizer.")}
    folder = checkpoint.path
    if (folder / "tokenizer.model").exists():
        pairs = sentencepiece_pairs(folder, config["vocab_size"])
    elif any((folder / name).exists() for name in ("tokenizer.json", "vocab.json", "tekken.json", "merges.txt")):
        pairs = bpe_pairs(read_tokenizer(folder), config["vocab_size"])
    else:
        return {"tokenizer.ggml.model": "no_vocab"}
    return {**pairs, **special_ids(config), **settings_of(folder)}


def special_ids(config: Mapping[str, Any]) -> dict[str, int]:
    """The token IDs of begin, end, end of a turn, and padding."""
    ends = config.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    ids = {"bos": config.get("bos_token_id"), "eos": ends[0], "eot": ends[1] if len(ends) > 1 else None,
           "padding": config.get("pad_token_id")}  # fmt: skip
    return {f"tokenizer.ggml.{name}_token_id": id for name, id in ids.items() if id is not None and id >= 0}


def settings_of(folder: Path) -> dict[str, Any]:
    """Whether begin and end are added, and the chat template."""
    pairs: dict[str, Any] = {}
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in ("add_bos_token", "add_eos_token"):
        if isinstance(settings.get(name), bool):
            pairs[f"tokenizer.ggml.{name}"] = settings[name]
    template = folder / "chat_template.jinja"
    text = template.read_text(encoding="utf-8") if template.exists() else settings.get("chat_template")
    return pairs | ({"tokenizer.chat_template": text} if isinstance(text, str) else {})


def bpe_pairs(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """The vocabulary, merges and word pattern of a byte-level BPE. ValueError: it is another kind of tokenizer."""
    saved = json.loads(tokenizer.to_str())
    if saved["model"]["type"] != "BPE" or saved["model"].get("byte_fallback"):
        raise ValueError(
            f"the tokenizer ({saved['model']['type']}) is not a byte-level BPE: for a SentencePiece model, the folder "
            "must contain its tokenizer.model"
        )
    tokens = {id: token for token, id in tokenizer.get_vocab().items()}
    kinds = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in saved["added_tokens"]}
    count = max(vocab_size, max(tokens) + 1)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in saved["model"]["merges"]]
    pairs = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [tokens.get(id, f"[PAD{id}]") for id in range(count)],
        "tokenizer.ggml.token_type": np.array(
            [kinds.get(id, 1) if id in tokens else UNUSED for id in range(count)], np.int32
        ),
        "tokenizer.ggml.merges": merges,
    }
    return {**pairs, "tokenizer.ggml.pre": pre_of(tokenizer, pairs)}


def pre_of(tokenizer: Tokenizer, pairs: Mapping[str, Any]) -> str:
    """The name of the word pattern. ValueError: llama.cpp's patterns in this package split words differently."""
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding()
    expected = plain.encode(PROBE, add_special_tokens=False).ids
    words = splits(plain)
    ignores = bool(json.loads(plain.to_str())["model"].get("ignore_merges"))
    kinds = pairs["tokenizer.ggml.token_type"].tolist()
    for name, rule in PRE.items():
        splitter = Tokenizer(models.BPE())  # without a vocabulary, whose merges take seconds
        set_words(splitter, rule)
        # Some tokenizers with gpt-4o's words do not set ignore_merges; their merges form each token all the same.
        if splits(splitter) != words or (rule.ignore_merges != ignores and name != "gpt-4o"):
            continue
        other = byte_bpe({**pairs, "tokenizer.ggml.pre": name}, pairs["tokenizer.ggml.tokens"], kinds)
        if other.encode(PROBE, add_special_tokens=False).ids == expected:
            return name
    raise ValueError(f"the words of the tokenizer are split by none of {', '.join(PRE)}, so GGUF has no name for them")


def splits(tokenizer: Tokenizer) -> list[str]:
    """The words of `PROBE`."""
    text = tokenizer.normalizer.normalize_str(PROBE) if tokenizer.normalizer else PROBE
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] if tokenizer.pre_tokenizer else [text]


def sentencepiece_pairs(folder: Path, vocab_size: int) -> dict[str, Any]:
    """The pieces of a SentencePiece BPE. ValueError: it is a unigram model."""
    model = read_sentencepiece(folder / "tokenizer.model")
    if model.model_type != BPE:
        raise ValueError("the tokenizer.model is a unigram model, which llama.cpp has for encoders and T5 only")
    tokens = [piece.text for piece in model.pieces]
    scores, kinds = [piece.score for piece in model.pieces], [piece.kind for piece in model.pieces]
    added = {id: token for token, id in read_tokenizer(folder).get_vocab().items() if id >= len(tokens)}
    for id in range(len(tokens), max(vocab_size, *added, 0) if added else vocab_size):
        tokens.append(added.get(id, f"[PAD{id}]"))
        scores.append(-1000.0)
        kinds.append(USER_DEFINED if id in added else UNUSED)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.add_space_prefix": model.add_dummy_prefix,
    }
