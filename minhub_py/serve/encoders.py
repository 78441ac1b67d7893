"""Heads of text encoders: POST /predict, /embed_sparse and /similarity (Text Embeddings Inference,
TEI), and /fill-mask (Hugging Face Inference).

Texts of all requests share batches, as embeddings do.

Sources: TEI's OpenAPI description; the pipelines of transformers for entities and masks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from torch import Tensor

from minhub_py.analysis.classify import probabilities
from minhub_py.analysis.encoders import Input, head_output, inputs_of
from minhub_py.analysis.masked import mask_of, target_id
from minhub_py.analysis.search import similarity as similarity_of
from minhub_py.analysis.sparse import nonzero
from minhub_py.analysis.token_labels import (
    AGGREGATIONS,
    entities,
    label_probabilities,
    labelled_texts,
)
from minhub_py.checkpoints.token_modules import Splade
from minhub_py.serve import known_fields
from minhub_py.serve.embeddings import (
    check_count,
    embed_inputs,
    encode_texts,
    finite,
    numbers,
    respond_json,
    run_encoder,
    settings_of,
    tokenized,
    unless_disconnected,
)
from minhub_py.serve.inputs import parse_items, resolved
from minhub_py.serve.models import ServedModel
from minhub_py.serve.server import server_of
from minhub_py.serve.validation import Fields, RequestError, invalid, shaped
from minhub_py.system.json_text import JsonObject

TOP_K = 5  # tokens per mask, as in transformers
MAX_TOP_K = 1000
CLASSES = {
    "masked_lm": "…ForMaskedLM",
    "sequence": "…ForSequenceClassification",
    "tokens": "…ForTokenClassification",
}


async def model_with_head(request: HTTPRequest, *heads: str) -> tuple[ServedModel, Fields]:
    """A request's body, and the model that it names; by default the first one with such a head.

    RequestError: the model has another head.
    """
    server = server_of(request)
    fields = await server.read(request)
    name = fields.string("model")
    if name is None:
        models = (model for model in server.models.all if model.is_encoder)
        name = next((model.name for model in models if model.model.config.head in heads), None)
    served = await server.model_for(request, name, "embedding")
    if not served.is_encoder or served.model.config.head not in heads:
        classes = " or ".join(CLASSES[head] for head in heads)
        raise invalid(f"{served.name} is not a checkpoint {classes}", "model", "task")
    return served, fields


# Classification


async def predict(request: HTTPRequest) -> Response:
    """POST /predict: the labels of texts or pairs, the most likely one first; or the entities of
    texts.
    """
    served, fields = await model_with_head(request, "sequence", "tokens")
    rows, is_batch = parse_predict_inputs(fields.get("inputs"))
    if served.model.config.head == "tokens":
        aggregation = fields.string("aggregation_strategy", "simple")
        if aggregation not in AGGREGATIONS:
            raise invalid(
                f"aggregation_strategy must be one of {', '.join(AGGREGATIONS)}",
                "aggregation_strategy",
            )
        # long texts have windows
        fields.reject("truncate", "raw_scores", harmless=(False,), empty=False)
        finish_fields(fields)
        if any(len(row) > 1 for row in rows):
            raise invalid("inputs must be texts, not pairs, for token classification", "inputs")

        async def find() -> Response:
            results = await entities_of(served, [row[0] for row in rows], aggregation)
            return await respond_json(served, lambda: results if is_batch else results[0])

        return await unless_disconnected(request, find())
    raw, truncate = fields.boolean("raw_scores"), fields.boolean("truncate")
    finish_fields(fields)

    async def classify() -> Response:
        results = await labels_of(served, rows, raw, truncate)
        return await respond_json(served, lambda: results if is_batch else results[0])

    return await unless_disconnected(request, classify())


def parse_predict_inputs(value: object) -> tuple[list[tuple[str, ...]], bool]:
    """The texts or pairs, and whether they are a batch: a string, a list of two strings (a pair), or
    a list of lists of one or two strings.
    """
    if isinstance(value, str):
        return [(shaped(value, str, "inputs"),)], False
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return [pair_of(value, "inputs", (2,))], False
    if not isinstance(value, list) or not value:
        raise invalid("inputs must be a string, a pair of strings, or a list of lists", "inputs")
    check_count(value, "inputs")
    return [pair_of(part, f"inputs[{number}]", (1, 2)) for number, part in enumerate(value)], True


def pair_of(value: object, name: str, lengths: tuple[int, ...]) -> tuple[str, ...]:
    """A list of strings as a tuple. RequestError: it has another length."""
    if not isinstance(value, list) or len(value) not in lengths:
        kind = "a pair of strings" if lengths == (2,) else "a list of one or two strings"
        raise invalid(f"{name} must be {kind}", name)
    return tuple(shaped(part, str, f"{name}[{number}]") for number, part in enumerate(value))


async def labels_of(
    served: ServedModel, rows: Sequence[tuple[str, ...]], raw: bool, truncate: bool
) -> list[list[JsonObject]]:
    """The labels of each text or pair with their scores, the largest first. raw: before the softmax
    or sigmoid.
    """
    model: Any = served.model
    settings = model.embedding_settings
    max_length = None if settings is None else settings.max_length
    texts = [tuple(part[: served.max_characters] for part in row) for row in rows]
    for number, row in enumerate(rows):
        for part in row if not truncate else ():
            served.check_characters(len(part), input_name(number, len(rows)))

    def encoded() -> list[Input]:
        inputs: dict[int, Input] = {}
        for count in {len(row) for row in texts}:  # texts and pairs are separate calls
            group = [number for number, row in enumerate(texts) if len(row) == count]
            parts = [[texts[number][part] for number in group] for part in range(count)]
            rows_of_group = inputs_of(model, served.tokenizer, *parts, max_length=max_length)
            inputs.update(zip(group, rows_of_group, strict=True))
        return [inputs[number] for number in range(len(texts))]

    try:
        inputs = await served.texts.run(encoded)
    except ValueError as error:
        raise invalid(str(error), "inputs") from error
    check_lengths(served, inputs, truncate)
    names, problem = model.config.labels, model.config.problem_type

    def labelled(x: Tensor, _: Input) -> list[JsonObject]:
        scores = head_output(model, x)
        if not raw and problem != "regression":
            scores = probabilities(scores.unsqueeze(0), problem)[0]
        values = numbers(finite(scores))
        order = sorted(range(len(names)), key=lambda label: -values[label])
        return [{"score": values[label], "label": names[label]} for label in order]

    return await run_encoder(served, inputs, labelled)


async def entities_of(
    served: ServedModel, texts: Sequence[str], aggregation: Any
) -> list[list[JsonObject]]:
    """Each text's entities, as transformers' pipeline returns them."""
    model: Any = served.model
    for number, text in enumerate(texts):
        served.check_characters(len(text), input_name(number, len(texts)))
    try:
        labelled = await served.texts.run(lambda: labelled_texts(model, served.tokenizer, texts))
    except ValueError as error:
        raise invalid(str(error), "inputs") from error
    probs = await run_encoder(served, labelled.inputs, lambda x, _: label_probabilities(model, x))
    for window, values in enumerate(probs):
        labelled.add(window, values)
    key = "entity" if aggregation == "none" else "entity_group"
    return [
        [
            {
                key: label,
                "score": float(str(np.float32(prob))),
                "word": text[start:end],
                "start": start,
                "end": end,
            }
            for start, end, label, prob in entities(tokens, model.config.labels, aggregation)
            if label != "O"
        ]
        for tokens, text in zip(labelled.tokens, texts, strict=True)
    ]


# Sparse embeddings and similarity


async def embed_sparse(request: HTTPRequest) -> Response:
    """POST /embed_sparse: the nonzero weights of sparse embeddings (SPLADE), by token ID."""
    served, fields = await model_with_head(request, "masked_lm")
    items = parse_items(fields.get("inputs"), "inputs")
    check_count(items, "inputs")
    name, truncate = fields.string("prompt_name"), fields.boolean("truncate")
    finish_fields(fields)
    settings = settings_of(served)
    splade = settings.splade or Splade()

    def weights(x: Tensor, _: Input) -> list[JsonObject]:
        ids, values = nonzero(splade(head_output(served.model, x)), settings.dimensions)
        return [
            {"index": id, "value": value}
            for id, value in zip(ids.tolist(), numbers(finite(values)), strict=True)
        ]

    async def work() -> Response:
        texts = [
            await resolved(served, item, input_name(number, len(items)))
            for number, item in enumerate(items)
        ]
        inputs = await encode_texts(served, texts, name, truncate, "inputs")
        results = await run_encoder(served, inputs, weights)
        return await respond_json(served, lambda: results)

    return await unless_disconnected(request, work())


async def similarity(request: HTTPRequest) -> Response:
    """POST /similarity: the cosine of the embeddings of a text and of other texts."""
    served, fields = await server_of(request).read_with_model(request, "embedding")
    inputs = Fields(fields.get("inputs"), "inputs")
    source, sentences = inputs.string("source_sentence"), inputs.get("sentences", list[str])
    inputs.finish()
    options = fields.get("parameters")
    parameters = Fields({} if options is None else options, "parameters")
    name, truncate = parameters.string("prompt_name"), parameters.boolean("truncate")
    finish_fields(parameters)
    fields.finish(known_fields.EMBEDDING)
    if source is None or not sentences:
        raise invalid("inputs must have source_sentence and sentences", "inputs")
    check_count(sentences, "inputs.sentences")

    async def work() -> Response:
        rows = await encode_texts(served, [source, *sentences], name, truncate, "inputs")
        vectors = torch.from_numpy(np.stack(await embed_inputs(served, rows, None, True)))
        scores = numbers(similarity_of(vectors[:1], vectors[1:])[0].numpy())
        return await respond_json(served, lambda: scores)

    return await unless_disconnected(request, work())


# Masked words


async def fill_mask(request: HTTPRequest) -> Response:
    """POST /fill-mask: the most likely tokens at each mask, as transformers' pipeline returns them."""
    served, fields = await model_with_head(request, "masked_lm")
    value = fields.get("inputs")
    is_text = isinstance(value, str)
    texts = [shaped(value, str, "inputs")] if is_text else fields.get("inputs", list[str])
    if not texts:
        raise invalid("inputs must be a text or a list of texts with [MASK]", "inputs")
    check_count(texts, "inputs")
    settings = fields.get("parameters")
    parameters = Fields({} if settings is None else settings, "parameters")
    count = parameters.integer("top_k", 1, MAX_TOP_K, TOP_K) or TOP_K
    targets = parameters.get("targets", list[str])
    if targets == []:
        raise invalid("targets must have at least one token", "parameters.targets")
    parameters.finish()
    finish_fields(fields)

    async def work() -> Response:
        results = await masks_of(served, texts, count, targets)
        return await respond_json(served, lambda: results[0] if is_text else results)

    return await unless_disconnected(request, work())


async def masks_of(
    served: ServedModel, texts: Sequence[str], count: int, targets: Sequence[str] | None
) -> list[list[JsonObject] | list[list[JsonObject]]]:
    """The tokens at each text's mask; with several masks, a list for each."""
    model: Any = served.model
    tokenizer = served.tokenizer
    try:
        mask = mask_of(tokenizer)
    except ValueError as error:
        raise invalid(str(error), "model") from error
    try:
        ids = None if targets is None else [target_id(tokenizer, target) for target in targets]
    except ValueError as error:
        raise invalid(str(error), "parameters.targets") from error
    mask_id = tokenizer.token_to_id(mask)
    masked = [text.replace("[MASK]", mask) for text in texts]
    # as `masked_tokens`: without the prompt and the lower case of embeddings
    inputs = await tokenized(
        served, masked, lambda group: list(inputs_of(model, tokenizer, group)), "inputs"
    )
    check_lengths(served, inputs, truncate=False)
    for number, row in enumerate(inputs):
        if mask_id not in row.ids:
            name = input_name(number, len(texts))
            raise invalid(f"{name} has no mask: write [MASK] in place of a word", name)

    def tokens(x: Tensor, row: Input) -> list[JsonObject] | list[list[JsonObject]]:
        positions = [position for position, id in enumerate(row.ids) if id == mask_id]
        probs = head_output(model, x[positions]).softmax(dim=1)
        finite(probs.sum(dim=1))
        chosen = torch.arange(probs.size(1)) if ids is None else torch.tensor(ids)
        best = probs[:, chosen].topk(min(count, len(chosen)), dim=1)
        results = [
            [
                filled(served, row, position, int(chosen[index]), value, len(positions) == 1)
                for index, value in zip(indices, values, strict=True)
            ]
            for position, indices, values in zip(
                positions, best.indices, best.values.numpy(), strict=True
            )
        ]
        return results[0] if len(results) == 1 else results

    return await run_encoder(served, inputs, tokens)


def filled(
    served: ServedModel, row: Input, position: int, id: int, score: object, single: bool
) -> JsonObject:
    """A token at a mask, and the text with it. single: whether it is the only mask of the text."""
    ids = [*row.ids[:position], id, *row.ids[position + 1 :]]
    return {
        "score": float(str(score)),
        "token": id,
        "token_str": served.tokenizer.decode([id]),
        "sequence": served.tokenizer.decode(ids, skip_special_tokens=single),
    }


# Shared by the routes


def finish_fields(fields: Fields) -> None:
    """Reject unknown fields. Long texts are truncated on the right."""
    fields.reject("truncation_direction", harmless=("Right", "right"))
    fields.finish(known_fields.EMBEDDING)


def input_name(number: int, count: int) -> str:
    """An input's location in a request."""
    return "inputs" if count == 1 else f"inputs[{number}]"


def check_lengths(served: ServedModel, inputs: Sequence[Input], truncate: bool) -> None:
    """RequestError: an input has no tokens, or was truncated without `truncate`."""
    for number, row in enumerate(inputs):
        name = input_name(number, len(inputs))
        if not row.ids:
            raise invalid(f"{name} has no tokens", name)
        if row.removed and not truncate:
            raise RequestError(
                400,
                f"{name} has {len(row.ids) + row.removed:,} tokens, but {served.name} reads at most"
                f" {len(row.ids):,}: shorten it, or set truncate",
                "context_length_exceeded",
                name,
            )
