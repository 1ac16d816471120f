"""How large a number may be: beyond, a run could never end or fit, and is refused before anything is allocated.

Configurations use these types for whole numbers that arrays or loops are sized by; each limit comes with its reason.
What depends on several numbers is estimated instead: `check_memory` and `check_duration`, which can be overridden.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from gnomon.core import units
from gnomon.core.errors import ConfigError


@dataclass(frozen=True)
class AtMost:
    """A limit and its reason, as an annotation of a field."""

    limit: int
    why: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def check(self, value: int) -> int:
        """The value, if it is within the limit."""
        if value > self.limit:
            raise ValueError(f"must be at most {self.limit:,}: {self.why}")
        return value


Count = Annotated[int, Ge(1), AtMost(2**31 - 1, "numbers are kept in 32 bits")]  # A number of things, at least one.
CountOrNone = Annotated[int, Ge(0), AtMost(2**31 - 1, "numbers are kept in 32 bits")]  # A number of things, 0 for none.
Seed = Annotated[int, Ge(0), AtMost(2**63 - 1, "seeds have 64 bits")]
Tokens = Annotated[int, Ge(1), AtMost(2**30, "lengths are kept in 32 bits")]
Requests = Annotated[int, Ge(1), AtMost(100_000_000, "each takes about 700 bytes and some microseconds")]
Replicas = Annotated[int, Ge(1), AtMost(65_536, "each has arrays of its own")]
Degree = Annotated[int, Ge(1), AtMost(4_096, "so many GPUs do not share one model")]
Layers = Annotated[int, Ge(1), AtMost(10_000, "no model has more layers")]
Sequences = Annotated[int, Ge(1), AtMost(65_536, "a GPU runs no more at once")]
BatchTokens = Annotated[int, Ge(1), AtMost(2**22, "the tables of iterations end there")]
DraftTokens = Annotated[int, Ge(1), AtMost(256, "the tables of iterations grow with every drafted token")]
Blocks = Annotated[int, Ge(0), AtMost(2**31 - 1, "blocks are counted in 32 bits")]
MAX_NODES = 16_384
Nodes = Annotated[int, Ge(1), AtMost(MAX_NODES, "every GPU is simulated")]
Seeds = Annotated[int, Ge(1), AtMost(100_000, "each is a run of its own, and intervals hardly narrow any more")]
Steps = Annotated[int, Ge(1), AtMost(10_000_000, "a run of so many steps would take weeks")]


MEMORY_VARIABLE = "GNOMON_MEMORY_GIB"
_SMALL = 256 * units.MIB  # Bytes for which it is not worth asking how many are free.


def check_memory(num_bytes: float, what: str, *, where: str | None = None, fix: str = "") -> None:
    """Refuse what needs more memory than there is, before it is taken; $GNOMON_MEMORY_GIB says otherwise."""
    if num_bytes < _SMALL and MEMORY_VARIABLE not in os.environ:
        return
    limit = memory_limit()
    if num_bytes > limit:
        raise ConfigError(
            f"{what} needs about {units.size(num_bytes)} of memory, and may have {units.size(limit)}.",
            where=where,
            fix=f"{fix} Or set {MEMORY_VARIABLE} to allow more.".strip(),
        )


def memory_limit() -> float:
    """Bytes that a run may take: what the user allows, or nine tenths of what is free now."""
    given = os.environ.get(MEMORY_VARIABLE)
    if given:
        try:
            return float(given) * units.GIB
        except ValueError:
            raise ConfigError(f"{given!r} is not a number.", where=MEMORY_VARIABLE, fix="Give it in GiB.") from None
    return 0.9 * min(_free(), _container_limit())


def _free() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
        return int(kib) * units.KIB
    except (OSError, ValueError, StopIteration):
        return float("inf")


def _container_limit() -> float:
    """What a container may have, where its limit can be read."""
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return float(Path(name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
    return float("inf")


PATIENCE_S = 86_400.0  # Who starts more than a day of work should have said so.


def check_duration(count: float, seconds_each: float, what: str, *, fix: str, allowed: bool = False) -> None:
    """Refuse `count` runs that take more than a day, unless that is `allowed`."""
    seconds = count * seconds_each
    if seconds > PATIENCE_S and not allowed:
        raise ConfigError(f"{units.count(count)} {what}, about {_long(seconds)}.", fix=f"Give --yes, or {fix}.")


def _long(seconds: float) -> str:
    days = seconds / 86_400
    return f"{days:,.0f} days" if days < 3650 else f"{days / 365.25:,.0f} years"
