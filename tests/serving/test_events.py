"""The event log: every scheduling event of every request, checked against the engine's own accounts."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from gnomon.core.errors import ConfigError
from gnomon.report.serving.trace import event_frame
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.run.simulate import run
from scarce_kit import scarce
from serving_kit import requests_of, scenario


def events_of(setup, requests=None, **options):
    done = run(setup, requests=requests, keep_chunks=10_000, **options)
    return done, event_frame(done)


def story(events: pl.DataFrame, request: int) -> list[tuple[str, float, int | None]]:
    mine = events.filter(pl.col("request") == request)
    return [(event, round(time, 6), tokens) for event, time, tokens in mine.select("event", "time_s", "tokens").rows()]


def one_second_per_token(**settings):
    """Iterations take a second per token of theirs."""
    return scenario(timing={"source": "table", "table": {"per_token": 1.0}}, **settings)


def test_a_prompt_in_chunks():
    """Ten tokens in chunks of four take 4, 4 and 2 s; the first token is there at 10, the third at 12."""
    setup = one_second_per_token(batching={"policy": "sarathi", "max_batch_tokens": 4})
    _, events = events_of(setup, requests_of([1.0], [10], [3]))
    assert story(events, 0) == [
        ("arrival", 1.0, None), ("queued", 1.0, None), ("scheduled", 1.0, None), ("chunk", 1.0, 4), ("chunk", 5.0, 4),
        ("chunk", 9.0, 2), ("first_token", 11.0, None), ("finished", 13.0, None),
    ]  # fmt: skip
    assert events.filter(pl.col("event") == "chunk")["end_s"].to_list() == [5.0, 9.0, 11.0]
    assert events["replica"].to_list() == [None] + [0] * 7


def test_a_decode_beside_a_prompt_is_no_chunk():
    """The first decodes its second token in the iteration that computes the other's prompt."""
    setup = one_second_per_token(batching={"policy": "vllm_v1"})
    _, events = events_of(setup, requests_of([0.0, 1.0], [4, 3], [3, 1]))
    chunks = events.filter(pl.col("event") == "chunk").select("request", "time_s", "tokens").rows()
    assert chunks == [(0, 0.0, 4), (1, 4.0, 3)]


@pytest.mark.parametrize("replica", [{"pipeline_parallel": 2}, {"speculative": {"num_tokens": 1}}])
def test_nor_are_decodes_that_are_handled_one_by_one(replica):
    """In a pipeline, or with drafted tokens, decodes do not step together."""
    setup = one_second_per_token(batching={"policy": "vllm_v1", "max_batch_tokens": 8}, replica=replica)
    _, events = events_of(setup, requests_of([0.0, 1.0], [4, 40], [9, 1]))
    chunks = events.filter(pl.col("event") == "chunk").group_by("request").agg(pl.col("tokens").sum()).sort("request")
    assert chunks.rows() == [(0, 4), (1, 40)]


def test_a_request_that_is_pre_empted_computes_its_tokens_again():
    """Two prompts of 4 tokens fill 4 blocks of 2. After their first token (at 8) both need a fifth block: there are 5,
    so the later one gives way at 8, and computes its prompt and its token again when the first has finished."""
    setup = one_second_per_token(
        batching={"policy": "vllm_v1", "block_size": 2, "prefix_cache": False}, replica={"num_kv_blocks": 5}
    )
    done, events = events_of(setup, requests_of([0.0, 0.0], [4, 4], [3, 3]))
    assert done.cluster.requests.num_restarts.tolist() == [0, 1]
    assert story(events, 1) == [
        ("arrival", 0.0, None), ("queued", 0.0, None), ("scheduled", 0.0, None), ("chunk", 0.0, 4),
        ("first_token", 8.0, None), ("preempted", 8.0, None), ("resumed", 10.0, None), ("chunk", 10.0, 5),
        ("finished", 16.0, None),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(0, 160, 2))
def test_the_log_agrees_with_the_accounts_where_memory_is_scarce(seed):
    done, events = events_of(*scarce(seed))
    q = done.cluster.requests
    count = {event: np.bincount(rows["request"], minlength=q.size) for (event,), rows in events.group_by("event")}
    none = np.zeros(q.size, int)
    assert events["time_s"].is_sorted()
    assert np.array_equal(count.get("preempted", none), q.num_restarts)
    assert np.array_equal(count.get("finished", none), q.status == FINISHED)
    assert np.array_equal(count.get("first_token", none), q.first_token_s >= 0)
    begun = count.get("scheduled", none) > 0
    assert np.array_equal(begun & (q.status == FINISHED), q.status == FINISHED)
    stops = events.filter(pl.col("event").is_in(["preempted", "resumed"])).sort(
        "request", "time_s", maintain_order=True
    )
    signs = pl.when(pl.col("event") == "resumed").then(pl.col("time_s")).otherwise(-pl.col("time_s"))
    away = stops.group_by("request").agg(waited=signs.sum(), open=(pl.col("event") == "preempted").sum() * 2 - pl.len())
    for request, waited, is_open in away.rows():
        if not is_open:
            assert waited == pytest.approx(q.preempted_s[request], abs=1e-9)
    chunks = events.filter(pl.col("event") == "chunk").group_by("request").agg(pl.col("tokens").sum())
    for request, tokens in chunks.rows():
        if q.status[request] == FINISHED and q.num_restarts[request] == 0:
            assert tokens + q.cached_tokens[request] == q.prompt_tokens[request]


def test_too_many_chunks_are_refused_in_words():
    setup = one_second_per_token(batching={"policy": "sarathi", "max_batch_tokens": 4})
    done = run(setup, requests=requests_of([0.0], [10], [3]), keep_chunks=2)
    with pytest.raises(ConfigError, match="3 parts"):
        event_frame(done)


def test_chunks_change_nothing():
    setup, requests = scarce(6)
    with_log, without = run(setup, requests=requests, keep_chunks=100), run(setup, requests=requests)
    assert with_log.cluster.requests.finished_s.tolist() == without.cluster.requests.finished_s.tolist()


def test_clients_that_give_up():
    """The first computes for ever, the second waits for its place; both leave after 3 s."""
    patient = {"batching": {"max_sequences": 1}, "workload": {"patience": {"give_up_after_s": 3.0}}}
    _, events = events_of(one_second_per_token(**patient), requests_of([0.0, 1.0], [2, 2], [90, 1]))
    assert story(events, 1) == [("arrival", 1.0, None), ("queued", 1.0, None), ("scheduled", 3.0, None),
                                ("chunk", 3.0, 2), ("abandoned", 4.0, None)]  # fmt: skip
    assert [event for event, _, _ in story(events, 0)][-2:] == ["first_token", "abandoned"]
