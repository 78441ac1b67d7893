"""`minhub r`: R's own main loop in this process, started as Rscript or R start it."""

import platform
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from r_bridge.host.embedded import installed_r
from r_bridge.host.library import install, user_library
from r_bridge.host.session import RSession


def run(expressions: Sequence[str], arguments: Sequence[str]) -> NoReturn:
    """Run expressions, or the script that is the first argument, as Rscript does; without either, R's prompt.

    R ends the process, with its own exit status.
    """
    if not expressions and not arguments and sys.stdin.isatty():
        prompt()
    if expressions:
        code = [part for each in expressions for part in ("-e", each)]
    else:
        script, *arguments = arguments or ["-"]
        if script != "-" and not Path(script).is_file():
            raise click.UsageError(f"there is no script {script}; R code itself goes after -e")
        code = [f"--file={script}"]
    trailing = ["--args", *arguments] if arguments else []
    start(["--no-echo", "--no-restore", "--no-save", *code, *trailing]).main_loop()


def prompt() -> NoReturn:
    """R's own prompt."""
    session = start(["--quiet", "--no-restore", "--no-save"])
    session.run("library(minhubpy)")
    [r] = session["R.version.string"]
    click.echo(f"{r} in Python {platform.python_version()}, with minhubpy. q() or Ctrl-D leaves.")
    session.main_loop()


def start(arguments: Sequence[str]) -> RSession:
    """Start R with the arguments of its command."""
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would run only after R's main loop
    try:
        return RSession(arguments, interactive=True)
    except ImportError as error:  # its message says what to install
        raise click.ClickException(str(error)) from error


def install_for_user() -> None:
    """Install minhubpy into the user's own R library."""
    r = installed_r()
    library = user_library(r)
    install(r, library)
    click.echo(f"{library / 'minhubpy'}: library(minhubpy) finds it in every R of this version")
