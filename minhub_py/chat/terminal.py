"""`minhub chat`: a conversation in a terminal, or one turn for each line of a pipe."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Any

import click

from minhub_py.chat.conversation import Chat, Pieces, Reply
from minhub_py.chat.wrap import WordWrap, without_echo, wrapped
from minhub_py.system.console import message_of, note
from minhub_py.system.printable import displayed, printable

QUOTES = '"""'
# readline counts what stands between these as no columns.
PROMPT, MORE = "\001\033[1;32m\002>\001\033[0m\002 ", "\001\033[2m\002…\001\033[0m\002 "
HELP = (
    ("/help", "show this list"),
    ("/system TEXT", "change the system prompt; without TEXT, show it"),
    ("/set NAME VALUE", "change a setting, such as temperature (auto: the model's own); without them, show all"),
    ("/regen", "replace the last reply by another"),
    ("/undo", "take back the last message and its reply"),
    ("/save FILE", "write the conversation as JSON"),
    ("/load FILE", "go on with a saved conversation"),
    ("/clear", "forget what was said; the system prompt stays"),
    ("/quit", "end the chat, as Ctrl-D does"),
    (QUOTES, f"begin a message of several lines, which ends with {QUOTES}, too"),
)
WITH_ARGUMENT = {command.split()[0] for command, _ in HELP if " " in command}
NUMBER = re.compile(r"-?\d+")


class LeaveError(Exception):
    """The user has ended the conversation."""


def run(chat: Chat, name: str) -> None:
    """Talk until the input ends. ValueError, OSError: a turn of a pipe has failed; a terminal goes on after it."""
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            Terminal(chat).talk(name)
        else:
            converse(chat)
    except LeaveError:
        pass


def converse(chat: Chat) -> None:
    """One turn for each line of standard input; the replies on standard output, one after the other."""
    if chat.template.note:
        note(f"Note: {chat.template.note}", dim=True)
    commands = Commands(chat, lambda pieces: show(chat, pieces, sys.stdout.write, note))
    for number, data in enumerate(sys.stdin.buffer, 1):
        try:
            line = data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} of standard input is not UTF-8 text: convert it first") from error
        if line.strip():
            commands.obey(line)


class Terminal:
    """A person who types."""

    def __init__(self, chat: Chat) -> None:
        self.commands = Commands(chat, self.show, self.note, wrapped)
        self.chat = chat
        try:
            import readline
        except ImportError:  # Windows: the console edits lines by itself
            return
        readline.parse_and_bind("set enable-bracketed-paste on")  # what is pasted is one message

    def talk(self, name: str) -> None:
        """Ask and answer until Ctrl-D."""
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
                self.commands.obey(text)
            except KeyboardInterrupt:
                click.echo()
                self.note("Stopped. The model remembers what it had written; /undo takes it back, /regen tries again.")
            except (ValueError, OSError, MemoryError) as error:
                self.note(message_of(error), dim=False, fg="red")

    def read(self) -> str:
        """A message: a line, what was pasted, or all between triple quotes. EOFError, KeyboardInterrupt: none."""
        text = input(PROMPT).rstrip("\n")
        if not text.lstrip().startswith(QUOTES):
            return text
        text = text.lstrip().removeprefix(QUOTES)
        while not text.rstrip().endswith(QUOTES):
            text += "\n" + input(MORE).rstrip("\n")
        return text.rstrip().removesuffix(QUOTES).strip("\n")

    def show(self, pieces: Pieces) -> None:
        """Write a reply as it is generated, with line breaks between words."""
        wrap = WordWrap(sys.stdout.write)
        with without_echo():
            show(self.chat, pieces, lambda piece: wrap.feed(displayed(piece)), self.note, wrap.close)

    def note(self, text: str, *, dim: bool = True, **style: Any) -> None:
        """Print a message on standard error, with line breaks between words."""
        click.secho(wrapped(printable(text)), err=True, dim=dim, **style)


def show(
    chat: Chat, pieces: Pieces, write: Callable[[str], object], remark: Callable[[str], object],
    close: Callable[[], object] = lambda: None,
) -> None:  # fmt: skip
    """Write a reply as it is generated, and remarks about it. close: writes the remaining output of `write`."""
    with closing(pieces):
        try:
            for piece in pieces:
                write(piece)
                sys.stdout.flush()
        finally:
            close()
    click.echo()
    reply = chat.last
    assert reply is not None
    for line in remarks(chat, reply):
        remark(line)


def remarks(chat: Chat, reply: Reply) -> Iterator[str]:
    """What a user should know of a reply."""
    if not reply.text:
        yield "The reply is empty. /regen tries again."
    if reply.end == "length":
        cut = f"The reply was cut after {len(reply.ids)} tokens"
        limited = len(reply.ids) < chat.settings.max_new_tokens
        advice = f": the context of {chat.context} tokens is full" if limited else "; /set max_new_tokens allows more"
        yield f"{cut}{advice}."
    if reply.dropped:
        yield f"The first {reply.dropped} messages no longer fit: the model sees {chat.context} tokens at a time."


class Commands:
    """The commands, which begin with a slash.

    `answer` shows the pieces of a reply, `remark` a message; `wrap` breaks the lines of a longer text.
    """

    def __init__(
        self, chat: Chat, answer: Callable[[Pieces], None], remark: Callable[[str], object] = note,
        wrap: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        self.chat, self.answer, self.remark, self.wrap = chat, answer, remark, wrap

    def obey(self, text: str) -> None:
        """Say a message, or run a command. ValueError, OSError: it failed. LeaveError: the chat is over."""
        name, _, argument = text.strip().partition(" ")
        if not re.fullmatch(r"/[a-zA-Z]+", name):  # a path is no command
            self.answer(self.chat.stream(text))
            return
        name = name.lower()
        command = getattr(self, f"_{name[1:]}", None)
        if command is None:
            raise ValueError(f"there is no command {name}; /help lists them")
        argument = argument.strip()
        if argument and name not in WITH_ARGUMENT:
            raise ValueError(f"{name} takes no argument, not {argument!r:.40}: type {name} alone")
        command(argument)

    def _help(self, _: str) -> None:
        formatter = click.HelpFormatter(width=shutil.get_terminal_size().columns)
        formatter.write_dl(HELP)
        click.echo(formatter.getvalue(), nl=False)

    def _system(self, text: str) -> None:
        if text:
            self.chat.system = text
            self.remark("The system prompt is changed.")
        else:
            click.echo(self.wrap(displayed(self.chat.system or "There is no system prompt.")))

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if not name:
            for key, each in asdict(self.chat.settings).items():
                click.echo(f"{key:20}{shown(each)}")
        elif not value:
            raise ValueError(f"give a value, too: /set {name} VALUE, or - for none")
        else:
            self.chat.set(**{name: setting(value.strip())})
            self.remark(f"{name} is {shown(getattr(self.chat.settings, name))} now.")

    def _regen(self, _: str) -> None:
        self.answer(self.chat.stream_again())

    def _undo(self, _: str) -> None:
        self.remark(f"Taken back: {self.chat.undo()}")

    def _save(self, path: str) -> None:
        self.chat.save(named(path, "/save"))
        self.remark(f"Saved {path}: {counted(self.chat)}.")

    def _load(self, path: str) -> None:
        self.chat.load(named(path, "/load"))
        for turn in self.chat.turns:
            click.echo(self.wrap(f"{'> ' if turn.role == 'user' else ''}{displayed(turn.text)}"))
        self.remark(f"Loaded {path}: {counted(self.chat)}, with its system prompt and settings.")

    def _clear(self, _: str) -> None:
        self.chat.clear()
        self.remark("The conversation is empty now.")

    def _quit(self, _: str) -> None:
        raise LeaveError

    _exit = _bye = _quit


def counted(chat: Chat) -> str:
    """The length of a conversation, in words."""
    count = len(chat.turns) // 2
    return f"{count} message{'' if count == 1 else 's'} with replies"


def shown(value: Any) -> str:
    """A setting's value, as it can be typed."""
    return "-" if value in (None, ()) else ", ".join(value) if isinstance(value, tuple) else str(value)


def named(path: str, command: str) -> str:
    """The file that a command names. ValueError: it names none."""
    if not path:
        raise ValueError(f"name a file: {command} FILE")
    return path


def setting(value: str) -> Any:
    """A setting's value as it is typed: a number, a text, or - for none."""
    if value == "-":
        return None
    if NUMBER.fullmatch(value):
        return int(value)
    try:
        return float(value)
    except ValueError:
        return value
