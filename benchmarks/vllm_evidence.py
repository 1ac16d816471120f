"""What recorded vLLM servers say about single iterations: decode steps beside their kernels, and prompts in the cache.

    python benchmarks/vllm_evidence.py reference/vllm/runs/* --profiles reference/vllm/profiles

Decode steps are counted from the server's time series, in seconds without prompts, before the first request finishes or
after the queue is empty: what runs then is known. Cache hits are counted while the server is busy with its first
prompts: every iteration is then full and ends with a stamp, so that the tokens it computed are known (not so where
memory runs out first).
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.cli.printing import print_rows
from gnomon.core.arrays import Floats
from gnomon.timing.lookup import Shape, stage_s
from gnomon.verify.vllm import Comparison, Recording, compare

SEQUENCES = (0, 8, 17, 25, 33, 50, 70, 105, 127, 1024)
STEADY = 8
"""Requests that may come or go within a second that is counted."""


def main() -> None:
    """Print both for every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dirs", nargs="+")
    parser.add_argument("--profiles", required=True)
    given = parser.parse_args()
    for folder in given.run_dirs:
        found = compare(folder, given.profiles)
        print_rows(decode_steps(found), title=f"{found.recording.name}: decode iterations, ms")
        rows = cache_hits(found.recording)
        if rows and rows[-1]["found in the cache, at least"]:
            print_rows(rows, title=f"{found.recording.name}: prompt tokens while prompts fill every iteration")


def decode_steps(found: Comparison) -> list[dict[str, Any]]:
    """Recorded and predicted milliseconds of decode iterations, averaged by the number of sequences."""
    recording, series = found.recording, found.recording.series
    assert series is not None
    steps = []
    for before, row in zip(series.iter_rows(named=True), series[1:].iter_rows(named=True), strict=False):
        at, count = row["t"] - 0.5, 0.5 * (before["running"] + row["running"])
        is_known = at + 1 < recording.last_token_s.min() or row["waiting"] + before["waiting"] == 0
        steady = abs(before["running"] - row["running"]) <= STEADY
        if row["prompt_throughput"] > 0 or count < 1 or not is_known or not steady or not row["gen_throughput"]:
            continue
        kv = kv_lengths(recording, at)
        total = kv.mean() * count
        if row["kv_cache_pct"] > 0:  # Half a block per request is empty.
            used = 0.005 * (before["kv_cache_pct"] + row["kv_cache_pct"]) * found.simulated.pools[0].num_kv_blocks
            total = 16 * used - 8 * count
        n = round(count)
        shape = Shape(n, n, 0.0, 0.0, n, total * n / count, float(kv.max()), n, 0.0)
        kernels_s = stage_s(found.simulated.tables, 0, shape, n)
        steps.append((count, count / row["gen_throughput"], kernels_s))
    table = np.array(steps)
    rows = []
    for low, high in pairwise(SEQUENCES):
        chosen = table[(table[:, 0] > low) & (table[:, 0] <= high)]
        if len(chosen):
            count, real_s, kernels_s = chosen.mean(axis=0)
            rows.append(
                {
                    "sequences": round(count, 1),
                    "seconds": len(chosen),
                    "recorded": round(1e3 * real_s, 2),
                    "kernels": round(1e3 * kernels_s, 2),
                    "difference": round(1e3 * (real_s - kernels_s), 2),
                }
            )
    return rows


def kv_lengths(recording: Recording, at: float) -> Floats:
    """KV tokens of the requests that run at a moment, had their tokens come evenly."""
    running = (recording.first_token_s <= at) & (recording.last_token_s > at)
    first, last = recording.first_token_s[running], recording.last_token_s[running]
    prompt, output = recording.requests.prompt_tokens[running], recording.requests.output_tokens[running]
    return np.asarray(prompt + output * (at - first) / (last - first))


def cache_hits(recording: Recording) -> list[dict[str, Any]]:
    """Bounds on the prompt tokens that were not computed, while all prompts so far fit and none has finished."""
    budget = recording.whole("max_num_batched_tokens", 2048, "scheduler_config")
    rows = [json.loads(line) for line in (Path(recording.folder) / "requests.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: row["queued_ts"])
    scheduled = np.array([row["scheduled_ts"] for row in rows]) - rows[0]["queued_ts"]
    first, finish = recording.first_token_s, recording.last_token_s.min()
    stamps = np.sort(np.concatenate([first[first < finish], scheduled[(scheduled > 0.01) & (scheduled < finish)]]))
    ends = stamps[np.concatenate([[True], np.diff(stamps) > 2e-3])]
    prompts = np.concatenate([[0], np.cumsum(recording.requests.prompt_tokens)])
    found: list[dict[str, Any]] = []
    computed = 0
    for number, end in enumerate(ends):
        decodes = int((first <= ends[number - 1] + 1e-4).sum()) if number else 0
        queued = int((scheduled <= (ends[number - 2] + 1e-3 if number > 1 else 0.01)).sum())
        backlog = prompts[queued] - computed
        computed += min(budget - decodes, backlog) if number < 4 else budget - decodes
        done = int((first <= end + 1e-4).sum())
        if done == int((first < finish).sum()):
            break
        found.append({"prompts done": done, "their tokens": int(prompts[done]), "computed": int(computed)})
    lowest = np.maximum.accumulate([row["their tokens"] - row["computed"] for row in found])
    for row, hits in zip(found, lowest, strict=True):
        row["found in the cache, at least"] = max(0, int(hits))
    return found[:: max(1, len(found) // 12)] + found[-1:]


if __name__ == "__main__":
    main()
