"""The prompts of typed decisions: token IDs, and the positions after which answers are read.

The default prompt is a user message of the model's chat template. A decision_template.jinja marks
the positions by <|mark|>, and separates texts that must not be joined by <|split|>; both are
removed. Control tokens that a text or a question contains are encoded as ordinary text, so that a
text cannot end its message.

Source: transformers' decision/template_utils.py and utils/chat_template_utils.py, for equal tokens.
"""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from reprlib import repr as brief
from typing import Any

from tokenizers import AddedToken, Tokenizer

from minhub_py.analysis.questions import DecisionSettings, Question
from minhub_py.chat.sandbox import SANDBOX
from minhub_py.chat.templates import chat_template_of, to_plain_json
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.system.printable import printable

MARK, SPLIT = "<|mark|>", "<|split|>"
# Private characters around control tokens in texts, which encoding replaces.
START, END = "\U000f0000", "\U000f0001"


State = str | Mapping[str, Any] | list[Any]  # a text, or JSON


class InvalidTextError(ValueError):
    """A text cannot be asked about. The message follows "the text"."""


@dataclass(frozen=True)
class Prompted:
    """A prompt with questions. marks: for each question, the number of tokens before its answer."""

    ids: list[int]
    questions: tuple[Question, ...]
    marks: tuple[int, ...]


class DecisionPrompts:
    """Prompts in a model's format. ValueError: the model has no chat template."""

    def __init__(self, tokenizer: Tokenizer, settings: DecisionSettings) -> None:
        self.tokenizer, self.settings = tokenizer, settings
        self.template = chat_template_of(None, tokenizer)
        if settings.chat_template is None and self.template.kind != "template":
            raise ValueError(
                "decide() needs a chat model: this tokenizer has no chat template. Use annotate(),"
                " which also works with other language models"
            )
        self._labels: dict[tuple[str, ...], list[int]] = {}

    def label_ids(self, question: Question) -> list[int]:
        """Each label's token. ValueError: a label is not one token, or two are the same."""
        if question.labels not in self._labels:
            tokens = [
                encode(self.tokenizer, label, add_special_tokens=False) for label in question.labels
            ]
            unknown = getattr(self.tokenizer.model, "unk_token", None)
            unknown_id = None if unknown is None else self.tokenizer.token_to_id(unknown)
            wrong = [
                label
                for label, ids in zip(question.labels, tokens, strict=True)
                if len(ids) != 1 or ids[0] == unknown_id
            ]
            ids = [ids[0] for ids in tokens if ids]
            if wrong or len(set(ids)) < len(tokens):
                reason = (
                    f"{wrong[0]!r} is not one token" if wrong else "two of them are the same token"
                )
                raise ValueError(
                    f"question {question.name!r}: the labels {', '.join(question.labels)} do not"
                    f" work with this tokenizer, because {reason}: set other labels of"
                    f" {question.type} in decision.json or settings="
                )
            self._labels[question.labels] = ids
        return self._labels[question.labels]

    def prompts(self, state: State, questions: Sequence[Question]) -> list[Prompted]:
        """The prompts with the questions about a state: one for each question, or one for all if the
        template reads `questions`.

        InvalidTextError: the state is empty or not JSON.    ValueError: the template fails.
        """
        state, source = checked_state(state), self.settings.chat_template
        if source is None:
            return [self._default(state, question) for question in questions]
        together = re.search(r"\bquestions\b", source) is not None
        groups = [tuple(questions)] if together else [(question,) for question in questions]
        return [self._templated(source, state, group) for group in groups]

    def _default(self, state: object, question: Question) -> Prompted:
        """The default prompt: the state, the question and its labelled options as a user message."""
        content = self._marked(default_text(state, question))
        text = self.template.render([{"role": "user", "content": content}], enable_thinking=False)
        ids = self._encode(text, self.tokenizer)
        return Prompted(ids, (question,), (len(ids),))

    def _templated(self, source: str, state: object, questions: tuple[Question, ...]) -> Prompted:
        """A decision template's prompt."""
        variables: dict[str, object] = {
            **self.template.tokens,
            "state": state,
            "question": questions[0].to_template(),
            "questions": [question.to_template() for question in questions],
        }
        prepare = self._marked if self.settings.sanitize_control_tokens else without_sentinels
        variables = prepare(variables)
        variables |= {
            "add_generation_prompt": True,
            "enable_thinking": False,
            **self.template.tokens,
        }
        messages = [{"role": "user", "content": ""}]
        result = SANDBOX.render(source, messages, to_plain_json(variables, "a decision"))
        if "text" not in result:
            raise ValueError(
                f"decision_template.jinja failed: {printable(next(iter(result.values())))}"
            )
        tokenizer = self._with_sentinels
        mark, split = tokenizer.token_to_id(MARK), tokenizer.token_to_id(SPLIT)
        ids, marks = list[int](), list[int]()
        for id in self._encode(result["text"], tokenizer):
            if id == mark:
                marks.append(len(ids))
            elif id != split:
                ids.append(id)
        marks = marks or [len(ids)]
        if len(marks) != len(questions) or marks[0] == 0:
            raise ValueError(
                f"decision_template.jinja has {len(marks)} marks for {len(questions)} questions: only"
                " templates with one mark after each question are supported, not those of models"
                " with a decision head"
            )
        return Prompted(ids, questions, tuple(marks))

    @cached_property
    def _with_sentinels(self) -> Tokenizer:
        """The tokenizer with <|mark|> and <|split|> as special tokens."""
        tokenizer = copy.deepcopy(self.tokenizer)
        tokenizer.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in (MARK, SPLIT)]
        )
        return tokenizer

    @cached_property
    def _control_tokens(self) -> re.Pattern[str]:
        """The added tokens that are special, or that the template contains as text."""
        literals = self.settings.chat_template or "\0".join(self.template.templates.values())
        names = [
            token.content
            for token in self.tokenizer.get_added_tokens_decoder().values()
            if token.special or (token.content in literals and token.content.strip())
        ]
        names = sorted({*names, MARK, SPLIT}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)))

    def _marked(self, value: object) -> Any:
        """A value with START and END around the control tokens of its texts."""
        if isinstance(value, str):
            plain = value.replace(START, "").replace(END, "")
            return self._control_tokens.sub(f"{START}\\g<0>{END}", plain)
        if isinstance(value, dict):
            return {key: self._marked(item) for key, item in value.items()}
        return [self._marked(item) for item in value] if isinstance(value, list) else value

    def _encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The token IDs of a rendered prompt, with marked control tokens as ordinary text."""
        if not self.settings.sanitize_control_tokens:
            return encode(tokenizer, text, add_special_tokens=False)
        pattern = f"{START}({self._control_tokens.pattern}){END}|[{START}{END}]"
        first, *pieces = re.split(pattern, text)
        ids = encode(tokenizer, first, add_special_tokens=False)
        newline = encode(tokenizer, "\n", add_special_tokens=False)
        for number, piece in enumerate(pieces):
            if piece:
                # After a line end, which is removed: a tokenizer may add a space before a text.
                encoded = tokens_of(tokenizer, "\n" + piece, as_text=number % 2 == 0)
                after = encoded[: len(newline)] == newline
                ids += (
                    encoded[len(newline) :]
                    if after
                    else tokens_of(tokenizer, piece, as_text=number % 2 == 0)
                )
        return ids


def checked_state(state: object) -> Any:
    """A state as plain JSON. InvalidTextError: it is empty or not JSON."""
    if not isinstance(state, str | Mapping | list) or not state:
        raise InvalidTextError(f"must be text or JSON with content, not {brief(state)}")
    try:
        state = to_plain_json({"state": state}, "it")["state"]
        json.dumps(state, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidTextError("has half of a character (a lone surrogate)") from error
    except ValueError as error:
        raise InvalidTextError(f"is not JSON: {error}") from error
    return state


def without_sentinels(value: object) -> Any:
    """A value whose texts lack <|mark|> and <|split|>."""
    if isinstance(value, str):
        return value.replace(MARK, "").replace(SPLIT, "")
    if isinstance(value, dict):
        return {without_sentinels(key): without_sentinels(item) for key, item in value.items()}
    return [without_sentinels(item) for item in value] if isinstance(value, list) else value


def tokens_of(tokenizer: Tokenizer, text: str, as_text: bool) -> list[int]:
    """Token IDs without special tokens. as_text: added tokens in the text are ordinary text, too."""
    if not as_text:
        return encode(tokenizer, text, add_special_tokens=False)
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    parts = [text]
    if tokenizer.pre_tokenizer is not None:
        parts = [part for part, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    return [token.id for part in parts for token in tokenizer.model.tokenize(part)]


def default_text(state: object, question: Question) -> str:
    """The message with a state and a question, as in transformers."""
    lines = [as_text(question.instructions)]
    for label, option, description in zip(
        question.labels, question.options, question.descriptions, strict=True
    ):
        answer = as_text(description)
        if question.type == "noul":
            answer = answer or (option if question.labels != ("Yes", "No") else "")
            lines += [f"{label}: {answer}"] if answer else []
        elif question.type == "choice":
            lines.append(f"{label}. {option}: {answer}" if answer else f"{label}. {option}")
        else:
            lines.append(f"{label}. {answer}")
    first, last = question.labels[0], question.labels[-1]
    closing = f"Answer {first} or {last} only."
    if question.type != "noul":
        is_letters = (
            "".join(question.labels) == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(question.labels)]
        )
        kind = "letter" if is_letters else "label"
        thing = "option" if question.type == "choice" else "level"
        closing = f"Answer with the {kind} of the {thing} that fits best ({first} to {last}) only."
    body = "\n".join(filter(None, lines))
    return f"{as_text(state)}\n\n{body}\n{closing}"


def as_text(value: object) -> str:
    """Text as it is, JSON of other values, and "" for None."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
