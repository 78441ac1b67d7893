"""A checkpoint's files in Hub layout: names, shards, and missing files. Opens no tensor."""

import re
from collections.abc import Callable, Collection
from pathlib import Path
from reprlib import repr as brief
from typing import TypedDict

from minhub_py.system.files import read_bytes
from minhub_py.system.printable import printable
from minhub_py.system.shapes import parse_json

# Formats of weights in order of preference; only the first is used. An index lists its shards.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# Tokenizer formats that are used only without a tokenizer.json.
OLDER_TOKENIZERS = (
    "tokenizer.model",
    "spiece.model",
    "qwen.tiktoken",
    "tekken.json",
    "sentencepiece.bpe.model",
    "spm.model",
    "vocab.txt",
    "source.spm",
)
# Settings and prompt of typed decisions
DECISION_FILES = ("decision.json", "decision_template.jinja")
TOKENIZER_FILES = (
    *DECISION_FILES,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",  # of those, only this one is used
    "vocab.json",
    "merges.txt",
    "target.spm",
    "target_vocab.json",
    *OLDER_TOKENIZERS,
)
# Settings of the transformer module of sentence-transformers; the first is the current name.
TRANSFORMER_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "xlm-roberta", "albert")
)
# Settings of text embeddings (sentence_transformers.py)
EMBEDDING_FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    *TRANSFORMER_SETTINGS,
    "1_Pooling/config.json",
    "1_SpladePooling/config.json",
    *(
        f"{number}_{kind}/{name}"
        for number in range(1, 5)
        for kind in ("Dense", "LayerNorm")
        for name in ("config.json", "model.safetensors", "pytorch_model.bin")
    ),
    *(
        f"{number}_{kind}/config.json"
        for number in range(1, 6)
        for kind in ("MultiVectorMask", "Normalize")
    ),
)
# In download order, before config.json and the weights: a folder with config.json has all of these,
# and a folder with all weights is complete. Offline calls, which cannot ask the Hub for the list of
# files, rely on this order.
COMPANIONS = ("generation_config.json", *TOKENIZER_FILES, *EMBEDDING_FILES)
# Of Laya: its settings, the encoder's and the tokenizer in folders.
AGENT_SETTINGS = "rl_agent_config.json"
AGENT_FILES = (
    "encoder/config.json",
    *(f"tokenizer/{name}" for name in TOKENIZER_FILES if "/" not in name),
    AGENT_SETTINGS,
)
CONFIGS = ("config.json", AGENT_SETTINGS)
# "judge_config.json", "decision_config.json": of decision heads in other formats
SMALL = (
    *COMPANIONS,
    *AGENT_FILES,
    "config.json",
    "judge_config.json",
    "decision_config.json",
)
MAX_SHARDS = 10_000
# File names from a server or an index become local paths only if they match these.
SHARD = re.compile(r"\w[\w.-]{0,240}\.(safetensors|bin)", re.ASCII)
GGUF = re.compile(r"\w[\w.-]{0,240}(/\w[\w.-]{0,240}){0,4}(?<=\.gguf)", re.ASCII)


class Index(TypedDict):
    """An index of shards: each tensor's file."""

    weight_map: dict[str, str]


def shard_names(index: Path, title: str) -> list[str]:
    """The weight files that an index lists. ValueError: it is corrupt, or lists another kind of
    file.
    """
    content: Index = parse_json(read_bytes(index), Index, title, "download it again")
    names = set(content["weight_map"].values())
    if len(names) > MAX_SHARDS:
        raise ValueError(f"{title} lists {len(names):,} files; the maximum is {MAX_SHARDS:,}.")
    for name in names or {""}:
        if not SHARD.fullmatch(name):
            raise ValueError(
                f"{title} lists {brief(name)}, which is not a weight file in its folder: do not"
                " use it."
            )
    return sorted(names)


def weight_names(
    present: Collection[str], owner: str, obtain: Callable[[str], Path], hint: str = ""
) -> list[str]:
    """The weight files of the preferred format in `present`. obtain: returns an index's path.

    FileNotFoundError: there are no weights (the message ends with `hint`), or a shard is missing.
    """
    first = next((name for name in WEIGHTS if name in present), None)
    if first is None:
        raise FileNotFoundError(
            f"{owner} has no weights as safetensors or PyTorch .bin: {describe(present)}.{hint}"
        )
    if not first.endswith(".index.json"):
        return [first]
    shards = shard_names(obtain(first), f"{first} of {owner}")
    for shard in shards:
        if shard not in present:
            raise FileNotFoundError(f"{first} of {owner} lists {shard}, which is missing.")
    return [first, *shards]


def missing_files(folder: Path, weights: bool = True) -> list[str]:
    """Problems that prevent opening a folder, one line each."""
    present = (
        {path.name for path in folder.iterdir() if path.is_file()} if folder.is_dir() else set()
    )
    problems = [] if present & {*CONFIGS} else ["config.json is missing."]
    try:
        if weights:
            weight_names(present, "the folder", folder.joinpath)
    except (FileNotFoundError, ValueError) as error:
        problems.append(str(error))
    return problems


def folder_gguf_hint(folder: Path) -> str:
    """For a folder without a checkpoint: a hint to name one of its GGUF files, after a space; ""
    without such files.
    """
    files = sorted(path for path in folder.glob("*.gguf") if path.is_file())
    if not files:
        return ""
    several = f" Its {len(files)} GGUF files are opened one by one." if len(files) > 1 else ""
    return f"{several} To open a GGUF file, name it: {printable(str(files[0]))}"


def repository_gguf_hint(names: Collection[str], repository: str) -> str:
    """For a repository without a checkpoint: a hint to name one of its GGUF files, after a space;
    "" without any.
    """
    example = next((name for name in sorted(names) if GGUF.fullmatch(name)), None)
    return f" Name one file of it, as {repository}:{example}." if example else ""


def describe(names: Collection[str], ending: str = "") -> str:
    """A phrase that lists some of the files, for error messages."""
    listed = sorted(
        name
        for name in names
        if name not in SMALL and not name.startswith(".") and name.endswith(ending)
    )
    shown = ", ".join(printable(name[:60]) for name in listed[:6])
    return f"it has {shown}{' …' if len(listed) > 6 else ''}" if listed else "it has no other files"
