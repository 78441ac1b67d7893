"""Tokenizers of encoder-decoders in repositories without a tokenizer.json.

    marian      source.spm, target.spm, vocab.json          text </s>
    m2m100      sentencepiece.bpe.model, vocab.json         language text </s>
    mbart50     sentencepiece.bpe.model                     language text </s>
    mbart       sentencepiece.bpe.model                     text </s> language
    pegasus     spiece.model                                text </s>

vocab.json has the token IDs of pieces. A Marian repository with two vocabularies
(`separate_vocabs`) has target_vocab.json for the target language. languages.py describes the
languages; the source language around a text is `src_lang` of tokenizer_config.json, by default
English.

Differences from transformers, in addition to sentencepiece.py: Marian's `>>code<<` is a token
everywhere, not only at the beginning of a text, and text that looks like an unknown code is encoded
as text. Several characters in sequence that source.spm does not know are one unknown token, also if
the target language has a token for them.

Sources: transformers' tokenizers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from reprlib import repr as brief

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from minhub_py.checkpoints.tokenizers.language_codes import M2M100, MBART, MBART50, WMT21
from minhub_py.checkpoints.tokenizers.sentencepiece import (
    BPE,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePiece,
    read_sentencepiece,
    sentencepiece_tokenizer,
)
from minhub_py.checkpoints.tokenizers.vocabulary import check_lengths
from minhub_py.system.shapes import TokenID, read_json

# tokenizer_class, without Tokenizer or TokenizerFast -> the file of the pieces
CLASSES = {
    "Marian": "source.spm",
    "M2M100": "sentencepiece.bpe.model",
    "MBart50": "sentencepiece.bpe.model",
    "MBart": "sentencepiece.bpe.model",
    "Pegasus": "spiece.model",
}
# model_type of config.json -> tokenizer_class, for repositories without it
MODELS = {"marian": "Marian", "m2m_100": "M2M100", "mbart": "MBart", "pegasus": "Pegasus"}
DEFAULT_SOURCE = {"Nllb": "eng_Latn", "MBart": "en_XX", "MBart50": "en_XX", "M2M100": "en"}
# Replaces several characters in sequence that a model does not know.
UNKNOWN_RUN = "\ufdd0"
MARKER = re.compile(r">>.+<<")
PEGASUS_OFFSET = 103


def class_of(settings: Mapping[str, object], model_type: object = None) -> str:
    """The tokenizer_class without Tokenizer or TokenizerFast; "" if the settings have none.

    model_type: of config.json.
    """
    name = settings.get("tokenizer_class")
    if not isinstance(name, str):
        return MODELS.get(model_type, "") if isinstance(model_type, str) else ""
    return name.removesuffix("Fast").removesuffix("Tokenizer")


def pieces_file(folder: Path, name: str) -> Path | None:
    """The SentencePiece file of a tokenizer class in a folder; None if the folder has another one."""
    if (folder / "source.spm").exists():
        return folder / "source.spm"
    path = folder / CLASSES.get(name, "")
    return path if name in CLASSES and path.is_file() else None


def original_files(path: Path | None) -> list[Path]:
    """The files of Marian's or M2M100's tokenizer, which transformers reads in place of a
    tokenizer.json. path: of the pieces; [] for other tokenizers.
    """
    names: tuple[str, ...] = ()
    if path is not None and path.name == "source.spm":
        names = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")
    elif path is not None and path.name == "sentencepiece.bpe.model":
        names = ("sentencepiece.bpe.model", "vocab.json")
    files = [path.with_name(name) for name in names] if path is not None else []
    return (
        [file for file in files if file.is_file()] if len(names) != 2 or files[1].is_file() else []
    )


def read_translation(
    path: Path, name: str, settings: Mapping[str, object]
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of the source and of the target language, usually the same.

    path: of the pieces.    name: of the class.    ValueError: a file is corrupt.
    """
    if path.name == "source.spm":
        return read_marian(path.parent, settings)
    model = read_sentencepiece(path)
    builders = {"M2M100": m2m100, "MBart50": mbart, "MBart": mbart, "Pegasus": pegasus}
    tokenizer = builders[name](model, path, name, settings)
    return tokenizer, tokenizer


def read_marian(folder: Path, settings: Mapping[str, object]) -> tuple[Tokenizer, Tokenizer]:
    """Marian's two tokenizers."""
    vocabulary = read_vocabulary(folder / "vocab.json")
    separate = settings.get("separate_vocabs") is True
    target = read_vocabulary(folder / "target_vocab.json") if separate else vocabulary
    pair = []
    for name, ids in (("source.spm", vocabulary), ("target.spm", target)):
        tokenizer = numbered_tokenizer(read_sentencepiece(folder / name), ids)
        codes = sorted((token for token in ids if MARKER.fullmatch(token)), key=ids.__getitem__)
        tokenizer.add_tokens([AddedToken(code, normalized=False) for code in codes])
        special = [token for token in ("</s>", "<pad>", "<unk>") if token in ids]
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
        surround_text(tokenizer, [], ["</s>"])
        pair.append(tokenizer)
    source, target_tokenizer = pair
    return source, target_tokenizer


def read_vocabulary(path: Path) -> dict[str, int]:
    """A vocab.json: token IDs from 0 on. FileNotFoundError: it is missing. ValueError: corrupt."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: copy the files of the original model")
    ids: dict[str, int] = read_json(path, dict[str, TokenID])
    if sorted(ids.values()) != [*range(len(ids))]:
        raise ValueError(f"{path}: the token IDs are not 0 to {len(ids) - 1}: download it again")
    if "<unk>" not in ids:
        raise ValueError(f"{path} has no <unk>: download it again")
    check_lengths(ids)
    return ids


def numbered_tokenizer(
    model: SentencePiece, vocabulary: Mapping[str, int], codes: Mapping[str, int] | None = None
) -> Tokenizer:
    """The tokenizer of a SentencePiece model whose token IDs are in a vocabulary.

    Pieces that are not in the vocabulary are unknown.    codes: further tokens with their IDs, for
    BPE.
    """
    if model.model_type == BPE:
        ids = {
            piece.text: vocabulary.get(piece.text, vocabulary["<unk>"]) for piece in model.pieces
        }
        return sentencepiece_tokenizer(model, {**vocabulary, **ids, **(codes or {})})
    pieces = {piece.text: piece for piece in model.pieces}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    numbered = [pieces.get(token, Piece(token, 0.0, UNUSED)) for token in tokens]
    tokenizer = sentencepiece_tokenizer(replace(model, pieces=numbered))
    used = (piece.text for piece in model.pieces if piece.kind in (NORMAL, USER_DEFINED))
    characters = "".join(sorted({char for text in used for char in text}))
    unknown = f"[^{re.escape(characters)}]"
    # An unknown character can be a token of the other language. Several ones are not: SentencePiece
    # returns them together.
    tokenizer.normalizer = normalizers.Sequence(
        [tokenizer.normalizer, normalizers.Replace(Regex(unknown + "{2,}"), UNKNOWN_RUN)]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(unknown), "isolated")
    return tokenizer


def m2m100(
    model: SentencePiece, path: Path, name: str, settings: Mapping[str, object]
) -> Tokenizer:
    """M2M100: the languages follow the vocabulary."""
    vocabulary = read_vocabulary(path.with_name("vocab.json"))
    codes = WMT21 if settings.get("language_codes") == "wmt21" else M2M100
    tokens = {f"__{code}__": len(vocabulary) + number for number, code in enumerate(codes)}
    if model.model_type != BPE:
        vocabulary |= tokens
    tokenizer = numbered_tokenizer(model, vocabulary, tokens)
    special = [token for token in ("<s>", "<pad>", "</s>", "<unk>") if token in vocabulary]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False) for token in (*special, *tokens)]
    )
    return tokenizer


def mbart(model: SentencePiece, path: Path, name: str, settings: Mapping[str, object]) -> Tokenizer:
    """mBART and mBART-50: fairseq's special tokens, the pieces, the languages, and the mask."""
    codes = MBART50 if name == "MBart50" else MBART
    before, after = ["<s>", "<pad>", "</s>", "<unk>"], [*codes, "<mask>"]
    entries = [(token, 0.0) for token in before]
    entries += [(piece.text, piece.score) for piece in model.pieces[3:]]
    spaces = [normalizers.Replace(Regex(" {2,}"), " ")] if name == "MBart50" else []
    tokenizer = word_unigram(
        model, [*entries, *((token, 0.0) for token in after)], 3, spaces, words=name == "MBart"
    )
    mask = AddedToken("<mask>", lstrip=True, normalized=False)
    tokenizer.add_special_tokens([*before, *codes, mask])
    return tokenizer


def pegasus(
    model: SentencePiece, path: Path, name: str, settings: Mapping[str, object]
) -> Tokenizer:
    """Pegasus: its tokens for pretraining precede the pieces."""
    special = ["<pad>", "</s>", "<mask_1>", "<mask_2>"]
    entries = [(token, 0.0) for token in special]
    entries += [(f"<unk_{number}>", -100.0) for number in range(2, PEGASUS_OFFSET)]
    entries += [(piece.text, piece.score) for piece in model.pieces[2:]]
    unknown = next((id for id, (token, _) in enumerate(entries) if token == "<unk>"), None)
    if unknown is None:
        raise ValueError(f"{path} has no <unk> after its first two pieces: download it again")
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer = word_unigram(model, entries, unknown, [spaces])
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False) for token, _ in entries[: PEGASUS_OFFSET + 2]]
    )
    tokenizer.add_special_tokens([AddedToken("<unk>", normalized=False)])
    surround_text(tokenizer, [], ["</s>"])
    return tokenizer


def word_unigram(
    model: SentencePiece,
    entries: list[tuple[str, float]],
    unknown: int,
    steps: Sequence[normalizers.Normalizer],
    *,
    words: bool = False,
) -> Tokenizer:
    """A unigram model. entries: tokens with scores.    steps: normalizers after the map of
    characters.    words: split at white space, without a map of characters.
    """
    if model.model_type != UNIGRAM:
        raise ValueError("the SentencePiece model is not a unigram model")
    check_lengths(token for token, _ in entries)
    if len({token for token, _ in entries}) < len(entries):
        raise ValueError("the SentencePiece model has a piece that is a special token")
    tokenizer = Tokenizer(models.Unigram(entries, unknown, False))
    metaspace = pre_tokenizers.Metaspace(SPACE, "always")
    if words:
        splits: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.WhitespaceSplit(), metaspace]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    else:
        charsmap = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
        tokenizer.normalizer = normalizers.Sequence([*charsmap, *steps])
        tokenizer.pre_tokenizer = metaspace
    tokenizer.decoder = decoders.Metaspace(SPACE, "always")
    return tokenizer


def surround_language(tokenizer: Tokenizer, name: str, settings: Mapping[str, object]) -> None:
    """Add the source language and </s> around each text, for the classes with languages.

    name: of the class.    ValueError: the tokenizer lacks the language.
    """
    if name not in DEFAULT_SOURCE:
        return
    code = settings.get("src_lang")
    code = code if isinstance(code, str) else DEFAULT_SOURCE[name]
    token = f"__{code}__" if name == "M2M100" else code
    if tokenizer.token_to_id(token) is None:
        if settings.get("src_lang") is None:  # a tokenizer with other languages
            return
        raise ValueError(f"tokenizer_config.json: src_lang {brief(code)} is not a language")
    if name == "MBart" or (name == "Nllb" and settings.get("legacy_behaviour") is True):
        surround_text(tokenizer, [], ["</s>", token])
    else:
        surround_text(tokenizer, [token], ["</s>"])


def surround_text(tokenizer: Tokenizer, before: list[str], after: list[str]) -> None:
    """Add these tokens around each text. ValueError: the vocabulary lacks one."""
    ids = {token: tokenizer.token_to_id(token) for token in (*before, *after)}
    if absent := [token for token, id in ids.items() if id is None]:
        raise ValueError(f"the vocabulary has no {absent[0]}, which this model adds to each text")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", "$B", *after],
        special_tokens=[*ids.items()],
    )
