"""Fields of requests that the APIs share: sampling, stop strings, response formats and variables of the template."""

import json
import random
import re
from collections.abc import Mapping
from reprlib import repr as brief
from typing import Any

from minhub_py.inference.limits import MAX_STOPS, check_sampling, stop_strings
from minhub_py.inference.sampling import Sampling
from minhub_py.serve.models import ServedModel
from minhub_py.serve.validation import Fields, invalid

MAX_VARIABLES_LENGTH = 100_000  # characters of chat_template_kwargs


def parse_settings(
    fields: Fields, served: ServedModel, *, chat: bool = True, defaults: Mapping[str, Any] | None = None,
    penalty: str = "repetition_penalty",
) -> dict[str, Any]:  # fmt: skip
    """Settings of `engine.Request`.

    chat: add the stop strings and the end tokens of the chat template.
    defaults: sampling settings for missing fields; by default the model's.
    penalty: the API's name of the repetition penalty.
    """
    fields.reject("grammar", "json_schema", "structured_outputs", "guided_json")  # response formats of other servers
    sampling = parse_sampling(fields, defaults or served.sampling, served.model.config.vocab_size, penalty)
    ends = frozenset() if fields.boolean("ignore_eos") else served.end_ids
    return {
        "sampling": sampling, "seed": parse_seed(fields),
        "stops": parse_stops(fields) + (served.template.stops if chat else ()),
        "stop_ids": ends | (served.template.end_ids if chat else frozenset()),
    }  # fmt: skip


def parse_sampling(
    fields: Fields, defaults: Mapping[str, Any], vocab_size: int, penalty: str = "repetition_penalty"
) -> Sampling:
    """Sampling settings with `defaults` for missing ones. `penalty` is the API's name of the repetition penalty."""
    fields.reject("mirostat")
    fields.reject("typical_p", "tfs_z", harmless=(1,))
    settings = dict(defaults)
    top_k = fields.integer("top_k", -1, 2**31)
    if top_k is not None:
        settings["top_k"] = top_k if top_k > 0 else None
    top_p = fields.number("top_p")
    if top_p is not None:
        settings["top_p"] = top_p or 1e-9  # 0: only the most likely token
    names = {**{name: name for name in Sampling.names()}, "repetition_penalty": penalty}
    settings["logit_bias"] = parse_bias(fields) or settings["logit_bias"]
    for name in ("temperature", "repetition_penalty", "min_p", "presence_penalty", "frequency_penalty"):
        if (value := fields.number(names[name])) is not None:
            settings[name] = value
    settings["repetition_penalty"] = settings["repetition_penalty"] or 1.0  # 0 disables it in some clients
    for name, value in settings.items():
        try:
            check_sampling(name, value)
        except ValueError as error:
            raise invalid(str(error).replace(name, names[name]), names[name]) from error
    sampling = Sampling(**settings)
    try:
        sampling.check_vocabulary(vocab_size)
    except ValueError as error:
        raise invalid(str(error), "logit_bias") from error
    return sampling


def parse_bias(fields: Fields) -> dict[int, float]:
    """The logit_bias by token ID. As in the OpenAI API, IDs are the keys of a JSON object."""
    biases = fields.object("logit_bias")
    if unreadable := [key for key in biases.values if not re.fullmatch("[0-9]{1,9}", key)]:
        raise invalid(f"logit_bias must map token IDs to numbers, but has the key {brief(unreadable[0])}", "logit_bias")
    return {int(key): value for key in biases.values if (value := biases.number(key)) is not None}


def parse_stops(fields: Fields) -> tuple[str, ...]:
    """Stop strings; empty ones are ignored."""
    try:
        return stop_strings(fields.strings("stop", MAX_STOPS))
    except ValueError as error:
        raise invalid(str(error), "stop") from error


def parse_seed(fields: Fields) -> int:
    """The seed; a random one if it is missing or, as in Ollama, -1."""
    seed = fields.integer("seed", -(2**63), 2**63 - 1)
    return random.getrandbits(62) if seed in (None, -1) else int(seed or 0)


def parse_variables(fields: Fields) -> dict[str, Any]:
    """Further variables of the chat template, such as enable_thinking."""
    name = "chat_template_kwargs"
    variables = dict(fields.object(name).values)
    try:
        size = len(json.dumps(variables))
    except RecursionError as error:
        raise invalid(f"{name} is nested too deeply", name) from error
    if size > MAX_VARIABLES_LENGTH:
        raise invalid(f"{name} has {size:,} characters: at most {MAX_VARIABLES_LENGTH:,}", name)
    for reserved in ("messages", "tools", "add_generation_prompt", "continue_final_message", "self"):
        if reserved in variables:
            raise invalid(f"{name} must not contain {reserved}: remove it", name)
    return variables


def parse_stream(fields: Fields) -> tuple[bool, bool]:
    """Whether to stream, and whether to send the usage in a separate chunk."""
    return fields.boolean("stream"), fields.object("stream_options").boolean("include_usage")


def parse_schema(fields: Fields, name: str) -> dict[str, Any] | None:
    """The schema of a response format, in `schema` or nested in `json_schema`; by default, of any object."""
    form = fields.object(name)
    kind = form.string("type")
    if kind in (None, "text"):
        return None
    if kind not in ("json_object", "json_schema"):
        raise invalid(f"{name}.type must be text, json_object or json_schema, not {kind!r}", name, "unsupported")
    nested = kind == "json_schema" and form.get("json_schema") is not None
    schema = (form.object("json_schema") if nested else form).get("schema")
    if schema is None and kind == "json_schema":
        raise invalid(f"{name} has no schema: add it as json_schema.schema", name)
    if not isinstance(schema, dict | None):
        raise invalid(f"{name}.schema must be a JSON schema, not {brief(schema)}", name)
    return schema or {"type": "object"}
