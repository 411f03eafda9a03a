"""A run's requests as arrays: the symbols of results/README.md's definitions."""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from analysis.point import Point

UNFINISHED, FINISHED, REJECTED = 0, 1, 2  # /requests/status
_REJECT = "reject"  # in the codes of /events


@dataclass(frozen=True)
class Requests:
    """Stamps in ns since the start of the run, -1 where there is none; one entry per request."""

    arrival: np.ndarray  # a_i
    admitted: np.ndarray  # s_i
    first: np.ndarray  # f_i
    last: np.ndarray  # l_i
    end: np.ndarray  # e_i: l_i; when it was rejected; T for one that is unfinished
    prompt: np.ndarray  # p_i
    output: np.ndarray  # o_i, produced
    status: np.ndarray
    run_end: int  # T
    token_offsets: np.ndarray | None  # with record.token_times
    token_times: np.ndarray | None

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def finished(self) -> np.ndarray:
        return self.status == FINISHED

    @property
    def has_tokens(self) -> bool:
        return self.token_times is not None

    @property
    def sent(self) -> "Requests":
        """Those that arrived before the run ended; others are unfinished to /summary alone."""
        return self.select(self.arrival <= self.run_end)

    def select(self, mask: np.ndarray) -> "Requests":
        """Those requests alone, with their tokens."""
        if np.all(mask):
            return self
        if self.token_times is None or self.token_offsets is None:
            offsets = times = None
        else:
            counts = np.diff(self.token_offsets)
            times = self.token_times[np.repeat(mask, counts)]
            offsets = np.concatenate([[0], np.cumsum(counts[mask])])
        arrays = {name: getattr(self, name)[mask] for name in
                  ("arrival", "admitted", "first", "last", "end", "prompt", "output", "status")}
        return replace(self, **arrays, token_offsets=offsets, token_times=times)

    @cached_property
    def gaps(self) -> np.ndarray | None:
        """Gaps between consecutive tokens of a request, in ns, all requests pooled."""
        if self.token_times is None or self.token_offsets is None:
            return None
        gaps = np.diff(self.token_times)
        starts = self.token_offsets[1:-1]
        inside = np.ones(len(gaps), dtype=bool)
        inside[starts[(starts > 0) & (starts < len(self.token_times))] - 1] = False
        return gaps[inside]

    @cached_property
    def tokens_of(self) -> np.ndarray:
        """The index of its request for every entry of token_times."""
        assert self.token_offsets is not None
        return np.repeat(np.arange(len(self)), np.diff(self.token_offsets))


def read(point: Point, tokens: bool = True) -> Requests:
    """With the stamps of tokens, where they were recorded, unless not asked for. Raises
    ResultsError where a dataset is absent or damaged."""
    stamps = {name: point.read(f"requests/{name}").astype(np.int64, copy=False)
              for name in ("scheduled", "admitted", "first_token", "last_token")}
    status = point.read("requests/status")
    run_end = round(point.summary()["duration_s"] * 1e9)
    end = np.where(status == FINISHED, stamps["last_token"], run_end)
    rejected = _rejections(point)
    for request in np.flatnonzero(status == REJECTED).tolist():
        end[request] = rejected.get(request, run_end)
    has_tokens = tokens and point.has("tokens")
    return Requests(arrival=stamps["scheduled"], admitted=stamps["admitted"],
                    first=stamps["first_token"], last=stamps["last_token"], end=end,
                    prompt=point.read("requests/prompt_tokens").astype(np.int64),
                    output=point.read("requests/output_tokens").astype(np.int64), status=status,
                    run_end=run_end,
                    token_offsets=point.read("tokens/offsets") if has_tokens else None,
                    token_times=point.read("tokens/times") if has_tokens else None)


def _rejections(point: Point) -> dict[int, int]:
    codes = point.codes("events/code")
    if _REJECT not in codes:
        return {}
    at = point.read("events/code") == codes.index(_REJECT)
    return dict(zip(point.read("events/subject")[at].tolist(),
                    point.read("events/time")[at].tolist()))
