"""`gnomon verify`: a table of checks, each imported only when it is called."""

from __future__ import annotations

import click

from gnomon.cli.lazy import LazyGroup

CHECKS = {
    "timing": "Operator times: held-out error of the estimators, and the roofline against measured kernels.",
    "kernels": "Measured kernels: every table of the silicon source held out, and the roofline beside.",
    "vidur": "Scheduling semantics: recorded Vidur runs, batch by batch.",
    "vllm": "Latencies: real vLLM servers, request by request.",
    "engine": "Latencies: recorded runs of any engine, with settings and a calibration of your own.",
    "pipeline": "Training pipelines: published schedules and bubbles.",
    "training": "Training steps: MLPerf, Megatron-Bridge and others, seconds and memory.",
    "posttrain": "RL post-training: published results.",
    "h200": "The reference engine on an H200: simulated and measured.",
    "fetch": "The data that checks are held against: what is where, and how to get it.",
    "disagg": "Prefill and decode together and apart: layouts measured by llm-d.",
    "prefixes": "Routing by prefixes and KV in host memory: effects that llm-d published.",
    "fleet": "Fleets: published effects of cold starts, failures and fairness.",
    "servers": "Real vLLM servers of the ML.ENERGY leaderboard: time between tokens, throughput.",
    "stages": "Real vLLM servers under stages of load: time to the first token, time per token.",
    "silicon": "Real deployments: thousands of measured servers of today's models.",
}


@click.group(cls=LazyGroup, table=CHECKS, package="gnomon.cli.verify")
def command() -> None:
    """Hold the simulator against recorded and published results.

    Exit code 0 when a check passes, 1 when it does not, 2 when its data cannot be read.

    \b
    Example:
      gnomon verify timing --data reference/
    """
