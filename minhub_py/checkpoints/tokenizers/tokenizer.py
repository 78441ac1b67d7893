"""A repository or a folder -> a `tokenizers.Tokenizer`, from whichever form of file it has.

    tokenizer.json                      the library's own, and complete: nothing else is looked at
    vocab.json, merges.txt              byte-level BPE, as GPT-2's; without merges.txt it is one of characters
    tokenizer.model, spiece.model       sentencepiece's (Llama 2, Mistral, T5), or tiktoken's (Llama 3)
    qwen.tiktoken, tekken.json          tiktoken's, and Mistral's
    vocab.dat, rules.dat                BPE of words, in the form that christianb93's MLLM writes
    model.gguf                          a GGUF file, which has no others beside it

All but the first say little of special tokens, so tokenizer_config.json, special_tokens_map.json and added_tokens.json
complete them. What is put before and after a text is what these files say (add_bos_token, add_eos_token); where they
say nothing, it is what the model's reference implementation does.

Sources: Sennrich et al. (2016) for BPE; Radford et al. (2019) for its byte-level form, GPT-2's.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as brief
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tokenizers.decoders import DecodeStream

from minhub_py.checkpoints import hub
from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.checkpoints.layout import OLDER_TOKENIZERS, folder_gguf_hint
from minhub_py.checkpoints.storage import read_json, read_object
from minhub_py.checkpoints.tokenizers.gguf_tokenizer import gguf_tokenizer, hub_files, tokenizer_settings
from minhub_py.checkpoints.tokenizers.sentencepiece import (
    UNIGRAM,
    SentencePiece,
    read_sentencepiece,
    sentencepiece_tokenizer,
)
from minhub_py.checkpoints.tokenizers.stop_strings import StopStrings
from minhub_py.checkpoints.tokenizers.tiktoken import Ranks, byte_bpe, read_tekken, read_tiktoken
from minhub_py.checkpoints.tokenizers.tokenizer_json import check_tokenizer_json
from minhub_py.checkpoints.tokenizers.wordbpe import read_word_bpe
from minhub_py.system.printable import gist

# The first of these that is there is read.
FORMS = ("tokenizer.json", "vocab.json", *OLDER_TOKENIZERS, "vocab.dat")
# Files that belong to a tokenizer.json, though it can be read without them.
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
# Where the tokenizers that are in use came from: the class takes no subclass.
FILES: WeakKeyDictionary[Tokenizer, Path] = WeakKeyDictionary()
TOKENS = "tokenizer.ggml.tokens"  # a GGUF file without this key has no tokenizer
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Convention:
    """Tokens that the reference implementation puts around a text, unless a repository says otherwise."""

    bos: str | None = None  # the token that begins a text
    eos: str | None = None  # the token that ends one
    add_bos: bool = False
    add_eos: bool = False


def tokenizer_from_pretrained(
    identifier: str, revision: str = "main", *, token: str | None = None, local_files_only: bool = False
) -> Tokenizer:
    """The tokenizer of a Hub repository, a local folder, a built-in or a GGUF file. No other weights are fetched.

    A vocabulary of characters drops any other character without a word; `unknown_characters` finds them.
    Errors are those of `from_pretrained`; FileNotFoundError too where there is no tokenizer in it.
    """
    folder = hub.fetch(identifier, revision, token=token, local_files_only=local_files_only, weights=False)
    return read_tokenizer(folder)


def tokenizer_file(folder: Path) -> Path | None:
    """The file that the tokenizer of a folder, or of a GGUF file, is read from; None: it has none."""
    if folder.is_file():
        return folder if TOKENS in read_header(folder).metadata else None
    return next((folder / name for name in FORMS if (folder / name).exists()), None)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder in Hub layout, or of a GGUF file.

    FileNotFoundError: it has none. ValueError: its files are damaged.
    """
    if folder.is_file():
        return read_gguf(folder)
    path = tokenizer_file(folder)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has no tokenizer, neither tokenizer.json nor vocab.json: "
            f"copy those of the model that it is from.{folder_gguf_hint(folder)}"
        )
    if path.name == "tokenizer.json":
        return parse(path)
    if path.name == "vocab.dat":
        tokenizer = read_word_bpe(path)
        FILES[tokenizer] = path
        return tokenizer
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            settings |= read_object(folder / name)
    tokenizer, convention = read_vocabulary(path, settings) if path.name == "vocab.json" else read_model(path, settings)
    add_tokens(tokenizer, folder, settings)
    surround(tokenizer, settings, convention)
    FILES[tokenizer] = path
    return tokenizer


def read_gguf(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file.

    FileNotFoundError: it has none. ValueError: it is corrupt, or of a kind without code.
    """
    metadata = read_header(path).metadata
    if TOKENS not in metadata:
        raise FileNotFoundError(f"{path} has no tokenizer: take a GGUF file of the same model that has one")
    try:
        settings = tokenizer_settings(metadata)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    with parsing(path):
        tokenizer = gguf_tokenizer(metadata)
        surround(tokenizer, settings, Convention())
        tokenizer.decode(tokenizer.encode("").ids)
    FILES[tokenizer] = path
    return tokenizer


def read_vocabulary(path: Path, settings: Mapping[str, Any]) -> tuple[Tokenizer, Convention]:
    """The tokenizer of a vocab.json, with the merges.txt beside it. ValueError: one of them is damaged."""
    vocabulary = read_json(path)
    if isinstance(vocabulary, list) and all(isinstance(token, str) for token in vocabulary):
        vocabulary = {token: id for id, token in enumerate(vocabulary)}
    if not isinstance(vocabulary, dict) or not (
        all(type(id) is int and 0 <= id < 2**31 for id in vocabulary.values()) and is_text(" ".join(vocabulary))
    ):
        raise ValueError(f"{path} should map tokens to ids, or list characters")
    merges = path.with_name("merges.txt")
    if not merges.exists():
        return characters(vocabulary), Convention()
    prefix = bool(settings.get("add_prefix_space"))
    tokenizer = byte_level_bpe(vocabulary, read_merges(merges), add_prefix_space=prefix)
    return tokenizer, Convention("<|endoftext|>", "<|endoftext|>")


def read_model(path: Path, settings: Mapping[str, Any]) -> tuple[Tokenizer, Convention]:
    """The tokenizer of a file of sentencepiece, tiktoken or Mistral. ValueError: it is damaged."""
    with path.open("rb") as file:
        is_message = file.read(1) == b"\n"  # how sentencepiece's file begins, and base64 never does
    found: SentencePiece | Ranks
    if path.suffix == ".json":
        found = read_tekken(path)
    elif path.suffix == ".tiktoken" or not is_message:
        found = read_tiktoken(path)
    else:
        found = read_sentencepiece(path)
    with parsing(path):
        if isinstance(found, Ranks):
            # A repository that numbers its special tokens after the others has names of its own for them.
            renamed = "added_tokens_decoder" in settings and not found.special_first
            tokenizer = byte_bpe(replace(found, special=()) if renamed else found)
            convention = Convention(found.bos, found.eos, add_bos=found.bos is not None)
        else:
            if isinstance(prefix := settings.get("add_prefix_space"), bool):
                found = replace(found, add_dummy_prefix=prefix)
            tokenizer = sentencepiece_tokenizer(found)
            tokenizer.add_special_tokens(sentinels(found, settings))
            # A model of texts that begin with a token has one for it; T5, which has none, ends them with one.
            bos, eos = found.token(found.bos_id), found.token(found.eos_id)
            convention = Convention(bos, eos, add_bos=bos is not None, add_eos=bos is None and eos is not None)
        tokenizer.decode(tokenizer.encode("").ids)
    return tokenizer, convention


def sentinels(model: SentencePiece, settings: Mapping[str, Any]) -> list[str]:
    """T5's tokens for what is left out of a text: they stand in no file, and their numbers fall as the ids rise."""
    is_t5 = model.model_type == UNIGRAM and model.bos_id < 0
    named = any("extra_id_" in piece.text for piece in model.pieces)  # as in mT5
    count = settings.get("extra_ids", 100 if is_t5 and not named else 0)
    if type(count) is not int or not 0 <= count <= 10_000:
        raise ValueError(f"extra_ids cannot be {count!r}")
    return [f"<extra_id_{i}>" for i in reversed(range(count))]


def is_text(token: str) -> bool:
    """Whether it can be written: JSON may hold half of a surrogate pair."""
    return SURROGATE.search(token) is None


def parse(path: Path) -> Tokenizer:
    """A tokenizer.json. ValueError: it is damaged. FileNotFoundError: it is not there."""
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}: check its name.")
    with parsing(path):
        text = path.read_text(encoding="utf-8")
        check_tokenizer_json(text)
        tokenizer = Tokenizer.from_str(text)
        # Settings of some training run: here a text is as long as it is.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.decode(tokenizer.encode("").ids)  # what panics over each text is better seen here
    FILES[tokenizer] = path
    return tokenizer


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """ValueError, with the name of the file, where the library cannot make a tokenizer of it."""
    try:
        yield
    except BaseException as error:
        # The library raises plain Exception, or panics, which is not even that.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ValueError(f"{path} is no tokenizer ({gist(error)}); it is damaged or cut: fetch it again") from error


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The files that a tokenizer is saved as: tokenizer.json, and what belongs to it where it was read from."""
    files = {"tokenizer.json": tokenizer.to_str(pretty=True).encode()}
    path = FILES.get(tokenizer)
    if path is None:
        return files
    if path.suffix == ".gguf":
        return files | hub_files(read_header(path).metadata)
    beside = [path.with_name(name) for name in BESIDE]
    return files | {each.name: each.read_bytes() for each in beside if each.is_file()}


def is_panic(error: BaseException) -> bool:
    """Whether the library's Rust code gave up: it has no name to catch it by, and is no Exception."""
    return type(error).__name__ == "PanicException"


@contextmanager
def working(tokenizer: Tokenizer) -> Iterator[None]:
    """ValueError, with the name of its file, where a tokenizer cannot do its work.

    Some damage shows only then: a token for what is unknown that is not in the vocabulary raises a bare Exception.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and not is_panic(error):
            raise
        where = FILES.get(tokenizer, "the tokenizer")
        raise ValueError(f"{where} cannot take this text ({gist(error)}): it is damaged, fetch it again") from error


def encode(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True, release_gil: bool = False) -> list[int]:
    """The ids of a text. ValueError: the tokenizer is damaged.

    release_gil: let other threads run meanwhile. Not before a fork, which the library's own threads do not survive.
    """
    with working(tokenizer):
        if release_gil:  # only the methods for batches release the GIL
            return list(tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)


def read_merges(path: Path) -> list[tuple[str, str]]:
    """The pairs of a merges.txt, most frequent first. ValueError: a line is not a pair."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text; it is damaged: fetch it again") from error
    try:
        return [
            (left, right) for left, right in (line.split(" ") for line in lines if line[:8] not in ("", "#version"))
        ]
    except ValueError as error:
        raise ValueError(f"{path} is damaged: each line should be two symbols") from error


def byte_level_bpe(
    vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], *, add_prefix_space: bool = False
) -> Tokenizer:
    """GPT-2's tokenizer: BPE over bytes, so that no text is unknown. ValueError: a merge makes no known token."""
    for left, right in merges:
        if left + right not in vocabulary:  # the library may panic, which is no Exception
            raise ValueError(
                f"vocab.json and merges.txt do not fit each other: there is no token {brief(left + right)}"
            )
    try:
        model = models.BPE(dict(vocabulary), list(merges))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"vocab.json and merges.txt do not fit each other: {gist(error)}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def characters(vocabulary: Mapping[str, int] | Iterable[str]) -> Tokenizer:
    """One id per character: from a mapping, or from the characters in the order of their ids.

    A character that is not in it becomes <unk>, where there is one, and is an id less where there is not.
    """
    ids = dict(vocabulary) if isinstance(vocabulary, Mapping) else {char: id for id, char in enumerate(vocabulary)}
    unknown = "<unk>" if "<unk>" in ids else None
    tokenizer = Tokenizer(models.BPE(ids, [], unk_token=unknown))  # BPE without merges: characters
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def unknown_characters(tokenizer: Tokenizer, text: str, ids: Iterable[int] | None = None) -> list[str]:
    """The characters of `text`, sorted, for which there is no token: they are dropped, or all become <unk>.

    `ids`: those of the text, where they are known already.
    """
    ids = tokenizer.encode(text, add_special_tokens=False).ids if ids is None else ids
    unk = tokenizer.token_to_id("<unk>")
    # A character that does not come back may be normalized; one without a token may be part of a longer one.
    missing = sorted(set(text).difference(tokenizer.decode(sorted({id for id in ids if id != unk}))))
    nothing: tuple[list[int], list[int | None]] = ([], [unk])
    return [char for char in missing if tokenizer.encode(char, add_special_tokens=False).ids in nothing]


def describe_unknown(tokenizer: Tokenizer, characters: Sequence[str]) -> str:
    """A note on characters that `unknown_characters` found."""
    become = "left out" if tokenizer.token_to_id("<unk>") is None else "read as <unk>"
    shown = " ".join(map(repr, characters[:10])) + (" …" if len(characters) > 10 else "")
    return f"not in the tokenizer's vocabulary, and {become}: {shown}"


def train_byte_level_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer like GPT-2's, learnt from texts: 256 bytes, <|endoftext|>, and the merges that shorten them most."""
    tokenizer = byte_level_bpe({}, [])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def add_tokens(tokenizer: Tokenizer, folder: Path, settings: Mapping[str, Any]) -> None:
    """The tokens that the folder's own files add to the vocabulary, and those that they call special.

    Special ones are GPT-2's own where no file names any. ValueError: an added token that would get another id.
    """
    named = [value for key, value in settings.items() if key.endswith("_token")]
    extra = settings.get("additional_special_tokens")
    named += extra if isinstance(extra, list) else []
    added = read_object(folder / "added_tokens.json") if (folder / "added_tokens.json").exists() else {}
    decoder = settings.get("added_tokens_decoder")
    for id, about in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(about, dict) and (name := content(about)):
            added[name] = int(id) if id.isdecimal() else id
            named += [about] if about.get("special") else []
    if not all(type(id) is int and is_text(name) for name, id in added.items()):
        raise ValueError(f"the added tokens of {folder} should map tokens to ids; its files are damaged")
    special = {name for value in named if (name := content(value))} or {"<|endoftext|>", "<unk>"}
    known = {name: id for name in special if (id := tokenizer.token_to_id(name)) is not None}
    in_order = sorted((known | added).items(), key=lambda item: item[1])
    # All at once: the library prepares its search again at each call.
    tokenizer.add_tokens([AddedToken(name, special=name in special, normalized=False) for name, _ in in_order])
    for name, expected in in_order:
        if tokenizer.token_to_id(name) != expected:
            raise ValueError(
                f"{folder} gives the added token {brief(name)} the id {expected}, which is not the next one"
            )


def content(token: Any) -> str | None:
    """The text of a token in the Hub's JSON: a string, or an object with its `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and is_text(text) else None


def surround(tokenizer: Tokenizer, settings: Mapping[str, Any], convention: Convention) -> None:
    """Put a token before every text, and one after it, as the settings or the convention ask.

    ValueError: such a token is not in the vocabulary.
    """
    wanted = {
        "bos": (content(settings.get("bos_token")) or convention.bos, convention.add_bos),
        "eos": (content(settings.get("eos_token")) or convention.eos, convention.add_eos),
    }
    around: dict[str, str] = {}
    for kind, (token, usual) in wanted.items():
        asked = settings.get(f"add_{kind}_token")
        if usual if asked is None else asked:
            if token is None or tokenizer.token_to_id(token) is None:
                raise ValueError(f"add_{kind}_token is set, but {token!r} is not in the vocabulary")
            around[kind] = token
    if around:
        single, second = ([around.get("bos"), text, around.get("eos")] for text in ("$A", "$B"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=list(filter(None, single)),
            pair=list(filter(None, single + second)),
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in set(around.values())],
        )


def decode_stream(tokenizer: Tokenizer, ids: Iterable[int], prompt: Sequence[int] = ()) -> Iterator[str]:
    """The text of `ids`, piece by piece as they come, never half a UTF-8 character.

    The pieces join to the decoded text, less a character that the last ids leave unfinished.    `prompt`: the ids
    before the first, which some tokenizers need to know whether a space is due. ValueError: the tokenizer is damaged.
    """
    stream = DecodeStream(ids=list(prompt), skip_special_tokens=True)
    for id in ids:
        with working(tokenizer):
            piece = stream.step(tokenizer, id)
        if piece:
            yield piece


def until(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """`pieces` up to the first of the strings `stops`, as `StopStrings` has them."""
    text = StopStrings(stops)
    for piece in pieces:
        if certain := text.add(piece):
            yield certain
        if text.found:
            return
    if rest := text.rest():
        yield rest
