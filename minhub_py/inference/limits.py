"""Ranges of the generation settings in Python, the shell and the HTTP APIs. Does not import PyTorch."""

from collections.abc import Sequence
from math import inf
from reprlib import repr as brief
from typing import Any

from minhub_py.inference.arguments import all_of, is_number, is_text, is_whole

# Each decoding step compares the new text with every stop string.
MAX_STOPS, MAX_STOP_LENGTH = 64, 1000


def check_sampling(name: str, value: Any) -> None:
    """Check one sampling setting: temperature, top_k, top_p or repetition_penalty.

    Raises:
        ValueError: a wrong type, or a value outside the setting's range.
    """
    if name in ("top_k", "top_p") and value is None:
        return
    if name == "top_k":
        if not is_whole(value) or value < 1:
            raise ValueError(f"top_k must be a whole number of at least 1, not {brief(value)}")
        return
    if not is_number(value):
        raise ValueError(f"{name} must be a number, not {brief(value)}")
    if name == "temperature" and not 0 <= value < inf:
        raise ValueError(f"temperature must be 0 (greedy) or more, not {value}")
    if name == "top_p" and not 0 < value <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, not {value}")
    # Beyond this range, logits of ordinary size overflow.
    if name == "repetition_penalty" and not 0.01 <= value <= 100:
        raise ValueError(f"repetition_penalty must be between 0.01 and 100 (1 has no effect), not {value}")


def stop_strings(value: str | Sequence[str]) -> tuple[str, ...]:
    """The stop strings of an argument: one string, or several.

    Raises:
        ValueError: a wrong type, an empty string, or strings beyond MAX_STOPS and MAX_STOP_LENGTH.
    """
    strings = all_of((value,) if isinstance(value, str) else value, is_text)
    if strings is None:
        raise ValueError(f"stop must be a string or a list of strings, not {brief(value)}")
    if "" in strings:
        raise ValueError("a stop string cannot be empty")
    if len(strings) > MAX_STOPS:
        raise ValueError(f"stop can have at most {MAX_STOPS} strings, not {len(strings):,}")
    longest = max(map(len, strings), default=0)
    if longest > MAX_STOP_LENGTH:
        raise ValueError(f"a stop string can have at most {MAX_STOP_LENGTH:,} characters, not {longest:,}")
    return strings
