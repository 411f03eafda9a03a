"""Means, intervals and ratios against values worked out by hand."""
from __future__ import annotations

import math

import pytest

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
