"""Messages and tools in requests.

Clients send previous replies again, so that a broken call or an image in a result would make each
further request of a conversation fail. Such parts are accepted in a reduced form.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from minhub_py.chat.content import text_part
from minhub_py.chat.reply_form import ReplyForm, end_of_prompt
from minhub_py.chat.templates import REASONING_FIELDS
from minhub_py.chat.tools import schemas_of, strict_names
from minhub_py.inference.grammar import Pattern
from minhub_py.serve.generation import Generation
from minhub_py.serve.languages import GREEDY, Translation, encode_text, text_of_chat
from minhub_py.serve.models import ServedModel
from minhub_py.serve.settings import check_variables, limited, parse_truncation, parse_variables
from minhub_py.serve.validation import Fields, invalid, shaped
from minhub_py.system.json_text import JsonObject, encodable

MAX_TOOLS, MAX_TOOL_NAME = 1024, 256
OMITTED = "[{} omitted: the model reads text only]"
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class FunctionName(TypedDict, total=False):
    """A function of an allowed tool."""

    name: str


class NamedTool(FunctionName, total=False):
    """An allowed tool, in the forms of responses and of chat completions."""

    function: FunctionName


@dataclass
class ChatInput:
    """The conversation of a request and the form of its reply.

    tools: definitions that the prompt contains.
    allowed: names of the tools that the reply can call.
    choice: "none", "auto" or "required".
    parallel: whether the reply can have several calls.
    variables: variables of the chat template.
    schema: JSON schema or pattern of the reply's text.
    separate_reasoning: whether reasoning is separated from the text.
    truncation: result of `parse_truncation`.
    translation: of a translation model.
    """

    messages: list[JsonObject]
    tools: list[JsonObject] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    choice: Literal["none", "auto", "required"] = "none"
    parallel: bool = True
    variables: JsonObject = field(default_factory=dict)
    schema: Mapping[str, object] | Pattern | None = None
    separate_reasoning: bool = True
    truncation: int | None = None
    translation: Translation | None = None

    @property
    def schemas(self) -> dict[str, dict[str, object]]:
        """The schemas of the tools that the reply can call."""
        schemas = schemas_of(self.tools)
        return {name: schemas[name] for name in self.allowed}

    @property
    def defaults(self) -> JsonObject | None:
        """Sampling settings for missing fields; None for the model's."""
        return None if self.translation is None else GREEDY

    @property
    def strict(self) -> frozenset[str]:
        """The names of the strict tools that the reply can call."""
        return strict_names(self.tools) & set(self.allowed)


def parse_chat(fields: Fields, served: ServedModel) -> ChatInput:
    """The conversation of a request of the OpenAI API, without its tool choice."""
    chat = ChatInput(
        parse_messages(fields.get("messages"), served.engine.max_length),
        parse_tools(fields.get("tools")),
    )
    chat.variables = parse_variables(fields) | parse_prompt_variables(fields, served)
    chat.truncation = parse_truncation(fields)
    fields.reject("add_special_tokens")  # they are the chat template's
    set_effort(chat, served, fields.get("reasoning_effort"))
    return chat


def parse_prompt_variables(fields: Fields, served: ServedModel) -> dict[str, object]:
    """The variables of the chat template that have their own fields."""
    generation, continued = (
        fields.boolean("add_generation_prompt", True),
        fields.boolean("continue_final_message"),
    )
    if continued and fields.get("add_generation_prompt") is True:
        raise invalid(
            "add_generation_prompt and continue_final_message contradict each other: remove one",
            "add_generation_prompt",
        )
    variables: dict[str, object] = {
        "add_generation_prompt": generation,
        "continue_final_message": continued,
    }
    documents = fields.get("documents", list[JsonObject])
    if not documents:
        return variables
    if not any("documents" in text for text in served.template.templates.values()):
        raise invalid(
            "the model's chat template does not use documents: add them to a message", "documents"
        )
    check_variables(documents, "documents")
    return variables | {"documents": documents}


async def encode_input(
    served: ServedModel, chat: ChatInput, max_tokens: int | None = None
) -> list[int]:
    """The token IDs of the prompt. max_tokens: requested length of the reply."""
    if chat.translation is not None:
        return await encode_text(served, chat.translation, text_of_chat(chat.messages))
    variables = chat.variables | ({"tools": chat.tools} if chat.tools else {})
    return await served.encode_chat(chat.messages, variables, chat.truncation, max_tokens)


async def start_reply(
    served: ServedModel,
    chat: ChatInput,
    max_tokens: int | None,
    settings: JsonObject,
    count: int = 1,
    name: str = "response_format",
) -> tuple[Generation, list[int]]:
    """A generation of `count` replies, which has not started, and its prompt.

    settings: result of `parse_settings`.    name: the field of the schema.
    """
    ids = await encode_input(served, chat, max_tokens)
    settings = settings | ({} if chat.translation is None else chat.translation.settings)
    max_new_tokens = served.max_new_tokens(ids, max_tokens, "messages")
    form = ReplyForm(
        served.template.markup,
        end_of_prompt(served.tokenizer, ids),
        chat.schemas,
        chat.choice == "required",
        chat.parallel,
        chat.schema,
        chat.separate_reasoning,
        chat.strict,
    )
    grammar = await served.reply_grammar(form, max_new_tokens, name)
    settings = limited(
        settings | {"stop_ids": settings["stop_ids"] | form.end_ids}, grammar, max_new_tokens
    )
    context = [] if served.model.encoder_decoder else ids
    new_parser = (lambda: form.parser(context)) if form.has_markup else None
    generation = Generation(served)
    generation.warnings = [] if grammar is None else grammar.warnings
    generation.add_choices(ids, max_new_tokens, count, new_parser=new_parser, **settings)
    return generation, ids


def parse_messages(
    values: object, max_length: int, name: str = "messages"
) -> list[dict[str, object]]:
    """Messages with a role and a content string, calls and results.

    max_length: maximum number of messages, and of parts of each, because each has at least one
    token.
    """
    if not isinstance(values, list) or not values:
        raise invalid(f"{name} must be a list of at least one message", name)
    check_count(values, max_length, name)
    messages = []
    for index, value in enumerate(values):
        path = f"{name}[{index}]"
        fields = Fields(value, path)
        role = fields.string("role")
        if role not in ROLES:
            allowed = "system, developer, user, assistant or tool"
            raise invalid(f"{path}.role must be {allowed}, not {role!r}", f"{path}.role")
        is_result = role in ("tool", "function")
        if not is_result:
            fields.reject("images")
        content = parse_content(
            fields.get("content"), max_length, f"{path}.content", omit=is_result
        )
        message: dict[str, object] = {
            "role": "system" if role == "developer" else role,
            "content": content,
        }
        if is_result:
            message |= {
                "role": "tool",
                "tool_call_id": fields.string("tool_call_id"),
                "name": fields.string("name") or fields.string("tool_name"),
            }
        elif role == "assistant":
            calls = parse_calls(fields, max_length)
            reasoning = next(
                (
                    text
                    for key in REASONING_FIELDS
                    if isinstance(text := fields.get(key), str) and text
                ),
                "",
            )
            message |= {"tool_calls": calls} if calls else {}
            message |= (
                {"reasoning_content": shaped(reasoning, str, f"{path}.reasoning_content")}
                if reasoning
                else {}
            )
        messages.append({key: value for key, value in message.items() if value is not None})
    return messages


def parse_calls(message: Fields, max_length: int) -> list[dict[str, object]]:
    """An assistant message's calls. Calls without a name are dropped."""
    values = message.get("tool_calls")
    values = values if isinstance(values, list) else []
    check_count(values, max_length, f"{message.path}.tool_calls")
    if isinstance(legacy := message.get("function_call"), Mapping):
        values = [*values, {"function": legacy}]
    calls = []
    for value in values:
        function = value.get("function") if isinstance(value, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            calls.append(make_call(value.get("id"), function["name"], function.get("arguments")))
    return calls


def make_call(id: object, name: str, arguments: object) -> dict[str, object]:
    """A call of a message, without lone surrogates, which UTF-8 cannot encode."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    function = {"name": encodable(name), "arguments": encodable(text)}
    return {
        "id": encodable(id) if isinstance(id, str) else None,
        "type": "function",
        "function": function,
    }


def check_count(values: Sequence[object], max_length: int, name: str) -> None:
    """Reject lists with more elements than the context has tokens."""
    if len(values) > max_length:
        raise invalid(
            f"{name} has {len(values):,} elements, but the context has {max_length:,} tokens:"
            " shorten it",
            name,
            "context_length_exceeded",
        )


def parse_content(
    value: object, max_length: int, name: str, *, omit: bool = False
) -> str | list[dict[str, str]]:
    """A message's content, a string or a list of text parts. omit: as a string, with notes for
    other parts.
    """
    if value is None:
        return ""
    if not isinstance(value, list):
        return encodable(value) if omit and isinstance(value, str) else shaped(value, str, name)
    check_count(value, max_length, name)
    texts = []
    for index, part in enumerate(value):
        fields = Fields({"text": part} if isinstance(part, str) else part, f"{name}[{index}]")
        kind = fields.get("type")
        if kind in (None, "text", "input_text", "output_text"):
            texts.append(fields.string("text") or "")
        elif kind == "refusal":
            texts.append(fields.string("refusal") or "")
        elif omit:
            texts.append(OMITTED.format("image" if "image" in str(kind) else "content"))
        else:
            raise invalid(f"{name}[{index}] has type {kind!r}: only text is supported", name)
    return "\n".join(texts) if omit or not any(texts) else [text_part(text) for text in texts]


# Tools


def parse_tools(value: object, name: str = "tools") -> list[JsonObject]:
    """Definitions of functions, also in the flat form of responses. Tools that run in the server
    are skipped.
    """
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise invalid(f"{name} must be a list of at most {MAX_TOOLS} tools", name)
    tools: dict[str, dict[str, object]] = {}
    for index, item in enumerate(value):
        fields = Fields(item, f"{name}[{index}]")
        kind = fields.string("type") or "function"
        if kind == "custom" and fields.get("custom") is not None:
            raise invalid(f"{name}[{index}] has type custom: use a function", name, "unsupported")
        if kind not in ("function", "custom"):
            continue
        function = fields.object("function") if fields.get("function") is not None else fields
        schema = function.get("input_schema") or function.get("parameters")
        add_tool(tools, function, schema, f"{name}[{index}]")
    return list(tools.values())


def add_tool(
    tools: dict[str, dict[str, object]], function: Fields, schema: object, path: str
) -> None:
    """Add a tool's definition."""
    name = function.string("name")
    if not name or len(name) > MAX_TOOL_NAME or not name.isprintable():
        raise invalid(f"{path} needs a name of 1 to {MAX_TOOL_NAME} printable characters", path)
    if name in tools:
        raise invalid(f"{path} has the same name as another tool, {name!r}: rename it", path)
    description = function.get("description")
    tools[name] = {
        "type": "function",
        "function": {
            "name": name,
            "description": encodable(description) if isinstance(description, str) else "",
            "parameters": encodable(schema) if isinstance(schema, Mapping) else None,
            **({"strict": True} if function.get("strict") is True else {}),
        },
    }


def choose_tools(
    chat: ChatInput, value: object, parallel: bool = True, name: str = "tool_choice"
) -> None:
    """Apply the tool choice of the OpenAI APIs to a request's tools."""
    names = [tool["function"]["name"] for tool in chat.tools]
    chat.allowed, chat.parallel = names, parallel
    chat.choice = "auto" if names else "none"
    if value is None:
        return
    if isinstance(value, str):
        if value not in ("none", "auto", "required", "any"):
            raise invalid(f"{name} must be none, auto, required or an object, not {value!r}", name)
        chat.choice = "required" if value == "any" else value  # type: ignore[assignment]
    else:
        fields = Fields(value, name)
        kind = fields.string("type")
        nested = (
            fields.object("allowed_tools") if fields.get("allowed_tools") is not None else fields
        )
        if kind == "allowed_tools":
            chat.choice = "required" if nested.string("mode") == "required" else "auto"
            allowed = [
                item.get("name") or (item.get("function") or {}).get("name")
                for item in nested.get("tools", list[NamedTool]) or ()
            ]
        elif kind in ("function", "tool"):
            chat.choice, chat.parallel = "required", False
            allowed = [
                (
                    fields.object("function") if fields.get("function") is not None else fields
                ).string("name")
            ]
        else:
            raise invalid(
                f"{name}.type must be function or allowed_tools, not {kind!r}", name, "unsupported"
            )
        if unknown := [item for item in allowed if item not in names]:
            raise invalid(
                f"{name} has the tool {unknown[0]!r}, which is not in tools: add it", name
            )
        chat.allowed = [item for item in names if item in allowed]
    if chat.choice == "required" and not chat.allowed:
        raise invalid(f"{name} requires a call, but there are no tools: add tools", name)
    if chat.choice == "none":
        chat.tools, chat.allowed = [], []


def set_effort(
    chat: ChatInput, served: ServedModel, effort: object, name: str = "reasoning_effort"
) -> None:
    """Apply an effort of reasoning: a level, or "none" to switch reasoning off."""
    if effort is None:
        return
    if isinstance(effort, bool):
        set_thinking(chat, served, effort)
        return
    effort = shaped(effort, str, name)
    if effort in ("none", "off", "disabled"):
        set_thinking(chat, served, False)
        return
    chat.variables.setdefault("reasoning_effort", effort)
    set_thinking(chat, served, True)


def set_thinking(chat: ChatInput, served: ServedModel, enabled: bool) -> None:
    """Switch reasoning on or off, if the template has a variable for it."""
    if switch := served.template.markup.switch:
        chat.variables.setdefault(switch, enabled)
