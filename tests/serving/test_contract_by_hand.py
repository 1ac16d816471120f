"""Rules for a batch that a policy of one's own has formed: each broken by itself, and kept by a hair."""

from __future__ import annotations

from typing import Any

import pytest

from gnomon.serving.engine import contract
from gnomon.serving.engine.state import BUDGET, FAULT, FAULT_REPLICA, FAULT_REQUEST, NONE, RUNNING, WAITING, Cluster
from serving_kit import plain, with_books


def formed() -> Cluster:
    """Of five requests 0 waits, 1 (16 of its 20 prompt tokens) and 2 (its 12th output token) are in the batch of
    replica 1, 3 and 4 run on."""
    cluster = with_books(5, replicas=2)
    state, q = cluster.replicas[1], cluster.requests
    state.first_waiting, state.last_waiting, state.num_waiting, state.num_deferred = 0, 0, 1, 0
    state.in_step = state.num_grouped = state.num_in_flight = state.num_speculative = 0
    state.num_running, state.batch_size, state.num_outstanding = 2, 2, 5
    cluster.running[1, :2] = 3, 4
    cluster.flight_requests[1, :, :2], cluster.flight_tokens[1, :, :2] = (1, 2), (16, 1)
    q.status, q.prefill_tokens = RUNNING, 20
    q.status[0] = WAITING
    q.processed[1:3], q.num_blocks[1:3] = (4, 32), 2
    cluster.control[BUDGET] = 7
    return cluster


ALL = 10_000
"""As many as there are places."""


@plain
@pytest.mark.parametrize(
    ("changes", "fault", "request_id"),
    [
        ({}, 0, None),
        # Tokens: what is left of a prompt, and one of a decode, with those that were drafted.
        ({"batch_tokens": (0, 17)}, contract.WRONG_TOKENS, 1),
        ({"batch_tokens": (1, 2)}, contract.WRONG_TOKENS, 2),
        ({"batch_tokens": (1, 2), "num_speculative": 1, "blocks": (2, 3)}, 0, None),
        ({"batch_tokens": (1, 3), "num_speculative": 1, "blocks": (2, 3)}, contract.WRONG_TOKENS, 2),
        (
            {"batch_tokens": (0, 1), "processed": (1, 20), "blocks": (1, 3)},
            contract.WRONG_TOKENS,
            1,
        ),  # all of it is there
        # Blocks of 16: 4 + 16 tokens take two; so do the 31 of a decode that are there, and its next.
        ({"blocks": (1, 1)}, contract.NO_BLOCKS, 1),
        ({"batch_tokens": (0, 12), "blocks": (1, 1)}, 0, None),
        ({"batch_tokens": (0, 13), "blocks": (1, 1)}, contract.NO_BLOCKS, 1),
        ({"processed": (2, 33)}, contract.NO_BLOCKS, 2),
        # Who runs has that status.
        ({"status": (4, WAITING)}, contract.NOT_TAKEN_OUT, 4),
        # Books: waiting, deferred, running, in the batch and in flight.
        ({"num_outstanding": 6}, contract.NOT_COUNTED, NONE),
        ({"num_outstanding": 6, "num_deferred": 1}, 0, None),
        ({"num_outstanding": 9, "num_in_flight": 1}, 0, None),
        ({"num_outstanding": 8, "num_in_flight": 1}, contract.NOT_COUNTED, NONE),
        # Of a step two of three are together, and the third is one more.
        ({"num_grouped": 2, "num_outstanding": 7}, 0, None),
        ({"num_grouped": 2, "in_step": 1, "num_outstanding": 5}, 0, None),
        # Numbers out of reach: of counts, and of requests.
        ({"batch_size": -1}, contract.OVERWRITTEN, NONE),
        ({"batch_size": 1000}, contract.OVERWRITTEN, NONE),
        ({"num_running": -1}, contract.OVERWRITTEN, NONE),
        ({"num_running": 1000}, contract.OVERWRITTEN, NONE),
        ({"num_grouped": -1}, contract.OVERWRITTEN, NONE),
        ({"num_grouped": 1000}, contract.OVERWRITTEN, NONE),
        ({"first_waiting": -1}, contract.OVERWRITTEN, NONE),
        ({"first_waiting": 5}, contract.OVERWRITTEN, NONE),
        ({"last_waiting": -1}, contract.OVERWRITTEN, NONE),
        ({"last_waiting": 5}, contract.OVERWRITTEN, NONE),
        ({"last_waiting": 5, "num_waiting": 0, "num_outstanding": 4}, 0, None),
        ({"batch": (0, -1)}, contract.OVERWRITTEN, NONE),
        ({"batch": (1, 5)}, contract.OVERWRITTEN, NONE),
        ({"batch": (0, 5), "in_step": 1, "num_grouped": 1, "num_outstanding": 5}, 0, None),
        ({"running": (0, -1)}, contract.OVERWRITTEN, NONE),
        ({"running": (1, 5)}, contract.OVERWRITTEN, NONE),
        # The first request, none at all and as many as there are places are in reach: other rules hold there.
        ({"batch": (0, 0)}, contract.NO_BLOCKS, 0),
        ({"running": (0, 0)}, contract.NOT_TAKEN_OUT, 0),
        ({"batch_size": 0, "num_outstanding": 3}, 0, None),
        ({"num_running": 0, "num_outstanding": 3}, 0, None),
        ({"batch_size": ALL}, contract.NOT_COUNTED, NONE),
        ({"num_running": ALL}, contract.NOT_TAKEN_OUT, 0),
        ({"num_grouped": ALL}, contract.NOT_COUNTED, NONE),
    ],
)
def test_helper_stops_at_the_first_rule_that_is_broken(
    changes: dict[str, Any], fault: int, request_id: int | None
) -> None:
    cluster = formed()
    state = cluster.replicas[1]
    cluster.flights.num_requests[1, :] = 4
    places = {"batch_size": cluster.flight_requests.shape[2], "num_running": cluster.running.shape[1],
              "num_grouped": cluster.grouped.shape[1]}  # fmt: skip
    for name, value in changes.items():
        match name:
            case "batch_tokens":
                cluster.flight_tokens[1, :, value[0]] = value[1]
            case "batch":
                cluster.flight_requests[1, :, value[0]] = value[1]
            case "running":
                cluster.running[1, value[0]] = value[1]
            case "blocks":
                cluster.requests.num_blocks[value[0]] = value[1]
            case "processed" | "status":
                cluster.requests[name][value[0]] = value[1]
            case _:
                state[name] = places[name] if value == ALL else value
    contract.check_batch(cluster, 1)
    assert cluster.control[FAULT] == fault
    assert cluster.control[BUDGET] == (0 if fault else 7)
    if fault:
        assert (cluster.control[FAULT_REPLICA], cluster.control[FAULT_REQUEST]) == (1, request_id)
    if fault == contract.OVERWRITTEN:
        assert (state.batch_size, state.num_running, state.num_grouped, state.num_waiting) == (0, 0, 0, 0)


@plain
def test_helper_counts_no_more_than_there_are_places() -> None:
    """As many as fit run, are in the batch and step together; one more is too many."""
    cluster = formed()
    state = cluster.replicas[1]
    places = cluster.running.shape[1]
    state.num_grouped, state.num_outstanding = places - 4, places + 1
    contract.check_batch(cluster, 1)
    assert cluster.control[FAULT] == 0
    state.num_grouped, state.num_outstanding = places - 3, places + 2
    contract.check_batch(cluster, 1)
    assert cluster.control[FAULT] == contract.TOO_MANY


@plain
def test_helper_keeps_the_first_fault() -> None:
    cluster = formed()
    contract.stop(cluster, contract.NO_BLOCKS, 1, 4)
    contract.stop(cluster, contract.TOO_MANY, 0, 3)
    found = [cluster.control[one] for one in (FAULT, FAULT_REPLICA, FAULT_REQUEST, BUDGET)]
    assert found == [contract.NO_BLOCKS, 1, 4, 0]
