"""An explanation as plain data and as a table of parts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from gnomon.report.serving import explain_advice
from gnomon.report.serving import explain_text as words
from gnomon.serving.results.explain import Slow, delayed_by, waited_behind
from gnomon.serving.results.latency_breakdown import NAMES, Accounts


def part_frame(accounts: Accounts) -> pl.DataFrame:
    """One row per finished request: its latencies and parts in nanoseconds."""
    columns = {
        "request": accounts.ids,
        "e2e_ns": accounts.e2e_ns,
        "ttft_ns": accounts.ttft_ns,
        **{f"{name}_ns": accounts.parts_ns[:, :, i].sum(axis=1) for i, name in enumerate(NAMES)},
        "delayed_others_ns": accounts.inflicted_ns,
    }
    return pl.DataFrame({name: np.ascontiguousarray(values) for name, values in columns.items()})


def explanation_data(given: Any) -> dict[str, Any]:
    """Everything that the text says, as nested plain data."""
    accounts, summary = given.accounts, given.simulation.summary
    data: dict[str, Any] = {"sentences": given.sentences, "metric": given.metric, "note": given.note}
    if given.request is not None:
        row = accounts.row(given.request)
        parts = accounts.parts_ns[row]
        return data | {
            "request": given.request,
            "e2e_ns": int(accounts.e2e_ns[row]),
            "ttft_ns": int(accounts.ttft_ns[row]),
            "parts_ns": {name: int(parts[:, i].sum()) for i, name in enumerate(NAMES)},
            "before_first_token_ns": {name: int(parts[0, i]) for i, name in enumerate(NAMES)},
            "waited": asdict(waited_behind(accounts, row)),
            "delayed_by": [asdict(one) for one in delayed_by(accounts, row)],
        }
    slow = given.slow
    return data | {
        "percentile": given.percentile,
        **_slow_data(accounts, slow),
        "groups": {table.title: list(table.rows) for table in words.group_tables(accounts, given.metric, slow)},
        "advice": explain_advice.advice_rows(summary, given.advice, given.metric, given.statistic),
        "limits": explain_advice.limit_rows(summary, given.limits),
        "scenarios": {
            one.change.name: one.scenario.model_dump(mode="json", exclude_unset=True) for one in given.advice
        },
    }


def _slow_data(accounts: Accounts, slow: Slow) -> dict[str, Any]:
    return {
        "threshold_s": slow.threshold_s,
        "slow_s": slow.slow_s,
        "typical_s": slow.typical_s,
        "num_slow": int(slow.rows.size),
        "slow_requests": [int(one) for one in accounts.ids[slow.rows[:1000]]],
        "causes": [asdict(cause) for cause in slow.causes],
        "circumstances": [{"why": one.why, "share": one.share, "facts": dict(one.facts)} for one in slow.circumstances],
        "parts": {
            name: {"slow_s": float(slow.parts_slow_s[i]), "typical_s": float(slow.parts_typical_s[i])}
            for i, name in enumerate(NAMES)
        },
    }
