"""Policies outside the simulator: recorded snapshots in, actions out, one JSON object per line."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gnomon.core.config import build
from gnomon.core.errors import DataError
from gnomon.core.files import write_text
from gnomon.core.text import parse_json
from gnomon.posttrain.policies import Policy
from gnomon.posttrain.policies.snapshot import ACTIONS, Actions, Snapshot, write_actions
from gnomon.posttrain.simulator.record import RunRecord


@dataclass(frozen=True)
class Replayed:
    """A policy's answer to one line, beside the recorded one where the line has one."""

    line: int
    actions: Actions
    recorded: Actions | None

    @property
    def agrees(self) -> bool:
        return self.recorded is None or self.actions == self.recorded

    def to_list(self) -> Any:
        return write_actions(self.actions)


def write_decisions(record: RunRecord, path: str | Path) -> Path:
    """Every snapshot of a run with the policy's answer."""
    lines = (
        json.dumps({"snapshot": one.snapshot.model_dump(mode="json"), "actions": write_actions(one.actions)})
        for step in record.steps
        for one in step.decisions
    )
    return write_text(path, "".join(f"{line}\n" for line in lines))


def replay(policy: Policy, lines: Iterable[str], where: str = "line") -> Iterator[Replayed]:
    """Feed each line's snapshot (the object itself, or its key `snapshot`) to the policy."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{where}:{number}"
        data = parse_json(line, place)
        if not isinstance(data, dict):
            raise DataError("not a JSON object.", where=place, fix="One snapshot per line.")
        snapshot = build(Snapshot, data.get("snapshot", data), where=place)
        try:
            recorded = ACTIONS.validate_python(data["actions"]) if "actions" in data else None
        except ValidationError as error:
            raise DataError(f"unknown actions: {error.errors()[0]['msg']}.", where=place) from None
        yield Replayed(number, policy.decide(snapshot), recorded)
