"""BPE within words, with an end-of-word marker: GPT's, and tokenizers from vocab.dat and rules.dat.

christianb93's MLLM writes these text files: a symbol per line in the order of IDs, and a merge per
line in the order of training. Spaces separate words, and `</w>` is appended to a word's last
character, so that merges distinguish the ends of words. A character that is not in the vocabulary
becomes the first symbol, `</unk>`.

Sources: Sennrich et al. (2016), "Neural Machine Translation of Rare Words with Subword Units";
Radford et al. (2018), GPT; MLLM, wiki/BPE.py.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as brief

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from minhub_py.system.files import read_text

END = "</w>"


def read_word_bpe(path: Path) -> Tokenizer:
    """Read the tokenizer of a vocab.dat and the rules.dat in its folder. ValueError: a file is
    missing or corrupt.
    """
    rules = path.with_name("rules.dat")
    if not rules.exists():
        raise ValueError(f"{path} requires a second file: copy its rules.dat into the same folder")
    symbols = [line.strip("\t ") for line in read_lines(path)]
    pairs = [line.split() for line in read_lines(rules)]
    # a duplicate symbol has its last ID
    vocabulary = {symbol: id for id, symbol in enumerate(symbols)}
    if not all(symbols) or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"{path} and {rules.name} should have a symbol and a pair of symbols on each line"
        )
    merges = [(left, right) for left, right in pairs]
    for left, right in merges:
        if not {left, right, left + right} <= vocabulary.keys():
            raise ValueError(
                f"{path} lacks a symbol of the pair {brief(f'{left} {right}')} in {rules.name}: use"
                " files that belong together"
            )
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=symbols[0], end_of_word_suffix=END)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix=END)
    return tokenizer


def check_merges(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
    """ValueError: the result of a merge is not a token. The library may panic, which is no
    Exception.
    """
    for left, right in merges:
        if left + right not in vocabulary:
            raise ValueError(
                "vocab.json and merges.txt are inconsistent: the vocabulary lacks"
                f" {brief(left + right)}"
            )


def lower_case_bpe(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], unknown: str
) -> Tokenizer:
    """GPT's tokenizer: BPE within the words of BERT's lower-case texts. ValueError: the result of a
    merge is not a token.
    """
    check_merges(vocabulary, merges)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, end_of_word_suffix=END))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix=END)
    return tokenizer


def read_lines(path: Path) -> list[str]:
    """A text file's lines. ValueError: the file is empty or not text."""
    try:
        lines = read_text(path).removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text. Pickles are not supported, because they can run code: load"
            " a pickle with the program that wrote it, and write it as text, with a symbol (or a"
            " pair of symbols) per line"
        ) from error
    if lines == [""]:
        raise ValueError(f"{path} is empty")
    return lines
