"""How much load a deployment takes: requests per second, users at once, and what a token costs then."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gnomon.api.result import Progress, Result
from gnomon.api.serving import Scenario, ScenarioLike, scenario
from gnomon.search.load_curve import MAX_REQUESTS, REQUESTS_PER_RANK, Headroom, LoadCurve, headroom, load_curve
from gnomon.search.load_curve import capacity as highest_load

if TYPE_CHECKING:
    from gnomon.search.slo import Price
    from gnomon.search.users import Users

__all__ = [
    "MAX_REQUESTS", "REQUESTS_PER_RANK", "Capacity", "Headroom", "LoadCurve", "capacity", "headroom", "highest_load",
    "load_curve",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Capacity(Result):
    """What a deployment takes within its SLO."""

    view = "serving.capacity"
    scenario: Scenario = field(repr=False)
    requests_per_s: float
    """Open loop: the highest load at which 99 % of the requests meet each limit and they do not pile up; 0 for none."""
    saturation_per_s: float
    """Beyond it requests pile up, whatever the limits."""
    binding: str
    """What is not met just above."""
    users: Users | None
    """Closed loop; None without limits: any number of users is served then, only slower."""
    price: Price
    prompt_tokens: float
    """Of a request, in the mean."""
    output_tokens: float

    def dollars(self, per: str, rate: float) -> float | None:
        """US dollars per million "input", "output" or "total" tokens at a load."""
        tokens = {"input": self.prompt_tokens, "output": self.output_tokens}
        each = tokens.get(per, self.prompt_tokens + self.output_tokens)
        return self.price.per_hour / 3600 / (rate * each) * 1e6 if rate else None

    @property
    def summary(self) -> dict[str, Any]:
        """The figures, as plain data."""
        rates = {"open": self.requests_per_s, "closed": self.users.requests_per_s if self.users else 0.0}
        prices = {
            name: {per: self.dollars(per, rate) for per in ("input", "output", "total")} for name, rate in rates.items()
        }
        return {
            "requests_per_s": self.requests_per_s, "saturation_per_s": self.saturation_per_s, "binding": self.binding,
            "users": asdict(self.users) if self.users else None, "gpus": self.price.num_gpus,
            "dollars_per_hour": self.price.per_hour, "dollars_per_million_tokens": prices,
        }  # fmt: skip


def capacity(given: ScenarioLike = None, *, on_progress: Progress | None = None, **overrides: Any) -> Capacity:
    """How much load a deployment takes within its SLO: requests per second in an open loop, users in a closed one.

    gnomon.capacity(model="llama-3-8b", gpu="h100", slo={"ttft_s": 0.5, "tpot_s": 0.05})
    """
    import numpy as np

    from gnomon.core.errors import ConfigError
    from gnomon.search.capacity import Prober
    from gnomon.search.config import SloTargets
    from gnomon.search.load_curve import highest_load as most_load
    from gnomon.search.load_curve import targets_of
    from gnomon.search.slo import price
    from gnomon.search.users import most_users
    from gnomon.workload import generate

    chosen = scenario(given, **overrides)
    if chosen.fleet is not None:
        raise ConfigError(
            "replicas that come and go have no one capacity.",
            where="fleet",
            fix="Leave fleet out, or simulate its day.",
        )
    runs = [0]

    def on_run() -> None:
        runs[0] += 1
        if on_progress is not None:
            on_progress(runs[0], max(25, runs[0] + 1))

    open_loop = chosen.workload
    if open_loop.trace is None:
        ranks = sum(pool.num_ranks for pool in chosen.all_pools())
        more: dict[str, Any] = {"num_requests": min(REQUESTS_PER_RANK * ranks, MAX_REQUESTS)}
        if generate(open_loop.model_copy(update={"num_requests": 2}), chosen.seed).shape is None:
            more |= {"arrivals": None, "rate": 1.0}
        open_loop = type(open_loop).model_validate(open_loop.model_dump(exclude_unset=True) | more)
    requests, targets = generate(open_loop, chosen.seed), targets_of(chosen.slo)
    prober = Prober(chosen, requests, targets)
    full, _ = prober.saturation
    on_run()
    most = most_load(prober)
    on_run()
    above = prober((most or full) * 1.05, len(requests)) if np.isfinite(full) else None
    users = most_users(chosen, targets, on_run) if targets != SloTargets() else None
    return Capacity(
        chosen, most, full, above.worst if above else "requests are turned away", users,
        price(chosen), float(requests.prompt_tokens.mean()),
        float(requests.output_tokens.mean()),
    )  # fmt: skip
