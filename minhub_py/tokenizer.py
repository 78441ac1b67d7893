"""From a repository or a folder to a `tokenizers.Tokenizer`: tokenizer.json, else vocab.json (and merges.txt).

Sources: Sennrich et al. (2016) for BPE; Radford et al. (2019) for its byte-level form, GPT-2's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.decoders import DecodeStream

from minhub_py import hub
from minhub_py.storage import read_json, read_object


def tokenizer_from_pretrained(
    identifier: str, revision: str = "main", *, token: str | None = None, local_files_only: bool = False
) -> Tokenizer:
    """The tokenizer of a Hub repository, a local folder or a built-in. No weights are fetched.

    Errors are those of `from_pretrained`; FileNotFoundError too where there is no tokenizer in it.
    """
    folder = hub.fetch(identifier, revision, token=token, local_files_only=local_files_only, weights=False)
    return read_tokenizer(folder)


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder in Hub layout. FileNotFoundError: it has none. ValueError: its files are damaged."""
    if (folder / "tokenizer.json").exists():
        return parse(folder / "tokenizer.json")
    if not (folder / "vocab.json").exists():
        raise FileNotFoundError(f"{folder} has no tokenizer: neither tokenizer.json nor vocab.json")
    vocabulary = read_json(folder / "vocab.json")
    if isinstance(vocabulary, list):
        vocabulary = {token: id for id, token in enumerate(vocabulary)}
    if not isinstance(vocabulary, dict) or not all(
        isinstance(token, str) and isinstance(id, int) for token, id in vocabulary.items()
    ):
        raise ValueError(f"{folder / 'vocab.json'} should map tokens to ids, or list characters")
    if (folder / "merges.txt").exists():
        tokenizer = byte_level_bpe(vocabulary, read_merges(folder / "merges.txt"))
    else:
        tokenizer = characters(vocabulary)
    tokenizer.add_special_tokens(special_tokens(folder, tokenizer))
    return tokenizer


def parse(path: Path) -> Tokenizer:
    """A tokenizer.json. ValueError: it is damaged."""
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path} is no tokenizer ({error}); it is damaged or cut: fetch it again") from error


def read_merges(path: Path) -> list[tuple[str, str]]:
    """The pairs of a merges.txt, most frequent first. ValueError: a line is not a pair."""
    lines = path.read_text(encoding="utf-8").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    if not all(len(pair) == 2 for pair in pairs):
        raise ValueError(f"{path} is damaged: each line should be two symbols")
    return pairs  # type: ignore[return-value]


def byte_level_bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """GPT-2's tokenizer: BPE over bytes, so that no text is unknown. ValueError: a merge makes no known token."""
    try:
        model = models.BPE(dict(vocabulary), list(merges))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"vocab.json and merges.txt do not fit each other: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
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


def special_tokens(folder: Path, tokenizer: Tokenizer) -> list[AddedToken]:
    """The special tokens that the folder's own files name, of those in the vocabulary; GPT-2's own where none do."""
    names = set()
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / file).exists():
            for key, value in read_object(folder / file).items():
                token = value.get("content") if isinstance(value, dict) else value
                if key.endswith("_token") and isinstance(token, str):
                    names.add(token)
    names = names or {"<|endoftext|>", "<unk>"}
    return [
        AddedToken(name, special=True, normalized=False)
        for name in sorted(names)
        if tokenizer.token_to_id(name) is not None
    ]


def decode_stream(tokenizer: Tokenizer, ids: Iterable[int], prompt: Sequence[int] = ()) -> Iterator[str]:
    """The text of `ids`, piece by piece as they come, never half a UTF-8 character; pieces join to the whole text.

    `prompt`: the ids before the first, which some tokenizers need to know whether a space is due.
    """
    stream = DecodeStream(ids=list(prompt), skip_special_tokens=True)
    for id in ids:
        if piece := stream.step(tokenizer, id):
            yield piece


def until(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """`pieces` up to the first of the strings `stops`. What could be the beginning of one is held back meanwhile."""
    held = ""
    for piece in pieces:
        held += piece
        ends = [held.find(stop) for stop in stops if stop in held]
        if ends:
            yield held[: min(ends)]
            return
        keep = max((n for stop in stops for n in range(1, len(stop)) if held.endswith(stop[:n])), default=0)
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
    if held:
        yield held
