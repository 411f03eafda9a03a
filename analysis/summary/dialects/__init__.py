"""One file per tool: what it calls its metrics, and how it computes them. Each has

    TITLE           what the table is headed with: tool, version, where the definitions were read
    table(part)     its rows, in the order and with the names and units that the tool prints

Versions: vLLM's `vllm bench serve`, vllm/benchmarks/serve.py at 009e6d4a (2026); GuideLLM 0.8.1;
AIPerf 0.13.0; MLPerf LoadGen 6.0.17. tests/golden/dialects has figures that those packages
computed.
"""
from __future__ import annotations

from typing import Callable

from analysis.summary.dialects import aiperf, guidellm, mlperf, servelab, vllm
from analysis.summary.dialects._rows import NOT_RECORDED, Row
from analysis.summary.windows import Part

TABLES: dict[str, tuple[str, Callable[[Part], list[Row]]]] = {
    "servelab": (servelab.TITLE, servelab.table),
    "vllm": (vllm.TITLE, vllm.table),
    "guidellm": (guidellm.TITLE, guidellm.table),
    "aiperf": (aiperf.TITLE, aiperf.table),
    "mlperf": (mlperf.TITLE, mlperf.table),
}
__all__ = ["NOT_RECORDED", "Row", "TABLES"]
