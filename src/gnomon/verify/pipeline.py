"""The pipeline simulator against recorded runs, sweeps, published bubble tables and schedules."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.core import config
from gnomon.core.errors import ConfigError, DataError, GnomonError
from gnomon.core.text import MAX_TABLE_BYTES, read_json, read_text
from gnomon.pipeline import pytorch_csv, sweeps
from gnomon.pipeline.costs import StepCosts
from gnomon.pipeline.execution import execute, step_graph
from gnomon.pipeline.run import run_graph
from gnomon.pipeline.schedule import Schedule
from gnomon.pipeline.study import Study, simulate
from gnomon.pipeline.sweeps import SweepConfig, priority_grid
from gnomon.pipeline.validation import validate
from gnomon.pipeline.zoo import SCHEDULES, Plan, make
from gnomon.report.blocks import Block, Line, Table
from gnomon.timing.fair_share import NO_TIER
from gnomon.verify.findings import Findings, Progress, each, proof

RUN_TOLERANCE = 1e-6
SWEEP_TOLERANCE = 1e-4
MAX_ROWS = 200
PRINTED_DIGITS = 0.5e-4 + 1e-9  # A value that rounds to the four digits printed.
HEURISTIC_TOLERANCE = 0.005  # For packed schedules, whose heuristics differ in detail.


@dataclass(frozen=True)
class Check:
    what: str
    expected: float | str | None
    obtained: float | str
    tolerance: float = 0.0

    @property
    def difference(self) -> float | None:
        if isinstance(self.expected, int | float) and isinstance(self.obtained, int | float):
            return self.obtained - self.expected
        return None

    @property
    def ok(self) -> bool:
        """Within the tolerance; a value without expectation is for information."""
        if self.expected is None:
            return True
        if self.difference is not None:
            return abs(self.difference) <= self.tolerance
        return self.expected == self.obtained


def verify(path: str | Path) -> list[Check]:
    """Every check of one file: a run list, a sweep CSV, bubble tables, or a PyTorch schedule CSV."""
    path = Path(path)
    if path.suffix.lower() == ".csv":
        head = next(iter(read_text(path, most=MAX_TABLE_BYTES).splitlines()), "").strip()
        return list(_sweep(path) if head == ",".join(sweeps.COLUMNS) else _schedule(path))
    data = read_json(path)
    if isinstance(data, list):
        return list(_runs(data, path))
    if isinstance(data, dict) and any(_is_table(value) for value in data.values()):
        return list(_tables(data, path))
    fix = "Give a run list (JSON), a sweep CSV, bubble tables (JSON) or a schedule (CSV)."
    raise DataError("this is neither a list of runs nor bubble tables.", where=str(path), fix=fix)


def is_sweep_config(path: str | Path) -> bool:
    """Whether the file is a sweep's configuration, which stands beside its CSV and has no results of its own."""
    try:
        config.load(SweepConfig, path)
    except GnomonError:
        return False
    return True


def _runs(runs: list[Any], path: Path) -> Iterator[Check]:
    for number, run in enumerate(runs):
        where = f"{path}, run {number}"
        try:
            study = _study(run)
            expected = float(run["total_time"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the run cannot be read: {error!r}.", where=where) from None
        except ConfigError as error:
            raise DataError(error.what, where=where, fix=error.fix) from None
        result = simulate(study, record=False)
        yield Check(f"run {number}: total_time", expected, result.total_time, RUN_TOLERANCE)
        if "throttled" in run:
            known, ours = ("; ".join(sorted(map(str, some))) or "none" for some in (run["throttled"], result.throttled))
            yield Check(f"run {number}: throttled", known, ours)


def _study(run: dict[str, Any]) -> Study:
    lengths, tiers, weights = run["lengths"], run.get("tiers", {}), run["priorities"]
    return config.build(
        Study,
        {
            "n": run["n"], "stages": run["num_gpus"], "fwd_len": lengths["forward"], "bwd_len": lengths["backward"],
            "prop_len": lengths["fwd_prop"], "grad_prop_len": lengths["grad_prop"],
            "sync_base_len": lengths["grad_sync"], "fwd_impact": run["fwd_impact"], "bwd_impact": run["bwd_impact"],
            "sync_freq": run["sync_freq"], "ideal": run.get("is_ideal", False),
            **{kind: tiers.get(kind) or weights[kind] for kind in ("fwd_prop", "grad_prop", "grad_sync")},
        },
    )  # fmt: skip


def _sweep(path: Path) -> Iterator[Check]:
    tables = sweeps.read_csv(path)
    beside = _config_beside(path)
    stages = beside.stages if beside else 4
    for table in tables:
        given = table.parameters | {name: int(table.parameters[name]) for name in ("n", "sync_freq")}
        given |= {"stages": stages}
        name = " ".join(f"{key}={value:g}" for key, value in table.parameters.items())
        for cells, expected in zip(table.priorities, table.total_time, strict=True):
            kinds = dict(zip(("fwd_prop", "grad_prop", "grad_sync"), map(sweeps.as_priority, cells), strict=True))
            total = simulate(config.build(Study, given | kinds, where=str(path)), record=False).total_time
            yield Check(f"{name} | {' '.join(cells)}", float(expected), round(total, 4), SWEEP_TOLERANCE)
    if beside:
        yield from _completeness(tables, beside)


def _completeness(tables: list[sweeps.SweepTable], beside: SweepConfig) -> Iterator[Check]:
    """The rows must be those of the configuration beside the CSV: every combination, every priority."""
    weights = {float(cell) for table in tables for row in table.priorities for cell in row if not cell.isalpha()}
    step = min((weight for weight in weights if weight > 0), default=1.0)
    yield Check("configurations", len(beside.studies()), len(tables))
    yield Check("rows", len(beside.studies()) * len(priority_grid(step)), sum(len(t.priorities) for t in tables))


def _config_beside(path: Path) -> SweepConfig | None:
    """The sweep's configuration: `small_config.json` or `small.json` for `small_step0.25.csv` or `small_TIME.csv`."""
    words = path.stem.split("_")
    for length in range(len(words), 0, -1):
        stem = "_".join(words[:length])
        for name in (f"{stem}.json", f"{stem}_config.json"):
            beside = path.parent / name
            if beside.is_file() and is_sweep_config(beside):
                return config.load(SweepConfig, beside)
    return None


def _tables(data: dict[str, Any], path: Path) -> Iterator[Check]:
    for name, rows in data.items():
        if not _is_table(rows):
            continue
        for number, row in enumerate(rows):
            where = f"{path}, {name}[{number}]"
            try:
                yield from _table_row(row, f"{name} {row.get('model', '')} p={row['p']} m={row['m']}", where)
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(f"the row cannot be read: {error!r}.", where=where) from None


def _table_row(row: dict[str, Any], name: str, where: str) -> Iterator[Check]:
    # Per-chunk times are those of half a rank: a V has two chunks.
    factor, before, unit = (2.0, "chunk_", "_us") if "chunk_TF_us" in row else (1.0, "", "")
    times = [factor * float(row[f"{before}{key}{unit}"]) for key in ("TF", "TB", "TW")]
    hop = float(row[f"Tcomm{unit}"])
    plan = Plan(
        int(row["p"]), int(row["m"]), chunks=int(row.get("v", 2)), forward=times[0], input_grad=times[1],
        weight_grad=times[2], hop=hop, weight_grad_memory=_weight_memory(row),
    )  # fmt: skip
    for schedule, expected in row["bubble"].items():
        kind = {"1f1b-i": "interleaved"}.get(schedule.lower(), schedule.lower())
        if kind not in SCHEDULES:
            raise DataError(f"there is no schedule {schedule!r}.", where=where, fix=f"Known: {', '.join(SCHEDULES)}.")
        tolerance = HEURISTIC_TOLERANCE if SCHEDULES[kind].is_packed else PRINTED_DIGITS
        if SCHEDULES[kind].takes_chunks:
            yield Check(f"{name} {schedule} (published)", expected, bubble(kind, plan, published=True), tolerance)
            yield Check(f"{name} {schedule} (strict)", None, bubble(kind, plan))
        else:
            yield Check(f"{name} {schedule}", expected, bubble(kind, plan), tolerance)


def _weight_memory(row: dict[str, Any]) -> float:
    """M_W / M_B with M_B = 34h + 5as and M_W = 32h (arXiv 2401.10241); 1 where the row does not say."""
    if not all(key in row for key in "has"):
        return 1.0
    h, a, s = (float(row[key]) for key in "has")
    return 32 * h / (34 * h + 5 * a * s)


def bubble(kind: str, plan: Plan, *, published: bool = False) -> float:
    """(cost - m(TF+TB+TW)) / cost, with the paper's conventions.

    The cost is the make-span, or the longest span of a rank where the schedule's papers count that.
    `published` leaves out what the published interleaved figures leave out.
    """
    schedule = make(kind, plan)
    pieces = schedule.num_stages // plan.ranks
    each = {name: getattr(plan, name) / pieces for name in ("forward", "input_grad", "weight_grad")}
    graph, labels = step_graph(
        schedule, StepCosts(**each, latency=plan.hop), wrap_for=plan.ranks if published else None
    )
    run = run_graph(kind, plan.ranks, graph, labels, (np.ones(3), np.full(3, NO_TIER, np.int64)), record=False)
    cost = float(run.spans.max()) if SCHEDULES[kind].counts_spans else run.total_time
    return 1.0 - plan.microbatches * (plan.forward + plan.input_grad + plan.weight_grad) / cost


def _schedule(path: Path) -> Iterator[Check]:
    schedule = pytorch_csv.read(path)
    try:
        validate(schedule, where=str(path))
    except DataError as error:
        yield Check("valid", "yes", f"no: {error.what}")
        return
    yield Check("valid", "yes", "yes")
    if schedule.num_stages == 2 * schedule.num_ranks and _is_dualpipe_v(schedule):
        yield from _dualpipe_v(schedule)


def _is_dualpipe_v(schedule: Schedule) -> bool:
    plan = Plan(schedule.num_ranks, schedule.num_microbatches)
    return plan.microbatches >= 2 * plan.ranks and make("dualpipe-v", plan).ranks == schedule.ranks


def _dualpipe_v(schedule: Schedule) -> Iterator[Check]:
    """Make-span and worst idle time by the closed form (PP/2-1)(F&B+B-3W), with PP virtual stages."""
    stages = schedule.num_stages
    for f, i, w, both in ((1, 1, 1, 3), (1, 1, 1, 2), (2, 2, 1, 5), (3, 3, 2, 7)):
        run = execute(schedule, StepCosts(forward=f, input_grad=i, weight_grad=w, overlapped=both), record=False)
        idle = (stages // 2 - 1) * (both + i + w - 3 * w)
        worst = float((run.total_time - run.busy).max())
        yield Check(f"DualPipeV (F, I, W, F&B) = ({f}, {i}, {w}, {both}): idle", idle, worst, RUN_TOLERANCE)
        busy = float(run.busy[run.busy.argmin()])
        yield Check(f"DualPipeV ({f}, {i}, {w}, {both}): make-span", idle + busy, run.total_time, RUN_TOLERANCE)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) and "bubble" in row for row in value)


@proof("pipeline")
def prove(*files: str | Path, on_progress: Progress | None = None) -> Findings:
    """Training pipelines: recorded runs and sweeps, published bubble tables, PyTorch schedules."""
    # A sweep's configuration is read together with its CSV.
    chosen = [str(path) for path in files if not (str(path).endswith(".json") and is_sweep_config(path))]
    if not chosen:
        raise DataError("there are only configurations here, and no results.", fix="Name the CSV of the sweep.")
    return findings({path: verify(path) for path in each(chosen, on_progress)})


def findings(found: dict[str, list[Check]]) -> Findings:
    """A table per file; of those with more than `MAX_ROWS` values only what is off."""
    blocks: list[Block] = []
    failures = []
    for path, checks in found.items():
        wrong = [check for check in checks if not check.ok]
        shown = checks if len(checks) <= MAX_ROWS else wrong[:MAX_ROWS]
        if shown:
            blocks.append(Table([_printed(_row(check)) for check in shown], title=path))
        worst = max((abs(check.difference) for check in checks if check.difference is not None), default=0.0)
        verdict = "all agree" if not wrong else f"{len(wrong)} OFF"
        blocks.append(Line(f"{path}: {len(checks)} values, {verdict}; largest difference {worst:.2g}"))
        failures += [f"{path}: {len(wrong)} values"] if wrong else []
    files = {path: [_row(check) for check in checks] for path, checks in found.items()}
    rows = [{"file": path, **one} for path, checks in files.items() for one in checks]
    return Findings([one for checks in found.values() for one in checks], rows, {"files": files}, blocks, failures)


def _row(check: Check) -> dict[str, Any]:
    names = ("what", "expected", "obtained", "difference", "ok")
    return {name: getattr(check, name) for name in names}


def _printed(row: dict[str, Any]) -> dict[str, Any]:
    """Six decimals for times and bubbles; the differences in short."""
    texts = {key: f"{row[key]:.6f}" for key in ("expected", "obtained") if isinstance(row[key], float)}
    if isinstance(row["difference"], float):
        texts["difference"] = f"{row['difference']:+.1e}"
    return row | texts
