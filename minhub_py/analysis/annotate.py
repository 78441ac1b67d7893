"""Label texts with a language model: each label's probability as the answer to a prompt.

A label's score is the log-probability of its complete token sequence after the prompt.
Probabilities are a softmax of the scores over the labels.

    sum (default)    score = log P(label | prompt), the sum over the tokens of the label
    tokens           score = sum / number of tokens
    characters       score = sum / number of characters

If the tokens of one label begin those of another, as in "positive" and "positive sentiment", the
end token is added to every label, so that the labels exclude each other. It is the chat template's
end of a reply, an encoder-decoder's end-of-sequence token, and otherwise the line end, which ends a
label in the prompt, or the end-of-sequence token if the tokenizer has no line end.

Sources
    Brown et al. (2020), "Language Models are Few-Shot Learners", for labels as continuations.
    Zhao et al. (2021), "Calibrate Before Use", for contextual calibration.
    Holtzman et al. (2021), "Surface Form Competition", for domain-conditional PMI.
    The lm-evaluation-harness, whose acc_norm divides by the number of characters.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from warnings import warn

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from minhub_py.analysis.codebook import Codebook, codebook_of
from minhub_py.analysis.columns import label_columns
from minhub_py.analysis.predictions import Progress
from minhub_py.analysis.prompts import Prompt, prompt_of
from minhub_py.analysis.scores import token_scores
from minhub_py.analysis.segments import as_texts
from minhub_py.analysis.tokens import encode_prompts
from minhub_py.inference.arguments import check_tokenizer, decoder_of
from minhub_py.models.base import LanguageModel
from minhub_py.system.tables import Columns

Array = NDArray[np.float64]
Calibration = Literal["contextual", "pmi"]
Length = Literal["sum", "tokens", "characters"]

CONTENT_FREE = ("N/A", "", "[MASK]")  # Zhao et al.'s inputs
TEXTS = 1024  # texts per call of `predict`, which bounds the memory for token IDs


def annotate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Iterable[str | None],
    labels: object,
    *,
    instruction: str | None = None,
    examples: Iterable[object] = (),
    calibrate: Calibration | None = None,
    length: Length = "sum",
    template: str | None = None,
    premise: str | None = None,
    sep: str | None = None,
    chat: bool | None = None,
    progress: Progress | None = None,
) -> Columns:
    r"""Label texts: each label's probability as the answer to a prompt.

        annotate(model, tokenizer, ["I enjoyed this film."], ["positive", "negative"])
        annotate(model, tokenizer, texts, {"positive": "praises something", "negative": "criticizes something"})
        annotate(model, tokenizer, texts, "codebook.yaml")

    The prompt consists of the instruction, the labels' definitions, the examples and the text. A
    model with a chat template receives it as messages. The common beginning of all prompts, and
    each text's prompt, are computed once. The length of a label affects its score; see the module's
    documentation for the rules.

    Args:
        model: A language model of this package, not a text encoder.
        tokenizer: The model's tokenizer.
        texts: Texts; None for a missing text.
        labels: A list of labels, a mapping of labels to definitions, a list of mappings with
            "label", "definition" and "words" (answers that mean the label; their probabilities are
            added), or the path of a codebook in YAML (see `minhub_py.analysis.codebook`).
        instruction: The task. Default: the codebook's, or a sentence that lists the labels.
        examples: Coded examples, as pairs (text, label).
        calibrate: "contextual" divides the probabilities by their mean for the texts "N/A", "" and
            "[MASK]". "pmi" subtracts the log-probability of the label after the prompt without the
            text.
        length: How a label's score depends on its length: "sum", or the mean over "tokens" or
            "characters".
        template: A text's prompt, with {text}. Default: "Text: {text}\nLabel:", or for a chat
            "Text: {text}".
        premise: For "pmi": replaces the template. Default: the template without a text.
        sep: The string between prompt and label. Default: a space, or nothing for a chat.
        chat: Whether to use the model's chat template. Default: if it has one.
        progress: Called with the number of processed tokens of labels and the total.

    Returns:
        Columns with one value per text: label (the most likely; None for a missing text), prob,
        margin (the difference to the second), and `prob_LABEL` for each label. Probabilities are
        float64 and sum to 1; they are NaN for a missing text.

    Raises:
        ValueError: The model is a text encoder; labels are repeated, have equal tokens or share a
            token with the prompt; the instruction and the examples exceed the context length;
            `chat` is True for a model without chat template.
    """
    model = decoder_of(model, "annotate()")
    check_tokenizer(tokenizer, "encode_batch")
    book = codebook_of(labels, instruction, examples)
    for name, value, choices in (
        ("calibrate", calibrate, (None, "contextual", "pmi")),
        ("length", length, ("sum", "tokens", "characters")),
    ):
        if value not in choices:
            raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}")
    if premise is not None and calibrate != "pmi":
        raise ValueError('premise is for calibrate="pmi": remove it, or set calibrate')
    rows = as_texts("texts", texts)
    prompt = prompt_of(
        model, tokenizer, book, template=template, premise=premise, sep=sep, chat=chat
    )
    answers = Answers.of(model, tokenizer, book, prompt)
    present = [number for number, text in enumerate(rows) if text is not None]
    encode = PromptEncoder(model, tokenizer, prompt, answers)
    references = []
    if calibrate == "contextual":
        references = encode.prompts(CONTENT_FREE)
    elif calibrate == "pmi":
        references = encode.encode([prompt.without_text])
    scores, baseline = label_scores(
        model,
        answers,
        encode,
        [rows[number] or "" for number in present],
        references,
        length,
        progress,
    )
    if calibrate == "pmi":
        scores = scores - baseline
    probs = softmax(scores)
    if calibrate == "contextual":
        probs = calibrated(probs, softmax(baseline).mean(axis=0))
    result = np.full((len(rows), len(book.names)), np.nan)
    result[present] = probs
    best, second = np.sort(result, axis=1)[:, :-3:-1].T
    return Columns(
        {"label": None, "prob": None, "margin": best - second, **label_columns(result, book.names)}
    )


def calibrated(probs: Array, content_free: Array) -> Array:
    """Contextual calibration: probabilities (N, K) divided by those of content-free texts (K,),
    with a sum of 1.

    Zhao et al.'s W = diag(content_free)^-1 and b = 0.
    """
    weighted = probs / (content_free / content_free.sum())
    return weighted / weighted.sum(axis=-1, keepdims=True)


def softmax(scores: Array) -> Array:
    """Each row's softmax."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class Answers:
    """The answers that mean the labels.

    ids: token IDs of each answer, with the end token if there is one.    labels: index of each
    answer's label.
    characters: number of characters of each answer.    count: number of labels.
    """

    ids: list[list[int]]
    labels: list[int]
    characters: list[int]
    count: int

    @classmethod
    def of(
        cls, model: LanguageModel, tokenizer: Tokenizer, book: Codebook, prompt: Prompt
    ) -> "Answers":
        """Tokenize the answers. ValueError: two have the same tokens, or one shares a token with
        the prompt.
        """
        words = [
            (number, word) for number, label in enumerate(book.labels) for word in label.answers
        ]
        ids = [prompt.answer_ids(word) for _, word in words]
        for i, first in enumerate(ids):
            for j in range(i):
                if first == ids[j]:
                    raise ValueError(
                        f"the tokenizer has the same tokens for {words[j][1]!r} and"
                        f" {words[i][1]!r}: use other labels, or other words for them in a codebook"
                    )
        if any(
            first != second and first == second[: len(first)] for first in ids for second in ids
        ):
            ids = [
                [*answer, *prompt.end_ids(word)]
                for answer, (_, word) in zip(ids, words, strict=True)
            ]
        return cls(
            ids, [number for number, _ in words], [len(word) for _, word in words], len(book.labels)
        )

    def scores(self, sums: Array, length: str) -> Array:
        """Scores (N, labels) from the log-probabilities (N, answers): a log-sum-exp over the
        answers of a label.
        """
        if length != "sum":
            lengths = self.characters if length == "characters" else [len(ids) for ids in self.ids]
            sums = sums / np.array(lengths)
        result = np.full((len(sums), self.count), -np.inf)
        for answer, label in enumerate(self.labels):
            result[:, label] = np.logaddexp(result[:, label], sums[:, answer])
        return result


class PromptEncoder:
    """Encodes prompts, and truncates texts that do not fit the context length. Warns once, at the
    end of `prompts`.
    """

    def __init__(
        self, model: LanguageModel, tokenizer: Tokenizer, prompt: Prompt, answers: Answers
    ) -> None:
        self.model, self.tokenizer, self.prompt = model, tokenizer, prompt
        context = None if model.encoder_decoder else model.config.context_length
        # An answer's last token is predicted, but not read.
        self.room = None if context is None else context + 1 - max(map(len, answers.ids))
        self.truncated = 0

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token IDs of complete prompts."""
        if self.prompt.chat is not None:
            return [self.prompt.chat.tokenize(text) for text in texts]
        return encode_prompts(self.model, self.tokenizer, texts)

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Token IDs of the prompts with these texts."""
        rows = self.encode([self.prompt.with_text(text) for text in texts])
        if self.room is not None:
            for number, ids in enumerate(rows):
                if len(ids) > self.room:
                    rows[number] = self.shorten(texts[number], len(ids))
                    self.truncated += 1
        if not all(rows):
            raise ValueError(
                "the prompt has no tokens: add an instruction, or text to the template"
            )
        return rows

    def shorten(self, text: str, count: int) -> list[int]:
        """Token IDs of a prompt of at most `room` tokens, which ends the text early. count: tokens
        with all of it.
        """
        assert self.room is not None
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        starts = [start for start, _ in encoding.offsets]
        keep = len(starts)
        while count > self.room:
            if keep == 0:
                raise ValueError(
                    f"the prompt has {count} tokens without a text, but the context has room for"
                    f" {self.room}: shorten the instruction, or use fewer examples"
                )
            keep = max(keep - (count - self.room), 0)
            [ids] = self.encode([self.prompt.with_text(text[: starts[keep]])])
            count = len(ids)
        return ids

    def warn(self) -> None:
        """Warn of truncated texts."""
        if self.truncated:
            texts = "1 text was" if self.truncated == 1 else f"{self.truncated} texts were"
            warn(
                f"{texts} truncated, because the prompt exceeds the model's context length",
                stacklevel=4,
            )


def label_scores(
    model: LanguageModel,
    answers: Answers,
    encode: PromptEncoder,
    texts: Sequence[str],
    references: list[list[int]],
    length: str,
    progress: Progress | None,
) -> tuple[Array, Array]:
    """The scores (N, labels) of texts, and of reference prompts."""
    per_prompt = sum(map(len, answers.ids))
    total = per_prompt * (len(texts) + len(references))
    completed = 0

    def report(computed: int, _: int) -> None:
        if progress is not None:
            progress(completed + computed, total)

    baseline = answers.scores(answer_logprobs(model, references, answers.ids, report), length)
    completed += per_prompt * len(references)
    parts = [np.empty((0, answers.count))]
    for first in range(0, len(texts), TEXTS):
        prompts = encode.prompts(texts[first : first + TEXTS])
        parts.append(answers.scores(answer_logprobs(model, prompts, answers.ids, report), length))
        completed += per_prompt * len(prompts)
    encode.warn()
    return np.concatenate(parts), baseline


def answer_logprobs(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    progress: Progress,
) -> Array:
    """The log-probability (nats) of each answer after each prompt, (N, answers). A prompt is
    computed once.
    """
    texts = [prompt for prompt in prompts for _ in answers]
    sums = [
        logprobs.sum()
        for logprobs, _ in token_scores(model, texts, [*answers] * len(prompts), progress)
    ]
    return np.array(sums).reshape(len(prompts), len(answers))
