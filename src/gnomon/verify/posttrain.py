"""The post-training simulator against published results A-E.

Gates: B, stage seconds of 7B at the two scales that were not used for calibration, within 10 %; D, speed-up of moving
GPUs, within 10 %; E, the placement exactly; a step of 8,192 sequences in under a second. The rest is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from gnomon.posttrain.advise import StageCosts, advise
from gnomon.posttrain.calibrate import calibrate, colocated_costs, with_efficiency
from gnomon.posttrain.config import Posttrain
from gnomon.posttrain.place import place
from gnomon.posttrain.policies import make_policy
from gnomon.posttrain.simulate import run
from gnomon.verify import posttrain_published as published

TOLERANCE = 0.10
MAX_STEP_S = 1.0
B_CALIBRATED_ON = 128
"""The middle one of the three scales, so that both others are one doubling away."""
B_MAX_RUNNING = 256
C_PLACEMENTS = 4
D_MAX_RUNNING = 128
"""As in E."""
D_ELASTIC = {"lend_inference": True, "release_inference": False}
"""As in D's time line: rollout starts on all GPUs, the inference GPUs stay with inference to the end."""
LOGPROB_OVER_TRAINING = 36 / 30
"""Efficiency of log-probabilities over that of training: B's published MFUs at 64 GPUs. D has no such figure."""
_BISECTIONS = 7


@dataclass(frozen=True)
class Check:
    """One published value beside ours."""

    source: str
    what: str
    published: float
    ours: float
    role: str
    """calibrated, gate, or reported."""
    limit: float = TOLERANCE
    is_bound: bool = False
    """`published` is an upper limit rather than a value to meet."""

    @property
    def error(self) -> float:
        """Relative."""
        return self.ours / self.published - 1.0

    @property
    def ok(self) -> bool:
        """Gates only: within the limit."""
        if self.role != "gate":
            return True
        return self.ours <= self.published if self.is_bound else abs(self.error) <= self.limit


def verify(sources: str = "ABCDE", *, calibrated_on: int = B_CALIBRATED_ON) -> Iterator[Check]:
    """All checks, in the order of the sources; A and C use B's calibration, on 7B at `calibrated_on` GPUs."""
    base = _calibrated_b(calibrated_on) if set(sources) & set("ABC") else None
    checks: dict[str, Callable[[], Iterator[Check]]] = {
        "A": lambda: _check_a(_given(base)),
        "B": lambda: _check_b(_given(base), calibrated_on),
        "C": lambda: _check_c(_given(base)),
        "D": _check_d,
        "E": _check_e,
    }
    for source in sources:
        yield from checks[source]()
    yield _check_speed()


def _given(config: Posttrain | None) -> Posttrain:
    assert config is not None
    return config


def _calibrated_b(num_gpus: int) -> Posttrain:
    measured = published.B_STAGES[num_gpus]
    config = _b_configuration("7B", num_gpus)
    return calibrate(config, StageCosts(measured.actor, measured.rollout, measured.inference)).config


def _b_configuration(size: str, num_gpus: int) -> Posttrain:
    return published.configuration(size, num_gpus, published.b_mean_tokens(num_gpus), B_MAX_RUNNING)


def _like(config: Posttrain, other: Posttrain) -> Posttrain:
    """`config` with the efficiencies of `other`."""
    for name in ("rollout", "inference", "actor"):
        config = with_efficiency(config, name, getattr(other, name).efficiency)
    return config


def _check_b(base: Posttrain, calibrated_on: int) -> Iterator[Check]:
    """Calibrated: three efficiencies on 7B at one scale."""
    for num_gpus, stages in published.B_STAGES.items():
        costs = colocated_costs(_like(_b_configuration("7B", num_gpus), base))
        role = "calibrated" if num_gpus == calibrated_on else "gate"
        for name in ("rollout", "inference", "actor"):
            yield Check("B", f"7B@{num_gpus} {name} s", getattr(stages, name), getattr(costs, name), role)
    for size in ("1.5B", "32B"):
        for num_gpus, tokens_s in published.B_TOKENS_S[size].items():
            record = run(_like(_b_configuration(size, num_gpus), base), make_policy("colocated"))
            yield Check("B", f"{size}@{num_gpus} tokens/s", tokens_s, record.tokens_s, "reported")


def _check_a(base: Posttrain) -> Iterator[Check]:
    """Nothing calibrated on A itself: B's efficiencies, at another model size and scale."""
    config = published.configuration(
        "1.5B",
        8,
        published.A_MEAN_RESPONSE + published.PROMPT_MEAN,
        B_MAX_RUNNING,
        algorithm={"rollout_batch_size": 32, "group_size": 16},
        actor={"recompute": published.A_RECOMPUTED},
        inference={"tensor_parallel": 1},
    )
    costs = colocated_costs(_like(config, base))
    for name in ("rollout", "inference", "actor"):
        yield Check("A", f"1.5B@8 {name} s", getattr(published.A_STAGES, name), getattr(costs, name), "reported")


def _check_c(base: Posttrain) -> Iterator[Check]:
    """C is unlabelled: only the gain of standing side by side is compared, with the best placement that we find."""
    for (size, num_gpus), (turns, side_by_side) in published.C_TOKENS_S.items():
        found = place(_like(_b_configuration(size, num_gpus), base), num_simulated=C_PLACEMENTS)
        ours = found.tried[0].static.tokens_s / found.colocated.tokens_s
        yield Check("C", f"{size}@{num_gpus} pipelined / colocated", side_by_side / turns, ours, "reported")


def _check_d() -> Iterator[Check]:
    """Calibrated: rollout on the median decode time of 1.5B, training on each model's static throughput at 64."""
    efficiency = _d_rollout_efficiency()
    yield Check("D", "1.5B@64 median decode s", published.D_DECODE_MEDIAN_S, _decode_median_s(efficiency), "calibrated")
    for size in published.MODELS:
        training = _d_training_efficiency(size, efficiency)
        for num_gpus in (64, 128):
            config = _d_configuration(size, num_gpus, efficiency, training)
            static, elastic = (run(config, make_policy(*p)) for p in (("disaggregated",), ("elastic", D_ELASTIC)))
            slow, fast = published.D_TOKENS_S[size, num_gpus]
            role = "calibrated" if num_gpus == 64 else "reported"
            yield Check("D", f"{size}@{num_gpus} static tokens/s", slow, static.tokens_s, role)
            yield Check(
                "D", f"{size}@{num_gpus} dynamic / static", fast / slow, elastic.tokens_s / static.tokens_s, "gate"
            )


def _d_configuration(size: str, num_gpus: int, rollout: float, training: float) -> Posttrain:
    config = published.configuration(size, num_gpus, published.D_MEAN, D_MAX_RUNNING)
    config = with_efficiency(config, "rollout", rollout)
    config = with_efficiency(config, "actor", training)
    return with_efficiency(config, "inference", training * LOGPROB_OVER_TRAINING)


def _decode_median_s(rollout: float) -> float:
    """From the submission to the end of a response, with every GPU generating."""
    step = run(_d_configuration("1.5B", 64, rollout, 0.5), make_policy("colocated")).steps[0]
    start_s = min(span.start_s for span in step.spans if span.owner == "rollout")
    return float(np.median(step.finished_s)) - start_s


def _d_rollout_efficiency() -> float:
    return _decode_median_s(1.0) / published.D_DECODE_MEDIAN_S


def _d_training_efficiency(size: str, rollout: float) -> float:
    """With which the static placement at 64 GPUs has its published throughput."""
    low, high = 0.1, 1.5
    for _ in range(_BISECTIONS):
        middle = (low * high) ** 0.5
        config = _d_configuration(size, 64, rollout, middle)
        if run(config, make_policy("disaggregated")).tokens_s < published.D_TOKENS_S[size, 64][0]:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


def _check_e() -> Iterator[Check]:
    """Nothing calibrated: the rule and its inputs are published."""
    config = published.configuration(
        "1.5B",
        128,
        published.D_MEAN,
        128,
        actor={"tensor_parallel": 2},
        inference={"tensor_parallel": 2},
        rollout={"tensor_parallel": 1},
    )
    advice = advise(config, StageCosts(actor=101, rollout=224, inference=10))
    for name, expected in published.E_PLACEMENT.items():
        yield Check("E", f"{name} GPUs", expected, getattr(advice, name), "gate", limit=0.0)


def _check_speed() -> Check:
    """CPU seconds, the best of three after one run that compiles: others may use the machine meanwhile."""
    config = _d_configuration("7B", 64, 1.0, 0.5)
    policy = make_policy("elastic", D_ELASTIC)
    run(config, policy)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        run(config, policy)
        seconds.append(time.process_time() - start)
    return Check("speed", "CPU seconds for a step of 8,192 sequences", MAX_STEP_S, min(seconds), "gate", is_bound=True)
