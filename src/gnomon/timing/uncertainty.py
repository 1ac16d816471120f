"""How far a whole server's iterations are from what a source says of them: the spread behind prediction intervals."""

from __future__ import annotations

import math

SERVER_ERROR = {"profile": 0.03, "silicon": 0.10, "roofline": 0.15}
"""Standard deviation (of the logarithm) of what a server's iterations take beside their kernels' times: settings, host
time and overlaps that nobody told. profile: recorded servers and the reference engine simulated from kernels measured
on their own GPU (docs/h200-validation.md, docs/vllm-validation.md). silicon: time per output token of 296 measured
servers of the even half (docs/intervals.md); the odd half is what coverage is checked on. roofline: no better known
than the worse of silicon's."""
EXPERTS_ERROR = {"profile": 0.03, "silicon": 0.155, "roofline": 0.155}
"""The same for mixtures of experts: imbalance and exchange are more to be wrong about."""


def iteration_spread(source: str, kernel_error: float, *, has_experts: bool = False) -> float:
    """Relative standard deviation of iteration times: the kernels' own error (a median) and the server's, together."""
    known = EXPERTS_ERROR if has_experts else SERVER_ERROR
    return math.hypot(kernel_error, known.get(source, known["roofline"]))
