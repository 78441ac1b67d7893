"""A plugin for the command and library `llm` by Simon Willison: models of this package, built in,
cached or added.

    pip install 'minhub_py[llm]'
    llm -m minhub/shakespeare-gpt2 "Good morrow!" -o max_new_tokens 40
    llm embed -m minhub/sentence-transformers/all-MiniLM-L6-v2 -c "A text."

A model's name is "minhub/" and its identifier, or the name of its folder or file. `llm minhub add
IDENTIFIER` adds a folder, a GGUF file or a repository. Embedding models are for `llm embed`, others
for prompts; classifiers are for neither. Importing this module imports no PyTorch: `llm` imports it
at each start.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import click
import llm
from pydantic import create_model

from minhub_py.checkpoints.local import BUILTIN, cached, cached_models, locate
from minhub_py.models.registry import ARCHITECTURES
from minhub_py.system.shapes import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from minhub_py.chat.conversation import Chat
    from minhub_py.models.base import LanguageModel

PREFIX = "minhub/"
Kind = Literal["chat", "embedding", "classifier"]
ENCODERS = [family for family in ARCHITECTURES.values() if family.is_encoder]
ENCODER_TYPES = {family.model_type for family in ENCODERS}
ENCODER_TYPES |= {name for family in ENCODERS for names in family.names.values() for name in names}
EMBEDDING_FILES = ("modules.json", "config_sentence_transformers.json")
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
GGUF_START = 2**16  # bytes, which contain the settings before the vocabulary
# the second with the value false
GGUF_EMBEDDING_KEYS = (b".pooling_type", b".attention.causal\x07\0\0\0\0")
BATCH_SIZE = 32  # texts
OPTIONS: dict[str, tuple[Any, None]] = {
    "max_new_tokens": (int | None, None),
    "temperature": (float | None, None),
    "top_k": (int | None, None),
    "top_p": (float | None, None),
    "min_p": (float | None, None),
    "repetition_penalty": (float | None, None),
    "presence_penalty": (float | None, None),
    "frequency_penalty": (float | None, None),
    "seed": (int | None, None),
}


class MinhubModel(llm.Model):
    """A model of this package. It is loaded by the first prompt."""

    can_stream = True
    supports_schema = True
    Options: Any = create_model("Options", __base__=llm.Options, **OPTIONS)

    def __init__(self, identifier: str) -> None:
        self.identifier = identifier
        self.model_id = model_id(identifier)

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        """The pieces of the reply to a prompt. ModelError: the model, an option or the prompt is
        invalid.
        """
        from minhub_py.chat.turns import Turn

        chat = load(self.identifier).fork(0)
        settings = {
            name: value for name, value in dict(prompt.options).items() if value is not None
        }
        earlier = conversation.responses if conversation is not None else []
        for previous in earlier:
            chat.turns += [Turn("user", previous.prompt.prompt), Turn("assistant", previous.text())]
        # llm sends the system prompt with the first message of a conversation only.
        chat.system = next(
            filter(None, (sent.system for sent in [prompt, *(old.prompt for old in earlier)])), None
        )
        try:
            yield from chat.stream(prompt.prompt, schema=prompt.schema, **settings)
        except ValueError as error:
            raise llm.ModelError(str(error)) from error
        if (reply := chat.last) is not None:
            response.set_usage(input=reply.read + reply.kept, output=len(reply.ids))

    def __str__(self) -> str:
        return f"minhub: {self.model_id}"


class MinhubEmbeddingModel(llm.EmbeddingModel):
    """An embedding model of this package. It is loaded by the first text."""

    batch_size = BATCH_SIZE

    def __init__(self, identifier: str) -> None:
        self.identifier = identifier
        self.model_id = model_id(identifier)

    def embed_batch(
        self, items: Iterable[str | bytes], *, key: str | None = None
    ) -> Iterator[list[float]]:
        """The embeddings of texts. ModelError: the model cannot be loaded, or a text has no tokens."""
        from minhub_py.analysis.embeddings import embed

        model, tokenizer = load_encoder(self.identifier)
        try:
            yield from embed(model, tokenizer, [str(item) for item in items]).tolist()
        except ValueError as error:
            raise llm.ModelError(str(error)) from error

    def __str__(self) -> str:
        return f"minhub: {self.model_id}"


def model_id(identifier: str) -> str:
    """A model's name: "minhub/" and its identifier, or the name of its folder or GGUF file."""
    path = Path(identifier)
    if path.is_absolute():
        return PREFIX + (path.stem if path.suffix == ".gguf" else path.name)
    return PREFIX + identifier.removeprefix(PREFIX)


@cache
def load(identifier: str) -> "Chat":
    """The model with this identifier, as a `Chat`. ModelError: it cannot be loaded."""
    from minhub_py.chat.conversation import Chat

    try:
        return Chat(identifier)
    except (ValueError, OSError, ImportError) as error:
        raise llm.ModelError(str(error)) from error


@cache
def load_encoder(identifier: str) -> "tuple[LanguageModel, Tokenizer]":
    """The model with this identifier, and its tokenizer. ModelError: they cannot be loaded."""
    from minhub_py.checkpoints.tokenizers.tokenizer import tokenizer_from_pretrained
    from minhub_py.loading.pretrained import from_pretrained

    try:
        return from_pretrained(identifier), tokenizer_from_pretrained(identifier)
    except (ValueError, OSError, ImportError) as error:
        raise llm.ModelError(str(error)) from error


class ModelKind(TypedDict, total=False):
    """The settings of config.json that determine the kind of a model."""

    architectures: list[str]
    model_type: str


def kind_at(path: Path) -> Kind:
    """The kind of the model in a folder or GGUF file, from its settings; "chat" if they cannot be
    read.
    """
    try:
        if path.is_file():
            with path.open("rb") as file:
                start = file.read(GGUF_START)
            return "embedding" if any(key in start for key in GGUF_EMBEDDING_KEYS) else "chat"
        config = read_json(path / "config.json", ModelKind)
        if (config.get("architectures") or [""])[0].endswith(CLASSIFIERS):
            return "classifier"
        embeds = config.get("model_type") in ENCODER_TYPES or any(
            (path / name).exists() for name in EMBEDDING_FILES
        )
        return "embedding" if embeds else "chat"
    except (OSError, ValueError):  # the error is shown when the model is loaded
        return "chat"


def kind_of(identifier: str) -> Kind:
    """The kind of an added model. A model that is not on this machine is a chat model."""
    try:
        return kind_at(locate(identifier) or cached(identifier))
    except (OSError, ValueError):
        return "chat"


def added_file() -> Path:
    """The file with the models that `llm minhub add` has added."""
    return Path(llm.user_dir()) / "minhub.json"


def added() -> dict[str, list[str]]:
    """The identifiers that `llm minhub add` has added, and the aliases of each.

    ClickException: their file does not contain a JSON object of lists.
    """
    path = added_file()
    if not path.exists():
        return {}
    try:
        return read_json(path, dict[str, list[str]], advice="correct or delete it")
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def available() -> Iterator[tuple[str, list[str], Kind]]:
    """The identifier, aliases and kind of built-in models, complete models in the Hub's cache, and
    added ones.
    """
    models: dict[str, tuple[list[str], Kind]] = {}
    for path in sorted(BUILTIN.iterdir()):
        if path.is_dir():
            models[PREFIX + path.name] = [], kind_at(path)
    for model in cached_models():
        if model.complete:
            models[model.repository] = [], kind_at(model.folder)
    for identifier, aliases in added().items():
        models[identifier] = aliases, kind_of(identifier)
    return ((identifier, *names) for identifier, names in models.items())


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register the models for prompts."""
    for identifier, aliases, kind in available():
        if kind == "chat":
            register(MinhubModel(identifier), aliases=aliases)


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    """Register the embedding models."""
    for identifier, aliases, kind in available():
        if kind == "embedding":
            register(MinhubEmbeddingModel(identifier), aliases=aliases)


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    """Add the commands `llm minhub add` and `llm minhub remove`."""

    @cli.group()
    def minhub() -> None:
        """Manage the models of minhub_py."""

    @minhub.command()
    @click.argument("identifier")
    @click.option(
        "--alias", "aliases", multiple=True, metavar="NAME", help="Another name; may be repeated."
    )
    def add(identifier: str, aliases: tuple[str, ...]) -> None:
        """Add a repository, a folder or a GGUF file as a model."""
        from minhub_py.loading.pretrained import read_config

        identifier = str(Path(identifier).resolve()) if Path(identifier).exists() else identifier
        try:
            read_config(identifier)
        except (OSError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        kind = kind_of(identifier)
        if kind == "classifier":
            raise click.ClickException(f"{identifier} is a classifier: use minhub classify")
        names = (model_id(identifier), *aliases)
        others = {
            name
            for other, more, _ in available()
            if other != identifier
            for name in (model_id(other), *more)
        }
        if used := [name for name in names if name in others]:
            raise click.ClickException(
                f"{used[0]} is the name of another model: rename the folder, or the alias"
            )
        write(added() | {identifier: [*aliases]})
        command = "llm embed -m" if kind == "embedding" else "llm -m"
        click.echo(f"Added: {command} {names[-1]}")

    @minhub.command()
    @click.argument("identifier")
    def remove(identifier: str) -> None:
        """Remove an added model from the list. Its files are unchanged. IDENTIFIER can be any of
        its names.
        """
        path = str(Path(identifier).resolve())
        models = added()
        remaining = {
            name: aliases
            for name, aliases in models.items()
            if identifier not in (name, model_id(name), *aliases) and name != path
        }
        if len(remaining) == len(models):
            raise click.ClickException(
                f"{identifier} was not added; added models: {', '.join(models) or 'none'}"
            )
        write(remaining)


def write(models: dict[str, list[str]]) -> None:
    """Replace the list of added models."""
    added_file().parent.mkdir(parents=True, exist_ok=True)
    added_file().write_text(json.dumps(models, indent=1) + "\n", encoding="utf-8")
