"""Synthetic results in the layout of results/README.md, made with h5py."""
from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

import h5py
import numpy as np
import pytest

import caraserve_results
import cluster_results

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from analysis import h5_file  # noqa: E402

ATTRIBUTES = {"backend": "twin", "hardware": "A800-80G", "model": "Llama-2-7B",
              "trace": "embedded (MAF2 statistics, ShareGPT lengths)"}
SKEWNESS = [4, 8, 16, 32]
# s/token at skewness 4, 8, 16, 32: near the published points
LATENCY = {"merged-only": [2.3, 1.5, 1.2, 1.1], "unmerged-only": [1.2, 1.3, 1.3, 1.4],
           "dlora": [0.6, 0.65, 0.7, 0.62], "dlora-artifact": [0.62, 0.7, 0.69, 0.66],
           "slora": [1.0, 1.05, 1.1, 1.12]}


def write_point(path: Path, datasets: dict[str, Any], attributes: dict[str, Any],
                summary: dict[str, float] | None = None) -> str:
    """Writes a whole point file; returns its content digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, value in {"schema": 1, "status": "VALID", **attributes}.items():
            file.attrs[name] = value
        for name, values in {"context": '{"servelab": "0.1.0"}', **datasets}.items():
            file[name] = values
        for name, value in (summary or {}).items():
            file.require_group("summary").attrs[name] = value
        file.attrs["content_digest"] = h5_file.content_digest(file)
        digest = file.attrs["content_digest"]
    h5_file.seal(path)
    return digest


@contextmanager
def edited(path: Path) -> Iterator[h5py.File]:
    """The file, open for changes; whole again afterwards, but for its content digest."""
    unseal(path)
    with h5py.File(path, "r+") as file:
        yield file
    h5_file.seal(path)


def unseal(path: Path) -> None:
    content = path.read_bytes()
    if h5_file.ends_in_a_checksum(path):
        path.write_bytes(content[:-h5_file.TRAILER_BYTES])


class Spec:
    """Collects points and writes collected.h5 with them."""

    def __init__(self, root: Path, spec_id: str) -> None:
        self.folder = root / spec_id
        self.spec_id = spec_id
        self.columns: dict[str, list[Any]] = {}

    def add(self, technique: str, seed: int, sweep: dict[str, Any], summary: dict[str, float],
            status: str = "VALID", datasets: dict[str, Any] | None = None,
            attributes: dict[str, str] | None = None) -> None:
        key = f"k{len(self.columns.get('key', [])):04d}"
        path = self.folder / "points" / f"{key}.h5"
        digest = write_point(path, datasets or {}, {"key": key, **(attributes or {})})
        self.row({"technique": technique, "seed": seed, "status": status, "key": key,
                  "content_digest": digest}, sweep, summary)

    def row(self, columns: dict[str, Any], sweep: dict[str, Any],
            summary: dict[str, float]) -> None:
        row = {**columns, "file": f"points/{columns['key']}.h5",
               **{f"sweep.{k}": v for k, v in sweep.items()},
               **{f"summary.{k}": v for k, v in summary.items()}}
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)

    def write(self, **attributes: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "collected.h5"
        with h5py.File(path, "w") as file:
            for name, value in {"spec_id": self.spec_id, **ATTRIBUTES, **attributes}.items():
                file.attrs[name] = value
            for name, values in self.columns.items():
                file[f"columns/{name}"] = values
            for key in self.columns.get("key", []):
                file[f"points/{key}"] = h5py.ExternalLink(f"points/{key}.h5", "/")
            file.attrs["content_digest"] = h5_file.content_digest(file)
        h5_file.seal(path)
        return path


def latency_spec(root: Path, spec_id: str, techniques: list[str], seeds: int = 5,
                 invalid: tuple[str, int] | None = None,
                 swept: str = "workload.mapping.skewness") -> Path:
    """A spec over skewness, or over `swept` with the same values; `invalid` names a (technique,
    value) whose points are INVALID."""
    spec = Spec(root, spec_id)
    for position, skewness in enumerate(SKEWNESS):
        for technique in techniques:
            for seed in range(seeds):
                noise = np.random.default_rng([seed, position]).normal(1, 0.05)
                own = np.random.default_rng([seed, position, *technique.encode()])
                noise += own.normal(0, 0.02)
                mean = LATENCY[technique][position] * noise
                spec.add(technique, seed, {swept: skewness},
                         {"latency_per_token_mean_s": mean, "latency_per_token_p90_s": 2.2 * mean,
                          "latency_per_token_mean_of_ratios_s": 1.1 * mean},
                         "INVALID" if invalid == (technique, skewness) else "VALID")
    return spec.write()


def fig05(root: Path) -> Path:
    spec = Spec(root, "dlora/fig05")
    for batch in (2, 4, 6, 8, 10, 12, 14, 16):
        for seed in range(3):
            steps = 1000 + seed
            dense = (14.6 + 0.02 * batch + 0.05 * seed) * 1e6
            lora = (5.6 + 0.03 * batch + 0.04 * seed) * 1e6
            spec.add("unmerged-only", seed, {"workload.concurrency": batch}, {}, datasets={
                "replicas/steps": [steps], "replicas/dense": [int(dense * steps)],
                "replicas/lora": [int(lora * steps)]})
    return spec.write()


def fig06(root: Path) -> Path:
    spec = Spec(root, "dlora/fig06")
    for skewness in (4, 16):
        rng = np.random.default_rng(skewness)
        time = np.arange(300)
        ratio = np.clip(0.5 + 0.45 * np.sin(time / 23) + rng.normal(0, 0.1, 300), 0, 1)
        alpha, beta = np.ones(300), np.full(300, 0.5556)
        merged = np.zeros(300, dtype=int)
        for i in range(1, 300):
            merged[i] = ratio[i] >= (beta[i - 1] if merged[i - 1] else alpha[i - 1])
            switched = merged[i] != merged[i - 1]
            alpha[i] = max(alpha[i - 1] - (0.05 if i % 9 == 0 else 0), 0.6)
            beta[i] = beta[i - 1] / 1.1 if switched and merged[i] == 0 else beta[i - 1]
        datasets = {"series/start": time * 10**9, "series/replica": np.zeros(300, dtype=int),
                    "series/steps": np.full(300, 40), "series/merged_steps": 40 * merged}
        for name, value in (("alpha_switch", alpha), ("beta_switch", beta),
                            ("merge_ratio", ratio)):
            datasets |= {f"gauges/{name}/time": time * 10**9, f"gauges/{name}/value": value,
                         f"gauges/{name}/replica": np.zeros(300, dtype=int)}
        spec.add("dlora", 0, {"workload.mapping.skewness": skewness}, {}, datasets=datasets)
    return spec.write()


def fig07(root: Path, hours: float = 24) -> Path:
    rng = np.random.default_rng(7)
    minutes = np.arange(int(hours * 60))
    rate = 60 * (1.2 - np.cos(2 * np.pi * minutes / 1440)) * rng.gamma(4, 0.25, len(minutes))
    arrivals = np.concatenate([60.0 * m + 60 * rng.beta(0.6, 1.2, rng.poisson(r))
                               for m, r in zip(minutes, rate)])
    spec = Spec(root, "dlora/fig07")
    spec.add("dlora", 0, {}, {},
             datasets={"requests/scheduled": (np.sort(arrivals) * 1e9).astype(np.int64)})
    return spec.write()


MAKERS: dict[str, Callable[[Path], Path]] = {
    "dlora/fig05": fig05,
    "dlora/fig06": fig06,
    "dlora/fig07": fig07,
    "dlora/fig10": lambda root: latency_spec(
        root, "dlora/fig10", ["merged-only", "unmerged-only", "dlora", "dlora-artifact"]),
    "dlora/fig10_load": lambda root: latency_spec(
        root, "dlora/fig10_load", ["merged-only", "unmerged-only", "dlora"],
        swept="workload.arrivals.rate"),
    "dlora/fig14": lambda root: latency_spec(root, "dlora/fig14", ["slora", "dlora"]),
    **{spec_id: cluster_results.filled(Spec, spec_id) for spec_id in cluster_results.FILLERS},
    **{spec_id: lambda root, spec_id=spec_id: caraserve_results.FIGURES[spec_id](
        Spec(root, spec_id)) for spec_id in caraserve_results.FIGURES},
    "mine/skewness": lambda root: latency_spec(root, "mine/skewness", ["slora", "dlora"]),
}


@pytest.fixture
def results_root(tmp_path: Path) -> Path:
    """An empty results folder."""
    return tmp_path / "results"
