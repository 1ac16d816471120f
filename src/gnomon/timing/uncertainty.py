"""How far a whole server is from what a source says of it: the spread of prediction intervals (docs/intervals.md)."""

from __future__ import annotations

import math

SERVER_ERROR = {"profile": 0.03, "silicon": 0.12, "roofline": 0.18}
"""Standard deviation (of the logarithm) of what a server's iterations take beside their kernels' times: settings, host
time and overlaps that nobody told. profile: recorded servers and the reference engine simulated from kernels measured
on their own GPU (docs/h200-validation.md, docs/vllm-validation.md). silicon: such that 90 % of the even half of the
measured servers lie inside by their time per output token (1,766 of them; dense models and mixtures of experts alike);
coverage is checked on the odd half. roofline: what silicon's was before the engines' host times were fitted; no better
known."""
FIRST_TOKEN_ERROR = {"profile": 0.03, "silicon": 0.38, "roofline": 0.49}
"""The same for what times to the first token are off by beside iterations: front end, clients, admission."""


def iteration_spread(source: str, kernel_error: float) -> float:
    """Relative standard deviation of iteration times: the kernels' own error (a median) and the server's, together."""
    return math.hypot(kernel_error, SERVER_ERROR.get(source, SERVER_ERROR["roofline"]))


def first_token_spread(source: str) -> float:
    """Relative standard deviation of times to the first token beside that of iterations."""
    return FIRST_TOKEN_ERROR.get(source, FIRST_TOKEN_ERROR["roofline"])
