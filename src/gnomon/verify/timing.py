"""How far estimators and the roofline are from measured operators.

Held-out error of each estimator on Vidur's CSV files, beside what random forests reach on them; and the roofline
alone against every measured table there is.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.catalog.devices import device
from gnomon.catalog.model_library import model
from gnomon.catalog.nodes import default_node, node
from gnomon.catalog.parallelism import Parallelism
from gnomon.catalog.topology import Group
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.report.blocks import Block
from gnomon.report.blocks import Table as Rows
from gnomon.timing.estimators import DEFAULT, ESTIMATORS, Estimator
from gnomon.timing.estimators.validation import HeldOut, shuffled, unshuffled
from gnomon.timing.operators import Communication, Gemm, Operator, mixed_attention, stage_operators
from gnomon.timing.sources.profile import servingsim, vidur
from gnomon.timing.sources.profile.measured import bound_of
from gnomon.timing.sources.profile.samples import Samples
from gnomon.timing.sources.roofline import Roofline
from gnomon.verify.findings import Findings, Progress, each, proof, reference

LIMIT = 0.05  # Largest mean shuffled error of the default estimator on any operator that passes.

FORESTS = {
    "mlp": "1.4-3.4", "attention_prefill": "2.2", "attention_decode": "1.1", "all_reduce": "2.7-4.3", "send_recv": None,
}  # fmt: skip
"""Mean shuffled error in % of Vidur's random forests by group of operators; unshuffled they are at 9-24 %."""


@dataclass(frozen=True)
class Table:
    """Measurements of one operator on one device for one model and degree."""

    operator: Operator
    group: str
    where: str
    samples: Samples
    roofline: Roofline


@dataclass(frozen=True)
class Score:
    """Held-out error of one estimator on one table."""

    table: Table
    estimator: str
    shuffled: HeldOut
    unshuffled: HeldOut


@dataclass(frozen=True)
class Summary:
    """Mean over an operator's tables."""

    operator: str
    group: str
    estimator: str
    num_tables: int
    num_points: int
    shuffled: HeldOut
    unshuffled: HeldOut

    @property
    def passes(self) -> bool:
        """Only the default estimator is held to the limit."""
        return self.estimator != DEFAULT or self.shuffled.mean <= LIMIT


def vidur_tables(data: Path) -> list[Table]:
    """Every operator of every Vidur CSV below `data`."""
    root = vidur.find_root(data) or vidur.find_root(data / "vidur")
    if root is None:
        fix = "Name the folder that holds them with --data or $GNOMON_REFERENCE."
        raise DataError("has no Vidur profiles (a folder compute/<device>/<model>).", where=str(data), fix=fix)
    return [*_mlp_tables(root), *_attention_tables(root), *_network_tables(root)]


def sample(tables: Sequence[Table], every: int = 12) -> list[Table]:
    """Few enough tables to train forests on: all of attention and communication, every n-th of the others."""
    seen: dict[str, Iterator[int]] = defaultdict(count)
    return [one for one in tables if next(seen[one.operator.name]) % (every if one.group == "mlp" else 1) == 0]


def score(table: Table, name: str) -> Score:
    factory = ESTIMATORS[name]
    bound = bound_of(table.operator, table.roofline, table.samples)
    x, y = table.samples.sizes, table.samples.seconds

    def make() -> Estimator:
        return factory(bound)

    return Score(table, name, shuffled(make, x, y), unshuffled(make, x, y))


def summaries(scores: Iterable[Score]) -> list[Summary]:
    """One line per operator and estimator."""
    by_key: dict[tuple[str, str], list[Score]] = {}
    for one in scores:
        by_key.setdefault((one.table.operator.name, one.estimator), []).append(one)
    return [_summary(operator, name, group) for (operator, name), group in by_key.items()]


def _summary(operator: str, name: str, scores: list[Score]) -> Summary:
    return Summary(
        operator, scores[0].table.group, name, len(scores), sum(len(one.table.samples.seconds) for one in scores),
        _mean([one.shuffled for one in scores]), _mean([one.unshuffled for one in scores]),
    )  # fmt: skip


def _mean(errors: list[HeldOut]) -> HeldOut:
    return HeldOut(float(np.mean([e.median for e in errors])), float(np.mean([e.mean for e in errors])))


def _mlp_tables(root: Path) -> Iterator[Table]:
    for path in sorted((root / "compute").glob("*/*/*/mlp.csv")):
        device_name, name = path.parts[-4], "/".join(path.parts[-3:-1])
        gpu, shape = device(device_name), model(name)
        roofline = Roofline(gpu, default_node(gpu))
        for degree, columns in vidur.read_mlp(path).items():
            graph = {one.name: one for one in stage_operators(shape, Parallelism(tensor_parallel=degree))}
            for column, samples in columns.items():
                operator = graph.get(vidur.OPERATORS[column][0])
                if operator is not None:
                    yield Table(operator, "mlp", f"{device_name}/{name}/tp{degree}", samples, roofline)


def _attention_tables(root: Path) -> Iterator[Table]:
    files = [*sorted((root / "compute").glob("*/*/*/attention.csv")), *sorted(root.parent.glob("attention*.csv*"))]
    for path in files:
        shape, degree, gpu = vidur.attention_shape(path)
        graph = {one.name: one for one in stage_operators(shape, Parallelism(tensor_parallel=degree))}
        roofline = Roofline(gpu, default_node(gpu))
        for name, samples in vidur.read_attention(path, shape, degree).items():
            yield Table(graph[name], name, f"{gpu.name}/{shape.name}/tp{degree}", samples, roofline)


def _network_tables(root: Path) -> Iterator[Table]:
    for folder in sorted((root / "network").glob("*")):
        server = node(folder.name)
        roofline = Roofline(device(server.device), server)
        for path, collective in vidur.network_files(root, server):
            for (ranks, per_node), samples in vidur.read_network(path, collective).items():
                group = Group.spread(ranks, per_node, server)
                work = Communication("all_reduce" if collective == "all_reduce" else "send_recv", group, 1.0)
                operator = Operator(collective, "communication", 1, work)
                where = f"{server.name}/{ranks} ranks, {per_node} per node"
                yield Table(operator, collective, where, samples, roofline)


@proof("timing")
def prove(*, data: str | Path | None = None, forests: bool = False, on_progress: Progress | None = None) -> Findings:
    """Operator times: the held-out error of the estimators on the measured tables below `data`.

    `forests` trains random forests too, on a sample of the tables.
    """
    tables = vidur_tables(reference(data))
    names = ["grid", "linear", "polynomial"]
    if forests:
        tables, names = sample(tables), ["grid", "forest"]
    return findings([score(table, name) for table in each(tables, on_progress) for name in names])


_CAPTION = (
    "Published forests (mean, shuffled): MLP 1.4-3.4, prefill 2.2, decode 1.1, all-reduce 2.7-4.3; unshuffled 9-24."
)


def findings(scores: list[Score]) -> Findings:
    """One row per operator and estimator."""
    found = summaries(scores)
    operators, tables = [_row(one) for one in found], [_table_row(one) for one in scores]
    blocks: list[Block] = [Rows(operators, "Held-out error, %", _CAPTION)]
    return Findings(
        scores, operators, {"operators": operators, "tables": tables}, blocks,
        [one.operator for one in found if not one.passes],
    )  # fmt: skip


def _row(summary: Summary) -> dict[str, Any]:
    return {
        "operator": summary.operator, "estimator": summary.estimator, "tables": summary.num_tables,
        "points": summary.num_points, **_errors(summary), "forest": FORESTS[summary.group], "passes": summary.passes,
    }  # fmt: skip


def _table_row(score: Score) -> dict[str, Any]:
    return {
        "operator": score.table.operator.name, "table": score.table.where, "estimator": score.estimator,
        "points": len(score.table.samples.seconds), **_errors(score),
    }  # fmt: skip


def _errors(one: Summary | Score) -> dict[str, float]:
    return {
        "shuffled mean": round(100 * one.shuffled.mean, 2),
        "median": round(100 * one.shuffled.median, 2),
        "unshuffled mean": round(100 * one.unshuffled.mean, 2),
        "unsh. median": round(100 * one.unshuffled.median, 2),
    }


def roofline_errors(data: Path) -> list[dict[str, Any]]:
    """One row per device, data set and kind of operator; then one per device over all of its tables."""
    errors: dict[tuple[str, str, str], list[Floats]] = {}
    for table, origin in [*((one, "Vidur") for one in vidur_tables(data)), *_servingsim(data)]:
        key = (table.roofline.device.name, origin, _kind(table.operator))
        operator = replace(table.operator, is_fused=False)
        predicted = table.roofline.seconds(operator, *table.samples.sizes.T)
        errors.setdefault(key, []).append(predicted / table.samples.seconds - 1.0)
    rows = [_roofline_row(*key, found) for key, found in sorted(errors.items())]
    for name in sorted({key[0] for key in errors}):
        found = [one for key, tables in errors.items() if key[0] == name for one in tables]
        rows.append(_roofline_row(name, "all", "all", found))
    return rows


def _roofline_row(device_name: str, origin: str, kind: str, found: list[Floats]) -> dict[str, Any]:
    pooled = np.concatenate(found)
    errors = {"median": np.median(np.abs(pooled)), "mean": np.mean(np.abs(pooled)), "bias (median)": np.median(pooled)}
    return {
        "device": device_name, "measured by": origin, "operators": kind, "tables": len(found), "points": len(pooled),
        **{name: round(100 * float(value), 1) for name, value in errors.items()},
    }  # fmt: skip


def _kind(operator: Operator) -> str:
    if operator.kind in ("token", "sequence"):
        return "gemm" if isinstance(operator.work, Gemm) else "elementwise"
    return operator.kind


def _servingsim(data: Path) -> Iterator[tuple[Table, str]]:
    for path in sorted(data.glob("**/tp*/dense.csv")):
        *_, device_name, owner, name, _variant, degree, _ = path.parts
        gpu, shape = device(device_name), model(f"{owner}/{name}")
        roofline = Roofline(gpu, default_node(gpu))
        bundle = servingsim.read(path.parents[4], shape, gpu, "bf16", int(degree.removeprefix("tp")))
        graph = stage_operators(shape, Parallelism(tensor_parallel=int(degree.removeprefix("tp"))))
        for operator in (*graph, mixed_attention(graph)):
            samples = bundle.find(operator, roofline.node) if operator else None
            if operator and samples is not None and operator.name != "experts":
                yield Table(operator, operator.kind, str(path.parent), samples, roofline), "LLMServingSim"


@proof("roofline")
def prove_roofline(*, data: str | Path | None = None, on_progress: Progress | None = None) -> Findings:
    """The roofline alone against every measured table below `data`; it has no gate."""
    rows = [row for folder in each([reference(data)], on_progress) for row in roofline_errors(folder)]
    caption = "Points of every table count alike within a device and operator."
    table = Rows(rows, "The roofline alone against measured kernels, error in %", caption)
    return Findings(rows, rows, {"operators": rows}, [table], [])
