"""What a check found, in every form that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.report.blocks import Block


@dataclass(frozen=True)
class Told:
    """A check's figures: flat rows, nested data, text; and in words what failed."""

    rows: Sequence[dict[str, Any]]
    """One per figure compared."""
    data: dict[str, Any]
    """The same as `--json` prints it."""
    blocks: list[Block]
    failures: list[str]
    """Empty where the check passes."""
