"""The positions of replies for training."""

from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from minhub_py.chat.replies import encode_replies, end_tokens, reply_spans
from minhub_py.chat.templates import ChatTemplate

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one two"},
    {"role": "assistant", "content": "three four"},
    {"role": "user", "content": "five"},
    {"role": "assistant", "content": "six"},
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation"
    " %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif"
    " %}{{ '\n' }}{% endfor %}"
)
# Drops the thoughts of earlier replies, like the templates of reasoning models.
DROPS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last else m.content[:2] }}\n{%"
    " endfor %}[assistant]"
)


def template(source: str, tokenizer: Any = None) -> ChatTemplate:
    return ChatTemplate(
        "template", tokenizer, {"eos_token": "<|im_end|>"}, {"default": source}, "the template"
    )


def tokenizer_of(bpe_folder: Path) -> Tokenizer:
    from minhub_py.checkpoints.tokenizers.tokenizer import read_tokenizer

    tokenizer = read_tokenizer(bpe_folder)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def test_replies_are_found_by_marks_and_by_differences() -> None:
    for source, end in ((CHATML, "<|im_end|>\n"), (MARKED, "<|im_end|>")):
        text, spans = reply_spans(template(source), MESSAGES)
        assert [text[begin:stop] for begin, stop in spans] == [f"three four{end}", f"six{end}"]
        assert text.count("<") == 10  # no marks remain
    with pytest.raises(
        ValueError, match="does not determine the position of the reply in message 3"
    ):
        reply_spans(template(DROPS), MESSAGES)
    with pytest.raises(ValueError, match="no assistant message"):
        reply_spans(template(CHATML), MESSAGES[:2])


def test_masks_are_those_of_transformers(bpe_folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = tokenizer_of(bpe_folder)
    reference = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=MARKED
    )
    result = reference.apply_chat_template(
        MESSAGES, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = encode_replies(template(MARKED, tokenizer), MESSAGES)
    assert ids == result["input_ids"]
    assert [int(value) for value in mask] == result["assistant_masks"]
    # without the line end after a reply
    assert encode_replies(template(CHATML, tokenizer), MESSAGES) == (ids, mask)


def test_a_token_across_the_beginning_of_a_reply_is_rejected() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "Assistant:six": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    source = (
        "{% for m in messages %} {{ 'Assistant:' if m.role == 'assistant' }}{{ m.content }}{%"
        " endfor %}"
    )
    source += "{% if add_generation_prompt %} Assistant:{% endif %}"
    with pytest.raises(ValueError, match="a token contains the end of a prompt"):
        encode_replies(
            template(source, tokenizer), [{"role": "user", "content": "x"}, MESSAGES[-1]]
        )


# The marker of the next message ends a reply, as in GLM's template.
NEXT_MARKER = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}<|{{ m.role"
    " }}|>\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]


def with_roles(bpe_folder: Path) -> Tokenizer:
    tokenizer = tokenizer_of(bpe_folder)
    tokenizer.add_special_tokens([*ROLES, "<s>", "</s>"])
    return tokenizer


def targets(template: ChatTemplate, messages: Any, **variables: Any) -> list[str]:
    """The texts of the spans of targets."""
    ids, mask = encode_replies(template, messages, variables)
    spans = [
        [id for id, _ in span]
        for target, span in groupby(zip(ids, mask, strict=True), itemgetter(1))
        if target
    ]
    return [template.tokenizer.decode(span, skip_special_tokens=False) for span in spans]


def test_the_token_that_ends_a_reply_is_a_target_whoever_writes_it(bpe_folder: Path) -> None:
    """The reply's own end token, the next marker, or, after the last reply, a token that no
    template writes.
    """
    tokenizer = with_roles(bpe_folder)
    content_marked = MARKED.replace(
        "<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>"
    )
    # no special tokens
    lines = "{% for m in messages %}{{ m.role }}:\n{{ m.content }}\n{% endfor %}"
    lines += "{% if add_generation_prompt %}assistant:\n{% endif %}"
    for source, ends, expected in (
        (content_marked, {"<|im_end|>"}, ["three four<|im_end|>", "six<|im_end|>"]),
        (NEXT_MARKER, {"<|user|>"}, ["three four<|user|>", "six<|user|>"]),
        (
            NEXT_MARKER.replace("m.content }}", "m.content }}\n"),
            {"<|user|>"},
            ["three four\n<|user|>", "six\n<|user|>"],
        ),
        (lines, set(), ["three four\n", "six\n<|im_end|>"]),
    ):
        chat = template(source, tokenizer)
        assert {tokenizer.id_to_token(id) for id in chat.end_ids} == ends
        assert targets(chat, MESSAGES) == expected
        text = chat.render(MESSAGES, add_generation_prompt=False)  # otherwise unchanged
        ids = encode_replies(chat, MESSAGES)[0]
        assert tokenizer.decode(ids, skip_special_tokens=False).startswith(text.removesuffix("\n"))
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    tools = [
        MESSAGES[1],
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "12"},
    ]
    assert targets(template(NEXT_MARKER, tokenizer), [*tools, MESSAGES[-1]])[-1] == "six<|user|>"


def test_replies_of_a_model_without_a_template_end_with_its_stop_string(bpe_folder: Path) -> None:
    """The last one ends with the end token, if the tokenizer has one."""
    tokenizer = tokenizer_of(bpe_folder)
    for tokens, end in (({"eos_token": "<|im_end|>"}, "<|im_end|>"), ({}, "\nUser:")):
        chat = ChatTemplate("plain", tokenizer, tokens)
        assert targets(chat, MESSAGES) == [" three four\nUser:", f" six{end}"]
        assert end_tokens(chat) == tokenizer.encode(end, add_special_tokens=False).ids
    dialogue = ChatTemplate("dialogue", tokenizer, {"eos_token": "<|im_end|>"})
    assert targets(dialogue, MESSAGES[1:]) == ["three four<|im_end|>", "six<|im_end|>"]
    assert (
        end_tokens(
            ChatTemplate("template", tokenizer, {}, {"default": "{{ messages[0].content }}"})
        )
        == []
    )


def test_a_reply_with_weight_0_is_context_only(bpe_folder: Path) -> None:
    """As in files for fine-tuning by the OpenAI API. The weight is not rendered."""
    tokenizer = tokenizer_of(bpe_folder)
    weighted = [
        *MESSAGES[:2],
        {**MESSAGES[2], "weight": 0},
        MESSAGES[3],
        {**MESSAGES[4], "weight": 1},
    ]
    for source in (CHATML, MARKED):
        chat = template(source, tokenizer)
        assert targets(chat, weighted) == ["six<|im_end|>"]
        assert encode_replies(chat, weighted)[0] == encode_replies(chat, MESSAGES)[0]
    chat = template(CHATML, tokenizer)
    with pytest.raises(ValueError, match="no assistant message with weight 1"):
        encode_replies(chat, weighted[:3])
    with pytest.raises(ValueError, match=r"weight of a message must be 0 or 1, not 0\.5"):
        encode_replies(chat, [MESSAGES[1], {**MESSAGES[2], "weight": 0.5}])
    twice = template(
        MARKED.replace(
            "<|im_end|>{% endgen", "{% endgeneration %}{% generation %}<|im_end|>{% endgen"
        ),
        tokenizer,
    )
    with pytest.raises(ValueError, match="marks 4 parts for 2 replies"):
        encode_replies(twice, weighted)


def test_tools_are_rendered_as_in_requests(bpe_folder: Path) -> None:
    tokenizer = with_roles(bpe_folder)
    tools = [
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    ]
    for source in (NEXT_MARKER, CHATML, MARKED):
        chat = template(source, tokenizer)
        ids, mask = encode_replies(chat, MESSAGES, {"tools": tools})
        prompt = ids[: mask.index(True)]
        served = chat.encode(MESSAGES[:2], tools=tools)
        assert prompt[: len(served)] == served
        assert "weather" in tokenizer.decode(prompt)


def test_a_token_after_texts_does_not_begin_a_conversation(bpe_folder: Path) -> None:
    """A tokenizer that adds `</s>` after each text has no BOS; one that adds two tokens before has
    both.
    """
    tokenizer = with_roles(bpe_folder)
    ids = {token: tokenizer.token_to_id(token) for token in ("<s>", "</s>", "<|user|>")}
    chat_ids = template(NEXT_MARKER, tokenizer).encode(MESSAGES)
    for single, before in (
        ("$A </s>", []),
        ("<s> $A </s>", ["<s>"]),
        ("<s> <|user|> $A", ["<s>", "<|user|>"]),
    ):
        changed = Tokenizer.from_str(tokenizer.to_str())
        changed.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=list(ids.items())
        )
        chat = template(NEXT_MARKER, changed)
        assert chat.bos == [ids[token] for token in before]
        assert chat.encode(MESSAGES) == [*chat.bos, *chat_ids]
        assert encode_replies(chat, MESSAGES)[0][: len(before) + 3] == [*chat.bos, *chat_ids[:3]]
