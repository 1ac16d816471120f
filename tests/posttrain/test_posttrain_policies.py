"""What policies decide, inside the simulator and outside of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnomon.core.errors import ConfigError, DataError, GnomonError, UnknownNameError
from gnomon.posttrain.live.replay import replay, write_decisions
from gnomon.posttrain.policies import POLICIES, Policy, make_policy, scheduling_policy
from gnomon.posttrain.policies.payback import rollout_left_s, step_left_s
from gnomon.posttrain.policies.snapshot import Finish, Instance, Migrate, Rates, Scale, Snapshot, Wait
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.scenario.placement import placement_of
from gnomon.posttrain.simulator.simulate import policy_of, run
from posttrain_kit import policies, small


def snapshot(**changes: Any) -> Snapshot:
    """64 GPUs after a mini-batch: actor 16, rollout 20 instances of two GPUs, inference 8."""
    instances = tuple(
        Instance(id=i, gpus=(2 * i, 2 * i + 1), unfinished=changes.pop("each", 40), kv_use=0.5) for i in range(8, 28)
    ) if "instances" not in changes else changes.pop("instances")  # fmt: skip
    values: dict[str, Any] = {
        "point": "boundary", "time_s": 100.0, "step": 0, "minibatch": 0, "num_minibatches": 4, "group_size": 16,
        "num_gpus": 64, "rollout_gpus": 2, "inference_gpus": 4, "max_running": 128,
        "valid_actor_sizes": (4, 8, 16, 32, 64), "actor": tuple(range(16)), "inference": tuple(range(56, 64)),
        "initial": {
            "actor": tuple(range(16)), "rollout": tuple(range(16, 56)), "inference": tuple(range(56, 64)),
        },
        "free": (), "instances": instances, "groups_needed": 512, "groups_submitted": 512, "groups_generated": 300,
        "groups_ready": 290, "sequences_unfinished": sum(one.unfinished for one in instances),
        "sequences_waiting": 0, "carried": 0,
        "stalest": 0, "rates": Rates(rollout_groups_s=2.0, inference_groups_s=20.0, train_groups_s_per_gpu=0.05),
        "reshard_s": 1.3, "migration_s": 4.0,
    }  # fmt: skip
    return Snapshot(**(values | changes))


def idle_instances() -> tuple[Instance, ...]:
    return tuple(Instance(id=i, gpus=(2 * i, 2 * i + 1), unfinished=0, kv_use=0.0) for i in range(8, 28))


def test_elastic_releases_the_lowest_instances_that_let_the_actor_grow() -> None:
    # 800 sequences need 7 instances; 13 may leave, but the actor's next size takes 8 of them.
    actions = make_policy("elastic").decide(snapshot())
    assert actions == [
        Migrate(leave=tuple(range(8, 16))),
        Scale(component="actor", gpus=tuple(range(32))),
    ]


def test_elastic_keeps_what_runs_and_never_the_last_instance_leaves() -> None:
    few = (Instance(id=27, gpus=(54, 55), unfinished=1, kv_use=0.1),)
    actions = make_policy("elastic").decide(snapshot(instances=few, free=tuple(range(16, 54))))
    assert actions == [Scale(component="actor", gpus=tuple(range(32)))]
    busy = tuple(Instance(id=i, gpus=(2 * i, 2 * i + 1), unfinished=128, kv_use=0.5) for i in range(8, 28))
    assert make_policy("elastic").decide(snapshot(instances=busy)) == []


def test_elastic_at_the_last_boundary_finishes_everything() -> None:
    grown = snapshot(minibatch=3, actor=tuple(range(32)), instances=idle_instances()[8:], groups_ready=512)
    assert make_policy("elastic").decide(grown) == [
        Finish(component="rollout"),
        Finish(component="inference"),
        Scale(component="actor", gpus=tuple(range(16))),
    ]


def test_elastic_waits_before_the_last_iteration_only_if_told() -> None:
    before_last = snapshot(minibatch=2)
    waiting = make_policy("elastic", {"use_wait_before_last_iter_policy": True})
    assert waiting.decide(before_last) == [Wait(component="rollout")]
    assert not any(isinstance(action, Wait) for action in make_policy("elastic").decide(before_last))
    drained = snapshot(minibatch=2, point="waited", instances=idle_instances(), groups_generated=512)
    actions = waiting.decide(drained)
    assert isinstance(actions[0], Migrate) and len(actions[0].leave) == 20
    assert actions[-1] == Wait(component="inference")


def test_inference_is_released_only_when_it_is_finished() -> None:
    drained = {"instances": idle_instances(), "groups_generated": 512}
    pending = make_policy("elastic").decide(snapshot(**drained))
    assert Finish(component="inference") not in pending
    done = make_policy("elastic").decide(snapshot(**drained, groups_ready=512))
    assert Finish(component="inference") in done
    assert done[-1] == Scale(component="actor", gpus=tuple(range(64)))


def test_pre_process_ends_when_half_of_the_sequences_run() -> None:
    lent = tuple(Instance(id=i, gpus=(2 * i, 2 * i + 1), unfinished=150, kv_use=0.5) for i in range(28))
    early = snapshot(point="check", minibatch=-1, actor=(), instances=lent, groups_ready=0, sequences_unfinished=4200)
    assert make_policy("elastic").decide(early) == []
    half = early.model_copy(update={"sequences_unfinished": 4096})
    assert make_policy("elastic").decide(half) == [
        Migrate(leave=tuple(range(8))),
        Scale(component="actor", gpus=tuple(range(16))),
    ]


def test_payback_counts_what_releasing_instances_costs_the_rollout() -> None:
    """A fast actor: 384 groups at 8 a second (48 s) wait for the rollout, which has 212 groups left at 2 a second (106
    s) and one mini-batch of 16 s after it. With 12 instead of 20 instances, 67 instead of 40 sequences on each, it
    would take 106 x (1 + 0.52 x 0.67) = 143 s: the larger actor saves 8 s of the last mini-batch, and the step is
    longer."""
    fast = Rates(rollout_groups_s=2.0, inference_groups_s=20.0, train_groups_s_per_gpu=0.5)
    assert make_policy("payback").decide(snapshot(rates=fast)) == []
    assert make_policy("payback").decide(snapshot(rates=fast, instances=idle_instances())) != []
    assert rollout_left_s(snapshot(), 20) == pytest.approx(106.0)
    assert rollout_left_s(snapshot(), 12) == pytest.approx(106.0 * (1 + 800 / 12 / 128 * (20 / 12 - 1)))
    assert step_left_s(snapshot(), 16, 20) == pytest.approx(384 / 0.8)
    assert step_left_s(snapshot(rates=fast), 16, 20) == pytest.approx(106.0 + 128 / 8)


def test_a_scheduler_that_moves_gpus_is_safe_unless_flags_name_another() -> None:
    config = small(cluster={"component_placement": {"actor": "0-1", "rollout": "2-5", "inference": "6-7"}})
    assert policy_of(config, placement_of(config)).name == "payback"
    flags = {
        **config.model_dump(),
        "cluster": {**config.cluster.model_dump(exclude_unset=True), "lend_inference": True},
    }
    named = Posttrain(**flags)
    assert policy_of(named, placement_of(named)).name == "elastic"


def test_payback_refuses_a_change_that_costs_more_than_it_saves() -> None:
    worth, costly = snapshot(), snapshot(migration_s=500.0)
    assert make_policy("payback").decide(worth) != []
    assert make_policy("payback").decide(costly) == []


def test_utilization_acts_only_on_engines_that_stay_little_used() -> None:
    policy = make_policy("utilization", {"window": 3, "u_low": 0.3})
    slow_training = {"rates": Rates(rollout_groups_s=9.0, inference_groups_s=20.0, train_groups_s_per_gpu=0.05)}
    for recent, acts in (((0.1, 0.1, 0.1), True), ((0.1, 0.5, 0.1), False), ((0.1,), False)):
        instances = tuple(replace(one, kv_recent=recent) for one in snapshot().instances)
        assert (policy.decide(snapshot(instances=instances, **slow_training)) != []) is acts
    busy_actor = Rates(rollout_groups_s=0.1, inference_groups_s=20.0, train_groups_s_per_gpu=0.05)
    low = tuple(replace(one, kv_recent=(0.1,) * 3) for one in snapshot().instances)
    assert policy.decide(snapshot(instances=low, rates=busy_actor)) == []  # Rollout is the slowest: nothing to gain.


@pytest.mark.parametrize("policy", policies(), ids=lambda policy: policy.name)
def test_a_recorded_run_replays_to_the_same_decisions(policy: Policy, tmp_path: Path) -> None:
    record = run(small(num_steps=2), policy, keep_decisions=True)
    path = write_decisions(record, tmp_path / "decisions.jsonl")
    lines = path.read_text().splitlines()
    answers = list(replay(policy, lines))
    assert len(answers) == sum(len(step.decisions) for step in record.steps) >= 2
    assert all(answer.recorded is not None and answer.agrees for answer in answers)
    bare = [json.dumps(json.loads(line)["snapshot"]) for line in lines]
    assert [a.actions for a in replay(policy, bare)] == [a.actions for a in answers]


def test_replay_names_the_line_that_cannot_be_read() -> None:
    with pytest.raises(DataError, match=r"x:1:.*not valid JSON"):
        list(replay(make_policy("elastic"), ["nonsense"], where="x"))
    with pytest.raises(GnomonError, match="x:1"):
        list(replay(make_policy("elastic"), ['{"point": "start"}'], where="x"))


MINE = """
from gnomon.posttrain.policies import Policy, scheduling_policy
from gnomon.posttrain.policies.static import side_by_side

@scheduling_policy("mine_{name}")
class Mine(Policy):
    lazy: bool = False

    def decide(self, snapshot):
        if snapshot.point == "start":
            actions = side_by_side(snapshot)
            return actions[:-1] if self.lazy else actions
        return []
"""


def test_a_policy_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE.format(name=tmp_path.name.replace("-", "_")))
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    try:
        mine = run(small(policy={"name": name, "file": str(file)}))
        assert mine.step_s == pytest.approx(run(small(), make_policy("disaggregated")).step_s, rel=0.05)
        with pytest.raises(GnomonError, match="leaves step 0 stuck"):
            run(small(policy={"name": name, "file": str(file), "options": {"lazy": True}}))
    finally:
        POLICIES.remove(name)


def test_a_policy_without_a_decision_is_refused_when_it_is_registered() -> None:
    with pytest.raises(GnomonError, match="policy undecided has no decide"):

        @scheduling_policy("undecided")
        class Undecided(Policy):
            pass

    assert "undecided" not in POLICIES


def test_mistakes_are_named() -> None:
    with pytest.raises(UnknownNameError, match="elastic"):
        make_policy("elastc")
    with pytest.raises(ConfigError, match="gama"):
        make_policy("payback", {"gama": 1})
    shared = {"actor": "all", "rollout": "all", "inference": "all"}
    cluster = {"component_placement": shared, "auto_scheduler": False}
    config = small(cluster=cluster, policy={"name": "elastic"}, algorithm={"rollout_batch_size": 32})
    with pytest.raises(ConfigError, match="side by side"):
        run(config)
    apart = {"actor": "6-7", "rollout": "0-3", "inference": "4-5"}
    with pytest.raises(ConfigError, match="order is actor, rollout, inference"):
        run(small(cluster={"component_placement": apart, "auto_scheduler": False}), make_policy("elastic"))
    assert {"colocated", "disaggregated", "elastic", "utilization", "payback"} < set(POLICIES)
