"""What users expect, and who they are."""

from dataclasses import dataclass
from typing import Any

from pydantic import PositiveFloat, field_validator

from gnomon.core.config import Config
from gnomon.core.units import seconds

LONG_S = {"ttft_s": 100.0, "tpot_s": 5.0, "e2e_s": 10_000.0}  # From here on, a limit was rather given in milliseconds.


class SloConfig(Config):
    """Latency that a request must meet to count as good."""

    ttft_s: PositiveFloat | None = None
    """Seconds to the first token."""
    tpot_s: PositiveFloat | None = None
    """Mean seconds per output token after the first."""
    e2e_s: PositiveFloat | None = None
    """Seconds from arrival to the last token."""

    @field_validator("*", mode="before")
    @classmethod
    def _of_each_request(cls, limit: Any) -> Any:
        if isinstance(limit, dict):
            raise ValueError(
                "here a limit is what each request must meet: give a number of seconds, and the share of the requests "
                "that meet it is printed; limits at a percentile are those of `gnomon search`"
            )
        return limit

    @property
    def doubts(self) -> list[str]:
        """Limits so long that milliseconds may have been meant."""
        return [
            f"slo.{name} is in seconds: {given:g} is {seconds(given)}. If milliseconds were meant, write {given:g}ms."
            for name, given in self
            if given is not None and given >= LONG_S[name]
        ]

    @property
    def is_given(self) -> bool:
        return any(target is not None for target in (self.ttft_s, self.tpot_s, self.e2e_s))


@dataclass(frozen=True)
class UserClass:
    """Users who are treated alike."""

    name: str
    priority: int = 0
    """0 is the least urgent."""
    weight: float = 1.0
    """Share of the service that fair policies give them, relative to the other classes."""
    slo: SloConfig | None = None
    """What they expect; as the scenario says if not given."""
