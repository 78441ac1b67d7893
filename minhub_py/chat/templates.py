"""Chat templates: render messages as a chat model's prompt.

checkpoints/chat_templates.py lists a template's sources.

Without a template, DialoGPT models (config.json has task_specific_params.conversational) separate
turns by the end-of-text token. All other models continue a plain dialogue, `User: …` and
`Assistant: …`.

Templates are untrusted code; sandbox.py limits them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any, Literal

from minhub_py.chat.content import ContentForms, content_forms, normalized_content, text_of
from minhub_py.chat.markers import MarkerAlphabet
from minhub_py.chat.sandbox import SANDBOX
from minhub_py.chat.tool_format import Markup, detect, generic_format
from minhub_py.chat.tools import prepare, uses_tools
from minhub_py.checkpoints.chat_templates import folder_templates, gguf_templates
from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.checkpoints.storage import Checkpoint, read_settings
from minhub_py.checkpoints.tokenizers.gguf_tokenizer import tokenizer_settings
from minhub_py.checkpoints.tokenizers.special_tokens import content
from minhub_py.checkpoints.tokenizers.tokenizer import FILES, encode, surrounding_ids
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.printable import printable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Message = JsonMapping
# Field names of a message's reasoning. Most templates read the first, gpt-oss's reads the second.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
MAX_TEMPLATE_LENGTH = 2**20  # characters; the longest published template has 40,000


class TemplateRejectionError(ValueError):
    """A chat template rejects the messages by raise_exception()."""


@dataclass(frozen=True)
class ChatTemplate:
    """A model's conversation format.

    Attributes:
        kind: "template" (the repository's template), "dialogue" (DialoGPT's format) or "plain" (no
            template).
        tokenizer: The model's tokenizer.
        tokens: Special tokens by their names in templates, such as bos_token.
        templates: Template sources by name.
        origin: Description of the template's file for error messages.
    """

    kind: Literal["template", "dialogue", "plain"]
    tokenizer: "Tokenizer"
    tokens: Mapping[str, str]
    templates: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""

    @property
    def note(self) -> str | None:
        """A note for users if the model has no template."""
        return {
            "template": None,
            "dialogue": "no chat template: the end-of-text token separates turns, as in DialoGPT",
            "plain": (
                'no chat template, so it is not a chat model: it continues a dialogue of "User:"'
                ' and "Assistant:"'
            ),
        }[self.kind]

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a reply, in addition to end tokens."""
        return ("\nUser:",) if self.kind == "plain" else ()

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Render a conversation as text.

        Args:
            messages: Messages `{"role": …, "content": …}`. The content is a string or a list of
                text parts, `{"type": "text", "text": …}`. They are joined by line ends for a
                template that does not read parts.
            add_generation_prompt: Append the beginning of the assistant's reply.
            continue_final_message: The last message is an unfinished reply; append its text to its
                prompt, so that the model continues it.
            variables: Further variables of the template, such as enable_thinking. `tools` are
                definitions of tools as in the OpenAI API (chat/tools.py).

        Raises:
            ValueError: Messages or variables are invalid, or the template fails or exceeds its time
                or memory limit.
            TemplateRejectionError: The template rejects the messages.
        """
        plain = [normalized(message) for message in check_messages(messages)]
        if continue_final_message:
            *previous, reply = plain
            if reply["role"] != "assistant" or not previous or reply.keys() - {"role", "content"}:
                raise ValueError(
                    "continue_final_message requires an assistant message with text content at the"
                    " end, after a user message: append the unfinished reply to messages"
                )
            return self.render(previous, **variables) + text_of(reply.get("content", ""))
        tools = variables.pop("tools", None) or ()  # some clients send an empty list
        if tools or uses_tools(plain):
            plain, tools = prepare(
                plain, to_plain_json({"tools": list(tools)}, "tools")["tools"], self.markup
            )
        return self.render_messages(
            plain, tools=tools, add_generation_prompt=add_generation_prompt, **variables
        )

    def render_messages(
        self,
        plain: list[JsonObject],
        *,
        tools: Sequence[Message] = (),
        add_generation_prompt: bool = True,
        marks: list[str] | None = None,
        **variables: Any,
    ) -> str:
        """Render messages as they are. For arguments and errors see `render`.

        marks: texts around the content of {% generation %}.
        """
        if self.kind == "dialogue":
            return self._dialogue(plain)
        if self.kind == "plain":
            return plain_dialogue(plain, add_generation_prompt)
        converted = [
            (
                self._forms(message["role"]).convert(message["content"])
                if "content" in message
                else None
            )
            for message in plain
        ]
        messages = [
            message if content is None else {**message, "content": content}
            for message, content in zip(plain, converted, strict=True)
        ]
        return self._rendered(messages, tools, add_generation_prompt, marks, variables)

    def _rendered(
        self,
        messages: list[JsonObject],
        tools: Sequence[Message],
        add_generation_prompt: bool,
        marks: list[str] | None,
        variables: Mapping[str, object],
    ) -> str:
        """The template's text for messages in the forms that it reads."""
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        context = {
            **self.tokens,
            **variables,
            "tools": tools or None,
            "documents": variables.get("documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        context = to_plain_json(context, "variables of a chat template")
        result = SANDBOX.render(self.templates[name], messages, context, marks)
        if "rejected" in result:
            raise TemplateRejectionError(
                f"the chat template rejects the messages: {printable(result['rejected'])}"
            )
        if "error" in result:
            raise ValueError(f"{self.origin} failed: {printable(result['error'])}")
        return result["text"]

    def _forms(self, role: str) -> ContentForms:
        """The forms of content that the template reads in messages of a role. Results of tools are
        text.
        """
        if role not in ("system", "user", "assistant"):
            return ContentForms(text=True, parts=False)
        if role not in self._known_forms:
            self._known_forms[role] = content_forms(
                lambda messages: self._rendered(messages, (), role != "assistant", None, {}), role
            )
        return self._known_forms[role]

    @cached_property
    def _known_forms(self) -> dict[str, ContentForms]:
        return {}

    def encode(self, messages: Sequence[Message], **settings: Any) -> list[int]:
        """Render and tokenize a conversation. For arguments and errors see `render`."""
        return self.tokenize(self.render(messages, **settings))

    def tokenize(self, text: str, *, release_gil: bool = False) -> list[int]:
        """Tokenize a rendered conversation, with exactly one BOS token if the tokenizer uses one.

        Templates write the BOS token, leave it to the tokenizer, or do both.
        """
        ids = encode(self.tokenizer, text, add_special_tokens=False, release_gil=release_gil)
        return [*self.bos, *ids[self.bos_length(ids) :]]

    def bos_length(self, ids: Sequence[int]) -> int:
        """The number of tokens at the start of a conversation that repeat `bos`."""
        return next((count for count, id in enumerate(ids) if id not in self.bos), len(ids))

    @cached_property
    def bos(self) -> list[int]:
        """The tokens that the tokenizer adds before a text, unless they differ from the template's
        bos_token.
        """
        before, _ = surrounding_ids(self.tokenizer)
        if before and self.kind != "dialogue":
            token = self.tokens.get("bos_token")
            if token is None or before[0] == self.tokenizer.token_to_id(token):
                return before
        return []

    @cached_property
    def markup(self) -> Markup:
        """The formats of tool calls and reasoning in replies."""
        if self.kind == "template":
            return detect(self.render_messages, self.tokenizer, "\n".join(self.templates.values()))
        alphabet = MarkerAlphabet(self.tokenizer)
        return Markup(alphabet, generic_format(alphabet), merged_system=self.kind == "dialogue")

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Token IDs that end a reply: the first special token that the template writes after a
        reply.

        If the template writes none after the last reply, the marker of the next message ends
        replies (GLM's <|user|>).
        """
        if self.kind != "template":
            return frozenset(() if self.eos is None else (self.eos,))
        question, reply = (
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "QZQ"},
        )
        last, earlier = (
            self._after_reply([question, reply]),
            self._after_reply([question, reply, question]),
        )
        ends = [id for id in last if self.is_special(id)] or [
            id for id in earlier[:1] if self.ends_reply(id)
        ]
        return frozenset(ends[:1])

    def _after_reply(self, messages: Sequence[JsonObject]) -> list[int]:
        """The token IDs after the reply QZQ; none if the template rejects the conversation."""
        try:
            text = self.render_messages(list(messages), add_generation_prompt=False)
        except ValueError:  # only the model's end tokens apply
            return []
        _, separator, suffix = text.rpartition("QZQ")
        return (
            encode(self.tokenizer, suffix.lstrip(), add_special_tokens=False) if separator else []
        )

    def is_special(self, id: int) -> bool:
        """Whether a token is special, not a part of texts."""
        return id in self._special

    def ends_reply(self, id: int) -> bool:
        """Whether a token after a reply ends it: a special token, but not BOS."""
        return self.is_special(id) and id not in (*self.bos, self._token("bos_token"))

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)

    def _token(self, name: str) -> int | None:
        """The ID of a token that the settings of the tokenizer name."""
        id: int | None = self.tokenizer.token_to_id(self.tokens.get(name, ""))
        return id

    @property
    def eos(self) -> int | None:
        """The end-of-sequence token."""
        return self._token("eos_token")

    def _dialogue(self, messages: list[JsonObject]) -> str:
        eos = self.tokens.get("eos_token")
        if eos is None:
            raise ValueError(
                "the tokenizer has no end-of-text token, which separates the turns of this model"
            )
        for message in messages:
            if message["role"] not in ("user", "assistant"):
                raise TemplateRejectionError(
                    f"the model does not support {message['role']} messages: use user and assistant"
                    " messages only"
                )
        return "".join(text_of(message.get("content", "")) + eos for message in messages)


def plain_dialogue(messages: Sequence[Message], add_generation_prompt: bool) -> str:
    """A dialogue for a model without a chat format. The system prompt precedes it."""
    names = {"user": "User: ", "assistant": "Assistant: "}
    turns = [
        names.get(message["role"], "") + text_of(message.get("content", "")).strip()
        for message in messages
    ]
    return "\n".join([*turns, "Assistant:"] if add_generation_prompt else turns)


def check_messages(messages: object) -> Sequence[Message]:
    """The messages. ValueError: they are not a list of messages."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(
            f"messages must be a list of {{'role': …, 'content': …}}, not {brief(messages)}"
        )
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f"a message must be {{'role': …, 'content': …}}, not {brief(message)}")
    return messages


def normalized(message: Message) -> JsonObject:
    """A message with its content as text and without null fields. ValueError: it is not JSON or not
    text.
    """
    fields = {name: value for name, value in message.items() if value is not None}
    if not fields.get("tool_calls"):  # templates fail on an empty list
        fields.pop("tool_calls", None)
    if "content" in fields:
        fields["content"] = normalized_content(fields["content"])
    reasoning = next((fields[name] for name in REASONING_FIELDS if name in fields), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    return to_plain_json(fields, "a message")


def to_plain_json(fields: JsonObject, title: str) -> JsonObject:
    """A copy that consists of JSON types. ValueError: a value has another type."""
    try:
        plain: JsonObject = json.loads(json.dumps(fields))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{title} must be plain JSON: {error}") from error
    return plain


def chat_template_of(source: Checkpoint | Path | None, tokenizer: "Tokenizer") -> ChatTemplate:
    """Load a model's chat template.

    Args:
        source: Checkpoint, model folder or GGUF file; by default the source of the tokenizer.
        tokenizer: The model's tokenizer.

    Raises:
        ValueError: A file is corrupt, or a template is too long.
    """
    template = read_chat_template(source, tokenizer)
    for text in template.templates.values():
        if len(text) > MAX_TEMPLATE_LENGTH:
            raise ValueError(
                f"{template.origin} has {len(text):,} characters: at most {MAX_TEMPLATE_LENGTH:,}"
            )
    if template.templates:
        SANDBOX.start()
    return template


def read_chat_template(source: Checkpoint | Path | None, tokenizer: "Tokenizer") -> ChatTemplate:
    """A model's chat template, before checks of its length and without a sandbox. ValueError:
    a file is corrupt.
    """
    path = source.path if isinstance(source, Checkpoint) else source
    if path is None and (file := FILES.get(tokenizer)) is not None:
        path = file if file.suffix == ".gguf" else file.parent
    if path is None:
        return ChatTemplate("plain", tokenizer, {})
    return gguf_template(path, tokenizer) if path.is_file() else folder_template(path, tokenizer)


def gguf_template(path: Path, tokenizer: "Tokenizer") -> ChatTemplate:
    """The chat template in a GGUF file's metadata."""
    metadata = read_header(path).metadata
    templates = gguf_templates(metadata)
    kind: Literal["template", "plain"] = "template" if "default" in templates else "plain"
    tokens = special_tokens(tokenizer_settings(metadata))
    return ChatTemplate(kind, tokenizer, tokens, templates, f"the chat template in {path}")


def folder_template(folder: Path, tokenizer: "Tokenizer") -> ChatTemplate:
    """The chat template in a model folder."""
    settings = read_settings(folder, "special_tokens_map.json", "tokenizer_config.json")
    config = read_settings(folder, "config.json")
    tokens = special_tokens(settings)
    for name in ("bos", "eos"):
        if (
            f"{name}_token" not in tokens
            and type(id := config.get(f"{name}_token_id")) is int
            and id >= 0
        ):
            tokens |= {f"{name}_token": token} if (token := tokenizer.id_to_token(id)) else {}
    templates, origin = folder_templates(folder, settings)
    if "default" in templates:
        return ChatTemplate("template", tokenizer, tokens, templates, origin)
    conversational = (
        isinstance(tasks := config.get("task_specific_params"), dict) and "conversational" in tasks
    )
    return ChatTemplate("dialogue" if conversational else "plain", tokenizer, tokens)


def special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    """The special tokens in tokenizer settings by name, such as bos_token."""
    tokens = {name: content(value) for name, value in settings.items() if name.endswith("_token")}
    return {name: token for name, token in tokens.items() if token is not None}
