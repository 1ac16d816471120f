"""Step logs: CSV or JSON lines with one row per iteration, or the lines that vLLM writes about its iterations.

A row needs a duration and what was in the batch. Columns go by several names (`COLUMNS`); what a log leaves out is
derived: the sequences from chunks and decodes, a chunk's square from its tokens.
"""

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np

from gnomon.calibration.logs import Steps
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.core.text import own_yaml

COLUMNS: dict[str, dict[str, float]] = own_yaml(files("gnomon.calibration") / "columns.yaml")
"""What a row may say, by the names of its columns, each with what turns it into seconds or tokens."""

VLLM_LINE = re.compile(
    r"Iteration\((\d+)\):\s+(\d+) context requests,\s+(\d+) context tokens,\s+(\d+) generation requests,\s+"
    r"(\d+) generation tokens,\s+iteration elapsed time:\s+([\d.]+)\s*ms"
)
"""vLLM with --enable-logging-iteration-details."""


def is_step_row(row: Mapping[str, Any]) -> bool:
    names = set(row)
    has_time = _has(names, "seconds") or (_has(names, "start") and _has(names, "end"))
    return has_time and _has(names, "decodes") and (_has(names, "prefill") or _has(names, "tokens"))


def _has(names: set[str], role: str) -> bool:
    return any(name in names for name in COLUMNS[role])


def steps_from_vllm(text: str, where: str) -> Steps:
    """The iterations in a server's own log."""
    rows = [[float(part) for part in match.groups()] for match in VLLM_LINE.finditer(text)]
    if not rows:
        raise DataError("has no line about an iteration.", where=where)
    _, chunks, prefill, decodes, _, elapsed = np.array(rows).T
    table = {"elapsed_ms": elapsed, "context_requests": chunks, "context_tokens": prefill}
    return steps_from_columns(table | {"generation_requests": decodes}, where)


def steps_from_columns(table: Mapping[str, Any], where: str) -> Steps:
    """Steps from columns of numbers, whatever they are called."""
    found = {role: _column(table, role, where) for role in COLUMNS}
    seconds = found["seconds"]
    if seconds is None and found["start"] is not None and found["end"] is not None:
        seconds = found["end"] - found["start"]
    decodes, prefill = found["decodes"], found["prefill"]
    if seconds is None or decodes is None:
        known = ", ".join([*list(COLUMNS["seconds"])[:2], *list(COLUMNS["decodes"])[:2]])
        raise DataError("has no duration, or no number of decodes.", where=where, fix=f"Columns: {known}, ...")
    tokens = found["tokens"]
    if prefill is None:
        if tokens is None:
            raise DataError("has no prefill_tokens and no tokens.", where=where)
        prefill = tokens - decodes
    chunks = _chunks(found, prefill, decodes)
    squared = found["chunks_squared"]
    if squared is None:
        squared = prefill**2 / np.maximum(chunks, 1.0)
    decode_kv, knows_kv = _decode_kv(found, decodes)
    longest = found["decode_kv_max"]
    if "prepare_s" in table:  # The reference engine counts KV before the iteration's own tokens.
        decode_kv = decode_kv + decodes
        longest = None if longest is None else longest + (decodes > 0)
    steps = Steps(
        seconds=seconds, tokens=(prefill + decodes).astype(np.int64), sequences=(decodes + chunks).astype(np.int64),
        chunks_squared=squared,
        chunks_kv=found["chunks_kv"] if found["chunks_kv"] is not None else np.zeros_like(squared),
        decodes=decodes.astype(np.int64), decode_kv=decode_kv,
        decode_kv_max=longest if longest is not None else decode_kv / np.maximum(decodes, 1.0),
        felt=_felt(found, decodes, chunks), start_s=found["start"], gpu_s=found["gpu"], preempted=found["preempted"],
        knows_kv=knows_kv,
    )  # fmt: skip
    kept = (steps.tokens > 0) & (steps.seconds > 0)
    if kept.sum() < 8:
        raise DataError(f"has {int(kept.sum())} iterations with tokens and a time; 8 are needed.", where=where)
    return steps.take(kept)


def _chunks(found: Mapping[str, Floats | None], prefill: Floats, decodes: Floats) -> Floats:
    """Prompts in each batch: as said, as what the decodes leave of the sequences, or one."""
    given, sequences = found["chunks"], found["sequences"]
    if given is not None:
        return given
    return np.where(prefill > 0, np.maximum(1.0, sequences - decodes) if sequences is not None else 1.0, 0.0)


def _felt(found: Mapping[str, Floats | None], decodes: Floats, chunks: Floats) -> Floats:
    """Who waits for each iteration: as said, else its batch and, for prompts alone, the decodes of the batch before."""
    running, waiting = found["running"], found["waiting"]
    last = np.maximum.accumulate(np.where(decodes > 0, np.arange(len(decodes)), 0))
    others = np.where(decodes > 0, decodes, decodes[last] if running is None else running - chunks)
    return np.asarray(np.maximum(others, 0.0) + chunks + (0.0 if waiting is None else waiting))


def _decode_kv(found: Mapping[str, Floats | None], decodes: Floats) -> tuple[Floats, bool]:
    whole, mean = found["decode_kv"], found["decode_kv_mean"]
    if whole is not None:
        return whole, True
    if mean is not None:
        return mean * decodes, True
    return np.zeros_like(decodes), False


def _column(table: Mapping[str, Any], role: str, where: str) -> Floats | None:
    for name, factor in COLUMNS[role].items():
        if name in table:
            try:
                values = np.asarray(table[name], np.float64) * factor
            except (TypeError, ValueError):
                raise DataError(f"{name} holds something that is no number.", where=where) from None
            if not np.isfinite(values).all() or (values < 0).any():
                raise DataError(f"{name} holds a value that is missing, negative or not finite.", where=where)
            return values
    return None
