"""Small traces in every format whose columns a registry names, written to a folder."""

from __future__ import annotations

import hashlib
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gnomon.workload.formats import FORMATS, TraceFormat

PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def draw_trace(chance: random.Random, folder: str) -> str:
    """Write a trace of some format and return its name within the folder."""
    known = [FORMATS[name] for name in FORMATS.names() if FORMATS[name].reader is None]
    form = chance.choice(known)
    count, span_s = chance.randint(2, 40), chance.choice([0.5, 3.0, 20.0])
    sessions = chance.randint(1, 8)
    times = sorted(chance.uniform(0.0, span_s) for _ in range(count))
    turns: dict[int, int] = {}
    last_of: dict[int, int] = {}
    lines = [",".join(form.columns.values())]
    for number, at_s in enumerate(times):
        session = chance.randrange(sessions)
        turn = turns[session] = turns.get(session, -1) + 1
        prompt = chance.randint(1, 200) + 20 * turn
        cells: dict[str, Any] = {
            "arrival": _time(form, at_s), "prompt": prompt, "output": chance.randint(1, 40), "session": session,
            "turn": turn, "priority": chance.randrange(3), "adapter": chance.choice(["", 0, 1, 2]), "call": number,
            "parents": last_of.get(session, -1), "think": round(chance.uniform(0.0, 1.0), 3),
            "duration": round(chance.uniform(0.0, 1.0), 3), "prefix_block_tokens": form.block_tokens,
            "prefix": " ".join(str(1000 * session + block) for block in range(prompt // form.block_tokens)),
        }  # fmt: skip
        last_of[session] = number
        lines.append(",".join(str(cells[role]) for role in form.columns))
    text = "\n".join(lines) + "\n"
    name = f"trace-{hashlib.sha256(text.encode()).hexdigest()[:10]}.csv"
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / name).write_text(text, encoding="utf-8")
    return str(Path(folder) / name)


def _time(form: TraceFormat, at_s: float) -> Any:
    if form.time_unit == "datetime":
        return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)).strftime("%Y-%m-%d %H:%M:%S.%f")
    scaled = at_s * PER_SECOND[form.time_unit]
    return int(scaled) if form.time_unit in ("ns", "us") else round(scaled, 6)
