"""Benchmark clients: the traffic that a load generator of the field sends, from its few numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from gnomon.catalog.library import Library
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError
from gnomon.workload.sampling import SamplingConfig


class Client(Config):
    """What a load generator does when it is not told otherwise."""

    description: str
    """What it sends."""
    source: str
    """Where the numbers come from."""
    prompt: PositiveInt
    """Nominal prompt tokens."""
    output: PositiveInt
    """Nominal output tokens; every answer has exactly the length drawn for it."""
    shortest: NonNegativeFloat
    """Lengths are drawn from `shortest` to `longest` times the nominal ones, each as likely."""
    longest: PositiveFloat
    requests_per_user: PositiveInt | None = None
    """Measured requests per request in flight."""
    num_requests: PositiveInt | None = None
    """Measured requests, or the fewest where `requests_per_user` is given too."""
    warmup_per_user: NonNegativeInt = 0
    """Warm-up requests per request in flight."""
    at_rate: Literal["", "poisson", "even", "fixed_interval"] = ""
    """How it sends at a rate: independently, the same scaled to the duration, or at equal gaps; nothing: as poisson."""
    sampling: SamplingConfig | None = None
    """What it asks of the sampler; nothing: as the server does it for the model."""


CLIENTS = Library("workload client", Path(__file__).parent / "clients_data", Client)


class ClientConfig(Config):
    """A benchmark client and what its user chooses. The rest is as the client does it."""

    shorthand: ClassVar[str] = "name"

    name: str
    """inferencex, inferencex_2025 (without warm-up), vllm_bench, vllm_bench_2025 (greedy), sglang_bench, genai_perf,
    inference_perf or guidellm."""
    concurrency: PositiveInt | None = None
    """Most requests in flight, all started at once; without it every request is sent at once."""
    rate: PositiveFloat | None = None
    """Requests per second, however many are in flight; instead of `concurrency`."""
    prompt: PositiveInt | None = None
    """Nominal prompt tokens; the client's own default if not given."""
    output: PositiveInt | None = None
    """Nominal output tokens; the client's own default if not given."""
    shortest: NonNegativeFloat | None = None
    """Shortest length over the nominal one; the client's own default if not given."""
    longest: PositiveFloat | None = None
    """Longest length over the nominal one; the client's own default if not given."""

    def spelled_out(self) -> dict[str, Any]:
        """This traffic as the plain keys of a workload."""
        client = CLIENTS[self.name]
        users = self.concurrency
        chosen = {
            key: getattr(client, key) if getattr(self, key) is None else getattr(self, key)
            for key in ("prompt", "output", "shortest", "longest")
        }
        if chosen["shortest"] > chosen["longest"]:
            raise ConfigError(
                f"shortest ({chosen['shortest']:g}) exceeds longest ({chosen['longest']:g}).", where="workload.client"
            )
        ranges = {side: _range(chosen[side], chosen["shortest"], chosen["longest"]) for side in ("prompt", "output")}
        if users and self.rate:
            raise ConfigError("a client keeps so many in flight or sends at a rate.", where="workload.client.rate",
                              fix="Give concurrency or rate.")  # fmt: skip
        workload: dict[str, Any] = {
            **_sending(client, users, self.rate),
            "lengths": {"distribution": "uniform", **ranges},
            "num_requests": _num_requests(client, self.name, users),
        }
        if users and client.warmup_per_user:
            workload["warmup_requests"] = client.warmup_per_user * users
        return workload


def clients() -> dict[str, Client]:
    """Every built-in client by its name."""
    return {name: CLIENTS[name] for name in CLIENTS.names}


def client_sampling(given: Any) -> dict[str, Any] | None:
    """What a client, as a scenario names it, asks of the sampler; None where it says nothing, or is not known."""
    name = given if isinstance(given, str) else given.get("name") if isinstance(given, dict) else given.name
    asked = CLIENTS[name].sampling if name in CLIENTS.names else None
    return asked.model_dump(exclude_none=True) if asked else None


def _sending(client: Client, users: int | None, rate: float | None) -> dict[str, Any]:
    """Arrivals, and their rate where there is one."""
    if rate:
        even = {"process": "poisson", "even": True}
        return {"arrivals": even if client.at_rate == "even" else client.at_rate or "poisson", "rate": rate}
    return {"arrivals": {"process": "closed_loop", "concurrency": users} if users else {"process": "batch"}}


def _range(nominal: int, shortest: float, longest: float) -> list[int]:
    """Least and most tokens, as the clients round them: down below the nominal length, up above it."""
    return [max(1, math.floor(nominal * shortest)), max(1, math.ceil(nominal * longest))]


def _num_requests(client: Client, name: str, users: int | None) -> int:
    if client.requests_per_user is None:
        assert client.num_requests is not None
        return client.num_requests
    if users is None:
        raise ConfigError(
            f"{name} sends {client.requests_per_user} requests for each one in flight.",
            where="workload.client.concurrency",
            fix="Say how many are in flight.",
        )
    return max(client.requests_per_user * users, client.num_requests or 1)
