"""From the controls of the Pipeline page to a training step that has run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon.api.pipeline import TRANSFERS, PipelineStep, pipeline, takes_chunks
from gnomon.ui.controls import ControlError

STUDY = "study"
"""The schedule of the priority study: 1F1B whose ranks take whatever is ready."""
MODEL = "model"
MAX_PASSES = 1024
"""Stages x micro-batches that a page can still draw in a second."""
LENGTHS = {
    "fwd": "fwd_len", "bwd": "bwd_len", "prop": "prop_len", "sync": "sync_base_len", "sync_freq": "sync_freq",
    "fwd_impact": "fwd_impact", "bwd_impact": "bwd_impact",
}  # fmt: skip
"""The field of a step behind each control of lengths."""
TRAINING = ("model", "device", "tensor_parallel", "data_parallel", "micro_batch", "sequence", "recompute",
            "shard_optimizer")  # fmt: skip


def step_of(values: Mapping[str, Any]) -> PipelineStep:
    """Run the step that the controls describe."""
    if values["stages"] * values["n"] > MAX_PASSES:
        most = MAX_PASSES // values["stages"]
        raise ControlError("n", f"A page draws at most {most:,} micro-batches of {values['stages']} stages.")
    step = {name: values[name] for name in ("n", "stages", "ideal", *TRANSFERS)}
    if values["schedule"] != STUDY:
        step |= {"schedule": values["schedule"], "memory_limit": values["limit"]}
        if takes_chunks(values["schedule"]):
            step["chunks"] = values["chunks"]
    if values["schedule"] != STUDY and values["costs"] == MODEL:
        return pipeline(step | {"training": {name: values[name] for name in TRAINING}})
    step |= {field: values[name] for name, field in LENGTHS.items()}
    if values["schedule"] != STUDY:
        step |= {"weight_grad_len": values["wgrad"], "latency": values["latency"]}
    return pipeline(step)
