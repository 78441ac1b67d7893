"""The command `chat`."""

import sys
from typing import Any

import click

from minhub_py.cli.group import Command
from minhub_py.cli.inputs import unread_pipe
from minhub_py.cli.loading import LoadingOptions, open_model
from minhub_py.cli.options import loading_options, model_argument, name_of, sampling_options
from minhub_py.system.console import note


@click.command(cls=Command)
@model_argument
@click.argument("message", nargs=-1, metavar="[MESSAGE]")
@click.option(
    "--system", metavar="TEXT", help="System prompt: instructions for the whole conversation."
)
@click.option(
    "-n",
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Maximum number of tokens of a reply.",
)
@sampling_options(chat=True)
@loading_options
def chat(
    model: str,
    message: tuple[str, ...],
    system: str | None,
    loading: LoadingOptions,
    **settings: Any,
) -> None:
    """Chat with MODEL in the terminal, or send one MESSAGE.

    Type a message and press Enter. A pasted text is one message, even with several lines. Ctrl-C
    stops a reply and keeps the generated text; /help lists commands; Ctrl-D ends the chat.

    With MESSAGE, only its reply is printed. Without it, if standard input is a pipe or a file, each
    of its lines is a message, and only the replies are printed.
    """
    if len(message) > 1:
        raise click.UsageError("Give one MESSAGE, in quotes.")
    if message and not message[0].strip():
        raise click.UsageError("MESSAGE is empty: give a text, or remove it to type messages.")
    if not message and sys.stdin is None:
        raise click.UsageError("Standard input is closed: give a MESSAGE.")
    if sys.stderr.isatty():
        note(f"Loading {name_of(model)} …", dim=True)

    from minhub_py.chat.wrap import without_echo

    with without_echo():
        network, tokenizer = open_model(model, **loading)

    from minhub_py.chat.conversation import Chat
    from minhub_py.chat.terminal import run

    sampling = {name: value for name, value in settings.items() if value is not None}
    if message and unread_pipe():
        note("Note: standard input is ignored; without MESSAGE, each of its lines is a message.")
    run(Chat(network, tokenizer, system, **sampling), name_of(model), *message)
