"""How far estimators and the roofline are from measured operators.

Held-out error of each estimator on Vidur's CSV files, beside what random forests reach on them; and the roofline
alone against every measured table there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnomon.catalog.devices import device
from gnomon.catalog.model_library import model
from gnomon.catalog.nodes import default_node, node
from gnomon.catalog.parallelism import Parallelism
from gnomon.catalog.topology import Group
from gnomon.core.errors import DataError
from gnomon.report.blocks import Block
from gnomon.report.blocks import Table as Rows
from gnomon.timing.estimators import DEFAULT, ESTIMATORS, Estimator
from gnomon.timing.estimators.validation import HeldOut, shuffled, unshuffled
from gnomon.timing.operators import Communication, Operator, stage_operators
from gnomon.timing.sources.profile import vidur
from gnomon.timing.sources.profile.measured import bound_of
from gnomon.timing.sources.profile.samples import Samples
from gnomon.timing.sources.roofline import Roofline
from gnomon.verify.findings import Findings, Progress, each, proof, reference

LIMIT = 0.05
"""Largest mean shuffled error of the default estimator on any operator that passes."""

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
        raise DataError(
            "has no Vidur profiles (a folder compute/<device>/<model>).",
            where=str(data),
            fix="Name the folder that holds them with --data or $GNOMON_REFERENCE.",
        )
    return [*_mlp_tables(root), *_attention_tables(root), *_network_tables(root)]


def sample(tables: Sequence[Table], every: int = 12) -> list[Table]:
    """Few enough tables to train forests on: all of attention and communication, every n-th of the others."""
    kept: list[Table] = []
    seen: dict[str, int] = {}
    for table in tables:
        index = seen.setdefault(table.operator.name, 0)
        seen[table.operator.name] += 1
        step = every if table.group == "mlp" else 1
        if index % step == 0:
            kept.append(table)
    return kept


def score(table: Table, name: str) -> Score:
    """Cross-validate one estimator on one table."""
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
def prove(
    *, data: str | Path | None = None, forests: bool = False, each_table: bool = False,
    on_progress: Progress | None = None,
) -> Findings:  # fmt: skip
    """Operator times: the held-out error of the estimators on the measured tables below `data`.

    `forests` trains random forests too, on a sample of the tables. `each_table` lists tables rather than operators.
    """
    tables = vidur_tables(reference(data))
    names = ["grid", "linear", "polynomial"]
    if forests:
        tables, names = sample(tables), ["grid", "forest"]
    return told([score(table, name) for table in each(tables, on_progress) for name in names], each_table=each_table)


_CAPTION = (
    "Published forests (mean, shuffled): MLP 1.4-3.4, prefill 2.2, decode 1.1, all-reduce 2.7-4.3; unshuffled 9-24."
)


def told(scores: list[Score], *, each_table: bool) -> Findings:
    """One row per operator and estimator, or per measured table."""
    found = summaries(scores)
    operators, tables = [_row(one) for one in found], [_table_row(one) for one in scores]
    blocks: list[Block] = [Rows(tables if each_table else operators, "Held-out error, %", _CAPTION)]
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
