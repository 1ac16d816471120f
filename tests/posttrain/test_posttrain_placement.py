from __future__ import annotations

from typing import Any

import pytest

from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DoesNotFitError
from gnomon.posttrain.costs import check_actor_memory, recompute_of
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.scenario.placement import placement_of, valid_actor_sizes
from gnomon.posttrain.simulator.simulate import run


def configured(placement: dict[str, Any], **more: Any) -> Posttrain:
    cluster = {"auto_scheduler": True, "component_placement": placement, **more.pop("cluster", {})}
    return build(Posttrain, {"cluster": cluster, **more})


GOOD = {"actor": "0-1", "rollout": "2-5", "inference": "6-7"}


def test_a_good_placement() -> None:
    placement = placement_of(configured(GOOD))
    assert placement.actor == (0, 1) and placement.rollout == (2, 3, 4, 5) and placement.inference == (6, 7)
    assert not placement.is_shared


def test_valid_actor_sizes_divide_the_groups_of_a_minibatch() -> None:
    config = configured(GOOD, algorithm={"rollout_batch_size": 24, "n_minibatches": 4}, actor={"tensor_parallel": 2})
    assert valid_actor_sizes(config) == [2, 4, 6]  # Copies 1, 2, 3 divide 6 groups; 4 does not.


@pytest.mark.parametrize(
    ("placement", "more", "what", "fix"),
    [
        (
            {"actor": "4-5", "rollout": "0-3", "inference": "6-7"},
            {},
            "order",
            "{actor: 0-1, rollout: 2-5, inference: 6-7}",
        ),
        (
            {"actor": "0-3", "rollout": "2-5", "inference": "6-7"},
            {},
            "shares GPU 2 with actor",
            "actor: 0-3, rollout: 4-5",
        ),
        ({"actor": "0-1", "rollout": "2-4", "inference": "6-7"}, {}, "contiguous", "rollout: 2-5"),
        ({"actor": "0-1", "rollout": "2-4", "inference": "5-6"}, {}, "1 of 8 are nobody's", "rollout 4 GPUs"),
        ({"actor": "0-1", "rollout": "2-5", "inference": "6-9"}, {}, "GPU 9 is not there", "last one is 7"),
        ({"actor": "0-1", "rollout": "2-x"}, {}, "cannot read", "0-3"),
        (
            GOOD,
            {"algorithm": {"rollout_batch_size": 64, "n_minibatches": 5}},
            "do not divide",
            "Use 4, or a rollout_batch_size of 65",
        ),
        (
            {"actor": "0-2", "rollout": "3-5", "inference": "6-7"},
            {},
            "do not divide evenly",
            "Use 2 GPUs (valid: 1, 2, 4, 8)",
        ),
        (GOOD, {"algorithm": {"recompute_logprobs": False}}, "not recomputed", "Leave inference out"),
        ({"actor": "0-1", "rollout": "2-7"}, {}, "has no GPUs", "Give it 1"),
        (GOOD, {"rollout": {"tensor_parallel": 4}}, "whole rollout instances of 4", "Give the actor 4 GPUs"),
        (GOOD, {"actor": {"tensor_parallel": 4}}, "whole copies of 4", "Use 4 GPUs"),
        (
            {"actor": "0-3", "rollout": "4-6", "inference": "7"},
            {"rollout": {"tensor_parallel": 2}},
            "3 GPUs do not hold whole copies of 2",
            "Use 2 or 4 GPUs",
        ),
        (
            {"actor": "0-1", "rollout": "2-6", "inference": "7"},
            {"rollout": {"pipeline_parallel": 5}, "cluster": {"use_pre_process_policy": False, "lend_inference": True}},
            "lend_inference",
            "lend_inference: false",
        ),
    ],
)
def test_every_rule_names_the_nearest_valid_choice(
    placement: dict[str, Any], more: dict[str, Any], what: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        placement_of(configured(placement, **more))
    assert what in caught.value.what
    assert caught.value.fix is not None and fix in caught.value.fix


def test_without_the_scheduler_components_may_share_all_gpus_or_none() -> None:
    shared = configured({"actor": "all", "rollout": "all", "inference": "all"}, cluster={"auto_scheduler": False})
    assert placement_of(shared).is_shared
    apart = configured({"actor": "6-7", "rollout": "0-3", "inference": "4"}, cluster={"auto_scheduler": False})
    assert not placement_of(apart).is_shared
    half = configured({"actor": "0-3", "rollout": "2-5", "inference": "6"}, cluster={"auto_scheduler": False})
    with pytest.raises(ConfigError, match="shares GPU 2"):
        placement_of(half)


def test_an_actor_that_no_gpu_holds_is_refused() -> None:
    """Llama-2-70B on one card: 2 + 4 + 12 bytes for each of 69.0 billion parameters, 1,241.6 GB, and activations."""
    config = build(Posttrain, {"model": "llama-2-70b", "cluster": {"gpus_per_node": 1}})
    with pytest.raises(DoesNotFitError, match=r"weights 138\.0, gradients 275\.9, optimizer 827\.7") as caught:
        check_actor_memory(config, 1)
    assert "1251.8 GB more than a h100 has" in caught.value.what
    assert caught.value.fix == "Use tensor_parallel 8 x pipeline_parallel 4 on 32 GPUs, recompute 1."
    short = {"model": "llama-2-70b", "device": "h200", "lengths": {"max_response": 2048}}
    with pytest.raises(DoesNotFitError):
        check_actor_memory(build(Posttrain, short | {"actor": {"tensor_parallel": 8}}), 8)  # 18 bytes / 8: 155 GB
    check_actor_memory(build(Posttrain, short | {"actor": {"tensor_parallel": 8}}), 64)  # (6 + 12 / 8) / 8: 65 GB


def test_activations_are_recomputed_where_they_would_not_fit() -> None:
    actor = {"actor": {"tensor_parallel": 4}}
    assert recompute_of(build(Posttrain, {"lengths": {"max_response": 4096}} | actor), 8) == 0.0
    assert recompute_of(build(Posttrain, {"lengths": {"max_response": 120_000}} | actor), 8) == 1.0
    assert recompute_of(build(Posttrain, {"actor": {"recompute": 0.5}}), 8) == 0.5


def test_a_run_asks_whether_its_actor_fits() -> None:
    placement = {"actor": "0-3", "rollout": "4-7"}
    given = {"model": "qwen2.5-32b", "cluster": {"component_placement": placement}, "rollout": {"tensor_parallel": 4}}
    config = build(Posttrain, given | {"algorithm": {"recompute_logprobs": False}})
    with pytest.raises(DoesNotFitError, match="the actor needs"):
        run(config)
