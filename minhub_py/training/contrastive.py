"""Contrastive fine-tuning of text embeddings: pairs and triplets of texts.

Sources
    Henderson et al. (2017), "Efficient Natural Language Response Suggestion for Smart Reply", for
        a batch's other texts as negatives; sentence-transformers'
        MultipleNegativesRankingLoss.
    Schroff, Kalenichenko & Philbin (2015), "FaceNet", for the margin of triplets; its TripletLoss.

Notation
    B examples    N candidates    C channels
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from minhub_py.checkpoints.embedding_files import embedding_files
from minhub_py.checkpoints.pooling import finished, pooled
from minhub_py.checkpoints.sentence_transformers import (
    EmbeddingSettings,
    read_embedding_settings,
)
from minhub_py.loading.files import ModelFiles
from minhub_py.models.base import LanguageModel
from minhub_py.models.encoder import Encoder
from minhub_py.training.checkpoint import RunFolder, write_atomically
from minhub_py.training.errors import reading

# of the settings of embeddings in the folder of the tokens
FOLDER = "embedding"


def ranking_loss(anchors: Tensor, others: Sequence[Tensor], scale: float) -> Tensor:
    """The sum of -log softmax(scale · cosine) of each anchor's positive, among all texts of the
    batch.

    anchors: (B, C).    others: the positives (B, C), and optionally the negatives.
    """
    candidates = F.normalize(torch.cat(list(others)), dim=1)  # (N, C)
    scores = scale * (F.normalize(anchors, dim=1) @ candidates.T)  # (B, N)
    targets = torch.arange(len(anchors), device=scores.device)
    return F.cross_entropy(scores, targets, reduction="sum")


def margin_loss(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """The sum of max(0, |a - p| - |a - n| + margin), with Euclidean distances. Each (B, C)."""
    to_positive, to_negative = (
        F.pairwise_distance(anchors, text) for text in (positives, negatives)
    )
    return F.relu(to_positive - to_negative + margin).sum()


def embeddings(model: LanguageModel, idx: Tensor, mask: Tensor) -> Tensor:
    """The embeddings (B, C), float32, of padded texts (B, T), as `embed` computes them."""
    settings: EmbeddingSettings = model.embedding_settings
    hidden = model.hidden_states(idx, mask) if isinstance(model, Encoder) else model.hidden(idx)
    lengths = mask.sum(dim=1).tolist()
    vectors = torch.stack(
        [pooled(x[:length].float(), settings) for x, length in zip(hidden, lengths, strict=True)]
    )
    return finished(vectors, settings, None, None)


def settings_of(start: ModelFiles) -> EmbeddingSettings:
    """The settings of the embeddings of the model to fine-tune; by default, the mean of the hidden
    states.

    ValueError: it has no dense embeddings.
    """
    settings = read_embedding_settings(start.path) or EmbeddingSettings()
    if settings.splade is not None or settings.tokens is not None:
        raise ValueError(
            f"{start.path} has sparse embeddings or one vector per token: pairs and triplets train"
            " models with one dense vector per text"
        )
    if getattr(start.config, "head", None) not in (None, "masked_lm"):
        raise ValueError(
            f"{start.path} has a classification head: pairs and triplets need a model without one"
        )
    return settings


def write_settings(folder: RunFolder, start: ModelFiles, context: int) -> int:
    """Store the settings of the embeddings with a run's tokens. Returns the maximum length of
    its texts.
    """
    settings = settings_of(start)
    path = folder.tokens / FOLDER
    for name, content in embedding_files(settings, 0).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path / name, content)
    return min(context, settings.max_length or context)


def read_settings(folder: RunFolder) -> EmbeddingSettings:
    """The settings of `write_settings`. CorruptError: a file is missing or corrupt."""
    path = folder.tokens / FOLDER
    with reading(path / "modules.json"):
        settings = read_embedding_settings(path)
        assert settings is not None
        return settings
