"""Every table of the silicon source: its points held out, and the roofline beside them.

Every fifth point of a shape is left out, the estimator fitted to the others predicts it. Tables hold hundreds of
shapes; one in so many is taken, evenly over the table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnomon.catalog.devices import device
from gnomon.catalog.nodes import default_node
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.report.blocks import Block, Table
from gnomon.timing.estimators.grid import Grid
from gnomon.timing.operators import Operator
from gnomon.timing.sources.profile.measured import bound_of
from gnomon.timing.sources.profile.samples import Samples
from gnomon.timing.sources.roofline import Roofline
from gnomon.timing.sources.silicon import SYSTEMS
from gnomon.verify.findings import Findings, Progress, each, proof
from gnomon.verify.kernel_tables import Measured, tables_of

LIMIT = 0.05
"""Largest median held-out error of all tables of a device that passes."""
ROOFLINE_LIMIT = 0.20
"""Largest median error of the roofline alone that passes."""
MIN_POINTS = 8


@dataclass(frozen=True)
class TableScore:
    """Absolute relative errors on one table."""

    device: str
    engine: str
    name: str
    held_out: Floats
    roofline: Floats
    left_out: int
    """Points that cannot be right."""
    weight: float
    """Measured points for each that was looked at."""


def score(measured: Measured, roofline: Roofline, one_in: int) -> TableScore | None:
    """Hold out every fifth point of one in so many shapes; None where nothing is large enough."""
    shapes = [
        (key, samples, work)
        for key, samples in measured.kernels.bundle.samples.items()
        if len(samples.seconds) >= MIN_POINTS and (work := measured.shaped(key)) is not None
    ]
    if not shapes:
        return None
    chosen = shapes[:: max(1, min(one_in, len(shapes) // 8))]
    held, formula, left_out = [], [np.zeros(0)], 0
    for key, samples, work in chosen:
        operator = Operator(measured.name, measured.kind, 1, work)
        left_out += len(measured.kernels.left_out.get(key, ()))
        held.append(_held_out(operator, samples, roofline))
        if measured.is_one_kernel:
            formula.append(np.abs(roofline.seconds(operator, *samples.sizes.T) / samples.seconds - 1.0))
    points = [sum(len(samples.seconds) for _, samples, _ in some) for some in (shapes, chosen)]
    return TableScore(
        measured.device, measured.engine, measured.name, np.concatenate(held), np.concatenate(formula), left_out,
        points[0] / points[1],
    )  # fmt: skip


def _held_out(operator: Operator, samples: Samples, roofline: Roofline) -> Floats:
    """Errors of every fifth point, predicted from the others."""
    out = every_fifth(samples.sizes)
    kept = replace(samples, sizes=samples.sizes[~out], seconds=samples.seconds[~out])
    fitted = Grid(bound_of(operator, roofline, kept)).fit(kept.sizes, kept.seconds)
    return np.abs(fitted.predict(samples.sizes[out]) / samples.seconds[out] - 1.0)


def every_fifth(sizes: Floats) -> NDArray[np.bool_]:
    """One in five of the points: from the third on, and never the last. Where sizes have two columns, along diagonals
    of the grid that they form, so that no row and no column of it is left out whole."""
    places = [np.unique(column, return_inverse=True)[1] for column in sizes.T]
    out = sum((step * place for step, place in zip((1, 2), places, strict=False)), start=np.zeros(len(sizes))) % 5 == 2
    out[np.lexsort(sizes.T[::-1])[-1]] = False
    return np.asarray(out)


def kernel_scores(device_name: str, one_in: int = 16) -> Iterator[TableScore]:
    """Every table of a device."""
    gpu = device(device_name)
    if gpu.name not in SYSTEMS:
        raise DataError(f"has no kernels of {gpu.name}.", where="silicon", fix=f"It has: {', '.join(SYSTEMS)}.")
    roofline = Roofline(gpu, default_node(gpu), is_repeated=True)
    for measured in tables_of(gpu.name):
        found = score(measured, roofline, one_in)
        if found:
            yield found


@proof("kernels")
def prove(*devices: str, one_in: int = 16, on_progress: Progress | None = None) -> Findings:
    """Every table of the silicon source, its points held out, and the roofline beside it; one in so many shapes."""
    names = each(devices or ("h200", "b200"), on_progress)
    return told([one for name in names for one in kernel_scores(name, one_in)])


_CAPTION = (
    "Every fifth point left out; the roofline on all points, where a table holds single kernels. Left out: points whose"
    " time falls when work grows. Over several tables every measured point counts the same."
)


def told(scores: Sequence[TableScore]) -> Findings:
    """One row per table, and one per device over all of its tables."""
    tables = [_row(one.device, one.engine, one.name, [one]) for one in scores]
    devices = [
        _row(name, "all", "all", [one for one in scores if one.device == name])
        for name in dict.fromkeys(one.device for one in scores)
    ]
    failures = [f"{row['device']} held out" for row in devices if row["held out"] > 100 * LIMIT]
    failures += [f"{row['device']} roofline" for row in devices if (row["roofline"] or 0.0) > 100 * ROOFLINE_LIMIT]
    worst = sorted(tables, key=lambda row: -row["held out"])[:5]
    blocks: list[Block] = [
        Table(tables, "Median error of every table, %", _CAPTION),
        Table(devices, "Median error by device, %", ""),
        Table(worst, "Worst tables", ""),
    ]
    return Findings(scores, tables, {"tables": tables, "devices": devices}, blocks, failures)


def _row(device: str, engine: str, name: str, scores: list[TableScore]) -> dict[str, Any]:
    held, formula = ([getattr(one, kind) for one in scores] for kind in ("held_out", "roofline"))
    return {
        "device": device, "engine": engine, "table": name, "points": sum(len(one) for one in held),
        "held out": _percent(held, scores, 0.5), "90th": _percent(held, scores, 0.9),
        "roofline": _percent(formula, scores, 0.5), "left out": sum(one.left_out for one in scores),
    }  # fmt: skip


def _percent(errors: list[Floats], scores: list[TableScore], share: float) -> float | None:
    """A quantile in which every measured point counts the same, however many of its table were looked at."""
    together = np.concatenate(errors)
    if together.size == 0:
        return None
    weights = np.repeat([one.weight for one in scores], [len(one) for one in errors])
    return round(100 * float(np.quantile(together, share, weights=weights, method="inverted_cdf")), 1)
