"""Is the plan's winner at least as fast, by our own prediction, as every published layout of that model and size?

`python -m benchmarks.plan_check --data reference [--gpus 64]` goes through all rows of the reference files that fit by
our count of memory, and plans each question (model, GPU, number, batch, sequence, precision) once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gnomon.core.config import build
from gnomon.core.errors import GnomonError
from gnomon.training import TrainConfig, train_step
from gnomon.training.plan import plan
from gnomon.verify.training_rows import read_rows

ASKED = ("model", "device", "gpus", "batch", "sequence", "precision", "gradients", "lora_rank", "framework", "release",
         "expert_capacity", "attention_kernel", "compile", "head_chunk")  # fmt: skip
"""What a question says; all else is searched."""


def main() -> None:
    """Print every question whose published layout is predicted faster than the plan's, and how many there are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=10_000, help="questions of at most so many GPUs")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    winners: dict[TrainConfig, float] = {}
    rows = beaten = too_large = 0
    for row in read_rows(given.data / "training"):
        try:
            published = train_step(build(TrainConfig, row.config), in_detail=False)
        except GnomonError:  # Not predicted, or too large without the recomputation that recipes do not publish.
            too_large += 1
            continue
        if published.config.gpus > given.gpus:
            continue
        question = build(TrainConfig, {name: row.config[name] for name in ASKED if name in row.config})
        if question not in winners:
            winners[question] = min(step.step_s for step in plan(question, jobs=given.jobs, shown=3).best)
        rows += 1
        if winners[question] > 1.001 * published.step_s:
            beaten += 1
            print(f"{row.name}: published layout {published.step_s:.4g} s, plan {winners[question]:.4g} s", flush=True)
    print(f"{rows} published layouts, {len(winners)} questions: {beaten} faster than the plan's")
    print(f"{too_large} rows are not comparable: not predicted, or too large without recomputation")


if __name__ == "__main__":
    main()
