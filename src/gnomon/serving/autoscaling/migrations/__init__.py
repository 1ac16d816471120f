"""Migration: which requests leave their replica while they decode, and where they go.

One function `(view) -> [(request, replica), ...]`, asked every `interval_s` seconds for each pool by itself. It is
plain Python. It sees one `View`: the replicas of the pool, and the requests that decode on each.

    @migration("mine", options={"most": 4.0})
    def mine(view): ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gnomon.core.registry import Registry


@dataclass(frozen=True)
class Guest:
    """A request that decodes."""

    request: int
    tokens: int
    """Of its context so far."""
    priority: float
    """Of its class."""


@dataclass(frozen=True)
class Host:
    """A replica, or a rank of one."""

    replica: int
    takes_requests: bool
    """It is up. Others finish what they have, and nothing may go there."""
    num_blocks: int
    free_blocks: int
    block_size: int
    running: int
    """Requests that hold blocks, and those on their way here."""
    next_tokens: int
    """Tokens to prefill of the first request in the queue; 0 where none waits."""
    find_guests: Callable[[], tuple[Guest, ...]]

    @cached_property
    def guests(self) -> tuple[Guest, ...]:
        """Those that may leave, in order of arrival."""
        return self.find_guests()

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.block_size)


@dataclass(frozen=True)
class View:
    """What is known of a pool."""

    now_s: float
    hosts: tuple[Host, ...]
    options: Mapping[str, float]
    memory: dict[str, Any]
    """Whatever the policy wants to remember; its own."""


Migrate = Callable[[View], list[tuple[int, int]]]


@dataclass(frozen=True)
class MigrationSpec:
    """A registered migration policy with all its traits."""

    name: str
    choose: Migrate
    options: Mapping[str, float] = field(default_factory=dict)
    """Its options with their defaults."""


MIGRATIONS: Registry[MigrationSpec] = Registry(
    "migration policy",
    MigrationSpec,
    built_in={"llumnix": "gnomon.serving.autoscaling.migrations.llumnix"},
    where="fleet.migration.name",
)


def migration(name: str, **traits: Any) -> Callable[[Migrate], Migrate]:
    """Register a migration policy under `name`; `traits` are the fields of its `MigrationSpec`."""
    return MIGRATIONS.register(name, **traits)


__all__ = ["MIGRATIONS", "Guest", "Host", "Migrate", "MigrationSpec", "View", "migration"]
