"""Published training steps beside their prediction: seconds, tokens per second, peak memory, and their order.

Constants were fitted on the rows whose line has an even CRC-32 (`gnomon/training/data/constants.yaml`); only the others
are judged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.core.config import build
from gnomon.core.errors import GnomonError
from gnomon.core.text import own_yaml
from gnomon.core.units import GIB
from gnomon.report.blocks import Block, Line, Table
from gnomon.training import TrainConfig, TrainStep, train_step
from gnomon.training.constants import constants
from gnomon.verify.findings import Findings, Progress, each, proof, reference
from gnomon.verify.training_rows import Row, read_rows, torchtitan_rows

RECORDED = Path(__file__).parent / "data" / "training.yaml"
SLACK = 0.003
"""By how much a figure may be worse than recorded: rounding of constants."""
FAR_ENOUGH = 0.10
"""Two steps of one model on one system are compared where they differ by more than this."""


@dataclass(frozen=True)
class Scored:
    """A row and its prediction."""

    row: Row
    step: TrainStep | None
    problem: str = ""
    """Why there is none."""

    @property
    def step_error(self) -> float | None:
        """Relative error of the step's seconds."""
        if self.step is None or self.row.step_s is None:
            return None
        return self.step.step_s / self.row.step_s - 1.0

    @property
    def memory_error(self) -> float | None:
        """Relative error of the peak memory."""
        if self.step is None or self.row.peak_bytes is None:
            return None
        return self.step.memory.peak_bytes / self.row.peak_bytes - 1.0

    def phase_error(self, phase: str) -> float | None:
        """Relative error of forward, backward or optimizer."""
        if self.step is None or phase not in self.row.phases_ms:
            return None
        return self.step.phases[phase] * 1e3 / self.row.phases_ms[phase] - 1.0


def score(row: Row) -> Scored:
    """Predict one row; one that Gnomon has no model or GPU for is said."""
    try:
        return Scored(row, train_step(build(TrainConfig, row.config), check=False))
    except GnomonError as error:
        return Scored(row, None, error.what)


@dataclass(frozen=True)
class Figure:
    """One figure that is judged (or only told): the median of absolute errors, or a share."""

    name: str
    count: int
    value: float
    bar: float | None
    is_share: bool = False
    """A share that must be reached, rather than an error that must not be passed."""

    @property
    def recorded(self) -> float | None:
        """What was found when these rows were last looked at; none for other rows."""
        known = recorded().get(self.name, {})
        return float(known["value"]) if known.get("rows") == self.count else None

    @property
    def passed(self) -> bool:
        """Whether it is within its bar, and not worse than it was."""
        if self.bar is None or not self.count:
            return True
        limit = self.bar
        if self.recorded is not None:
            limit = max(limit, self.recorded - SLACK) if self.is_share else min(limit, self.recorded + SLACK)
        return self.value >= limit if self.is_share else self.value <= limit


@cache
def recorded() -> dict[str, dict[str, float]]:
    """Figures by name, with the number of rows behind them."""
    known: dict[str, dict[str, float]] = own_yaml(RECORDED)
    return known


def figures(scored: Sequence[Scored]) -> list[Figure]:
    """What is judged: over rows that nothing was fitted on."""
    held = [one for one in scored if not one.row.is_fitted and one.row.is_gated]

    def of(family: str) -> list[float | None]:
        return [one.step_error for one in held if one.row.family == family]

    single = [one for one in held if one.row.family == "single"]
    found = [
        _median("step time, dense", of("dense"), 0.08),
        _median("step time, mixture of experts", of("moe"), 0.15),
        _median("step time, LoRA", of("lora"), 0.15),
        _median("peak memory", [one.memory_error for one in held if one.row.family != "single"], 0.07),
        *(
            _median(f"one H200: {phase}", [one.phase_error(phase) for one in single], 0.08)
            for phase in ("forward", "backward", "optimizer")
        ),
        _median("one H200: peak memory", [one.memory_error for one in single], 0.05),
    ]
    right, pairs = _order(scored)
    found.append(Figure("order of two configurations", pairs, right / max(1, pairs), 0.9, is_share=True))
    told = [one for one in scored if not one.row.is_gated]
    titan = [one for one in told if one.row.source == "torchtitan"]
    return [
        *found,
        _median("torchtitan, told: step time", [one.step_error for one in titan], None),
        _median("torchtitan, told: memory", [one.memory_error for one in titan], None),
        _median("AMD and other rows, told", [one.step_error for one in told if one not in titan], None),
    ]


def _median(name: str, errors: Iterable[float | None], bar: float | None) -> Figure:
    known = [abs(one) for one in errors if one is not None]
    return Figure(name, len(known), float(np.median(known)) if known else 0.0, bar)


def _order(scored: Sequence[Scored]) -> tuple[int, int]:
    """Pairs of configurations of one model on as many GPUs of one kind: how many are predicted in their order (by
    tokens per second), and how many there are. The same configuration under two releases is no such pair."""
    groups: dict[tuple[str, str, int], list[Scored]] = {}
    for one in scored:
        if one.step is not None and one.row.step_s is not None and one.row.is_gated and not one.row.is_fitted:
            groups.setdefault(one.row.group, []).append(one)
    right = pairs = 0
    for group in groups.values():
        for a, b in combinations(group, 2):
            if _layout(a) == _layout(b):
                continue
            measured, predicted = _speed(a, measured=True) / _speed(b, measured=True), _speed(a) / _speed(b)
            if max(measured, 1 / measured) > 1 + FAR_ENOUGH:
                pairs += 1
                right += (measured > 1) == (predicted > 1)
    return right, pairs


def _layout(one: Scored) -> dict[str, Any]:
    return {name: value for name, value in one.row.config.items() if name != "release"}


def _speed(one: Scored, measured: bool = False) -> float:
    assert one.step is not None and one.row.step_s is not None
    seconds = one.row.step_s if measured else one.step.step_s
    return one.step.config.tokens_per_step / seconds


def by_group(scored: Sequence[Scored]) -> dict[tuple[str, str, str, str], list[Scored]]:
    """Rows by source, model, GPU and precision."""
    groups: dict[tuple[str, str, str, str], list[Scored]] = {}
    for one in scored:
        c = one.row.config
        key = (one.row.source, str(c["model"]), str(c["device"]), str(c.get("precision", "bf16")))
        groups.setdefault(key, []).append(one)
    return groups


@proof("training")
def prove(*, data: str | Path | None = None, on_progress: Progress | None = None) -> Findings:
    """Published training steps in the folder `training` of `data` (or in `data` itself) beside their prediction."""
    folder = reference(data)
    rows = read_rows(folder / "training" if (folder / "training").is_dir() else folder)
    return told([score(row) for row in each([*rows, *torchtitan_rows()], on_progress)])


def told(scored: Sequence[Scored]) -> Findings:
    """What was found."""
    found = figures(scored)
    rows = [_row(one) for one in scored if one.step is not None]
    missing = [one for one in scored if one.step is None]
    groups = [_group(key, ones) for key, ones in sorted(by_group(scored).items()) if any(one.step for one in ones)]
    table = [_figure(one) for one in found]
    blocks: list[Block] = [
        Table(groups, "Rows by model, GPU and precision", "Median absolute errors; held out: rows not fitted on."),
        Table(table, "Judged: rows that nothing was fitted on"),
        Table(
            _fitted(), "Fitted constants", "On rows whose line has an even CRC-32; gnomon/training/data/constants.yaml."
        ),
    ]
    if missing:
        reasons = sorted({one.problem for one in missing})
        blocks.append(Line(f"{len(missing)} rows are not predicted: {'; '.join(reasons)}", "note"))
    data = {
        "figures": table,
        "groups": groups,
        "rows": rows,
        "constants": constants().model_dump(),
        "not_predicted": [{"row": one.row.name, "reason": one.problem} for one in missing],
    }
    return Findings(scored, rows, data, blocks, [one.name for one in found if not one.passed])


def _figure(one: Figure) -> dict[str, Any]:
    bar = "–" if one.bar is None else f"{'at least' if one.is_share else 'at most'} {100 * one.bar:.0f} %"
    return {
        "figure": one.name,
        "rows": one.count,
        "found": f"{100 * one.value:.1f} %",
        "bar": bar,
        "recorded": "–" if one.recorded is None else f"{100 * one.recorded:.1f} %",
        "passed": one.passed if one.bar is not None else None,
    }


def _row(one: Scored) -> dict[str, Any]:
    row, step = one.row, one.step
    assert step is not None
    return {
        "source": row.source,
        "row": row.name,
        "family": row.family,
        "fitted": row.is_fitted,
        "judged": row.is_gated and not row.is_fitted,
        "step_s": row.step_s,
        "predicted_s": step.step_s,
        "tokens_per_gpu_s": step.config.tokens_per_step / row.step_s / step.config.gpus if row.step_s else None,
        "predicted_tokens_per_gpu_s": step.tokens_per_gpu_s,
        "step_error": one.step_error,
        "peak_gib": row.peak_bytes / GIB if row.peak_bytes else None,
        "predicted_gib": step.memory.peak_bytes / GIB,
        "memory_error": one.memory_error,
    } | {f"{phase}_error": one.phase_error(phase) for phase in ("forward", "backward", "optimizer")}


def _group(key: tuple[str, str, str, str], ones: Sequence[Scored]) -> dict[str, Any]:
    source, model, device, precision = key
    held = [one for one in ones if not one.row.is_fitted]
    return {
        "source": source,
        "model": model,
        "GPU": device,
        "precision": precision,
        "rows": len(ones),
        "step time": _percent([one.step_error for one in ones]),
        "held out": _percent([one.step_error for one in held]),
        "memory": _percent([one.memory_error for one in ones]),
    }


def _percent(errors: Sequence[float | None]) -> str:
    known = [abs(one) for one in errors if one is not None]
    return f"{100 * float(np.median(known)):.1f} %" if known else "–"


def _fitted() -> list[dict[str, Any]]:
    return [
        {"device": device, "attention": rates.attention, "fitted on": rates.fitted_on}
        | {str(name): rate for name, rate in rates.products.items()}
        for device, rates in constants().devices.items()
    ]
