"""What the smart strategy saves, and what it loses: both strategies on the same space, and a sampler beside them.

python -m benchmarks.search                                                        # about a minute
python -m benchmarks.search --question examples/search/llama2_70b_chat.yaml        # some minutes
"""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnomon.core.config import load
from gnomon.search.config import SearchConfig
from gnomon.search.evaluate import Record
from gnomon.search.study import Found, search

SMALL = Path(__file__).parent.parent / "examples" / "search" / "small.yaml"
NUM_SEEDS = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--question", default=str(SMALL))
    question = parser.parse_known_args()[0].question
    search(load(SearchConfig, question, {"effort.max_requests": 100, "effort.min_requests": 100}), jobs=1)  # Compiles.
    smart, smart_s = measure(question, "smart")
    exhaustive, exhaustive_s = measure(question, "exhaustive")
    assert smart.best is not None and exhaustive.best is not None
    count = len(exhaustive.ranked) + len(exhaustive.others)
    print(
        f"search: over {count} configurations, smart needs {smart.runs / exhaustive.runs:.0%} of the runs and "
        f"{smart_s / exhaustive_s:.0%} of the CPU time of exhaustive ({smart_s:.0f} s, {exhaustive_s:.0f} s)"
    )
    worth = (smart.best.score or 0.0) / (exhaustive.best.score or 1.0)
    print(f"search: its best is worth {worth:.2%} of the best of all ({smart.best.label}; {exhaustive.best.label})")
    if find_spec("optuna"):
        trials = max(1, round(smart.runs / exhaustive.runs * len(exhaustive.ranked)))
        good = sum(sampled(exhaustive, trials, seed) >= 0.98 for seed in range(NUM_SEEDS))
        print(
            f"search: Optuna's TPE with as many runs ({trials} trials) comes within 2 % in {good} of {NUM_SEEDS} seeds"
        )


def measure(question: str, strategy: str) -> tuple[Found, float]:
    """The answer and its CPU seconds."""
    start = time.process_time()
    found = search(load(SearchConfig, question, {"strategy": strategy, "effort.num_intervals": 0}), jobs=1)
    return found, time.process_time() - start


def sampled(exhaustive: Found, trials: int, seed: int) -> float:
    """The best of a sampler's trials, looked up among the measured, as a share of the best of all."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    everything = [*exhaustive.ranked, *exhaustive.others]
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for _ in range(trials):
        trial = study.ask()
        study.tell(trial, _chosen(trial, everything).score or 0.0)
    assert exhaustive.best is not None and exhaustive.best.score is not None
    return float(study.best_value / exhaustive.best.score)


def _chosen(trial: Any, everything: list[Record]) -> Record:
    """One configuration, field by field; the parameters of a policy are fields of their own."""
    left = everything
    for name in dict.fromkeys(name for one in everything for name in one.overrides):
        choices = sorted({one.overrides[name] for one in left if name in one.overrides}, key=str)
        if not choices:
            continue
        own = f" of {left[0].overrides['batching.policy']}" if name.startswith("batching.max") else ""
        value = trial.suggest_categorical(f"{name}{own}", choices)
        left = [one for one in left if one.overrides.get(name) == value]
    return left[0]


if __name__ == "__main__":
    main()
