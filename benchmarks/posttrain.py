"""Speed of the post-training simulator, as ratios in one run.

python -m benchmarks.posttrain
"""

from __future__ import annotations

import time
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples" / "posttrain"
ASYNCHRONOUS_STEPS = 100


def main() -> None:
    from gnomon.core.config import load
    from gnomon.posttrain.policies import make_policy
    from gnomon.posttrain.scenario.config import Posttrain
    from gnomon.posttrain.simulator.record import RunRecord
    from gnomon.posttrain.simulator.simulate import run

    config = load(Posttrain, EXAMPLES / "elastic.yaml")

    def timed(policy: str) -> tuple[float, RunRecord]:
        """CPU seconds, the best of three."""
        chosen, best, record = make_policy(policy), float("inf"), None
        for _ in range(3):
            start = time.process_time()
            record = run(config, chosen)
            best = min(best, time.process_time() - start)
        assert record is not None
        return best, record

    run(config, make_policy("elastic"))  # Compiles.
    static_cpu_s, static = timed("disaggregated")
    elastic_cpu_s, elastic = timed("elastic")
    count, faster = config.algorithm.num_sequences, elastic.step_s / elastic_cpu_s
    print(
        f"posttrain: a step of {count:,} sequences takes {elastic_cpu_s:.2f} CPU s under elastic, 1/{faster:,.0f} of it"
    )
    print(f"posttrain: elastic takes {elastic_cpu_s / static_cpu_s:.2f} times the CPU time of the static placement")
    print(f"posttrain: elastic shortens the step by {1 - elastic.step_s / static.step_s:.0%} on this long tail")
    ahead = load(Posttrain, EXAMPLES / "async.yaml")
    run(ahead.model_copy(update={"num_steps": 2}))  # Bakes its tables.
    start = time.process_time()
    run(ahead.model_copy(update={"num_steps": ASYNCHRONOUS_STEPS}))
    cpu_s, count = time.process_time() - start, ahead.algorithm.num_sequences
    print(f"posttrain: {ASYNCHRONOUS_STEPS} asynchronous steps of {count:,} sequences take {cpu_s:.1f} CPU s")


if __name__ == "__main__":
    main()
