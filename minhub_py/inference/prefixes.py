"""The prefix cache in memory, and its entries, which disk_cache.py also stores on disk."""

from collections.abc import Sequence
from dataclasses import dataclass

from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache

# Entries of a prefix cache. Every prompt is compared with each; limited by bytes only, a small model would cache a
# million of them.
MAX_PREFIXES = 256


@dataclass(frozen=True)
class CachedPrefix:
    """Token IDs, and a cache of one row that contains them."""

    ids: list[int]
    cache: Cache


class PrefixCache:
    """Finished sequences, whose prefixes new prompts copy. size: in bytes; the least recently used ones are evicted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: list[CachedPrefix] = []  # least recently used first

    def longest(
        self, ids: Sequence[int], known: int = 0, loaded: CachedPrefix | None = None
    ) -> tuple[int, CachedPrefix | None]:
        """The longest common prefix of `ids` with an entry: its number of tokens, and the entry.

        known: a prefix of this length is known already; the result is (known, None) if no entry has a longer one.
        loaded: a prefix in addition to the entries.
        """
        best = None
        for prefix in self.entries if loaded is None else [*self.entries, loaded]:
            length = common_prefix(ids, prefix.ids)
            if length > known and prefix.cache.has_prefix(0, length):
                known, best = length, prefix
        return known, best

    def add(self, new: CachedPrefix) -> None:
        """Add an entry, or make it the most recently used one."""
        # An entry that is a prefix of the new one is redundant, unless it is the earlier state of a recurrent layer.
        self.entries = [
            prefix for prefix in self.entries
            if prefix.ids != new.ids[: len(prefix.ids)] or not new.cache.has_prefix(0, len(prefix.ids))
        ] + [new]  # fmt: skip
        while len(self.entries) > MAX_PREFIXES or sum(prefix.cache.size for prefix in self.entries) > self.size:
            self.entries.pop(0)


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
