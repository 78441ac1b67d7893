"""Ranges of the generation settings in Python, the shell and the HTTP APIs. Does not import
PyTorch.
"""

import re
from collections.abc import Mapping, Sequence
from math import inf
from reprlib import repr as brief
from typing import Any

from minhub_py.inference.arguments import all_of, is_number, is_text, is_whole

# Each decoding step compares the new text with every stop string.
MAX_STOPS, MAX_STOP_LENGTH = 64, 1000
# Settings of beam search. Each beam needs a row of the KV cache.
MAX_BEAMS, MAX_LENGTH_PENALTY, MAX_NGRAM = 64, 10, 1000
# Sampling settings that generation_config.json can have, and those of chats with a model whose file
# has none.
PUBLISHED_FIELDS = ("temperature", "top_k", "top_p", "repetition_penalty", "min_p")
CHAT_SAMPLING = {"temperature": 0.7, "top_p": 0.95}
# The OpenAI API's ranges.
MAX_BIASES, MAX_BIAS, MAX_PENALTY = 1024, 100, 2


def check_sampling(name: str, value: Any) -> None:
    """Check one sampling setting, such as temperature or top_k. See `sampling.Sampling` for their
    names.

    Raises:
        ValueError: a wrong type, or a value outside the setting's range.
    """
    if name in ("top_k", "top_p", "min_p", "logit_bias") and value is None:
        return
    if name == "logit_bias":
        check_logit_bias(value)
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
    if name == "min_p" and not 0 <= value <= 1:
        raise ValueError(f"min_p must be between 0 (no limit) and 1, not {value}")
    if (
        name in ("presence_penalty", "frequency_penalty")
        and not -MAX_PENALTY <= value <= MAX_PENALTY
    ):
        raise ValueError(
            f"{name} must be between -{MAX_PENALTY} and {MAX_PENALTY} (0 has no effect), not"
            f" {value}"
        )
    # Beyond this range, logits of ordinary size overflow.
    if name == "repetition_penalty" and not 0.01 <= value <= 100:
        raise ValueError(
            f"repetition_penalty must be between 0.01 and 100 (1 has no effect), not {value}"
        )


def check_beams(name: str, value: object) -> None:
    """Validate a setting of beam search by its name.

    Raises:
        ValueError: a wrong type, or a value outside the setting's range.
    """
    if name == "beams" and not (is_whole(value) and 1 <= value <= MAX_BEAMS):
        raise ValueError(
            f"beams must be a whole number from 1 (greedy decoding) to {MAX_BEAMS}, not"
            f" {brief(value)}"
        )
    if name == "length_penalty" and not (
        is_number(value) and -MAX_LENGTH_PENALTY <= float(str(value)) <= MAX_LENGTH_PENALTY
    ):
        raise ValueError(
            f"length_penalty must be a number from -{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY} (1"
            f" ranks by the mean log-probability), not {brief(value)}"
        )
    if name == "early_stopping" and not (isinstance(value, bool) or value == "never"):
        raise ValueError(f'early_stopping must be True, False or "never", not {brief(value)}')
    if name == "no_repeat_ngram_size" and not (is_whole(value) and 0 <= value <= MAX_NGRAM):
        raise ValueError(
            f"no_repeat_ngram_size must be a whole number from 0 (no effect) to {MAX_NGRAM}, not"
            f" {brief(value)}"
        )


def check_logit_bias(value: object) -> None:
    """ValueError: not a mapping of at most MAX_BIASES token IDs to numbers within MAX_BIAS."""
    if not isinstance(value, Mapping):
        raise ValueError(
            f"logit_bias must map token IDs to numbers, such as {{42: -100}}, not {brief(value)}"
        )
    if len(value) > MAX_BIASES:
        raise ValueError(
            f"logit_bias can have at most {MAX_BIASES:,} token IDs, not {len(value):,}"
        )
    for id, bias in value.items():
        if not is_whole(id) or id < 0:
            raise ValueError(
                f"logit_bias must map token IDs to numbers, but has the key {brief(id)}"
            )
        if not is_number(bias) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ValueError(
                f"logit_bias of token {id} must be a number between -{MAX_BIAS} and {MAX_BIAS}, not"
                f" {brief(bias)}"
            )


def parse_logit_bias(pairs: Sequence[str]) -> dict[int, float]:
    """The biases of texts such as "42=-100". ValueError: not ID=NUMBER, or out of range."""
    matches = [re.fullmatch(r"(\d{1,9})=(-?\d+(?:\.\d*)?)", pair) for pair in pairs]
    if not all(matches):
        raise ValueError("logit_bias must be a token ID and a number, such as 42=-100")
    biases = {int(match[1]): float(match[2]) for match in matches if match}
    check_logit_bias(biases)
    return biases


def stop_strings(value: str | Sequence[str]) -> tuple[str, ...]:
    """An argument's stop strings: one string, or several.

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
        raise ValueError(
            f"a stop string can have at most {MAX_STOP_LENGTH:,} characters, not {longest:,}"
        )
    return strings
