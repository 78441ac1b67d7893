"""Engines for loaded models, and the models in the local cache that a server can load."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from minhub_py.chat.templates import ChatTemplate
from minhub_py.checkpoints import local
from minhub_py.inference.disk_cache import DiskCache
from minhub_py.inference.prefixes import PrefixCache
from minhub_py.loading.files import open_files
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder
from minhub_py.serve.catalog import ModelSource
from minhub_py.serve.encoder_engine import EncoderEngine
from minhub_py.serve.engine import Engine
from minhub_py.serve.engine_thread import EngineThread
from minhub_py.serve.models import ServedModel, Task, task_of
from minhub_py.system.spelling import setting

DEFAULT_CONTEXT = 4096
PREFIX_BYTES = 2**28  # of the prefix cache


def sources_in_cache(load: Callable[[str], ServedModel]) -> dict[str, ModelSource]:
    """The complete models in the Hub cache of supported architectures, and the built-ins."""
    folders = {
        f"minhub/{path.parent.name}": path.parent
        for path in sorted(local.BUILTIN.glob("*/config.json"))
    }
    sizes = {name: local.folder_size(path) for name, path in folders.items()}
    for model in local.cached_models():
        if model.complete and "main" in model.revisions:
            folders[model.repository], sizes[model.repository] = model.folder, model.size
    return {
        name: ModelSource(partial(load, name), sizes[name], task)
        for name, path in folders.items()
        if (task := task_at(path)) is not None
    }


def task_at(path: Path) -> Task | None:
    """The task of a folder or a GGUF file, from its settings. None: the model is not supported."""
    try:
        return task_of_version(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):  # `minhub inspect` reports the reason
        return None


# each request lists the models, and reading the vocabulary of a GGUF file takes 0.2 s
@lru_cache(maxsize=1024)
def task_of_version(path: Path, changed: int) -> Task:
    """The same for a file or folder that was changed at this time, in nanoseconds."""
    files = open_files(path, weights="never", local_files_only=True)
    return task_of(files.model_class, files.config)


def served_models(
    networks: Mapping[str, LanguageModel | Encoder],
    tokenizer: Tokenizer,
    template: ChatTemplate,
    seconds: float,
    **settings: Any,
) -> Iterator[ServedModel]:
    """A model, and the same model with adapters.

    networks: by name, the model without an adapter first.    seconds: maximum duration of a
    request.
    settings: of `engine_for`.
    """
    [base, *_] = networks
    shared = PrefixCache(settings.get("prefix_cache", PREFIX_BYTES))
    for name, network in networks.items():
        shares = name == base or network.invocation is not None
        engine = engine_for(
            network, tokenizer, name, prefixes=shared if shares else None, **settings
        )
        parent = None if name == base else base
        try:
            yield ServedModel(name, network, tokenizer, template, engine, seconds, parent=parent)
        except ValueError:
            engine.close()
            raise


def engine_for(
    model: LanguageModel | Encoder,
    tokenizer: Tokenizer,
    name: str,
    *,
    max_requests: int,
    context: int | None,
    waiting: int = 128,
    prefix_cache: int = PREFIX_BYTES,
    prefixes: PrefixCache | None = None,
    cache_dir: str | None = None,
    cache_size: int = 10**10,
    speculate: int = 0,
) -> EngineThread[Any]:
    """A model's engine. Encoders do not use `context`, `cache_dir` and `speculate`.

    prefix_cache: size of the prefix cache in bytes.    prefixes: a prefix cache to share instead.
    ValueError: `context` exceeds the model's context length, or `cache_dir` cannot be written.
    """
    if isinstance(model, Encoder):
        settings = model.embedding_settings
        lengths = (
            None if settings is None else settings.max_length,
            model.config.context_length,
            DEFAULT_CONTEXT,
        )
        return EncoderEngine(
            model, min(length for length in lengths if length is not None), max_requests + waiting
        )
    length = length_of(model, context, name)
    disk = None if cache_dir is None else DiskCache(cache_dir, cache_size)
    return Engine(
        model,
        tokenizer,
        batch_size=max_requests,
        max_length=length,
        queue_size=waiting,
        prefix_bytes=prefix_cache,
        prefixes=prefixes,
        disk=disk,
        speculate=speculate,
    )


def length_of(model: LanguageModel, requested: int | None, name: str) -> int:
    """Maximum number of tokens of a sequence. ValueError: `requested` exceeds the model's context
    length.
    """
    maximum: int | None = model.config.context_length
    if requested is None:
        return min(maximum or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    if maximum is not None and requested > maximum:
        raise ValueError(
            f"{setting('context', requested)} exceeds the context length of {name}: at most"
            f" {maximum}"
        )
    return requested
