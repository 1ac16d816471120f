"""Training pipelines: one step of a schedule, and sweeps of priorities."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.api.result import Drawing, Progress, Result, TableResult, read
from gnomon.core.errors import ConfigError
from gnomon.core.files import folder_written_whole, write_frame, write_text
from gnomon.report.blocks import Line, View

if TYPE_CHECKING:
    from gnomon.pipeline.costs import StepCosts
    from gnomon.pipeline.explain import WhatIf
    from gnomon.pipeline.run import Run
    from gnomon.pipeline.step import StepConfig, StepRecord
    from gnomon.pipeline.sweeps import Sweep, SweepConfig, SweepTable

Priority = float | str  # A weight of at least 0, or the letter of an exclusive tier: 'a' goes before 'b'.
TRANSFERS = ("fwd_prop", "grad_prop", "grad_sync")  # What shares the links of a training step.


def pipeline(given: StepConfig | Mapping[str, Any] | str | Path | None = None, **overrides: Any) -> PipelineStep:
    """Run one training step: a YAML file, a mapping, a `StepConfig`, or the default study, with overrides on top.

    gnomon.pipeline(schedule="zb-v", stages=8, n=32, prop_len=0.1).summary["bubble"]

    A model on GPUs is `gnomon.train`.
    """
    from gnomon.pipeline.step import StepConfig, run_step

    return PipelineStep(run_step(read(StepConfig, given, overrides)))


@dataclass(frozen=True, eq=False)
class PipelineStep(Result):
    """A training step that has run, and where its time goes."""

    view = "pipeline.text:step_view"
    step: StepRecord = field(repr=False)

    def __repr__(self) -> str:
        return f"PipelineStep({self.run.title}: {self.run.total_time:.6g}, idle {self.run.bubble:.1%})"

    @property
    def run(self) -> Run:
        """The engine's records."""
        return self.step.run

    @cached_property
    def what_if(self) -> list[WhatIf]:
        """What each link would bring if it alone were faster, best first; empty unless asked for."""
        from gnomon.pipeline.explain import faster_links

        factor = self.step.config.what_if
        return faster_links(self.run, factor) if factor else []

    def to_dict(self) -> dict[str, Any]:
        """The summary and the question."""
        return self.summary | {"config": self.step.config.model_dump(mode="json", exclude_unset=True)}

    def explain(self) -> TableResult:
        """What the step waited for: the critical path by kind, idle time by cause, what a faster link would bring."""
        from gnomon.pipeline.explain import faster_links
        from gnomon.report.pipeline.text import explanation

        return TableResult("explanation", self.step, *explanation(self.run, faster_links(self.run, 2.0)))

    def throttled_words(self) -> str:
        """The transfers that their receiver slowed, in a line."""
        from gnomon.report.pipeline.text import throttled_words

        return throttled_words(self.run)

    def drawn(self, **look: Any) -> Drawing:
        """The Gantt chart with memory and links below; `view`, `show_throttling`, `show_completion_time` change it."""
        from gnomon.report.pipeline.figures import step_figure

        return step_figure(self.run, memory=self.step.memory, **look)

    def priorities_drawn(self, grid: float = 0.1, chosen: tuple[str, str] | None = None) -> Drawing:
        """The total time of the same step under every priority of its transfers, as a heat map."""
        from gnomon.report.pipeline.heat_map import heat_grid, heat_map_figure

        return heat_map_figure(heat_grid(self.priorities(grid)), chosen)

    def priorities(self, grid: float = 0.1) -> SweepTable:
        """The total time of the same step under every priority of a grid."""
        from gnomon.pipeline.sweeps import SweepTable, priority_grid, total_times
        from gnomon.report.pipeline.heat_map import cell_texts

        cells = priority_grid(grid)
        totals = total_times(self.run.graph, self.run.num_ranks, cells)
        return SweepTable({}, [cell_texts(cell) for cell in cells], totals)

    def save(self, folder: str | Path, **look: Any) -> Path:
        """Write step.html, step.perfetto.json, step.csv, step.json and step.png; `look` as for `drawn`."""
        from gnomon.report.pipeline.files import write_step

        with folder_written_whole(folder, ("step.*",)) as temporary:
            write_step(self, temporary, **look)
            write_frame(temporary / "step.csv", self.frames["tasks"])
            write_text(temporary / "step.json", json.dumps(self.to_dict(), indent=1))
        return Path(folder)


def sweep(
    given: SweepConfig | Mapping[str, Any] | str | Path | None = None, *, step: float = 0.1, jobs: int | None = None,
    ray: str | None = None, workspace: str | Path | None = None, yes: bool = False,
    on_progress: Progress | None = None, **overrides: Any,
) -> PrioritySweep:  # fmt: skip
    """Run the communication-priority study over all combinations of a configuration, under every priority.

    In `workspace` finished parts are kept, so that the same sweep goes on where it was stopped. More than a day of work
    is refused unless `yes`.
    """
    from gnomon.core.sizes import check_duration
    from gnomon.pipeline.sweeps import SweepConfig, priority_grid
    from gnomon.pipeline.sweeps import sweep as run

    config = read(SweepConfig, given, overrides)
    total, done = config.num_configurations * len(priority_grid(step)), 0
    check_duration(total, config.seconds_each, "runs", fix="a coarser step", allowed=yes)

    def advance(runs: float) -> None:
        nonlocal done
        done += int(runs)
        if on_progress:
            on_progress(done, total)

    return PrioritySweep(run(config, step=step, jobs=jobs, ray=ray, workspace=workspace, progress=advance))


@dataclass(frozen=True, eq=False)
class PrioritySweep(Result):
    """The total time of every configuration under every priority."""

    sweep: Sweep = field(repr=False)

    @property
    def summary(self) -> dict[str, Any]:
        """How many runs, and the shortest."""
        return {"runs": int(self.sweep.totals.size), "best": float(self.sweep.totals.min())}

    @property
    def shown(self) -> View:
        """One line, and every run."""
        from gnomon.report.pipeline.text import sweep_frame

        line = f"{self.summary['runs']} runs, best {self.summary['best']:.4f}"
        return View("sweep", lambda: [Line(line)], lambda: self.summary, {"runs": partial(sweep_frame, self.sweep)})

    def save(self, folder: str | Path) -> Path:
        """Write sweep.csv and one heat map per configuration."""
        folder = Path(folder)
        self.sweep.write(folder / "sweep.csv")
        draw_heat_maps(folder / "sweep.csv", folder / "heatmaps")
        return folder


def draw_heat_maps(
    csv: str | Path, folder: str | Path, *, jobs: int | None = None, on_progress: Progress | None = None
) -> list[Path]:
    """One PNG per configuration of a sweep CSV."""
    from gnomon.core.parallel import map_ordered
    from gnomon.pipeline.sweeps import read_csv
    from gnomon.report.pipeline.files import draw_heat_map

    tables = read_csv(csv)
    # Starting processes pays only for many pictures.
    jobs = 1 if len(tables) < 48 else jobs
    files: list[Path] = []
    for outcome in map_ordered(draw_heat_map, ((table, str(folder)) for table in tables), jobs=jobs):
        files.append(outcome.unwrap())
        if on_progress:
            on_progress(len(files), len(tables))
    return files


def schedules() -> list[dict[str, Any]]:
    """The schedules that are built in, with their idle time and memory in closed form."""
    from gnomon.pipeline.zoo import SCHEDULES

    line = {"idle per rank": "bubble", "activations": "memory", "what": "summary", "source": "source"}
    known = {name: SCHEDULES[name] for name in SCHEDULES}
    return [{"name": name, **{k: getattr(one, field) for k, field in line.items()}} for name, one in known.items()]


def takes_chunks(schedule: str) -> bool:
    """Whether a schedule can have several stages per rank."""
    from gnomon.pipeline.zoo import SCHEDULES

    return schedule in SCHEDULES and SCHEDULES[schedule].takes_chunks


def schedule_csv(
    schedule: str, *, stages: int = 4, n: int = 8, chunks: int = 2, memory_limit: float | None = None
) -> str:
    """A built-in schedule, or a CSV file that is checked, as PyTorch pipelining CSV."""
    from gnomon.pipeline import pytorch_csv
    from gnomon.pipeline.step import load_schedule
    from gnomon.pipeline.zoo import Plan

    if chunks != 2 and not takes_chunks(schedule):
        raise ConfigError(f"chunks has no effect with the schedule {schedule}.", fix="Leave it out.")
    return pytorch_csv.text(load_schedule(schedule, Plan(stages, n, chunks, memory_limit=memory_limit)))


def check_priority(name: str, value: Priority) -> None:
    """Refuse what is neither a weight nor the letter of an exclusive tier."""
    from gnomon.pipeline.costs import check_priority as check

    check(name, value)


def priorities_at(grid: float, at: tuple[str, str]) -> tuple[str, str, str] | None:
    """The priorities of the cell at these places of the heat map's axes."""
    from gnomon.pipeline.sweeps import priority_grid
    from gnomon.report.pipeline.heat_map import cell_texts

    return next((found for cell in priority_grid(grid) if (found := cell_texts(cell))[:2] == at), None)


def read_costs(path: str | Path) -> StepCosts:
    """Costs per stage from a YAML file."""
    from gnomon.core.config import load
    from gnomon.pipeline.costs import StepCosts

    return load(StepCosts, path)
