"""A server's models: loaded at the start or on demand, unloaded when they are idle or a limit
requires it.

Sources: Ollama's `keep_alive` and OLLAMA_MAX_LOADED_MODELS, and the states of llama.cpp's router.
"""

import asyncio
import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from minhub_py.serve.models import ServedModel, Task
from minhub_py.serve.validation import RequestError, invalid
from minhub_py.serve.workers import RETRY_AFTER
from minhub_py.system.console import note
from minhub_py.system.printable import reason_of

T = TypeVar("T")
DEFAULT_KEEP_ALIVE = 300.0  # seconds, as in Ollama
MAX_NAME = 4096  # characters, as of a path
MAX_LISTED = 20  # names in an error message
# The models that a request of a task can use by their own.
TASKS: Mapping[Task, tuple[Task, ...]] = {
    "completion": ("completion",),
    "embedding": ("embedding",),
    "rerank": ("rerank",),
    "decision": ("completion", "decision"),
}
State = Literal["unloaded", "loading", "loaded", "failed"]


@dataclass(frozen=True)
class ModelSource:
    """A model that can be loaded. size: of its files in bytes."""

    load: Callable[[], ServedModel]
    size: int
    task: Task = "completion"


@dataclass(eq=False)
class CatalogEntry:
    """A model and its state.

    keep_alive: seconds until the model is unloaded after its last request; None: never.
    in_cache: listed by `Models.cached`.
    memory: bytes of the weights and the KV cache, known after the model was loaded.
    users: number of requests that need the model.
    last_used: on the event loop's clock.
    expires: when the model will be unloaded, on the same clock; None: never, or it has users.
    """

    name: str
    source: ModelSource | None = None
    keep_alive: float | None = None
    in_cache: bool = False
    memory: int = 0
    served: ServedModel | None = None
    loading: "asyncio.Task[None] | None" = None
    failed: bool = False
    users: int = 0
    last_used: float = 0.0
    timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> State:
        """The state, in llama.cpp's terms."""
        if self.served is not None:
            return "loaded"
        return "loading" if self.loading is not None else "failed" if self.failed else "unloaded"

    @property
    def task(self) -> Task:
        """The purpose of the model."""
        return (
            self.served.task
            if self.served is not None
            else self.source.task
            if self.source
            else "completion"
        )

    @property
    def size(self) -> int:
        """The memory of the model in bytes, estimated by its files if it has never been loaded."""
        return self.memory or (self.source.size if self.source else 0)

    @property
    def expires(self) -> float | None:
        """When the model will be unloaded, on the event loop's clock."""
        return None if self.timer is None else self.timer.when()


class Models:
    """A server's models. Requests without a model use the first.

    models: loaded models, which are unloaded only if they have a source.
    cached: lists further models by name, for example the ones in the Hub cache. Runs in a thread.
    max_models: maximum number of loaded models.
    max_memory: maximum size of their weights and KV caches in bytes.
    keep_alive: seconds until a model of `cached` is unloaded after its last request; None: never.
    timeout: seconds that a request waits for another model to become idle.
    aliases: further names of models, which may contain *, such as {"claude-*": "qwen"}.

    A request that needs a model that is not loaded waits until it is. One model is loaded at a
    time. If a limit is exceeded, the model whose last request is longest ago is unloaded first;
    models with unfinished requests are not.
    """

    def __init__(
        self,
        models: Sequence[ServedModel] = (),
        *,
        cached: Callable[[], Mapping[str, ModelSource]] = dict,
        max_models: int | None = None,
        max_memory: int | None = None,
        keep_alive: float | None = DEFAULT_KEEP_ALIVE,
        timeout: float = 600.0,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.aliases = dict(aliases or {})
        self.entries: dict[str, CatalogEntry] = {}
        self.cached, self.max_models, self.max_memory = cached, max_models, max_memory
        self.keep_alive, self.timeout, self.closed = keep_alive, timeout, False
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()
        for served in models:
            self.add(served)

    @property
    def all(self) -> list[ServedModel]:
        """The loaded models."""
        return [entry.served for entry in self.entries.values() if entry.served is not None]

    def add(self, served: ServedModel, source: ModelSource | None = None) -> None:
        """Add a loaded model. source: loads it again after a limit has unloaded it."""
        self.entries[served.name] = CatalogEntry(
            served.name, source, served=served, memory=served.memory
        )

    async def available(self) -> list[tuple[str, CatalogEntry]]:
        """All models and aliases by name, including models in the cache that have not been loaded
        yet.
        """
        await self._discover()
        return self._listed()

    def _listed(self) -> list[tuple[str, CatalogEntry]]:
        """Names and their models, without patterns and without aliases of models that are not in
        the cache.
        """
        aliases = (
            (alias, self._named(model))
            for alias, model in self.aliases.items()
            if not is_pattern(alias)
        )
        return [
            *self.entries.items(),
            *((alias, entry) for alias, entry in aliases if entry is not None),
        ]

    async def find(self, name: str | None, task: Task | None = None) -> CatalogEntry:
        """The model with this name, see `ServedModel.names`; it need not be loaded.

        task: the task of the request. Without a name, the first model for this task is used.
        RequestError: the name is unknown, or the model does not support the task.
        """
        if not name and not self.entries:
            await self._discover()
        if not name:
            candidates = list(self.entries.values())
            if not candidates:
                raise RequestError(
                    404,
                    "the server has no models: download one, then repeat the request",
                    "model_not_found",
                    "model",
                )
            entry = next(
                (entry for entry in candidates if task is None or entry.task in TASKS[task]),
                candidates[0],
            )
        else:
            if len(name) > MAX_NAME:
                raise RequestError(
                    404,
                    f"unknown model: a name has at most {MAX_NAME:,} characters",
                    "model_not_found",
                    "model",
                )
            entry = self._named(self.target(name)) or await self._named_in_cache(name)
        check_task(entry, task)
        return entry

    def target(self, name: str) -> str:
        """The model of an alias without a pattern; other names are returned."""
        return self.aliases.get(name) or self.aliases.get(name.removesuffix(":latest")) or name

    def _matching(self, name: str) -> CatalogEntry | None:
        """The model of an alias with a pattern."""
        return next(
            (
                self._named(model)
                for alias, model in self.aliases.items()
                if fnmatchcase(name, alias)
            ),
            None,
        )

    def _named(self, name: str) -> CatalogEntry | None:
        entry = self.entries.get(name) or self.entries.get(name.removesuffix(":latest"))
        loaded = [
            candidate
            for candidate in self.entries.values()
            if candidate.served is not None and name in candidate.served.names
        ]
        return entry or next(iter(loaded), None)

    async def _named_in_cache(self, name: str) -> CatalogEntry:
        """The same after an update. Names of models precede aliases with patterns."""
        await self._discover()
        if (entry := self._named(self.target(name)) or self._matching(name)) is None:
            names = [listed for listed, _ in self._listed()]
            listed = ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
            base = self.entries.get(name.rpartition("+")[2]) if "+" in name else None
            served = None if base is None else base.served
            is_adapter = served is not None and served.parent is not None
            available = (
                []
                if served is None
                else [
                    name_shown for name_shown in served.names if not name_shown.endswith(":latest")
                ]
            )
            hint = f"; the adapter is {' or '.join(available)}" if is_adapter else ""
            raise RequestError(
                404,
                f"unknown model {name[:200]!r}: available are {listed or 'none'}{hint}",
                "model_not_found",
                "model",
            )
        return entry

    async def _discover(self) -> None:
        """Update the entries of models that are not loaded."""
        sources = await asyncio.to_thread(self.cached)
        for name, source in sources.items():
            self.entries.setdefault(
                name, CatalogEntry(name, source, self.keep_alive, in_cache=True)
            )
        for name, entry in list(self.entries.items()):
            unused = entry.served is None and entry.loading is None and not entry.users
            if entry.in_cache and unused and name not in sources:  # deleted
                del self.entries[name]

    # Use by requests

    async def acquire(self, name: str | None, task: Task | None = None) -> CatalogEntry:
        """Find a model and load it if necessary. It stays loaded until `release`.

        RequestError: as in `find`; the model cannot be loaded, or the other models remain in use.
        """
        entry = await self.find(name, task)
        entry.users += 1
        self._cancel_timer(entry)
        try:
            while entry.served is None:
                if self.closed:
                    raise RequestError(
                        503, "the server is shutting down", "busy", retry_after=RETRY_AFTER
                    )
                if entry.loading is None:
                    entry.loading = asyncio.create_task(self._load(entry))
                await self._until_loaded(entry.loading)
            check_task(entry, task)
        except BaseException:
            self.release(entry)
            raise
        return entry

    async def _until_loaded(self, loading: "asyncio.Task[None]") -> None:
        """Wait for a load, which continues if this request is cancelled."""
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            if self.closed and loading.cancelled():
                raise RequestError(
                    503, "the server is shutting down", "busy", retry_after=RETRY_AFTER
                ) from None
            raise

    def release(self, entry: CatalogEntry) -> None:
        """The end of a request that acquired a model."""
        entry.users -= 1
        loop = asyncio.get_running_loop()
        entry.last_used = loop.time()
        if entry.users:
            return
        self._released.set()
        if entry.served is not None and entry.source is not None and entry.keep_alive is not None:
            self._cancel_timer(entry)
            entry.timer = loop.call_later(entry.keep_alive, self._expire, entry)

    def _cancel_timer(self, entry: CatalogEntry) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None

    def _expire(self, entry: CatalogEntry) -> None:
        entry.timer = None
        if not entry.users and entry.served is not None:
            asyncio.get_running_loop().create_task(self._unload(entry))

    # Loading

    async def _load(self, entry: CatalogEntry) -> None:
        """Load a model after the loads that have begun before. RequestError: it fails."""
        try:
            async with self._turn:
                await self._make_room(entry)
                assert entry.source is not None
                served = await in_daemon_thread(entry.source.load)
                if self.closed:
                    await asyncio.to_thread(served.close)
                    raise RequestError(
                        503, "the server is shutting down", "busy", retry_after=RETRY_AFTER
                    )
                entry.served, entry.failed, entry.memory = served, False, served.memory
                # the KV cache was not known
                while not self._fits(entry) and (idle := self._idle()) is not None:
                    await self._unload(idle)
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            entry.failed = True
            note(f"Note: {entry.name} cannot be loaded: {reason_of(error)}")
            raise RequestError(
                500,
                f"{entry.name} cannot be loaded ({type(error).__name__}): the server's output has"
                " the reason",
                "model_load_failed",
                "model",
            ) from error
        finally:
            entry.loading = None

    async def _make_room(self, entry: CatalogEntry) -> None:
        """Unload idle models until the limits allow a further one.

        RequestError: the model alone exceeds a limit, or no model becomes idle.
        """
        if self.max_memory is not None and entry.size > self.max_memory:
            raise RequestError(
                503,
                f"{entry.name} has {entry.size:,} bytes, more than the server's limit of"
                f" {self.max_memory:,} (--max-memory)",
                "model_too_large",
                "model",
            )
        deadline = asyncio.get_running_loop().time() + self.timeout
        while not self._fits(entry):
            if (idle := self._idle()) is not None:
                await self._unload(idle)
                continue
            self._released.clear()
            try:
                await asyncio.wait_for(
                    self._released.wait(), deadline - asyncio.get_running_loop().time()
                )
            except (TimeoutError, asyncio.TimeoutError) as error:
                raise RequestError(
                    503,
                    f"{entry.name} cannot be loaded: the loaded models are in use; try again later",
                    "busy",
                    retry_after=RETRY_AFTER,
                ) from error

    def _idle(self) -> CatalogEntry | None:
        """The loaded model without users whose last request is longest ago, if it can be loaded
        again.
        """
        idle = [
            entry
            for entry in self.entries.values()
            if entry.served and entry.source and not entry.users
        ]
        return min(idle, key=lambda entry: entry.last_used, default=None)

    def _fits(self, entry: CatalogEntry) -> bool:
        loaded = [
            candidate
            for candidate in self.entries.values()
            if candidate.served is not None and candidate is not entry
        ]
        if self.max_models is not None and len(loaded) >= self.max_models:
            return False
        return (
            self.max_memory is None
            or sum(candidate.size for candidate in loaded) + entry.size <= self.max_memory
        )

    async def unload(self, name: str) -> None:
        """Unload a model. RequestError: the name is unknown, or the model is in use or cannot be
        loaded again.
        """
        entry = await self.find(name)
        if entry.loading is not None or entry.users:
            raise RequestError(409, f"{entry.name} is in use: try again later", "busy", "model")
        if entry.served is not None:
            if entry.source is None:
                raise invalid(
                    f"{entry.name} cannot be loaded again: stop the server instead", "model"
                )
            await self._unload(entry)

    async def _unload(self, entry: CatalogEntry) -> None:
        served, entry.served = entry.served, None
        self._cancel_timer(entry)
        if served is not None:
            await asyncio.to_thread(served.close)
            del served
            gc.collect()  # models contain reference cycles

    def stop_accepting(self) -> None:
        """Reject new requests, and end the waiting for loads."""
        self.closed = True
        for served in self.all:
            served.engine.stop_accepting()
        for entry in self.entries.values():
            self._cancel_timer(entry)
            if entry.loading is not None:
                entry.loading.cancel()


def is_pattern(alias: str) -> bool:
    """Whether an alias is a pattern, which applies to several names."""
    return any(char in alias for char in "*?[")


def check_task(entry: CatalogEntry, task: Task | None) -> None:
    """RequestError: the model does not support the task."""
    if task in ("completion", "decision") and entry.task not in TASKS[task]:
        route = "/v1/rerank" if entry.task == "rerank" else "/v1/embeddings"
        decoder = entry.served is not None and not entry.served.is_encoder
        kind = "an embedding model" if decoder else "a text encoder"
        if entry.task == "decision":
            kind, route = "a decision model", "/v1/systemone"
        raise invalid(
            f"{entry.name} is {kind}, which does not generate text: use {route}", "model", "task"
        )
    if task == "rerank" and entry.task not in ("rerank", "completion") and entry.served is not None:
        raise invalid(
            f"{entry.name} is not a cross-encoder (…ForSequenceClassification with one label): use"
            " /v1/embeddings",
            "model",
            "task",
        )


async def in_daemon_thread(job: Callable[[], T]) -> T:
    """Run a job in a thread that does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def finish(method: Callable[[Any], None], value: object) -> None:
        if not future.done():
            method(value)

    def run() -> None:
        try:
            result = context.run(job)
        except BaseException as error:
            call, value = future.set_exception, error
        else:
            call, value = future.set_result, result  # type: ignore[assignment]
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, call, value)

    threading.Thread(target=run, name="minhub load", daemon=True).start()
    return await future
