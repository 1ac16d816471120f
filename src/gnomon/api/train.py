"""Training: one step of a model on GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.api.result import Result, read
from gnomon.core.config import save
from gnomon.core.files import write_text
from gnomon.training.config import TrainConfig

if TYPE_CHECKING:
    import polars as pl

    from gnomon.report.blocks import Block
    from gnomon.training.step import TrainStep

__all__ = ["TrainConfig", "TrainResult", "train"]


def train(
    given: TrainConfig | Mapping[str, Any] | str | Path | None = None, *, check: bool = True, **overrides: Any
) -> TrainResult:
    """Time one training step: a YAML file, a mapping, a `TrainConfig`, or the defaults, with overrides on top.

    gnomon.train(model="llama-3-8b", gpu="h100", gpus=8, batch=128, sequence=8192, precision="fp8").summary["mfu"]

    What does not fit is refused unless `check` is false.
    """
    from gnomon.training.step import train_step

    return TrainResult(train_step(read(TrainConfig, given, overrides), check=check))


@dataclass(frozen=True, eq=False)
class TrainResult(Result):
    """A training step: its seconds, its parts, its memory."""

    step: TrainStep = field(repr=False)

    def __repr__(self) -> str:
        return f"TrainResult({self.step.step_s:.4g} s, {self.step.tokens_per_gpu_s:,.0f} tokens/s/GPU)"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Seconds, tokens per second, MFU, parts of the time and of the memory."""
        from gnomon.report.training import step_data

        return step_data(self.step)

    def to_dict(self) -> dict[str, Any]:
        """The summary and the question."""
        return self.summary | {"config": self.step.config.model_dump(mode="json", exclude_unset=True)}

    def text(self) -> list[Block]:
        """Figures, time by part, memory by part."""
        from gnomon.report.training import step_blocks

        return step_blocks(self.step)

    def _frames(self) -> Mapping[str, Callable[[], pl.DataFrame]]:
        import polars as pl

        return {name: lambda name=name: pl.DataFrame(self.summary[name]) for name in ("time", "memory")}  # type: ignore[misc]

    def save(self, folder: str | Path) -> Path:
        """Write config.yaml and step.json."""
        save(self.step.config, Path(folder) / "config.yaml")
        return write_text(Path(folder) / "step.json", json.dumps(self.to_dict(), indent=1)).parent
