"""ServeGen's client pools: a folder with the rates and the lengths of every client, from which requests are drawn.

`chunk-N-trace.csv` has a line for every window of client N: its start in seconds, requests per second, coefficient of
variation, and the distribution of the gaps with two parameters (Gamma or Weibull: shape, scale; none where it sends
nothing). `chunk-N-dataset.json` has, by the start of longer windows, how likely every length is.
"""

from __future__ import annotations

import ast
import json
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.core.errors import DataError
from gnomon.core.streams import stream
from gnomon.core.text import read_text
from gnomon.workload.lengths import tokens
from gnomon.workload.requests import Requests

MAX_REQUESTS = 2_000_000
SIDES = ("input_tokens", "output_tokens")


@dataclass(frozen=True)
class Window:
    """What one client does for a while."""

    start_s: float
    end_s: float
    rate: float
    gaps: str
    shape: float
    scale: float


def is_client_pool(path: str) -> bool:
    """Whether this is a folder of clients."""
    return Path(path).is_dir() and any(Path(path).glob("chunk-*-trace.csv"))


def read_client_pool(path: str, start_s: float, end_s: float | None, seed: int) -> Requests:
    """Draw the requests of all clients from `start_s` to `end_s` (if not given: the end of the last window)."""
    end_s = np.inf if end_s is None else end_s
    clients = sorted(Path(path).glob("chunk-*-trace.csv"), key=lambda one: int(one.name.split("-")[1]))
    windows = {one: _windows(one, start_s, end_s) for one in clients}
    expected = sum(one.rate * (one.end_s - one.start_s) for some in windows.values() for one in some)
    if expected > MAX_REQUESTS:
        raise DataError(
            f"its clients send {expected:,.0f} requests; at most {MAX_REQUESTS:,} are drawn.",
            where=path,
            fix="Choose a part of it: --workload.trace.start-s, --workload.trace.end-s.",
        )
    arrivals, sides = [np.empty(0)], [np.empty((2, 0))]
    for client in clients:
        random = stream(seed, f"client {client.name}")
        lengths = _lengths(client.with_name(client.name.replace("trace.csv", "dataset.json")))
        for one in windows[client]:
            at_s = _arrivals(one, random)
            known = lengths[max(0, bisect_right([start for start, _ in lengths], one.start_s) - 1)][1]
            arrivals.append(at_s)
            sides.append(np.stack([random.choice(values, len(at_s), p=shares) for values, shares in known]))
    when = np.concatenate(arrivals)
    order = np.argsort(when, kind="stable")
    prompt, output = np.concatenate(sides, axis=1)[:, order]
    note = f"{len(clients)} clients of {Path(path).name}: requests are drawn from what it says of each."
    return Requests(when[order], tokens(prompt), tokens(output), notes=(note,))


def _windows(path: Path, start_s: float, end_s: float) -> list[Window]:
    rows: list[tuple[float, float, str, float, float]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            start, rate, _, gaps, shape, scale = line.split(",")
            row = (float(start), float(rate), gaps, float(shape or 0), float(scale or 0))
            is_right = gaps in ("", "Gamma", "Weibull") and row[1] >= 0 and (not gaps or min(row[3:]) > 0)
            if not is_right or (rows and row[0] <= rows[-1][0]):
                raise ValueError
        except ValueError:
            raise DataError(
                f"cannot be read: {line[:80]!r}.",
                where=f"{path}:{number}",
                fix="A line is: start, rate, cv, Gamma or Weibull or nothing, shape, scale; starts rise.",
            ) from None
        rows.append(row)
    if not rows:
        raise DataError("has no line.", where=str(path))
    last = rows[-1][0] + (rows[-1][0] - rows[-2][0] if len(rows) > 1 else 600.0)
    ends = [*(row[0] for row in rows[1:]), last]
    cut = [Window(max(row[0], start_s), min(end, end_s), *row[1:]) for row, end in zip(rows, ends, strict=True)]
    return [one for one in cut if one.end_s > one.start_s and one.rate > 0 and one.gaps]


def _arrivals(window: Window, random: np.random.Generator) -> Floats:
    """Gaps of the window's distribution, until it ends."""
    found, at_s = [np.empty(0)], window.start_s
    while at_s < window.end_s:
        count = int(window.rate * (window.end_s - at_s)) + 8
        is_gamma = window.gaps == "Gamma"
        gaps = random.gamma(window.shape, window.scale, count) if is_gamma else (
            random.weibull(window.shape, count) * window.scale
        )  # fmt: skip
        found.append(at_s + np.cumsum(gaps))
        at_s = float(found[-1][-1])
    times = np.concatenate(found)
    return times[times < window.end_s]


def _lengths(path: Path) -> list[tuple[float, list[tuple[Ints, Floats]]]]:
    """By start: prompt and output lengths, and how likely each is."""
    try:
        content: dict[str, Any] = json.loads(read_text(path, most=1 << 28))
        found = []
        for start, fields in content.items():
            # A window in which nothing was sent says nothing.
            shares = [_as_mapping(fields[side]) for side in SIDES]
            if all(shares):
                pairs = [(np.array(list(one), np.int64), np.array(list(one.values()))) for one in shares]
                found.append((float(start), [(values, share / share.sum()) for values, share in pairs]))
        if not found:
            raise ValueError("no window has lengths")
    except json.JSONDecodeError as error:
        raise DataError(f"is no JSON: {error.msg}.", where=f"{path}:{error.lineno}") from None
    except (ValueError, SyntaxError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"has no lengths as ServeGen writes them: {error}.",
            where=str(path),
            fix='By the start of each window: {"input_tokens": "{length: share}", "output_tokens": ...}.',
        ) from None
    return sorted(found, key=lambda one: one[0])


def _as_mapping(given: Any) -> dict[int, float]:
    """ServeGen writes a mapping of Python as a text."""
    read = ast.literal_eval(given) if isinstance(given, str) else given
    return {int(length): float(share) for length, share in read.items()}
