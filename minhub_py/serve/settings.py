"""Fields of requests that the APIs share: sampling, stop strings, limits of tokens, and variables
of the template.

forms.py reads the form of a reply.
"""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from reprlib import repr as brief
from typing import Annotated

from minhub_py.checkpoints.tokenizers.paired import target_tokenizer
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.inference.beams import BeamSearch
from minhub_py.inference.grammar import AnyGrammar
from minhub_py.inference.limits import (
    MAX_BEAMS,
    MAX_NGRAM,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    check_beams,
    check_sampling,
    stop_strings,
)
from minhub_py.inference.sampling import Sampling
from minhub_py.inference.token_limits import TokenLimits
from minhub_py.serve.engine import StopRules
from minhub_py.serve.known_fields import FIXED, SAMPLING, reject_unsupported
from minhub_py.serve.models import ServedModel
from minhub_py.serve.validation import Fields, invalid, shaped
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.shapes import Within

MAX_VARIABLES_LENGTH = 100_000  # characters of chat_template_kwargs


def parse_settings(
    fields: Fields,
    served: ServedModel,
    *,
    chat: bool = True,
    defaults: Mapping[str, object] | None = None,
    penalty: str = "repetition_penalty",
) -> JsonObject:
    """Settings of `engine.Request`.

    chat: add the stop strings and the end tokens of the chat template.
    defaults: sampling settings for missing fields; by default the model's.
    penalty: the API's name of the repetition penalty.
    """
    size = served.model.output_size
    sampling = parse_sampling(fields, defaults or served.sampling, size, penalty)
    ends: frozenset[int] = frozenset()
    stops: tuple[str, ...] = ()
    if not fields.boolean("ignore_eos"):
        ends = served.end_ids | (served.template.end_ids if chat else frozenset())
        stops = served.template.stops if chat else ()
    stop_ids = frozenset(parse_ids(fields, "stop_token_ids", size) or ())
    limits = parse_limits(fields, served)
    settings = {
        "sampling": sampling,
        "seed": parse_seed(fields),
        "limits": limits,
        "stop_rules": parse_stop_rules(fields, stops, stop_ids, limits.minimum),
        "stop_ids": ends | stop_ids,
    }
    reject_unsupported(fields, SAMPLING, FIXED)
    return settings


def parse_search_or_sampling(
    fields: Fields,
    served: ServedModel,
    count: int,
    stream: bool,
    *,
    chat: bool = True,
    defaults: Mapping[str, object] | None = None,
) -> JsonObject:
    """As `parse_settings`, with a beam search's settings. count: number of choices."""
    search = parse_search(fields, served, count, stream)
    settings = parse_settings(fields, served, chat=chat, defaults=defaults)
    if search is None:
        return settings
    without_effect: dict[str, tuple[object, ...]] = {
        "temperature": (0, 1),
        "top_k": (0, -1),
        "top_p": (1,),
        "min_p": (0,),
    }
    for name, harmless in without_effect.items():
        if fields.get(name) not in (None, *harmless):
            raise invalid(f"{name} has no effect on beam search: remove it, or beams", name)
    if (logprobs := fields.get("logprobs")) is not None and logprobs is not False:
        raise invalid("logprobs are not available with beam search: remove it", "logprobs")
    neutral = {name: getattr(Sampling(), name) for name in without_effect}
    return settings | {"search": search, "sampling": replace(settings["sampling"], **neutral)}


def parse_search(
    fields: Fields, served: ServedModel, count: int, stream: bool
) -> BeamSearch | None:
    """A beam search's settings. As in vLLM, `use_beam_search` searches with `n` beams."""
    beams = fields.integer("beams", 1, MAX_BEAMS)
    if fields.boolean("use_beam_search"):
        beams = beams or count
    values = {
        "length_penalty": fields.number("length_penalty"),
        "early_stopping": fields.get("early_stopping"),
        "no_repeat_ngram_size": fields.integer("no_repeat_ngram_size", 0, MAX_NGRAM),
    }
    changed = {name: value for name, value in values.items() if value is not None}
    if beams is None:
        for name, value in changed.items():
            if value != vars(BeamSearch())[name]:
                raise invalid(f"{name} is a setting of beam search: set beams too", name)
        return None
    for name, value in changed.items():
        try:
            check_beams(name, value)
        except ValueError as error:
            raise invalid(str(error), name) from error
    if stream:
        raise invalid(
            "stream is not supported with beam search, which has no text before its end: remove"
            " stream or beams",
            "stream",
            "unsupported",
        )
    if beams > served.engine.batch_size:
        raise invalid(
            f"this server can search with at most {served.engine.batch_size} beams", "beams"
        )
    if count > beams:
        raise invalid(f"n must be at most the number of beams, {beams}", "n")
    return BeamSearch(beams, **changed)


def limited(settings: JsonObject, grammar: AnyGrammar | None, max_new_tokens: int) -> JsonObject:
    """Settings of `engine.Request` with a grammar and the limits of tokens. RequestError: they are
    contradictory.
    """
    if grammar is not None and settings.get("search") is not None:
        raise invalid(
            "beam search cannot be combined with required tools or a form of the reply: remove them"
            " or beams",
            "beams",
        )
    settings = dict(settings)
    limits = replace(settings.pop("limits"), ends=settings["stop_ids"], grammar=grammar)
    if limits.minimum > max_new_tokens:
        raise invalid(
            f"min_tokens is {limits.minimum}, but the reply has at most {max_new_tokens} tokens:"
            " reduce min_tokens",
            "min_tokens",
        )
    return settings | {"grammar": limits if limits.restrict else grammar}


def parse_sampling(
    fields: Fields,
    defaults: JsonMapping,
    vocab_size: int,
    penalty: str = "repetition_penalty",
) -> Sampling:
    """Sampling settings with `defaults` for missing ones. `penalty` is the API's name of the
    repetition penalty.
    """
    settings = dict(defaults)
    top_k = fields.integer("top_k", -1, 2**31)
    if top_k is not None:
        settings["top_k"] = top_k if top_k > 0 else None
    top_p = fields.number("top_p")
    if top_p is not None:
        settings["top_p"] = top_p or 1e-9  # 0: only the most likely token
    names = {**{name: name for name in Sampling.names()}, "repetition_penalty": penalty}
    settings["logit_bias"] = parse_bias(fields) or settings["logit_bias"]
    for name in (
        "temperature",
        "repetition_penalty",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
    ):
        if (value := fields.number(names[name])) is not None:
            settings[name] = value
    settings["repetition_penalty"] = parse_other_penalty(
        fields, penalty, settings["repetition_penalty"]
    )
    # 0 disables it in some clients
    settings["repetition_penalty"] = settings["repetition_penalty"] or 1.0
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


def parse_other_penalty(fields: Fields, name: str, value: float) -> float:
    """The repetition penalty, also with the name of another API. name, value: of this one.

    It applies to the whole text.
    """
    if fields.get(name) is None:
        synonym = "repeat_penalty" if name == "repetition_penalty" else "repetition_penalty"
        value = fields.number(synonym) or value
    details = ("repeat_last_n", "penalize_nl", "penalize_newline")
    if value == 1:
        fields.read.update(details)
    else:
        fields.reject(*details, harmless=(-1, True), empty=False)
    return value


def parse_ids(fields: Fields, name: str, size: int) -> list[int] | None:
    """Token IDs of a vocabulary of this size; None if the field is missing."""
    return fields.get(name, list[Annotated[int, Within(0, size - 1)]])


def parse_limits(fields: Fields, served: ServedModel) -> TokenLimits:
    """Allowed and banned tokens, and the minimum number of tokens."""
    size = served.model.output_size
    allowed = parse_ids(fields, "allowed_token_ids", size)
    banned: list[tuple[int, ...]] = [(id,) for id in parse_ids(fields, "banned_tokens", size) or ()]
    for word in fields.strings("bad_words", MAX_STOPS):
        if len(word) > MAX_STOP_LENGTH:
            raise invalid(
                f"bad_words has a string of more than {MAX_STOP_LENGTH:,} characters", "bad_words"
            )
        # Within a text, a word is a continuation of another one, or begins with a space.
        banned += [
            tuple(encode(target_tokenizer(served.tokenizer), text, add_special_tokens=False))
            for text in (word, f" {word}")
        ]
    minimum = fields.integer("min_tokens", 0, 2**31) or 0
    limits = TokenLimits(
        size,
        None if allowed is None else frozenset(allowed),
        tuple(dict.fromkeys(filter(None, banned))),
        minimum,
    )
    if allowed is not None and not limits.mask.any():
        raise invalid(
            "allowed_token_ids has no token that is not banned: add one", "allowed_token_ids"
        )
    return limits


def parse_stop_rules(
    fields: Fields, further: tuple[str, ...], silent_ids: frozenset[int], minimum: int
) -> StopRules:
    """The stop strings, and whether the reply contains them.

    further: stop strings of the chat template.    silent_ids: end tokens of the request.
    minimum: `min_tokens`.
    """
    stops, include = parse_stops(fields), fields.boolean("include_stop_str_in_output")
    return StopRules(
        (*stops, *further),
        stops if include else (),
        minimum,
        frozenset() if include else silent_ids,
    )


def parse_bias(fields: Fields) -> dict[int, float]:
    """The logit_bias by token ID. As in the OpenAI API, IDs are a JSON object's keys."""
    biases = fields.object("logit_bias")
    if unreadable := [key for key in biases.values if not re.fullmatch("[0-9]{1,9}", key)]:
        raise invalid(
            f"logit_bias must map token IDs to numbers, but has the key {brief(unreadable[0])}",
            "logit_bias",
        )
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


def parse_variables(fields: Fields) -> dict[str, object]:
    """Further variables of the chat template, such as enable_thinking."""
    name = "chat_template_kwargs"
    variables = dict(fields.object(name).values)
    check_variables(variables, name)
    for reserved in (
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "self",
    ):
        if reserved in variables:
            raise invalid(f"{name} must not contain {reserved}: remove it", name)
    return variables


def check_variables(variables: object, name: str) -> None:
    """Reject values that are too large for a chat template."""
    text = shaped(json.dumps(variables, ensure_ascii=False), str, name)
    if len(text) > MAX_VARIABLES_LENGTH:
        raise invalid(
            f"{name} has {len(text):,} characters: at most {MAX_VARIABLES_LENGTH:,}", name
        )


def parse_stream(fields: Fields) -> tuple[bool, bool]:
    """Whether to stream, and whether to send the usage in a separate chunk."""
    options = fields.object("stream_options")
    usage_chunk = options.boolean("include_usage")
    options.finish(("include_obfuscation",))
    return fields.boolean("stream"), usage_chunk


def parse_max_tokens(fields: Fields, *names: str) -> int | None:
    """The first of several fields for the maximum number of new tokens. llama.cpp's n_predict can
    be -1: no maximum.
    """
    values = [fields.integer(name, 1, 2**31) for name in names]
    unlimited = fields.get("n_predict") == -1
    limit = None if unlimited else fields.integer("n_predict", 1, 2**31)
    return next((value for value in (*values, limit) if value is not None), None)


def parse_truncation(fields: Fields) -> int | None:
    """The number of tokens at the end of the prompt that are used: 0 as many as fit; None rejects
    longer prompts.
    """
    count = fields.integer("truncate_prompt_tokens", -1, 2**31)
    if count == 0:
        raise invalid(
            "truncate_prompt_tokens must be at least 1, or -1 for the length of the context",
            "truncate_prompt_tokens",
        )
    return 0 if count == -1 else count


def parse_schema(fields: Fields, name: str) -> JsonObject | None:
    """A response format's schema, in `schema` or nested in `json_schema`; by default, of any
    object.
    """
    form = fields.object(name)
    kind = form.string("type")
    if kind in (None, "text"):
        return None
    if kind not in ("json_object", "json_schema"):
        raise invalid(
            f"{name}.type must be text, json_object or json_schema, not {kind!r}",
            name,
            "unsupported",
        )
    nested = kind == "json_schema" and form.get("json_schema") is not None
    schema = (form.object("json_schema") if nested else form).get("schema", JsonObject)
    if schema is None and kind == "json_schema":
        raise invalid(f"{name} has no schema: add it as json_schema.schema", name)
    return schema or {"type": "object"}
