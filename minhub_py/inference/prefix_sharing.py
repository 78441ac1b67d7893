"""Common prefixes of the sequences of a batch, of finished ones in memory, and of those on disk."""

from minhub_py.inference.disk_cache import DiskCache
from minhub_py.inference.prefixes import CachedPrefix, PrefixCache, common_prefix
from minhub_py.inference.rows import BatchRow, context_start
from minhub_py.models.cache import Cache
from minhub_py.models.lora import Invocation


class PrefixSharing:
    """Copies the longest common prefix of a prompt with another sequence.

    rows: the active sequences of the batch.    cache: of the batch.    prefixes: finished
    sequences.
    context: the model's context length.    invocation: of the model's activated adapter.
    """

    def __init__(
        self,
        rows: list[BatchRow],
        cache: Cache,
        prefixes: PrefixCache,
        disk: DiskCache | None,
        context: int | None,
        invocation: Invocation | None,
    ) -> None:
        self.rows, self.cache, self.prefixes, self.disk = rows, cache, prefixes, disk
        self.context, self.invocation = context, invocation

    def leader(self, row: BatchRow) -> tuple[BatchRow | None, int]:
        """The prompt in prefill whose beginning this one copies when it is computed, and the length
        of this beginning.

        A common beginning is computed once, before both prompts.
        """
        if context_start(len(row.text), self.context) > 0:
            return None, 0
        leader, shared = None, self._known(row)
        for active in self.rows:
            cached = self.cache.lengths[active.slot]
            if active.in_prefill and cached and self._can_copy(active, row):
                length = common_prefix(
                    row.text[:-1], active.text, row.adapter_start, active.adapter_start
                )
                if length > max(shared, cached):
                    leader, shared = active, length
        return leader, shared

    def start_loading(self, row: BatchRow) -> None:
        """Look for a prefix on disk that is longer than those in memory."""
        if (
            self.disk is None
            or row.loading is not None
            or context_start(len(row.text), self.context) > 0
        ):
            return
        row.loading = self.disk.load(row.text, self._known(row))

    def _known(self, row: BatchRow) -> int:
        """The length of the longest prefix in memory."""
        shared, _ = self._longest_active(row)
        shared, _ = self.prefixes.longest(row.text[:-1], row.adapter_start, self.invocation, shared)
        return shared

    def copy(self, row: BatchRow) -> int | None:
        """Copy the longest common prefix. Returns its number of tokens; None if the context starts
        later.
        """
        if context_start(len(row.text), self.context) > 0:
            return None
        loaded = None if row.loading is None else row.loading.result()
        length, slot = self._longest_active(row)
        length, entry = self.prefixes.longest(
            row.text[:-1], row.adapter_start, self.invocation, length, loaded
        )
        if entry is not None:
            self.cache.set_row(row.slot, entry.cache, 0, length)
            self.prefixes.add(entry)
        elif length:
            self.cache.set_row(row.slot, self.cache, slot, length)
        return length

    def _longest_active(self, row: BatchRow) -> tuple[int, int]:
        """The longest common prefix with an active sequence: its number of tokens, and the slot."""
        best, slot = 0, 0
        for active in self.rows:
            if self._can_copy(active, row):
                cached = active.text[: self.cache.lengths[active.slot]]
                length = common_prefix(
                    row.text[:-1], cached, row.adapter_start, active.adapter_start
                )
                if length > best and self.cache.has_prefix(active.slot, length):
                    best, slot = length, active.slot
        return best, slot

    def _can_copy(self, active: BatchRow, row: BatchRow) -> bool:
        """Whether a common prefix with an active sequence can be copied."""
        return (
            (self.prefixes.size > 0 or active.key == row.like)
            and active.encoder_ids == row.encoder_ids
            and not active.forked
            and context_start(len(active.text), self.context) == 0
        )

    def store(self, row: BatchRow) -> None:
        """Add a finished row's tokens to the prefix cache."""
        ids = row.text[: self.cache.lengths[row.slot]]
        if not ids or row.encoder_ids or context_start(len(row.text), self.context) > 0:
            return
        new = CachedPrefix(ids, self.cache.copy_of(row.slot), self.invocation)
        self.prefixes.add(new)
        if self.disk is not None:
            self.disk.store(new)
