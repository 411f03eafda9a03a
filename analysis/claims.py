"""Claims of the form "A is up to F times slower than B", from paired seeds.

    best = max_ratio(results, "latency_per_token_mean_s", "merged-only", "dlora", "skewness")
    print(best.x, best.ratio.value, best.ratio.low, best.ratio.high)
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from analysis import stats
from analysis.results import Results


@dataclass(frozen=True)
class Factor:
    """metric(a) / metric(b) at one sweep value."""

    x: Any
    ratio: stats.Estimate


@dataclass(frozen=True)
class FactorClaim:
    """A paper's "up to `published` times": metric of `a` over metric of `b`."""

    label: str
    metric: str
    a: str
    b: str
    published: float


def ratio(results: Results, metric: str, a: str, b: str, sweep: str, x: Any,
          method: str = "t") -> stats.Estimate:
    """mean metric(a) / mean metric(b) over the seeds that both have, at one sweep value.

    method "t" gives the interval of stats.ratio_ci, "bootstrap" that of stats.ratio_bootstrap_ci.
    """
    estimate = {"t": stats.ratio_ci, "bootstrap": stats.ratio_bootstrap_ci}[method]
    return estimate(*results.pairs(metric, a, b, sweep, x))


def ratios(results: Results, metric: str, a: str, b: str, sweep: str) -> list[Factor]:
    """The ratio at every sweep value where both techniques have a common seed."""
    found = [Factor(x, ratio(results, metric, a, b, sweep, x)) for x in results.x_values(sweep)]
    return [factor for factor in found if math.isfinite(factor.ratio.value)]


def max_ratio(results: Results, metric: str, a: str, b: str, sweep: str) -> Factor:
    """The largest ratio over the sweep. Its interval is the one at that sweep value: choosing the
    largest of several makes it optimistic, as is the paper's own "up to"."""
    found = ratios(results, metric, a, b, sweep)
    if not found:
        raise results.error(f"no point has {metric} for both {a} and {b}")
    return max(found, key=lambda factor: factor.ratio.value)


def factor_table(results: Results, claims: list[FactorClaim], sweep: str) -> str:
    """The reproduced maximum factors beside the paper's, then every factor behind them."""
    lines = [f"{results.spec_id}: factors from paired seeds, 95 % CI (paired t on the log ratio)",
             "", f"{'':38} {'ours, up to':>12} {'95 % CI':>16} {'at':>6} {'n':>3} "
             f"{'paper':>7}"]
    for claim in claims:
        best = max_ratio(results, claim.metric, claim.a, claim.b, sweep)
        lines.append(f"{claim.label:38} {best.ratio.value:11.2f}x {_interval(best.ratio):>16} "
                     f"{best.x!s:>6} {best.ratio.n:>3} {claim.published:6.1f}x")
    for claim in claims:
        lines += ["", f"{claim.label} ({claim.metric}), by {sweep}:"]
        lines += [f"  {factor.x!s:>6}  {factor.ratio.value:6.2f}x {_interval(factor.ratio):>16}"
                  for factor in ratios(results, claim.metric, claim.a, claim.b, sweep)]
    if results.invalid_count:
        lines += ["", f"{results.invalid_count} of {len(results.columns['key'])} points are "
                      "INVALID: these factors are not a result"]
    return "\n".join(lines) + "\n"


def _interval(estimate: stats.Estimate) -> str:
    if math.isnan(estimate.low):
        return "(one seed)" if estimate.n == 1 else "(none)"
    return f"[{estimate.low:.2f}, {estimate.high:.2f}]"
