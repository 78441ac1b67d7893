"""vocab.dat and rules.dat -> a `tokenizers.Tokenizer`: BPE within words, with a mark at their end.

The files are text, as christianb93's MLLM writes them: a symbol a line, in the order of the ids, and a merge a line,
the oldest first. Words are what stands between spaces; their last character has `</w>` at its end, so that merges know
ends from beginnings. A character that is not in the vocabulary is the first symbol, `</unk>`.

Sources: Sennrich et al. (2016), "Neural Machine Translation of Rare Words with Subword Units"; MLLM, wiki/BPE.py.
"""

from pathlib import Path
from reprlib import repr as brief

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "</w>"


def read_word_bpe(path: Path) -> Tokenizer:
    """The tokenizer of a vocab.dat, with the rules.dat beside it. ValueError: one of them is damaged, or no text."""
    rules = path.with_name("rules.dat")
    if not rules.exists():
        raise ValueError(f"{path} is one of two files: copy the rules.dat that belongs to it into its folder")
    symbols = [line.strip("\t ") for line in lines_of(path)]
    pairs = [line.split() for line in lines_of(rules)]
    vocabulary = {symbol: id for id, symbol in enumerate(symbols)}  # of two that are alike the last one counts
    if not all(symbols) or any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{path} and {rules.name} should have a symbol and a pair of symbols on each line")
    merges = [(left, right) for left, right in pairs]
    for left, right in merges:
        if not {left, right, left + right} <= vocabulary.keys():
            raise ValueError(
                f"{path} lacks a symbol of the pair {brief(f'{left} {right}')} in {rules.name}: they do not fit"
            )
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=symbols[0], end_of_word_suffix=END))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix=END)
    return tokenizer


def lines_of(path: Path) -> list[str]:
    """The lines of a file of text. ValueError: it is none, or is empty."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no UTF-8 text. If it is a pickle, which is not read here since it may run code, load it where "
            "it was made and write it as text there, a symbol (or a pair of symbols) a line"
        ) from error
    if lines == [""]:
        raise ValueError(f"{path} is empty")
    return lines
