"""Texts that are difficult for the tokenizers of encoders, and files of such tokenizers."""

import io
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sentencepiece
from paths import TEXT
from tokenizers import Tokenizer, models, trainers

DIFFICULT = [
    "",
    " ",
    "Hello, wörld! Don't stop.",
    "Ça va? ÀÉÎÕÜ ñ ø ł İstanbul ıx ß ẞ Å",
    "e\u0301 a\u0308 n\u0303 \u0301\u0301x",
    "漢字かな交じり文。中文 한국어 𠀀㐂",
    "ﬁne oﬃce ½ ² Ⅳ ℡ ｆｕｌｌ　ｗｉｄｔｈ",
    "a\u200bb \u200d \ufeff c\u00add \u00a0e\u3000f",
    "a\x00b\x07c\x7fd \ufffd \t\r\n e\x85f\u2028g",
    "😀 👩‍👩‍👧 🇩🇪 ☺️ a😀b",
    "x" * 100 + " " + "y" * 101 + " end",
    "$5.99 + 3% ~ `code` ^_^ <tag> a_b #1 @you",
    "[CLS] a [SEP] [MASK]. <mask> b<mask>c </s> <s> [UNK] <unk> <pad>",
    "the  <mask>  end   [MASK]  end ",
    "unaffable Thequickbrownfox THE QUICK",
    "ابجد שלום नमस्ते ไทย",
]


def texts() -> Iterator[str]:
    """The difficult texts, and random combinations of their characters and words."""
    yield from DIFFICULT
    rng = random.Random(0)
    characters = "".join(DIFFICULT)
    words = [word for text in DIFFICULT for word in text.split(" ")] + TEXT.read_text(
        encoding="utf-8"
    ).split()
    for size in range(300):
        yield "".join(rng.choices(characters, k=size % 40))
        yield "".join(
            rng.choice(words) + rng.choice([" ", "  ", "", "\n"]) for _ in range(size % 20)
        )


def write_vocabulary(folder: Path, special: list[str]) -> None:
    """A vocab.txt of words and word parts of the test texts, with accents and capitals."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(
        vocab_size=2500, special_tokens=special, show_progress=False, min_frequency=1
    )
    words = [word for text in DIFFICULT for word in text.split()] * 3 + TEXT.read_text(
        encoding="utf-8"
    ).split()
    tokenizer.train_from_iterator([*words, *map(str.lower, words), "##ing", "❓"], trainer)
    vocabulary = tokenizer.get_vocab()
    (folder / "vocab.txt").write_text(
        "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__))
    )


def train_unigram(**settings: Any) -> bytes:
    """A SentencePiece model with XLM-R's settings: NFKC, and the special tokens in its order.
    settings: others.
    """
    lines = [line for line in TEXT.read_text(encoding="utf-8").splitlines() if line][:1500]
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*lines, *(text for text in DIFFICULT[2:7] if text.strip())]),
        model_writer=file,
        vocab_size=800,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        model_type="unigram",
        **settings,
    )
    return file.getvalue()


def write_roberta(folder: Path, bpe_folder: Path) -> list[str]:
    """RoBERTa's files of the byte-level BPE in `bpe_folder`. Returns its tokens."""
    vocabulary = json.loads((bpe_folder / "vocab.json").read_text(encoding="utf-8"))
    del vocabulary["<|endoftext|>"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(vocabulary, key=vocabulary.get), "<mask>"]
    (folder / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(tokens)}))
    shutil.copy(bpe_folder / "merges.txt", folder)
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    return tokens
