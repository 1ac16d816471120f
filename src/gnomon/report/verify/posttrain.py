"""Published results of RL post-training beside ours, as rows and text."""

from __future__ import annotations

from typing import Any

from gnomon.report.blocks import Block, Line, Table
from gnomon.report.verify.told import Told
from gnomon.verify.posttrain import Check

NOTES = {
    "A": "Nothing calibrated on A: efficiencies from B.",
    "B": "Calibrated: three efficiencies on 7B at one scale (--calibrate-on). Gates: 7B at the other two.",
    "C": "Efficiencies from B; C's own set-up is not published.",
    "D": "Calibrated: rollout on 1.5B's median decode time, training on each model's static throughput at 64 GPUs."
    " No ratio is calibrated.",
    "E": "The published rule with its published inputs.",
    "S": "Speed of the simulator itself.",
}


def told(checks: list[Check], letters: str) -> Told:
    """One row per published value."""
    rows = [_row(check) for check in checks]
    printed = [_printed(check) for check in checks]
    table = Table(printed, "Published results of RL post-training", left=("source", "what", "role", "ok"))
    blocks: list[Block] = [table, *(Line(f"{letter}: {NOTES[letter]}") for letter in letters)]
    return Told(rows, {"checks": rows}, blocks, [f"{one.source} {one.what}" for one in checks if not one.ok])


def _row(check: Check) -> dict[str, Any]:
    return {
        "source": check.source,
        "what": check.what,
        "published": check.published,
        "ours": check.ours,
        "error": None if check.is_bound else check.error,
        "role": check.role,
        "ok": check.ok,
    }


def _printed(check: Check) -> dict[str, Any]:
    """Errors in per cent; gates say whether they hold."""
    row = _row(check)
    row["error"] = "" if check.is_bound else f"{100 * check.error:+z.1f} %"
    row["ok"] = ("yes" if check.ok else "NO") if check.role == "gate" else ""
    return row
