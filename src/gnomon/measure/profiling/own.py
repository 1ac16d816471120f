"""Kernels of another engine: shapes in, seconds out (docs/own-kernels.md).

A Python file defines `gemm(dtype, m, n, k)`, `attention(dtype, heads, kv_heads, head_dim, chunk, kv, decodes,
decode_kv)` or further functions named like the files of a bundle; each returns the seconds of one call, or a list of
repeats. A program in any other language reads the plan, one JSON object a line, and writes each back with `seconds`.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gnomon.measure.profiling import bundle
from gnomon.measure.profiling.shapes import Shapes

TOKENS = tuple(2**i for i in range(14))
SEQUENCES = tuple(2**i for i in range(9))
CHUNKS = tuple(2**i for i in range(4, 14))
HISTORIES = (0, 1024, 4096, 16384)
KV = tuple(2**i for i in range(7, 15))
KINDS = ("gemm", "attention", "elementwise", "moe")

Ask = dict[str, Any]


def plan(shapes: Shapes, kinds: Iterable[str] = KINDS) -> Iterator[Ask]:
    """What to measure: one mapping per row of a bundle, with the key columns of its file."""
    wanted, dtype = set(kinds), shapes.dtype
    if "gemm" in wanted:
        for (n, k), sizes in [(s, TOKENS) for s in shapes.gemm] + [(s, SEQUENCES) for s in shapes.head]:
            yield from ({"file": "gemm", "dtype": dtype, "m": m, "n": n, "k": k} for m in sizes)
    if "attention" in wanted:
        for heads, kv_heads, head_dim in shapes.attention:
            place = {"file": "attention", "dtype": dtype, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
            for chunk in CHUNKS:
                yield from (place | {"chunk": chunk, "kv": kv, "decodes": 0, "decode_kv": 0} for kv in HISTORIES)
            for decodes in SEQUENCES:
                yield from (place | {"chunk": 0, "kv": 0, "decodes": decodes, "decode_kv": kv} for kv in KV)
    if "elementwise" in wanted:
        for operator, width in shapes.elementwise:
            sizes = SEQUENCES if operator == "sampler" else TOKENS
            place = {"file": "elementwise", "dtype": dtype, "operator": operator}
            yield from (place | {"tokens": tokens, "width": width} for tokens in sizes)
    if "moe" in wanted:
        for experts, top_k, hidden, intermediate in shapes.moe:
            place = {"file": "moe", "dtype": dtype, "experts": experts, "top_k": top_k, "hidden": hidden,
                     "intermediate": intermediate}  # fmt: skip
            for tokens in TOKENS:
                yield place | {"tokens": tokens, "activated_experts": min(experts, tokens * top_k)}


def load(path: Path) -> dict[str, Callable[..., Any]]:
    """The functions of a user's file, by the kind that each times."""
    spec = importlib.util.spec_from_file_location("own_kernels", path)
    if spec is None or spec.loader is None:
        raise ValueError("is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {kind: getattr(module, kind) for kind in KINDS if callable(getattr(module, kind, None))}
    if not found:
        raise ValueError(f"defines none of {', '.join(KINDS)}")
    return found


def measure(
    kernels: dict[str, Callable[..., Any]], asked: Sequence[Ask], folder: Path,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:  # fmt: skip
    """Time what is not in the folder's journal yet; an interrupted run goes on there."""
    journal = bundle.Journal(folder)
    for number, ask in enumerate(asked):
        key = _key(ask)
        if ask["file"] in kernels and journal.get(ask["file"], key) is None:
            sizes = {name: value for name, value in ask.items() if name != "file"}
            seconds, spread = checked(kernels[ask["file"]](**sizes), ask)
            journal.add(ask["file"], key, seconds, spread)
        if on_progress:
            on_progress(number + 1, len(asked))


def read_answers(path: Path, folder: Path) -> None:
    """Take what a program wrote: the plan's lines, each with `seconds` (one, or a list of repeats)."""
    journal = bundle.Journal(folder)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            answer = json.loads(line)
            if not isinstance(answer, dict) or answer.get("file") not in bundle.COLUMNS or "seconds" not in answer:
                raise ValueError(f"line {number} has no file or no seconds")
            seconds, spread = checked(answer["seconds"], answer)
            journal.add(answer["file"], _key(answer), seconds, spread)


def write(folder: Path, facts: dict[str, Any]) -> Path:
    return bundle.write(folder, bundle.Journal(folder).rows, facts)


def checked(answer: Any, ask: Ask) -> tuple[float, float]:
    times = sorted(float(one) for one in (answer if isinstance(answer, list | tuple) else [answer]))
    if not times or not all(math.isfinite(one) and 1e-8 <= one <= 100.0 for one in times):
        raise ValueError(f"{_words(ask)}: {answer!r} is no time of a kernel in seconds (10 ns to 100 s)")
    median = statistics.median(times)
    if len(times) < 4:
        return median, 0.0
    low, _, high = statistics.quantiles(times, n=4)
    return median, (high - low) / median


def _key(ask: Ask) -> tuple[Any, ...]:
    return tuple(ask[name] for name in bundle.COLUMNS[ask["file"]])


def _words(ask: Ask) -> str:
    return ", ".join(f"{name} {value}" for name, value in ask.items() if name != "seconds")
