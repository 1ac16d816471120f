"""PyTorch's pipelining CSV: a row per rank, a cell per action, blank for idle."""

import csv
import io
import re
from pathlib import Path

from gnomon.core.errors import DataError
from gnomon.core.text import read_text
from gnomon.pipeline.schedule import COMPUTE_KINDS, OVERLAP, STAGE_KINDS, TRANSFER_KINDS, Action, Schedule

_KINDS = (*TRANSFER_KINDS, *STAGE_KINDS, *COMPUTE_KINDS)
_CELL = re.compile(rf"(\d+)({'|'.join(_KINDS)})(\d*)")
_PAIR = re.compile(rf"\(([^;()]+);([^;()]+)\){OVERLAP}")


def read(path: str | Path) -> Schedule:
    """Read a schedule; the error names the line and the cell."""
    return parse(read_text(path), name=Path(path).stem, where=str(path))


def parse(text: str, *, name: str = "schedule", where: str = "schedule") -> Schedule:
    ranks = []
    for line, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if any(cell.strip() for cell in row):
            cells = enumerate(row, start=1)
            ranks.append(
                tuple(_action(cell.strip(), f"{where}:{line}, cell {at}") for at, cell in cells if cell.strip())
            )
    if not ranks or not any(action.computes for actions in ranks for action in actions):
        raise DataError("there is no F, I, W or B in it.", where=where, fix="A row per rank, cells such as 0F0.")
    return Schedule(name, tuple(ranks))


def text(schedule: Schedule) -> str:
    """The schedule as CSV text that `parse` reads back to an equal one."""
    return "".join(",".join(str(action) for action in actions) + "\n" for actions in schedule.ranks)


def _action(cell: str, where: str) -> Action:
    pair = _PAIR.fullmatch(cell)
    if pair:
        parts = tuple(_action(part.strip(), where) for part in pair.groups())
        if sorted(part.kind for part in parts) != ["B", "F"]:
            raise DataError(f"{cell!r} must overlap one F and one B.", where=where)
        return Action(OVERLAP, parts[0].stage, parts[0].microbatch, parts)
    single = _CELL.fullmatch(cell)
    if not single or (not single[3] and single[2] not in STAGE_KINDS):
        fix = f"Write stage, kind and micro-batch, such as 0F3; kinds: {', '.join(_KINDS)}, (0F7;7B3){OVERLAP}."
        raise DataError(f"{cell!r} is not an action.", where=where, fix=fix)
    return Action(single[2], int(single[1]), int(single[3] or 0))
