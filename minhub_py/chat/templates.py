"""Messages -> the prompt of a chat model, as the template of its repository writes it.

    chat_template.jinja                       the repository's template
    tokenizer_config.json, "chat_template"    the older place of it: a text, or several with names
    additional_chat_templates/NAME.jinja      others beside it; "tool_use" is for messages with tools
    tokenizer.chat_template                   that of a GGUF file

Where there is none, a model of DialoGPT's kind (config.json has task_specific_params.conversational) separates turns by
its end-of-text token; every other model gets a plain dialogue to continue, `User: …` and `Assistant: …`.

What a template may do is bounded: sandbox.py says how.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Literal

from minhub_py.chat.sandbox import SANDBOX
from minhub_py.checkpoints.gguf_header import read_header
from minhub_py.checkpoints.storage import Checkpoint, read_object
from minhub_py.checkpoints.tokenizers.gguf_tokenizer import tokenizer_settings
from minhub_py.checkpoints.tokenizers.tokenizer import FILES, content, encode
from minhub_py.system.printable import printable

Message = Mapping[str, Any]
Kind = Literal["template", "dialogue", "plain"]
# Names that a message's reasoning goes by. Templates read the first; gpt-oss's reads the second.
REASONING = ("reasoning_content", "thinking", "reasoning")
MAX_TEMPLATE = 2**20  # characters; the longest known has 40,000
PLAIN_STOPS = ("\nUser:",)


class TemplateRefusedError(ValueError):
    """A chat template does not take a conversation; the message has its own words."""


@dataclass(frozen=True)
class ChatTemplate:
    """How a model wants a conversation written.

    kind: "template" for the repository's own; "dialogue" for DialoGPT's way; "plain" where there is none.
    templates: their texts by name.    tokens: special tokens by the names that templates have for them, as bos_token.
    where: the file that the template is from, for messages.    stops: strings that end a reply, besides its end id.
    """

    kind: Kind
    tokenizer: Any
    tokens: Mapping[str, str]
    templates: Mapping[str, str] = field(default_factory=dict)
    where: str = ""

    @property
    def note(self) -> str | None:
        """What a user should know of the format; None where it is the repository's own."""
        return {
            "template": None,
            "dialogue": "no chat template: turns are separated by the end-of-text token, as DialoGPT's are",
            "plain": "no chat template, so this is no chat model: it continues a dialogue of `User:` and `Assistant:`",
        }[self.kind]

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a reply."""
        return PLAIN_STOPS if self.kind == "plain" else ()

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, continue_final_message: bool = False,
        **variables: Any,
    ) -> str:  # fmt: skip
        """Text of a conversation, up to the beginning of the reply.

        messages: {"role": …, "content": …} each. The content is a string, or a list of parts, {"type": "text", "text":
        …}; line ends join the parts.    continue_final_message: the last message is an unfinished reply. The result is
        the prompt of this reply and its text, so that the model continues it.    variables: other variables of the
        template, such as enable_thinking.

        ValueError: invalid messages, or the template fails or exceeds its limits of time or memory.
        TemplateRefusedError, a ValueError: the template rejects the messages.
        """
        plain = [plain_message(message) for message in checked(messages)]
        if continue_final_message:
            *before, reply = plain
            if reply["role"] != "assistant" or not before or reply.keys() - {"role", "content"}:
                raise ValueError(
                    "continue_final_message requires an assistant message with text content at the end, after a user "
                    "message: append the unfinished reply to messages"
                )
            return self.render(before, **variables) + reply.get("content", "")
        if self.kind == "dialogue":
            return self._dialogue(plain)
        if self.kind == "plain":
            return plain_dialogue(plain, add_generation_prompt)
        tools = variables.pop("tools", None) or None  # clients send an empty list where there are none
        known = {**self.tokens, **variables, "tools": tools, "documents": variables.get("documents"),
                 "add_generation_prompt": add_generation_prompt}  # fmt: skip
        name = "tool_use" if tools and "tool_use" in self.templates else "default"
        try:
            known = json.loads(json.dumps(known))
        except (TypeError, ValueError) as error:
            raise ValueError(f"variables of a chat template are plain JSON: {error}") from error
        answer = SANDBOX.render(self.templates[name], plain, known)
        if "refused" in answer:
            raise TemplateRefusedError(f"the model's chat template does not take this: {printable(answer['refused'])}")
        if "error" in answer:
            raise ValueError(f"{self.where} does not work here: {printable(answer['error'])}")
        return answer["text"]

    def encode(self, messages: Sequence[Message], **settings: Any) -> list[int]:
        """Token IDs of a conversation, with exactly one BOS token if the tokenizer uses one.

        Templates write the BOS token, leave it to the tokenizer, or do both. settings, errors: see `render`.
        """
        return self.ids_of(self.render(messages, **settings))

    def ids_of(self, text: str, *, release_gil: bool = False) -> list[int]:
        """The ids of a rendered text, as `encode` says."""
        ids = encode(self.tokenizer, text, add_special_tokens=False, release_gil=release_gil)
        bos = self._bos
        if bos is None:
            return ids
        while ids[:1] == [bos]:
            ids = ids[1:]
        return [bos, *ids]

    @cached_property
    def _bos(self) -> int | None:
        """The id before every text: that which the tokenizer puts there, or that which the template has written."""
        around = encode(self.tokenizer, "")
        if around and self.kind != "dialogue":
            token = self.tokens.get("bos_token")
            if token is None or around[0] == self.tokenizer.token_to_id(token):
                return around[0]
        return None

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a reply: the first special token that the template writes after one."""
        if self.kind != "template":
            eos = self.tokenizer.token_to_id(self.tokens.get("eos_token", ""))
            return frozenset(() if eos is None else (eos,))
        question, reply = {"role": "user", "content": "one"}, {"role": "assistant", "content": "QZQ"}
        try:
            text = self.render([question, reply], add_generation_prompt=False)
        except ValueError:  # a template that takes no such conversation: the model's own end ids remain
            return frozenset()
        _, shown, rest = text.rpartition("QZQ")
        after = encode(self.tokenizer, rest, add_special_tokens=False) if shown else []
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset([id for id in after if id in added and added[id].special][:1])

    def _dialogue(self, messages: list[dict[str, Any]]) -> str:
        eos = self.tokens.get("eos_token")
        if eos is None:
            raise ValueError("the tokenizer names no end-of-text token, which separates the turns of this model")
        for message in messages:
            if message["role"] not in ("user", "assistant"):
                raise TemplateRefusedError(f"the model knows no {message['role']} messages, only user and assistant")
        return "".join(message.get("content", "") + eos for message in messages)


def plain_dialogue(messages: Sequence[Message], add_generation_prompt: bool) -> str:
    """A dialogue for a model that knows no chats; a system prompt is the text before it."""
    names = {"user": "User: ", "assistant": "Assistant: "}
    turns = [names.get(message["role"], "") + message.get("content", "").strip() for message in messages]
    return "\n".join([*turns, "Assistant:"] if add_generation_prompt else turns)


def checked(messages: Any) -> Sequence[Message]:
    """Messages. ValueError: they are none."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(f"messages must be a list of {{'role': …, 'content': …}}, not {brief(messages)}")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f"a message is {{'role': …, 'content': …}}, not {brief(message)}")
    return messages


def plain_message(message: Message) -> dict[str, Any]:
    """A message as templates have it: the content is a text, and what is null is absent.

    ValueError: its content is something else, or it holds what is no JSON.
    """
    found = {name: value for name, value in message.items() if value is not None}
    if "content" in found:
        found["content"] = text_of(found["content"])
    reasoning = next((found[name] for name in REASONING if name in found), None)
    if reasoning is not None:
        found = {"thinking": reasoning, **found, "reasoning_content": reasoning}
    try:
        plain: dict[str, Any] = json.loads(json.dumps(found))
    except (TypeError, ValueError) as error:
        raise ValueError(f"a message is plain JSON: {error}") from error
    return plain


def text_of(parts: Any) -> str:
    """The text of a message's content. ValueError: it has something else than text."""
    if isinstance(parts, str):
        return str(parts)
    if isinstance(parts, list | tuple):
        texts = [part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
                 for part in parts]  # fmt: skip
        if all(isinstance(text, str) for text in texts):
            return "\n".join(filter(None, texts))
        kind = next(part.get("type") if isinstance(part, Mapping) else part
                    for part, text in zip(parts, texts, strict=True) if not isinstance(text, str))  # fmt: skip
        raise ValueError(f"a message has a part of type {brief(kind)}: models of this package read text only")
    raise ValueError(f"the content of a message must be a text, not {brief(parts)}")


def chat_template_of(source: Checkpoint | Path | None, tokenizer: Any) -> ChatTemplate:
    """The chat template of a checkpoint, a folder or a GGUF file; None: where the tokenizer was read from.

    The tokenizer encodes what the template writes. ValueError: its files are damaged.
    """
    path = source.path if isinstance(source, Checkpoint) else source
    if path is None and (file := FILES.get(tokenizer)) is not None:
        path = file if file.suffix == ".gguf" else file.parent
    if path is None:
        return ChatTemplate("plain", tokenizer, {})
    found = _of_gguf(path, tokenizer) if path.is_file() else _of_folder(path, tokenizer)
    for text in found.templates.values():
        if len(text) > MAX_TEMPLATE:
            raise ValueError(f"{found.where} has {len(text):,} characters: no chat template is so long")
    if found.templates:
        SANDBOX.start()
    return found


def _of_gguf(path: Path, tokenizer: Any) -> ChatTemplate:
    metadata = read_header(path).metadata
    tokens = named_tokens(tokenizer_settings(metadata))
    prefix = "tokenizer.chat_template"
    templates = {key.removeprefix(prefix).lstrip(".") or "default": value for key, value in metadata.items()
                 if (key == prefix or key.startswith(f"{prefix}.")) and isinstance(value, str)}  # fmt: skip
    return template_or_plain(tokenizer, tokens, templates, f"the chat template in {path}")


def _of_folder(folder: Path, tokenizer: Any) -> ChatTemplate:
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).exists():
            settings |= read_object(folder / name)
    config = read_object(folder / "config.json") if (folder / "config.json").exists() else {}
    tokens = named_tokens(settings)
    for name in ("bos", "eos"):
        if f"{name}_token" not in tokens and type(id := config.get(f"{name}_token_id")) is int and id >= 0:
            tokens |= {f"{name}_token": token} if (token := tokenizer.id_to_token(id)) else {}
    templates = several(settings.get("chat_template"), folder)
    where = f"the chat template in {folder / 'tokenizer_config.json'}"
    files = {"default": folder / "chat_template.jinja"}
    more = folder / "additional_chat_templates"
    files |= {path.stem: path for path in sorted(more.glob("*.jinja"))} if more.is_dir() else {}
    written = {name: read_text(path) for name, path in files.items() if path.is_file()}
    if "default" in written:
        templates, where = {}, str(files["default"])
    templates |= written
    conversational = isinstance(tasks := config.get("task_specific_params"), dict) and "conversational" in tasks
    if "default" not in templates and conversational:
        return ChatTemplate("dialogue", tokenizer, tokens)
    return template_or_plain(tokenizer, tokens, templates, where)


def template_or_plain(
    tokenizer: Any, tokens: Mapping[str, str], templates: Mapping[str, str], where: str
) -> ChatTemplate:
    """The repository's own way, or a plain dialogue where it has none."""
    if "default" not in templates:
        return ChatTemplate("plain", tokenizer, tokens)
    return ChatTemplate("template", tokenizer, tokens, templates, where)


def several(value: Any, folder: Path) -> dict[str, str]:
    """Templates by name, of tokenizer_config.json's "chat_template". ValueError: it is something else."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        value = {each.get("name"): each.get("template") for each in value}
    if isinstance(value, dict) and all(isinstance(each, str) for pair in value.items() for each in pair):
        return dict(value)
    raise ValueError(f"{folder / 'tokenizer_config.json'}: chat_template cannot be {brief(value)}")


def read_text(path: Path) -> str:
    """A template's file. ValueError: it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text; it is damaged: fetch it again") from error


def named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name: bos_token, eos_token and the like."""
    found = {name: content(value) for name, value in settings.items() if name.endswith("_token")}
    return {name: token for name, token in found.items() if token is not None}
