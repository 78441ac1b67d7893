"""`minhub r`: R's main loop in this process, started like Rscript or R."""

import platform
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from minhub_py.system.console import stdin_is_terminal
from r_bridge.host.embedded import installed_r
from r_bridge.host.library import install, user_library
from r_bridge.host.session import RSession


def run(expressions: Sequence[str], arguments: Sequence[str]) -> NoReturn:
    """Run expressions, or the script in the first argument, like Rscript; without either, start R's
    prompt.

    R exits the process with its exit status.
    """
    if not expressions and not arguments and stdin_is_terminal():
        prompt()
    if expressions:
        code = [argument for expression in expressions for argument in ("-e", expression)]
    else:
        script, *arguments = arguments or ["-"]
        if script != "-" and not Path(script).is_file():
            raise click.UsageError(f"Script {script} does not exist. To run R code, use -e.")
        code = [f"--file={script}"]
    trailing = ["--args", *arguments] if arguments else []
    start(["--no-echo", "--no-restore", "--no-save", *code, *trailing]).main_loop()


def prompt() -> NoReturn:
    """Start R's prompt."""
    session = start(["--quiet", "--no-restore", "--no-save"])
    session.run("library(minhubpy)")
    [r] = session["R.version.string"]
    click.echo(
        f"{r} in Python {platform.python_version()}, with minhubpy. Use q() or Ctrl-D to exit."
    )
    session.main_loop()


def start(arguments: Sequence[str]) -> RSession:
    """Start R with the arguments of its command."""
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        # Python would run its handler only after R's main loop
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        return RSession(arguments, interactive=True)
    except ImportError as error:  # the message contains the command to install it
        raise click.ClickException(str(error)) from error


def install_for_user() -> None:
    """Install minhubpy into the user's R library."""
    r = installed_r()
    library = user_library(r)
    install(r, library)
    click.echo(
        f"Installed {library / 'minhubpy'}. library(minhubpy) works in every R of this version."
    )
