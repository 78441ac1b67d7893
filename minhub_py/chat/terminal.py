"""`minhub chat`: a conversation in a terminal, or one turn for each line of a pipe."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import fields
from typing import Any

import click

from minhub_py.chat.conversation import Chat, TextStream
from minhub_py.chat.reply_parser import ReplyEvent
from minhub_py.chat.turns import Reply, ReplySettings
from minhub_py.chat.wrap import WordWrap, without_echo, wrapped
from minhub_py.inference.limits import parse_logit_bias
from minhub_py.system.console import HelpFormatter, message_of, note, stdin_is_terminal
from minhub_py.system.printable import displayed, printable
from minhub_py.system.spelling import unknown

QUOTES = '"""'
# \001 and \002 enclose characters without width for readline.
PROMPT, CONTINUATION_PROMPT = (
    "\001\033[1;32m\002>\001\033[0m\002 ",
    "\001\033[2m\002…\001\033[0m\002 ",
)
DIM, NORMAL = "\033[2m", "\033[0m"
HELP = (
    ("/help", "list the commands"),
    ("/system TEXT", "change the system prompt; without TEXT, show it"),
    (
        "/set NAME VALUE",
        (
            "change a setting, such as temperature (auto: its default, -: none); without NAME,"
            " show all"
        ),
    ),
    ("/regen", "replace the last reply by another"),
    ("/undo", "remove the last message and its reply"),
    ("/save FILE", "save the conversation as JSON"),
    ("/load FILE", "continue a saved conversation"),
    ("/clear", "remove all messages; the system prompt remains"),
    ("/quit", "end the chat, like Ctrl-D"),
    (QUOTES, f"begin a message of several lines, which ends with {QUOTES}"),
)
WITH_ARGUMENT = {command.split()[0] for command, _ in HELP if " " in command}
NUMBER = re.compile(r"-?\d+")
# The settings of /set. A terminal does not show the most likely tokens.
SETTINGS = [field.name for field in fields(ReplySettings) if field.name != "top"]


class QuitError(Exception):
    """The user ends the conversation."""


def run(chat: Chat, name: str, message: str | None = None) -> None:
    """Chat until the input ends, or send one message.

    ValueError, OSError: a message failed. A terminal without `message` shows errors instead.
    """
    with suppress(QuitError):
        if message is not None:
            say_once(chat, message)
        elif stdin_is_terminal() and sys.stdout.isatty():
            Terminal(chat).run(name)
        else:
            read_pipe(chat)


def say_once(chat: Chat, message: str) -> None:
    """Send a message and show the reply."""
    if sys.stdout.isatty():
        Terminal(chat, once=True).show(chat.stream(message))
        return
    note_template(chat)
    show(chat, chat.stream(message), sys.stdout.write, note, once=True)


def note_template(chat: Chat) -> None:
    """Print the note of a model without a chat template."""
    if chat.template.note:
        note(f"Note: {chat.template.note}", dim=True)


def read_pipe(chat: Chat) -> None:
    """Send each line of standard input as a message and write the replies to standard output."""
    note_template(chat)
    commands = Commands(chat, lambda deltas: show(chat, deltas, sys.stdout.write, note))
    for number, data in enumerate(sys.stdin.buffer, 1):
        try:
            line = data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"line {number} of standard input is not UTF-8 text: convert it first"
            ) from error
        if line.strip():
            commands.execute(line)


class Terminal:
    """An interactive chat. once: for one message, after which the program ends."""

    def __init__(self, chat: Chat, *, once: bool = False) -> None:
        self.once = once
        self.commands = Commands(chat, self.show, self.note, wrapped)
        self.chat = chat
        try:
            import readline
        except ImportError:  # on Windows, the console has line editing
            return
        readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one message

    def run(self, name: str) -> None:
        """Read messages and write replies until Ctrl-D."""
        click.secho(printable(name), bold=True)
        click.echo(wrapped("/help: commands, Ctrl-C: stop a reply, Ctrl-D: end"))
        if self.chat.template.note:
            self.note(f"Note: {self.chat.template.note}")
        while True:
            try:
                text = self.read()
            except KeyboardInterrupt:
                click.echo()
                self.note("Ctrl-D ends the chat.")
                continue
            except EOFError:
                click.echo()
                return
            if not text.strip():
                continue
            try:
                self.commands.execute(text)
            except KeyboardInterrupt:
                click.echo()
                self.note(
                    "Stopped. The reply so far is part of the conversation; /undo removes it,"
                    " /regen replaces it."
                )
            except (ValueError, OSError, MemoryError) as error:
                self.note(message_of(error), dim=False, fg="red")

    def read(self) -> str:
        """Read a message: a line, pasted lines, or lines between triple quotes."""
        text = input(PROMPT).rstrip("\n")
        if not text.lstrip().startswith(QUOTES):
            return text
        text = text.lstrip().removeprefix(QUOTES)
        while not text.rstrip().endswith(QUOTES):
            text += "\n" + input(CONTINUATION_PROMPT).rstrip("\n")
        return text.rstrip().removesuffix(QUOTES).strip("\n")

    def show(self, deltas: TextStream) -> None:
        """Write a reply as it is generated, with line breaks between words."""
        wrap, dimmed = WordWrap(sys.stdout.write), False

        def dim(on: bool) -> None:
            """Switch dim text on or off; reasoning ends with a line."""
            nonlocal dimmed
            if on != dimmed:
                wrap.close()
                sys.stdout.write(DIM if on else f"{NORMAL}\n\n")
                wrap.column = 0
            dimmed = on

        def write(text: str) -> None:
            dim(False)
            wrap.feed(displayed(text))

        def listen(event: ReplyEvent) -> None:
            if event.kind == "reasoning":
                dim(True)
                wrap.feed(displayed(event.text))
            elif event.kind == "call":
                dim(False)
                wrap.close()
                self.note(f"The model calls {event.text}.")
            sys.stdout.flush()

        def close() -> None:
            dim(False)
            wrap.close()

        self.chat.listener = listen
        try:
            with without_echo():
                show(self.chat, deltas, write, self.note, close, once=self.once)
        finally:
            self.chat.listener = None

    def note(self, text: str, *, dim: bool = True, **style: Any) -> None:
        """Print a message on standard error, with line breaks between words."""
        click.secho(wrapped(printable(text)), err=True, dim=dim, **style)


def show(
    chat: Chat,
    deltas: TextStream,
    write: Callable[[str], object],
    notify: Callable[[str], object],
    close: Callable[[], object] = lambda: None,
    *,
    once: bool = False,
) -> None:
    """Write a reply as it is generated, then notices about it. `close` flushes `write`; once: there
    is no next turn.
    """
    with closing(deltas):
        try:
            for delta in deltas:
                write(delta)
                sys.stdout.flush()
        finally:
            close()
    click.echo()
    reply = chat.last
    assert reply is not None
    for line in notices(chat, reply, once):
        notify(line)


def notices(chat: Chat, reply: Reply, once: bool) -> Iterator[str]:
    """Notices for the user about a reply. once: commands have no effect."""
    if not reply.text:
        yield "The reply is empty." if once else "The reply is empty. /regen replaces it."
    if reply.end == "length":
        full = len(reply.ids) < chat.settings.max_new_tokens
        option = "--max-new-tokens" if once else "/set max_new_tokens"
        reason = (
            f": the context of {chat.context} tokens is full" if full else f"; {option} allows more"
        )
        yield f"The reply was cut after {len(reply.ids)} tokens{reason}."
    if reply.dropped:
        yield (
            f"The first {reply.dropped} messages exceed the context of {chat.context} tokens: the"
            " model ignores them."
        )


class Commands:
    """Commands, which begin with a slash.

    respond: shows a reply.    notify: shows a message.    wrap: breaks lines of longer texts.
    """

    def __init__(
        self,
        chat: Chat,
        respond: Callable[[TextStream], None],
        notify: Callable[[str], object] = note,
        wrap: Callable[[str], str] = str,
    ) -> None:
        self.chat, self.respond, self.notify, self.wrap = chat, respond, notify, wrap

    def execute(self, text: str) -> None:
        """Send a message or run a command. ValueError, OSError: it failed. QuitError: the chat
        ends.
        """
        name, _, argument = text.strip().partition(" ")
        if not re.fullmatch(r"/[a-zA-Z]+", name):  # a path such as /home/user is a message
            self.respond(self.chat.stream(text))
            return
        name = name.lower()
        command = getattr(self, f"_{name[1:]}", None)
        if command is None:
            raise ValueError(f"unknown command {name}: /help lists the commands")
        argument = argument.strip()
        if argument and name not in WITH_ARGUMENT:
            raise ValueError(f"{name} takes no argument: remove {argument!r:.40}")
        if not argument and name in ("/save", "/load"):
            raise ValueError(f"the file name is missing: {name} FILE")
        command(argument)

    def _help(self, _: str) -> None:
        formatter = HelpFormatter(width=shutil.get_terminal_size().columns)
        formatter.write_dl(HELP)
        click.echo(formatter.getvalue(), nl=False)

    def _system(self, text: str) -> None:
        if text:
            self.chat.system = text
            self.notify("System prompt changed.")
        else:
            click.echo(self.wrap(displayed(self.chat.system or "There is no system prompt.")))

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if not name:
            for key in SETTINGS:
                click.echo(f"{key:20}{format_setting(getattr(self.chat.settings, key))}")
        elif name not in SETTINGS:
            raise ValueError(unknown([name], SETTINGS))
        elif not value:
            raise ValueError(
                f"the value is missing: /set {name} VALUE, or auto for the default, or - for none"
            )
        else:
            default = vars(ReplySettings(**self.chat.defaults))[name]
            self.chat.set(
                **{name: default if value.strip() == "auto" else parse_setting(name, value.strip())}
            )
            shown = format_setting(getattr(self.chat.settings, name))
            self.notify(f"{name} has no value now." if shown == "-" else f"{name} is now {shown}.")

    def _regen(self, _: str) -> None:
        self.respond(self.chat.stream_again())

    def _undo(self, _: str) -> None:
        self.notify(f"Removed: {self.chat.undo()}")

    def _save(self, path: str) -> None:
        self.chat.save(path)
        self.notify(f"Saved {path}: {count_messages(self.chat)}.")

    def _load(self, path: str) -> None:
        self.chat.load(path)
        for turn in self.chat.turns:
            click.echo(self.wrap(f"{'> ' if turn.role == 'user' else ''}{displayed(turn.text)}"))
        self.notify(
            f"Loaded {path}: {count_messages(self.chat)}, with its system prompt and settings."
        )

    def _clear(self, _: str) -> None:
        self.chat.clear()
        self.notify("All messages removed.")

    def _quit(self, _: str) -> None:
        raise QuitError

    _exit = _bye = _quit


def count_messages(chat: Chat) -> str:
    """A conversation's length for messages, such as "2 messages with replies"."""
    count = len(chat.turns) // 2
    return f"{count} message{'' if count == 1 else 's'} with replies"


def format_setting(value: object) -> str:
    """A setting's value in the notation of /set."""
    if isinstance(value, Mapping):
        return " ".join(f"{id}={bias:g}" for id, bias in value.items())
    return (
        "-" if value in (None, ()) else ", ".join(value) if isinstance(value, tuple) else str(value)
    )


def parse_setting(name: str, value: str) -> Any:
    """A setting's value from the notation of /set: a number, a string, biases such as "42=-100
    7=1.5", or - for none.

    ValueError: an invalid bias.
    """
    if value == "-":
        return () if name == "stop" else None
    if name == "stop":
        return value
    if name == "logit_bias":
        return parse_logit_bias(value.split())
    if NUMBER.fullmatch(value):
        return int(value)
    try:
        return float(value)
    except ValueError:
        return value
