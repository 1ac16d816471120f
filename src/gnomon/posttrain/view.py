"""What a policy sees of a step."""

from __future__ import annotations

from gnomon.posttrain.snapshot import Instance, Point, Rates, Snapshot
from gnomon.posttrain.step_state import StepState


def snapshot_of(step: StepState, point: Point) -> Snapshot:
    """The step as it is now; nothing that a live system could not know."""
    config, allocation = step.config, step.allocation
    owners = allocation.owners
    instances = _instances(step)
    generated = int(step.is_generated.sum())
    return Snapshot(
        point=point,
        time_s=step.now,
        step=step.record.number,
        minibatch=len(step.trained) - 1,
        num_minibatches=step.num_minibatches,
        group_size=step.group_size,
        num_gpus=config.cluster.num_gpus,
        rollout_gpus=config.rollout.num_gpus,
        inference_gpus=config.inference.num_gpus if step.has_inference else 0,
        max_running=config.rollout.max_running_requests,
        valid_actor_sizes=step.record.valid_actor_sizes,
        initial=step.placement.by_name(),
        actor=owners.of("actor"),
        inference=owners.of("inference"),
        free=owners.of("free"),
        instances=instances,
        groups_needed=step.needed,
        groups_submitted=step.submitted if allocation.rollouts else 0,
        groups_generated=generated,
        groups_ready=step.num_trained + sum(at <= step.now for at, _ in step.ready),
        sequences_unfinished=sum(one.unfinished for one in instances) + allocation.num_waiting,
        sequences_waiting=allocation.prompts.num_sequences if allocation.prompts else 0,
        groups_complete=step.prompts.num_complete,
        carried=step.prompts.num_carried,
        stalest=_stalest(step),
        rates=_rates(step, generated),
        reshard_s=step.costs.reshard_s,
        migration_s=config.transitions.migration_s,
    )


def _instances(step: StepState) -> tuple[Instance, ...]:
    held, rollouts = step.allocation.instances, step.allocation.rollouts
    if rollouts is None:
        return tuple(Instance(id=one, gpus=held[one], unfinished=0, kv_use=0.0) for one in sorted(held))
    unfinished, use = rollouts.unfinished, rollouts.kv_use
    return tuple(
        Instance(
            id=one,
            gpus=held[one],
            unfinished=int(unfinished[one]),
            kv_use=float(use[one]),
            kv_recent=tuple(step.kv_recent[one]),
        )
        for one in sorted(held)
    )


def _stalest(step: StepState) -> int:
    if step.allocation.rollouts is None:
        return int(step.prompts.age[: step.prompts.num_carried].max(initial=-1))
    left = step.prompts.age[: step.submitted][~step.is_generated]
    return int(left.max(initial=-1))


def _rates(step: StepState, generated: int) -> Rates:
    trained = [one for one in step.minibatches if one.end_s <= step.now]
    gpu_s = sum(one.busy_s * len(one.gpus) for one in trained)
    passed = step.now - step.started_s if step.allocation.rollouts else 0.0
    new = generated - step.prompts.num_complete
    before = step.before.groups_s if step.before and not step.allocation.rollouts else 0.0
    return Rates(
        rollout_groups_s=new / passed if passed > 0 else before,
        inference_groups_s=step.allocation.inference.groups_s,
        train_groups_s_per_gpu=step.per_minibatch * len(trained) / gpu_s if gpu_s > 0 else 0.0,
    )
