"""Classification heads: labels of texts, zero-shot labels by an entailment model, and reranking.

A decoder reranks by its answer to a question: the probability of "yes" against "no"
(Qwen3-Reranker).

Sources
    Yin, Hay & Roth (2019), "Benchmarking Zero-shot Text Classification", for labels by entailment.
    Nogueira & Cho (2019), "Passage Re-ranking with BERT", for cross-encoders.
    Zhang et al. (2025), "Qwen3 Embedding", for reranking with a decoder, and its prompt.
"""

from collections.abc import Iterable, Sequence
from reprlib import repr as brief
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.columns import label_columns, value_names
from minhub_py.analysis.encoders import Input, head_output, hidden_states, inputs_of
from minhub_py.analysis.predictions import Progress, Span, predict
from minhub_py.analysis.segments import as_texts
from minhub_py.checkpoints.tokenizers.tokenizer import working
from minhub_py.inference.arguments import check_integer, check_tokenizer, decoder_of, model_of
from minhub_py.inference.prompts import check_prompts
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Classifier, Encoder
from minhub_py.system.spelling import call_name
from minhub_py.system.tables import Columns

HYPOTHESIS = "This example is {}."
# Qwen3-Reranker's prompt.
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PROMPT = (
    (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query"
        ' and the Instruct provided. Note that the answer can only be "yes" or'
        ' "no".<|im_end|>\n<|im_start|>user\n'
    ),
    "<Instruct>: {}\n<Query>: {}\n<Document>: {}",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


def classify(
    model: LanguageModel,
    tokenizer: Tokenizer,
    texts: Iterable[str | None],
    labels: Sequence[str] | None = None,
    *,
    hypothesis: str = HYPOTHESIS,
    multi_label: bool = False,
    progress: Progress | None = None,
) -> Columns:
    """Classify texts with a checkpoint that has a classification head.

        classify(model, tokenizer, ["I enjoyed this film."])
        classify(nli_model, tokenizer, ["Who will win the election?"], ["politics", "sports"])

    With `labels`, an entailment model (NLI) classifies without training: a label's probability
    follows from the entailment of `hypothesis` with the label, given the text.

    Args:
        model: An encoder or decoder with a sequence classification head.
        tokenizer: The model's tokenizer.
        texts: Texts; None for a missing text.
        labels: Labels for zero-shot classification. Default: the labels of the checkpoint.
        hypothesis: A sentence with {} in place of the label.
        multi_label: With `labels`: whether each label has its own probability, of entailment
            against contradiction.
        progress: Called with the number of processed tokens and the total.

    Returns:
        Columns with one value per text: label (the most likely; None for a missing text, or a text
        without tokens), prob, and one column of probabilities for each label, named `prob_LABEL`.
        Probabilities are a softmax over the labels; for one label, for `problem_type`
        multi_label_classification and with `multi_label`, each is a sigmoid. For a regression head
        (`problem_type` regression), only the predicted value: `value`, or `value_LABEL` for each of
        several outputs.

    Raises:
        ValueError: The model has no sequence classification head; with `labels`, it has no label
            that begins with "entail", or `hypothesis` has no {}.
    """
    model = classifier(model, "classify()")
    rows = as_texts("texts", texts)
    present = [number for number, text in enumerate(rows) if text is not None]
    strings = [rows[number] or "" for number in present]
    names = model.config.labels if labels is None else list(labels)
    config: Any = model.config
    is_regression = labels is None and config.problem_type == "regression"
    if labels is None:
        values = scores_of(model, tokenizer, strings, None, progress)
        values = values if is_regression else probabilities(values, config.problem_type)
    else:
        values = zero_shot(model, tokenizer, strings, names, hypothesis, multi_label, progress)
    result = np.full((len(rows), len(names)), np.nan, np.float32)
    result[present] = values.numpy().reshape(len(present), len(names))
    if is_regression:
        return Columns(zip(value_names(names), result.T, strict=True))
    return label_columns(result, names)


def zero_shot(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    labels: Sequence[str],
    hypothesis: str,
    multi_label: bool,
    progress: Progress | None,
) -> Tensor:
    """Probabilities (texts, labels) of labels by entailment."""
    if not labels:
        raise ValueError("labels must have at least one label")
    if "{}" not in hypothesis:
        raise ValueError(
            f"hypothesis must contain {{}} in place of the label, not {brief(hypothesis)}"
        )
    names = [name.lower() for name in model.config.labels]
    entailment = next((i for i, name in enumerate(names) if name.startswith("entail")), None)
    if entailment is None:
        raise ValueError(
            "labels need an entailment model, but this checkpoint has the labels"
            f" {brief(model.config.labels)}: use a model trained on natural language inference"
            " (NLI)"
        )
    contradiction = next(
        (i for i, name in enumerate(names) if name.startswith("contra")),
        -1 if entailment == 0 else 0,
    )
    first = [text for text in texts for _ in labels]
    second = [hypothesis.replace("{}", label) for _ in texts for label in labels]
    scores = scores_of(model, tokenizer, first, second, progress, only_first=True)
    if multi_label or len(labels) == 1:
        return (
            scores[:, [contradiction, entailment]]
            .softmax(dim=1)[:, 1]
            .view(len(texts), len(labels))
        )
    return scores[:, entailment].view(len(texts), len(labels)).softmax(dim=1)


def rerank(
    model: LanguageModel,
    tokenizer: Tokenizer,
    query: str,
    texts: Iterable[str],
    *,
    k: int | None = None,
    instruction: str | None = None,
    raw_scores: bool = False,
    progress: Progress | None = None,
) -> Columns:
    """Sort texts by their relevance for a query, with a cross-encoder or Qwen3-Reranker.

        rerank(model, tokenizer, "How many people live in Berlin?", texts, k=3)

    Args:
        model: An encoder or decoder with a sequence classification head of one label, or
            Qwen3-Reranker.
        tokenizer: The model's tokenizer.
        query: The query.
        texts: Texts.
        k: Number of texts to return; default: all.
        instruction: For Qwen3-Reranker: the task of retrieval. Default: web search. With a
            classification head, the texts are in its prompt only if an instruction is given, and
            otherwise a plain pair with the query.
        raw_scores: Whether to return scores before the sigmoid.
        progress: Called with the number of processed tokens and the total.

    Returns:
        Columns, the most relevant text first: text (its number, from 0), rank (from 1) and score.

    Raises:
        ValueError: The model has no sequence classification head, or one of several labels; it is a
            decoder whose tokenizer lacks the tokens of the prompt; it is an encoder, and
            `instruction` is given.
    """
    model = model_of(model, "rerank()")
    rows = [text or "" for text in as_texts("texts", texts)]
    if not model.encoder_only and not model.encoder_decoder:
        model = decoder_of(model, "rerank()")
        scores = answers(
            model,
            tokenizer,
            query,
            rows,
            INSTRUCTION if instruction is None else instruction,
            progress,
        )
    else:
        model = classifier(model, "rerank()")
        if len(model.config.labels) != 1:
            raise ValueError(
                f"rerank() needs a cross-encoder with one label, not {len(model.config.labels)}:"
                " use classify(), or similarity() of embeddings"
            )
        if instruction is None:
            scores = scores_of(model, tokenizer, [query] * len(rows), rows, progress)[:, 0]
        elif isinstance(model, Classifier):
            prompts = reranker_prompts(model, tokenizer, query, rows, instruction)
            scores = scores_of_inputs(
                model, [Input(ids, [0] * len(ids)) for ids in prompts], progress
            )[:, 0]
        else:
            raise ValueError(
                "instruction is for decoders such as Qwen3-Reranker; this model is an encoder"
            )
    scores = scores if raw_scores else scores.sigmoid()
    order = scores.argsort(descending=True, stable=True)[
        : len(rows) if k is None else check_integer("k", k, 1)
    ]
    return Columns(
        {
            "text": order.numpy(),
            "rank": np.arange(1, len(order) + 1),
            "score": scores[order].numpy(),
        }
    )


def answers(
    model: LanguageModel,
    tokenizer: Tokenizer,
    query: str,
    texts: Sequence[str],
    instruction: str,
    progress: Progress | None,
) -> Tensor:
    """logit("yes") - logit("no") after the prompt with each text, (N,). Long texts are truncated."""
    prompts = check_prompts(model, reranker_prompts(model, tokenizer, query, texts, instruction))
    yes, no = tokenizer.token_to_id("yes"), tokenizer.token_to_id("no")
    scores = torch.empty(len(prompts))

    def consume(logits: Tensor, rows: list[int], numbers: list[int], _: list[int]) -> None:
        scores[numbers] = (logits[rows, yes].float() - logits[rows, no].float()).cpu()

    predict(
        model, [Span(prompt, len(prompt), len(prompt) + 1) for prompt in prompts], consume, progress
    )
    return scores


def reranker_prompts(
    model: LanguageModel, tokenizer: Tokenizer, query: str, texts: Sequence[str], instruction: str
) -> list[list[int]]:
    """The token IDs of Qwen3-Reranker's prompt with each text. Long texts are truncated.

    ValueError: the tokenizer lacks tokens of the prompt.
    """
    check_tokenizer(tokenizer, "encode_batch")
    if any(tokenizer.token_to_id(token) is None for token in ("yes", "no", "<|im_start|>")):
        raise ValueError(
            "rerank() needs a cross-encoder, or a decoder whose tokenizer has the tokens"
            " <|im_start|>, yes and no, such as Qwen3-Reranker"
        )
    head, _, tail = (tokenizer.encode(part, add_special_tokens=False).ids for part in PROMPT)
    limits = (
        model.config.context_length,
        getattr(model.embedding_settings, "max_length", None),
        2**31,
    )
    room = max(min(limit for limit in limits if limit is not None) - len(head) - len(tail), 0)
    with working(tokenizer):
        encoded = tokenizer.encode_batch(
            [PROMPT[1].format(instruction, query, text) for text in texts], add_special_tokens=False
        )
    return [[*head, *encoding.ids[:room], *tail] for encoding in encoded]


def probabilities(scores: Tensor, problem_type: str | None) -> Tensor:
    """Probabilities of scores (N, labels), by the rules of transformers' pipelines."""
    if problem_type == "multi_label_classification" or scores.size(1) == 1:
        return scores.sigmoid()
    return scores.softmax(dim=1)


def scores_of(
    model: Encoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    progress: Progress | None,
    *,
    only_first: bool = False,
) -> Tensor:
    """Scores (N, labels), float32, of texts or pairs of texts."""
    settings = model.embedding_settings
    max_length = None if settings is None else settings.max_length
    inputs = list(
        inputs_of(model, tokenizer, texts, pairs, max_length=max_length, only_first=only_first)
    )
    return scores_of_inputs(model, inputs, progress)


@torch.inference_mode()
def scores_of_inputs(model: Encoder, inputs: Sequence[Input], progress: Progress | None) -> Tensor:
    """Scores (N, labels), float32, of inputs. NaN for an input without tokens."""
    scores = torch.full((len(inputs), len(model.config.labels)), torch.nan)
    numbers = [number for number, row in enumerate(inputs) if row.ids]
    inputs = [inputs[number] for number in numbers]
    for i, x in hidden_states(model, inputs, progress):
        scores[numbers[i]] = head_output(model, x)
    return scores


def classifier(model: object, call: str) -> Encoder:
    """The model. ValueError: it is not an encoder with a sequence classification head."""
    result: Encoder = model_of(model, call)
    check_classifier(result.config, call)
    return result


def check_classifier(config: object, call: str) -> None:
    """ValueError: the checkpoint has no sequence classification head."""
    head = getattr(config, "head", None)
    if head == "sequence":
        return
    solution = "use a checkpoint with an architecture …ForSequenceClassification"
    if head == "tokens":
        solution = f"use {call_name('entities')} for its token classification head"
    if head == "questions":
        solution = f"use {call_name('answer')} for its question answering head"
    raise ValueError(
        f"{call} needs a sequence classification head, which this checkpoint does not have:"
        f" {solution}"
    )
