"""Text embeddings and reranking: POST /v1/embeddings (OpenAI), /v1/rerank (Jina, llama.cpp),
/v2/rerank (Cohere).

Sources: the API references of OpenAI, Jina, Cohere and Text Embeddings Inference (TEI).
"""

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
import torch
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from torch import Tensor

from minhub_py.analysis.classify import rerank as rerank_texts
from minhub_py.analysis.embeddings import embed, prompt_of, truncates
from minhub_py.analysis.encoders import Input, head_output, inputs_of, truncated_inputs
from minhub_py.checkpoints.pooling import finished, pooled
from minhub_py.checkpoints.sentence_transformers import EmbeddingSettings
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.serve import known_fields
from minhub_py.serve.encoder_engine import EncoderRequest
from minhub_py.serve.engine_thread import Failure
from minhub_py.serve.inputs import parse_items, resolved
from minhub_py.serve.models import ServedModel, failed
from minhub_py.serve.server import server_of
from minhub_py.serve.streaming import DisconnectedError, respond_with_lists, until_disconnect
from minhub_py.serve.validation import Fields, invalid, shaped

S = TypeVar("S")
T = TypeVar("T")
MAX_TEXTS = 2048  # of a request, as in the OpenAI API
# tokenized at a time: an encoding takes a hundred times the memory of its text
GROUP_CHARACTERS = 200_000


async def embeddings(request: HTTPRequest) -> Response:
    """POST /v1/embeddings. Embeddings have length 1 unless `normalize` is false; `prompt_name` is
    TEI's.
    """
    served, fields = await server_of(request).read_with_model(request, "embedding")
    fields.reject("truncate_prompt_tokens", "truncate")
    items = parse_items(fields.get("input"), "input")
    check_count(items, "input")
    encoding = fields.string("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise invalid(
            f"encoding_format must be float or base64, not {encoding!r}", "encoding_format"
        )
    dimensions = fields.integer("dimensions", 1, 2**31)
    name, normalize = fields.string("prompt_name"), fields.boolean("normalize", True)
    fields.reject("add_special_tokens", harmless=(True,), empty=False)
    fields.finish(known_fields.EMBEDDING)

    async def work() -> Response:
        paths = ["input"] if len(items) == 1 else [f"input[{index}]" for index in range(len(items))]
        texts = [
            await resolved(served, item, path) for item, path in zip(items, paths, strict=True)
        ]
        inputs = await encode_texts(served, texts, name)
        vectors = await embed_inputs(served, inputs, dimensions, normalize)
        if dimensions is not None and len(vectors[0]) < dimensions:
            raise invalid(
                f"dimensions must be at most {len(vectors[0])}, not {dimensions}", "dimensions"
            )
        tokens = sum(len(row.ids) for row in inputs)
        values = numbers if encoding == "float" else encode_base64
        data = (
            {"object": "embedding", "index": index, "embedding": values(vector)}
            for index, vector in enumerate(vectors)
        )
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        fields = {"object": "list", "model": served.name, "usage": usage}
        return await respond_with_lists(request, {"data": data}, fields, cost=len(vectors[0]))

    return await unless_disconnected(request, work())


def check_count(values: Sequence[object], name: str) -> None:
    """Reject more than MAX_TEXTS texts."""
    if len(values) > MAX_TEXTS:
        raise invalid(f"{name} has {len(values):,} elements: at most {MAX_TEXTS:,}", name)


# Texts to embeddings. Used by the Ollama API, too.


async def encode_texts(
    served: ServedModel,
    texts: Sequence[str | list[int]],
    prompt_name: str | None = None,
    truncate: bool = False,
    field: str = "input",
) -> list[Input]:
    """Each text's input. Token IDs are used without prompt and special tokens.

    truncate: shorten texts that are too long; otherwise they are rejected.    field: the name of
    the texts in the request.
    """
    settings = settings_of(served)
    try:
        prompt = prompt_of(settings, prompt_name)
    except ValueError as error:
        raise invalid(str(error), "prompt_name") from error
    limit = served.engine.max_length

    def encoded(group: Sequence[str]) -> Sequence[Input | None]:
        if truncates(served.model):
            return truncated_inputs(served.model, served.tokenizer, list(group), settings, prompt)
        lists = [encode(served.tokenizer, prompt + text, release_gil=True) for text in group]
        return [Input(ids[:limit], [], removed=max(len(ids) - limit, 0)) for ids in lists]

    names = [field] if len(texts) == 1 else [f"{field}[{index}]" for index in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        if not truncate and isinstance(text, str):
            served.check_characters(len(text), name)
    rows = iter(
        await tokenized(served, [text for text in texts if isinstance(text, str)], encoded, field)
    )
    inputs = []
    for name, text in zip(names, texts, strict=True):
        ids = [] if isinstance(text, str) else text
        row = (
            next(rows)
            if isinstance(text, str)
            else Input(ids[:limit], [0] * min(len(ids), limit), removed=max(len(ids) - limit, 0))
        )
        if row is None or not row.ids:
            raise invalid(f"{name} has no tokens: pass a text that is not empty", name)
        if row.removed and not truncate:
            raise invalid(
                f"{name} has {len(row.ids) + row.removed:,} tokens, but {served.name} reads at most"
                f" {len(row.ids):,}: shorten or split it",
                name,
                "context_length_exceeded",
            )
        inputs.append(row)
    return inputs


async def tokenized(
    served: ServedModel,
    texts: Sequence[str],
    encoded: Callable[[Sequence[str]], Sequence[T]],
    name: str,
) -> list[T]:
    """The results of `encoded` for groups of texts, in a thread. Text beyond the maximum length is
    not tokenized.
    """
    results: list[T] = []
    for group in groups([text[: served.max_characters] for text in texts]):
        try:
            results += await served.texts.run(lambda group=group: encoded(group))  # type: ignore[misc]
        except ValueError as error:
            raise invalid(str(error), name) from error
    return results


def groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Consecutive texts of at most GROUP_CHARACTERS, or one longer text."""
    group: list[str] = []
    size = 0
    for text in texts:
        if group and size + len(text) > GROUP_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(text)
        size += len(text)
    if group:
        yield group


async def embed_inputs(
    served: ServedModel, inputs: Sequence[Input], dimensions: int | None, normalize: bool
) -> list[np.ndarray]:  # type: ignore[type-arg]
    """The embedding of each text, equal to `embed` of this text alone.

    normalize: divide embeddings by their length, also after a reduction to `dimensions`.
    """
    settings = settings_of(served)
    check_dense(served, settings)
    # A repository that normalizes need not do so twice.
    again = normalize and (
        not settings.normalize or dimensions is not None or settings.dimensions is not None
    )

    def vector(x: Tensor, row: Input) -> np.ndarray:  # type: ignore[type-arg]
        return finite(
            finished(pooled(x, settings, row.prompt).unsqueeze(0), settings, dimensions, again)[0]
        )

    def vector_of_decoder(ids: list[int]) -> np.ndarray:  # type: ignore[type-arg]
        result = embed(served.model, None, [ids], dimensions=dimensions, normalize=again or None)
        return finite(result[0])

    if served.is_encoder:
        return await run_encoder(served, inputs, vector)
    return await run_decoder(served, vector_of_decoder, [list(row.ids) for row in inputs])


def check_dense(served: ServedModel, settings: EmbeddingSettings) -> None:
    """RequestError: the repository has sparse embeddings, or one vector per token."""
    if settings.splade is not None:
        raise invalid(f"{served.name} has sparse embeddings: use /embed_sparse", "model", "task")
    if settings.tokens is not None:
        raise invalid(
            f"{served.name} has one vector per token (ColBERT), which the server does not compute:"
            " use embed() in Python",
            "model",
            "task",
        )


async def run_decoder(
    served: ServedModel, compute: Callable[[S], T], texts: Sequence[S]
) -> list[T]:
    """The results of `compute` for each text, one after the other in a thread; requests take turns."""
    deadline, results = time.monotonic() + served.timeout, list[T]()
    for text in texts:
        if time.monotonic() > deadline:
            raise failed(
                Failure("time", "the request exceeded the server's time limit: send fewer texts")
            )
        try:
            results.append(await served.embeddings.run(lambda text=text: compute(text)))  # type: ignore[misc]
        except ValueError as error:
            raise invalid(str(error), "model") from error
    return results


def settings_of(served: ServedModel) -> EmbeddingSettings:
    """The embedding settings of the repository, or the default."""
    return served.model.embedding_settings or EmbeddingSettings()


def finite(x: Tensor) -> np.ndarray:  # type: ignore[type-arg]
    """A vector as an array. ValueError: it contains NaN or infinity, which JSON does not have."""
    if not bool(torch.isfinite(x).all()):
        raise ValueError(
            "the model's output contains NaN or infinity: load the model with dtype float32"
        )
    return x.numpy()


async def run_encoder(
    served: ServedModel, inputs: Sequence[Input], finish: Callable[[Tensor, Input], T]
) -> list[T]:
    """The results of `finish` for each text's hidden states. RequestError: the engine is busy,
    or it fails.
    """
    if not inputs:  # all texts are empty
        return []
    loop = asyncio.get_running_loop()
    result: asyncio.Future[list[T] | Failure] = loop.create_future()

    def set_result(value: list[T] | Failure) -> None:
        if not result.done():
            result.set_result(value)

    def send(value: list[T] | Failure) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(set_result, value)

    job = EncoderRequest(inputs, finish, send, time.monotonic() + served.timeout)
    served.submit(job)
    try:
        value = await result
    finally:
        job.cancelled = True  # has no effect on a finished request
    if isinstance(value, Failure):
        raise failed(value)
    return value


async def unless_disconnected(request: HTTPRequest, work: Awaitable[Response]) -> Response:
    """The response of `work`, which ends if the client disconnects."""
    try:
        return await until_disconnect(request, work)
    except DisconnectedError:
        return Response(status_code=499)  # for the log: the client does not receive it


async def respond_json(served: ServedModel, content: Callable[[], object]) -> Response:
    """A JSON response, written in a thread."""
    body = await served.texts.run(
        lambda: json.dumps(content(), ensure_ascii=False, allow_nan=False).encode()
    )
    return Response(body, media_type="application/json")


def numbers(vector: np.ndarray) -> list[float]:  # type: ignore[type-arg]
    """A vector's components, with the fewest digits that identify a float32 value."""
    return [float(str(number)) for number in vector]


def encode_base64(vector: np.ndarray) -> str:  # type: ignore[type-arg]
    """A vector as little-endian float32 in base64."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


# Reranking


async def rerank(request: HTTPRequest) -> Response:
    """POST /v1/rerank: the form of Jina with `documents`, and of TEI with `texts`."""
    served, fields = await server_of(request).read_with_model(request, "rerank")
    tei = fields.get("documents") is None and fields.get("texts") is not None
    name = "texts" if tei else "documents"
    query, documents = parse_documents(fields, name)
    raw = fields.boolean("raw_scores")
    count = fields.integer("top_n", 1, 2**31, len(documents)) or len(documents)
    with_text = fields.boolean("return_text") if tei else fields.boolean("return_documents", True)
    finish_reranking(fields)

    async def work() -> Response:
        scores, tokens = await relevance(served, query, documents, name, raw)
        best = by_score(scores)[:count]
        if tei:
            rows = [
                {"index": i, "score": scores[i], **({"text": documents[i]} if with_text else {})}
                for i in best
            ]
            return await respond_json(served, lambda: rows)
        results = [
            {
                "index": i,
                "relevance_score": scores[i],
                **({"document": {"text": documents[i]}} if with_text else {}),
            }
            for i in best
        ]
        return await respond_json(
            served,
            lambda: {
                "model": served.name,
                "object": "list",
                "results": results,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            },
        )

    return await unless_disconnected(request, work())


async def cohere_rerank(request: HTTPRequest) -> Response:
    """POST /v2/rerank."""
    served, fields = await server_of(request).read_with_model(request, "rerank")
    query, documents = parse_documents(fields, "documents")
    count = fields.integer("top_n", 1, 2**31, len(documents)) or len(documents)
    limit = fields.integer("max_tokens_per_doc", 1, 2**31)
    finish_reranking(fields)
    if limit is not None and limit < served.engine.max_length:
        raise invalid(
            f"max_tokens_per_doc must be at least {served.engine.max_length}, the maximum length of"
            f" {served.name}: remove it",
            "max_tokens_per_doc",
            "unsupported",
        )

    async def work() -> Response:
        scores, _ = await relevance(served, query, documents, "documents", raw=False)
        results = [{"index": i, "relevance_score": scores[i]} for i in by_score(scores)[:count]]
        meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
        return await respond_json(
            served, lambda: {"id": secrets.token_hex(16), "results": results, "meta": meta}
        )

    return await unless_disconnected(request, work())


def finish_reranking(fields: Fields) -> None:
    """Reject unknown fields of a request for reranking. Long texts are truncated on the right."""
    fields.reject("truncate", harmless=(True,), empty=False)
    fields.reject("truncation_direction", harmless=("Right", "right"))
    fields.reject("rank_fields", "max_chunks_per_doc", "truncate_prompt_tokens")
    fields.finish(known_fields.EMBEDDING)


def parse_documents(fields: Fields, name: str) -> tuple[str, list[str]]:
    """The query and the documents, which are strings or objects with a `text`."""
    query = fields.string("query")
    if not query:
        raise invalid("query must be a non-empty string", "query")
    values = fields.get(name)
    if not isinstance(values, list) or not values:
        raise invalid(f"{name} must be a list of at least one text", name)
    check_count(values, name)
    documents = []
    for index, value in enumerate(values):
        path = f"{name}[{index}]"
        documents.append(
            shaped(
                Fields(value, path).string("text") if isinstance(value, dict) else value, str, path
            )
        )
    return query, documents


async def relevance(
    served: ServedModel, query: str, documents: Sequence[str], name: str, raw: bool
) -> tuple[list[float], int]:
    """Each document's score, and the number of tokens. Long pairs are truncated, as in
    `rerank`.

    raw: scores before the sigmoid.
    """
    served.check_characters(len(query), "query")
    if not served.is_encoder:

        def score_of(text: str) -> float:
            [value] = rerank_texts(served.model, served.tokenizer, query, [text], raw_scores=raw)[
                "score"
            ]
            return float(str(value))

        documents = [text[: served.max_characters] for text in documents]
        scores = await run_decoder(served, score_of, documents)
        ids = await served.texts.run(
            lambda: [encode(served.tokenizer, text) for text in (query, *documents)]
        )
        return scores, sum(map(len, ids))
    settings = served.model.embedding_settings
    max_length = None if settings is None else settings.max_length

    def encoded(group: Sequence[str]) -> list[Input]:
        pairs = [query] * len(group), group
        return list(inputs_of(served.model, served.tokenizer, *pairs, max_length=max_length))

    inputs = await tokenized(served, documents, encoded, name)

    def score(x: Tensor, _: Input) -> float:
        value = head_output(served.model, x)
        return float(str(finite(value if raw else value.sigmoid())[0]))

    return await run_encoder(served, inputs, score), sum(len(row.ids) for row in inputs)


def by_score(scores: Sequence[float]) -> list[int]:
    """The indices of scores, the highest first."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])
