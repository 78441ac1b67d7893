"""Tokenizers from SentencePiece models: BPE (Llama 2, Mistral, Gemma) and unigram (T5).

Scores order the merges of BPE; for unigram they are log-probabilities. A space is added before each
text, also before a text that begins with a space, unlike the library's Metaspace.

Differences from SentencePiece:
    The library applies a character map (T5's NFKC) to the first character of a grapheme and drops
    the others. SentencePiece uses the longest match. Combining marks after a mapped character are
    lost, and long sequences are not composed (half-width katakana with marks, jamo), as in T5's
    tokenizer.json. Special tokens in a text are recognized. The text between them
    is encoded separately.

Sources: Kudo & Richardson (2018), "SentencePiece"; sentencepiece_model.proto for the field numbers;
the encoding of Protocol Buffers.
"""

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from minhub_py.checkpoints.tokenizers.tokenizer_json import check_charsmap
from minhub_py.checkpoints.tokenizers.vocabulary import check_lengths, cuts
from minhub_py.system.files import read_bytes

SPACE = "\u2581"
# Types of pieces and of models.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2

Message = dict[int, list[int | bytes]]


class Piece(NamedTuple):
    """A token."""

    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass(frozen=True)
class SentencePiece:
    """The content of a model file that determines token IDs. Defaults are the format's."""

    pieces: list[Piece]
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    bos_id: int = 1  # negative: not used
    eos_id: int = 2
    # map of characters, in SentencePiece's encoding
    charsmap: bytes = field(default=b"", repr=False)
    add_dummy_prefix: bool = True  # a space before the text
    remove_extra_whitespaces: bool = True

    def token(self, id: int) -> str | None:
        """A piece's text; None for an invalid ID."""
        return self.pieces[id].text if 0 <= id < len(self.pieces) else None

    def of_kind(self, kind: int) -> list[str]:
        """The pieces of a type, ordered by ID."""
        return [piece.text for piece in self.pieces if piece.kind == kind]


def read_sentencepiece(path: Path) -> SentencePiece:
    """Read a model file. ValueError: it is corrupt, or uses an unsupported setting."""
    try:
        model = parse_message(read_bytes(path))
        trainer, normalizer = parse_message(last(model, 2, b"")), parse_message(last(model, 3, b""))
        result = SentencePiece(
            pieces=[parse_piece(piece) for piece in model.get(1, [])],
            model_type=number(trainer, 3, UNIGRAM),
            byte_fallback=bool(number(trainer, 35, 0)),
            bos_id=number(trainer, 41, 1),
            eos_id=number(trainer, 42, 2),
            charsmap=last(normalizer, 2, b""),
            add_dummy_prefix=bool(number(normalizer, 3, 1)),
            remove_extra_whitespaces=bool(number(normalizer, 4, 1)),
        )
        check_pieces(result)
        if result.charsmap:
            check_charsmap(result.charsmap)
    except (ValueError, struct.error) as error:
        raise ValueError(
            f"{path} is not a SentencePiece model ({error}): if it is corrupt or truncated,"
            " download it again"
        ) from error
    # Settings that change the result. Published language models do not use them.
    unsupported = {
        "word or character pieces": result.model_type not in (UNIGRAM, BPE),
        "unused pieces": any(piece.kind == UNUSED for piece in result.pieces),
        "spaces after words": number(trainer, 24, 0),
        "unescaped spaces": not number(normalizer, 5, 1),
    }
    if names := [name for name, is_set in unsupported.items() if is_set]:
        raise ValueError(
            f"{path} has {', '.join(names)}, which is not supported: use a tokenizer.json"
        )
    return result


def parse_message(data: object) -> Message:
    """Parse a Protocol Buffers message: field number -> values in order. ValueError: it is invalid."""
    if not isinstance(data, bytes):
        raise ValueError("a field should contain a message, not a number")
    message: Message = {}
    position = 0
    while position < len(data):
        key, position = read_varint(data, position)
        value: int | bytes
        match key & 7:
            case 0:
                value, position = read_varint(data, position)
            case 1 | 2 | 5 as wire:
                size = {1: 8, 5: 4}.get(wire, -1)
                if size < 0:
                    size, position = read_varint(data, position)
                value, position = data[position : position + size], position + size
                if position > len(data):
                    raise ValueError("it ends within a field")
            case wire:
                raise ValueError(f"it has a field of the unknown type {wire}")
        message.setdefault(key >> 3, []).append(value)
    return message


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Parse a varint of at most ten bytes with seven bits each. Returns the number and the position
    after it.
    """
    if position < len(data) and data[position] < 0x80:  # most have one byte
        return data[position], position + 1
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("it ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number has more than ten bytes")


def last(message: Message, number: int, default: bytes) -> bytes:
    """A field of bytes. The last value counts, by the format."""
    value = message.get(number, [default])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} should not be a number")
    return value


def number(message: Message, number: int, default: int) -> int:
    """A field with a signed integer."""
    value = message.get(number, [default])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {number} should be a number")
    return value - 2**64 if value >= 2**63 else value


def parse_piece(data: int | bytes) -> Piece:
    """Parse a piece. ValueError: its text is not UTF-8, or its score is not finite."""
    message = parse_message(data)
    [score] = struct.unpack("<f", last(message, 2, bytes(4)))
    if not math.isfinite(score):
        raise ValueError("a score is not finite")
    return Piece(last(message, 1, b"").decode("utf-8"), score, number(message, 3, NORMAL))


def check_pieces(model: SentencePiece) -> None:
    """ValueError: the pieces are not a valid vocabulary."""
    texts = [piece.text for piece in model.pieces]
    check_lengths(texts)
    if not all(texts) or len(set(texts)) < len(texts):
        raise ValueError("a piece is empty or a duplicate")
    if len(model.of_kind(UNKNOWN)) != 1:
        raise ValueError("it should have one piece for unknown characters")
    if not any(piece.kind == NORMAL for piece in model.pieces):
        raise ValueError("it has no pieces")
    if model.byte_fallback and not {f"<0x{byte:02X}>" for byte in range(256)} <= set(
        model.of_kind(BYTE)
    ):
        raise ValueError("pieces of single bytes are missing")


def sentencepiece_tokenizer(
    model: SentencePiece, ids: Mapping[str, int] | None = None
) -> Tokenizer:
    """A model file's tokenizer, without bos and eos.    ids: of the tokens, for BPE; default:
    the numbers of the pieces.
    """
    [unknown] = model.of_kind(UNKNOWN)
    user_defined = model.of_kind(USER_DEFINED)  # never split
    if model.model_type == UNIGRAM:
        tokenizer = Tokenizer(unigram(model))
    else:
        numbers = {piece.text: id for id, piece in enumerate(model.pieces)}
        # A word that is a token is not split, so user-defined pieces become separate words.
        tokenizer = Tokenizer(
            models.BPE(
                numbers if ids is None else dict(ids),
                merges(model),
                unk_token=unknown,
                fuse_unk=True,
                byte_fallback=model.byte_fallback,
                ignore_merges=bool(user_defined),
            )
        )
        if user_defined:
            longest_first = "|".join(
                re.escape(text) for text in sorted(user_defined, key=len, reverse=True)
            )
            tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(longest_first), "isolated")
    tokenizer.normalizer = normalizers.Sequence(list(normalization(model)))
    steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if model.add_dummy_prefix or model.remove_extra_whitespaces:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text in (unknown, *model.of_kind(CONTROL))
        ]
    )
    return tokenizer


def normalization(model: SentencePiece) -> Iterator[object]:
    """The normalizers in order."""
    if model.charsmap:
        yield normalizers.Precompiled(model.charsmap)
    if model.remove_extra_whitespaces:
        yield normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z| +(?= )"), "")
    if model.add_dummy_prefix:
        yield normalizers.Prepend(SPACE)
    yield normalizers.Replace(" ", SPACE)


def unigram(model: SentencePiece) -> models.Unigram:
    """The unigram model. The library has no types of pieces, so their scores determine whether they
    are used.
    """
    scores = [piece.score for piece in model.pieces if piece.kind == NORMAL]
    unused = min(scores) - 1000

    def score(piece: Piece) -> float:
        if piece.kind == USER_DEFINED:  # SentencePiece's formula: higher than any log-probability
            return 0.1 * (len(piece.text.encode()) - 1)
        return piece.score if piece.kind == NORMAL else unused

    unknown = next(id for id, piece in enumerate(model.pieces) if piece.kind == UNKNOWN)
    return models.Unigram(
        [(piece.text, score(piece)) for piece in model.pieces], unknown, model.byte_fallback
    )


def merges(model: SentencePiece) -> list[tuple[str, str]]:
    """All pairs of pieces that form a piece, the highest score first."""
    ids = {piece.text: id for id, piece in enumerate(model.pieces) if piece.kind == NORMAL}
    by_score = sorted(
        (-model.pieces[ids[text]].score, ids[text], ids[left], ids[right], left, right)
        for text, left, right in cuts(ids.keys())
    )
    return [(left, right) for *_, left, right in by_score]
