"""What a scenario says of the KV of agents' calls while their tools run; `gnomon.serving.tool_cache` does it."""

from __future__ import annotations

from pydantic import ConfigDict, PositiveFloat, model_validator

from gnomon.core.config import Config


class ToolCacheConfig(Config):
    """What becomes of the KV of a call while the tool runs that its session (`workload.agents`, a trace) waits for."""

    model_config = ConfigDict(allow_inf_nan=False)

    keep_s: PositiveFloat | None = None
    """Seconds for which it is held at most, so that nothing else takes its place, until the next call has arrived;
    without it, it gives way to whatever needs the memory."""
    expire_s: PositiveFloat | None = None
    """Seconds without a request that uses it after which KV is not found any more; without it, never."""

    @model_validator(mode="after")
    def _in_order(self) -> ToolCacheConfig:
        if self.keep_s is not None and self.expire_s is not None and self.expire_s < self.keep_s:
            raise ValueError("expire_s must be at least keep_s: what is held cannot expire")
        return self

    @property
    def is_used(self) -> bool:
        """Whether it says anything."""
        return self != ToolCacheConfig()
