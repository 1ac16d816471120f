"""`gnomon verify prefixes`: the prompts that are asked, the number that is fitted, and how ratios are judged."""

from __future__ import annotations

import numpy as np
import pytest

from gnomon.report.verify.prefixes import told
from gnomon.verify.prefixes import OFFLOADING, ROUTING, Row, effects, fit_client, offload, route, shared_prompts


def test_users_share_their_groups_prefix_and_nothing_else() -> None:
    asked = shared_prompts(3, 2, 100, 60, 10, block=16, rounds=2, concurrency=4)
    assert len(asked) == 12 and set(asked.prompt_tokens) == {160}
    rows = asked.prefix_hashes.reshape(12, 10)
    assert len(np.unique(rows, axis=0)) == 6, "each of the six prompts, twice"
    assert (rows[:6] == rows[6:]).all()
    assert len(np.unique(rows[:, :6])) == 18, "six whole blocks of 100 tokens for each of three groups"
    assert len(np.unique(rows[:, 6:])) == 24, "four of each user"
    assert np.isfinite(asked.arrival_s).sum() == asked.concurrency == 4


def test_the_clients_limit_is_found_where_the_time_is_met() -> None:
    found = fit_client(lambda under_way: under_way / 10, 45.0)
    assert 450 <= found <= 450 * 17 / 16


def rows(factor: float) -> list[Row]:
    """What was published, with one simulated throughput changed."""
    runs = [("routing", one) for one in ROUTING]
    runs += [(f"prefixes of {prefix:,} tokens", one) for prefix, pair in OFFLOADING.items() for one in pair]
    return [Row(part, one, one.tokens_s * (factor if one.name == "precise" else 1.0), one.ttft_s) for part, one in runs]


@pytest.mark.parametrize(("factor", "failures"), [(1.0, 0), (1.14, 0), (1.16, 2), (0.84, 2)])
def test_ratios_are_judged(factor: float, failures: int) -> None:
    """Precise over random and over estimated, both or none; half as fast a simulator in all would pass."""
    assert len(effects(rows(factor))) == 6
    found = told(rows(factor), 400)
    assert len(found.failures) == failures
    assert found.data["under_way"] == 400 and len(found.rows) == 8


@pytest.mark.slow
def test_precise_routing_and_host_memory_pay() -> None:
    """In shape, on fewer rounds than the check's."""
    tokens_s = {name: route(name, 400, rounds=3)[0] for name in ("random", "estimated", "precise")}
    assert tokens_s["precise"] > tokens_s["estimated"] > tokens_s["random"]
    assert offload(30_000, with_host=True)[0] > offload(30_000, with_host=False)[0]
