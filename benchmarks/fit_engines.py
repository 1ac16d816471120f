"""Host and front-end constants of each engine, fitted to measured servers with an even crc32(id).

`gnomon verify silicon` scores them on the others.

python -m benchmarks.fit_engines --engine sglang --servers 60
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from gnomon.core.config import load
from gnomon.core.parallel import default_jobs, shared_workers
from gnomon.core.streams import stream
from gnomon.serving.metrics import summarize
from gnomon.serving.scenario import Scenario
from gnomon.serving.simulate import run
from gnomon.verify.silicon.scenarios import settings_of
from gnomon.verify.silicon.servers import Server, servers

GRID: dict[str, tuple[float, ...]] = {
    "front_end.reply_s": (0.0, 0.015, 0.025, 0.04, 0.06, 0.085, 0.12, 0.15),
    "front_end.per_prompt_token_s": (0.0, 2e-6, 4e-6, 5e-6, 6e-6, 8e-6),
    "timing.host.launch_per_kernel_s": (0.0, 2e-5, 4e-5, 5e-5, 7e-5, 1e-4),
    "timing.host.exposed_s": (0.0, 0.0003, 0.0007, 0.0015, 0.002),
    "timing.expert_speed": (1.0, 0.85, 0.75, 0.65, 0.55),
}
"""Constants and the values that are tried, one constant after another, from the first of each."""
ROUNDS = 2
FARTHEST = 1.0
"""An error beyond this counts as this much: such a server differs in more than host time."""


def fitting_rows(engine: str, count: int) -> list[Server]:
    """Aggregated servers of one engine from the even half, each configuration once."""
    half = {
        s.key: s
        for s in servers()
        if s.engine == engine and s.family == "inferencex" and s.mode == "agg" and not s.problem and not s.is_held_out
    }
    rows = list(half.values())
    drawn = stream(0, "fit engines").permutation(len(rows))[:count]
    return [rows[i] for i in sorted(drawn)]


def errors(constants: dict[str, float], server: Server) -> tuple[float, float]:
    """Relative errors of TTFT and TPOT with these constants."""
    settings: dict[str, Any] = settings_of(server)
    for dotted, value in constants.items():
        place, *path, last = settings, *dotted.split(".")
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    latency = summarize(run(load(Scenario, None, settings))).latency
    if latency.ttft_s.mean is None or latency.tpot_s.mean is None:
        return FARTHEST, FARTHEST
    return latency.ttft_s.mean / server.ttft_s - 1.0, latency.tpot_s.mean / server.tpot_s - 1.0


def main() -> None:
    """Try every value of every constant in turn, twice; print the best and what each is worth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", required=True, choices=("vllm", "sglang", "trtllm"))
    parser.add_argument("--servers", type=int, default=60)
    given = parser.parse_args()
    rows = fitting_rows(given.engine, given.servers)
    best = {name: values[0] for name, values in GRID.items()}
    with shared_workers(jobs=default_jobs()) as workers:

        def score(constants: dict[str, float]) -> tuple[float, float, float]:
            found = [o.unwrap() for o in workers(partial(errors, constants), rows)]
            ttft, tpot = (np.minimum(np.abs([e[i] for e in found]), FARTHEST).mean() for i in (0, 1))
            return float(tpot + 0.5 * ttft), float(ttft), float(tpot)

        lowest = score(best)
        print(
            f"{given.engine}: {len(rows)} servers, nothing added: TTFT {lowest[1]:.1%}, TPOT {lowest[2]:.1%}",
            flush=True,
        )
        for _, name in product(range(ROUNDS), GRID):
            for value in GRID[name]:
                if value == best[name]:
                    continue
                found = score({**best, name: value})
                if found[0] < lowest[0]:
                    lowest, best = found, {**best, name: value}
            print(f"{name} = {best[name]}: TTFT {lowest[1]:.1%}, TPOT {lowest[2]:.1%}", flush=True)
    print({name: value for name, value in best.items() if value})


if __name__ == "__main__":
    main()
