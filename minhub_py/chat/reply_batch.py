"""Replies to separate messages, which are generated in one batch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from minhub_py.chat.generation import reply_events, without_leading_space
from minhub_py.chat.reply_form import ReplyForm, end_of_prompt
from minhub_py.checkpoints.tokenizers.tokenizer import until
from minhub_py.inference.sampling import StopCriteria

if TYPE_CHECKING:
    from minhub_py.chat.templates import ChatTemplate


class ReplyBatch:
    """The prompts of messages without previous turns, and the texts of their replies.

    Args:
        template: Chat template of the model.
        texts: User messages, one per conversation.
        system: System prompt of all conversations.
        max_new_tokens: Maximum number of tokens of a reply.
        context: Maximum number of tokens of a prompt and its reply, or None without a limit.
        stop: The model's and the caller's stop criteria.

    Attributes:
        prompts: The token IDs of each prompt.
        limits: Maximum number of tokens of each reply.
        stop: Stop criteria, including the template's.

    Raises:
        ValueError: The template rejects a message, or a prompt exceeds the context.
    """

    def __init__(
        self,
        template: "ChatTemplate",
        texts: Sequence[str],
        system: str | None,
        max_new_tokens: int,
        context: int | None,
        stop: StopCriteria,
    ) -> None:
        first = [{"role": "system", "content": system}] if system else []
        self.template = template
        self.prompts = [
            template.encode([*first, {"role": "user", "content": text}]) for text in texts
        ]
        self.stop = replace(
            stop,
            ids=stop.ids | template.end_ids,
            strings=(*stop.strings, *template.stops),
            tokenizer=template.tokenizer,
        )
        self.limits = [max_new_tokens] * len(texts)
        if context is not None:
            self.limits = [min(max_new_tokens, context - len(ids)) for ids in self.prompts]
            for number, ids in enumerate(self.prompts, 1):
                if len(ids) >= context:
                    raise ValueError(
                        f"prompt {number} with the system prompt has {len(ids)} tokens, but the"
                        f" context has room for {context - 1}: shorten it"
                    )

    def text(self, number: int, new_ids: Iterable[int]) -> Iterator[str]:
        """The pieces of a reply's text, without its reasoning. number: of the prompt, from 0."""
        prompt, ids = self.prompts[number], list[int]()

        def collect() -> Iterator[int]:
            for id in new_ids:
                ids.append(id)
                yield id

        def is_cut() -> bool:
            return len(ids) == self.limits[number] and not self.stop.ids.intersection(ids[-1:])

        tokenizer = self.template.tokenizer
        form = ReplyForm(self.template.markup, end_of_prompt(tokenizer, prompt))
        events = reply_events(tokenizer, form, prompt, collect(), is_cut)
        text = until((event.text for event in events if event.kind == "content"), self.stop.strings)
        return without_leading_space(text) if self.template.kind == "plain" else text
