"""Tokenizers of encoders in repositories without a tokenizer.json.

    bert, distilbert, electra   WordPiece (vocab.txt): [CLS] A [SEP], [CLS] A [SEP] B [SEP] with token type 1 for B
    mpnet                       WordPiece (vocab.txt): <s> A </s>, <s> A </s></s> B </s>
    roberta, bart               byte-level BPE (vocab.json, merges.txt), with the same special tokens
    xlm-roberta, camembert      SentencePiece unigram (sentencepiece.bpe.model), with the same special tokens
    deberta                     byte-level BPE (vocab.json, merges.txt), with BERT's special tokens
    deberta-v2, albert          SentencePiece unigram (spm.model, spiece.model), with BERT's special tokens

Normalization of WordPiece: control characters are removed, CJK characters are separated, and by
default letters become lower case without accents. Words are split at whitespace and punctuation. A
word over 100 characters, or with a part that is not in the vocabulary, becomes one unknown token.

XLM-RoBERTa and CamemBERT shift the IDs of the SentencePiece file, because fairseq's vocabulary
begins with its own special tokens.

Sources: Schuster & Nakajima (2012) and Wu et al. (2016) for WordPiece; transformers' tokenizers for
the settings.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as brief
from types import MappingProxyType

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from minhub_py.checkpoints.tokenizers.sentencepiece import (
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    SentencePiece,
)
from minhub_py.checkpoints.tokenizers.vocabulary import check_lengths
from minhub_py.system.files import read_text
from minhub_py.system.json_text import JsonMapping

BERT: Mapping[str, object] = MappingProxyType(
    {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
    }
)
ROBERTA: Mapping[str, object] = MappingProxyType(
    {
        "unk_token": "<unk>",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "mask_token": {"content": "<mask>", "lstrip": True},
    }  # the mask includes the space before it
)


@dataclass(frozen=True)
class EncoderFamily:
    """The special tokens of an encoder.

    tokens: their defaults, by their names in tokenizer_config.json.    file: the file of the
    vocabulary.
    """

    file: str
    tokens: JsonMapping = field(default_factory=lambda: ROBERTA)


MASK = {"content": "[MASK]", "lstrip": True}
FAMILIES = {
    "bert": EncoderFamily("vocab.txt", BERT),
    "mpnet": EncoderFamily("vocab.txt", MappingProxyType({**ROBERTA, "unk_token": "[UNK]"})),
    "roberta": EncoderFamily("vocab.json"),
    "xlm-roberta": EncoderFamily("sentencepiece.bpe.model"),
    "camembert": EncoderFamily("sentencepiece.bpe.model"),
    "deberta": EncoderFamily("vocab.json", MappingProxyType({**BERT, "mask_token": MASK})),
    "deberta-v2": EncoderFamily("spm.model", BERT),
    "albert": EncoderFamily(
        "spiece.model",
        MappingProxyType({**BERT, "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": MASK}),
    ),
    "modernbert": EncoderFamily("tokenizer.json", BERT),  # of GGUF files
}
# tokenizer_class, without Tokenizer or TokenizerFast -> family.
CLASSES = {
    "Bert": "bert",
    "DistilBert": "bert",
    "Electra": "bert",
    "MPNet": "mpnet",
    "Roberta": "roberta",
    "Bart": "roberta",
    "XLMRoberta": "xlm-roberta",
    "Camembert": "camembert",
    "Deberta": "deberta",
    "DebertaV2": "deberta-v2",
    "Albert": "albert",
}
# Files of encoders only, and the family if neither tokenizer_class nor model_type states another.
ENCODER_FILES = {
    "vocab.txt": "bert",
    "sentencepiece.bpe.model": "xlm-roberta",
    "spm.model": "deberta-v2",
}

NUMBER_COMMA = re.compile(r"\d,$")


def family_of(path: Path, tokenizer_class: object, model_type: object) -> str | None:
    """The family of a tokenizer file; None: not an encoder's.

    tokenizer_class: of tokenizer_config.json.    model_type: of config.json. Both are None if
    missing.
    ValueError: the tokenizer_class is not supported.
    """
    if isinstance(tokenizer_class, str):
        family = CLASSES.get(tokenizer_class.removesuffix("Fast").removesuffix("Tokenizer"))
        if path.name in ENCODER_FILES and (family is None or FAMILIES[family].file != path.name):
            raise ValueError(
                f"{path} belongs to a {brief(tokenizer_class)}, which is not supported: use a"
                " repository with a tokenizer.json"
            )
    else:
        kind = "roberta" if model_type == "bart" else model_type  # the same tokenizer
        family = kind if isinstance(kind, str) and kind in FAMILIES else None
    if family is not None and FAMILIES[family].file == path.name:
        return family
    return ENCODER_FILES.get(path.name)


def read_wordpiece(path: Path, settings: Mapping[str, object]) -> Tokenizer:
    """Load a vocab.txt: one token per line, whose number is its ID. ValueError: it is corrupt."""
    try:
        lines = read_text(path).removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: download it again") from error
    tokenizer = wordpiece_tokenizer(
        {token: id for id, token in enumerate(lines)}, str(settings["unk_token"])
    )
    set_wordpiece_normalizer(tokenizer, settings)
    return tokenizer


def set_wordpiece_normalizer(tokenizer: Tokenizer, settings: Mapping[str, object]) -> None:
    """Normalize texts by the settings of tokenizer_config.json. ValueError: a setting is not a
    bool.
    """
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=flag(settings, "tokenize_chinese_chars") is not False,
        strip_accents=flag(settings, "strip_accents"),
        lowercase=flag(settings, "do_lower_case") is not False,
    )


def wordpiece_tokenizer(vocabulary: Mapping[str, int], unknown: str) -> Tokenizer:
    """A WordPiece tokenizer without normalization. ValueError: the vocabulary lacks the unknown
    token.
    """
    check_lengths(vocabulary)
    if unknown not in vocabulary:
        raise ValueError(
            f"the vocabulary has no {brief(unknown)}, so it is not WordPiece: use a tokenizer.json"
        )
    tokenizer = Tokenizer(models.WordPiece(dict(vocabulary), unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def train_wordpiece(
    texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str] = ()
) -> Tokenizer:
    """Train a tokenizer like BERT's on texts, with its special tokens and normalization.

    special_tokens: further ones.
    """
    names = [str(BERT[f"{name}_token"]) for name in ("pad", "unk", "cls", "sep", "mask")]
    tokenizer = wordpiece_tokenizer({"[UNK]": 0}, "[UNK]")
    set_wordpiece_normalizer(tokenizer, {})
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=[*names, *special_tokens], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    surround_pairs(tokenizer, "bert", "[CLS]", "[SEP]")
    return tokenizer


def flag(settings: Mapping[str, object], name: str) -> bool | None:
    """A setting of tokenizer_config.json; None if missing or null. ValueError: it is not a bool."""
    value = settings.get(name)
    if not isinstance(value, bool | None):
        raise ValueError(f"{name} cannot be {brief(value)}")
    return value


def unigram_tokenizer(
    model: SentencePiece, family: str, settings: Mapping[str, object]
) -> Tokenizer:
    """The tokenizer of a SentencePiece file. ValueError: the file is not a unigram model."""
    if model.model_type != UNIGRAM:
        raise ValueError("it is not a unigram model")
    entries = [(piece.text, piece.score) for piece in model.pieces]
    if family in NORMALIZERS:
        unknown = next(id for id, piece in enumerate(model.pieces) if piece.kind == UNKNOWN)
        return normalized_unigram(entries, unknown, model.charsmap, family, settings)
    if family == "camembert":
        before = [
            ("<s>NOTUSED", 0.0),
            ("<pad>", 0.0),
            ("</s>NOTUSED", 0.0),
            ("<unk>", 0.0),
            ("<unk>NOTUSED", -100.0),
        ]
        entries = [*before, *entries[1:], ("<mask>", 0.0)]
    else:
        if any(piece.kind == NORMAL for piece in model.pieces[:3]):
            raise ValueError("its first pieces are not special tokens")
        entries = [
            ("<s>", 0.0),
            ("<pad>", 0.0),
            ("</s>", 0.0),
            ("<unk>", 0.0),
            *entries[3:],
            ("<mask>", 0.0),
        ]
    return words_of_unigram(
        entries, model.charsmap, prefix=flag(settings, "add_prefix_space") is not False
    )


def deberta_steps(settings: Mapping[str, object], charsmap: list[object]) -> Iterator[object]:
    """DeBERTa's normalizers, version 2 and 3."""
    if flag(settings, "do_lower_case"):
        yield normalizers.Lowercase()
    yield normalizers.Strip()
    yield from charsmap


def albert_steps(settings: Mapping[str, object], charsmap: list[object]) -> Iterator[object]:
    """ALBERT's normalizers."""
    yield from (normalizers.Replace("``", '"'), normalizers.Replace("''", '"'))
    if not flag(settings, "keep_accents"):
        yield from (normalizers.NFKD(), normalizers.StripAccents())
    if flag(settings, "do_lower_case") is not False:
        yield normalizers.Lowercase()
    yield from charsmap


NORMALIZERS = {"deberta-v2": deberta_steps, "albert": albert_steps}


def normalized_unigram(
    entries: list[tuple[str, float]],
    unknown: int,
    charsmap: bytes,
    family: str,
    settings: Mapping[str, object],
) -> Tokenizer:
    """The tokenizer of a family in NORMALIZERS. entries: pieces with scores; unknown: the ID of the
    unknown token.
    """
    if family == "albert":  # prefers "9" and "," to "9,", as in ALBERT's training
        entries = [(text, score - 100 * bool(NUMBER_COMMA.search(text))) for text, score in entries]
    elif all(text != "[MASK]" for text, _ in entries):  # the file of DeBERTa has no mask
        entries = [*entries, ("[MASK]", 0.0)]
    check_lengths(text for text, _ in entries)
    tokenizer = Tokenizer(models.Unigram(entries, unknown, False))
    steps = NORMALIZERS[family](settings, [normalizers.Precompiled(charsmap)] if charsmap else [])
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
    splits: list[object] = [pre_tokenizers.WhitespaceSplit()] if family == "albert" else []
    if family == "deberta-v2" and flag(settings, "split_by_punct"):
        splits = [pre_tokenizers.Punctuation("isolated")]
    scheme = "always" if flag(settings, "add_prefix_space") is not False else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.Metaspace(SPACE, scheme)]
    )
    tokenizer.decoder = decoders.Metaspace(SPACE, scheme)
    return tokenizer


def words_of_unigram(
    entries: list[tuple[str, float]], charsmap: bytes, *, prefix: bool = True
) -> Tokenizer:
    """A unigram model of words, each after a space. entries: pieces with scores; the piece 3 is the
    unknown token.
    """
    check_lengths(text for text, _ in entries)
    tokenizer = Tokenizer(models.Unigram(entries, 3, False))
    if charsmap:
        tokenizer.normalizer = normalizers.Precompiled(charsmap)
    scheme = "always" if prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, scheme)]
    )
    tokenizer.decoder = decoders.Metaspace(SPACE, scheme)
    return tokenizer


def surround_pairs(
    tokenizer: Tokenizer, family: str, start: str, end: str, *, prefix: bool = False
) -> None:
    """Add the special tokens around a text and a pair of texts.    prefix: of a byte-level BPE,
    add_prefix_space.

    ValueError: the vocabulary lacks one.
    """
    ids: dict[str, int] = {}
    for token in (start, end):
        id = tokenizer.token_to_id(token)
        if id is None:
            raise ValueError(f"the vocabulary has no {token}, which this model adds to each text")
        ids[token] = id
    if family == "roberta":  # also excludes spaces from the offsets of a token
        tokenizer.post_processor = processors.RobertaProcessing(
            (end, ids[end]), (start, ids[start]), trim_offsets=True, add_prefix_space=prefix
        )
        return
    second = (
        f"$B:1 {end}:1" if FAMILIES[family].tokens["cls_token"] == "[CLS]" else f"{end} $B {end}"
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} {second}",
        special_tokens=list(ids.items()),
    )
