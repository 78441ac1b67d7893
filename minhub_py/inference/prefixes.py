"""Entries of the prefix cache, in memory (batch.py) and on disk (disk_cache.py)."""

from collections.abc import Sequence
from dataclasses import dataclass

from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache


@dataclass(frozen=True)
class CachedPrefix:
    """Token IDs, and a cache of one row that contains them."""

    ids: list[int]
    cache: Cache


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens that two sequences have in common at their beginning."""
    length = min(len(first), len(second))
    if first[:length] == second[:length]:  # comparing lists is much faster than a loop
        return length
    return next(i for i in range(length) if first[i] != second[i])


def identity_of_weights(model: LanguageModel) -> list[object]:
    """A value that differs after a change of the model's weights: a prefix cache belongs to its weights."""
    from torch.multiprocessing.reductions import StorageWeakRef

    # New weights may be at the address of freed ones: a weak reference to the storage distinguishes them.
    return [(StorageWeakRef(tensor.untyped_storage()), tensor.data_ptr(),
             0 if tensor.is_inference() else tensor._version, tensor.dtype)
            for tensor in (*model.parameters(), *model.buffers())]  # fmt: skip
