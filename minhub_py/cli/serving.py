"""`minhub serve`: models are loaded, an address is printed, and the server runs until a signal."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from minhub_py.serve.app import Server, is_local
from minhub_py.serve.engine import Engine
from minhub_py.serve.models import Models, Served
from minhub_py.serve.run import address_of, bind
from minhub_py.serve.run import run as run_server
from minhub_py.system.console import name_of, note, say
from minhub_py.system.spelling import setting

USUAL_CONTEXT = 4096
Load = Callable[[str], tuple[Any, Any, Any]]


def check_host(host: str, key: str | None) -> None:
    """UsageError: others could connect, and no key keeps them out."""
    if not is_local(host) and key is None:
        raise click.UsageError(f"--host {host} lets other machines connect: give --api-key KEY, or set MINHUB_API_KEY.")


def run(
    names: Sequence[str], load: Load, *, host: str, port: int, key: str | None, origins: Sequence[str], rows: int,
    context: int | None, waiting: int, seconds: float, keep: int, log: bool,
) -> None:  # fmt: skip
    """Serve models by name, each as `load` gives it: model, tokenizer, chat template.

    ValueError: two of one name, or a context that a model does not have. OSError: the address cannot be had.
    """
    called = [name_of(name) for name in names]
    if len(set(called)) < len(called):
        raise ValueError("two of the models have the same name: serve them on ports of their own")
    listening = bind(host, port)  # before the models are loaded, which takes longer
    found = []
    try:
        for name, shown in zip(names, called, strict=True):
            model, tokenizer, template = load(name)
            length = length_of(model, context, shown)
            engine = Engine(model, tokenizer, rows=rows, max_length=length, waiting=waiting, keep=keep)
            found.append(Served(shown, model, tokenizer, template, engine, seconds))
            if template.note:
                note(f"Note: {shown} has {template.note}")
        server = Server(Models(found), key=key, local=is_local(host), origins=origins, log=log)
        run_server(server, listening, lambda: say(f"minhub serves {', '.join(called)} on {address_of(listening)}"))
    finally:
        listening.close()
        for served in found:
            served.engine.close()


def length_of(model: Any, wanted: int | None, name: str) -> int:
    """Ids of the longest text. ValueError: the model's context is shorter than `wanted`."""
    most: int | None = model.config.context_length
    if wanted is None:
        return min(most or USUAL_CONTEXT, USUAL_CONTEXT)
    if most is not None and wanted > most:
        raise ValueError(f"{setting('context', wanted)} is more than {name} has: at most {most}")
    return wanted
