"""Chat templates: render messages as the prompt of a chat model.

checkpoints/chat_templates.py lists the sources of a template.

Without a template, DialoGPT models (config.json has task_specific_params.conversational) separate turns by the
end-of-text token. All other models continue a plain dialogue, `User: …` and `Assistant: …`.

Templates are untrusted code; sandbox.py limits them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Literal

from minhub_py.chat.markers import MarkerAlphabet
from minhub_py.chat.sandbox import SANDBOX
from minhub_py.chat.tool_format import Markup, detect, generic_format
from minhub_py.chat.tools import prepare, uses_tools
from minhub_py.checkpoints.chat_templates import folder_templates, gguf_templates
from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.checkpoints.storage import Checkpoint, read_settings
from minhub_py.checkpoints.tokenizers.gguf_tokenizer import tokenizer_settings
from minhub_py.checkpoints.tokenizers.special_tokens import content
from minhub_py.checkpoints.tokenizers.tokenizer import FILES, encode
from minhub_py.system.printable import printable

Message = Mapping[str, Any]
# Field names of a message's reasoning. Most templates read the first, gpt-oss's reads the second.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
MAX_TEMPLATE_LENGTH = 2**20  # characters; the longest published template has 40,000


class TemplateRejectionError(ValueError):
    """A chat template rejects the messages by raise_exception()."""


@dataclass(frozen=True)
class ChatTemplate:
    """The conversation format of a model.

    Attributes:
        kind: "template" (the repository's template), "dialogue" (DialoGPT's format) or "plain" (no template).
        tokenizer: The model's tokenizer.
        tokens: Special tokens by their names in templates, such as bos_token.
        templates: Template sources by name.
        origin: Description of the template's file for error messages.
    """

    kind: Literal["template", "dialogue", "plain"]
    tokenizer: Any
    tokens: Mapping[str, str]
    templates: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""

    @property
    def note(self) -> str | None:
        """A note for users if the model has no template."""
        return {
            "template": None,
            "dialogue": "no chat template: the end-of-text token separates turns, as in DialoGPT",
            "plain": 'no chat template, so it is not a chat model: it continues a dialogue of "User:" and "Assistant:"',
        }[self.kind]

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a reply, in addition to end tokens."""
        return ("\nUser:",) if self.kind == "plain" else ()

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, continue_final_message: bool = False,
        **variables: Any,
    ) -> str:  # fmt: skip
        """Render a conversation as text.

        Args:
            messages: Messages `{"role": …, "content": …}`. The content is a string or a list of text parts,
                `{"type": "text", "text": …}`, which are joined by line ends.
            add_generation_prompt: Append the beginning of the assistant's reply.
            continue_final_message: The last message is an unfinished reply; append its text to its prompt, so that the
                model continues it.
            variables: Further variables of the template, such as enable_thinking. `tools` are definitions of tools as
                in the OpenAI API (chat/tools.py).

        Raises:
            ValueError: Messages or variables are invalid, or the template fails or exceeds its time or memory limit.
            TemplateRejectionError: The template rejects the messages.
        """
        plain = [normalized(message) for message in check_messages(messages)]
        if continue_final_message:
            *previous, reply = plain
            if reply["role"] != "assistant" or not previous or reply.keys() - {"role", "content"}:
                raise ValueError(
                    "continue_final_message requires an assistant message with text content at the end, after a user "
                    "message: append the unfinished reply to messages"
                )
            return self.render(previous, **variables) + reply.get("content", "")
        tools = variables.pop("tools", None) or ()  # some clients send an empty list
        if tools or uses_tools(plain):
            plain, tools = prepare(plain, to_plain_json({"tools": list(tools)}, "tools")["tools"], self.markup)
        return self.render_messages(plain, tools=tools, add_generation_prompt=add_generation_prompt, **variables)

    def render_messages(
        self, plain: list[dict[str, Any]], *, tools: Sequence[Message] = (), add_generation_prompt: bool = True,
        marks: list[str] | None = None, **variables: Any,
    ) -> str:  # fmt: skip
        """Render messages as they are. For arguments and errors see `render`.

        marks: texts around the content of {% generation %}.
        """
        if self.kind == "dialogue":
            return self._dialogue(plain)
        if self.kind == "plain":
            return plain_dialogue(plain, add_generation_prompt)
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        context = {**self.tokens, **variables, "tools": tools or None, "documents": variables.get("documents"),
                   "add_generation_prompt": add_generation_prompt}  # fmt: skip
        context = to_plain_json(context, "variables of a chat template")
        result = SANDBOX.render(self.templates[name], plain, context, marks)
        if "rejected" in result:
            raise TemplateRejectionError(f"the chat template rejects the messages: {printable(result['rejected'])}")
        if "error" in result:
            raise ValueError(f"{self.origin} failed: {printable(result['error'])}")
        return result["text"]

    def encode(self, messages: Sequence[Message], **settings: Any) -> list[int]:
        """Render and tokenize a conversation. For arguments and errors see `render`."""
        return self.tokenize(self.render(messages, **settings))

    def tokenize(self, text: str, *, release_gil: bool = False) -> list[int]:
        """Tokenize a rendered conversation, with exactly one BOS token if the tokenizer uses one.

        Templates write the BOS token, leave it to the tokenizer, or do both.
        """
        ids = encode(self.tokenizer, text, add_special_tokens=False, release_gil=release_gil)
        if self._bos is None:
            return ids
        while ids[:1] == [self._bos]:
            ids = ids[1:]
        return [self._bos, *ids]

    @cached_property
    def _bos(self) -> int | None:
        """The token that the tokenizer prepends, unless it differs from the template's bos_token."""
        special = encode(self.tokenizer, "")
        if special and self.kind != "dialogue":
            token = self.tokens.get("bos_token")
            if token is None or special[0] == self.tokenizer.token_to_id(token):
                return special[0]
        return None

    @cached_property
    def markup(self) -> Markup:
        """The formats of tool calls and reasoning in replies."""
        if self.kind == "template":
            return detect(self.render_messages, self.tokenizer, "\n".join(self.templates.values()))
        alphabet = MarkerAlphabet(self.tokenizer)
        return Markup(alphabet, generic_format(alphabet), merged_system=self.kind == "dialogue")

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Token IDs that end a reply: the first special token that the template writes after a reply."""
        if self.kind != "template":
            eos = self.tokenizer.token_to_id(self.tokens.get("eos_token", ""))
            return frozenset(() if eos is None else (eos,))
        question, reply = {"role": "user", "content": "one"}, {"role": "assistant", "content": "QZQ"}
        try:
            text = self.render_messages([question, reply], add_generation_prompt=False)
        except ValueError:  # the template rejects this conversation: only the model's end tokens apply
            return frozenset()
        _, separator, suffix = text.rpartition("QZQ")
        ids = encode(self.tokenizer, suffix, add_special_tokens=False) if separator else []
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset([id for id in ids if id in added and added[id].special][:1])

    def _dialogue(self, messages: list[dict[str, Any]]) -> str:
        eos = self.tokens.get("eos_token")
        if eos is None:
            raise ValueError("the tokenizer has no end-of-text token, which separates the turns of this model")
        for message in messages:
            if message["role"] not in ("user", "assistant"):
                raise TemplateRejectionError(
                    f"the model does not support {message['role']} messages: use user and assistant messages only"
                )
        return "".join(message.get("content", "") + eos for message in messages)


def plain_dialogue(messages: Sequence[Message], add_generation_prompt: bool) -> str:
    """A dialogue for a model without a chat format. The system prompt precedes it."""
    names = {"user": "User: ", "assistant": "Assistant: "}
    turns = [names.get(message["role"], "") + message.get("content", "").strip() for message in messages]
    return "\n".join([*turns, "Assistant:"] if add_generation_prompt else turns)


def check_messages(messages: Any) -> Sequence[Message]:
    """The messages. ValueError: they are not a list of messages."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(f"messages must be a list of {{'role': …, 'content': …}}, not {brief(messages)}")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f"a message must be {{'role': …, 'content': …}}, not {brief(message)}")
    return messages


def normalized(message: Message) -> dict[str, Any]:
    """A message with its content as one string and without null fields. ValueError: it is not JSON or not text."""
    fields = {name: value for name, value in message.items() if value is not None}
    if not fields.get("tool_calls"):  # templates fail on an empty list
        fields.pop("tool_calls", None)
    if "content" in fields:
        fields["content"] = text_of(fields["content"])
    reasoning = next((fields[name] for name in REASONING_FIELDS if name in fields), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    return to_plain_json(fields, "a message")


def to_plain_json(fields: dict[str, Any], title: str) -> dict[str, Any]:
    """A copy that consists of JSON types. ValueError: a value has another type."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(fields))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{title} must be plain JSON: {error}") from error
    return plain


def text_of(content: Any) -> str:
    """The text of a message's content. ValueError: it contains something else."""
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, list | tuple):
        raise ValueError(f"the content of a message must be a string or a list of parts, not {brief(content)}")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise ValueError(f"a message has a part of type {brief(kind)}: only text is supported")
        texts.append(text)
    return "\n".join(filter(None, texts))


def chat_template_of(source: Checkpoint | Path | None, tokenizer: Any) -> ChatTemplate:
    """Load the chat template of a model.

    Args:
        source: Checkpoint, model folder or GGUF file; by default the source of the tokenizer.
        tokenizer: The model's tokenizer.

    Raises:
        ValueError: A file is corrupt, or a template is too long.
    """
    path = source.path if isinstance(source, Checkpoint) else source
    if path is None and (file := FILES.get(tokenizer)) is not None:
        path = file if file.suffix == ".gguf" else file.parent
    if path is None:
        return ChatTemplate("plain", tokenizer, {})
    template = gguf_template(path, tokenizer) if path.is_file() else folder_template(path, tokenizer)
    for text in template.templates.values():
        if len(text) > MAX_TEMPLATE_LENGTH:
            raise ValueError(f"{template.origin} has {len(text):,} characters: at most {MAX_TEMPLATE_LENGTH:,}")
    if template.templates:
        SANDBOX.start()
    return template


def gguf_template(path: Path, tokenizer: Any) -> ChatTemplate:
    """The chat template in a GGUF file's metadata."""
    metadata = read_header(path).metadata
    templates = gguf_templates(metadata)
    kind: Literal["template", "plain"] = "template" if "default" in templates else "plain"
    tokens = special_tokens(tokenizer_settings(metadata))
    return ChatTemplate(kind, tokenizer, tokens, templates, f"the chat template in {path}")


def folder_template(folder: Path, tokenizer: Any) -> ChatTemplate:
    """The chat template in a model folder."""
    settings = read_settings(folder, "special_tokens_map.json", "tokenizer_config.json")
    config = read_settings(folder, "config.json")
    tokens = special_tokens(settings)
    for name in ("bos", "eos"):
        if f"{name}_token" not in tokens and type(id := config.get(f"{name}_token_id")) is int and id >= 0:
            tokens |= {f"{name}_token": token} if (token := tokenizer.id_to_token(id)) else {}
    templates, origin = folder_templates(folder, settings)
    if "default" in templates:
        return ChatTemplate("template", tokenizer, tokens, templates, origin)
    conversational = isinstance(tasks := config.get("task_specific_params"), dict) and "conversational" in tasks
    return ChatTemplate("dialogue" if conversational else "plain", tokenizer, tokens)


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens in tokenizer settings by name, such as bos_token."""
    tokens = {name: content(value) for name, value in settings.items() if name.endswith("_token")}
    return {name: token for name, token in tokens.items() if token is not None}
