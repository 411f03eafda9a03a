"""What a comparison says, in plain sentences: what differs, by how much, what cannot be told."""
from __future__ import annotations

import math

from analysis import stats
from analysis.compare.comparing import (BETTER, EQUAL, UNCLEAR, WORSE, Comparison, Position, Row,
                                        position_text)


def number(value: float, digits: int = 3) -> str:
    """Rounded for people: 1234.5 -> 1,234; 0.01234 -> 0.0123."""
    if not math.isfinite(value):
        return "-"
    if value and abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    rounded = float(f"{value:.{digits}g}")
    if abs(rounded) >= 10 ** digits:
        return f"{value:,.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    text = f"{rounded:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float) -> str:
    return number(value, 2 if abs(value) < 90 else 3)


def interval(estimate: stats.Estimate, sign: float = 1) -> str:
    """"[8, 15]", with the sign's side as positive; "" for one value."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    low, high = sorted((sign * estimate.low, sign * estimate.high))
    return f"[{percent(low)}, {percent(high)}]"


def unit_of(row: Row) -> str:
    """The unit of what is shown of a difference."""
    return "points" if row.metric.is_share else row.metric.unit if row.percent is None else "%"


def amount(row: Row) -> str:
    """"12 % [8, 15] lower TTFT P99": points for shares, units where a mean is 0."""
    sign = 1.0 if row.shown.value >= 0 else -1.0
    parts = [percent(abs(row.shown.value)), unit_of(row), interval(row.shown, sign),
             "higher" if sign > 0 else "lower", row.metric.title]
    return " ".join(filter(None, parts))


def listed(items: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else ""


def _largest(rows: list[Row]) -> str:
    """"differences up to 3 %", of rows that have a percentage."""
    sizes = [abs(row.percent.value) for row in rows if row.percent is not None]
    return f" (differences up to {percent(max(sizes))} %)" if sizes else ""


def _cell(comparison: Comparison, technique: str, position: Position) -> str:
    rows = [row for row in comparison.select(technique=technique, position=position)
            if row.difference is not None]
    if not rows:
        return ""
    base, where = comparison.baseline, position_text(position)
    at = f"At {where}: " if where else ""
    if all(row.verdict == EQUAL for row in rows):
        return f"{at}{technique} and {base} are the same in every metric and seed."
    if comparison.seeds < 2:
        return (f"{at}one seed: {technique} and {base} differ in "
                f"{sum(row.verdict != EQUAL for row in rows)} of {len(rows)} metrics, and nothing "
                "says whether that is more than noise.")
    head = [row for row in rows if row.metric.is_headline]
    of = {verdict: [row for row in head if row.verdict == verdict]
          for verdict in (BETTER, WORSE, UNCLEAR, EQUAL)}
    parts = []
    for verdict, word in ((BETTER, "better"), (WORSE, "worse")):
        if of[verdict]:
            parts.append(f"{word} with {listed([amount(row) for row in of[verdict]])}")
    text = f"{at}over {rows[0].difference.n} seeds, {technique} is "
    text += (f"{', and '.join(parts)}, than {base}." if parts else
             f"not distinguishable from {base} in any of these metrics.")
    if of[UNCLEAR]:
        text += (f" {listed([row.metric.title for row in of[UNCLEAR]])} cannot be told apart"
                 f"{_largest(of[UNCLEAR])}.")
    if of[EQUAL]:
        text += f" Equal: {listed([row.metric.title for row in of[EQUAL]])}."
    count = {verdict: sum(row.verdict == verdict for row in rows) for verdict in of}
    text += (f" Of all {len(rows)} metrics {count[BETTER]} are better, {count[WORSE]} worse, "
             f"{count[UNCLEAR]} cannot be told apart, {count[EQUAL]} equal.")
    return text[0].upper() + text[1:] if at == "" else text


def _unserved(comparison: Comparison, position: Position) -> str:
    """Techniques that leave different numbers of requests unserved have latencies over others."""
    counts = {}
    for technique in comparison.techniques:
        rows = [row for row in comparison.select(technique=technique, position=position)
                if row.metric.source in ("requests_rejected", "requests_unfinished")]
        if rows:
            counts[technique] = sum(row.value.value for row in rows)
    if not any(counts.values()) or max(counts.values()) - min(counts.values()) < 0.5:
        return ""
    where = position_text(position)
    told = ", ".join(f"{technique} {number(count)}" for technique, count in counts.items())
    return (f"{f'At {where}: ' if where else ''}requests rejected or unfinished per run: {told}. "
            "Latencies are over finished requests, so over different ones; goodput and SLO "
            "attainment count all.")


def sentences(comparison: Comparison) -> list[str]:
    """One a technique and position; before them what was left out, after them what to mind."""
    told = left_out(comparison)
    for position in comparison.positions:
        for technique in comparison.techniques:
            if technique != comparison.baseline:
                told.append(_cell(comparison, technique, position))
        told.append(_unserved(comparison, position))
    return [text for text in told if text]


def left_out(comparison: Comparison) -> list[str]:
    return [f"{one.technique} is left out"
            f"{f' at {position_text(one.position)}' if one.position else ''}: {one.reason}."
            for one in comparison.excluded]
