"""Replies to separate messages in one batch are those of conversations with one message each."""

from typing import Any

import pytest
from test_chat import TEMPLATE, a_chat, a_model
from tokenizers import Tokenizer
from tool_templates import TEMPLATES, chat_template

from minhub_py.chat.reply_batch import ReplyBatch
from minhub_py.chat.templates import ChatTemplate
from minhub_py.inference.generate import stream_batch
from minhub_py.inference.sampling import Sampling, StopCriteria

TEXTS = ["Good morning!", "How do you feel today?", "One, two and three"]


def batch_of(template: ChatTemplate, system: str | None, context: int, new: int) -> ReplyBatch:
    stop = StopCriteria(frozenset(), (), template.tokenizer)
    return ReplyBatch(template, TEXTS, system, new, context, stop)


def replies(model: Any, batch: ReplyBatch, new: int) -> tuple[list[str], list[list[int]]]:
    """The texts and token IDs of the replies."""
    ids: list[list[int]] = [[] for _ in batch.prompts]
    settings = (new, Sampling(temperature=1.0), [5] * len(ids), batch.stop)
    for row, id in stream_batch(model, batch.prompts, *settings, limits=batch.limits):
        ids[row].append(id)
    return ["".join(batch.text(row, values)) for row, values in enumerate(ids)], ids


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_replies_of_a_batch_match_conversations(tokenizer: Tokenizer, system: str | None) -> None:
    """Also where the context ends a reply before its maximum length."""
    context = 60
    model = a_model(context)
    chat = a_chat(model, tokenizer, system=system, seed=5, temperature=1.0, top_p=None)
    template = ChatTemplate("template", tokenizer, {}, {"default": TEMPLATE}, "the template")
    batch = batch_of(template, system, context, 40)
    texts, ids = replies(model, batch, 40)
    for text, found, new in zip(TEXTS, texts, ids, strict=True):
        chat.clear()
        chat.reply_count = 0
        reply = chat.say(text, max_new_tokens=40)
        assert (found, new) == (reply.text, reply.ids)
    assert system is None or min(map(len, ids)) < 40
    with pytest.raises(ValueError, match="prompt 1 with the system prompt has .* shorten it"):
        batch_of(template, system, 5, 40)


def test_reasoning_is_not_a_part_of_the_text() -> None:
    template = chat_template(TEMPLATES["hermes"])
    batch = batch_of(template, None, 500, 200)
    for written, shown in (
        ("<think>Hm.</think>Yes.", "Yes."),
        ("Yes.", "Yes."),
        ("<think>Hm", ""),
    ):
        ids = template.tokenizer.encode(written, add_special_tokens=False).ids
        assert "".join(batch.text(1, ids)) == shown


def test_a_reply_of_no_tokens_is_empty() -> None:
    batch = batch_of(chat_template(TEMPLATES["hermes"]), None, 500, 0)
    assert "".join(batch.text(0, [])) == ""
