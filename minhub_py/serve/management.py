"""Requests that load, unload, download, delete and describe models.

Sources: Ollama's /api/pull and /api/delete; llama.cpp's /models/load, /models/unload, /props and
/slots.
"""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from reprlib import repr as brief

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response, StreamingResponse

from minhub_py.checkpoints import cache, hub, transfer
from minhub_py.checkpoints.local import split_file
from minhub_py.serve.catalog import in_daemon_thread
from minhub_py.serve.models import ServedModel
from minhub_py.serve.server import Server, server_of
from minhub_py.serve.streaming import json_line
from minhub_py.serve.validation import Fields, RequestError, invalid
from minhub_py.system.console import note
from minhub_py.system.json_text import JsonMapping
from minhub_py.system.printable import reason_of
from minhub_py.system.version import __version__

STEPS = 200  # maximum number of lines about a file
# an absolute path, but no repository and no URL
PATH = re.compile(r"(?<![:/\w])[/~]/?[\w.]|\b[A-Za-z]:\\")


class CancelledDownloadError(Exception):
    """The client has closed its connection."""


async def load(request: HTTPRequest) -> Response:
    """POST /models/load: load a model, and wait until it is loaded."""
    server = server_of(request)
    fields = await server.read(request)
    name = name_in(fields)
    fields.finish()
    await server.model_for(request, name)
    return JSONResponse({"success": True})


async def unload(request: HTTPRequest) -> Response:
    """POST /models/unload: unload a model without unfinished requests."""
    server = server_of(request)
    fields = await server.read(request)
    name = name_in(fields)
    fields.finish()
    await server.models.unload(name)
    return JSONResponse({"success": True})


async def props(request: HTTPRequest) -> Response:
    """GET /props: the settings of a model (see `described`), or of the server if no model is
    loaded.
    """
    build = f"minhub {__version__}"
    served = await described(request)
    if served is None:
        return JSONResponse(
            {
                "role": "router",
                "default_generation_settings": {"n_ctx": 0, "params": {}},
                "model_alias": "",
                "model_path": "",
                "build_info": build,
            }
        )
    return JSONResponse(
        {
            "default_generation_settings": {
                "n_ctx": served.engine.max_length,
                "params": served.sampling,
            },
            "total_slots": served.engine.batch_size,
            "model_alias": served.name,
            "model_path": served.name,
            "chat_template": served.template.templates.get("default", ""),
            "build_info": build,
            "modalities": {"vision": False, "audio": False},
        }
    )


async def slots(request: HTTPRequest) -> Response:
    """GET /slots: the rows of a model's batch (see `described`); an empty list if no model is
    loaded.
    """
    served = await described(request)
    if served is None:
        return JSONResponse([])
    engine = served.engine
    active = len(engine.active)
    return JSONResponse(
        [
            {"id": row, "n_ctx": engine.max_length, "is_processing": row < active}
            for row in range(engine.batch_size)
        ]
    )


async def described(request: HTTPRequest) -> ServedModel | None:
    """The model that `model` in the query names, or the first loaded model; None if no model is
    loaded.

    A web page can send GET requests without permission, so they do not load a model. They do not
    delay its unloading either: programs send them regularly.

    RequestError: the name is unknown, or the model is not loaded.
    """
    server, name = server_of(request), request.query_params.get("model")
    if not name:
        return next(iter(server.models.all), None)
    entry = await server.models.find(name)
    if entry.served is None:
        raise invalid(
            f"{entry.name} is not loaded: load it with POST /models/load",
            "model",
            "model_not_loaded",
        )
    return entry.served


async def pull(request: HTTPRequest) -> Response:
    """POST /api/pull: download a model to the cache, with progress. A repeated request continues
    the download.
    """
    server = server_of(request)
    fields = await server.read(request)
    check_pull(server)
    name = repository_in(fields, server)
    download, stream = Download(name), fields.boolean("stream", True)
    fields.finish(("insecure", "password", "username"))
    if stream:
        return StreamingResponse(download.lines(), media_type="application/x-ndjson")
    [*_, last] = [event async for event in download.events()]
    if "error" in last:
        raise RequestError(500, last["error"], "pull_failed", "model")
    return JSONResponse(last)


async def delete(request: HTTPRequest) -> Response:
    """DELETE /api/delete: delete a model from the cache."""
    server = server_of(request)
    fields = await server.read(request)
    check_pull(server)
    name = repository_in(fields, server)
    fields.finish()
    with suppress(RequestError):  # a model that is in the cache, but that the server cannot load
        await server.models.find(name)
        await server.models.unload(name)
    entry = server.models.entries.get(name)
    if entry is not None and entry.state in ("loading", "loaded"):
        raise RequestError(409, f"{name} is in use: try again later", "busy", "model")
    try:
        await asyncio.to_thread(lambda: cache.delete(cache.plan_deletion(name, suggest=False)))
    except FileNotFoundError as error:
        raise RequestError(404, public_message(error), "model_not_found", "model") from error
    except ValueError as error:
        raise invalid(public_message(error), "model") from error
    except OSError as error:
        raise RequestError(500, public_message(error), "delete_failed", "model") from error
    return Response(status_code=200)


def name_in(fields: Fields) -> str:
    """The name of the model. RequestError: it is missing."""
    name, alias = fields.string("model"), fields.string("name")  # clients send one of them or both
    name = name or alias
    if not name:
        raise invalid("model is missing: add the name of a model", "model")
    return name


def repository_in(fields: Fields, server: Server) -> str:
    """The repository, or the GGUF file of one, that a request names. RequestError: it is a path or
    an invalid name.
    """
    name = server.models.target(name_in(fields).removesuffix(":latest"))
    try:
        repository, _ = split_file(name)
        transfer.client().utils.validate_repo_id(repository)
    except ValueError as error:
        raise invalid(
            "model must be a repository on the Hub, owner/name or owner/name:file.gguf, not"
            f" {brief(name)}",
            "model",
        ) from error
    return name


def public_message(error: Exception) -> str:
    """An error's message for clients, who must not see paths of this machine."""
    message = reason_of(error)
    if not PATH.search(message):
        return message
    note(f"Note: {message}")
    return f"the cache cannot be used ({type(error).__name__}): the server's output has the reason"


def check_pull(server: Server) -> None:
    """RequestError: the server does not allow changes of the cache."""
    if not server.allow_pull:
        raise RequestError(
            403, "the server does not download or delete models: start it with --allow-pull", "pull"
        )


class Download:
    """A download of a repository, or of one GGUF file of it, in a thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cancelled = threading.Event()

    async def lines(self) -> AsyncIterator[bytes]:
        """Ollama's lines of progress. An error is the last line, because the response has already
        begun.
        """
        async for event in self.events():
            yield json_line(event)

    async def events(self) -> AsyncIterator[JsonMapping]:
        """Progress of the download. Closing the generator cancels it; its files are kept for the
        next attempt.
        """
        queue: asyncio.Queue[Mapping[str, object] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def send(event: Mapping[str, object] | None) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(queue.put_nowait, event)

        task = asyncio.create_task(in_daemon_thread(lambda: self._run(send)))
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            self.cancelled.set()

    def _run(self, send: Callable[[Mapping[str, object] | None], None]) -> None:
        previous = ("", 0)

        def report(file: str, count: int, total: int) -> None:
            nonlocal previous
            if self.cancelled.is_set():
                raise CancelledDownloadError
            if total and (
                previous[0] != file or count == total or count - previous[1] >= total / STEPS
            ):
                previous = (file, count)
                send(
                    {
                        "status": f"pulling {file}",
                        "digest": file,
                        "total": total,
                        "completed": count,
                    }
                )
            elif file and not total:  # a reason to wait
                send({"status": file})

        transfer.listener.set(report)
        try:
            send({"status": "pulling manifest"})
            hub.download(hub.plan_download(self.name, suggest=False), progress=True)
            send({"status": "success"})
        except CancelledDownloadError:
            pass
        except (OSError, ValueError) as error:
            send({"error": public_message(error)})
        finally:
            send(None)
