"""Quantiles of Student's t distribution, without SciPy, which is not a dependency."""

import math
from statistics import NormalDist

LARGE = 10_000  # degrees of freedom; the next term of the expansion below is then under 1e-9


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t, for a probability above 0.5 and below 1."""
    if freedom > LARGE:
        z = NormalDist().inv_cdf(probability)
        return z + (z**3 + z) / (4 * freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return high


def t_cdf(t: float, freedom: float) -> float:
    """The distribution function for t ≥ 0, by the continued fraction of the incomplete beta
    function (DLMF 8.17.22).
    """
    x = freedom / (freedom + t * t)
    a, b = freedom / 2, 0.5
    if x < (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(x, a, b) / 2
    return 0.5 + incomplete_beta(1 - x, b, a) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, for x < (a + 1) / (a + b + 2), by Lentz's method."""
    if x == 0:
        return 0.0
    front = (
        math.exp(
            math.lgamma(a + b)
            - math.lgamma(a)
            - math.lgamma(b)
            + a * math.log(x)
            + b * math.log1p(-x)
        )
        / a
    )
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 10_000):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c, d = 1 + factor / c, 1 / (1 + factor * d)
            result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * result
