"""What a proof is: a module that reads what was recorded or published, simulates it, and says how far apart they are.

    @proof("mine")
    def prove(*files, on_progress=None) -> Findings: ...

`gnomon.verify("mine", ...)` runs it; `gnomon.cli.verify` has its options on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gnomon.core.errors import ConfigError
from gnomon.core.registry import Registry
from gnomon.report.blocks import Block

Item = TypeVar("Item")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Findings:
    """What a proof found: its own records, flat rows, nested data, text; and in words what failed."""

    records: Sequence[Any]
    """What was compared, as the proof's own records."""
    rows: Sequence[Mapping[str, Any]]
    """One per figure compared."""
    data: dict[str, Any]
    """What `--json` prints."""
    blocks: list[Block]
    failures: list[str]
    """Empty where the proof passes."""
    pictures: Mapping[str, Callable[[Path], Path]] = field(default_factory=dict)
    """Files that can be drawn, by name."""


Proof = Callable[..., Findings]
_IN = {"silicon": "silicon.say"}
PROOFS: Registry[Proof] = Registry(
    "check",
    built_in={
        name: f"gnomon.verify.{_IN.get(name, name)}"
        for name in (
            "timing", "roofline", "kernels", "vidur", "vllm", "engine", "pipeline", "posttrain", "h200", "disagg",
            "prefixes", "fleet", "silicon", "training", "servers", "stages",
        )
    },
)  # fmt: skip
proof = PROOFS.register


def each(items: Sequence[Item], on_progress: Progress | None) -> Iterable[Item]:
    """The items one by one, reporting."""
    for number, item in enumerate(items):
        if on_progress:
            on_progress(number, len(items))
        yield item
    if on_progress:
        on_progress(len(items), len(items))


def reference(data: str | Path | None) -> Path:
    """The folder of reference data; an error where none is named."""
    if data is None:
        fix = "Name its folder with --data or $GNOMON_REFERENCE."
        raise ConfigError("no reference data given.", where="--data", fix=fix)
    return Path(data)
