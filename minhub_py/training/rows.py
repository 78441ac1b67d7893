"""Rows of training data in the common forms, and their conversion to an objective's columns.

    messages                        OpenAI's and TRL's form of chats; also tools, and weight 0 for a reply as context
    prompt, completion              texts, or TRL's lists of messages
    prompt, chosen, rejected        preference pairs: texts, or lists of messages (the prompt may be in both lists)
    conversations                   ShareGPT: messages with `from` and `value`; also system, tools
    instruction, input, output      Alpaca: one question and its reply; also system, history
    text, label                     classification or regression
    state, question, answer         typed decisions
    anchor, positive                texts that are similar; with negative, a text that is not similar to the anchor
    text                            plain text

Sources: https://platform.openai.com/docs/guides/supervised-fine-tuning,
https://huggingface.co/docs/trl/dataset_formats, https://github.com/lm-sys/FastChat,
https://github.com/tatsu-lab/stanford_alpaca.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minhub_py.system.json_text import JsonMapping, JsonObject, parse

Row = JsonMapping
VARIABLES = ("tools", "chat_template_kwargs")  # columns that the chat template receives
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "function_call": "function_call",
    "tool_call": "function_call",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}


@dataclass(frozen=True)
class Form:
    """A form of rows.

    title: for messages.    convert: to a row with the columns of the objective.
    """

    objective: str
    required: tuple[str, ...]
    title: str
    convert: Callable[[Row], Row] | None = None


def parsed(value: object, name: str, kind: type) -> Any:
    """A list or an object, which tables contain as JSON text. ValueError: the value is something
    else.
    """
    if isinstance(value, str):
        try:
            value = parse(value)
        except ValueError as error:
            raise ValueError(f"{name} is not JSON ({error})") from error
    if not isinstance(value, kind):
        raise ValueError(
            f"{name} must be {'a list' if kind is list else 'an object'}, not"
            f" {type(value).__name__}"
        )
    return value


def without(row: Row, *names: str) -> JsonObject:
    """The row without some columns."""
    return {name: value for name, value in row.items() if name not in names}


def message_of(turn: Any) -> JsonObject:
    """A message of ShareGPT in the form of the OpenAI API. ValueError: it has another form, or an
    unknown role.
    """
    keys = set(turn) if isinstance(turn, Mapping) else set()
    if not ({"from", "value"} <= keys or {"role", "content"} <= keys):
        raise ValueError("a message of conversations needs from and value")
    if "from" not in turn:
        return dict(turn)
    role, text, unknown = (
        ROLES.get(str(turn["from"])),
        turn["value"],
        without(turn, "from", "value"),
    )
    if role is None:
        raise ValueError(f"from must be one of {', '.join(ROLES)}, not {turn['from']!r}")
    if role != "function_call":
        return {"role": role, "content": text, **unknown}
    calls = parse(text) if isinstance(text, str) else text
    functions = calls if isinstance(calls, list) else [calls]
    return {
        "role": "assistant",
        "content": "",
        **unknown,
        "tool_calls": [{"type": "function", "function": function} for function in functions],
    }


def from_sharegpt(row: Row) -> Row:
    """A row of ShareGPT as messages."""
    messages = [message_of(turn) for turn in parsed(row["conversations"], "conversations", list)]
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    return {"messages": [*system, *messages], **without(row, "conversations", "system")}


def from_alpaca(row: Row) -> Row:
    """A row of Alpaca as messages: the input follows the instruction after an empty line."""
    history = parsed(row.get("history") or [], "history", list)
    if row["instruction"] is None or row["output"] is None:
        raise ValueError("instruction or output is missing")
    turns = [
        *history,
        ["\n\n".join(filter(None, [row["instruction"], row.get("input")])), row["output"]],
    ]
    messages = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    for question, answer in turns:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    return {
        "messages": messages,
        **without(row, "instruction", "input", "output", "system", "history"),
    }


FORMS = (
    Form("chat", ("messages",), "messages (OpenAI, TRL)"),
    Form("preference", ("chosen", "rejected"), "prompt, chosen and rejected"),
    Form("completion", ("prompt", "completion"), "prompt and completion"),
    Form("chat", ("conversations",), "conversations (ShareGPT)", from_sharegpt),
    Form("labels", ("text", "label"), "text and label"),
    Form("decision", ("state", "question", "answer"), "state, question and answer"),
    Form("chat", ("instruction", "output"), "instruction, input and output (Alpaca)", from_alpaca),
    Form("triplets", ("anchor", "positive", "negative"), "anchor, positive and negative"),
    Form("pairs", ("anchor", "positive"), "anchor and positive"),
    Form("text", ("text",), "text"),
)


def form_of(columns: Sequence[str], source: Path, objective: str | None = None) -> Form:
    """The form of a file's rows, by its columns. objective: only its forms. ValueError: no form has
    these columns.
    """
    objective = "text" if objective == "masked" else objective
    forms = [form for form in FORMS if objective in (None, form.objective)]
    for form in forms:
        if set(form.required) <= set(columns):
            return form
    purpose = "training" if objective is None else f"the objective {objective}"
    content = f"the columns {', '.join(columns)}" if columns else "no rows"
    raise ValueError(
        f"{source} has {content}: {purpose} needs {'; '.join(form.title for form in forms)}"
    )
