"""Seconds of the stages, and efficiencies from measured ones."""

from dataclasses import asdict, dataclass

from gnomon.core.errors import ConfigError
from gnomon.posttrain.policies import make_policy
from gnomon.posttrain.scenario.config import MAX_EFFICIENCY, MIN_EFFICIENCY, Posttrain
from gnomon.posttrain.scenario.placement import valid_actor_sizes
from gnomon.posttrain.simulator.simulate import run


@dataclass(frozen=True)
class StageCosts:
    """Seconds of each stage with all components taking turns on all GPUs."""

    actor: float
    rollout: float
    inference: float


def candidates(config: Posttrain) -> list[tuple[int, int, int]]:
    """Every valid (actor, rollout, inference) that covers the cluster side by side."""
    total = config.cluster.num_gpus
    inference_sizes = [0]
    if config.algorithm.recompute_logprobs:
        copy = config.inference.num_gpus
        groups = config.algorithm.rollout_batch_size
        inference_sizes = [d * copy for d in range(1, total // copy + 1) if groups % d == 0]
    found = [
        (actor, total - actor - inference, inference)
        for actor in valid_actor_sizes(config)
        for inference in inference_sizes
        if total - actor - inference > 0 and (total - actor - inference) % config.rollout.num_gpus == 0
    ]
    if not found:
        fix = "Add nodes, or share all GPUs."
        raise ConfigError(f"no placement side by side fits {total} GPUs.", where="cluster", fix=fix)
    return found


MAX_ROUNDS, CLOSE_ENOUGH = 8, 1e-4
"""Times are nearly, not exactly, inverse to the efficiencies: gradients' all-reduce and host time do not change."""


@dataclass(frozen=True)
class Calibrated:
    """A configuration whose simulated stages take the measured times."""

    config: Posttrain
    simulated: StageCosts

    @property
    def efficiencies(self) -> dict[str, float]:
        return {name: getattr(self.config, name).efficiency for name in ("rollout", "inference", "actor")}


def colocated_costs(config: Posttrain) -> StageCosts:
    """The stages' mean seconds with all components taking turns on all GPUs."""
    steps = run(config, make_policy("colocated")).steps
    start_s = [min(s.start_s for s in step.spans if s.owner == "rollout") for step in steps]
    return StageCosts(
        actor=sum(step.seconds_of("actor") for step in steps) / len(steps),
        rollout=sum(step.rollout_end_s - at for step, at in zip(steps, start_s, strict=True)) / len(steps),
        inference=sum(step.seconds_of("inference") for step in steps) / len(steps),
    )


def calibrate(config: Posttrain, measured: StageCosts) -> Calibrated:
    """Efficiencies with which the stages, taking turns on all GPUs, last as long as measured (0: leave alone)."""
    for name, seconds in asdict(measured).items():
        if not 0.0 <= seconds < 1e12:
            raise ConfigError(f"{seconds:g} seconds of {name} are no measured time.", fix="Give seconds above 0.")
    targets = {name: target for name, target in asdict(measured).items() if target > 0}
    if not targets:
        raise ConfigError("nothing was measured.", fix="Give --rollout-s, --inference-s or --actor-s.")
    simulated = colocated_costs(config)
    for _ in range(MAX_ROUNDS):
        ratios = {name: getattr(simulated, name) / target for name, target in targets.items()}
        if all(abs(ratio - 1.0) < CLOSE_ENOUGH for ratio in ratios.values()):
            break
        efficiencies = {name: getattr(config, name).efficiency * ratio for name, ratio in ratios.items()}
        for name, efficiency in efficiencies.items():
            if not MIN_EFFICIENCY <= efficiency <= MAX_EFFICIENCY:
                what = (
                    f"{targets[name]:.3g} s are measured and {getattr(simulated, name):.3g} s simulated: an efficiency "
                    f"of {efficiency:.3g} explains nothing."
                )
                raise ConfigError(what, where=f"--{name}-s", fix="Give seconds of one step.")
        config = with_efficiencies(config, **efficiencies)
        simulated = colocated_costs(config)
    return Calibrated(config, simulated)


def with_efficiencies(config: Posttrain, **given: float) -> Posttrain:
    parts = {name: getattr(config, name).model_copy(update={"efficiency": share}) for name, share in given.items()}
    return config.model_copy(update=parts)
