"""The heap of this process."""

import ctypes
import sys


def release_free_pages() -> None:
    """Return free pages of the heap to the system, with glibc: parts of different shapes leave
    gaps, which add up.
    """
    if (
        sys.platform == "linux"
        and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None
    ):
        trim(0)
