"""Efficiencies from measured stage times: the one number per component that the operators' times cannot know."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gnomon.core.errors import ConfigError
from gnomon.posttrain.policies import make_policy
from gnomon.posttrain.scenario.config import MAX_EFFICIENCY, MIN_EFFICIENCY, Posttrain
from gnomon.posttrain.simulator.record import RunRecord
from gnomon.posttrain.simulator.simulate import run
from gnomon.posttrain.studies.placement_rule import StageCosts

MAX_ROUNDS, CLOSE_ENOUGH = 8, 1e-4
"""Times are nearly, not exactly, inverse to the efficiencies: gradients' all-reduce and host time do not change."""


@dataclass(frozen=True)
class Calibrated:
    """A configuration whose simulated stages take the measured times."""

    config: Posttrain
    simulated: StageCosts

    @property
    def efficiencies(self) -> dict[str, float]:
        """Of each component."""
        return {name: getattr(self.config, name).efficiency for name in ("rollout", "inference", "actor")}


def stage_costs(record: RunRecord) -> StageCosts:
    """Mean seconds of each stage of a run whose components take turns."""
    count = len(record.steps)
    start_s = [min(s.start_s for s in step.spans if s.owner == "rollout") for step in record.steps]
    return StageCosts(
        actor=sum(step.seconds_of("actor") for step in record.steps) / count,
        rollout=sum(step.rollout_end_s - at for step, at in zip(record.steps, start_s, strict=True)) / count,
        inference=sum(step.seconds_of("inference") for step in record.steps) / count,
    )


def colocated_costs(config: Posttrain) -> StageCosts:
    """The stages' seconds with all components taking turns on all GPUs."""
    return stage_costs(run(config, make_policy("colocated")))


def calibrate(config: Posttrain, measured: StageCosts) -> Calibrated:
    """Efficiencies with which the stages, taking turns on all GPUs, last as long as measured (0: leave alone)."""
    if min(asdict(measured).values()) < 0:
        raise ConfigError("measured seconds are negative.", fix="Give seconds of one step per stage.")
    targets = {name: target for name, target in asdict(measured).items() if target > 0}
    simulated = colocated_costs(config)
    for _ in range(MAX_ROUNDS):
        ratios = {name: getattr(simulated, name) / target for name, target in targets.items()}
        if all(abs(ratio - 1.0) < CLOSE_ENOUGH for ratio in ratios.values()):
            break
        for name, ratio in ratios.items():
            efficiency = getattr(config, name).efficiency * ratio
            if not MIN_EFFICIENCY <= efficiency <= MAX_EFFICIENCY:
                raise ConfigError(
                    f"{targets[name]:.3g} s are measured and {getattr(simulated, name):.3g} s simulated: an efficiency "
                    f"of {efficiency:.3g} explains nothing.",
                    where=f"--{name}-s",
                    fix="Give seconds of one step.",
                )
            config = with_efficiency(config, name, efficiency)
        simulated = colocated_costs(config)
    return Calibrated(config, simulated)


def with_efficiency(config: Posttrain, component: str, efficiency: float) -> Posttrain:
    """A configuration with another efficiency of one component."""
    part = getattr(config, component).model_copy(update={"efficiency": efficiency})
    return config.model_copy(update={component: part})
