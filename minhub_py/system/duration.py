"""Durations as in Ollama's `keep_alive`."""

import math
import re

UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
FOREVER = 1e9  # seconds; longer durations are unlimited


def parse_duration(value: object) -> float | None:
    """Seconds of a number, or of a text such as "30s", "5m" or "1h30m". None: unlimited (a negative
    duration).

    ValueError: another value.
    """
    if isinstance(value, str):
        sign, text = (-1 if value.startswith("-") else 1), value.removeprefix("-")
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
        if re.fullmatch(r"\d+(\.\d+)?", text):
            value = sign * float(text)
        elif parts and "".join(map("".join, parts)) == text:
            value = sign * sum(float(number) * UNITS[unit] for number, unit in parts)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ValueError(
            f"{str(value)[:100]!r} is not a duration: use seconds, or a text such as 5m"
        )
    return None if value < 0 or value > FOREVER else float(value)
