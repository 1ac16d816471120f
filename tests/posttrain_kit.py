"""Small post-training configurations for tests."""

from __future__ import annotations

from typing import Any

from gnomon.core.config import build
from gnomon.posttrain.policies import Policy, make_policy
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.simulator.record import RunRecord

EVERY_POLICY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("colocated", {}),
    ("disaggregated", {}),
    ("elastic", {}),
    ("elastic", {"use_pre_process_policy": False}),
    ("elastic", {"use_wait_before_last_iter_policy": True}),
    ("elastic", {"lend_inference": True, "packing": 0.5, "start_share": 0.7}),
    ("utilization", {"window": 2, "u_low": 0.9}),
    ("payback", {"gamma": 2.0}),
    ("tail_batching", {}),
    ("partial_rollout", {"staleness": 1}),
    ("partial_rollout", {"staleness": 0}),
)


def small(sizes: tuple[int, int, int] = (2, 4, 2), **more: Any) -> Posttrain:
    """A step of 16 x 4 sequences on one node; `sizes` are the GPUs of actor, rollout and inference."""
    actor, rollout, inference = sizes
    ends = (actor, actor + rollout, actor + rollout + inference)
    placement = {"actor": f"0-{ends[0] - 1}", "rollout": f"{ends[0]}-{ends[1] - 1}"}
    if inference:
        placement["inference"] = f"{ends[1]}-{ends[2] - 1}"
    data: dict[str, Any] = {
        "cluster": {"gpus_per_node": ends[2], "auto_scheduler": True, "component_placement": placement},
        "model": "qwen2.5-1.5b",
        "algorithm": {
            "rollout_batch_size": 16,
            "group_size": 4,
            "n_minibatches": 4,
            "recompute_logprobs": inference > 0,
        },
        "rollout": {"max_running_requests": 8},
        "actor": {"efficiency": 0.2},
        "lengths": {"mean": 300, "max_response": 2000, "max_prompt": 128, "prompt_mean": 64},
        "transitions": {
            "sync_fixed_s": 0.1,
            "reshard_s": 0.05,
            "migration_s": 0.2,
            "switch_s": 0.3,
            "check_interval_s": 0.1,
        },
    }
    for key, value in more.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) and key in data else value
    return build(Posttrain, data)


def policies() -> list[Policy]:
    """One of every kind."""
    return [make_policy(name, options) for name, options in EVERY_POLICY]


def assert_owned_once(record: RunRecord) -> None:
    """Every GPU has exactly one owner at every moment of every step."""
    for step in record.steps:
        for gpu in range(record.num_gpus):
            at = 0.0
            for span in sorted((s for s in step.spans if s.gpu == gpu), key=lambda s: s.start_s):
                assert span.start_s == at and span.end_s > at
                at = span.end_s
            assert at == step.duration_s


def assert_work_on_own_gpus(record: RunRecord) -> None:
    """Training and log-probabilities happen only where and while their component owns the GPUs."""
    for step in record.steps:
        owned: dict[tuple[int, str], list[tuple[float, float]]] = {}
        for span in step.spans:
            owned.setdefault((span.gpu, span.owner), []).append((span.start_s, span.end_s))
        for one in step.work:
            for gpu in one.gpus:
                spans = owned[gpu, one.component]
                assert any(a - 1e-9 <= one.start_s and one.end_s <= b + 1e-9 for a, b in _joined(spans))


def _joined(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def assert_tokens_conserved(record: RunRecord) -> None:
    """What was brought and generated is trained, carried on, or discarded."""
    carried = 0
    for step in record.steps:
        assert step.tokens_brought == carried
        used = step.response_tokens_trained + step.tokens_carried + step.tokens_discarded
        assert step.tokens_brought + step.tokens_generated == used
        carried = step.tokens_carried
