"""Prompts for labels: the text before and after each text to be labelled, for chat models and for
other models.

A model without a chat template continues a list of labelled texts:

    Choose the label of the text: positive or negative.

    Text: What a lovely day!
    Label: positive
    Text: I enjoyed this film.
    Label:

With a chat template, the instruction and the first text are the first user message, and the labels
of the examples are replies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as brief
from typing import TYPE_CHECKING

from minhub_py.analysis.codebook import Codebook
from minhub_py.chat.templates import ChatTemplate, chat_template_of
from minhub_py.checkpoints.tokenizers.paired import target_tokenizer
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.models.base import LanguageModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PLAIN, CHAT = "Text: {text}\nLabel:", "Text: {text}"
PLACEHOLDER = "QZTEXTQZ"  # in place of the text and the reply when the chat template is rendered
REPLY = "QZREPLYQZ"


@dataclass(frozen=True)
class Prompt:
    """A prompt: `before`, a text, and `after`. An answer follows `sep`.

    without_text: the prompt for PMI.    chat: the chat template, if it is used.    end: token ID
    that ends an answer, or None for the line end.
    """

    tokenizer: "Tokenizer"
    before: str
    after: str
    without_text: str
    sep: str
    chat: ChatTemplate | None
    end: int | None
    encoder_decoder: bool

    def with_text(self, text: str) -> str:
        """The complete prompt. White space around the text is removed."""
        return f"{self.before}{text.strip()}{self.after}"

    def answer_ids(self, answer: str) -> list[int]:
        """Token IDs of an answer after the prompt. ValueError: a token contains parts of both, or
        there is none.
        """
        ids = self._after_prompt(answer)
        if not ids:
            raise ValueError(
                f"the label {answer!r} has no tokens in this vocabulary: use another word for it"
            )
        return ids

    def end_ids(self, answer: str) -> list[int]:
        """The end token after an answer. ValueError: the model has none."""
        if self.end is not None:
            return [self.end]
        ids = self._after_prompt(answer + "\n")[len(self.answer_ids(answer)) :]
        if not ids:
            raise ValueError(
                "the tokens of one label begin those of another, which requires an end token, but"
                " this model has none: rename one of the labels"
            )
        return ids

    def _after_prompt(self, answer: str) -> list[int]:
        if self.encoder_decoder:
            return encode(target_tokenizer(self.tokenizer), answer, add_special_tokens=False)
        # The characters before the answer are the same in every prompt, and so are the answer
        # tokens.
        anchor = self.after or "."
        before = encode(self.tokenizer, anchor, add_special_tokens=False)
        together = encode(self.tokenizer, anchor + self.sep + answer, add_special_tokens=False)
        if together[: len(before)] != before:
            raise ValueError(
                f"a token contains both the end of the prompt, {brief(anchor[-10:])}, and the"
                f" beginning of the label {answer!r}: use another template or sep"
            )
        return together[len(before) :]


def prompt_of(
    model: LanguageModel,
    tokenizer: "Tokenizer",
    book: Codebook,
    *,
    template: str | None,
    premise: str | None,
    sep: str | None,
    chat: bool | None,
) -> Prompt:
    """The prompt for a codebook. ValueError: the template has no {text}, or `chat` is not possible."""
    chat_template = None
    if chat is not False and not model.encoder_decoder:
        chat_template = chat_template_of(None, tokenizer)
        if chat_template.kind != "template":
            chat_template = None
    if chat and chat_template is None:
        raise ValueError(
            "this model has no chat template: remove chat, or use an instruction-tuned model"
        )
    template = (PLAIN if chat_template is None else CHAT) if template is None else template
    if template.count("{text}") != 1:
        raise ValueError(f"template must contain {{text}} once, not {brief(template)}")
    if sep is None:
        sep = " " if chat_template is None else ""
    if sep[:1].isspace() and template[-1:].isspace():
        raise ValueError(
            "template ends with white space, and sep begins with it, which would double it:"
            " remove one"
        )
    instruction = describe(book)
    if chat_template is not None:
        return chat_prompt(tokenizer, chat_template, book, instruction, template, premise, sep)
    before, after = template.split("{text}")
    shots = "".join(
        f"{template.replace('{text}', text)}{sep}{label}\n" for text, label in spoken(book)
    )
    head = "\n\n".join(filter(None, [instruction])) + ("\n\n" if instruction else "") + shots
    bare = template.replace(" {text}", "").replace("{text}", "") if premise is None else premise
    end = getattr(model.config, "eos_token_id", None)
    if isinstance(end, list | tuple):
        end = end[0] if end else None
    if not model.encoder_decoder and encode(
        tokenizer, after + sep + "a\n", add_special_tokens=False
    ) != encode(tokenizer, after + sep + "a", add_special_tokens=False):
        end = None  # the line end has tokens
    return Prompt(
        tokenizer, head + before, after, head + bare, sep, None, end, model.encoder_decoder
    )


def chat_prompt(
    tokenizer: "Tokenizer",
    chat: ChatTemplate,
    book: Codebook,
    instruction: str,
    template: str,
    premise: str | None,
    sep: str,
) -> Prompt:
    """The prompt as rendered by a chat template. It is rendered once, with a placeholder for the
    text.
    """

    def render(last: str) -> str:
        messages: list[dict[str, str]] = []
        for text, label in [*spoken(book), (PLACEHOLDER, None)]:
            content = last if label is None else template.replace("{text}", text)
            content = content if messages or not instruction else f"{instruction}\n\n{content}"
            messages.append({"role": "user", "content": content})
            if label is not None:
                messages.append({"role": "assistant", "content": label})
        # Templates of reasoning models then begin the reply after an empty reasoning.
        result = chat.render(messages, enable_thinking=False)
        # Some templates write a header between the generation prompt and the reply.
        messages.append({"role": "assistant", "content": REPLY})
        complete = chat.render(
            messages, add_generation_prompt=False, enable_thinking=False
        ).partition(REPLY)[0]
        return complete if complete.startswith(result) else result

    before, separator, after = render(template.replace("{text}", PLACEHOLDER)).rpartition(
        PLACEHOLDER
    )
    if not separator:
        raise ValueError(
            "the chat template does not write the user's message unchanged: set chat to False"
        )
    bare = template.replace(" {text}", "").replace("{text}", "") if premise is None else premise
    end = next(iter(sorted(chat.end_ids)), None)
    return Prompt(tokenizer, before, after, render(bare), sep, chat, end, False)


def describe(book: Codebook) -> str:
    """The instruction, and the definitions of the labels."""
    names = book.names
    listed = f"{', '.join(names[:-1])} or {names[-1]}"
    instruction = (
        f"Choose the label of the text: {listed}." if book.instruction is None else book.instruction
    )
    lines = [f"- {label.name}: {label.definition}" for label in book.labels if label.definition]
    return "\n".join(filter(None, [instruction.strip(), *lines]))


def spoken(book: Codebook) -> Sequence[tuple[str, str]]:
    """The examples, with each label's first answer."""
    answers = {label.name: label.answers[0] for label in book.labels}
    return [(text.strip(), answers[label]) for text, label in book.examples]
