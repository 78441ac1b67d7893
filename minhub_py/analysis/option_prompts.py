"""The prompts of Laya: [CLS] question [SEP] [MASK] option [MASK] option … [SEP] text [SEP].

The score of an option is read at the mask before it. As in the package `laya`, an option has at
most 48 tokens, options that do not fit are shortened to equal lengths, and so is the question. A
text that does not fit is an error here; the package removes its end.

Source: the package laya 0.4 (common.py), for equal tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from minhub_py.analysis.decision_prompts import InvalidTextError, State, as_text, checked_state
from minhub_py.analysis.questions import Question
from minhub_py.checkpoints.tokenizers.tokenizer import encode
from minhub_py.models.laya import QUESTION_TYPES, LayaConfig

# In tokens: of an option with its mask, of the shortened ones, and of the question; and the part of
# the budget that is the question's.
LONGEST_OPTION, SHORTEST_OPTION, SHORTEST_QUESTION, QUESTION_BUDGET = 49, 4, 8, 16
DEFAULTS = {"false": "no, the statement does not hold", "true": "yes, the statement holds"}


@dataclass(frozen=True)
class MarkedPrompt:
    """A prompt with a question. marks: the position before each option.    type: of the question,
    as a row of the model's embedding.
    """

    ids: list[int]
    marks: list[int]
    type: int


class OptionPrompts:
    """Prompts of Laya. ValueError: the tokenizer lacks a special token."""

    def __init__(self, tokenizer: Tokenizer, config: LayaConfig) -> None:
        self.tokenizer, self.config = tokenizer, config
        self.mask = next(
            (name for name in ("[MASK]", "<mask>") if tokenizer.token_to_id(name) is not None), ""
        )
        ids = [
            next((id for name in names if (id := tokenizer.token_to_id(name)) is not None), None)
            for names in (("[CLS]", "<s>", "<bos>"), ("[SEP]", "</s>", "<eos>"), (self.mask,))
        ]
        if not self.mask or None in ids:
            raise ValueError(
                "decide(): the tokenizer of Laya needs the tokens [CLS], [SEP], [MASK]"
            )
        self.first, self.end, self.mark = (int(id or 0) for id in ids)
        self._heads: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, which cannot contain a mask."""
        return encode(self.tokenizer, text.replace(self.mask, " "), add_special_tokens=False)

    def prompts(self, state: State, questions: Sequence[Question]) -> list[MarkedPrompt]:
        """A prompt for each question about a state.

        InvalidTextError: the state is empty, not JSON, or too long.    ValueError: a question with
        its options is too long.
        """
        text = self.encode(as_text(checked_state(state)))
        prompts, limit = [], self.config.context_length
        for question in questions:
            head, marks = self.head(question)
            ids = [*head, *text, self.end]
            if len(ids) > limit:
                raise InvalidTextError(
                    f"has {len(text):,} tokens, but this model reads at most"
                    f" {limit - len(head) - 1:,} with question {question.name!r}: shorten the text"
                )
            prompts.append(MarkedPrompt(ids, marks, QUESTION_TYPES.index(question.type)))
        return prompts

    def head(self, question: Question) -> tuple[list[int], list[int]]:
        """The tokens before the text, and the position of each option's mask.

        ValueError: they leave no room for a text.
        """
        key = (question.type, as_text(question.instructions), *option_texts(question))
        if key not in self._heads:
            self._heads[key] = self._head(question)
        return self._heads[key]

    def _head(self, question: Question) -> tuple[list[int], list[int]]:
        budget = self.config.head_max_len
        options = [
            [self.mark, *self.encode(f" {text}")][:LONGEST_OPTION]
            for text in option_texts(question)
        ]
        room = budget - sum(map(len, options))
        if room < QUESTION_BUDGET:
            size = max(SHORTEST_OPTION, (budget - QUESTION_BUDGET) // len(options))
            options = [option[:size] for option in options]
            room = budget - sum(map(len, options))
        text = self.encode(f"{question.type} question: {as_text(question.instructions)}")
        ids = [self.first, *text[: max(SHORTEST_QUESTION, room)], self.end]
        marks = []
        for option in options:
            marks.append(len(ids))
            ids += option
        ids.append(self.end)
        if len(ids) + 1 >= self.config.context_length:
            raise ValueError(
                f"question {question.name!r} with its {len(options)} options has {len(ids)} tokens,"
                f" and this model reads {self.config.context_length} with the text: ask with fewer"
                " options"
            )
        return ids, marks


def option_texts(question: Question) -> list[str]:
    """The text of each option in the prompt."""
    texts = []
    for option, description in zip(question.options, question.descriptions, strict=True):
        answer = as_text(description)
        if question.type == "score":
            texts.append(f"level {option}: {answer}")
        elif question.type == "noul":
            texts.append(f"{option}: {answer or DEFAULTS[option]}")
        else:
            texts.append(f"{option}: {answer}" if answer else option)
    return texts
