"""What a server left behind, whatever wrote it: iterations with their contents, stamps of requests, counters."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.workload import Requests

PHASES = ("prefill", "decode", "mixed")


class Columns:
    """Arrays of one length, side by side."""

    def take(self, index: Any) -> Self:
        columns = {name: one[index] if isinstance(one, np.ndarray) else one for name, one in vars(self).items()}
        return type(self)(**columns)


@dataclass(frozen=True, eq=False)
class Steps(Columns):
    """Iterations in the order in which they ran; KV counts include the token that an iteration adds."""

    seconds: Floats
    tokens: Ints
    sequences: Ints
    chunks_squared: Floats
    chunks_kv: Floats
    decodes: Ints
    decode_kv: Floats
    decode_kv_max: Floats
    felt: Floats
    """Requests that wait for it to end: of its batch, of others (a prompt of an engine that does not mix), queued."""
    start_s: Floats | None = None
    """When each began, where the log says it."""
    gpu_s: Floats | None = None
    """The GPU's part of each, where it was measured."""
    preempted: Floats | None = None
    """Requests that lost their blocks."""
    knows_kv: bool = True
    """Whether the log says how much KV the decodes read."""

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def at_s(self) -> Floats:
        """When each began, in seconds since the first; one after the other where the log does not say it."""
        return np.cumsum(self.seconds) - self.seconds if self.start_s is None else self.start_s - self.start_s[0]

    def timed(self) -> Steps:
        return self if self.start_s is not None else replace(self, start_s=self.at_s)

    @property
    def phase(self) -> Ints:
        """Index into `PHASES` of each."""
        has_chunks, has_decodes = self.chunks_squared > 0, self.decodes > 0
        return np.where(has_chunks & has_decodes, 2, np.where(has_chunks, 0, 1)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Stamps:
    """Requests and when the client saw their first and last token, in seconds since the first was sent."""

    requests: Requests
    first_token_s: Floats
    last_token_s: Floats
    closed_loop: bool = False
    """The file does not say when each was sent, but how many were in flight: `requests` are a closed loop."""


@dataclass(frozen=True)
class Counters:
    """Means of a server's own counters between the first scrape and the last."""

    requests: float
    prompt_tokens: float
    output_tokens: float
    running: float
    """Requests in the batch, mean of the scrapes."""
    ttft_s: float
    tpot_s: float
    e2e_s: float | None = None
    cached_tokens: float = 0.0
    """Prompt tokens of a request that the prefix cache had: they are not computed."""


@dataclass(frozen=True, eq=False)
class Log:
    """One load on the server."""

    name: str
    steps: Steps | None = None
    stamps: Stamps | None = None
    counters: Counters | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Settings of the server that the log names, as dotted keys of a scenario."""


def load_of(name: str) -> str:
    """The load a log belongs to: `chat-60`, `chat-60.2` and `chat-60.3` are repeats of one."""
    return re.sub(r"\.\d+$", "", name)
