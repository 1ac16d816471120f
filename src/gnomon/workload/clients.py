"""Benchmark clients: the traffic that a load generator of the field sends, from its few numbers."""

import ast
import json
import math
from bisect import bisect_right
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from gnomon.catalog.library import Library
from gnomon.core.arrays import Floats, Ints
from gnomon.core.config import Config
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.streams import stream
from gnomon.core.text import read_text
from gnomon.workload.lengths import SamplingConfig, tokens
from gnomon.workload.requests import Requests


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
        client, users = CLIENTS[self.name], self.concurrency
        chosen = {
            key: getattr(client, key) if getattr(self, key) is None else getattr(self, key)
            for key in ("prompt", "output", "shortest", "longest")
        }
        shortest, longest = chosen["shortest"], chosen["longest"]
        if shortest > longest:
            raise ConfigError(f"shortest ({shortest:g}) exceeds longest ({longest:g}).", where="workload.client")
        if users and self.rate:
            raise ConfigError("a client keeps so many in flight or sends at a rate.", where="workload.client.rate",
                              fix="Give concurrency or rate.")  # fmt: skip
        if client.requests_per_user and not users:
            what = f"{self.name} sends {client.requests_per_user} requests for each one in flight."
            raise ConfigError(what, where="workload.client.concurrency", fix="Say how many are in flight.")
        ranges = {  # As the clients round: down below the nominal length, up above it.
            side: [max(1, math.floor(chosen[side] * shortest)), max(1, math.ceil(chosen[side] * longest))]
            for side in ("prompt", "output")
        }
        num_requests = max((client.requests_per_user or 0) * (users or 0), client.num_requests or 1)
        workload = {"lengths": {"distribution": "uniform", **ranges}, "num_requests": num_requests}
        if self.rate:
            even = {"process": "poisson", "even": True}
            arrivals = even if client.at_rate == "even" else client.at_rate or "poisson"
            return workload | {"arrivals": arrivals, "rate": self.rate}
        if not users:
            return workload | {"arrivals": {"process": "batch"}}
        warmup = {"warmup_requests": client.warmup_per_user * users} if client.warmup_per_user else {}
        return workload | {"arrivals": {"process": "closed_loop", "concurrency": users}} | warmup


def clients() -> dict[str, Client]:
    return {name: CLIENTS[name] for name in CLIENTS.names}


def client_sampling(given: Any) -> dict[str, Any] | None:
    """What a client, as a scenario names it, asks of the sampler; None where it says nothing, or is not known."""
    name = given.get("name") if isinstance(given, dict) else getattr(given, "name", given)
    asked = CLIENTS[name].sampling if name in CLIENTS.names else None
    return asked.model_dump(exclude_none=True) if asked else None


MAX_REQUESTS = 2_000_000
SIDES = ("input_tokens", "output_tokens")


class Window(NamedTuple):
    """What one client does for a while."""

    start_s: float
    end_s: float
    rate: float
    gaps: str
    shape: float
    scale: float


def is_client_pool(path: str) -> bool:
    """Whether this is a folder of clients."""
    return Path(path).is_dir() and any(Path(path).glob("chunk-*-trace.csv"))


def read_client_pool(path: str, start_s: float, end_s: float | None, seed: int) -> Requests:
    """Draw the requests of all clients from `start_s` to `end_s` (if not given: the end of the last window)."""
    end_s = np.inf if end_s is None else end_s
    clients = sorted(Path(path).glob("chunk-*-trace.csv"), key=lambda one: int(one.name.split("-")[1]))
    windows = {one: _windows(one, start_s, end_s) for one in clients}
    expected = sum(one.rate * (one.end_s - one.start_s) for some in windows.values() for one in some)
    if expected > MAX_REQUESTS:
        what = f"its clients send {expected:,.0f} requests; at most {MAX_REQUESTS:,} are drawn."
        raise DataError(what, where=path, fix="Choose a part of it: --workload.trace.start-s, --workload.trace.end-s.")
    arrivals, sides = [np.empty(0)], [np.empty((2, 0))]
    for client in clients:
        random = stream(seed, f"client {client.name}")
        lengths = _lengths(client.with_name(client.name.replace("trace.csv", "dataset.json")))
        for one in windows[client]:
            at_s = _arrivals(one, random)
            known = lengths[max(0, bisect_right([start for start, _ in lengths], one.start_s) - 1)][1]
            arrivals.append(at_s)
            sides.append(np.stack([random.choice(values, len(at_s), p=shares) for values, shares in known]))
    when = np.concatenate(arrivals)
    order = np.argsort(when, kind="stable")
    prompt, output = np.concatenate(sides, axis=1)[:, order]
    note = f"{len(clients)} clients of {Path(path).name}: requests are drawn from what it says of each."
    return Requests(when[order], tokens(prompt), tokens(output), notes=(note,))


def _windows(path: Path, start_s: float, end_s: float) -> list[Window]:
    rows: list[tuple[float, float, str, float, float]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            start, rate, _, gaps, shape, scale = line.split(",")
            row = (float(start), float(rate), gaps, float(shape or 0), float(scale or 0))
            is_right = gaps in ("", "Gamma", "Weibull") and row[1] >= 0 and (not gaps or min(row[3:]) > 0)
            if not is_right or (rows and row[0] <= rows[-1][0]):
                raise ValueError
        except ValueError:
            fix = "A line is: start, rate, cv, Gamma or Weibull or nothing, shape, scale; starts rise."
            raise DataError(f"cannot be read: {line[:80]!r}.", where=f"{path}:{number}", fix=fix) from None
        rows.append(row)
    if not rows:
        raise DataError("has no line.", where=str(path))
    last = rows[-1][0] + (rows[-1][0] - rows[-2][0] if len(rows) > 1 else 600.0)
    ends = [*(row[0] for row in rows[1:]), last]
    cut = [Window(max(row[0], start_s), min(end, end_s), *row[1:]) for row, end in zip(rows, ends, strict=True)]
    return [one for one in cut if one.end_s > one.start_s and one.rate > 0 and one.gaps]


def _arrivals(window: Window, random: np.random.Generator) -> Floats:
    """Gaps of the window's distribution, until it ends."""
    found, at_s = [np.empty(0)], window.start_s
    while at_s < window.end_s:
        count = int(window.rate * (window.end_s - at_s)) + 8
        is_gamma = window.gaps == "Gamma"
        gaps = random.gamma(window.shape, window.scale, count) if is_gamma else (
            random.weibull(window.shape, count) * window.scale
        )  # fmt: skip
        found.append(at_s + np.cumsum(gaps))
        at_s = float(found[-1][-1])
    times = np.concatenate(found)
    return times[times < window.end_s]


def _lengths(path: Path) -> list[tuple[float, list[tuple[Ints, Floats]]]]:
    """By start: prompt and output lengths, and how likely each is."""
    try:
        content: dict[str, Any] = json.loads(read_text(path, most=1 << 28))
        found = []
        for start, fields in content.items():
            # A window in which nothing was sent says nothing.
            shares = [fields[side] for side in SIDES]  # ServeGen writes a mapping of Python as a text.
            shares = [ast.literal_eval(one) if isinstance(one, str) else one for one in shares]
            if all(shares):
                pairs = [(np.array(list(map(int, one))), np.array(list(map(float, one.values())))) for one in shares]
                found.append((float(start), [(values, share / share.sum()) for values, share in pairs]))
        if not found:
            raise ValueError("no window has lengths")
    except json.JSONDecodeError as error:
        raise DataError(f"is no JSON: {error.msg}.", where=f"{path}:{error.lineno}") from None
    except (ValueError, SyntaxError, KeyError, TypeError, AttributeError) as error:
        fix = 'By the start of each window: {"input_tokens": "{length: share}", "output_tokens": ...}.'
        raise DataError(f"has no lengths as ServeGen writes them: {error}.", where=str(path), fix=fix) from None
    return sorted(found, key=lambda one: one[0])
