"""The command `chat`."""

import sys
from typing import Any

import click

from minhub_py.cli.group import Command
from minhub_py.cli.loading import open_model
from minhub_py.cli.options import loading_options, model_argument, name_of, sampling_options
from minhub_py.system.console import note


@click.command(cls=Command)
@model_argument
@click.argument("text", nargs=-1, metavar="")
@click.option("--system", metavar="TEXT", help="System prompt: instructions for the whole conversation.")
@click.option("-n", "--max-new-tokens", type=click.IntRange(min=1), default=512, show_default=True,
              help="Maximum number of tokens of a reply.")  # fmt: skip
@sampling_options(chat=True)
@loading_options
def chat(model: str, text: tuple[str, ...], system: str | None, loading: dict[str, Any], **settings: Any) -> None:
    """Chat with MODEL in the terminal.

    Type a message and press Enter. A pasted text is one message, even with several lines. Ctrl-C stops a reply and
    keeps the generated text; /help lists commands; Ctrl-D ends the chat.

    If standard input is a pipe or a file, each of its lines is a message, and only the replies are printed.
    """
    if text:
        raise click.UsageError(
            f"Unexpected argument {text[0]!r:.40}: type messages after the start, or pipe them to standard input."
        )
    if sys.stderr.isatty():
        note(f"Loading {name_of(model)} …", dim=True)

    from minhub_py.chat.wrap import without_echo

    with without_echo():
        network, tokenizer = open_model(model, **loading)

    from minhub_py.chat.conversation import Chat
    from minhub_py.chat.terminal import run

    sampling = {name: value for name, value in settings.items() if value is not None}
    run(Chat(network, tokenizer, system, **sampling), name_of(model))
