"""Host and front-end constants of each engine, fitted to measured servers with an even crc32(id) in even sweeps.

Every server is simulated with the engine's preset and once more with each of four constants moved; between, latencies
are taken to change in proportion (in proportion to 1 / `expert_speed`). `exposed_per_layer_s`, one value for each
family of attention, and `draft_sequence_s` act as `exposed_s` for each layer and each drafting sequence; `reply_s` adds
to the time to the first token. From the preset the constants are chosen in three groups, one after another, until none
changes. With the result in the preset, the program is run again: the best is then near the preset, where proportions
hold.

--sweeps takes NVIDIA's servers and fits the time per layer alone: for families of attention that InferenceX has no
server of. --without prints what each constant is worth, by simulating the same servers with it left out.
--disaggregated fits `expert_speed` of servers with prefill and decode apart, by simulating each value. `gnomon verify
silicon` scores the result on the other servers.

python -m benchmarks.fit_engines --engine sglang [--without]
python -m benchmarks.fit_engines --engine sglang --sweeps
python -m benchmarks.fit_engines --engine trtllm --disaggregated
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from gnomon import catalog
from gnomon.core.arrays import Floats
from gnomon.core.config import load
from gnomon.core.parallel import map_ordered
from gnomon.core.streams import stream
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.verify.silicon.launch import launch_of
from gnomon.verify.silicon.scenarios import facts_of, is_in_held_out_sweep, model_of, settings_of
from gnomon.verify.silicon.servers import Server, servers

Constants = dict[str, float]
"""By the names below; the time per layer of a family of attention is called `per_layer_s FAMILY`."""

GRID: dict[str, tuple[float, ...]] = {
    "exposed_s": (0.0, 2e-4, 4e-4, 7e-4, 1e-3, 1.5e-3, 2e-3),
    "per_layer_s": (0.0, 4e-6, 8e-6, 1.2e-5, 1.6e-5, 2e-5, 2.5e-5, 3e-5, 3.5e-5, 4e-5, 5e-5, 6e-5, 7e-5, 8e-5),
    "launch_per_kernel_s": (2e-5, 3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 1e-4),
    "reply_s": (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.06, 0.085, 0.1, 0.12, 0.15, 0.2),
    "per_prompt_token_s": (2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 8e-6),
    "expert_speed": (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0),
    "draft_sequence_s": (0.0, 3e-5, 6e-5, 9e-5, 1.2e-4, 1.5e-4, 2e-4),
}
"""The values that are tried of each."""
GROUPS = (("launch_per_kernel_s", "reply_s", "per_prompt_token_s", "expert_speed"), ("draft_sequence_s",))
"""Constants that are chosen together, after those of every iteration and layer."""
STEPS = {"exposed_s": 1e-3, "launch_per_kernel_s": 2e-5, "per_prompt_token_s": 2e-6, "expert_speed": 0.4}
"""How far each constant is moved to see what it does; the speed of experts, in its inverse."""
FARTHEST = 1.0
"""An error beyond this counts as this much: such a server differs in more than host time."""


def fitting_rows(engine: str, count: int, mode: str = "agg", source: str = "inferencex") -> list[Server]:
    """Servers of one engine from the even half of the even sweeps, each configuration once, as many of every family of
    attention as there are, or an equal share of `count`."""
    half = {
        s.key: s
        for s in servers()
        if s.engine == engine and s.family == source and s.mode == mode and not s.problem
        and not s.is_held_out and not is_in_held_out_sweep(s) and (s.prefill is None) == (mode == "agg")
    }  # fmt: skip
    families: dict[str, list[Server]] = defaultdict(list)
    for server in half.values():
        families[family_of(server)].append(server)
    chosen: list[Server] = []
    for left, rows in enumerate(sorted(families.values(), key=len)):
        share = (count - len(chosen)) // (len(families) - left)
        drawn = stream(0, "fit engines").permutation(len(rows))[:share]
        chosen += [rows[i] for i in sorted(drawn)]
    return chosen


def family_of(server: Server) -> str:
    """The family of attention of the server's model."""
    return catalog.model(model_of(server)).attention_family


@dataclass(frozen=True)
class Seen:
    """One server: TTFT and TPOT with the preset, what each moved constant adds per unit, and what was measured."""

    server: Server
    preset: Constants
    base: Floats
    slopes: dict[str, Floats]
    num_layers: int
    num_drafting: float
    """Sequences of one replica that draft."""

    @property
    def measured(self) -> Floats:
        return np.array([self.server.ttft_s, self.server.tpot_s])


def look(server: Server) -> Seen:
    """Simulate one server with the preset, and with each constant moved."""
    preset = preset_of(server)
    base, slopes = latencies(server, {}), {}
    for name, step in STEPS.items():
        if name == "expert_speed":
            if preset[name] < 1.0:
                slopes[name] = (latencies(server, {name: 1.0 / (1.0 / preset[name] + step)}) - base) / step
        else:
            slopes[name] = (latencies(server, {name: preset[name] + step}) - base) / step
    draft = launch_of(facts_of(server)).draft_tokens
    drafting = server.concurrency / server.layout.attention_groups if draft else 0.0
    return Seen(server, preset, base, slopes, catalog.model(model_of(server)).num_layers, drafting)


def preset_of(server: Server) -> Constants:
    """The constants with which `gnomon verify silicon` simulates it."""
    scenario = load(Scenario, None, settings_of(server))
    host = scenario.timing.host
    assert host is not None
    return {
        "exposed_s": host.exposed_s,
        f"per_layer_s {family_of(server)}": host.exposed_per_layer_s,
        "launch_per_kernel_s": host.launch_per_kernel_s,
        "reply_s": scenario.front_end.reply_s,
        "per_prompt_token_s": scenario.front_end.per_prompt_token_s,
        "expert_speed": scenario.timing.expert_speed if catalog.model(model_of(server)).is_moe else 1.0,
        "draft_sequence_s": host.draft_sequence_s,
    }


def latencies(server: Server, changes: Mapping[str, float]) -> Floats:
    """Mean TTFT and TPOT of the server's simulation with some constants changed."""
    settings = settings_of(server)
    timing, host, front_end = dict(settings["timing"]), {}, dict(settings["front_end"])
    for name, value in changes.items():
        if name in ("reply_s", "per_prompt_token_s"):
            front_end[name] = value
        elif name == "expert_speed":
            timing[name] = value
        elif name.startswith("per_layer_s"):
            host["exposed_per_layer_s"] = value
        else:
            host[name] = value
    changed = settings | {"timing": timing | ({"host": host} if host else {}), "front_end": front_end}
    return _latencies(load(Scenario, None, changed))


def _latencies(scenario: Scenario) -> Floats:
    latency = summarize(run(scenario)).latency
    return np.array([latency.ttft_s.mean, latency.tpot_s.mean], dtype=np.float64)


class Model:
    """The errors of all servers with any constants."""

    def __init__(self, seen: Sequence[Seen]) -> None:
        self.preset: Constants = {}
        for one in seen:
            slowest = min(one.preset["expert_speed"], self.preset.get("expert_speed", 1.0))
            self.preset |= one.preset | {"expert_speed": slowest}  # Some servers are as fast as the tables.
        self.base, self.measured = (np.stack([getattr(one, name) for one in seen]) for name in ("base", "measured"))
        none = np.zeros(2)
        self.slopes = {name: np.stack([one.slopes.get(name, none) for one in seen]) for name in STEPS}
        self.layers = np.array([float(one.num_layers) for one in seen])
        self.drafting = np.array([one.num_drafting for one in seen])
        names = [family_of(one.server) for one in seen]
        self.families = {name: np.array([one == name for one in names]) for name in sorted(set(names))}

    def errors(self, at: Constants) -> Floats:
        """[server, TTFT and TPOT], those too far off cut."""
        by = {name: at[name] - self.preset[name] for name in at}
        waiting = by["exposed_s"] + self.drafting * by["draft_sequence_s"]
        for name, members in self.families.items():
            waiting = waiting + members * self.layers * by[f"per_layer_s {name}"]
        slower = 1.0 / at["expert_speed"] - 1.0 / self.preset["expert_speed"]
        found = self.base + self.slopes["exposed_s"] * waiting[:, None] + np.array([by["reply_s"], 0.0])
        found = found + self.slopes["expert_speed"] * slower
        for name in ("launch_per_kernel_s", "per_prompt_token_s"):
            found = found + self.slopes[name] * by[name]
        return np.minimum(np.abs(found / self.measured - 1.0), FARTHEST)

    def fit(self, is_per_layer_only: bool = False) -> Constants:
        """Groups of constants in turn, the best of all values of each, until nothing changes."""
        at = dict(self.preset)
        if is_per_layer_only:
            return self._best_per_layer(at)
        while True:
            before = dict(at)
            at = min((self._best_per_layer(at | {"exposed_s": s}) for s in GRID["exposed_s"]), key=self._loss)
            for group in GROUPS:
                if group != ("draft_sequence_s",) or self.drafting.any():
                    at = self._best(at, {name: GRID[name] for name in group})
            if at == before:
                return at

    def _best_per_layer(self, at: Constants) -> Constants:
        for family in self.families:
            at = self._best(at, {f"per_layer_s {family}": GRID["per_layer_s"]})
        return at

    def _best(self, at: Constants, values: Mapping[str, Iterable[float]]) -> Constants:
        tried = (at | dict(zip(values, one, strict=True)) for one in product(*values.values()))
        return min(tried, key=self._loss)

    def _loss(self, at: Constants) -> float:
        return loss(self.errors(at))


def loss(errors: Floats) -> float:
    """What is minimised: TPOT's mean error and half of TTFT's."""
    ttft, tpot = errors.mean(axis=0)
    return float(tpot + 0.5 * ttft)


def words(errors: Floats) -> str:
    """TPOT's and TTFT's mean error."""
    ttft, tpot = errors.mean(axis=0)
    return f"TPOT {tpot:.1%}, TTFT {ttft:.1%}"


def simulated(rows: Sequence[Server], changes: Mapping[str, float]) -> Floats:
    """The errors of servers, each simulated with the preset but for some constants."""
    found = np.stack([one.unwrap() for one in map_ordered(partial(latencies, changes=changes), rows)])
    measured = np.array([[s.ttft_s, s.tpot_s] for s in rows])
    return np.minimum(np.abs(found / measured - 1.0), FARTHEST)


def fit(rows: Sequence[Server]) -> None:
    """Print the best constants."""
    model = Model([one.unwrap() for one in map_ordered(look, rows)])
    best = model.fit(is_per_layer_only=rows[0].family == "sweeps")
    print(f"{len(rows)} servers; preset: {words(model.errors(model.preset))}; best: {words(model.errors(best))}")
    for name, value in best.items():
        print(f"  {name}: {model.preset[name]:.3g} -> {value:.3g}")


def print_worth(rows: Sequence[Server]) -> None:
    """Print what the servers' errors are without each constant of the preset, all of them simulated."""
    errors, presets = simulated(rows, {}), [preset_of(server) for server in rows]
    print(f"{len(rows)} servers; preset: {words(errors)}")
    for name in dict.fromkeys(name for preset in presets for name in preset):
        nothing = 1.0 if name == "expert_speed" else 0.0
        having = [i for i, preset in enumerate(presets) if preset.get(name, nothing) != nothing]
        if name == "draft_sequence_s":
            having = [i for i in having if launch_of(facts_of(rows[i])).draft_tokens]
        if having:
            without = simulated([rows[i] for i in having], {name: nothing})
            print(f"  {name} ({len(having)}): without {words(without)}; with {words(errors[having])}", flush=True)


def fit_apart(rows: Sequence[Server]) -> None:
    """Print the errors of disaggregated servers for each speed of experts."""
    for speed in (0.35, 0.5, 0.7, 0.85, 1.0):
        errors = simulated_apart(rows, speed)
        print(f"{len(rows)} servers; expert_speed {speed}: {words(errors)}, {loss(errors):.4f}")


def simulated_apart(rows: Sequence[Server], speed: float) -> Floats:
    """The errors of disaggregated servers with this speed of experts."""
    found = np.stack([one.unwrap() for one in map_ordered(partial(_apart, speed=speed), rows)])
    return np.minimum(np.abs(found / np.array([[s.ttft_s, s.tpot_s] for s in rows]) - 1.0), FARTHEST)


def _apart(server: Server, speed: float) -> Floats:
    settings = settings_of(server)
    pools = [pool | {"timing": pool["timing"] | {"expert_speed": speed}} for pool in settings["pools"]]
    return _latencies(load(Scenario, None, settings | {"pools": pools}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, choices=("vllm", "sglang", "trtllm"))
    parser.add_argument("--servers", type=int, default=150)
    parser.add_argument("--without", action="store_true", help="What each constant of the preset is worth.")
    parser.add_argument("--disaggregated", action="store_true", help="Fit the speed of experts of servers apart.")
    parser.add_argument("--sweeps", action="store_true", help="NVIDIA's servers; the time per layer alone.")
    given = parser.parse_args()
    source = "sweeps" if given.sweeps else "inferencex"
    rows = fitting_rows(given.engine, given.servers, "disagg" if given.disaggregated else "agg", source)
    (fit_apart if given.disaggregated else print_worth if given.without else fit)(rows)


if __name__ == "__main__":
    main()
