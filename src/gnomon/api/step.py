"""The clock of somebody else's scheduler: the seconds of one batch, in microseconds of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gnomon.api.serving import ScenarioLike, scenario
from gnomon.core.errors import ConfigError


class StepTimer:
    """Call it with what is in a batch; it answers with the seconds that the batch takes. See `step_timer`."""

    def __init__(self, batch_s: Callable[..., float], tables: Any, shape: Any, stages: int, drafted: int) -> None:
        self._batch_s, self._tables, self._shape, self._stages = batch_s, tables, shape, stages
        self._each = drafted
        self.max_tokens = int(tables.token_s.shape[1]) - 1
        """Tokens that a batch may have."""
        self.max_sequences = int(tables.sequence_s.shape[1]) - 1
        """Sequences that a batch may have."""
        self.max_kv_tokens = int(tables.kv_axis[-1])
        """KV tokens that a sequence may have."""

    def __call__(self, prefills: Sequence[tuple[int, int]] = (), decodes: Sequence[int] = ()) -> float:
        """Seconds of a batch. `prefills`: tokens computed of each prompt, and tokens of it that are there already;
        `decodes`: the length of each sequence that gets a token."""
        count = len(decodes)
        tokens, sequences = self._each * count, self._each * count + len(prefills)
        kv, longest = (sum(decodes), max(decodes)) if count else (0, 0)
        squared, chunks_kv, prompt_kv = 0.0, 0.0, 0.0
        for chunk, before in prefills:
            tokens += chunk
            squared += float(chunk) * chunk
            chunks_kv += float(chunk) * before
            prompt_kv += before
            if chunk < 1 or before < 0 or before + chunk > self.max_kv_tokens:
                raise ConfigError(
                    f"({chunk}, {before}) is no part of a prompt that the timer covers.", where="prefills"
                )
        if tokens > self.max_tokens or sequences > self.max_sequences or longest > self.max_kv_tokens:
            raise ConfigError(
                f"{tokens:,} tokens of {sequences:,} sequences, the longest of {longest:,}, are more than the timer "
                f"covers: {self.max_tokens:,}, {self.max_sequences:,}, {self.max_kv_tokens:,}.",
                where="batch",
                fix="Give step_timer larger batching.max_batch_tokens, batching.max_sequences or max_kv_tokens.",
            )
        if not sequences:
            return 0.0
        shape = self._shape(
            tokens, sequences, squared, chunks_kv, count, float(kv), float(longest), self._each * count, prompt_kv
        )
        return self._batch_s(self._tables, self._stages, shape)


def step_timer(given: ScenarioLike = None, *, max_kv_tokens: int | None = None, **overrides: Any) -> StepTimer:
    """The seconds of one batch on one replica of a scenario (its first pool), host time included, with the tables that
    `simulate` uses: to be the clock of another scheduler.

    step = gnomon.step_timer(model="llama-3-8b", device="h100")
    step(prefills=[(512, 0)], decodes=[1024] * 64)
    """
    import numpy as np

    from gnomon.jit import bound
    from gnomon.serving.scenario.pools import bake, resolve
    from gnomon.timing.lookup import Shape, batch_s
    from gnomon.workload import Requests

    chosen = scenario(given, **overrides)
    pool = resolve(chosen)[0]
    longest = max_kv_tokens or pool.max_request_tokens
    one, none = np.ones(pool.max_in_batch, np.int32), np.zeros(pool.max_in_batch)
    offsets = np.zeros(one.size + 1, np.int64)
    every = Requests(none, one * (longest - 1), one, one, one.astype(np.int8), offsets, np.zeros(0, np.int64))
    tables = bake(chosen.model, [pool], every).tables
    shape = Shape(1, 1, 0.0, 0.0, 1, 1.0, 1.0, 1, 0.0)
    stages = pool.replica.pipeline_parallel
    return StepTimer(bound(batch_s, tables, stages, shape), tables, Shape, stages, pool.tokens_per_decode)
