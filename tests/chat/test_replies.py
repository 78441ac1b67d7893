"""The positions of replies for training."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from minhub_py.chat.replies import encode_replies, reply_spans
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
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
)
# Drops the thoughts of earlier replies, like the templates of reasoning models.
DROPS = "{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last else m.content[:2] }}\n{% endfor %}[assistant]"


def template(source: str, tokenizer: Any = None) -> ChatTemplate:
    return ChatTemplate("template", tokenizer, {"eos_token": "<|im_end|>"}, {"default": source}, "the template")


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
    with pytest.raises(ValueError, match="does not determine the position of the reply in message 3"):
        reply_spans(template(DROPS), MESSAGES)
    with pytest.raises(ValueError, match="no assistant message"):
        reply_spans(template(CHATML), MESSAGES[:2])


def test_masks_are_those_of_transformers(bpe_folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = tokenizer_of(bpe_folder)
    reference = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=MARKED)
    result = reference.apply_chat_template(MESSAGES, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    ids, mask = encode_replies(template(MARKED, tokenizer), MESSAGES)
    assert ids == result["input_ids"]
    assert [int(value) for value in mask] == result["assistant_masks"]
    assert encode_replies(template(CHATML, tokenizer), MESSAGES) == (ids, mask)  # without the line end after a reply


def test_a_token_across_the_beginning_of_a_reply_is_rejected() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "Assistant:six": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    source = "{% for m in messages %} {{ 'Assistant:' if m.role == 'assistant' }}{{ m.content }}{% endfor %}"
    source += "{% if add_generation_prompt %} Assistant:{% endif %}"
    with pytest.raises(ValueError, match="a token contains the end of a prompt"):
        encode_replies(template(source, tokenizer), [{"role": "user", "content": "x"}, MESSAGES[-1]])
