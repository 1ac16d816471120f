"""How long a plan takes: layouts bounded and timed, against timing every layout that fits."""

from __future__ import annotations

import time

from gnomon.training.config import TrainConfig
from gnomon.training.plan import bounded, candidates, plan
from gnomon.training.step import train_step

ASKED = TrainConfig(model="llama-3.1-405b", device="h100", gpus=1024, batch=512, sequence=8192, precision="fp8")
TIMED = 12


def main() -> None:
    """Print the seconds of a plan for 1,024 GPUs, and how many times longer timing all layouts would take."""
    began = time.perf_counter()
    found = plan(ASKED)
    whole_s = time.perf_counter() - began
    fitting = [one for one in map(bounded, candidates(ASKED)) if one is not None]
    began = time.perf_counter()
    for one in fitting[:: len(fitting) // TIMED]:
        train_step(one.config, check=False)
    each_s = (time.perf_counter() - began) / len(fitting[:: len(fitting) // TIMED])
    print(f"plan of {found.num_layouts:,} layouts, {found.num_fitting:,} of which fit: {whole_s:.1f} s by the clock")
    all_s = each_s * len(fitting)
    print(f"timing all that fit on one core would take {all_s:.0f} s, {all_s / whole_s:.1f} times as long")


if __name__ == "__main__":
    main()
