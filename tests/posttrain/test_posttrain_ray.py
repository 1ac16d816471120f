"""A policy on real actors: it moves GPUs, survives a dead worker, and decides as it does in the simulator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gnomon.posttrain.live.ray_cluster import LiveRun
from gnomon.posttrain.live.replay import replay
from gnomon.posttrain.policies import make_policy
from gnomon.posttrain.policies.snapshot import Finish, Scale, write_actions
from posttrain_kit import small

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Any:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()


@pytest.mark.parametrize(("sizes", "waits"), [((2, 6, 0), False), ((2, 4, 2), True)])
def test_the_same_object_decides_on_real_actors(cluster: Any, sizes: tuple[int, int, int], waits: bool) -> None:
    """Without and with inference; before the last mini-batch the second waits until rollout and inference are done."""
    pauses = {"check_interval_s": 0.1, "reshard_s": 0.01}
    config = small(sizes, lengths={"mean": 3000, "max_response": 8000}, transitions=pauses)
    policy = make_policy("elastic", {"use_wait_before_last_iter_policy": waits})
    killed: list[Any] = []

    def kill_one_of_each(live: LiveRun) -> None:
        if not killed:
            killed.append(live.workers[max(live.workers)])
            killed.extend(live.scorers[:1])
            for worker in killed:
                cluster.kill(worker)

    live = LiveRun(config, policy, token_s=3e-4, train_s=0.1).run(on_check=kill_one_of_each)
    assert live.deaths == len(killed) == (2 if waits else 1)
    actions = [one for decision in live.decisions for one in decision.actions]
    moves = [one for one in actions if isinstance(one, Scale)]
    assert any(one.component == "actor" and len(one.gpus) > 2 for one in moves), "the actor grew"
    assert any(isinstance(one, Finish) and one.component == "inference" for one in actions) is waits
    assert any(decision.snapshot.point == "waited" for decision in live.decisions) is waits
    lines = [
        json.dumps({"snapshot": one.snapshot.model_dump(mode="json"), "actions": write_actions(one.actions)})
        for one in live.decisions
    ]
    assert all(answer.agrees for answer in replay(policy, lines)) and len(lines) > 4
