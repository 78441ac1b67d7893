"""Tokenizers of the library `tokenizers`, from any of these files.

    tokenizer.json                      the library's format, which is complete
    vocab.json, merges.txt              byte-level BPE (GPT-2), BPE within words (GPT); without merges.txt, characters
    tokenizer.model, spiece.model       SentencePiece (Llama 2, Mistral, T5), or tiktoken (Llama 3)
    qwen.tiktoken, tekken.json          tiktoken, and Mistral's format
    sentencepiece.bpe.model, vocab.txt, spm.model    SentencePiece and WordPiece of encoders (encoder_tokenizer)
    source.spm, target.spm              Marian's two SentencePiece models (translation_tokenizer)
    vocab.dat, rules.dat                word-level BPE of christianb93's MLLM
    model.gguf                          a GGUF file

For formats with incomplete special tokens, tokenizer_config.json, special_tokens_map.json and
added_tokens.json add them. add_bos_token and add_eos_token in these files determine the tokens
around a text. The defaults are the reference implementations'.

A tokenizer.json is complete except for special and added tokens, which tokenizer_config.json may
name in addition. In transformers, the settings do_lower_case, strip_accents and
tokenize_chinese_chars of tokenizer_config.json override a BERT tokenizer.json, too: files that
contradict each other give other token IDs there.

Sources: Sennrich et al. (2016) for BPE; Radford et al. (2019) for byte-level BPE.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tokenizers.decoders import DecodeStream

from minhub_py.checkpoints import hub
from minhub_py.checkpoints.chat_templates import ADDITIONAL, additional_files
from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.checkpoints.layout import (
    AGENT_SETTINGS,
    DECISION_FILES,
    OLDER_TOKENIZERS,
    folder_gguf_hint,
)
from minhub_py.checkpoints.sentence_transformers import prefixes_of
from minhub_py.checkpoints.storage import read_settings
from minhub_py.checkpoints.tokenizers.encoder_tokenizer import (
    FAMILIES,
    family_of,
    read_wordpiece,
    surround_pairs,
    unigram_tokenizer,
)
from minhub_py.checkpoints.tokenizers.gguf_tokenizer import (
    encoder_family,
    gguf_tokenizer,
    hub_files,
    tokenizer_settings,
)
from minhub_py.checkpoints.tokenizers.paired import PairedTokenizer, target_tokenizer
from minhub_py.checkpoints.tokenizers.sentencepiece import (
    UNIGRAM,
    SentencePiece,
    read_sentencepiece,
    sentencepiece_tokenizer,
)
from minhub_py.checkpoints.tokenizers.special_tokens import (
    Convention,
    add_prefixes,
    add_tokens,
    complete,
    content,
    surround,
)
from minhub_py.checkpoints.tokenizers.stop_strings import StopStrings
from minhub_py.checkpoints.tokenizers.tiktoken import Ranks, byte_bpe, read_tekken, read_tiktoken
from minhub_py.checkpoints.tokenizers.tokenizer_json import check_tokenizer_json
from minhub_py.checkpoints.tokenizers.translation_tokenizer import (
    class_of,
    original_files,
    pieces_file,
    read_translation,
    surround_language,
)
from minhub_py.checkpoints.tokenizers.wordbpe import check_merges, lower_case_bpe, read_word_bpe
from minhub_py.inference.arguments import check_list, check_tokenizer
from minhub_py.system.files import open_regular, read_bytes, read_text
from minhub_py.system.printable import reason_of
from minhub_py.system.shapes import TokenID, read_json

# In order of preference.
FORMS = ("tokenizer.json", "vocab.json", *OLDER_TOKENIZERS, "vocab.dat")
# Optional companions of a tokenizer.json, which are saved with it.
SAVED_COMPANIONS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    *DECISION_FILES,
)
# The source of each tokenizer: the class has no attributes and cannot be subclassed.
FILES: WeakKeyDictionary[Tokenizer, Path] = WeakKeyDictionary()
TOKENS = "tokenizer.ggml.tokens"  # a GGUF file without this key has no tokenizer


def tokenizer_from_pretrained(
    identifier: str,
    revision: str = "main",
    *,
    token: str | None = None,
    local_files_only: bool = False,
) -> Tokenizer:
    """Load the tokenizer of a model. Downloads no weights, except for a GGUF file.

    A character vocabulary silently drops unknown characters; `unknown_characters` finds them.

    Args:
        identifier: a Hub repository, a local folder, a built-in or a GGUF file.
        revision: a branch, tag or commit of the repository.
        token: a Hub access token. By default, the stored token.
        local_files_only: open no connection.

    Raises:
        FileNotFoundError: the model does not exist or has no tokenizer.
        PermissionError, ConnectionError, ValueError: as in `from_pretrained`.
    """
    folder = hub.fetch(
        identifier, revision, token=token, local_files_only=local_files_only, weights=False
    )
    return read_tokenizer(folder)


def tokenizer_file(folder: Path, name: str = "") -> Path | None:
    """The tokenizer file of a folder, or the GGUF file; None without a tokenizer.

    name: of the tokenizer's class, if known.
    """
    if folder.is_file():
        return folder if TOKENS in read_header(folder).metadata else None
    folder = folder_of_tokenizer(folder)
    pieces = pieces_file(folder, name)
    if pieces is not None and not (folder / "tokenizer.json").exists():
        return pieces
    return next((folder / name for name in FORMS if (folder / name).exists()), None)


def folder_of_tokenizer(folder: Path) -> Path:
    """The folder with the tokenizer's files: Laya has them in a subfolder."""
    return folder / "tokenizer" if (folder / AGENT_SETTINGS).exists() else folder


def read_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a folder in Hub layout or of a GGUF file.

    FileNotFoundError: it has no tokenizer. ValueError: its files are corrupt.
    """
    if folder.is_file():
        return read_gguf(folder)
    folder = folder_of_tokenizer(folder)
    settings = read_settings(folder, "special_tokens_map.json", "tokenizer_config.json")
    config = read_settings(folder, "config.json")
    name = class_of(settings, config.get("model_type"))
    path = tokenizer_file(folder, name)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has no tokenizer, neither tokenizer.json nor vocab.json: "
            f"copy the files of the original model.{folder_gguf_hint(folder)}"
        )
    target = None
    if path.name == "tokenizer.json":
        tokenizer = parse(path)
        surround_language(tokenizer, name, settings)
    elif path == pieces_file(folder, name):
        with parsing(path):
            tokenizer, target = read_translation(path, name, settings)
        add_tokens(tokenizer, folder, settings)
        surround_language(tokenizer, name, settings)
    elif path.name == "vocab.dat":
        tokenizer = read_word_bpe(path)
    elif path.name == "vocab.json" and config.get("model_type") == "openai-gpt":
        tokenizer = read_gpt(path, settings)
        add_tokens(tokenizer, folder, settings)
    elif family := family_of(path, settings.get("tokenizer_class"), config.get("model_type")):
        tokenizer = read_encoder(path, family, settings)
    else:
        read = read_vocabulary if path.name == "vocab.json" else read_model
        tokenizer, convention = read(path, settings)
        add_tokens(tokenizer, folder, settings)
        surround(tokenizer, settings, convention)
    complete(tokenizer, folder, settings)
    add_prefixes(tokenizer, prefixes_of(folder))
    FILES[tokenizer] = path
    if target is None or target is tokenizer:
        return tokenizer
    pair: Any = PairedTokenizer(tokenizer, target)
    FILES[target] = FILES[pair] = path
    return pair  # type: ignore[no-any-return]


def read_gguf(path: Path) -> Tokenizer:
    """Load the tokenizer of a GGUF file.

    FileNotFoundError: it has no tokenizer. ValueError: it is corrupt or not supported.
    """
    metadata = read_header(path).metadata
    if TOKENS not in metadata:
        raise FileNotFoundError(f"{path} has no tokenizer: use another GGUF file of the same model")
    try:
        settings = tokenizer_settings(metadata)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    with parsing(path):
        tokenizer = gguf_tokenizer(metadata)
        if not encoder_family(metadata):  # whose tokens are set
            surround(tokenizer, settings, Convention())
        tokenizer.decode(tokenizer.encode("").ids)
    FILES[tokenizer] = path
    return tokenizer


def read_vocabulary(path: Path, settings: Mapping[str, object]) -> tuple[Tokenizer, Convention]:
    """Load a vocab.json and the merges.txt in its folder. ValueError: one of them is corrupt."""
    vocabulary: list[str] | dict[str, int] = read_json(path, list[str] | dict[str, TokenID])
    if isinstance(vocabulary, list):
        vocabulary = {token: id for id, token in enumerate(vocabulary)}
    merges = path.with_name("merges.txt")
    if not merges.exists():
        return characters(vocabulary), Convention()
    prefix = bool(settings.get("add_prefix_space"))
    tokenizer = byte_level_bpe(vocabulary, read_merges(merges), add_prefix_space=prefix)
    return tokenizer, Convention("<|endoftext|>", "<|endoftext|>")


def read_gpt(path: Path, settings: Mapping[str, object]) -> Tokenizer:
    """Load GPT's vocab.json and merges.txt: BPE within lower-case words. ValueError: a file is
    missing or corrupt.
    """
    merges = path.with_name("merges.txt")
    if not merges.exists():
        raise ValueError(f"{path} requires a second file: copy its merges.txt into the same folder")
    vocabulary: dict[str, int] = read_json(path, dict[str, TokenID])
    unknown = content(settings.get("unk_token")) or "<unk>"
    with parsing(path):
        return lower_case_bpe(vocabulary, read_merges(merges), unknown)


def read_encoder(path: Path, family: str, settings: Mapping[str, object]) -> Tokenizer:
    """Load the tokenizer of an encoder, with its special tokens. ValueError: a file is corrupt."""
    configured = {name: value for name, value in settings.items() if value is not None}
    settings = {**FAMILIES[family].tokens, **configured}
    names = {name: content(settings[name]) for name in FAMILIES[family].tokens}
    mask = settings["mask_token"]
    if isinstance(mask, str) and isinstance(FAMILIES[family].tokens["mask_token"], dict):
        settings["mask_token"] = {"content": mask, "lstrip": True}
    start, end, unknown = (names[name] or "" for name in ("cls_token", "sep_token", "unk_token"))
    if path.name == "vocab.json":
        tokenizer, _ = read_vocabulary(path, settings)
    elif path.name == "vocab.txt":
        with parsing(path):
            tokenizer = read_wordpiece(path, {**settings, "unk_token": unknown})
    else:
        model = read_sentencepiece(path)
        with parsing(path):
            tokenizer = unigram_tokenizer(model, family, settings)
    add_tokens(tokenizer, path.parent, settings)
    with parsing(path):
        surround_pairs(tokenizer, family, start, end, prefix=bool(settings.get("add_prefix_space")))
        tokenizer.decode(tokenizer.encode("").ids)
    return tokenizer


def read_model(path: Path, settings: Mapping[str, object]) -> tuple[Tokenizer, Convention]:
    """Load a file of SentencePiece, tiktoken or Mistral. ValueError: it is corrupt."""
    with open_regular(path) as file:
        is_sentencepiece = file.read(1) == b"\n"  # never the first byte of base64
    model: SentencePiece | Ranks
    if path.suffix == ".json":
        model = read_tekken(path)
    elif path.suffix == ".tiktoken" or not is_sentencepiece:
        model = read_tiktoken(path)
    else:
        model = read_sentencepiece(path)
    with parsing(path):
        if isinstance(model, Ranks):
            # add_tokens() adds special tokens after the vocabulary, with the repository's names.
            has_names = "added_tokens_decoder" in settings and not model.special_first
            tokenizer = byte_bpe(replace(model, special=()) if has_names else model)
            convention = Convention(model.bos, model.eos, add_bos=model.bos is not None)
        else:
            if isinstance(prefix := settings.get("add_prefix_space"), bool):
                model = replace(model, add_dummy_prefix=prefix)
            tokenizer = sentencepiece_tokenizer(model)
            tokenizer.add_special_tokens(sentinels(model, settings))
            # T5 has no bos and adds eos; other models add bos.
            bos, eos = model.token(model.bos_id), model.token(model.eos_id)
            convention = Convention(
                bos, eos, add_bos=bos is not None, add_eos=bos is None and eos is not None
            )
        tokenizer.decode(tokenizer.encode("").ids)
    return tokenizer, convention


def sentinels(model: SentencePiece, settings: Mapping[str, object]) -> list[str]:
    """T5's sentinel tokens for masked spans, which are in no file. Their numbers decrease with
    increasing IDs.
    """
    is_t5 = model.model_type == UNIGRAM and model.bos_id < 0
    in_vocabulary = any("extra_id_" in piece.text for piece in model.pieces)  # as in mT5
    count = settings.get("extra_ids", 100 if is_t5 and not in_vocabulary else 0)
    if type(count) is not int or not 0 <= count <= 10_000:
        raise ValueError(f"extra_ids cannot be {count!r}")
    return [f"<extra_id_{i}>" for i in reversed(range(count))]


def parse(path: Path) -> Tokenizer:
    """Load a tokenizer.json. ValueError: it is corrupt. FileNotFoundError: it does not exist."""
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}: check its name.")
    content = read_bytes(path)
    with parsing(path):
        text = content.decode()
        check_tokenizer_json(text)
        tokenizer = Tokenizer.from_str(text)
        tokenizer.no_padding()  # a training setting, as truncation
        tokenizer.no_truncation()
        tokenizer.decode(tokenizer.encode("").ids)  # some corrupt tokenizers panic for each text
    FILES[tokenizer] = path
    return tokenizer


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Translate the library's errors into a ValueError with the name of the file."""
    try:
        yield
    except BaseException as error:
        # The library raises plain Exception or a panic, which is a BaseException.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ValueError(
            f"{path} is not a valid tokenizer ({reason_of(error)}): if it is corrupt or truncated,"
            " download it again"
        ) from error


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The files to save: tokenizer.json or the original files, and the companions of its source."""
    path = FILES.get(tokenizer)
    originals = original_files(path)
    if path is None or not originals:
        files = {"tokenizer.json": tokenizer.to_str(pretty=True).encode()}
    else:
        files = {file.name: read_bytes(file) for file in originals}
    if path is None:
        return files
    if path.suffix == ".gguf":
        return files | hub_files(read_header(path).metadata)
    companions = [path.with_name(name) for name in SAVED_COMPANIONS]
    files |= {file.name: read_bytes(file) for file in companions if file.is_file()}
    return files | {
        f"{ADDITIONAL}/{file.name}": read_bytes(file) for file in additional_files(path.parent)
    }


def is_panic(error: BaseException) -> bool:
    """Whether the library's Rust code panicked. The class is a BaseException that cannot be
    imported.
    """
    return type(error).__name__ == "PanicException"


@contextmanager
def working(tokenizer: Tokenizer) -> Iterator[None]:
    """Translate errors of a tokenizer in use into a ValueError with the name of its file.

    Some corrupt files fail only in use: an unknown token that is not in the vocabulary raises a
    plain Exception.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and not is_panic(error):
            raise
        source = FILES.get(tokenizer, "the tokenizer")
        raise ValueError(
            f"{source} fails for this text ({reason_of(error)}): it is corrupt, download it again"
        ) from error


def encode(
    tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True, release_gil: bool = False
) -> list[int]:
    """The token IDs of a text. ValueError: the tokenizer is corrupt.

    release_gil: let other threads run. Not before a fork, because the library starts threads.
    """
    with working(tokenizer):
        if release_gil:  # only batch methods release the GIL
            return list(
                tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
            )
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)


def surrounding_ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The token IDs that the tokenizer adds before and after a text. ValueError: the tokenizer is
    corrupt.
    """

    def examples() -> Iterator[str]:
        yield "a"
        yield from tokenizer.get_vocab()  # a vocabulary of characters may lack "a"

    with working(tokenizer):
        for text in examples():
            example = tokenizer.encode(text, add_special_tokens=False)
            if example.ids:
                around = tokenizer.post_process(example)
                before = around.special_tokens_mask.index(0)
                return list(around.ids[:before]), list(around.ids[before + len(example.ids) :])
    return [], []


def without_end(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The token IDs of an encoded text that a model continues: without those that the tokenizer
    adds after it (EOS).
    """
    _, after = surrounding_ids(tokenizer)
    return list(ids[: len(ids) - len(after)])


def encode_prompt(tokenizer: Tokenizer, text: str, *, source: bool = False) -> list[int]:
    """The token IDs of a text that a model continues, without EOS after it.

    source: for an encoder-decoder, which reads a complete text, with EOS.
    ValueError: the tokenizer is corrupt.
    """
    ids = encode(tokenizer, text)
    return ids if source else without_end(tokenizer, ids)


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Read the pairs of a merges.txt in order. ValueError: a line is not a pair."""
    try:
        lines = read_text(path).split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: download it again") from error
    try:
        return [
            (left, right)
            for left, right in (
                line.split(" ") for line in lines if line[:8] not in ("", "#version")
            )
        ]
    except ValueError as error:
        raise ValueError(f"{path} is corrupt: each line should have two symbols") from error


def byte_level_bpe(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    add_prefix_space: bool = False,
) -> Tokenizer:
    """GPT-2's tokenizer: BPE over bytes, without unknown text. ValueError: the result of a merge is
    not a token.
    """
    check_merges(vocabulary, merges)
    try:
        model = models.BPE(dict(vocabulary), list(merges))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(
            f"vocab.json and merges.txt are inconsistent: {reason_of(error)}"
        ) from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def characters(vocabulary: Mapping[str, int] | Iterable[str]) -> Tokenizer:
    """A tokenizer with one token per character. vocabulary: a mapping to IDs, or characters in the
    order of IDs.

    Unknown characters become <unk> if the vocabulary has it, and are dropped otherwise.
    """
    ids = (
        dict(vocabulary)
        if isinstance(vocabulary, Mapping)
        else {char: id for id, char in enumerate(vocabulary)}
    )
    unknown = "<unk>" if "<unk>" in ids else None
    tokenizer = Tokenizer(models.BPE(ids, [], unk_token=unknown))  # BPE without merges: characters
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def unknown_characters(
    tokenizer: Tokenizer, text: str, ids: Iterable[int] | None = None
) -> list[str]:
    """The sorted characters of `text` that have no token: they are dropped or become <unk>.

    ids: the text's token IDs, if already computed.
    """
    ids = tokenizer.encode(text, add_special_tokens=False).ids if ids is None else ids
    unk = tokenizer.token_to_id("<unk>")
    # A character that is not decoded may be normalized, or encoded only as part of a longer token.
    candidates = sorted(
        set(text).difference(tokenizer.decode(sorted({id for id in ids if id != unk})))
    )
    # white space separates words, and has no tokens
    if isinstance(tokenizer.model, models.WordPiece):
        candidates = [char for char in candidates if not char.isspace()]
    unknown: tuple[list[int], list[int | None]] = ([], [unk])
    return [
        char
        for char in candidates
        if tokenizer.encode(char, add_special_tokens=False).ids in unknown
    ]


def describe_unknown(tokenizer: Tokenizer, characters: Sequence[str]) -> str:
    """A message about the result of `unknown_characters`."""
    treatment = "left out" if tokenizer.token_to_id("<unk>") is None else "read as <unk>"
    listed = " ".join(map(repr, characters[:10])) + (" …" if len(characters) > 10 else "")
    return f"not in the tokenizer's vocabulary, and {treatment}: {listed}"


def train_byte_level_bpe(
    texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str] = ("<|endoftext|>",)
) -> Tokenizer:
    """Train a tokenizer like GPT-2's on texts: 256 bytes, the special tokens, and the most frequent
    merges.
    """
    tokenizer = byte_level_bpe({}, [])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class TextStream:
    """The text of a model's new tokens, in complete UTF-8 characters. prompt: as in
    `decode_stream`.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        self.tokenizer = target_tokenizer(tokenizer)
        self.stream = DecodeStream(ids=list(prompt), skip_special_tokens=skip_special_tokens)

    def add(self, id: int) -> str:
        """The new text after a token. ValueError: the tokenizer is corrupt."""
        with working(self.tokenizer):
            return self.stream.step(self.tokenizer, id) or ""


def decode_stream(
    tokenizer: Tokenizer, ids: Iterable[int], prompt: Sequence[int] = ()
) -> Iterator[str]:
    """Decode a stream of token IDs. Yields complete UTF-8 characters only.

    The concatenated pieces are the decoded text, without an incomplete character at its end.

    Args:
        tokenizer: the model's tokenizer.
        ids: token IDs, such as from `stream`.
        prompt: the preceding token IDs, which determine in some tokenizers whether the text begins
            with a space.

    Raises:
        ValueError: not a tokenizer, or a corrupt one; or `ids` are not iterable.
    """
    check_tokenizer(tokenizer, "decode")
    check_list("ids", ids, "token IDs")
    text = TextStream(tokenizer, prompt)
    for id in ids:
        if piece := text.add(id):
            yield piece


def until(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """The text of `pieces` up to the first of the strings `stops`."""
    text = StopStrings(stops)
    for piece in pieces:
        if certain := text.add(piece):
            yield certain
        if text.stopped:
            return
    if pending := text.flush():
        yield pending
