"""Servers with known constants: iterations by a formula, and recordings of simulated ones."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any as Result

import numpy as np

from gnomon import simulate
from gnomon.api.serving import scenario
from gnomon.calibration.logs import Log, Stamps, Steps
from gnomon.calibration.read import read_log
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests, generate

TRUTH = {"decode": 0.002, "mixed": 0.003, "per_sequence": 4e-5, "launch": 0.015}
TABLE = {
    "timing.source": "table",
    "timing.table": {"per_iteration": 0.004, "per_token": 2e-5, "per_decode_kv_token": 1e-8},
    "batching.max_batch_tokens": 2048,
    "batching.max_sequences": 64,
    "batching.prefix_cache": False,
    "replica.num_kv_blocks": 20_000,
}
"""Kernels by a formula: nothing is baked from measurements."""


def server(**given):
    return scenario(None, **{**TABLE, **given})


def steps(rng: np.random.Generator, count: int, batch: float, truth: dict[str, float], noise: float) -> Steps:
    """Iterations of a server with known constants; what is slow stays slow for a while."""
    decodes = np.clip(rng.poisson(batch, count), 1, 60)
    chunk = np.where(rng.random(count) < 0.3, rng.integers(16, 1500, count), 0).astype(float)
    kv = decodes * rng.uniform(200, 800, count)
    gpu = 0.004 + 2e-5 * (chunk + decodes) + 1e-8 * kv
    sequences = decodes + (chunk > 0)
    host = np.where(chunk > 0, truth["mixed"], truth["decode"]) + truth["per_sequence"] * sequences
    drift = np.repeat(rng.normal(1.0, noise, count // 50 + 1), 50)[:count]
    seconds = host * drift + np.maximum(gpu, np.where(chunk > 0, drift * truth["launch"], 0.0))
    seconds = seconds * np.exp(rng.normal(0.0, noise / 4, count))
    return Steps(seconds, (chunk + decodes).astype(np.int64), sequences.astype(np.int64), chunk**2, np.zeros(count),
                 decodes.astype(np.int64), kv, kv / decodes, sequences.astype(float))  # fmt: skip


def recorded(rate: float, seed: int, num_requests: int = 500, **truth: float) -> Log:
    """Stamps of a simulated server with host constants."""
    true = {f"timing.host.{name}": value for name, value in truth.items() if name != "reply"}
    chosen = server(**true, **{"front_end.reply_s": truth.get("reply", 0.0), "workload.rate": rate,
                               "workload.num_requests": num_requests})  # fmt: skip
    q = run(chosen, requests=generate(chosen.workload, seed)).cluster.requests
    known = Requests(q.arrival_s, q.prompt_tokens, q.output_tokens)
    return Log(f"rate-{rate:g}", stamps=Stamps(known, q.first_token_s.copy(), q.last_token_s.copy()))


def recorded_log(name: str, chosen: Scenario) -> Log:
    """Iterations and stamps of a simulated server."""
    result = simulate(chosen, intervals=False)
    with TemporaryDirectory() as folder:
        written(result, Path(folder) / name)
        return read_log(Path(folder) / name)


def written(result: Result, folder: Path) -> None:
    """What `gnomon simulate --out` leaves of requests and iterations."""
    folder.mkdir(parents=True)
    result.requests.write_parquet(folder / "requests.parquet")
    result.iterations.write_parquet(folder / "iterations.parquet")


def recorded_folder(folder: Path, **truth: float) -> Path:
    """A server with host time, as `gnomon simulate --out` leaves it, and its settings without that host time."""
    true = {f"timing.host.{name}": value for name, value in truth.items() if name != "reply"}
    chosen = server(**true, **{"front_end.reply_s": truth.get("reply", 0.0), "workload.rate": 4.0,
                               "workload.num_requests": 150})  # fmt: skip
    result = simulate(chosen, intervals=False)
    written(result, folder)
    settings = server().model_dump(mode="json", exclude_unset=True)
    (folder / "scenario.yaml").write_text(json.dumps(settings))
    return folder
