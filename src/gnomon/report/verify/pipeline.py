"""Recorded and published results of training pipelines, as rows and text."""

from __future__ import annotations

from typing import Any

from gnomon.report.blocks import Block, Line, Table
from gnomon.report.verify.told import Told
from gnomon.verify.pipeline import Check


def told(found: dict[str, list[Check]], most_rows: int | None) -> Told:
    """A table per file; of long ones only what is off."""
    blocks: list[Block] = []
    failures = []
    for path, checks in found.items():
        wrong = [check for check in checks if not check.ok]
        shown = checks if most_rows is None or len(checks) <= most_rows else wrong[:most_rows]
        if shown:
            blocks.append(Table([_printed(row(check)) for check in shown], title=path))
        worst = max((abs(check.difference) for check in checks if check.difference is not None), default=0.0)
        verdict = "all agree" if not wrong else f"{len(wrong)} OFF"
        blocks.append(Line(f"{path}: {len(checks)} values, {verdict}; largest difference {worst:.2g}"))
        failures += [f"{path}: {len(wrong)} values"] if wrong else []
    files = {path: [row(check) for check in checks] for path, checks in found.items()}
    rows = [{"file": path, **one} for path, checks in files.items() for one in checks]
    return Told(rows, {"files": files}, blocks, failures)


def row(check: Check) -> dict[str, Any]:
    """One value beside what came out."""
    return {
        "what": check.what,
        "expected": check.expected,
        "obtained": check.obtained,
        "difference": check.difference,
        "ok": check.ok,
    }


def _printed(row: dict[str, Any]) -> dict[str, Any]:
    """Six decimals for times and bubbles; the differences in short."""
    texts = {key: f"{row[key]:.6f}" for key in ("expected", "obtained") if isinstance(row[key], float)}
    if isinstance(row["difference"], float):
        texts["difference"] = f"{row['difference']:+.1e}"
    return row | texts
