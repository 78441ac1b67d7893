"""Serve an R session's model in a thread of this process. The server stops when the session ends."""

from collections.abc import Mapping

from minhub_py.system.extras import require
from r_bridge.arguments import scalar
from r_bridge.methods.text import find_tokenizer
from r_bridge.objects import Model, Session, Tokenizer


def serve(
    session: Session,
    model: Model,
    tokenizer: Tokenizer | None,
    name: str,
    port: int,
    max_requests: int,
    context: int | None,
    key: str | None,
    cache_dir: str | None = None,
    cache_size: float = 1e10,
    adapters: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Start a server on localhost. Returns its address, and its number for `stop_serving`.

    adapters: folders by name.    ValueError: an adapter does not fit the model.
    """
    require("serve")
    from minhub_py.chat.templates import chat_template_of
    from minhub_py.loading.adapters.loading import adapter_folders, with_adapter
    from minhub_py.serve.catalog import Models
    from minhub_py.serve.loading import served_models
    from minhub_py.serve.run import BackgroundServer
    from minhub_py.serve.server import Server

    tok = find_tokenizer(model, tokenizer, needed=True)
    template = chat_template_of(None if tokenizer else model.folder, tok)
    folders = adapter_folders(
        {key: str(scalar(value, str)) for key, value in dict(adapters or {}).items()}
    )
    base = model.module
    networks = {name: base, **{key: with_adapter(base, path) for key, path in folders.items()}}
    background = BackgroundServer(Server(Models([]), key=key), port=port)
    settings: dict[str, object] = {
        "max_requests": max_requests,
        "context": context,
        "cache_dir": cache_dir,
        "cache_size": int(cache_size),
    }
    for served in served_models(networks, tok, template, 600, **settings):
        background.uvicorn.server.models.add(served)
    address = background.__enter__()
    return {"address": address, "number": session.add(background), "note": template.note}


def stop_serving(session: Session, server: object) -> None:
    """Stop a server. Responses in progress end with an error message."""
    from minhub_py.serve.run import BackgroundServer

    session.get("server", server, BackgroundServer).__exit__()
    session.release([scalar(server, int)])
