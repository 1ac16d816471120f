"""What a proof is: a module that reads what was recorded or published, simulates it, and says how far apart they are.

    @proof("mine")
    def prove(*files, on_progress=None) -> Findings: ...

`gnomon.verify("mine", ...)` runs it; `cli/verify.yaml` has its options on the command line.
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gnomon.calibration.replay import Latencies, statistic
from gnomon.core import units
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.registry import Registry
from gnomon.core.text import read_text
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
_IN = {"silicon": "silicon.say", "roofline": "timing"}
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


def rows_of(
    path: str | Path, what: str, example: str, read: Callable[[dict[str, str], str], Item | None]
) -> list[Item]:
    """What `read` makes of each row of a CSV file and of its line; a DataError where that is nothing."""
    fix = f"Name {example}."
    try:
        lines = read_text(path).splitlines()
        rows = zip(csv.DictReader(lines), lines[1:], strict=True)
        found = [one for row, line in rows if (one := read(row, line)) is not None]
    except (ValueError, KeyError) as error:
        raise DataError(f"this is no file of {what}: {error!r}.", where=str(path), fix=fix) from None
    if not found:
        raise DataError(f"holds no {what}.", where=str(path), fix=fix)
    return found


@dataclass(frozen=True)
class Error:
    """One figure of a run, recorded and simulated."""

    metric: str
    statistic: str
    recorded: float
    simulated: float
    tolerance: float = math.inf
    """Infinite where it is shown, not judged."""
    peer: float | None = None
    """Another simulator's relative error, where known."""

    @property
    def relative(self) -> float:
        return self.simulated / self.recorded - 1.0 if self.recorded > 0 else float(self.simulated > 0)

    @property
    def is_beyond(self) -> bool:
        return not abs(self.relative) <= self.tolerance

    @property
    def name(self) -> str:
        return self.metric if self.metric == "throughput" else self.metric.upper()

    @property
    def words(self) -> str:
        return f"{self.name} {self.statistic} ({self.relative:+z.1%})"

    @property
    def data(self) -> dict[str, Any]:
        return {"metric": self.metric, "of": self.statistic, "recorded": self.recorded, "simulated": self.simulated,
                "error": self.relative, "peer": self.peer, "within": not self.is_beyond}  # fmt: skip

    @property
    def row(self) -> dict[str, Any]:
        is_rate = self.metric == "throughput"
        shown = [f"{one:,.2f} tokens/s" if is_rate else units.seconds(one) for one in (self.recorded, self.simulated)]
        judged = "yes" if not self.is_beyond else f"no ({self.tolerance:.0%})"
        return {"metric": self.name, "of": self.statistic, "recorded": shown[0], "simulated": shown[1],
                "error": f"{self.relative:+z.2%}", "peer": None if self.peer is None else f"{self.peer:+z.1%}",
                "within": judged if math.isfinite(self.tolerance) else None}  # fmt: skip


def latency_errors(
    recorded: Sequence[Latencies], simulated: Sequence[Sequence[Latencies]], statistics: Mapping[str, float | None],
    tolerances: Mapping[str, float], judged: Sequence[str] = (), peers: Mapping[tuple[str, str], float] | None = None,
) -> list[Error]:  # fmt: skip
    """Errors of latencies: the parts of a recording together beside the mean of several simulations of all of them.
    Of the statistics all are judged, or those named."""
    found = []
    for metric in Latencies._fields:
        real, *ours = (np.concatenate([getattr(part, metric) for part in one]) for one in (recorded, *simulated))
        for name, share in statistics.items() if real.size else ():
            mean = float(np.mean([statistic(values, share) for values in ours]))
            limit = tolerances[metric] if not judged or name in judged else math.inf
            peer = (peers or {}).get((metric, name))
            found.append(Error(metric, name, statistic(real, share), mean, limit, peer))
    return found


def tolerated(usual: Mapping[str, float], given: Mapping[str, float] | None) -> dict[str, float]:
    return {metric: (given or {}).get(metric, limit) for metric, limit in usual.items()}
