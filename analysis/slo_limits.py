"""Service-level objectives as users write them: `ttft=1,tpot=0.1`, in seconds per request."""
from __future__ import annotations

import difflib
import math

Limits = tuple[tuple[str, float], ...]  # (metric, seconds), by name

METRICS = {"ttft": "time to the first token",
           "tpot": "time per output token after the first",
           "latency": "time to the last token",
           "latency_per_token": "time to the last token over output tokens",
           "queueing": "time before the first step"}
SLO_S = 0.5  # dLoRA 7.1: ten times a decode step of its engine
DEFAULT: Limits = (("latency_per_token", SLO_S),)


def nearest(name: str, known: list[str]) -> str:
    """"did you mean ...; known: ..." for messages."""
    found = difflib.get_close_matches(name, known, 1, 0.5)
    return (f"did you mean '{found[0]}'? " if found else "") + f"known: {', '.join(known)}"


def parse(text: str) -> Limits:
    """Raises ValueError, of one line, for anything but metric=seconds with commas between."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"'{part.strip()}' is not metric=seconds, such as ttft=1")
        name = name.removesuffix("_s")
        if name not in METRICS:
            raise ValueError(f"unknown metric '{name}'; {nearest(name, list(METRICS))}")
        if name in limits:
            raise ValueError(f"'{name}' is limited twice")
        try:
            limits[name] = float(value)
        except ValueError:
            raise ValueError(f"{name}: '{value}' is not a number of seconds") from None
        if not (limits[name] > 0 and math.isfinite(limits[name])):
            raise ValueError(f"{name}: the limit must be above 0, not {value}")
    return tuple(sorted(limits.items()))


def text(limits: Limits) -> str:
    return ",".join(f"{name}={limit:g}" for name, limit in limits)
