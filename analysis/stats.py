"""Means and confidence intervals over seeds, and paired comparisons of two techniques.

Every technique sees the same requests at the same sweep position and seed, so techniques are
compared in pairs. Intervals are two-sided, by Student's t unless a name says otherwise.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

import numpy as np
from scipy import stats as sps

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval, both in the unit of the data; n values went in."""

    value: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the interval's width; NaN with fewer than two values."""
        return (self.high - self.low) / 2


def t_quantile(n: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t with n - 1 degrees of freedom; NaN for n < 2."""
    return float(sps.t.ppf(0.5 + confidence / 2, n - 1)) if n >= 2 else math.nan


def mean_ci(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Mean with its t interval. The interval is NaN for one value, everything NaN for none."""
    data = np.asarray(values, dtype=float)
    if data.size == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(data.mean())
    if data.size == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    half = t_quantile(data.size, confidence) * float(data.std(ddof=1)) / math.sqrt(data.size)
    return Estimate(mean, mean - half, mean + half, int(data.size))


def geometric_ci(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Geometric mean with the t interval of the logarithms: for ratios that span orders of
    magnitude. NaN where a value is not positive."""
    data = np.asarray(values, dtype=float)
    if data.size == 0 or data.min() <= 0:
        return Estimate(math.nan, math.nan, math.nan, int(data.size))
    found = mean_ci(np.log(data), confidence)
    return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.n)


def difference_ci(a: Sequence[float], b: Sequence[float],
                  confidence: float = CONFIDENCE) -> Estimate:
    """Mean of the paired differences a - b with its t interval."""
    x, y = _paired(a, b)
    return mean_ci(x - y, confidence)


def ratio_ci(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """R = mean(a) / mean(b) of paired positive values, with the paired t interval of log R.

    Linearised: the standard error of log R is that of mean(a - R b), divided by mean(a). What the
    pairs share cancels, so proportional values have an interval of width zero; as on any ratio
    scale the interval is not symmetric and stays positive. NaN where a mean is not positive.
    """
    x, y = _paired(a, b)
    n = int(x.size)
    if n == 0 or x.mean() <= 0 or y.mean() <= 0:
        return Estimate(math.nan, math.nan, math.nan, n)
    value = float(x.mean() / y.mean())
    spread = math.exp(mean_ci(x - value * y, confidence).half_width / float(x.mean()))
    return Estimate(value, value / spread, value * spread, n)


def ratio_bootstrap_ci(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE,
                       resamples: int = 10_000, seed: int = 0) -> Estimate:
    """mean(a) / mean(b) of paired values, with the percentile interval of a paired bootstrap.

    Too narrow for a handful of seeds, where ratio_ci is the one to use.
    """
    x, y = _paired(a, b)
    n = int(x.size)
    if n == 0 or y.mean() == 0:
        return Estimate(math.nan, math.nan, math.nan, n)
    value = float(x.mean() / y.mean())
    if n < 2:
        return Estimate(value, math.nan, math.nan, n)
    drawn = np.random.default_rng(seed).integers(0, n, size=(resamples, n))
    ratios = x[drawn].mean(axis=1) / y[drawn].mean(axis=1)
    low, high = np.quantile(ratios, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return Estimate(value, float(low), float(high), n)


def _paired(a: Sequence[float], b: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"paired values need equal lengths, not {x.shape} and {y.shape}")
    return x, y
