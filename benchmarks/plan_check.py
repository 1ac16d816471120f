"""Is the plan's winner at least as fast, by our own prediction, as every published layout of that model and size?

`python -m benchmarks.plan_check --data reference` goes through all rows of the reference files that fit by our count of
memory. The search times a layout unless something faster than its bound is found already: so a published layout that
is among the candidates of its question (model, GPU, number, batch, sequence, precision), and whose bound holds, cannot
be faster than the winner. For the others, and for all with `--search`, the winner is searched.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gnomon.core.config import build
from gnomon.core.errors import GnomonError
from gnomon.core.parallel import shared_workers
from gnomon.training import TrainConfig, TrainStep, train_step
from gnomon.training.plan import bounded, candidates, fastest
from gnomon.verify.training import read_rows

ASKED = ("model", "device", "gpus", "batch", "sequence", "precision", "gradients", "lora_rank", "framework", "release",
         "expert_capacity", "attention_kernel", "compile", "head_chunk")  # fmt: skip
"""What a question says; all else is searched."""
SAME = 1.000001


def is_met(question: TrainConfig, published: TrainStep) -> bool:
    """Whether the search meets the published layout, or one with less recomputation, before it can end."""
    wanted = published.config.model_dump(exclude={"recompute"})
    for one in candidates(question):
        if one.model_dump(exclude={"recompute"}) == wanted:
            found = bounded(one)
            return found is not None and found.least_s <= SAME * published.step_s
    return False


def main() -> None:
    """Print every question whose published layout is predicted faster than the plan's, and how many there are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=10_000, help="questions of at most so many GPUs")
    parser.add_argument("--search", action="store_true", help="search the winner of every question")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    winners: dict[TrainConfig, float] = {}
    questions: set[TrainConfig] = set()
    rows = met = beaten = too_large = 0
    with shared_workers(jobs=given.jobs) as workers:
        for row in read_rows(given.data / "training"):
            if int(row.config["gpus"]) > given.gpus:
                continue
            try:
                published = train_step(build(TrainConfig, row.config), in_detail=False)
            except GnomonError:  # Not predicted, or too large without the recomputation that recipes do not publish.
                too_large += 1
                continue
            question = build(TrainConfig, {name: row.config[name] for name in ASKED if name in row.config})
            rows += 1
            questions.add(question)
            if not given.search and is_met(question, published):
                met += 1
                continue
            if question not in winners:
                winners[question] = fastest(question, workers).step_s
            if winners[question] > SAME * published.step_s:
                beaten += 1
                print(f"{row.name}: published {published.step_s:.6g} s, plan {winners[question]:.6g} s", flush=True)
            else:
                print(f"{row.name}: {winners[question] / published.step_s:.3f} of the published layout", flush=True)
    print(f"{rows} published layouts of {len(questions)} questions: {met} met, {len(winners)} questions searched")
    print(f"{beaten} layouts are faster than the plan's")
    print(f"{too_large} rows are not comparable: not predicted, or too large without recomputation")


if __name__ == "__main__":
    main()
