"""Load stages of vLLM 0.15 servers on H100, sent by inference-perf, beside their simulation (docs/servers.md). The
client sends no temperature: the models' own generation_config counts."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnomon import catalog
from gnomon.core.config import load
from gnomon.core.streams import stream
from gnomon.report.blocks import Line, Table
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.verify.findings import Findings, Progress, each, proof, rows_of
from gnomon.workload import Requests

BLOCK = 16
GOALS = {"ttft": 0.08, "tpot": 0.06}  # Medians of absolute relative errors: of median TTFT and of TPOT.
RUN = re.compile(r"(?:\d+-\d+-)?(?P<model>.+)-tp(?P<degree>\d+)")  # 20260217-155451-llama-2-7b-tp1-codegen


@dataclass(frozen=True)
class Stage:
    run: str
    model: str
    degree: int
    number: int
    rate: float
    requests: int
    groups: int
    prompts: int
    shared_tokens: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    e2e_s: float

    @property
    def tpot_s(self) -> float:
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True)
class Predicted:
    stage: Stage
    ttft_s: float
    tpot_s: float

    @property
    def errors(self) -> dict[str, float]:
        return {"ttft": self.ttft_s / self.stage.ttft_s - 1, "tpot": self.tpot_s / self.stage.tpot_s - 1}


def read_stages(path: str | Path) -> list[Stage]:
    return rows_of(path, "load stage", "vllm_stages/h100.csv", _stage)


def _stage(row: dict[str, str], _: str) -> Stage:
    named = RUN.match(row["run"].lower())
    known = [model for model in catalog.model_names() if named and named["model"].startswith(model)]
    if named is None or not known:
        raise ValueError(f"the run {row['run']!r} does not begin with a known model and degree (llama-2-7b-tp1)")
    return Stage(
        row["run"], max(known, key=len), int(named["degree"]), int(row["stage"]), float(row["rate"]),
        int(row["requests"]), int(row["shared_prefix_groups"]), int(row["prompts_per_group"]),
        int(row["system_prompt_len"]), round(float(row["prompt_len_mean"])), int(row["output_len"]),
        float(row["ttft_median_ms"]) * 1e-3, float(row["e2e_median_ms"]) * 1e-3,
    )  # fmt: skip


def settings_of(stage: Stage) -> dict[str, Any]:
    return {
        "model": stage.model, "device": "h100", "engine": {"name": "vllm", "version": "0.15.0"},
        "replica": {"tensor_parallel": stage.degree},
        "batching": {"max_batch_tokens": 2048, "max_sequences": 128, "overlap": True},
    }  # fmt: skip


def requests_of(stage: Stage) -> Requests:
    """Prompts in turn, behind their shared beginnings."""
    gaps = stream(0, "stages", stage.run, stage.number).exponential(size=stage.requests)
    arrival_s = np.cumsum(gaps) * (stage.requests / stage.rate / gaps.sum())
    which = np.arange(stage.requests) % (stage.groups * stage.prompts)
    blocks, shared = stage.prompt_tokens // BLOCK, stage.shared_tokens // BLOCK
    place = np.arange(blocks)
    group = np.where(place < shared, (which % stage.groups)[:, None], 1000 + which[:, None])
    return Requests(
        arrival_s,
        np.full(stage.requests, stage.prompt_tokens, np.int32),
        np.full(stage.requests, stage.output_tokens, np.int32),
        prefix_offsets=np.arange(stage.requests + 1, dtype=np.int64) * blocks,
        prefix_hashes=(1 + group * 100_000 + place).astype(np.int64).ravel(),
    )


def predict(stage: Stage) -> Predicted:
    done = run(load(Scenario, None, settings_of(stage)), requests=requests_of(stage)).cluster.requests
    ttft = done["first_token_s"] - done["arrival_s"]
    tpot = (done["finished_s"] - done["first_token_s"]) / (stage.output_tokens - 1)
    return Predicted(stage, float(np.median(ttft)), float(np.median(tpot)))


@proof("stages")
def prove(file: str | Path, *, on_progress: Progress | None = None) -> Findings:
    """Load stages of vLLM servers, as inference-perf sent them, beside their simulation."""
    return findings([predict(one) for one in each(read_stages(file), on_progress)])


def findings(found: Sequence[Predicted]) -> Findings:
    """One row per stage; medians over all are judged."""
    rows = [_row(one) for one in found]
    medians = {metric: statistics.median(abs(one.errors[metric]) for one in found) for metric in GOALS}
    shown = [{key: f"{v:+.1%}" if "error" in key else f"{1e3 * v:.1f} ms" if key.endswith("_s") else v
              for key, v in row.items()} for row in rows]  # fmt: skip
    words = ", ".join(f"{metric.upper()} {value:.1%} (goal {GOALS[metric]:.0%})" for metric, value in medians.items())
    failures = [f"{metric} {value:.1%}" for metric, value in medians.items() if value > GOALS[metric]]
    return Findings(
        found, rows, {"medians": medians, "stages": rows}, [Table(shown), Line(f"Medians: {words}.")], failures
    )


def _row(one: Predicted) -> dict[str, Any]:
    s = one.stage
    return {
        "stage": f"{s.run} {s.number}", "rate": s.rate, "ttft_s": s.ttft_s, "simulated_ttft_s": one.ttft_s,
        "ttft_error": one.errors["ttft"], "tpot_s": s.tpot_s, "simulated_tpot_s": one.tpot_s,
        "tpot_error": one.errors["tpot"],
    }  # fmt: skip
