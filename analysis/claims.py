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


def trend(results: Results, metric: str, technique: str, sweep: str) -> stats.Estimate:
    """The metric at the last sweep value over that at the first, by seed: below 1 it fell."""
    values = results.x_values(sweep)
    rows = [results.rows(technique, **{results.sweep(sweep): value})
            for value in (values[-1], values[0])]
    by_seed = [dict(zip(row["seed"].tolist(), row[f"summary.{metric}"].tolist())) for row in rows]
    common = sorted(by_seed[0].keys() & by_seed[1].keys())
    return stats.ratio_ci(*([side[seed] for seed in common] for side in by_seed))


def shape_lines(results: Results, metric: str, ours: str, baselines: list[str],
                sweep: str) -> list[str]:
    """Whether `ours` is never worse than each baseline beyond its interval, and how each baseline
    changes over the sweep, one line each."""
    lines = []
    for baseline in baselines:
        found = ratios(results, metric, baseline, ours, sweep)
        worse = [factor.x for factor in found if factor.ratio.high < 1]
        least = min(found, key=lambda factor: factor.ratio.value)
        verdict = f"WORSE at {worse}" if worse else "never worse"
        lines.append(f"{ours} is {verdict} than {baseline}: "
                     f"least factor {least.ratio.value:.2f}x {_interval(least.ratio)} at {least.x}")
    for technique in baselines:
        change = trend(results, metric, technique, sweep)
        verdict = "falls" if change.high < 1 else "rises" if change.low > 1 else "stays level"
        lines.append(f"{technique} {verdict} over the sweep: last over first {change.value:.2f}x "
                     f"{_interval(change)}")
    return lines


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
