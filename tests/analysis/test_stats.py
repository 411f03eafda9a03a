"""Means, intervals and ratios against values worked out by hand."""
from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as sps

from analysis import stats


def test_mean_and_interval_of_three_values():
    # sd of 1, 2, 3 is 1; t(0.975, 2) = 4.30265; half width = 4.30265 / sqrt(3)
    estimate = stats.mean_ci([1.0, 2.0, 3.0])
    assert estimate.value == 2.0
    assert estimate.half_width == pytest.approx(2.48414, abs=1e-5)
    assert (estimate.low, estimate.high, estimate.n) == (
        pytest.approx(-0.48414, abs=1e-5), pytest.approx(4.48414, abs=1e-5), 3)


def test_one_value_has_no_interval_and_none_has_no_mean():
    assert stats.mean_ci([5.0]).value == 5.0
    assert math.isnan(stats.mean_ci([5.0]).half_width)
    assert math.isnan(stats.mean_ci([]).value)


def test_paired_differences_ignore_what_the_pairs_share():
    # differences 1, 1, 1, 5: mean 2, sd 2, t(0.975, 3) = 3.18245
    estimate = stats.difference_ci([11, 21, 31, 45], [10, 20, 30, 40])
    assert estimate.value == 2.0
    assert estimate.half_width == pytest.approx(3.18245, abs=1e-5)


def test_ratio_of_proportional_values_is_exact():
    estimate = stats.ratio_ci([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (estimate.value, estimate.low, estimate.high) == (2.0, 2.0, 2.0)


def test_ratio_and_its_interval():
    # R = 6 / 3; a - R b = -1, 0, 1: sd 1; 2 * exp(-+ 4.30265 / sqrt(3) / 6)
    estimate = stats.ratio_ci([3.0, 6.0, 9.0], [2.0, 3.0, 4.0])
    assert estimate.value == 2.0
    assert (estimate.low, estimate.high) == (pytest.approx(1.32198, abs=1e-4),
                                             pytest.approx(3.02576, abs=1e-4))


def test_ratio_needs_a_denominator_and_two_pairs():
    assert math.isnan(stats.ratio_ci([1.0, 2.0], [-1.0, 1.0]).value)
    one = stats.ratio_ci([3.0], [2.0])
    assert one.value == 1.5 and math.isnan(one.low)


def test_bootstrap_is_repeatable_and_brackets_the_ratio():
    a, b = [3.1, 2.8, 3.4, 3.0], [1.0, 1.1, 0.9, 1.05]
    first, second = (stats.ratio_bootstrap_ci(a, b) for _ in range(2))
    assert first == second
    assert first.low < first.value < first.high


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="equal lengths"):
        stats.ratio_ci([1.0, 2.0], [1.0])


def coverage(draw, mean: float, interval=stats.paired_ci, count: int = 3000) -> float:
    """The share of simulated intervals that hold the mean; printed for `pytest -s -k cover`."""
    inside = [estimate.low <= mean <= estimate.high
              for estimate in (interval(draw()) for _ in range(count))]
    found = float(np.mean(inside))
    print(f" covers {100 * found:.1f} %")
    return found


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_paired_intervals_cover_normal_differences(n: int) -> None:
    rng = np.random.default_rng(n)
    assert coverage(lambda: rng.normal(1, 1, n), 1) >= 0.935  # 0.95 less 3.8 standard errors


@pytest.mark.parametrize("n, sigma, least", [(5, 0.5, 0.93), (5, 0.8, 0.905), (5, 1.0, 0.89),
                                             (10, 1.0, 0.90)])
def test_paired_intervals_cover_skewed_differences(n: int, sigma: float, least: float) -> None:
    rng = np.random.default_rng(n)
    assert coverage(lambda: rng.lognormal(0, sigma, n), np.exp(sigma ** 2 / 2)) >= least


@pytest.mark.parametrize("sigma", [0, 0.5, 1.0])
def test_the_percentile_bootstrap_would_not_cover(sigma: float) -> None:
    """Why paired_ci is not the usual bootstrap; normal differences where sigma is 0."""
    def percentile(data: np.ndarray) -> stats.Estimate:
        means = data[stats._resamples(5)].mean(axis=1)
        return stats.Estimate(data.mean(), *np.quantile(means, [0.025, 0.975]), 5)

    rng = np.random.default_rng(0)
    draw, mean = ((lambda: rng.lognormal(0, sigma, 5), np.exp(sigma ** 2 / 2)) if sigma else
                  (lambda: rng.normal(1, 1, 5), 1))
    assert coverage(draw, mean, percentile, 1000) < 0.87


@pytest.mark.parametrize("n", [3, 5])
def test_paired_ratios_cover(n: int) -> None:
    """Seeds share their load, which varies by half, and techniques add noise of their own."""
    rng = np.random.default_rng(n)

    def draw() -> tuple[np.ndarray, np.ndarray]:
        load = rng.lognormal(0, 0.5, n)
        return 1.2 * load * rng.lognormal(0, 0.2, n), load * rng.lognormal(0, 0.2, n)

    assert coverage(draw, 1.2, lambda pair: stats.paired_ratio_ci(*pair)[0]) >= 0.92


def test_paired_p_values_are_those_of_the_t_test() -> None:
    rng = np.random.default_rng(8)
    p = [stats.t_p_value(stats.mean_ci(rng.normal(0, 1, 5))) for _ in range(4000)]
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.013)
    a = rng.normal(1, 1, 5)
    assert stats.t_p_value(stats.mean_ci(a)) == pytest.approx(sps.ttest_1samp(a, 0).pvalue)
    assert math.isnan(stats.t_p_value(stats.mean_ci([1.0])))
    # Ratios near 1: the log of R has the error of the difference over the mean, to first order.
    x, y = 1 + 0.001 * rng.normal(0, 1, 6), 1 + 0.001 * rng.normal(0, 1, 6)
    assert stats.paired_ratio_ci(x, y)[1] == pytest.approx(sps.ttest_rel(x, y).pvalue, rel=0.02)


def test_false_discoveries_are_adjusted() -> None:
    assert stats.adjusted([]).size == 0
    assert stats.adjusted([0.01, 0.02, 0.9]) == pytest.approx([0.03, 0.03, 0.9])


def test_paired_intervals_of_hardly_any_data() -> None:
    assert math.isnan(stats.paired_ci([]).value)
    one = stats.paired_ci([3.0])
    assert one.value == 3 and math.isnan(one.low)
    same = stats.paired_ci([2.0, 2, 2])
    assert (same.low, same.high) == (2, 2) and stats.t_p_value(same) == 0
    assert stats.t_p_value(stats.paired_ci([0.0, 0, 0])) == 1
    assert math.isnan(stats.paired_ratio_ci([1.0, 2], [0.0, 0])[1])
    assert stats.paired_ci([1.0, 2, 4]) == stats.paired_ci([1.0, 2, 4])
