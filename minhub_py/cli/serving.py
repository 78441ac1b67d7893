"""The command `serve`: loads models, prints the address, and serves until a signal."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from minhub_py.cli.completion import ModelArgument
from minhub_py.cli.group import Command
from minhub_py.cli.loading import LoadingOptions, open_model
from minhub_py.cli.options import Bytes, Duration, loading_options, name_of, speculate_option
from minhub_py.cli.output import say
from minhub_py.system.console import note
from minhub_py.system.extras import require

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from minhub_py.chat.templates import ChatTemplate
    from minhub_py.models.base import LanguageModel
    from minhub_py.models.encoder import Encoder
    from minhub_py.serve.models import ServedModel
    from minhub_py.serve.server import Server


@click.command(cls=Command)
@click.argument("models", nargs=-1, metavar="[MODEL]...", type=ModelArgument())
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 is all addresses.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port; 0 selects a free port.",
)
@click.option(
    "--api-key",
    metavar="KEY",
    envvar="MINHUB_API_KEY",
    show_envvar=True,
    help="Key that clients must send; required if --host is not local.",
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="URL",
    help="Web page that may call the server from a browser; may be repeated.",
)
@click.option(
    "--max-requests",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Maximum number of requests that run at the same time; others wait.",
)
@click.option(
    "--context",
    type=click.IntRange(min=2),
    metavar="TOKENS",
    help=(
        "Maximum length of a prompt with its reply; not for text encoders.  [default: the "
        "model's, up to 4096]"
    ),
)
@click.option(
    "--queue",
    type=click.IntRange(min=0),
    default=128,
    show_default=True,
    help="Maximum number of waiting requests; others get status 429.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    metavar="SECONDS",
    help="Maximum duration of a request.  [default: 600]",
)
@click.option(
    "--prefix-cache",
    type=Bytes(),
    default="512MB",
    show_default=True,
    help="Size of the prefix cache, which saves the prefill of repeated beginnings.",
)
@click.option(
    "--cache-dir",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Also store prefixes in FOLDER, so that they survive a restart. Replies do not change.",
)
@click.option(
    "--cache-size",
    type=Bytes(),
    default="10GB",
    show_default=True,
    help="Maximum size of --cache-dir; the least recently used prefixes are deleted.",
)
@speculate_option
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=PATH",
    help=(
        "Also serve MODEL with this LoRA adapter, a folder or a repository, as the model NAME; may"
        " be repeated."
    ),
)
@click.option(
    "--alias",
    "aliases",
    multiple=True,
    metavar="NAME=MODEL",
    help="Also serve MODEL as NAME, which may contain *, such as 'claude-*=qwen'; may be repeated.",
)
@click.option(
    "--cached",
    is_flag=True,
    help="Also serve the models in the local cache: a request loads its model.",
)
@click.option(
    "--allow-pull", is_flag=True, help="Clients may download and delete models; includes --cached."
)
@click.option(
    "--max-models",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of loaded models.  [default: 3, or the number of MODELs]",
)
@click.option(
    "--max-memory",
    type=Bytes(),
    help=(
        "Maximum size of the loaded models' weights and KV caches, such as 8GB.  "
        "[default: no limit]"
    ),
)
@click.option(
    "--keep-alive",
    type=Duration(),
    default="5m",
    show_default=True,
    help="Time until an idle model of the cache is unloaded, such as 30s; -1: never.",
)
@click.option(
    "--ignore-unknown-fields",
    is_flag=True,
    help="Ignore unknown fields of requests, which are otherwise rejected.",
)
@click.option(
    "--log", is_flag=True, help="Log each request on standard error: path, status and time."
)
@loading_options
def serve(
    models: tuple[str, ...],
    host: str,
    port: int,
    api_key: str | None,
    allow_origin: tuple[str, ...],
    max_requests: int,
    context: int | None,
    queue: int,
    timeout: float,
    prefix_cache: int,
    cache_dir: str | None,
    cache_size: int,
    speculate: int,
    adapters: tuple[str, ...],
    aliases: tuple[str, ...],
    cached: bool,
    allow_pull: bool,
    max_models: int | None,
    max_memory: int | None,
    keep_alive: float | None,
    ignore_unknown_fields: bool,
    log: bool,
    loading: LoadingOptions,
) -> None:
    r"""Serve MODELs over HTTP, for programs and for a web browser.

    Open the printed address in a browser to chat. Programs use the OpenAI API
    (http://127.0.0.1:8080/v1), or the Ollama or Anthropic API (http://127.0.0.1:8080):

    \b
      minhub serve HuggingFaceTB/SmolLM2-135M-Instruct
      curl http://127.0.0.1:8080/v1/models

    Adapters share the weights of MODEL. Requests name an adapter as NAME or as MODEL+NAME.

    A text encoder answers embeddings (/v1/embeddings, /api/embed), and a cross-encoder /v1/rerank.
    Heads answer /predict (classification), /fill-mask and /embed_sparse (masked language models).

    With --cached, the models in the local cache are loaded by the requests that name them, and
    unloaded when they are idle. If a limit is reached, the model that was idle for the longest time
    is unloaded first:

    \b
      minhub serve --cached --max-memory 8GB

    Listens on localhost unless --host and --api-key are set. Concurrent requests do not affect each
    other: the same seed gives the same text. Ctrl-C stops the server.
    """
    require("serve")
    if api_key == "":
        raise click.UsageError("--api-key is empty: give a key, or remove the option.")
    check_host(host, api_key)
    cached = cached or allow_pull
    if not models and not cached:
        raise click.UsageError("name a MODEL, or use --cached for the models in the local cache.")
    from minhub_py.serve.catalog import Models
    from minhub_py.serve.loading import served_models, sources_in_cache
    from minhub_py.serve.server import Server, is_local

    named = parse_adapters(adapters, models)
    parsed = parse_aliases(aliases, models, named)

    def load(identifier: str, adapters: Mapping[str, str]) -> "list[ServedModel]":
        model, tokenizer, template = load_served(identifier, loading, adapters)
        networks = {
            name_of(identifier): model,
            **{name: model.adapter(name) for name in model.adapters},
        }
        return list(
            served_models(
                networks,
                tokenizer,
                template,
                timeout,
                max_requests=max_requests,
                context=context,
                waiting=queue,
                prefix_cache=prefix_cache,
                cache_dir=cache_dir,
                cache_size=cache_size,
                speculate=speculate,
            )
        )

    def load_one(identifier: str) -> "ServedModel":
        [served] = load(identifier, {})
        return served

    sources = (lambda: sources_in_cache(load_one)) if cached else dict
    if not allow_pull:  # which can add models later
        check_aliases(parsed, (*map(name_of, models), *named, *sources()))
    catalog = Models(
        cached=sources,
        max_models=max_models or max(3, len(models)),
        max_memory=max_memory,
        keep_alive=keep_alive,
        timeout=timeout,
        aliases=parsed,
    )
    server = Server(
        catalog,
        key=api_key,
        local=is_local(host),
        origins=allow_origin,
        log=log,
        allow_pull=allow_pull,
        ignore_unknown_fields=ignore_unknown_fields,
    )
    run(server, models, lambda identifier: load(identifier, named), host, port)


def check_host(host: str, key: str | None) -> None:
    """Check that a key protects a server on other addresses than localhost, else raise UsageError."""
    from minhub_py.serve.server import is_local

    if not is_local(host) and key is None:
        raise click.UsageError(
            f"--host {host} accepts connections from other machines: add --api-key KEY, or set"
            " MINHUB_API_KEY."
        )


def parse_aliases(
    texts: Sequence[str], models: Sequence[str], adapters: Mapping[str, str]
) -> dict[str, str]:
    """The model of each alias by its name; a MODEL of the command can also be a path.

    UsageError: a text is not NAME=MODEL, or a model has the same name.
    """
    names = [name_of(identifier) for identifier in models]
    aliases: dict[str, str] = {}
    for text in texts:
        name, _, model = text.partition("=")
        if not name or not model:
            raise click.UsageError(f"--alias {text}: use NAME=MODEL, such as 'claude-*=qwen'.")
        if name in (*names, *adapters, *aliases):
            raise click.UsageError(
                f"--alias {text}: another model has the name {name}; choose another name."
            )
        if model in [f"{base}+{adapter}" for base in names for adapter in adapters]:
            model = model.rpartition("+")[2]
        aliases[name] = model if model in (*names, *adapters) else name_of(model)
    return aliases


def check_aliases(aliases: Mapping[str, str], names: Sequence[str]) -> None:
    """UsageError: the model of an alias is not served."""
    for name, model in aliases.items():
        if model not in names:
            listed = ", ".join(names[:20])
            raise click.UsageError(
                f"--alias {name}={model}: there is no model {model}; available are {listed}."
            )


def parse_adapters(texts: Sequence[str], models: Sequence[str]) -> dict[str, str]:
    """Each adapter's path by its name. UsageError: a text is not NAME=PATH, or a name is not
    unique.
    """
    if texts and len(models) != 1:
        raise click.UsageError("--adapter needs one MODEL: serve the other models on another port.")
    adapters: dict[str, str] = {}
    for text in texts:
        name, sign, path = text.partition("=")
        if not (name and sign and path):
            raise click.UsageError(f"--adapter {text}: use NAME=PATH, such as codes=runs/codes.")
        if "+" in name:
            raise click.UsageError(
                f"--adapter {text}: the name must not contain +, which joins MODEL and NAME."
            )
        if name in adapters or name == name_of(models[0]):
            raise click.UsageError(
                f"--adapter {text}: another model has the name {name}; choose another name."
            )
        adapters[name] = path
    return adapters


def load_served(
    name: str, loading: LoadingOptions, adapters: Mapping[str, str] | None = None
) -> "tuple[LanguageModel | Encoder, Tokenizer, ChatTemplate]":
    """A model with its adapters, its tokenizer and its chat template."""
    from minhub_py.chat.templates import chat_template_of

    network, tokenizer = open_model(name, **loading, encoders=True, adapter=adapters or None)
    return network, tokenizer, chat_template_of(None, tokenizer)


def run(
    server: "Server",
    identifiers: Sequence[str],
    load: "Callable[[str], list[ServedModel]]",
    host: str,
    port: int,
) -> None:
    """Load the models `identifiers`, and serve until a signal.

    Raises:
        ValueError: Two models have the same name, or `context` exceeds a model's context length.
        OSError: The address is not available.
    """
    from minhub_py.serve.catalog import ModelSource
    from minhub_py.serve.run import address_of, bind
    from minhub_py.serve.run import run as run_server

    names = [name_of(identifier) for identifier in identifiers]
    if len(set(names)) < len(names):
        raise ValueError("two of the models have the same name: serve them on different ports")
    listener = bind(host, port)  # before the models are loaded, which takes longer
    try:
        for identifier in identifiers:
            loaded = load(identifier)
            # a model with adapters shares its weights with them: it is not unloaded
            for served in loaded:
                again = partial(lambda name: load(name)[0], identifier)
                source = ModelSource(again, served.memory, served.task)
                server.models.add(served, source if len(loaded) == 1 else None)
            if loaded[0].template.note and loaded[0].task == "completion":
                note(f"Note: {loaded[0].name} has {loaded[0].template.note}")
        subject = ", ".join(server.models.entries) or "the models in the local cache"
        run_server(
            server, listener, lambda: say(f"minhub serves {subject} on {address_of(listener)}")
        )
    finally:
        listener.close()
        for served in server.models.all:
            served.close()
