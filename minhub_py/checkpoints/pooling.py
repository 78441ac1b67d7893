"""The embedding of a text from its hidden states, by a repository's settings."""

import torch
import torch.nn.functional as F
from torch import Tensor

from minhub_py.checkpoints.sentence_transformers import EmbeddingSettings


def pooled(x: Tensor, settings: EmbeddingSettings, prompt: int = 0) -> Tensor:
    """The pooled hidden states (C',) of a text's hidden states (T, C). prompt: tokens to leave out
    of the pooling.

    If a text is truncated within its prompt and no special token follows, no token remains. As in
    sentence-transformers, the result is then the first token's hidden state with pooling "cls", and
    otherwise zeros.
    """
    first = 0 if settings.include_prompt else prompt
    if first >= len(x):
        return torch.cat(
            [x[0] if mode == "cls" else torch.zeros_like(x[0]) for mode in settings.pooling]
        )
    x = x[first:]
    parts = []
    for mode in settings.pooling:
        match mode:
            case "cls":
                parts.append(x[0])
            case "lasttoken":
                parts.append(x[-1])
            case "max":
                parts.append(x.amax(dim=0))
            case "mean":
                parts.append(x.mean(dim=0))
            case "mean_sqrt_len":
                parts.append(x.sum(dim=0) / len(x) ** 0.5)
            case "weightedmean":  # by position, which the prompt's tokens count for
                positions = torch.arange(first + 1, first + len(x) + 1, device=x.device)
                weights = positions.to(x.dtype).unsqueeze(1)
                parts.append((x * weights).sum(dim=0) / weights.sum())
    return torch.cat(parts)


def finished(
    x: Tensor, settings: EmbeddingSettings, dimensions: int | None, normalize: bool | None
) -> Tensor:
    """Embeddings (N, C'') after dense layers, normalization and `dimensions`; overwrites x if
    possible.
    """
    for dense in settings.dense:
        x = dense(x)
    # in training, PyTorch needs the values before the normalization
    if settings.normalize:
        x = F.normalize(x, dim=1, eps=1e-12, out=None if x.requires_grad else x)
    dimensions = settings.dimensions if dimensions is None else dimensions
    if dimensions is not None and dimensions < x.size(1):
        x = x[:, :dimensions].clone()
    return F.normalize(x, dim=1, eps=1e-12, out=x) if normalize else x
