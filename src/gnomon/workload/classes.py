"""Classes of users: how urgent they are, what they expect, and the share of the service that is theirs."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, PositiveFloat

from gnomon.core.config import Config
from gnomon.workload.lengths import Lengths
from gnomon.workload.sampling import SamplingConfig
from gnomon.workload.slo import SloConfig, UserClass

MAX_CLASSES = 128
"""Each replica keeps an account for each of them."""


class ClassConfig(Config):
    """Users of one kind. Batching policies (priority, vtc, drr, dlpm), admission control and the summary tell them
    apart."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: Annotated[str, Field(min_length=1)]
    """What the summary calls them."""
    share: Annotated[float, Field(ge=0)] = 1.0
    """Share of the requests, relative to the other classes."""
    priority: Annotated[int, Field(ge=0, le=127)] = 0
    """0 is the least urgent."""
    weight: PositiveFloat = 1.0
    """Share of the service that fair policies give them, relative to the other classes."""
    slo: SloConfig | None = None
    """What they expect; as the scenario says if not given."""
    lengths: Lengths | None = None
    """How long their requests are; as the workload says if not given."""

    sampling: SamplingConfig | None = None
    """What they ask of the sampler, over the scenario's `sampling`."""

    def resolved(self) -> UserClass:
        """What the simulation knows of them."""
        return UserClass(self.name, self.priority, self.weight, self.slo)
