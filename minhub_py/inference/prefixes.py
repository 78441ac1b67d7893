"""The prefix cache in memory, and its entries, which disk_cache.py also stores on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from minhub_py.models.base import LanguageModel
from minhub_py.models.cache import Cache
from minhub_py.models.lora import Invocation

# Entries of a prefix cache. Every prompt is compared with each; limited by bytes only, a small
# model would cache a million of them.
MAX_PREFIXES = 256


@dataclass(frozen=True)
class CachedPrefix:
    """Token IDs, and a cache of one row that contains them. invocation: of an activated adapter
    that changed them.
    """

    ids: list[int]
    cache: Cache
    invocation: Invocation | None = None

    @property
    def adapter_start(self) -> int | None:
        """The first position that an activated adapter changes."""
        return self.cache.adapter_starts[0]


class PrefixCache:
    """Finished sequences, whose prefixes new prompts copy. size: in bytes; the least recently used
    ones are evicted.

    Models with activated adapters share the cache of their base: the tokens before the invocation
    are the base's.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: list[CachedPrefix] = []  # least recently used first
        self.lock = Lock()  # engines of several models may share a cache

    def longest(
        self,
        ids: Sequence[int],
        adapter_start: int | None = None,
        invocation: Invocation | None = None,
        known: int = 0,
        loaded: CachedPrefix | None = None,
    ) -> tuple[int, CachedPrefix | None]:
        """The longest common prefix of `ids` with an entry: its number of tokens, and the entry.

        adapter_start, invocation: of the activated adapter that changes `ids`; see `common_prefix`.
        known: a prefix of this length is known already; the result is (known, None) if no entry has
        a longer one.
        loaded: a prefix in addition to the entries.
        """
        best = None
        with self.lock:
            entries = [*self.entries] if loaded is None else [*self.entries, loaded]
        for prefix in entries:
            same = prefix.invocation is invocation
            length = common_prefix(ids, prefix.ids, adapter_start, prefix.adapter_start, same)
            if length > known and prefix.cache.has_prefix(0, length):
                known, best = length, prefix
        return known, best

    def add(self, new: CachedPrefix) -> None:
        """Add an entry, or make it the most recently used one."""

        # An entry that is a prefix of the new one is redundant, unless it is the earlier state of a
        # recurrent layer.
        def is_redundant(old: CachedPrefix) -> bool:
            same = old.invocation is new.invocation
            length = common_prefix(old.ids, new.ids, old.adapter_start, new.adapter_start, same)
            return length == len(old.ids) and new.cache.has_prefix(0, length)

        with self.lock:
            self.entries = [prefix for prefix in self.entries if not is_redundant(prefix)] + [new]
            while (
                len(self.entries) > MAX_PREFIXES
                or sum(prefix.cache.size for prefix in self.entries) > self.size
            ):
                self.entries.pop(0)


def common_prefix(
    first: Sequence[int],
    second: Sequence[int],
    first_start: int | None = None,
    second_start: int | None = None,
    same_adapter: bool = True,
) -> int:
    """The number of tokens that two sequences have in common at their beginning.

    first_start, second_start: the first positions that an activated adapter changes; None for the
    base. If the positions or the adapters differ, only the tokens before both positions have the
    same keys and values.
    """
    length = min(len(first), len(second))
    if first_start != second_start or not same_adapter:
        length = min(length, *(start for start in (first_start, second_start) if start is not None))
        first, second = first[:length], second[:length]
    if first[:length] == second[:length]:  # comparing lists is much faster than a loop
        return length
    return next(i for i in range(length) if first[i] != second[i])


def identity_of_weights(model: LanguageModel) -> list[object]:
    """A value that differs after a change of the model's weights: a prefix cache belongs to its
    weights.
    """
    from torch.multiprocessing.reductions import StorageWeakRef

    # New weights may be at the address of freed ones: a weak reference to the storage distinguishes
    # them.
    return [
        (
            StorageWeakRef(tensor.untyped_storage()),
            tensor.data_ptr(),
            0 if tensor.is_inference() else tensor._version,
            tensor.dtype,
        )
        for tensor in (*model.parameters(), *model.buffers())
    ]
