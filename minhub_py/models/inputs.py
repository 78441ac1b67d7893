"""Checks of the inputs of a model's `forward`."""

import torch
from torch import Tensor

from minhub_py.models.cache import Cache
from minhub_py.models.settings import ModelConfig


def check_inputs(config: ModelConfig, idx: object, cache: Cache | None, size: int) -> None:
    """TypeError, ValueError: token IDs or a cache that `LanguageModel.forward` does not accept.

    size: number of token IDs.
    """
    title, limit = config.TITLE, config.context_length
    if cache is not None and not isinstance(cache, Cache):
        raise TypeError(
            f"{title}: the second argument is a cache from model.new_cache(), not"
            f" {type(cache).__name__}; for a loss, compare the logits with targets:"
            " F.cross_entropy(model(x).flatten(0, 1), y.flatten())"
        )
    if not isinstance(idx, Tensor) or idx.dtype not in (torch.int64, torch.int32):
        kind = idx.dtype if isinstance(idx, Tensor) else type(idx).__name__
        raise TypeError(
            f"{title}: idx must be a LongTensor (B, T), such as torch.tensor([token_ids]), not"
            f" {kind}"
        )
    if idx.dim() != 2 or not idx.numel():
        raise ValueError(
            f"{title}: idx must be (B, T) with at least one token ID, not {tuple(idx.shape)}"
        )
    longest = idx.size(1) + (0 if cache is None else max(cache.lengths))
    if limit is not None and longest > limit:
        name = next(
            name for name in ("n_positions", "max_position_embeddings") if hasattr(config, name)
        )
        raise ValueError(
            f"{title}: the input has {longest} positions, but this model has {limit} ({name}):"
            " shorten it"
        )
    if cache is not None and (
        idx.size(0) != len(cache.lengths) or (cache.bounded and longest > cache.max_length)
    ):
        room = f" rows of {cache.max_length}" if cache.bounded else " rows"
        raise ValueError(
            f"{title}: {idx.size(0)} rows of {longest} positions do not fit a cache of"
            f" {len(cache.lengths)}{room}"
        )
    # On a GPU the check would synchronize with the device; CUDA's own assertion catches a bad
    # token ID there.
    if idx.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = torch.aminmax(idx)
        if low < 0 or high >= size:
            raise ValueError(f"{title}: token IDs must be 0 to {size - 1}, not {low} to {high}")
