"""Replays of recorded Vidur runs, as rows and text."""

from __future__ import annotations

from dataclasses import asdict

from gnomon.report.blocks import Block, Line, Table
from gnomon.report.verify.told import Told
from gnomon.verify.vidur import Comparison


def told(found: list[Comparison]) -> Told:
    """One row per run."""
    rows = [{**asdict(one), "agrees": one.agrees} for one in found]
    table = [
        {
            "run": one.name,
            "scheduler": one.scheduler,
            "requests": one.num_requests,
            "batches compared": one.num_batches,
            "largest stamp error": f"{one.largest_stamp_error_s:.1e} s",
            "block counts off": one.num_block_differences
            if one.blocks_are_compared
            else f"({one.num_block_differences})",
            "agrees": one.agrees,
        }
        for one in found
    ]
    differing = [f"{one.name}: {one.first_difference}" for one in found if one.first_difference]
    blocks: list[Block] = [Table(table), *(Line(text) for text in differing)]
    return Told(rows, {"runs": rows}, blocks, [one.name for one in found if not one.agrees])
