"""Host constants of each engine, fitted to measured servers with an even crc32(id) in even sweeps; and how well such
constants carry over to what they were not fitted on.

Every server is simulated with the engine's preset and once more with each of three constants moved; between, latencies
are taken to change in proportion (in proportion to 1 / `expert_speed`). The times of a collective, layer, sequence and
drafting sequence act as `exposed_s` does; `reply_s`, the client's own time in it, adds to the time to the first token.
From the preset the constants are chosen one after another, the best of all values of each, until none changes. What has
no server is taken from the other engines, or left out. `gnomon verify silicon` scores the result on the other servers.

--leave-out fits without one model family, engine or version at a time and prints how far off the servers are that were
left out. --disaggregated simulates servers with prefill and decode apart with several speeds of experts.

python -m benchmarks.fit_engines [--servers 40]
python -m benchmarks.fit_engines --leave-out family
python -m benchmarks.fit_engines --engine trtllm --disaggregated
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from gnomon import catalog
from gnomon.core.arrays import Floats
from gnomon.core.config import load
from gnomon.core.parallel import map_ordered
from gnomon.core.streams import stream
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.timing.operators import collective_waits, stage_operators
from gnomon.verify.silicon.launch import launch_of
from gnomon.verify.silicon.scenarios import facts_of, is_in_held_out_sweep, model_of, settings_of
from gnomon.verify.silicon.servers import Server, servers

ENGINES = ("vllm", "sglang", "trtllm")
Constants = dict[str, float]
"""By the names below, the speed of experts followed by the engines that share it."""

GRID: dict[str, tuple[float, ...]] = {
    "launch_per_kernel_s": (2e-5, 3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 8e-5, 1e-4),
    "expert_speed": (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0),
    "collective_jitter_s": (0.0, 3e-6, 5e-6, 7e-6, 9e-6, 1.2e-5),
    "exposed_per_layer_s": (0.0, 1e-5, 1.5e-5, 2e-5, 2.5e-5, 3e-5, 4e-5, 5e-5, 6e-5),
    "draft_sequence_s": (0.0, 3e-5, 6e-5, 9e-5, 1.2e-4, 1.5e-4, 2e-4),
    "reply_s": (0.003, 0.005, 0.01, 0.015, 0.02, 0.03),
    "compile_s": (0.0, 35.0, 70.0, 100.0),
}
"""The values that are tried of each. The last has the client's time in it. vLLM's launching is measured, not fitted."""
FIRST_WAVE = 0.1
"""Of ten requests for each in flight one waits for what a cold server compiles."""
PUBLISHED_S = 2.2
"""Up to so long compiling is one kernel's, as others measured it; more is fitted."""
STEPS = {"exposed_s": 1e-3, "launch_per_kernel_s": 2e-5, "expert_speed": 0.4}
"""How far each constant is moved to see what it does; the speed of experts, in its inverse."""
FARTHEST = 1.0
"""An error beyond this counts as this much: such a server differs in more than host time."""


def fitting_rows(engine: str, count: int, mode: str = "agg", *, is_clean: bool = True) -> list[Server]:
    """InferenceX's servers of one engine, each configuration once, as many of every model as there are, or an equal
    share of `count`; `is_clean`: from the even half of the even sweeps only."""
    known = {
        s.key: s
        for s in servers()
        if s.engine == engine and s.family == "inferencex" and s.mode == mode and not s.problem
        and not (is_clean and (s.is_held_out or is_in_held_out_sweep(s))) and (s.prefill is None) == (mode == "agg")
    }  # fmt: skip
    models: dict[str, list[Server]] = defaultdict(list)
    for server in known.values():
        models[model_of(server)].append(server)
    chosen: list[Server] = []
    for left, rows in enumerate(sorted(models.values(), key=len)):
        share = (count - len(chosen)) // (len(models) - left)
        drawn = stream(0, "fit engines").permutation(len(rows))[:share]
        chosen += [rows[i] for i in sorted(drawn)]
    return chosen


@dataclass(frozen=True, eq=False)
class Seen:
    """One server: TTFT and TPOT with the preset, and what each moved constant adds per unit."""

    server: Server
    preset: Constants
    base: Floats
    slopes: dict[str, Floats]
    counts: dict[str, float]
    """How often an iteration takes each of the constants that act as `exposed_s` does."""

    def at(self, constants: Constants) -> Floats:
        """TTFT and TPOT with other constants."""
        found = self.base + np.array([constants["reply_s"] - self.preset["reply_s"], 0.0])
        for name, value in self.preset.items():
            wanted, kind = constants[name], name.partition(" ")[0]
            if kind == "expert_speed":
                found = found + self.slopes[kind] * (1.0 / wanted - 1.0 / value)
            elif kind in ("launch_per_kernel_s", "compile_s"):
                found = found + self.slopes[kind] * (wanted - value)
            elif kind in self.counts:
                found = found + self.slopes["exposed_s"] * self.counts[kind] * (wanted - value)
        return found

    def errors(self, constants: Constants) -> Floats:
        """Of TTFT and TPOT, absolute, those too far off cut."""
        measured = np.array([self.server.ttft_s, self.server.tpot_s])
        return np.minimum(np.abs(self.at(constants) / measured - 1.0), FARTHEST)


def look(server: Server) -> Seen:
    """Simulate one server with the preset, and with each constant moved."""
    scenario = load(Scenario, None, settings_of(server))
    model, host = catalog.model(model_of(server)), scenario.timing.host
    assert host is not None
    drafting = server.concurrency / server.layout.attention_groups if launch_of(facts_of(server)).draft_tokens else 0.0
    counts = {
        "collective_jitter_s": collective_waits(stage_operators(model, scenario.replica.parallelism)),
        "exposed_per_layer_s": model.num_layers,
        "draft_sequence_s": drafting,
    }
    fitted = [name for name in counts if counts[name]] + (["launch_per_kernel_s"] if server.engine != "vllm" else [])
    preset = {name: getattr(host, name) for name in fitted if getattr(host, name)}
    preset["reply_s"] = scenario.front_end.reply_s
    if compile_s(server) > PUBLISHED_S:
        preset["compile_s"] = compile_s(server)
    speed = scenario.timing.expert_speed
    if model.is_moe and speed < 1.0:
        preset["expert_speed sglang" if server.engine == "sglang" else "expert_speed vllm, trtllm"] = speed
    slopes = {"expert_speed": np.zeros(2), "compile_s": np.array([FIRST_WAVE, 0.0])}
    base = latencies(server, {})
    for name, step in STEPS.items():
        if name != "expert_speed":
            slopes[name] = (latencies(server, {name: getattr(host, name) + step}) - base) / step
        elif model.is_moe and speed < 1.0:
            slopes[name] = (latencies(server, {name: 1.0 / (1.0 / speed + step)}) - base) / step
    return Seen(server, preset, base, slopes, counts)


def latencies(server: Server, changes: Mapping[str, float]) -> Floats:
    """Mean TTFT and TPOT of the server's simulation with some constants changed."""
    settings = settings_of(server)
    host = {name: value for name, value in changes.items() if name != "expert_speed"}
    timing: dict[str, Any] = {"expert_speed": changes["expert_speed"]} if "expert_speed" in changes else {}
    timing |= {"host": host} if host else {}
    if "pools" in settings:
        pools = [pool | {"timing": pool["timing"] | timing} for pool in settings["pools"]]
        changed = settings | {"pools": pools}
    else:
        changed = settings | {"timing": settings["timing"] | timing}
    latency = summarize(run(load(Scenario, None, changed))).latency
    return np.array([latency.ttft_s.mean + FIRST_WAVE * compile_s(server), latency.tpot_s.mean], dtype=np.float64)


def compile_s(server: Server) -> float:
    """How long the first batches of a server without warm-up compile kernels."""
    return 0.0 if server.prefill else launch_of(facts_of(server)).compile_s


def errors(seen: Sequence[Seen], at: Constants) -> Floats:
    """[server, TTFT and TPOT]."""
    return np.stack([one.errors(at) for one in seen])


def loss(found: Floats) -> float:
    """What is minimised: TPOT's mean error and half of TTFT's."""
    ttft, tpot = found.mean(axis=0)
    return float(tpot + 0.5 * ttft)


def words(found: Floats) -> str:
    """TPOT's and TTFT's mean error."""
    ttft, tpot = found.mean(axis=0)
    return f"TPOT {tpot:.1%}, TTFT {ttft:.1%}"


def fit(seen: Sequence[Seen]) -> Constants:
    """Constants in turn, the best of all values of each, until none changes."""
    at: Constants = {name: value for one in seen for name, value in one.preset.items()}
    while True:
        before = dict(at)
        for name in at:
            having = [one for one in seen if name in one.preset]
            tried = [at | {name: value} for value in {*GRID[name.partition(" ")[0]], at[name]}]
            at = min(sorted(tried, key=lambda one: one[name]), key=lambda one: loss(errors(having, one)))
        if at == before:
            return at


def with_missing(at: Constants, wanted: Sequence[Seen]) -> Constants:
    """Constants with what nothing was fitted for: the same of the other engines, or nothing."""
    out = dict(at)
    for name in {name for one in wanted for name in one.preset} - set(at):
        others = [value for other, value in at.items() if other.partition(" ")[0] == name.partition(" ")[0]]
        out[name] = fmean(others) if others else 0.0
    return out


GROUPS: dict[str, Callable[[Server], str]] = {
    "family": lambda s: model_of(s).partition("-")[0],
    "engine": lambda s: s.engine,
    "version": lambda s: f"{s.engine} {s.version or s.date[:7]}",
}
"""What is left out: a family of models, an engine, a version of one (the month, where the version is not known)."""


def print_left_out(seen: Sequence[Seen], by: str) -> None:
    """Print how far off servers are when constants are fitted on those of the other groups."""
    groups: dict[str, list[Seen]] = defaultdict(list)
    for one in seen:
        groups[GROUPS[by](one.server)].append(one)
    together, within = [], errors(seen, fit(seen))
    print(f"| {by} left out | servers | left out | fitted with it |\n|---|---|---|---|")
    for name, members in sorted(groups.items()):
        rest = fit([one for one in seen if one not in members])
        found = errors(members, with_missing(rest, members))
        together.append(found)
        own = within[[one in members for one in seen]]
        print(f"| {name} | {len(members)} | {words(found)} | {words(own)} |", flush=True)
    print(f"| all | {len(seen)} | {words(np.concatenate(together))} | {words(within)} |")


def print_fit(seen: Sequence[Seen]) -> None:
    """Print the best constants."""
    preset = {name: value for one in seen for name, value in one.preset.items()}
    best = fit(seen)
    print(f"{len(seen)} servers; preset: {words(errors(seen, preset))}; best: {words(errors(seen, best))}")
    for name, value in best.items():
        print(f"  {name}: {preset[name]:.3g} -> {value:.3g}")


def print_apart(engine: str, count: int) -> None:
    """Print the errors of disaggregated servers for several speeds of experts."""
    rows = fitting_rows(engine, count, "disagg")
    measured = np.array([[s.ttft_s, s.tpot_s] for s in rows])
    for speed in (0.35, 0.5, 0.6, 0.7, 0.85, 1.0):
        outcomes = map_ordered(partial(latencies, changes={"expert_speed": speed}), rows)
        found = np.minimum(np.abs(np.stack([one.unwrap() for one in outcomes]) / measured - 1.0), FARTHEST)
        print(f"{len(rows)} servers; expert_speed {speed}: {words(found)}, {loss(found):.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, help="One engine alone.")
    parser.add_argument("--servers", type=int, default=40, help="Of each engine.")
    parser.add_argument("--leave-out", nargs="+", choices=tuple(GROUPS), help="Fit without one at a time.")
    parser.add_argument("--disaggregated", action="store_true", help="Servers with prefill and decode apart.")
    given = parser.parse_args()
    engines = (given.engine,) if given.engine else ENGINES
    if given.disaggregated:
        for engine in engines:
            print_apart(engine, given.servers)
        return
    rows = [s for engine in engines for s in fitting_rows(engine, given.servers, is_clean=not given.leave_out)]
    seen = [one.unwrap() for one in map_ordered(look, rows)]
    for by in given.leave_out or ():
        print_left_out(seen, by)
    if not given.leave_out:
        print_fit(seen)


if __name__ == "__main__":
    main()
