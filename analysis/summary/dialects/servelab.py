"""Our own: the definitions of results/README.md, as engine/record/summary.cc computes /summary."""
from __future__ import annotations

import numpy as np

from analysis.summary.dialects._rows import NAN, NOT_RECORDED, Row, ratio
from analysis.summary.requests import REJECTED, UNFINISHED, Requests
from analysis.summary.windows import Part

TITLE = "servelab (results/README.md, Metrics)"
PERCENTILES = (50, 90, 95, 99)


def table(part: Part) -> list[Row]:
    """The metrics of /summary that requests define, under its names. Over the whole run they are
    /summary's own values; itl percentiles, there from a histogram, are exact where every token's
    stamp was recorded."""
    r = part.requests
    done = r.select(r.finished)
    seconds = part.window.seconds if part.window else r.run_end / 1e9
    rows = [("requests_total", len(r)), ("requests_finished", len(done)),
            ("requests_rejected", np.count_nonzero(r.status == REJECTED)),
            ("requests_unfinished", np.count_nonzero(r.status == UNFINISHED)),
            ("duration_s", seconds)]
    latency = done.last - done.arrival
    per_token = latency / 1e9 / done.output
    rows += [("latency_per_token_mean_s", ratio(int(latency.sum()) / 1e9, int(done.output.sum()))),
             ("latency_per_token_mean_of_ratios_s", _mean(per_token))]
    rows += _percentiles("latency_per_token", per_token)
    rows += _distribution("latency", latency / 1e9)
    rows += _distribution("ttft", (done.first - done.arrival) / 1e9)
    more = done.output > 1
    rows += _distribution("tpot", (done.last - done.first)[more] / 1e9 / (done.output[more] - 1))
    rows += _distribution("queueing", (done.admitted - done.arrival) / 1e9)
    generated, prefilled, completed = part.generated, part.prefilled, part.completed
    if part.window is None:
        generated, completed = int(r.output.sum()), len(done)
        prefilled = int(r.prompt[r.first >= 0].sum())
    rows += [("requests_per_s", ratio(completed, seconds)),
             ("output_tokens_per_s", ratio(generated, seconds)),
             ("total_tokens_per_s", ratio(generated + prefilled, seconds))]
    note = "" if part.window is None or part.is_exact else "tokens spread evenly over a request"
    return ([Row(name, name, float(value), note if "tokens_per_s" in name else "")
             for name, value in rows] + _itl(r))


def _itl(r: Requests) -> list[Row]:
    """Gaps of all requests, finished or not, as the histogram has them."""
    note = "" if r.gaps is not None else NOT_RECORDED
    gaps = np.sort(r.gaps) if r.gaps is not None else np.array([])
    return [Row(f"itl_{name}_s", f"itl_{name}_s", value / 1e9, note)
            for name, value in (("mean", _mean(gaps)),
                                *((f"p{p}", _percentile(gaps, p)) for p in PERCENTILES))]


def _percentiles(name: str, values: np.ndarray) -> list[tuple[str, float]]:
    ordered = np.sort(values)
    return [(f"{name}_p{p}_s", _percentile(ordered, p)) for p in PERCENTILES]


def _distribution(name: str, values: np.ndarray) -> list[tuple[str, float]]:
    return [(f"{name}_mean_s", _mean(values)), *_percentiles(name, values)]


def _mean(values: np.ndarray) -> float:
    """Added one after the other, so that the last bit is that of /summary."""
    return float(np.cumsum(values)[-1]) / values.size if values.size else NAN


def _percentile(ordered: np.ndarray, percent: int) -> float:
    """numpy's linear one, in the order of operations of /summary."""
    if not ordered.size:
        return NAN
    position = percent / 100 * (ordered.size - 1)
    below = int(position)
    if below + 1 >= ordered.size:
        return float(ordered[-1])
    return float(ordered[below] + (position - below) * (ordered[below + 1] - ordered[below]))
