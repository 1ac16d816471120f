"""What a workload looks like: rates, percentiles, histograms."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Floats
from gnomon.workload.requests import Requests

PERCENTILES = (1, 10, 25, 50, 75, 90, 95, 99)
CACHE_TOKENS = tuple(10**power * step for power in range(3, 10) for step in (1, 3))
MOST_BLOCKS = 200_000


def describe(requests: Requests) -> dict[str, Any]:
    """Counts, rates, percentiles and notes, ready for JSON; rates are None where the server decides arrivals."""
    prompt, output = int(requests.prompt_tokens.sum()), int(requests.output_tokens.sum())
    sessions, waits_s = requests.session[requests.session >= 0], _tools_s(requests)
    num_sessions = len(np.unique(sessions))
    turns = len(sessions) / num_sessions if num_sessions else None
    if len(requests.parents):
        turns = len(requests) / max(1, requests.num_starts)
    return {
        "num_requests": len(requests), "num_rejected": requests.num_rejected, "prompt_tokens": prompt,
        "output_tokens": output, "prompt_to_output": prompt / max(output, 1),
        "concurrency": requests.concurrency or None, **_rates(requests, prompt, output),
        "num_sessions": num_sessions,
        "reusable_prefix_share": _reusable_prefix_share(requests), "prefix_hits_by_cache": hits_by_cache_size(requests),
        "turns": turns, "wait_s": float(waits_s.mean()) if len(waits_s) else None,
        "percentiles": percentile_rows(requests), "notes": list(requests.notes),
    }  # fmt: skip


def percentile_rows(requests: Requests) -> list[dict[str, Any]]:
    series: dict[str, Any] = {
        "prompt tokens": requests.prompt_tokens,
        "output tokens": requests.output_tokens,
        "prompt + output": requests.total_tokens,
        "prompt : output": requests.prompt_tokens / requests.output_tokens,
    }
    gaps = gaps_s(requests)
    if len(gaps):
        series["gap (s)"] = gaps
    if len(tools_s := _tools_s(requests)):
        series["tool or user (s)"] = tools_s
    rows: list[dict[str, Any]] = []
    for name, values in series.items():
        if len(values):
            points = zip(PERCENTILES, np.percentile(values, PERCENTILES).tolist(), strict=True)
            shares = {f"p{q}": point for q, point in points}
            rows.append({"": name, "mean": float(np.mean(values)), **shares, "max": float(np.max(values))})
    return rows


def gaps_s(requests: Requests) -> Floats:
    """Seconds between arrivals, of calls that wait for none; empty for a batch or a closed loop."""
    starts_s = requests.arrival_s[np.isfinite(requests.arrival_s)]
    if requests.concurrency or not len(starts_s) or starts_s[-1] == 0:
        return np.empty(0)
    return np.diff(starts_s)


def histogram(values: Any, num_bins: int = 12) -> list[tuple[float, float, int]]:
    """(low, high, count) of equal steps in the logarithm, which suits lengths and gaps."""
    values = np.asarray(values, dtype=np.float64)
    values = values[values > 0]
    if not len(values):
        return []
    low, high = values.min(), values.max()
    if low == high:
        return [(float(low), float(high), len(values))]
    edges = np.geomspace(low, high, num_bins + 1)
    edges[0], edges[-1] = low, high
    counts, _ = np.histogram(values, edges)
    return [(float(a), float(b), int(c)) for a, b, c in zip(edges[:-1], edges[1:], counts, strict=True)]


def _rates(requests: Requests, prompt: int, output: int) -> dict[str, float | None]:
    gaps = gaps_s(requests)
    names = ("duration_s", "requests_per_s", "gap_cv", "prompt_tokens_per_s", "output_tokens_per_s")
    if not len(gaps) or gaps.sum() == 0:
        return dict.fromkeys(names)
    duration_s, cv = float(requests.arrival_s[len(gaps)]), float(gaps.std() / gaps.mean())
    rate = len(requests) / (len(gaps) + 1) / float(gaps.mean())
    return dict(zip(names, (duration_s, rate, cv, prompt / duration_s, output / duration_s), strict=True))


def _tools_s(requests: Requests) -> Floats:
    """Seconds of what happens between the end of a call and one that waits for it."""
    return requests.think_s[np.diff(requests.parent_offsets) > 0] if len(requests.parents) else np.empty(0)


def hits_by_cache_size(requests: Requests) -> list[dict[str, float]]:
    """Share of the prompt tokens that one prefix cache of so many tokens finds, which forgets what was used least
    recently; requests come one after another, and what runs at the same time takes no room."""
    total, found = int(requests.prompt_tokens.sum()), []
    if not len(requests.prefix_hashes):
        return []
    block = requests.prefix_block_tokens
    distances, each = _reuse_distances(requests)
    for size in CACHE_TOKENS:
        hits = int(np.count_nonzero(distances < size // block)) * each
        found.append({"cache_tokens": size, "hit_rate": min(1.0, hits * block / total)})
        if hits == len(distances) * each:
            break
    return found


def _reuse_distances(requests: Requests) -> tuple[NDArray[np.int64], int]:
    """Of every block of a prompt that was there before: how many others were used since (the stack distance). Of many
    blocks a sample is looked at, chosen by their hashes; the second number says how many each stands for."""
    hashes, of_prompt = requests.prefix_hashes, _of_prompt(requests)
    each = -(-len(hashes) // MOST_BLOCKS)
    chosen = (hashes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) % np.uint64(each) == 0
    hashes, of_prompt = hashes[chosen], of_prompt[chosen]
    _, same = np.unique(hashes, return_inverse=True)
    order = np.argsort(same, kind="stable")
    before = np.full(len(hashes), -1)
    again = same[order][1:] == same[order][:-1]
    before[order[1:][again]] = order[:-1][again]
    # Blocks since then, less those that came again in between: a tree of sums over the places that are the last of
    # their block so far.
    return _counted(before, of_prompt & (before >= 0)) * each, each


def _counted(before: NDArray[np.int64], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    tree = [0] * (len(before) + 1)

    def add(place: int, value: int) -> None:
        place += 1
        while place < len(tree):
            tree[place] += value
            place += place & -place

    def up_to(place: int) -> int:
        total = 0
        while place > 0:
            total += tree[place]
            place -= place & -place
        return total

    found = []
    for now, (last, is_wanted) in enumerate(zip(before.tolist(), wanted.tolist(), strict=True)):
        if is_wanted:
            found.append(up_to(now) - up_to(last + 1))
        if last >= 0:
            add(last, -1)
        add(now, 1)
    return np.array(found, np.int64)


def _reusable_prefix_share(requests: Requests) -> float:
    """Share of prompt tokens whose block an earlier request had, in its prompt or its answer: the hits of an endless
    prefix cache."""
    if not len(requests.prefix_hashes):
        return 0.0
    of_prompt = _of_prompt(requests)
    of_prompt[np.unique(requests.prefix_hashes, return_index=True)[1]] = False  # First seen here.
    repeated = int(np.count_nonzero(of_prompt))
    return min(1.0, repeated * requests.prefix_block_tokens / int(requests.prompt_tokens.sum()))


def _of_prompt(requests: Requests) -> NDArray[np.bool_]:
    """Of every hashed block, whether it is of the prompt (else of the answer)."""
    counts = np.diff(requests.prefix_offsets)
    position = np.arange(len(requests.prefix_hashes)) - np.repeat(requests.prefix_offsets[:-1], counts)
    return position < np.repeat(-(-requests.prompt_tokens // requests.prefix_block_tokens), counts)
