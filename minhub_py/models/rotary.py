"""Rotary positions: from config.json's rope_parameters to angles, for every family that has them.

Sources
    Su et al. (2021), "RoFormer". Halves, not neighbours: pair i is (i, i + R/2) of the R rotated numbers of a head.
    llama3: Grattafiori et al. (2024). yarn: Peng et al. (2023), equations 18 to 23. linear: Chen et al. (2023).
    dynamic: as default within the context, which is as far as a model here goes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any

import torch
from torch import Tensor

# The settings that a rope_type has beside rope_theta and partial_rotary_factor: (needed, optional).
ROPE_TYPES: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, {"original_max_position_embeddings"}),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor"}, {"original_max_position_embeddings"}),
    "yarn": (
        {"factor"},
        {"original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
         "truncate", "llama_4_scaling_beta", "max_position_embeddings"},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Rope:
    """Angles of positions. Plain numbers and no buffer: nothing to load, to move, or to round to 16 bits.

    frequencies: the angle per position of each of the R/2 pairs.    amplitude: a factor of cos and sin.
    growth: queries grow by 1 + growth * ln(1 + floor(position / original)), as in Ministral 3.
    """

    frequencies: tuple[float, ...]
    amplitude: float = 1.0
    growth: float = 0.0
    original: float = 1.0

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cos and sin of the angles at `positions` (…), each (…, R/2), and the growth of queries (…), or None.

        float32 whatever the weights are: in 16 bits, far positions would all be the same.
        """
        frequencies = torch.tensor(self.frequencies, dtype=torch.float32, device=positions.device)
        angles = positions.float().unsqueeze(-1) * frequencies
        growth = 1 + self.growth * torch.log(1 + torch.floor(positions / self.original)) if self.growth else None
        return angles.cos() * self.amplitude, angles.sin() * self.amplitude, growth


def completed(parameters: Mapping[str, Any] | None, context: int) -> dict[str, Any]:
    """rope_parameters with what it leaves out: rope_type, rope_theta, original_max_position_embeddings."""
    given = {name: value for name, value in (parameters or {}).items() if value is not None}
    rope = {"rope_type": "default", "rope_theta": 10000.0, **given}
    if rope["rope_type"] in ("llama3", "yarn"):
        rope.setdefault("original_max_position_embeddings", context)
    return rope


def check(title: str, rope: Mapping[str, Any], *, partial: bool = False, grows: bool = False) -> None:
    """ValueError: settings that contradict rope_type, or out of their range.

    partial: whether the family honours partial_rotary_factor; grows: whether llama_4_scaling_beta.
    """
    kind = rope["rope_type"]
    if kind not in list(ROPE_TYPES):  # a kind from a file may be anything
        raise ValueError(f"{title}: rope_parameters' rope_type {brief(kind)} is not one of {', '.join(ROPE_TYPES)}")
    needed, optional = ROPE_TYPES[kind]
    if missing := sorted(needed - set(rope)):
        raise ValueError(f"{title}: rope_parameters of rope_type {kind} lacks {', '.join(missing)}")
    known = needed | optional | {"rope_type", "rope_theta"} | ({"partial_rotary_factor"} if partial else set())
    known -= set() if grows else {"llama_4_scaling_beta"}
    for name, value in rope.items():
        if name == "partial_rotary_factor" and value == 1:
            continue
        if name not in known:
            raise ValueError(f"{title}: rope_parameters has {brief(name)}, which rope_type {kind} does not know")
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
        if name != "rope_type" and not (isinstance(value, bool) if name == "truncate" else number):
            raise ValueError(f"{title}: rope_parameters' {name} cannot be {brief(value)}")
        above = {"rope_theta": 1, "factor": 0, "original_max_position_embeddings": 0, "partial_rotary_factor": 0}
        if name != "rope_type" and value <= above.get(name, -1):
            raise ValueError(f"{title}: rope_parameters' {name} must be above {above[name]}, not {brief(value)}")
        if name == "partial_rotary_factor" and value > 1:
            raise ValueError(f"{title}: rope_parameters' {name} must be at most 1, not {brief(value)}")
    if kind == "llama3" and not 0 < rope["low_freq_factor"] < rope["high_freq_factor"]:
        raise ValueError(f"{title}: rope_parameters' low_freq_factor must be above 0 and below high_freq_factor")


def rope_of(rope: Mapping[str, Any], size: int) -> Rope:
    """The angles for `size` numbers of each head, R, by `completed` settings."""
    kind, theta = rope["rope_type"], rope["rope_theta"]
    pairs = torch.arange(0, size, 2, dtype=torch.float32, device="cpu") / size
    frequencies = 1.0 / theta**pairs
    factor, original = rope.get("factor", 1.0), rope.get("original_max_position_embeddings", 1)
    amplitude = 1.0
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "llama3":  # long waves are stretched, short ones are not, and those between by degrees
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        waves = 2 * math.pi / frequencies
        part = (original / waves - low) / (high - low)
        between = (1 - part) * frequencies / factor + part * frequencies
        stretched = torch.where(waves > original / low, frequencies / factor, between)
        frequencies = torch.where(waves < original / high, frequencies, stretched)
    elif kind == "yarn":

        def turns(count: float) -> float:
            """The pair that turns so many times within the original context."""
            return size * math.log(original / (count * 2 * math.pi)) / (2 * math.log(theta))

        low, high = turns(rope.get("beta_fast") or 32), turns(rope.get("beta_slow") or 1)
        if rope.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        span = high - low or 0.001
        ramp = ((torch.arange(size // 2, dtype=torch.float32, device="cpu") - low) / span).clamp(0, 1)
        frequencies = frequencies / factor * ramp + frequencies * (1 - ramp)

        def scale(mscale: float) -> float:
            return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

        both = rope.get("mscale") and rope.get("mscale_all_dim")
        usual = scale(rope["mscale"]) / scale(rope["mscale_all_dim"]) if both else scale(1.0)
        amplitude = float(rope.get("attention_factor", usual))
    growth = float(rope.get("llama_4_scaling_beta") or 0)
    return Rope(tuple(frequencies.tolist()), amplitude, growth, float(original))
