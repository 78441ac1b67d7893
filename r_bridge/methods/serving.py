"""Serving a model that R holds, in a thread of this process: it ends when R's session does."""

from typing import Any

from minhub_py.system.extras import require
from r_bridge.convert import one
from r_bridge.methods.text import find_tokenizer
from r_bridge.objects import Caller, Model, Tokenizer


def serve(
    caller: Caller, model: Model, tokenizer: Tokenizer | None, name: str, port: int, rows: int, context: int | None,
    key: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Start a server on this machine alone: its address, and its number for `stop_serving`."""
    require("serve")
    from minhub_py.chat.templates import chat_template_of
    from minhub_py.cli.serving import length_of
    from minhub_py.serve.engine import Engine
    from minhub_py.serve.models import Models, ServedModel
    from minhub_py.serve.run import BackgroundServer
    from minhub_py.serve.server import Server

    tok = find_tokenizer(model, tokenizer, needed=True)
    template = chat_template_of(None if tokenizer else model.folder, tok)
    background = BackgroundServer(Server(Models([]), key=key), port=port)
    engine = Engine(model.module, tok, batch_size=rows, max_length=length_of(model.module, context, name))
    try:
        served = ServedModel(name, model.module, tok, template, engine, 600)
    except ValueError:
        engine.close()
        raise
    background.uvicorn.server.models.all.append(served)
    address = background.__enter__()
    return {"address": address, "number": caller.keep(background), "note": template.note}


def stop_serving(caller: Caller, server: Any) -> None:
    """End a server; replies under way are told so."""
    from minhub_py.serve.run import BackgroundServer

    caller.find("server", server, BackgroundServer).__exit__()
    caller.release([one(server, int)])
