"""Settings of rotary embeddings: from rope_parameters of config.json to the angles of positions.

`layers.rotate` applies the angles. A head rotates R of its D numbers.

Sources
    Su et al. (2021), "RoFormer". llama3: Grattafiori et al. (2024). yarn: Peng et al. (2023),
        equations 18 to 23.
    linear: Chen et al. (2023). dynamic: equal to default within the context length, the maximum in
        this package.
    longrope: Ding et al. (2024). proportional: default, but only a part of the pairs rotates (Gemma
        4).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from reprlib import repr as brief
from typing import Any

import torch
from torch import Tensor

from minhub_py.models.layers import query_scale, rotary_angles, rotate
from minhub_py.system.json_text import JsonMapping, JsonObject
from minhub_py.system.shapes import convert, fits

# large integers become floats; `check` rejects other values
NUMBERS: Any = float | list[float] | object

# Settings of each rope_type in addition to rope_theta and partial_rotary_factor: (required,
# optional).
ROPE_TYPES: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, {"original_max_position_embeddings"}),
    "llama3": (
        {"factor", "low_freq_factor", "high_freq_factor"},
        {"original_max_position_embeddings"},
    ),
    "yarn": (
        {"factor"},
        {
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
            "llama_4_scaling_beta",
            "max_position_embeddings",
        },
    ),
    "longrope": (
        {"short_factor", "long_factor", "original_max_position_embeddings"},
        {"factor", "attention_factor"},
    ),
    "proportional": (set(), {"factor", "partial_rotary_factor"}),
}


@dataclass(frozen=True)
class Rope:
    """Angles of positions. Plain numbers, not buffers: there is nothing to load, move or round to
    16 bits.

    frequencies: the angle per position of each of the R/2 pairs.    amplitude: a factor of cosine
    and sine.
    query_scaling: queries are multiplied by 1 + query_scaling · ln(1 + floor((position + first) / original)),
    as in Ministral 3, whose `first` is 0.
    short: the angles of caches with at most `original` positions (longrope); None: the same.
    """

    frequencies: tuple[float, ...]
    amplitude: float = 1.0
    query_scaling: float = 0.0
    original: float = 1.0
    short: tuple[float, ...] | None = None
    first: int = 0

    def sized(self, size: float) -> "Rope":
        """The angles for a cache of `size` positions: one choice for all positions of a text."""
        if self.short is None:
            return self
        return replace(
            self, frequencies=self.short if size <= self.original else self.frequencies, short=None
        )

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cosine and sine (…, R/2) of the angles at `positions` (…), and the factor (…) of queries
        or None: float32.
        """
        cos, sin = rotary_angles(positions, list(self.frequencies), self.amplitude)
        return (
            cos,
            sin,
            query_scale(positions + self.first, self.query_scaling, self.original)
            if self.query_scaling
            else None,
        )


class Rotation:
    """The rotation of one forward call. dtype: dtype of the products.

    cos, sin: (B or 1, 1, T, R/2).    query_scaling: the factor (B or 1, 1, T, 1) of queries, or None.
    """

    def __init__(
        self, rope: Rope, positions: Tensor, dtype: torch.dtype, interleaved: bool = False
    ) -> None:
        cos, sin, query_scaling = rope(positions)  # (B or 1, T, R/2) twice, (B or 1, T) or None
        self.cos, self.sin = cos.to(dtype).unsqueeze(1), sin.to(dtype).unsqueeze(1)
        self.query_scaling = (
            None if query_scaling is None else query_scaling.to(dtype)[:, None, :, None]
        )
        self.interleaved = interleaved

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries (B, H, T, D) and keys (B, G, T, D)."""
        q = rotate(q, self.cos, self.sin, self.interleaved)
        k = rotate(k, self.cos, self.sin, self.interleaved)
        return q if self.query_scaling is None else q * self.query_scaling, k


def completed(
    parameters: Mapping[str, object] | None, context: int, theta: float = 1e4
) -> dict[str, object]:
    """rope_parameters with defaults for rope_type, rope_theta and original_max_position_embeddings
    (context).
    """
    settings = {name: value for name, value in (parameters or {}).items() if value is not None}
    rope = {"rope_type": "default", "rope_theta": theta, **settings}
    if rope["rope_type"] in ("llama3", "yarn"):
        rope.setdefault("original_max_position_embeddings", context)
    completed: JsonObject = convert(rope, dict[str, NUMBERS])
    return completed


def check(
    title: str,
    rope: JsonMapping,
    *,
    partial: bool = False,
    grows: bool = False,
    longrope: bool = False,
    proportional: bool = False,
) -> None:
    """ValueError: a setting contradicts rope_type or is out of range.

    partial, grows: whether the architecture supports partial_rotary_factor, llama_4_scaling_beta.
    longrope, proportional: whether it supports this rope_type.
    """
    kind = rope["rope_type"]
    supported = {"longrope": longrope, "proportional": proportional}
    kinds = [name for name in ROPE_TYPES if supported.get(name, True)]
    if kind not in kinds:
        raise ValueError(
            f"{title}: rope_parameters' rope_type {brief(kind)} is not one of {', '.join(kinds)}"
        )
    required, optional = ROPE_TYPES[kind]
    if absent := sorted(required - set(rope)):
        raise ValueError(f"{title}: rope_parameters of rope_type {kind} lacks {', '.join(absent)}")
    names = (
        required
        | optional
        | {"rope_type", "rope_theta"}
        | ({"partial_rotary_factor"} if partial else set())
    )
    names -= set() if grows else {"llama_4_scaling_beta"}
    for name, value in rope.items():
        if name == "partial_rotary_factor" and value == 1:
            continue
        if name not in names:
            raise ValueError(
                f"{title}: rope_parameters has {brief(name)}, which rope_type {kind} does not have"
            )
        if name in ("short_factor", "long_factor"):
            check_factors(title, name, value)
            continue
        number = fits(value, float) and value >= 0
        if name != "rope_type" and not (isinstance(value, bool) if name == "truncate" else number):
            raise ValueError(f"{title}: rope_parameters' {name} cannot be {brief(value)}")
        above = {
            "rope_theta": 1,
            "factor": 0,
            "original_max_position_embeddings": int(kind == "longrope"),
            "partial_rotary_factor": 0,
        }
        if name != "rope_type" and value <= above.get(name, -1):
            raise ValueError(
                f"{title}: rope_parameters' {name} must be above {above[name]}, not {brief(value)}"
            )
        if name == "partial_rotary_factor" and value > 1:
            raise ValueError(
                f"{title}: rope_parameters' {name} must be at most 1, not {brief(value)}"
            )
    if kind == "llama3" and not 0 < rope["low_freq_factor"] <= rope["high_freq_factor"]:
        raise ValueError(
            f"{title}: rope_parameters' low_freq_factor must be above 0 and at most high_freq_factor"
        )


def check_factors(title: str, name: str, factors: Any) -> None:
    """ValueError: the factors of longrope are not a list of positive numbers."""
    if not fits(factors, list[float]) or min(factors, default=1) <= 0:
        raise ValueError(
            f"{title}: rope_parameters' {name} must be a list of positive numbers, not"
            f" {brief(factors)}"
        )


def rope_of(rope: JsonMapping, size: int) -> Rope:
    """The angles for R = `size` rotated numbers per head, from `completed` settings."""
    kind, theta = rope["rope_type"], rope["rope_theta"]
    pairs = torch.arange(0, size, 2, dtype=torch.float32, device="cpu") / size
    frequencies = 1.0 / theta**pairs
    factor, original = rope.get("factor", 1.0), rope.get("original_max_position_embeddings", 1)
    amplitude = 1.0
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "proportional":  # the frequencies are those of all pairs
        frequencies = frequencies / factor
        frequencies[int(rope.get("partial_rotary_factor", 1.0) * size // 2) :] = 0
    # long waves are stretched, short waves are unchanged, waves between are interpolated
    elif kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        waves = 2 * math.pi / frequencies
        part = (original / waves - low) / (high - low)
        between = (1 - part) * frequencies / factor + part * frequencies
        stretched = torch.where(waves > original / low, frequencies / factor, between)
        frequencies = torch.where(waves < original / high, frequencies, stretched)
    elif kind == "yarn":

        def turns(count: float) -> float:
            """The number of the pair with `count` turns within the original context."""
            return size * math.log(original / (count * 2 * math.pi)) / (2 * math.log(theta))

        low, high = turns(rope.get("beta_fast") or 32), turns(rope.get("beta_slow") or 1)
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        span = high - low or 0.001
        ramp = ((torch.arange(size // 2, dtype=torch.float32, device="cpu") - low) / span).clamp(
            0, 1
        )
        frequencies = frequencies / factor * ramp + frequencies * (1 - ramp)

        def scale(mscale: float) -> float:
            return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

        both = rope.get("mscale") and rope.get("mscale_all_dim")
        usual = scale(rope["mscale"]) / scale(rope["mscale_all_dim"]) if both else scale(1.0)
        amplitude = float(rope.get("attention_factor", usual))
    short = None
    if kind == "longrope":
        short = tuple((frequencies / torch.tensor(rope["short_factor"], device="cpu")).tolist())
        frequencies = frequencies / torch.tensor(rope["long_factor"], device="cpu")
        usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        amplitude = float(rope.get("attention_factor", usual))
    query_scaling = float(rope.get("llama_4_scaling_beta") or 0)
    return Rope(tuple(frequencies.tolist()), amplitude, query_scaling, float(original), short)
