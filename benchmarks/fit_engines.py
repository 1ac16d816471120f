"""Host and front-end constants of each engine, fitted to measured servers with an even crc32(id) in even sweeps.

Every server is simulated with the engine's preset and once more with each of three constants moved; between, latencies
are taken to change in proportion. `exposed_per_layer_s` and `draft_sequence_s` act as `exposed_s` for each layer
and each drafting sequence, `reply_s` adds to the time to the first token. `gnomon verify silicon` scores the result on
the other servers.

python -m benchmarks.fit_engines --engine sglang --servers 70
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gnomon import catalog
from gnomon.core.arrays import Floats
from gnomon.core.config import load
from gnomon.core.parallel import map_ordered
from gnomon.core.streams import stream
from gnomon.serving.metrics import summarize
from gnomon.serving.scenario import Scenario
from gnomon.serving.simulate import run
from gnomon.verify.silicon.launch import launch_of
from gnomon.verify.silicon.scenarios import ACCEPTANCE, facts_of, is_in_held_out_sweep, model_of, settings_of
from gnomon.verify.silicon.servers import Server, servers


class Constants(NamedTuple):
    """What is fitted."""

    exposed_s: float = 0.0
    exposed_per_layer_s: float = 0.0
    launch_per_kernel_s: float = 0.0
    reply_s: float = 0.0
    acceptance: float = ACCEPTANCE
    draft_sequence_s: float = 0.0


GRID: tuple[tuple[float, ...], ...] = (
    (0.0, 2e-4, 4e-4, 7e-4, 1e-3, 1.5e-3, 2e-3),
    (0.0, 4e-6, 8e-6, 1.2e-5, 1.6e-5, 2e-5, 2.5e-5, 3e-5, 4e-5),
    (2e-5, 4e-5, 5e-5, 7e-5, 1e-4),
    (0.005, 0.015, 0.02, 0.025, 0.03, 0.04, 0.06, 0.085),
    (0.55, 0.6, 0.65, 0.7),
    (0.0, 3e-5, 6e-5, 9e-5, 1.2e-4),
)
"""The values that are tried of each."""
FARTHEST = 1.0
"""An error beyond this counts as this much: such a server differs in more than host time."""
MOVED = {"exposed_s": 1e-3, "launch_per_kernel_s": 2e-5, "acceptance": 0.05}
"""How far each constant is moved to see what it does."""


def fitting_rows(engine: str, count: int) -> list[Server]:
    """Aggregated servers of one engine from the even half of the even sweeps, each configuration once."""
    half = {
        s.key: s
        for s in servers()
        if s.engine == engine and s.family == "inferencex" and s.mode == "agg" and not s.problem
        and not s.is_held_out and not is_in_held_out_sweep(s)
    }  # fmt: skip
    rows = list(half.values())
    drawn = stream(0, "fit engines").permutation(len(rows))[:count]
    return [rows[i] for i in sorted(drawn)]


@dataclass(frozen=True)
class Seen:
    """One server: TTFT and TPOT with the preset, what each moved constant adds per unit, and what was measured."""

    preset: Constants
    base: Floats
    slopes: dict[str, Floats]
    measured: Floats
    num_layers: int
    num_drafting: float
    """Sequences of one replica that draft."""


def look(server: Server) -> Seen:
    """Simulate one server with the preset, and with each constant moved."""
    settings = settings_of(server)
    scenario = load(Scenario, None, settings)
    host, launch = scenario.timing.host, launch_of(facts_of(server))
    assert host is not None
    preset = Constants(
        host.exposed_s, host.exposed_per_layer_s, host.launch_per_kernel_s, scenario.front_end.reply_s, ACCEPTANCE,
        host.draft_sequence_s,
    )  # fmt: skip
    base, slopes = _latencies(scenario), {}
    for name, step in MOVED.items():
        if name != "acceptance" or launch.draft_tokens:
            moved = _latencies(load(Scenario, None, _with(settings, name, getattr(preset, name) + step)))
            slopes[name] = (moved - base) / step
    drafting = server.concurrency / server.layout.attention_groups if launch.draft_tokens else 0.0
    measured = np.array([server.ttft_s, server.tpot_s])
    return Seen(preset, base, slopes, measured, catalog.model(model_of(server)).num_layers, drafting)


def _with(settings: dict[str, Any], name: str, value: float) -> dict[str, Any]:
    if name == "acceptance":
        speculative = settings["replica"]["speculative"] | {"acceptance": value}
        return settings | {"replica": settings["replica"] | {"speculative": speculative}}
    return settings | {"timing": settings["timing"] | {"host": {name: value}}}


def _latencies(scenario: Scenario) -> Floats:
    latency = summarize(run(scenario)).latency
    return np.array([latency.ttft_s.mean, latency.tpot_s.mean], dtype=np.float64)


class Model:
    """The errors of all servers with any constants."""

    def __init__(self, seen: Sequence[Seen]) -> None:
        self.preset = seen[0].preset
        self.base, self.measured = (np.stack([getattr(one, name) for one in seen]) for name in ("base", "measured"))
        none = np.zeros(2)
        self.slopes = {name: np.stack([one.slopes.get(name, none) for one in seen]) for name in MOVED}
        self.layers = np.array([float(one.num_layers) for one in seen])
        self.drafting = np.array([one.num_drafting for one in seen])

    def score(self, at: Constants) -> tuple[float, float, float]:
        """TPOT's mean error and half of TTFT's; the two."""
        by = Constants(*(new - old for new, old in zip(at, self.preset, strict=True)))
        waiting = by.exposed_s + self.layers * by.exposed_per_layer_s + self.drafting * by.draft_sequence_s
        found = self.base + self.slopes["exposed_s"] * waiting[:, None] + np.array([by.reply_s, 0.0])
        found = found + self.slopes["launch_per_kernel_s"] * by.launch_per_kernel_s
        found = found + self.slopes["acceptance"] * by.acceptance
        ttft, tpot = np.minimum(np.abs(found / self.measured - 1.0), FARTHEST).mean(axis=0)
        return float(tpot + 0.5 * ttft), float(tpot), float(ttft)


def main() -> None:
    """Try all values of all constants; print the best, and what each constant is worth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True, choices=("vllm", "sglang", "trtllm"))
    parser.add_argument("--servers", type=int, default=70)
    given = parser.parse_args()
    rows = fitting_rows(given.engine, given.servers)
    model = Model([outcome.unwrap() for outcome in map_ordered(look, rows)])
    grid = GRID if model.drafting.any() else (*GRID[:4], (ACCEPTANCE,), (0.0,))
    tried = sorted((model.score(Constants(*at)), Constants(*at)) for at in product(*grid))
    print(f"{given.engine}: {len(rows)} servers; preset: {_words(model.score(model.preset))}")
    for score, at in tried[:5]:
        print(f"{_words(score)}: {at}")
    best = tried[0][1]
    for name in ("exposed_s", "exposed_per_layer_s", "launch_per_kernel_s", "reply_s", "draft_sequence_s"):
        if getattr(best, name):
            print(f"without {name}: {_words(model.score(best._replace(**{name: 0.0})))}")


def _words(score: tuple[float, float, float]) -> str:
    return f"TPOT {score[1]:.1%}, TTFT {score[2]:.1%}"


if __name__ == "__main__":
    main()
