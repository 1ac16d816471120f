"""Write a pipeline schedule of PyTorch as CSV, a row per rank, in the form that `gnomon verify pipeline` reads.

PyTorch decides the order of passes without running them, so this needs no GPU and no process group:

    python pytorch_schedule.py DualPipeV --ranks 4 --microbatches 10 --out dualpipev.csv
    gnomon verify pipeline dualpipev.csv

Reads torch.distributed.pipelining as of PyTorch 2.9 to 2.13.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STAGES_PER_RANK = {"GPipe": 1, "Interleaved1F1B": 2, "InterleavedZeroBubble": 2, "DualPipeV": 2,
                   "ZBVZeroBubble": 2}  # fmt: skip


def order_of(name: str, ranks: int, microbatches: int) -> list[list[str]]:
    """What every rank computes, in PyTorch's own words: 0F3 is stage 0, forward, micro-batch 3."""
    from torch.distributed.pipelining.schedules import get_schedule_class

    made = get_schedule_class(name)
    local = STAGES_PER_RANK[name]
    stages = [_stage(index, ranks, ranks * local) for index in range(local)]
    schedule = made(stages[0] if local == 1 else stages, microbatches)
    if hasattr(schedule, "pipeline_order"):
        rows = [schedule.pipeline_order[rank] for rank in range(ranks)]
    else:
        rows = [schedule._get_pipeline_order()[rank] for rank in range(ranks)]
    return [[str(action) for action in row if action is not None] for row in rows]


def _stage(index: int, ranks: int, num_stages: int) -> Any:
    """As much of a stage as a schedule looks at before it runs."""
    return SimpleNamespace(
        stage_index=index, num_stages=num_stages, group_size=ranks, group_rank=0, has_backward=True, submod=None,
        is_first=index == 0, is_last=index == num_stages - 1, device="cpu",
    )  # fmt: skip


def main() -> None:
    """Write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedule", choices=sorted(STAGES_PER_RANK))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with options.out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(order_of(options.schedule, options.ranks, options.microbatches))


if __name__ == "__main__":
    main()
