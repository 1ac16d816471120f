"""A sample of the nasty command lines of `nasty_kit`, and what people reported; thousands: benchmarks/robustness.py."""

from __future__ import annotations

import multiprocessing
import random
import sys
from pathlib import Path

import pytest

from nasty_kit import Case, all_cases, corpus, leaves

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cases run in forks that read /proc")

REPORTED = [
    "simulate --workload.num-requests 20 --timing.scale 1e308",
    "simulate --workload.num-requests 20 --timing.source profile --timing.path /dev/null",
    "simulate bomb.yaml",
    "simulate deep.json",
    "simulate surrogate.yaml",
    "simulate --model config.json",
    "simulate --model infinity.json",
    "simulate --workload.num-requests 20 --workload.trace cut.csv.gz",
    "workload show --workload.trace packed.csv",
    "workload show --workload.trace x[1].csv",
    "workload show --workload.trace tr*.csv",
    "workload show --workload.trace lines.jsonl",
    "workload show --workload.num-requests 20 --workload.rate 1e-300",
    "workload export --workload.num-requests 20 --out /dev/full",
    "pipeline sweep -c sweep.json --step 5e-324",
    "pipeline convert deep.json",
    "posttrain plan posttrain.yaml --max-lag -1",
    "posttrain calibrate posttrain.yaml --rollout-s nan --inference-s 2 --actor-s 5",
    "posttrain calibrate posttrain.yaml --rollout-s 1e-308 --inference-s 2 --actor-s 5",
    "posttrain calibrate posttrain.yaml --rollout-s 10 --inference-s 2 --actor-s 5 --lengths.shape 1e30",
    "posttrain calibrate posttrain.yaml --rollout-s 10 --inference-s 2 --actor-s 5 --transitions.switch-s 1e30",
    "compare --workload.num-requests 20 --vary batching.policy=vllm_v1,sarathi --fleet.failures.mtbf-s 5e-324",
    "profile overhead .",
    "verify vidur .",
    "verify disagg deep.json",
    "posttrain sweep posttrain.yaml --policies disaggregated --nodes 2147483648",
    "route compare mixed_bursty --routers random --num-seeds 2147483648",
    "route train --config quick --out trained --domain.devices []",
    "time --prefill -1",
    "time --decode 9223372036854775808",
]


def test_every_command_is_covered() -> None:
    from nasty_kit import BASES, SKIPPED

    plain = {name for name, command in leaves() if len(command.params) <= 1}
    assert {name for name, _ in leaves()} - set(BASES) - set(SKIPPED) - plain == set()


def _run_all(cases: list[Case], folder: str) -> list[str]:
    from nasty_kit import run_case, warm_up

    corpus(Path(folder))
    warm_up()
    ended = [run_case(case, Path(folder)) for case in cases]
    return [f"{one.problem}: gnomon {one.case}\n{one.text[-2000:]}" for one in ended if one.problem]


def problems(cases: list[Case], folder: Path) -> list[str]:
    """In a process of its own: this one may have threads, with which forks get stuck."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run_all, (cases, str(folder)))


def test_what_was_reported(tmp_path: Path) -> None:
    cases = [Case(tuple(line.split())) for line in REPORTED]
    assert problems(cases, tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("signals_end")
def test_nasty_values_of_many_options(tmp_path: Path) -> None:
    """A sample; `python -m benchmarks.robustness` takes every option."""
    cases = random.Random(1).sample(list(all_cases(seed=1, per_option=1)), 150)
    assert problems(cases, tmp_path) == []
