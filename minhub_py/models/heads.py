"""Heads of encoders: masked language model, classification of sequences and of tokens, question
answering.

A head is called with the hidden states (B, T, C), the token embedding, and the attention mask (B,
T) or None.

Sources
    Devlin et al. (2019), "BERT": the masked-LM head, and the pooled first token for classification.

Notation
    B batch rows    T positions    C channels    E size of the token embedding    V vocabulary    L
    labels
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minhub_py.models.layers import EmbeddingLayer
from minhub_py.models.settings import HEAD_SETTINGS, Effective

Activation = Callable[[Tensor], Tensor]
# The class of a transformers model, after the architecture's name -> the head.
HEADS = {
    "Model": None,
    "ForMaskedLM": "masked_lm",
    "ForPreTraining": "masked_lm",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "questions",
    "ForDecision": "decision",
}
SUFFIXES = {
    None: "Model",
    "masked_lm": "ForMaskedLM",
    "sequence": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "questions": "ForQuestionAnswering",
    "decision": "ForDecision",
}


class MaskedLMHead(nn.Module):
    """Logits (B, T, V) of the token at each position. The decoder is the token embedding, or a
    separate weight.

    act: None for a head without a transform and norm.    own_bias: whether an untied decoder has a
    separate bias, as in BERT; `bias` then has no effect.    output_bias: False for no bias of the
    decoder.
    """

    def __init__(
        self,
        size: int,
        embedding_size: int,
        vocab_size: int,
        act: Activation | None,
        norm: nn.Module | None,
        bias: bool,
        tied: bool,
        own_bias: bool = False,
        output_bias: bool = True,
    ) -> None:
        super().__init__()
        self.transform = None if act is None else nn.Linear(size, embedding_size, bias=bias)
        self.act, self.norm = act, norm
        self.decoder = None if tied else nn.Linear(embedding_size, vocab_size, bias=own_bias)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if output_bias else None

    def forward(self, x: Tensor, embedding: EmbeddingLayer, mask: Tensor | None = None) -> Tensor:
        if self.transform is not None and self.act is not None:
            x = self.act(self.transform(x))  # (B, T, E)
        x = x if self.norm is None else self.norm(x)
        weight, bias = self.output(embedding)
        return F.linear(x, weight, bias)

    def output(self, embedding: EmbeddingLayer) -> tuple[Tensor, Tensor | None]:
        """Weight (V, E) and bias (V,) of the decoder."""
        if self.decoder is None:
            return embedding.weight, self.bias
        return self.decoder.weight, self.bias if self.decoder.bias is None else self.decoder.bias


class SequenceHead(nn.Module):
    """Scores (B, L) of the labels, from one hidden state per text.

    pooling: the first token's hidden state ("cls"), the last token's, or the mean of all; "late":
    the mean of the activations of all tokens, which gives the mean of their scores.
    norm: between the activation and the output layer, or None.    input_dropout: before the first
    layer.
    """

    def __init__(
        self,
        size: int,
        labels: int,
        act: Activation,
        norm: nn.Module | None = None,
        bias: bool = True,
        pooling: Literal["cls", "last", "mean", "late"] = "cls",
        dropout: float = 0.0,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dense, self.act, self.norm = nn.Linear(size, size, bias=bias), act, norm
        self.out, self.pooling = nn.Linear(size, labels), pooling
        self.dropout, self.input_dropout = nn.Dropout(dropout), nn.Dropout(input_dropout)

    def forward(self, x: Tensor, embedding: object = None, mask: Tensor | None = None) -> Tensor:
        if self.pooling == "late":
            x = mean_of(self.act(self.dense(self.input_dropout(x))), mask)
        else:
            x = (
                mean_of(x, mask)
                if self.pooling == "mean"
                else last_of(x, mask)
                if self.pooling == "last"
                else x[:, 0]
            )
            x = self.act(self.dense(self.input_dropout(x)))  # (B, C)
        return self.out(self.dropout(x if self.norm is None else self.norm(x)))


class LastTokenHead(nn.Module):
    """Scores (B, L) of the labels from the last token, for decoders."""

    def __init__(self, size: int, labels: int) -> None:
        super().__init__()
        self.out = nn.Linear(size, labels, bias=False)

    def forward(self, x: Tensor, embedding: object = None, mask: Tensor | None = None) -> Tensor:
        return self.out(last_of(x, mask))


@dataclass(frozen=True)
class DecisionHead:
    """A decision head's settings, JevForDecision of transformers: a linear layer whose rows
    are scores of labels, at the token before each mark of a prompt.

    num_verbalizers: rows of the layer.    offsets: row of the first label of each type of question.
    softcap: of the scores, if any.
    """

    num_verbalizers: int = 24
    offsets: Mapping[str, int] = field(default_factory=lambda: {"noul": 0, "score": 2, "choice": 8})
    softcap: float | None = None

    def __post_init__(self) -> None:
        if set(self.offsets) != {"noul", "score", "choice"} or not all(
            type(row) is int and 0 <= row < self.num_verbalizers for row in self.offsets.values()
        ):
            raise ValueError(
                "offsets must be a row of the head for each of noul, score and choice, from 0 to"
                f" {self.num_verbalizers - 1}, not {self.offsets!r}"
            )

    def rows(self, kind: str, count: int) -> range:
        """The rows of a question's options. ValueError: it has more options than rows."""
        first = self.offsets[kind]
        if first + count > self.num_verbalizers:
            raise ValueError(
                f"{count} options are too many for a {kind} question of this model's decision head:"
                f" it has at most {self.num_verbalizers - first}"
            )
        return range(first, first + count)


class TokenHead(nn.Module):
    """Scores (B, T, L) of each token's labels; for question answering (B, T, 2), of an
    answer's start and end.

    act, norm: of an additional layer without bias, or None.
    """

    def __init__(
        self,
        size: int,
        labels: int,
        dropout: float = 0.0,
        act: Activation | None = None,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.dense = None if act is None else nn.Linear(size, size, bias=False)
        self.act, self.norm = act, norm
        self.out, self.dropout = nn.Linear(size, labels), nn.Dropout(dropout)

    def forward(self, x: Tensor, embedding: object = None, mask: Tensor | None = None) -> Tensor:
        if self.dense is not None and self.act is not None:
            x = self.act(self.dense(x))
        return self.out(self.dropout(x if self.norm is None else self.norm(x)))


def mean_of(x: Tensor, mask: Tensor | None) -> Tensor:
    """The mean (B, C) of hidden states (B, T, C) over the tokens of the mask (B, T)."""
    if mask is None:
        return x.mean(dim=1)
    weights = mask.to(x.dtype).unsqueeze(2)
    return (x * weights).sum(dim=1) / weights.sum(dim=1)


def last_of(x: Tensor, mask: Tensor | None) -> Tensor:
    """The hidden state (B, C) of the last token of the mask (B, T), of hidden states (B, T, C)."""
    if mask is None:
        return x[:, -1]
    last = (mask.long() * torch.arange(x.size(1), device=x.device)).argmax(dim=1)
    return x[torch.arange(len(x), device=x.device), last]


@dataclass(frozen=True)
class HeadSettings(Effective):
    """The settings of config.json that determine the head. Each encoder's config contains
    them.
    """

    IS_ENCODER: ClassVar = False
    architectures: list[str] | None = None
    id2label: dict | None = None  # type: ignore[type-arg]
    num_labels: int | None = None
    problem_type: str | None = None

    @property
    def head(self) -> str | None:
        """The head of the checkpoint, from the class of the transformers model; None for other
        classes.
        """
        name = (self.architectures or [""])[0]
        return next((head for suffix, head in HEADS.items() if name.endswith(suffix)), None)

    @property
    def table_head(self) -> str | None:
        """The head in the weight table."""
        return self.head

    @property
    def headless(self) -> list[str] | None:
        """The value of `architectures` for the same model without its head."""
        return None

    @property
    def labels(self) -> list[str]:
        """A classification head's labels. transformers' default is LABEL_0 and LABEL_1."""
        if self.id2label is not None:
            return [str(self.id2label[key]) for key in sorted(self.id2label, key=int)]
        return [f"LABEL_{number}" for number in range(self.num_labels or 2)]

    def drop_unused_labels(self) -> None:
        """Reset the settings of a decoder without a classification head, so that they do not
        distinguish configs.
        """
        if self.head == "sequence" or self.IS_ENCODER:
            return
        for setting in HEAD_SETTINGS:
            if setting != "architectures" or self.head != "decision":
                object.__setattr__(self, setting, None)

    def hub_head(self, name: str) -> dict[str, object]:
        """The settings of the head of a decoder or of T5 for config.json. name: the class without
        the head.
        """
        if self.head is None:
            return {"architectures": [name]}
        for suffix in ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "EncoderModel"):
            name = name.removesuffix(suffix)
        return {
            "architectures": [name + SUFFIXES[self.head]],
            "id2label": dict(enumerate(self.labels)),
            "label2id": {label: number for number, label in enumerate(self.labels)},
            **({} if self.problem_type is None else {"problem_type": self.problem_type}),
        }

    def without_head(self) -> dict[str, object]:
        """All settings except the head's."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in HeadSettings.__dataclass_fields__
        }

    def hub_settings(self, name: str) -> dict[str, object]:
        """All settings for config.json, with the class of the transformers model. name: the class
        without its end.
        """
        settings = asdict(self)
        for setting in ("id2label", "num_labels", "problem_type"):
            if settings[setting] is None:
                del settings[setting]
        if self.id2label is not None:
            settings["label2id"] = {label: number for number, label in enumerate(self.labels)}
        return {**settings, "architectures": [name + SUFFIXES[self.head]]}
