"""Training: one step of a model on GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, get_args

from gnomon.api.result import Result, read
from gnomon.core.config import save
from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.core.files import write_text
from gnomon.training.config import Precision, Sharding, TrainConfig
from gnomon.training.plan import Job, TrainPlan, job, plan
from gnomon.training.step import TrainStep, train_step

__all__ = ["TrainConfig", "TrainPlanResult", "TrainResult", "train", "train_plan"]
PRECISIONS = get_args(Precision)
SHARDINGS = get_args(Sharding)


def train(
    given: TrainConfig | Mapping[str, Any] | str | Path | None = None, *, check: bool = True, **overrides: Any
) -> TrainResult:
    """Time one training step: a YAML file, a mapping, a `TrainConfig`, or the defaults, with overrides on top.

    gnomon.train(model="llama-3-8b", gpu="h100", gpus=8, batch=128, sequence=8192, precision="fp8").summary["mfu"]

    What does not fit is refused unless `check` is false.
    """
    return TrainResult(train_step(read(TrainConfig, given, overrides), check=check))


@dataclass(frozen=True, eq=False)
class TrainResult(Result):
    """A training step: its seconds, its parts, its memory."""

    view = "training:step_view"
    step: TrainStep = field(repr=False)

    def __repr__(self) -> str:
        return f"TrainResult({self.step.step_s:.4g} s, {self.step.tokens_per_gpu_s:,.0f} tokens/s/GPU)"

    def to_dict(self) -> dict[str, Any]:
        """The summary and the question."""
        return self.summary | {"config": self.step.config.model_dump(mode="json", exclude_unset=True)}

    @property
    def misfit(self) -> str:
        """Why it does not fit and what would; empty if it does."""
        try:
            self.step.check()
        except DoesNotFitError as error:
            return str(error)
        return ""

    def save(self, folder: str | Path) -> Path:
        """Write config.yaml, step.json and report.html."""
        save(self.step.config, Path(folder) / "config.yaml")
        self.write_page(Path(folder) / "report.html")
        return write_text(Path(folder) / "step.json", json.dumps(self.to_dict(), indent=1)).parent


def train_plan(
    given: TrainConfig | Mapping[str, Any] | str | Path | None = None, *, tokens: float | None = None,
    jitter: float = 0.01, shown: int = 10, jobs: int | None = None,
    on_progress: Callable[[int, int], None] | None = None, **overrides: Any,
) -> TrainPlanResult:  # fmt: skip
    """Find the fastest layout that fits: what is given is kept, other degrees, micro-batch, sharding and recomputation
    are searched. `tokens` of a whole run give days and dollars, with GPUs whose step times vary by `jitter`.

    gnomon.train_plan(model="llama-3.1-405b", gpu="h100", gpus=1024, batch=512, sequence=8192).summary["best"][0]
    """
    if tokens is not None and not 0 < tokens < inf:
        raise ConfigError(f"a run of {tokens:g} tokens is none.", where="--tokens", fix="Give a number above 0.")
    found = plan(read(TrainConfig, given, overrides), jobs=jobs, shown=shown, on_progress=on_progress)
    return TrainPlanResult(found, job(found.winner, tokens, jitter) if tokens else None)


@dataclass(frozen=True, eq=False)
class TrainPlanResult(Result):
    """Layouts of a training job, the fastest first."""

    view = "training:plan_view"
    plan: TrainPlan = field(repr=False)
    job: Job | None = None

    @cached_property
    def commands(self) -> dict[str, str]:
        """The best layout as flags of trainers."""
        from gnomon.convert.training_commands import megatron_command, torchtitan_command

        config = self.plan.winner.config
        return {"Megatron-LM": megatron_command(config), "torchtitan": torchtitan_command(config)}

    def save(self, folder: str | Path) -> Path:
        """Write plan.json, the best layout as best.yaml, and report.html."""
        save(self.plan.winner.config, Path(folder) / "best.yaml")
        write_text(Path(folder) / "plan.json", json.dumps(self.to_dict(), indent=1))
        return self.write_page(Path(folder) / "report.html").parent
