"""A benchmark's first line: the processor, and what computes on it."""

import sys

from minhub_py.inference.native.library import measured
from minhub_py.system import processor


def announce() -> None:
    """Print the line. Without the decoder in C, the benchmark ends unless MINHUB_NO_DECODER is set."""
    try:
        print(f"{processor.name()}, {measured()}", flush=True)
    except ValueError as error:
        sys.exit(str(error))
