"""What torchrun says to each process that it starts, by environment variables. Does not import PyTorch."""

import os


def count() -> int:
    """How many processes torchrun has started on all machines; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """Which of them this process is, from 0."""
    return int(os.environ["RANK"]) if count() > 1 else 0


def local_count() -> int:
    """How many of them are on this machine, as far as torchrun says so."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if count() > 1 else 1


def local_rank() -> int:
    """Which of those this process is, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0")) if count() > 1 else 0
