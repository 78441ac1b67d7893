"""Access to a checkpoint with one tensor in memory at a time."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from minhub_py.checkpoints.storage import Checkpoint


class SingleTensors(Mapping[str, Tensor]):
    """A checkpoint that closes its files after each tensor, so that only one is in memory."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def __getitem__(self, name: str) -> Tensor:
        self.checkpoint.release()
        return self.checkpoint[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.checkpoint)

    def __len__(self) -> int:
        return len(self.checkpoint)
