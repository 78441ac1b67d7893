"""Results that do not depend on the batch, chunks, prefixes and threads: with the decoder bitwise,
else up to rounding.

docs/internals/determinism.md states these guarantees.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from needs import missing
from references import LOGPROBS

from minhub_py.inference.encoder_runner import NativeEncoder, TorchEncoder
from minhub_py.inference.native_runner import NativeRunner
from minhub_py.inference.torch_runner import TorchRunner

EXACT = not missing("decoder")
# of unmodified models on the CPU
RUNNER: type[TorchRunner] = NativeRunner if EXACT else TorchRunner
ENCODER_RUNNER = NativeEncoder if EXACT else TorchEncoder
# PyTorch's largest difference of log-probabilities, by the dtype of the products; in float32 for a
# largest logit of 10.
ROUNDING = {"float32": 10 * LOGPROBS, "float16": 0.1, "bfloat16": 0.8}


def tolerance(dtype: str) -> float:
    """The largest difference. dtype: as in `in_dtype`."""
    return 0 if EXACT else ROUNDING.get(dtype.rpartition("+")[2], ROUNDING["float32"])


def assert_same(actual: Any, expected: Any, dtype: str = "float32") -> None:
    """The same numbers, in any structure: bitwise with the decoder, else up to rounding."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        assert_same(list(actual.values()), [expected[key] for key in actual], dtype)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, dtype)
    elif isinstance(expected, (float, torch.Tensor, np.ndarray)):
        values = [torch.as_tensor(value, dtype=torch.float64) for value in (actual, expected)]
        torch.testing.assert_close(*values, rtol=0, atol=tolerance(dtype), equal_nan=True)
    else:
        assert actual == expected


def assert_same_tokens(
    actual: Sequence[tuple], expected: Sequence[tuple], dtype: str = "float32"
) -> None:
    """The same (token ID, log-probability, ...) of a sequence.

    Without the decoder, sequences may differ after the first token whose alternative is as likely.
    With 16 bits, the random number of a sampled token can also be near the border between two
    tokens, however likely they are.
    """
    pairs = enumerate(zip(actual, expected, strict=False))
    first = next((i for i, (one, other) in pairs if one[0] != other[0]), None)
    if EXACT or first is None:
        assert_same(list(actual), list(expected), dtype)
        return
    assert_same(list(actual[:first]), list(expected[:first]), dtype)
    if "float16" not in dtype:
        assert_same(actual[first][1], expected[first][1], dtype)
