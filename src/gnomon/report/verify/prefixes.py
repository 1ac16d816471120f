"""Published and simulated effects of prefixes, in two tables."""

from __future__ import annotations

from typing import Any

from gnomon.report.blocks import Table, lines
from gnomon.report.verify.told import Told
from gnomon.verify.prefixes import TOLERANCE, Row, effects


def told(rows: list[Row]) -> Told:
    """A row for every run, the ratios between them, and those that are too far from the published ones."""
    found = effects(rows)
    failures = [
        f"{one.name}: {one.simulated:.2f} times the throughput, published {one.published:.2f} ({one.error:+z.0%})"
        for one in found
        if abs(one.error) > TOLERANCE
    ]
    shown = [_row(row) for row in rows]
    ratios = [
        {"effect": one.name, "published": f"{one.published:.2f}", "simulated": f"{one.simulated:.2f}",
         "error": f"{one.error:+z.0%}"}
        for one in found
    ]  # fmt: skip
    return Told(
        rows=shown,
        data={"rows": shown, "effects": ratios},
        blocks=[
            Table(shown, "Runs", "Tokens per second: of answers; for offloading of prompts, too."),
            Table(ratios, "Effects on throughput"),
            *lines(failures, "warning"),
        ],
        failures=failures,
    )


def _row(row: Row) -> dict[str, Any]:
    one = row.published
    return {
        "part": row.part, "run": one.name, "published tokens/s": round(one.tokens_s), "tokens/s": round(row.tokens_s),
        "published TTFT s": one.ttft_s, "TTFT s": round(row.ttft_s, 3),
    }  # fmt: skip
