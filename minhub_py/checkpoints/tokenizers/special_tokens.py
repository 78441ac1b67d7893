"""Added and special tokens of tokenizer settings, and the tokens around a text."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief

from tokenizers import AddedToken, Tokenizer, processors

from minhub_py.checkpoints.storage import read_settings
from minhub_py.system.json_text import JsonMapping
from minhub_py.system.shapes import TokenID, is_unicode, read_json

ID = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class Convention:
    """Default tokens around a text, by the model's reference implementation."""

    bos: str | None = None
    eos: str | None = None
    add_bos: bool = False
    add_eos: bool = False


def add_tokens(tokenizer: Tokenizer, folder: Path, settings: Mapping[str, object]) -> None:
    """Add the folder's added tokens to the vocabulary, and mark its special tokens (by default
    GPT-2's).

    ValueError: an added token's ID is not the next one.
    """
    special_values = [value for key, value in settings.items() if key.endswith("_token")]
    # Spaces before these tokens belong to them: RoBERTa's <mask>.
    with_space = {
        content(value)
        for value in special_values
        if isinstance(value, dict) and value.get("lstrip") is True
    }
    extra = settings.get("additional_special_tokens")
    special_values += extra if isinstance(extra, list) else []
    added = read_added(folder)
    decoder = settings.get("added_tokens_decoder")
    for id, entry in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(entry, dict) and (name := content(entry)):
            added[name] = token_id(id, folder)
            special_values += [entry] if entry.get("special") else []
    special = {name for value in special_values if (name := content(value))} or {
        "<|endoftext|>",
        "<unk>",
    }
    special_ids = {name: id for name in special if (id := tokenizer.token_to_id(name)) is not None}
    in_order = sorted((special_ids | added).items(), key=lambda item: item[1])
    # In one call: each call rebuilds the library's search structure.
    tokenizer.add_tokens(
        [
            AddedToken(name, special=name in special, normalized=False, lstrip=name in with_space)
            for name, _ in in_order
        ]
    )
    for name, expected in in_order:
        if tokenizer.token_to_id(name) != expected:
            raise ValueError(
                f"{folder} gives the added token {brief(name)} the ID {expected}, which is not the"
                " next ID"
            )


def complete(tokenizer: Tokenizer, folder: Path, settings: Mapping[str, object]) -> None:
    """Add the special and added tokens that only tokenizer_config.json names, as transformers does.

    A token of the vocabulary keeps its ID. Other tokens get the next IDs, if the model has
    embeddings for them. The properties in added_tokens_decoder, such as lstrip, take precedence
    over those in tokenizer.json.
    """
    added = tokenizer.get_added_tokens_decoder()
    present = {token.content: token for token in added.values()}
    declared, ids = declared_tokens(folder, settings)
    size = model_vocabulary(folder)
    next_id = max([tokenizer.get_vocab_size(with_added_tokens=False), *(id + 1 for id in added)])
    tokens = []
    for name, token in declared.items():
        if name in present and (name not in ids or repr(token) == repr(present[name])):
            continue
        if tokenizer.token_to_id(name) is None:
            if size is not None and next_id >= size:
                continue
            if ids.get(name, next_id) != next_id:
                warnings.warn(
                    f"{folder}: the token {brief(name)} is not added, because tokenizer_config.json"
                    f" gives it the ID {ids[name]}, which is not the next ID of the tokenizer,"
                    f" {next_id}: correct the file",
                    stacklevel=2,
                )
                continue
            next_id += 1
        tokens.append(token)
    tokenizer.add_tokens(tokens)  # in one call: each call rebuilds the library's search structure


def add_prefixes(tokenizer: Tokenizer, prefixes: Sequence[str]) -> None:
    """Make the prefixes of a ColBERT model one special token each, if the tokenizer has them.

    PyLate inserts "[Q] " or [unused0] before a query as a token ID; as text, a tokenizer may split
    or change it.
    """
    for value in prefixes:
        for prefix in [value, *value.split(None, 1)[:1]] if value.strip() else []:
            if tokenizer.token_to_id(prefix) is not None:
                if tokenizer.encode(prefix, add_special_tokens=False).tokens != [prefix]:
                    token = AddedToken(prefix, normalized=False, special=True)
                    tokenizer.add_special_tokens([token])
                break


def declared_tokens(
    folder: Path, settings: Mapping[str, object]
) -> tuple[dict[str, AddedToken], dict[str, int]]:
    """The added tokens of tokenizer_config.json by their text, and the IDs that it gives them."""
    tokens, ids = {}, {}
    decoder = settings.get("added_tokens_decoder")
    entries = [
        (int(id), entry)
        for id, entry in (decoder if isinstance(decoder, dict) else {}).items()
        if ID.fullmatch(id)
    ]
    if decoder is None:
        entries = [(id, {"content": name}) for name, id in read_added(folder).items()]
    for id, entry in sorted(entries, key=lambda item: item[0]):
        if isinstance(entry, dict) and (name := content(entry)):
            tokens[name], ids[name] = added_token(entry), id
    values = [value for key, value in settings.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        extra = settings.get(key)
        values += (
            extra
            if isinstance(extra, list)
            else [*extra.values()]
            if isinstance(extra, dict)
            else []
        )
    for value in values:
        if name := content(value):
            tokens.setdefault(
                name,
                added_token(
                    {**(value if isinstance(value, dict) else {}), "content": name, "special": True}
                ),
            )
    return tokens, ids


def read_added(folder: Path) -> dict[str, int]:
    """The content of added_tokens.json; empty without this file. ValueError: it is corrupt."""
    path = folder / "added_tokens.json"
    return read_json(path, dict[str, TokenID]) if path.exists() else {}


def token_id(text: str, folder: Path) -> int:
    """A token ID that is a key of added_tokens_decoder. ValueError: it is another text."""
    if not ID.fullmatch(text):
        raise ValueError(
            f"{folder / 'tokenizer_config.json'}: added_tokens_decoder has the key {brief(text)},"
            " which is not a token ID: download the file again"
        )
    return int(text)


def added_token(entry: JsonMapping) -> AddedToken:
    """A token with the properties of its entry in the Hub's JSON."""
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    properties = {name: entry[name] for name in names if isinstance(entry.get(name), bool)}
    return AddedToken(
        entry["content"], **{"normalized": not properties.get("special", False), **properties}
    )


def model_vocabulary(folder: Path) -> int | None:
    """vocab_size of the folder's config.json; None if it has none."""
    config = read_settings(folder, "config.json")
    text = config.get("text_config")
    size = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    return size if type(size) is int else None


def content(token: object) -> str | None:
    """The text of a token in the Hub's JSON, which is a string or an object with `content`; None if
    invalid.
    """
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and is_unicode(text) else None


def padding_token(
    tokenizer: Tokenizer, file: Path | None, token: str | None = None
) -> tuple[str, int]:
    """The padding token and its ID: of tokenizer_config.json, or a token with a usual name.

    file: of the tokenizer, if any.    token: use this one.
    ValueError: the vocabulary lacks it, or there is none.
    """
    names = [token] if token is not None else ["[PAD]", "<pad>"]
    if token is None and file is not None and file.suffix != ".gguf":
        files = "special_tokens_map.json", "tokenizer_config.json"
        configured = content(read_settings(file.parent, *files).get("pad_token"))
        names = ([configured] if configured else []) + names
    for name in names:
        if (id := tokenizer.token_to_id(name)) is not None:
            return name, id
    if token is not None:
        raise ValueError(f"the vocabulary has no token {token!r}: choose one of its tokens")
    raise ValueError(
        "this tokenizer has no padding token: choose a token of its vocabulary as pad_token of"
        " enable_padding()"
    )


def surround(tokenizer: Tokenizer, settings: Mapping[str, object], convention: Convention) -> None:
    """Add bos and eos around each text, by the settings or the convention.

    ValueError: a token is not in the vocabulary.
    """
    tokens = {
        "bos": (content(settings.get("bos_token")) or convention.bos, convention.add_bos),
        "eos": (content(settings.get("eos_token")) or convention.eos, convention.add_eos),
    }
    around: dict[str, str] = {}
    for name, (token, default) in tokens.items():
        enabled = settings.get(f"add_{name}_token")
        if default if enabled is None else enabled:
            if token is None or tokenizer.token_to_id(token) is None:
                raise ValueError(f"add_{name}_token is set, but {token!r} is not in the vocabulary")
            around[name] = token
    if around:
        single, second = ([around.get("bos"), text, around.get("eos")] for text in ("$A", "$B"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=list(filter(None, single)),
            pair=list(filter(None, single + second)),
            special_tokens=[
                (token, tokenizer.token_to_id(token)) for token in set(around.values())
            ],
        )
