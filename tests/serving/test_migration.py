"""Requests that move while they decode: Llumnix's rule by a table, one move by hand, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon.api.comparison import compare
from gnomon.core.config import load
from gnomon.core.errors import ConfigError
from gnomon.report.blocks import Section, Table
from gnomon.serving.autoscaling.migrations import MIGRATIONS, Guest, Host, View, migration
from gnomon.serving.autoscaling.migrations.llumnix import freeness
from gnomon.serving.autoscaling.moving import Mover
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario import Scenario
from serving_kit import check_invariants, requests_of, run, scenario

SMALL, LARGE, URGENT = Guest(1, 30, 0.0), Guest(2, 300, 0.0), Guest(3, 10, 1.0)


def host(replica: int, free: int, running: int, *guests: Guest, waits: int = 0, is_up: bool = True) -> Host:
    return Host(replica, is_up, 100, free, 16, running, waits, lambda: guests)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (host(0, 40, 10), 4.0),
        (host(0, 40, 0), 40.0),
        (host(0, 40, 9, waits=100), (40 - 7) / 10),  # The first prompt of the queue is one of them, and asks for 7.
        (host(0, 4, 4, waits=100), -3 / 5),
        (host(0, 40, 9, waits=10), 3.9),  # One block is one, too.
        (host(0, 40, 10, is_up=False), -np.inf),
    ],
)
def test_freeness_is_how_much_longer_the_batch_can_grow(seen: Host, expected: float) -> None:
    assert freeness(seen) == expected


FULL = host(0, 10, 10, LARGE, SMALL, URGENT)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([FULL, host(1, 90, 9)], [(1, 1)]),  # Of the lowest priority the smallest.
        ([FULL, host(1, 30, 9)], []),  # 30 / 9 is enough, but (30 - 2) / 10 is not.
        ([FULL, host(1, 60, 9, waits=600)], []),  # 38 blocks are for the prompt that waits there.
        ([FULL, host(1, 90, 9), host(2, 90, 3)], [(1, 2)]),
        ([FULL, host(1, 5, 9, LARGE), host(2, 90, 3), host(3, 90, 9)], [(2, 2), (1, 3)]),  # The neediest to the freest.
        ([host(0, 90, 9, LARGE, is_up=False), host(1, 90, 9)], [(2, 1)]),
        ([host(0, 90, 9, LARGE), host(1, 90, 1)], []),  # Nobody is in need.
        ([host(0, 10, 10), host(1, 90, 9)], []),  # Nobody may leave.
    ],
)
def test_llumnix(hosts: list[Host], expected: list[tuple[int, int]]) -> None:
    spec = MIGRATIONS["llumnix"]
    assert spec.choose(View(0.0, tuple(hosts), spec.options, {})) == expected


@pytest.fixture
def once() -> Iterator[dict[str, Any]]:
    """A policy that moves one request at its first look after so many seconds."""
    asked: dict[str, Any] = {"at_s": 1.0, "answer": [(0, 1)], "seen": None}

    @migration("once")
    def choose(view: View) -> list[tuple[int, int]]:
        if view.now_s < asked["at_s"] or view.memory.get("done"):
            return []
        view.memory["done"], asked["seen"] = True, [(one.replica, one.guests) for one in view.hosts]
        return asked["answer"]

    yield asked
    MIGRATIONS.remove("once")


def moved(moves: str, offered: Any = None) -> Run:
    """10 ms an iteration whatever is in it; a token's KV takes 10 ms over the network."""
    setup = scenario(
        num_replicas=2, engine="none", timing={"source": "table", "table": {"per_iteration": 0.01}},
        batching={"policy": "vllm_v1", "max_batch_tokens": 4096}, replica={"num_kv_blocks": 200},
        disaggregation={"bandwidth_gb_s": PER_TOKEN_S},
        fleet={"migration": {"name": "once", "interval_s": 0.505, "moves": moves}, "controller": {"interval_s": 1e3}},
    )  # fmt: skip
    return run(setup, requests=requests_of([0.0], [100], [300]) if offered is None else offered)


PER_TOKEN_S = 524_288 / 0.01 / 1e9  # Llama-2-7B has 524,288 bytes of KV a token: 10 ms each.


def test_kv_moves_while_the_request_goes_on(once: dict[str, Any]) -> None:
    """At 1.01 s, before a batch ends, it has 100 + 100 tokens, the last of which is not computed: 199 take 1.99 s and
    0.001 s to set up. It is told at 3.001 s, and leaves with the token at 3.01 s, its 301st. Of 400 tokens that are
    computed 201 go then. After that it goes on as before."""
    offered = requests_of([0.0], [100], [600])
    done = moved("kv", offered)
    q, fleet = done.cluster.requests[0], done.fleet
    assert once["seen"] == [(0, (Guest(0, 200, 1.0),)), (1, ())]
    assert fleet is not None and [(request, to) for _, request, to in fleet.moved] == [(0, 1)]
    assert fleet.moved[0][0] == pytest.approx(1.01 + 0.001 + 1.99)
    assert q.prefilled_s == pytest.approx(3.01)
    assert q.landed_s == pytest.approx(3.01 + 201 * 0.01 + 0.001)
    assert q.finished_s == pytest.approx(q.landed_s + (600 - 301) * 0.01)
    assert (q.prefill_replica, q.replica, q.num_restarts) == (0, 1, 0)
    assert done.cluster.replicas.num_produced.tolist() == [301, 299]
    check_invariants(done)


def test_one_that_is_done_by_then_stays(once: dict[str, Any]) -> None:
    done = moved("kv")
    assert done.cluster.requests.finished_s[0] == pytest.approx(3.0) and not done.fleet.moved  # type: ignore[union-attr]
    assert done.cluster.requests.replica[0] == 0


@pytest.mark.parametrize(("output", "moves"), [(301, False), (302, True)])
def test_one_that_ends_with_the_token_that_is_computed_stays(once: dict[str, Any], output: int, moves: bool) -> None:
    """Its KV is there at 3.001 s, and the token at 3.01 s is its 301st."""
    done = moved("kv", requests_of([0.0], [100], [output]))
    assert done.fleet is not None and bool(done.fleet.moved) is moves
    assert done.cluster.requests.replica[0] == moves
    check_invariants(done)


def test_without_kv_it_is_prefilled_again(once: dict[str, Any]) -> None:
    """It leaves with the token at 1.01 s, its 101st; its 201 tokens are prefilled in the next iteration."""
    done = moved("nothing")
    q = done.cluster.requests[0]
    assert (q.replica, q.num_restarts, q.landed_s) == (1, 1, -1.0)
    assert q.finished_s == pytest.approx(3.0)
    assert done.cluster.replicas.tokens_computed.tolist() == [100 + 100, 201 + 198]
    check_invariants(done)


def test_guests_that_nobody_asks_for_are_not_looked_for(once: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    once["at_s"], looked, guests = 1e9, [], Mover._guests
    monkeypatch.setattr(Mover, "_guests", lambda self, r: looked.append(r) or guests(self, r))  # type: ignore[func-returns-value]
    moved("kv")
    assert not looked


def test_it_stays_where_no_room_is_left_by_then(once: dict[str, Any]) -> None:
    """The second, of 3,000 tokens, comes to replica 1 while KV is copied there, and leaves too little for 201."""
    offered = requests_of([0.0, 1.5], [100, 3000], [600, 300])
    done = moved("kv", offered)
    assert done.cluster.requests.replica.tolist() == [0, 1] and not done.fleet.moved  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", [[(0, 0)], [(0, 2)], [(5, 1)], [0], None, ["ab"]])
def test_an_answer_that_means_nothing_is_told(once: dict[str, Any], answer: Any) -> None:
    once["answer"] = answer
    with pytest.raises(ConfigError, match="not all of that are pairs of a guest and another host"):
        moved("kv")


@pytest.mark.parametrize("moves", ["kv", "nothing"])
@pytest.mark.parametrize(
    "changes",
    [
        {"batching": {"policy": "vllm"}},
        {"batching": {"policy": "vllm_v1", "prefix_cache": True}, "workload": {"sessions": {"turns": 4}}},
        {"batching": {"policy": "vllm_v1", "overlap": True}},
        {"batching": {"policy": "sglang"}, "replica": {"pipeline_parallel": 2}},
        {"batching": {"policy": "sarathi"}, "router": "round_robin"},
    ],
)  # fmt: skip
def test_nothing_is_lost_while_many_move_and_replicas_die(moves: str, changes: dict[str, Any]) -> None:
    """Little memory, everywhere the first one goes on to the next replica, and failures in between."""

    @migration("onwards")
    def choose(view: View) -> list[tuple[int, int]]:
        to = [one.replica for one in view.hosts if one.takes_requests]
        pairs = zip(view.hosts, [*to[1:], *to[:1]], strict=False)
        return [(one.guests[0].request, r) for one, r in pairs if one.guests and one.replica != r]

    events = [{"at_s": 2.0, "what": "fail", "replica": 0}, {"at_s": 4.0, "what": "drain", "replica": 2}]
    changes = {**changes, "replica": {"num_kv_blocks": 80, **changes.get("replica", {})}}
    workload = {"rate": 25.0, "num_requests": 150, **changes.pop("workload", {})}
    setup = scenario(
        num_replicas=3, workload=workload, **{"router": "random", **changes},
        fleet={"migration": {"name": "onwards", "interval_s": 0.05, "moves": moves},
               "events": events, "cold_start": {"weights_s": 1.0, "compile_s": 0.0, "warmup_s": 0.0}},
    )  # fmt: skip
    try:
        done = run(setup, explained=True)
    finally:
        MIGRATIONS.remove("onwards")
    assert len(done.fleet.moved) > 20  # type: ignore[union-attr]
    replicas, q = done.cluster.replicas, done.cluster.requests
    assert np.array_equal(replicas.free_blocks, replicas.num_blocks)
    for book in (
        "num_outstanding",
        "num_coming",
        "num_held",
        "num_moving",
        "num_landing",
        "prefill_left",
        "decode_left",
    ):
        assert not replicas[book].any(), book
    ok = q[q.status == 4]
    assert len(ok) > 140 and np.all(ok.processed == ok.prompt_tokens + ok.output_tokens)


def test_what_it_does_not_go_with_is_refused() -> None:
    both = {"pools": [{"role": "prefill"}, {"role": "decode"}], "fleet": {"migration": "llumnix"}}
    with pytest.raises(ConfigError, match="do not move where prefill and decode are apart"):
        scenario(**both)
    with pytest.raises(ConfigError, match="adapters"):
        run(scenario(num_replicas=2, workload={"adapters": {"count": 2}}, fleet={"migration": "llumnix"}))


def test_a_comparison_says_how_many_moved() -> None:
    """One run that looks too late, one that moves some: both rows have the column."""
    asked = load(Scenario, Path(__file__).parents[2] / "examples/fleet/migration.yaml", {"workload.num_requests": 300})
    made = compare(asked, vary={"fleet.migration.interval_s": [1e6, 0.5]}, intervals=False)
    table = next(
        one for block in made.text() if isinstance(block, Section) for one in block.blocks if isinstance(one, Table)
    )
    counts = [one.fleet.moves for one in made.summary.values() if one.fleet is not None]
    assert [row["moved"] for row in table.rows] == [str(count) for count in counts]
    assert counts[0] == 0 < counts[1] and "GPU hours" in table.columns
