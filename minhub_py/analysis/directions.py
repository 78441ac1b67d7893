"""Directions in the space of activations that separate two groups of texts.

Sources
    Difference of means: Rimsky et al. (2024), "Steering Llama 2 via Contrastive Activation
        Addition".
    First principal component of paired differences: Zou et al. (2023), "Representation
        Engineering".
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minhub_py.analysis.activations import activations
from minhub_py.analysis.points import Points, recipe_of
from minhub_py.analysis.tokens import Text
from minhub_py.inference.arguments import check_list, model_of
from minhub_py.models.base import LanguageModel
from minhub_py.system.extras import require
from minhub_py.system.tables import Columns, Result

METHODS = ("mean", "pca", "logistic")


@dataclass(frozen=True)
class Direction(Result):
    """A direction at a point.

    Attributes:
        at: The name of the point.
        method: How the direction was computed.
        vector: float32 (size,). For "mean", its length is the distance between the means; otherwise
            1.
        projections: The dot product of the activations of each text with the unit vector, the
            positive texts first: (positive,) and (negative,).
    """

    at: str
    method: str
    vector: Tensor = field(repr=False)
    projections: tuple[Tensor, Tensor] = field(repr=False)

    def table(self) -> Columns:
        """Each text's projection: columns group ("positive" or "negative") and projection."""
        positive, negative = self.projections
        groups = ["positive"] * len(positive) + ["negative"] * len(negative)
        return Columns(group=groups, projection=torch.cat((positive, negative)).numpy())

    def heading(self) -> list[str]:
        """The point, the method and the accuracy."""
        return [
            f"Direction at {self.at}",
            f"{len(self.vector)} channels",
            self.method,
            f"accuracy {self.accuracy:.2f}",
        ]

    @property
    def unit(self) -> Tensor:
        """The vector with length 1."""
        return self.vector / self.vector.norm()

    @property
    def accuracy(self) -> float:
        """The proportion of texts on the correct side of the midpoint between the mean projections."""
        positive, negative = self.projections
        middle = (positive.mean() + negative.mean()) / 2
        return float(torch.cat((positive > middle, negative < middle)).float().mean())


def direction(
    model: LanguageModel,
    tokenizer: Tokenizer,
    positive: Sequence[Text],
    negative: Sequence[Text],
    at: str,
    *,
    method: Literal["mean", "pca", "logistic"] = "mean",
    pool: Literal["last", "mean"] = "last",
) -> Direction:
    """Compute the direction from the mean activation of negative texts to the mean of positive
    texts.

        love = direction(model, tokenizer, ["I love you"], ["I hate you"], at="layers.6.resid")
        generate(intervene(model, "layers.6.resid", "add", love, scale=2), prompts)

    Args:
        model: A model of this package, or the result of `intervene`.
        tokenizer: The model's tokenizer; None if the texts are token IDs.
        positive: Texts, at least one.
        negative: Texts, at least one.
        at: The name of one point, such as "layers.6.resid".
        method: "mean": mean of the positive minus mean of the negative activations. "pca": the
            first principal component of the differences of pairs (the i-th positive and the i-th
            negative text), without centering, oriented towards the positive texts. "logistic": the
            weights of a logistic regression with an L2 penalty of 1 (requires scikit-learn).
        pool: A text's activation: of its "last" token, or the "mean" over its tokens.

    Returns:
        The direction, and the projections of the texts onto it.

    Raises:
        ValueError: A group is empty, "pca" without pairs, groups with equal means, an
            encoder-decoder's decoder, or as `activations`.
    """
    model = model_of(model, "direction()")
    point = Points(recipe_of(model).model).find_one(at)
    if method not in METHODS:
        raise ValueError(f'method must be "mean", "pca" or "logistic", not {method!r}')
    if pool not in ("last", "mean"):
        raise ValueError(f'pool must be "last" or "mean", not {pool!r}')
    groups = []
    for name, texts in (("positive", positive), ("negative", negative)):
        check_list(name, texts, "texts")
        if not len(texts):
            raise ValueError(f"{name} must be a list of at least one text, not {texts!r}")
        groups.append(activations(model, tokenizer, texts, point.name, pool=pool)[point.name])
    vector = vector_of(groups[0], groups[1], method)
    if not vector.norm() > 0:
        raise ValueError(
            "the positive and the negative texts have the same activations: pass texts that differ"
        )
    unit = vector / vector.norm()
    return Direction(point.name, method, vector, (groups[0] @ unit, groups[1] @ unit))


def vector_of(positive: Tensor, negative: Tensor, method: str) -> Tensor:
    """The direction (size,) for activations (n, size) of two groups."""
    difference = positive.mean(dim=0) - negative.mean(dim=0)
    if method == "mean":
        return difference
    if method == "pca":
        if len(positive) != len(negative):
            raise ValueError(
                f'method "pca" needs pairs: pass as many positive texts ({len(positive)}) as'
                f" negative texts ({len(negative)})"
            )
        vector = torch.linalg.svd(positive - negative, full_matrices=False).Vh[0]
        return -vector if vector @ difference < 0 else vector
    require("probe")
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-not-found,import-untyped]

    x = torch.cat((positive, negative)).numpy()
    model = LogisticRegression(max_iter=5000).fit(x, [1] * len(positive) + [0] * len(negative))
    weights = torch.as_tensor(model.coef_[0], dtype=torch.float32)
    return weights / weights.norm()
