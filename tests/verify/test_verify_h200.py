"""Runs of the reference engine: sets of runs, what they say of the sampler, and launching that sampling waits for."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon.calibration.kernels import Kernels
from gnomon.calibration.logs import Steps
from gnomon.calibration.step_fit import Data, fit_steps
from gnomon.verify.h200 import RUNS, Recording, runs_in


def test_runs_of_a_folder_with_a_calibration_of_its_own_stand_behind_the_others() -> None:
    names = [repeats[0].name for repeats in runs_in()]
    assert len(names) == 16 and "calibration" not in " ".join(names)
    assert names[0] == "llama-2-7b-chat-30" and names[12:] == [
        f"sampled/{model}-chat-{load}" for model in ("llama-2-7b", "llama-3-8b") for load in (30, 60)
    ]
    assert [len(repeats) for repeats in runs_in()[12:]] == [2, 2, 2, 2]


def test_a_run_says_how_its_tokens_were_chosen() -> None:
    sampled = Recording(RUNS / "sampled" / "llama-3-8b-chat-30").log.facts
    assert sampled["timing.sampler"] == {"is_random": True, "filter": "sort", "penalties": "recount"}
    assert "timing.sampler" not in Recording(RUNS / "llama-3-8b-chat-60").log.facts


@pytest.mark.parametrize("per_sequence_s", [0.0, 2e-5])
def test_a_bound_of_launching_is_found_in_front_of_the_sampler(per_sequence_s: float) -> None:
    """Kernels of 4 to 6 ms and 20 µs of sampling a sequence, behind launching of 9 ms: 9 ms and the sampling."""
    sequences = np.tile(np.arange(1, 81), 5)
    after = per_sequence_s * sequences
    kernels = Kernels(np.linspace(4e-3, 6e-3, 80)[sequences - 1] + after, np.zeros(400), after)
    zero = np.zeros(400)
    steps = Steps(
        seconds=9e-3 + after, tokens=sequences, sequences=sequences, chunks_squared=zero, chunks_kv=zero,
        decodes=sequences, decode_kv=zero, decode_kv_max=zero, felt=sequences.astype(float),
    ).timed()  # fmt: skip
    data = Data([steps], [kernels], ["one"], [np.ones(400)])
    decode = fit_steps(data, [(), ("launch",), ()]).phases[1]
    assert decode.launch == pytest.approx(9e-3, rel=1e-6)
    assert decode.constant == decode.per_sequence == 0.0
    assert decode.bound == 1.0
