"""Tokenizers from tiktoken files (Llama 3, Qwen) and Mistral's tekken.json: byte-level BPE by
ranks.

These files list tokens as bytes, ordered by rank. BPE merges two adjacent tokens if their
concatenation is a token, starting with the lowest rank. A word that is a token is not split.
tiktoken files lack the word pattern and the special tokens, which are defined here; tekken.json has
its own pattern.

Sources: Meta's llama-models (llama3/tokenizer.py), Qwen's tokenization_qwen.py, and
mistral-common's tekken.py.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, TypedDict

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from minhub_py.checkpoints.tokenizers.vocabulary import check_lengths, cuts
from minhub_py.system.files import read_bytes
from minhub_py.system.json_text import JsonObject
from minhub_py.system.printable import reason_of
from minhub_py.system.shapes import Within, convert, read_json

# The word pattern of OpenAI's cl100k. {} is the number of digits in a word.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The number of tokens distinguishes Llama 3's tokenizer.model from other models', which have other
# word patterns.
LLAMA3_TOKENS = 128_000
# Special tokens that are not reserved, by their offset from the first. The names are Llama 3.1's on
# the Hub.
LLAMA3 = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    4: "<|finetune_right_pad_id|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    8: "<|eom_id|>",
    9: "<|eot_id|>",
    10: "<|python_tag|>",
}
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))
# Special tokens of a tekken.json that lists none. Further ones are <SPECIAL_20> and so on.
TEKKEN = """<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS]
    [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT]
    [TOOL_CONTENT]""".split()


@dataclass(frozen=True)
class Ranks:
    """A file's content.

    Attributes:
        tokens: as bytes, ordered by rank.
        pattern: the word pattern.
        special: special tokens.
        special_first: special tokens have the first IDs, otherwise the last.
        bos: the token before each text.
        eos: the token after a text.
        nfc: texts are normalized to NFC.
    """

    tokens: Sequence[bytes] = field(repr=False)
    pattern: str
    special: Sequence[str] = ()
    special_first: bool = False
    bos: str | None = None
    eos: str | None = None
    nfc: bool = False


def read_tiktoken(path: Path) -> Ranks:
    """Read a tiktoken file of Qwen or Llama 3: lines of a base64 token and a rank. ValueError: it
    is corrupt.
    """
    try:
        lines = [line.split() for line in read_bytes(path).splitlines() if line]
        tokens = [base64.b64decode(token, validate=True) for token, _ in lines]
        if [int(rank) for _, rank in lines] != list(range(len(lines))):
            raise ValueError("its ranks are not 0, 1, 2, …")
        check_tokens(tokens)
    except ValueError as error:
        raise ValueError(
            f"{path} is not a tiktoken file ({reason_of(error)}): if it is corrupt or truncated,"
            " download it again"
        ) from error
    if path.suffix == ".tiktoken":
        return Ranks(tokens, WORDS.format(""), QWEN, eos=QWEN[0], nfc=True)
    if len(tokens) != LLAMA3_TOKENS:
        raise ValueError(
            f"{path} has {len(tokens):,} tokens instead of Llama 3's {LLAMA3_TOKENS:,}. The word"
            " patterns of other models are unknown: use a tokenizer.json"
        )
    return Ranks(tokens, WORDS.format("{1,3}"), llama3_special(), bos=LLAMA3[0], eos=LLAMA3[1])


def llama3_special() -> list[str]:
    """Llama 3's 256 special tokens."""
    reserved = (f"<|reserved_special_token_{i}|>" for i in range(256))
    return [LLAMA3.get(i) or next(reserved) for i in range(256)]


class TekkenConfig(TypedDict):
    """The settings of a tekken.json."""

    pattern: str
    default_vocab_size: int
    default_num_special_tokens: Annotated[int, Within(0, 2**16)]


class TekkenToken(TypedDict):
    """A token of a tekken.json; its bytes are in base64."""

    rank: int
    token_bytes: str


class TekkenSpecial(TypedDict):
    """A special token of a tekken.json."""

    rank: int
    token_str: str


class RequiredTekken(TypedDict):
    """The content of a tekken.json of the first versions."""

    config: TekkenConfig
    vocab: list[TekkenToken]


class Tekken(RequiredTekken, total=False):
    """The content of a tekken.json."""

    special_tokens: list[TekkenSpecial]


def read_tekken(path: Path) -> Ranks:
    """Read Mistral's tekken.json. ValueError: it is corrupt."""
    content = read_json(path, JsonObject)
    try:
        content = convert(content, Tekken)
        config, vocabulary = content["config"], content["vocab"]
        total, special_count = config["default_vocab_size"], config["default_num_special_tokens"]
        if not 0 < total - special_count <= len(vocabulary):
            raise ValueError("its numbers of tokens are inconsistent")
        # the file may list more tokens than the model has
        vocabulary = vocabulary[: total - special_count]
        tokens = [base64.b64decode(entry["token_bytes"], validate=True) for entry in vocabulary]
        if [entry["rank"] for entry in vocabulary] != list(range(len(tokens))):
            raise ValueError("its ranks are not 0, 1, 2, …")
        check_tokens(tokens)
        names = {entry["rank"]: entry["token_str"] for entry in content.get("special_tokens") or ()}
        names = names or dict(enumerate(TEKKEN))
        special = [names.get(i, f"<SPECIAL_{i}>") for i in range(special_count)]
        if not all((config["pattern"], *special)) or len(set(special)) < special_count:
            raise ValueError(
                "its pattern or a special token is empty, or a special token is a duplicate"
            )
    except ValueError as error:
        raise ValueError(
            f"{path} is not a tekken tokenizer ({reason_of(error)}): download it again"
        ) from error
    bos, eos = (token if token in special else None for token in ("<s>", "</s>"))
    return Ranks(tokens, config["pattern"], special, special_first=True, bos=bos, eos=eos)


def check_tokens(tokens: Sequence[bytes]) -> None:
    """ValueError: tokens are empty, duplicate or too long, or a single byte is missing."""
    check_lengths(tokens)
    if not all(tokens) or len(set(tokens)) < len(tokens):
        raise ValueError("a token is empty or a duplicate")
    if not {bytes([byte]) for byte in range(256)} <= set(tokens):
        raise ValueError("tokens of single bytes are missing")


def byte_bpe(ranks: Ranks, special: Sequence[str] | None = None) -> Tokenizer:
    """A file's tokenizer, without bos and eos. special: replaces the names of the special
    tokens.
    """
    special = ranks.special if special is None else special
    names = list(map(letters, ranks.tokens))
    if ranks.special_first:
        names = [*ranks.special, *names]
    ids = {name: id for id, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(ids, merges(ranks.tokens), ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(ranks.pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    if ranks.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in special]
    )
    return tokenizer


@cache
def alphabet() -> dict[int, str]:
    """Each byte's character in byte-level BPE: Latin-1's if printable, otherwise one from
    U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(0x100 + i) for i, byte in enumerate(hidden)
    }


def letters(token: bytes) -> str:
    """A token as characters of byte-level BPE."""
    return token.decode("latin-1").translate(alphabet())


def merges(tokens: Sequence[bytes]) -> list[tuple[str, str]]:
    """All pairs of tokens that form a token, ordered by rank."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    by_rank = sorted(
        (ranks[token], ranks[left], ranks[right]) for token, left, right in cuts(tokens)
    )
    names = list(map(letters, tokens))
    return [(names[left], names[right]) for _, left, right in by_rank]
