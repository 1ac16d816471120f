"""Calibration of simulated servers with known constants: how often its 90 % intervals hold what they should.

Each server has constants, noise and moods of its own. Its iterations at two loads are fitted; counted are constants
inside their intervals, and mean latencies of a third load, recorded by simulating the true server, inside those that
the calibration promises. `python -m benchmarks calibration`; a number as `$SERVERS` (8 if not given), the seed of the
first as `$FIRST` (0).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from calibration_kit import TRUTH, recorded_log, server, steps
from gnomon.calibration.calibrate import calibrate
from gnomon.calibration.logs import Log

FIELDS = {
    "timing.host.decode.per_iteration_s": "decode", "timing.host.decode.per_sequence_s": "per_sequence",
    "timing.host.mixed.per_iteration_s": "mixed", "timing.host.mixed.per_sequence_s": "per_sequence",
}  # fmt: skip
LAYERS = 32
RATES = (2.0, 5.0, 8.0)


def drawn(rng: np.random.Generator) -> dict[str, float]:
    """Constants of one server."""
    return {name: value * float(np.exp(rng.uniform(-0.7, 0.7))) for name, value in TRUTH.items()}


def constants_inside(seed: int) -> dict[str, bool]:
    """Of one server, by constant."""
    rng = np.random.default_rng(seed)
    truth, noise = drawn(rng), float(rng.uniform(0.03, 0.15))
    logs = [Log(f"load-{size}", steps=steps(rng, 1500, size, truth, noise)) for size in (6, 40)]
    found = calibrate(logs, server()).calibration.constants
    names = {**{dotted: truth[name] for dotted, name in FIELDS.items()},
             "timing.host.mixed.launch_per_layer_s": truth["launch"] / LAYERS}  # fmt: skip
    return {name: found[name].low <= value <= found[name].high for name, value in names.items() if name in found}


def promises_held(seed: int) -> dict[str, bool]:
    """Mean latencies of a load left out, of a server whose host is slow now and then."""
    truth = drawn(np.random.default_rng(1000 + seed))
    host = {"timing.host.decode.per_iteration_s": truth["decode"], "timing.host.mixed.per_iteration_s": truth["mixed"],
            "timing.host.per_sequence_s": truth["per_sequence"], "timing.host.slow_share": 0.1,
            "timing.host.slow_factor": 1.5, "timing.host.slow_spell_s": 1.0}  # fmt: skip
    loads = [
        {"workload.rate": rate, "workload.num_requests": 300, "seed": 10 * seed + i} for i, rate in enumerate(RATES)
    ]
    logs = [recorded_log(f"rate-{one['workload.rate']:g}", server(**host, **one)) for one in loads]
    [check] = [one for one in calibrate(logs, server(), hold_out=["rate-5"]).checks if not one.is_fitted]
    assert check.promised is not None
    return {metric: some["mean"].holds for metric, some in check.promised.items()}


def main() -> None:
    first, count = int(os.environ.get("FIRST", "0")), int(os.environ.get("SERVERS", "8"))
    for title, one in (("constants", constants_inside), ("latencies of a load left out", promises_held)):
        found = [item for seed in range(first, first + count) for item in one(seed).items()]
        for name in dict.fromkeys(name for name, _ in found):
            held = [is_held for other, is_held in found if other == name]
            print(f"{title}: {name:40} {sum(held)} of {len(held)} inside their 90 % interval")
        print(f"{title}: {np.mean([is_held for _, is_held in found]):.0%} of all", flush=True)


if __name__ == "__main__":
    main()
