"""A plugin for the command and library `llm` by Simon Willison: models of this package, built in, cached or added.

    pip install 'minhub_py[llm]'
    llm -m minhub/shakespeare-gpt2 "Good morrow!" -o max_new_tokens 40

A model's name is "minhub/" and its identifier. `llm minhub add IDENTIFIER` adds a folder, a GGUF file or a repository.
Importing this module imports no PyTorch: `llm` imports it at each start.
"""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import llm
from pydantic import create_model

from minhub_py.checkpoints.local import BUILTIN, cached_models

PREFIX = "minhub/"
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
        self.model_id = PREFIX + identifier.removeprefix(PREFIX)

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        """The pieces of the reply to a prompt. ModelError: the model, an option or the prompt is invalid."""
        from minhub_py.chat.turns import Turn

        chat = load(self.identifier).fork(0)
        settings = {name: value for name, value in dict(prompt.options).items() if value is not None}
        earlier = conversation.responses if conversation is not None else []
        for previous in earlier:
            chat.turns += [Turn("user", previous.prompt.prompt), Turn("assistant", previous.text())]
        # llm sends the system prompt with the first message of a conversation only.
        chat.system = next(filter(None, (sent.system for sent in [prompt, *(old.prompt for old in earlier)])), None)
        try:
            yield from chat.stream(prompt.prompt, schema=prompt.schema, **settings)
        except ValueError as error:
            raise llm.ModelError(str(error)) from error
        if (reply := chat.last) is not None:
            response.set_usage(input=reply.read + reply.kept, output=len(reply.ids))

    def __str__(self) -> str:
        return f"minhub: {self.model_id}"


@cache
def load(identifier: str) -> Any:
    """The model with this identifier, as a `Chat`. ModelError: it cannot be loaded."""
    from minhub_py.chat.conversation import Chat

    try:
        return Chat(identifier)
    except (ValueError, OSError, ImportError) as error:
        raise llm.ModelError(str(error)) from error


def added_file() -> Path:
    """The file with the identifiers that `llm minhub add` has added."""
    return Path(llm.user_dir()) / "minhub.json"


def added() -> list[str]:
    """The identifiers that `llm minhub add` has added. ClickException: their file is not a JSON list of strings."""
    path = added_file()
    if not path.exists():
        return []
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{path} is not JSON ({error}): correct or delete it") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise click.ClickException(f"{path} must contain a list of identifiers: correct or delete it")
    return names


@llm.hookimpl
def register_models(register: Callable[[MinhubModel], None]) -> None:
    """Register the built-in models, the complete models in the Hub's cache, and the added ones."""
    in_cache = [model.repository for model in cached_models() if model.complete]
    built_in = [PREFIX + path.name for path in sorted(BUILTIN.iterdir()) if path.is_dir()]
    for identifier in dict.fromkeys([*built_in, *in_cache, *added()]):
        register(MinhubModel(identifier))


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    """Add the commands `llm minhub add` and `llm minhub remove`."""

    @cli.group()
    def minhub() -> None:
        """Manage the models of minhub_py."""

    @minhub.command()
    @click.argument("identifier")
    def add(identifier: str) -> None:
        """Add a repository, a folder or a GGUF file as a model."""
        identifier = str(Path(identifier).resolve()) if Path(identifier).exists() else identifier
        write([*dict.fromkeys([*added(), identifier])])
        click.echo(f"Added: llm -m {MinhubModel(identifier).model_id}")

    @minhub.command()
    @click.argument("identifier")
    def remove(identifier: str) -> None:
        """Remove an added model from the list. Its files are unchanged."""
        names = [name for name in added() if identifier not in (name, MinhubModel(name).model_id)]
        if len(names) == len(added()):
            raise click.ClickException(f"{identifier} was not added; added models: {', '.join(added()) or 'none'}")
        write(names)


def write(names: list[str]) -> None:
    """Replace the list of added identifiers."""
    added_file().parent.mkdir(parents=True, exist_ok=True)
    added_file().write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")
