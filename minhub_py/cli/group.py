"""Command classes: one message per error, cleanup on signals, exit statuses, and help texts.

Exit status: 0 success, 1 failure, 2 usage error, 130 and 143 (in a shell) for Ctrl-C and SIGTERM.
"""

import atexit
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any

import click
from click.exceptions import NoSuchCommand
from click.types import FloatParamType, IntParamType

from minhub_py.system import habits
from minhub_py.system.console import HelpFormatter, message_of, note
from minhub_py.system.printable import displayed, printable
from minhub_py.system.spelling import SettingError, ShellSpelling, use_spelling

INTERRUPTED = 128 + signal.SIGINT  # exit status after Ctrl-C, as in shells
TERMINATED = 128 + signal.SIGTERM
PENDING_SIGNALS: list[signal.Signals] = []  # raised when the process exits


# handlers run in reverse order: modules that are imported later clean up before this one
@atexit.register
def end_by_signal() -> None:
    """End this process by its pending signal after all other cleanup."""
    for number in PENDING_SIGNALS:
        with suppress(OSError, ValueError):  # a closed pipe
            sys.stdout.flush()
            sys.stderr.flush()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


class Context(click.Context):
    """A context with help for terminals of any width."""

    formatter_class = HelpFormatter


class Command(click.Command):
    """A click command with --debug that prints exceptions as one message and cleans up when it is
    interrupted.
    """

    context_class = Context

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # click's no-wrap mark, written in a raw docstring
        self.help = (self.help or "").replace("\\b\n", "\b\n")
        for param in self.params:
            # click's names: "integer range", "float"
            if isinstance(param.type, IntParamType | FloatParamType):
                integer = isinstance(param.type, IntParamType)
                # click.INT and click.FLOAT are shared by all programs
                param.type = copy(param.type)
                param.type.name = "whole number" if integer else "number"
                param.metavar = param.metavar or ("INTEGER" if integer else "FLOAT")
        self.params.append(
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                callback=remember_debug,
                help="Show the traceback of an error.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. The error for an option with the name of another program names the
        option here.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            own = {
                option for param in self.params for option in (*param.opts, *param.secondary_opts)
            }
            name = error.option_name.replace("_", "-")
            candidates = [name, *habits.OPTIONS.get(name, [])]
            options = [
                option
                for option in candidates
                if not option.startswith("-") or option.split()[0] in own
            ]
            if not options:
                raise
            raise click.NoSuchOption(
                error.option_name,
                f"No such option '{error.option_name}'. Use {options[0]}.",
                ctx=ctx,
            ) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Exit status: 1 for an exception, with its message; 130 for Ctrl-C; 143
        for SIGTERM.
        """
        try:
            os.getcwd()
        except FileNotFoundError as error:  # MKL would end the process at its first use
            raise click.ClickException(
                "The working directory was removed: change to another (cd)."
            ) from error
        try:
            with warnings.catch_warnings(), sigterm_raises(), use_spelling(ShellSpelling()):
                warnings.simplefilter("default")
                warnings.showwarning = lambda message, *_: note(f"Note: {message}")
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except SettingError as error:
            if ctx.find_root().obj == "debug":
                raise
            raise click.UsageError(printable(message_of(error)), ctx) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            if ctx.find_root().obj == "debug":
                raise
            message = printable(message_of(error))
            # The package raises these types with advice for the user. All other types are bugs.
            if not isinstance(error, ValueError | OSError | MemoryError) or not message:
                message = (
                    f"unexpected {type(error).__name__}: {message[:300]} (run again with --debug"
                    " for details)"
                )
            raise click.ClickException(message) from error


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that progress bars and incomplete files are removed."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    ):
        yield  # another program runs this command in its process and has a handler
        return

    def terminate(*_: object) -> None:
        sys.exit(TERMINATED)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def remember_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Callback of --debug, which is accepted before and after the command name."""
    if value:
        ctx.find_root().obj = "debug"


class Group(click.Group):
    """A click group of `Command`s, listed in the order of their definition."""

    command_class = Command
    context_class = Context

    def main(self, args: Sequence[str] | None = None, *positional: Any, **settings: Any) -> Any:
        """Run a command line; by default, the process's own.

        Ctrl-C ends the process by SIGINT: after a plain exit status of 130, a shell would continue
        its loop.
        """
        try:
            return super().main(args, *positional, **settings)
        except SystemExit as end:
            if args is not None or end.code != INTERRUPTED:
                raise
        # After an uncaught KeyboardInterrupt Python cleans up and then raises SIGINT. It forgets
        # the signal if code evaluates a string during the cleanup, as PyTorch does if the package
        # tabulate is installed.
        PENDING_SIGNALS.append(signal.SIGINT)
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. The error for a command of another program names the command here."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            name = error.command_name
            message, similar = (
                error.message,
                [command for command in self.commands if len(command) > 1],
            )
            if name in habits.COMMANDS:
                message, similar = (
                    f"No such command '{name}'. Use {ctx.info_name} {habits.COMMANDS[name]}.",
                    [],
                )
            raise NoSuchCommand(name, message, similar, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their full summaries, which click would cut to one line."""
        rows = [
            (name, command.get_short_help_str(limit=1000))
            for name, command in self.commands.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; escape control characters in its error message."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = displayed(error.message)  # type: ignore[misc]
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of their definition."""
        return list(self.commands)
