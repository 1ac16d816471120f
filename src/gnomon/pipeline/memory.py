"""Activations held by each rank over the training step."""

from typing import NamedTuple

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.pipeline.run import Run


class Curve(NamedTuple):
    """A step function: `values[k]` holds from `times[k]` on."""

    times: Floats
    values: Floats

    @property
    def peak(self) -> float:
        return float(self.values.max(initial=0.0))


def activations(run: Run, *, per_stage: Floats | None = None, weight_grad_memory: float = 1.0) -> list[Curve]:
    """For every rank what it holds: a forward's activations from its start to the end of its gradients.

    `per_stage` is the size of one micro-batch's activations on each stage (1 unless given). Of them the share
    `weight_grad_memory` stays after the input gradient until the weight gradient is done.
    """
    change = {  # What a pass adds, in its stage's activations.
        "forward": 1.0, "overlap": 1.0, "backward": -1.0,
        "input_grad": weight_grad_memory - 1.0, "weight_grad": -weight_grad_memory,
    }  # fmt: skip
    curves = []
    for numbers in run.computes:
        changes: list[tuple[float, float]] = []
        for task in numbers:
            start, end = float(run.trace.tasks.start[task]), float(run.trace.tasks.end[task])
            label = run.labels[task]
            for part in (label, label.other) if label.other else (label,):
                size = 1.0 if per_stage is None else float(per_stage[part.stage])
                at = start if part.kind in ("forward", "overlap") else end
                changes.append((at, label.share * size * change[part.kind]))
        curves.append(curve_of(changes))
    return curves


def micro_batches_held(run: Run) -> list[Curve]:
    """For every rank what it holds, in the activations of one micro-batch on a whole rank."""
    num_stages = 1 + max(label.stage for label in run.labels)
    return activations(run, per_stage=np.full(num_stages, run.num_ranks / num_stages))


def curve_of(changes: list[tuple[float, float]]) -> Curve:
    """The sum of changes (moment, amount) from 0 on; those of one moment are one step."""
    times, steps = np.unique([0.0, *(at for at, _ in changes)], return_inverse=True)
    sums = np.bincount(steps, weights=[0.0, *(change for _, change in changes)])
    return Curve(times, np.clip(np.round(np.cumsum(sums), 9), 0.0, None))
