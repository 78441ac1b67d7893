"""Files of ranks -> a `tokenizers.Tokenizer`: byte-level BPE as tiktoken does it (Llama 3, Qwen) and Mistral's tekken.

The tokens of such a file are bytes, in the order in which they were learnt: two neighbours are merged if together they
are a token, that of the lowest rank first, and a word that is a token is not cut at all. What the files lack, the
pattern of words and the special tokens, stands here, from Meta's llama-models (llama3/tokenizer.py), Qwen's
tokenization_qwen.py, and mistral-common's tekken.py. tekken.json has its own pattern.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from minhub_py.checkpoints.storage import read_object
from minhub_py.checkpoints.tokenizers.vocabulary import check_lengths, cuts
from minhub_py.system.printable import gist

# Words, as in OpenAI's cl100k; {} is how many digits are one.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Of a tokenizer.model: of those files this is all that tells Llama 3's from others, whose words are other ones.
LLAMA3_TOKENS = 128_000
# Special tokens that are not reserved, by their distance from the first; the names are those of Llama 3.1 on the Hub.
LLAMA3 = {
    0: "<|begin_of_text|>", 1: "<|end_of_text|>", 4: "<|finetune_right_pad_id|>", 6: "<|start_header_id|>",
    7: "<|end_header_id|>", 8: "<|eom_id|>", 9: "<|eot_id|>", 10: "<|python_tag|>",
}  # fmt: skip
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))
# Where tekken.json names none itself; the rest are <SPECIAL_20> and so on.
TEKKEN = """<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS]
    [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT]
    [TOOL_CONTENT]""".split()


@dataclass(frozen=True)
class Ranks:
    """The content of a file: tokens as bytes in the order of their ranks, and what is known of the rest.

    special: special tokens, with ids before those of `tokens` where `special_first`, else after them.
    """

    tokens: Sequence[bytes] = field(repr=False)
    pattern: str
    special: Sequence[str] = ()
    special_first: bool = False
    bos: str | None = None  # which is put before every text
    eos: str | None = None
    nfc: bool = False  # whether a text is brought to Unicode's composed form first


def read_tiktoken(path: Path) -> Ranks:
    """Qwen's or Llama 3's file: lines of a token in base64 and its rank. ValueError: it is damaged, or of another."""
    try:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        tokens = [base64.b64decode(token, validate=True) for token, _ in lines]
        if [int(rank) for _, rank in lines] != list(range(len(lines))):
            raise ValueError("its ranks are not 0, 1, 2 and so on")
        check_tokens(tokens)
    except ValueError as error:
        raise ValueError(f"{path} is no file of ranks ({gist(error)}); it is damaged or cut: fetch it again") from error
    if path.suffix == ".tiktoken":
        return Ranks(tokens, WORDS.format(""), QWEN, eos=QWEN[0], nfc=True)
    if len(tokens) != LLAMA3_TOKENS:
        raise ValueError(f"{path} has {len(tokens):,} ranks, and Llama 3's {LLAMA3_TOKENS:,}: what another model's "
                         "words are is not known, so use a tokenizer.json")  # fmt: skip
    return Ranks(tokens, WORDS.format("{1,3}"), llama3_special(), bos=LLAMA3[0], eos=LLAMA3[1])


def llama3_special() -> list[str]:
    """Llama 3's 256 special tokens."""
    reserved = (f"<|reserved_special_token_{i}|>" for i in range(256))
    return [LLAMA3.get(i) or next(reserved) for i in range(256)]


def read_tekken(path: Path) -> Ranks:
    """Mistral's tekken.json. ValueError: it is damaged."""
    content = read_object(path)
    try:
        config, vocabulary = content["config"], content["vocab"]
        pattern, total, room = (
            config[name] for name in ("pattern", "default_vocab_size", "default_num_special_tokens")
        )
        if type(total) is not int or type(room) is not int or not 0 < total - room <= len(vocabulary) or room > 2**16:
            raise ValueError("its numbers of tokens do not fit each other")
        vocabulary = vocabulary[: total - room]  # the file may hold more than the model knows
        tokens = [base64.b64decode(entry["token_bytes"], validate=True) for entry in vocabulary]
        if [entry["rank"] for entry in vocabulary] != list(range(len(tokens))):
            raise ValueError("its ranks are not 0, 1, 2 and so on")
        check_tokens(tokens)
        named = {entry["rank"]: entry["token_str"] for entry in content.get("special_tokens") or ()}
        named = named or dict(enumerate(TEKKEN))
        special = [named.get(i, f"<SPECIAL_{i}>") for i in range(room)]
        if not all(isinstance(text, str) and text for text in (pattern, *special)) or len(set(special)) < room:
            raise ValueError("a special token is no text, or is there twice")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no tekken tokenizer ({type(error).__name__}: {gist(error)}); "
                         "it is damaged: fetch it again") from error  # fmt: skip
    bos, eos = (token if token in special else None for token in ("<s>", "</s>"))
    return Ranks(tokens, pattern, special, special_first=True, bos=bos, eos=eos)


def check_tokens(tokens: Sequence[bytes]) -> None:
    """ValueError: they cannot be a vocabulary, in which every byte is a token."""
    check_lengths(tokens)
    if not all(tokens) or len(set(tokens)) < len(tokens):
        raise ValueError("a token is empty, or is there twice")
    if not {bytes([byte]) for byte in range(256)} <= set(tokens):
        raise ValueError("tokens of single bytes are missing")


def byte_bpe(ranks: Ranks, special: Sequence[str] | None = None) -> Tokenizer:
    """The tokenizer of a file, without what it puts around a text. `special`: other names for the special tokens."""
    special = ranks.special if special is None else special
    names = list(map(letters, ranks.tokens))
    if ranks.special_first:
        names = [*ranks.special, *names]
    ids = {name: id for id, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(ids, merges(ranks.tokens), ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(ranks.pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    if ranks.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer


@cache
def alphabet() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level BPE: its own where it has one, else one from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}


def letters(token: bytes) -> str:
    """A token as the library's byte-level BPE writes it."""
    return token.decode("latin-1").translate(alphabet())


def merges(tokens: Sequence[bytes]) -> list[tuple[str, str]]:
    """Each way to put a token together from two others, the lowest rank first."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    by_rank = sorted((ranks[token], ranks[left], ranks[right]) for token, left, right in cuts(tokens))
    names = list(map(letters, tokens))
    return [(names[left], names[right]) for _, left, right in by_rank]
