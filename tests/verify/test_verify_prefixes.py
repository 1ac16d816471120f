"""`gnomon verify prefixes`: the prompts that are asked, their stages, and how ratios are judged."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gnomon.verify.prefixes import (
    OFFLOADING,
    ROUTING,
    Row,
    at_a_time,
    effects,
    findings,
    in_stages,
    offload,
    route,
    shared_prompts,
)
from serving_kit import run, scenario


def test_users_share_their_groups_prefix_and_nothing_else() -> None:
    asked = shared_prompts(3, 2, 100, 60, 10, block=16, count=12)
    assert len(asked) == 12 and set(asked.prompt_tokens) == {160}
    rows = asked.prefix_hashes.reshape(12, 10)
    assert len(np.unique(rows, axis=0)) == 6, "each of the six prompts, twice"
    assert (rows[:6] == rows[6:]).all()
    assert len(np.unique(rows[:, :6])) == 18, "six whole blocks of 100 tokens for each of three groups"
    assert len(np.unique(rows[:, 6:])) == 24, "four of each user"
    limited = at_a_time(asked, 4, num_warmup=6)
    assert np.isfinite(limited.arrival_s).sum() == limited.concurrency == 4 and limited.num_warmup == 6


def test_a_stage_is_sent_when_the_one_before_has_ended() -> None:
    """Five a second for two seconds, then three for one: the tenth stands for the first stage."""
    asked = in_stages(shared_prompts(3, 2, 100, 60, 10, block=16, count=13), ((5, 2), (3, 1)))
    assert np.isfinite(asked.arrival_s).tolist() == [True] * 9 + [False] * 4
    parents = [asked.parents[a:b].tolist() for a, b in pairwise(asked.parent_offsets)]
    assert parents == [*[[]] * 9, list(range(9)), [9], [9], [10, 11]]
    assert (np.diff(asked.think_s[:9]) > 0).all() and asked.think_s[9] == 0.0
    done = run(scenario(), requests=asked).cluster.requests
    assert done.arrival_s[10] - asked.think_s[10] == pytest.approx(done.finished_s[9])
    assert done.arrival_s[9] == pytest.approx(done.finished_s[:9].max())


def rows(factor: float) -> list[Row]:
    """What was published, with one simulated throughput changed."""
    runs = [("routing", one) for one in ROUTING]
    runs += [(f"prefixes of {prefix:,} tokens", one) for prefix, pair in OFFLOADING.items() for one in pair]
    return [Row(part, one, one.tokens_s * (factor if one.name == "precise" else 1.0), one.ttft_s) for part, one in runs]


@pytest.mark.parametrize(("factor", "failures"), [(1.0, 0), (1.14, 0), (1.16, 2), (0.84, 2)])
def test_ratios_are_judged(factor: float, failures: int) -> None:
    """Precise over random and over estimated, both or none; half as fast a simulator in all would pass."""
    assert len(effects(rows(factor))) == 6
    found = findings(rows(factor))
    assert len(found.failures) == failures and len(found.rows) == 8


@pytest.mark.slow
def test_precise_routing_and_host_memory_pay() -> None:
    """In shape, on a few stages."""
    stages = ((15, 50), (30, 25), (60, 25))
    tokens_s = {name: route(name, stages)[0] for name in ("random", "estimated", "precise")}
    assert tokens_s["precise"] > tokens_s["estimated"] > tokens_s["random"]
    assert offload(30_000, with_host=True)[0] > offload(30_000, with_host=False)[0]
