"""Texts of many kinds, and sentencepiece models of this repository's source."""

import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import sentencepiece
from paths import ROOT

CORPUS = [  # every fourth line: sentencepiece takes seconds for all of them
    line
    for path in sorted((ROOT / "minhub_py").rglob("*.py"))
    for line in path.read_text(encoding="utf-8").splitlines()
    if line.strip()
][::4]
LLAMA = {
    "model_type": "bpe",
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
OWN = ["\u2581\u2581", "\u2581\u2581\u2581", "\n\n", "<x>", "self"]  # each is always one token
# without special tokens
WORDS = [word for word in " ".join(CORPUS).split() if not set(word) & set("<[")]
ALPHABETS = [
    "ab 1\n\t",
    "  \u2581a",  # SentencePiece's character for a space may occur in a text
    "=-.0 a",
    "漢字かな交じり文。中文 한국어",
    "äößéñçİıł ΑΩβЖщ",
    "\u0000\u007f\r\n\u2028\u00a0\u3000",
]
# Characters that are made of several, which the library's table of characters takes apart in its
# own way.
JOINED = ["👩‍👩‍👧", "🇩🇪", "e\u0301", "か\u3099", "½\u200d", "\u1100\u1161"]


def texts(count: int) -> Iterator[str]:
    """Texts of all kinds: spaces at both ends, long runs, any Unicode, words with any white space
    between them.
    """
    rng = random.Random(count)
    kinds: list[Callable[[int], str]] = [
        lambda size: "".join(chr(rng.randrange(0x20, 0xD800)) for _ in range(size)),
        lambda size: "".join(
            chr(rng.choice((0x1F300, 0x10000, 0xE000)) + rng.randrange(0x300)) for _ in range(size)
        ),
        lambda size: rng.choice("a =-1é漢\n.") * 4 * size + rng.choice(["", "b", " a", "  "]),
        lambda size: "".join(rng.choices(rng.choice(ALPHABETS), k=size)),
        lambda size: "".join(
            rng.choice(WORDS) + rng.choice(["", " ", "  ", "\n", "\r\n", "\t"]) for _ in range(size)
        ),
        lambda size: "".join(rng.choices(JOINED, k=size)),
        lambda size: str(rng.randrange(10 ** (size + 1))),
    ]
    yield from (
        "",
        " ",
        "  ",
        "a",
        " a ",
        "   a  b   ",
        "\n",
        "\n\na\n",
        "😀😀",
        "<0x41>x",
        "<x>",
        "<x><x> self self",
        "a zqzqzq",
    )
    for _ in range(count):
        yield rng.choice(kinds)(rng.randrange(40))


def train(**options: Any) -> bytes:
    """A sentencepiece model of this repository's own source."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=file,
        vocab_size=1000,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return file.getvalue()
