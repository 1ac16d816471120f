"""Prefill and decode apart: a request's way by hand, links that are shared, memory that runs out, conservation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnomon import catalog
from gnomon.core.config import build
from gnomon.core.errors import ConfigError, GnomonError
from gnomon.jit import borrow, jit
from gnomon.report.serving.trace import transfer_events
from gnomon.serving.engine.batch_operations import place
from gnomon.serving.engine.decode_group import processed_now
from gnomon.serving.engine.state import FINISHED, REJECTED, RUNNING, Cluster, replica_view
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.kv_links import kv_bytes_per_token, link_bytes_s
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import DisaggregationConfig
from gnomon.serving.scenario.pools import resolve
from serving_kit import TABLE, check_invariants, requests_of, scenario

SECOND = {"source": "table", "table": {"per_iteration": 1.0}}
KV = 2 * 32 * 32 * 128 * 2
"""Bytes of a token of Llama-2-7B."""


def apart(prefill: int = 1, decode: int = 1, *, blocks: int = 1000, policy: str = "vllm_v1", **moving: Any) -> Scenario:
    """Iterations of a second; a transfer of 100 tokens takes two, and half a second more."""
    moving = {"bandwidth_gb_s": 50 * KV / 1e9, "latency_s": 0.5, **moving}
    return scenario(
        timing=SECOND,
        batching={"policy": policy},
        pools=[
            {"role": "prefill", "num_replicas": prefill},
            {"role": "decode", "num_replicas": decode, "replica": {"num_kv_blocks": blocks}},
        ],
        disaggregation=moving,
    )


def stamps(done: Run, *names: str) -> list[list[float]]:
    return [[round(float(x), 6) for x in done.cluster.requests[name]] for name in names]


def test_the_way_of_a_request() -> None:
    """Prefilled at 1, moved at 3, usable at 3.5; the decode replica computes the last prompt token again."""
    done = run(apart(), requests=requests_of([0.0], [100], [3]))
    assert stamps(done, "prefilled_s", "moving_s", "landed_s") == [[1.0], [1.0], [3.5]]
    assert stamps(done, "first_token_s", "finished_s") == [[4.5], [6.5]]
    q = done.cluster.requests[0]
    assert (q.prefill_replica, q.replica) == (0, 1)
    assert list(done.cluster.replicas.num_produced) == [0, 3]


@pytest.mark.parametrize(
    ("policy", "first_token", "first_s", "end_s"),
    [("vllm_v1", "transfer", 3.5, 5.5), ("vllm_v1", "prefill", 1.0, 5.5), ("sglang", "auto", 3.5, 5.5)],
)
def test_who_gives_the_first_token(policy: str, first_token: str, first_s: float, end_s: float) -> None:
    done = run(apart(policy=policy, first_token=first_token), requests=requests_of([0.0], [100], [3]))
    assert stamps(done, "first_token_s", "finished_s") == [[first_s], [end_s]]
    assert list(done.cluster.replicas.num_produced) == [1, 2]


@pytest.mark.parametrize(("joins_at_once", "end_s"), [(1, [8.5, 9.5, 12.5]), (0, [9.5, 9.5, 13.5])])
def test_a_rank_of_sglang_sits_out_the_step_in_which_others_join_it(joins_at_once: int, end_s: list[float]) -> None:
    """Two ranks. The first request is there at 1.5 and decodes at once. The second comes just after, to the other rank,
    and joins at 2.5, while the first decodes. The third comes to the first rank at 4.7. Before 0.5.10 that rank decodes
    nothing from 5.5 to 6.5: the first request ends a second later, the third begins a second later."""
    ranks = {"num_kv_blocks": 1000, "data_parallel": 2}
    one = scenario(
        model="qwen3-30b-a3b", timing=SECOND, pools=[{"role": "prefill"}, {"role": "decode", "replica": ranks}],
        batching={"policy": "sglang", "options": {"joins_at_once": joins_at_once}},
        disaggregation={"bandwidth_gb_s": 1e6, "latency_s": 0.5, "decode_router": "round_robin"},
    )  # fmt: skip
    done = run(one, requests=requests_of([0.0, 0.0, 3.2], [100] * 3, [8] * 3))
    assert stamps(done, "landed_s", "finished_s") == [[1.5, 1.5, 4.7], end_s]


def test_one_token_is_given_by_the_prefill_replica_if_it_can() -> None:
    done = run(apart(first_token="prefill"), requests=requests_of([0.0], [100], [1]))
    assert stamps(done, "finished_s") == [[1.0]]
    assert done.transfers is not None and not done.transfers.flows.bytes.any()


def test_links_that_are_down_hold_transfers_and_arrivals_go_around_them() -> None:
    """The first transfer takes two seconds: one before the links go down at 2, one from 5 on. What arrives at 3 is
    prefilled where it decodes, in the second from 3 on; what arrives at 6 moves again."""
    done = run(apart(down_s=(2.0, 5.0)), requests=requests_of([0.0, 3.0, 6.0], [100] * 3, [3] * 3))
    assert stamps(done, "moving_s", "landed_s") == [[1.0, -1.0, 7.0], [6.5, -1.0, 9.5]]
    assert done.cluster.requests.prefill_replica.tolist() == [0, -1, 0]
    assert stamps(done, "first_token_s")[0][1] == 4.0
    moved = summarize(done).moves
    assert moved is not None and (moved.moved, moved.stayed) == (2, 1)


def test_transfers_share_the_receivers_link() -> None:
    """Both start at 1 with half the link each; the short one is through at 3, the other has it alone from then on."""
    done = run(apart(prefill=2), requests=requests_of([0.0, 0.0], [50, 100], [2, 2]))
    assert stamps(done, "moving_s", "landed_s") == [[1.0, 1.0], [3.5, 4.5]]


def test_transfers_share_the_senders_link() -> None:
    done = run(apart(decode=2), requests=requests_of([0.0, 0.0], [100, 100], [2, 2]))
    assert stamps(done, "prefilled_s", "landed_s") == [[1.0, 1.0], [5.5, 5.5]]


def test_layer_by_layer_only_the_rest_is_left_at_the_end() -> None:
    """In the second of its prefill 50 tokens move; the other 50 take another second."""
    done = run(apart(moves="by_layer"), requests=requests_of([0.0], [100], [2]))
    assert stamps(done, "landed_s") == [[2.5]]
    quick = run(apart(moves="by_layer", bandwidth_gb_s=1e6), requests=requests_of([0.0], [100], [2]))
    assert stamps(quick, "landed_s") == [[1.5]]


def test_layer_by_layer_a_batch_shares_the_link() -> None:
    """In the second in which both are computed the link moves 50 tokens, 25 of each. The other 75 of each, sent from
    then on at half its rate, take three seconds."""
    done = run(apart(decode=2, moves="by_layer"), requests=requests_of([0.0, 0.0], [100, 100], [2, 2]))
    assert stamps(done, "prefilled_s", "landed_s") == [[1.0, 1.0], [4.5, 4.5]]


def test_back_pressure_holds_the_prefill_replicas_memory() -> None:
    """Seven blocks hold one prompt of 100 tokens: the second waits for the end of the first, with its KV held."""
    done = run(apart(blocks=8), requests=requests_of([0.0, 0.0], [100, 100], [3, 3]))
    first, second = stamps(done, "moving_s")[0]
    assert first == 1.0
    assert second == stamps(done, "finished_s")[0][0] == 6.5
    moved = summarize(done).moves
    assert moved is not None and moved.wait_s.max == pytest.approx(5.5)


def test_a_prompt_beyond_all_memory_is_refused_and_nothing_stays_held() -> None:
    done = run(apart(blocks=5), requests=requests_of([0.0, 0.0], [100, 50], [3, 3]))
    assert list(done.cluster.requests.status) == [REJECTED, FINISHED]


def test_whoever_can_never_land_is_refused_when_it_is_the_first_and_frees_its_own_blocks() -> None:
    """Forty blocks hold 640 tokens. The third prompt (900) waits behind the second, and the fourth behind it: once it
    is the first, it is refused, what was held for it is free, and the fourth moves."""
    pools = [{"role": role, "replica": {"num_kv_blocks": n}} for role, n in (("prefill", 400), ("decode", 40))]
    for last_s in (1.0, 1.5):  # It is prefilled before the third one is the first, or after.
        sent = requests_of([0.0, 0.0001, 0.0002, last_s], [500, 400, 900, 100], [100, 100, 10, 10])
        done = run(scenario(pools=pools, disaggregation={"hop_s": 0.0}), requests=sent)
        assert done.cluster.requests.status.tolist() == [FINISHED, FINISHED, REJECTED, FINISHED]
        assert np.array_equal(done.cluster.replicas.free_blocks, done.cluster.replicas.num_blocks)
        assert not done.cluster.requests.held_blocks.any()


@jit
def processed_once_placed(cluster: Cluster, r: int, request_id: int) -> int:
    replica = replica_view(borrow(cluster), r)
    place(replica, request_id, 1)
    return processed_now(replica, request_id)


def test_routers_know_how_far_a_landed_request_is() -> None:
    """Seven steps of others were before it came: they are none of its own."""
    cluster = run(apart(), requests=requests_of([0.0], [100], [3])).cluster
    cluster.replicas.steps[1], cluster.replicas.batch_size[1] = 7, 0
    request = cluster.requests[0]
    request.status, request.processed, request.joined = RUNNING, 101, 0
    assert processed_once_placed(cluster, 1, 0) == 101


def test_who_waits_too_long_is_prefilled_where_it_decodes() -> None:
    done = run(apart(blocks=8, timeout_s=2.0), requests=requests_of([0.0, 0.0], [100, 100], [3, 3]))
    q = done.cluster.requests
    assert list(q.status) == [FINISHED, FINISHED]
    assert q.landed_s[1] == -1.0 and q.num_restarts[1] == 1
    moved = summarize(done).moves
    assert moved is not None and (moved.moved, moved.dropped) == (1, 1)


def test_short_prompts_stay_where_they_decode() -> None:
    decider = {"name": "long_prompts", "options": {"tokens": 80}}
    done = run(apart(decider=decider), requests=requests_of([0.0, 0.0], [79, 80], [2, 2]))
    assert list(done.cluster.requests.prefill_replica) == [-1, 0]
    assert list(done.cluster.requests.replica) == [1, 1]
    assert stamps(done, "first_token_s")[0][0] == 1.0


def test_busy_prefill_replicas_are_passed_by() -> None:
    decider = {"name": "idle_prefill", "options": {"tokens": 1, "max_queued_tokens": 150}}
    done = run(apart(decider=decider), requests=requests_of([0.0] * 3, [100] * 3, [2] * 3))
    assert list(done.cluster.requests.prefill_replica) == [0, 0, -1]


def test_routers_choose_among_their_pool_only() -> None:
    setup = apart(prefill=3, decode=2)
    done = run(setup, requests=requests_of([0.0] * 12, [100] * 12, [4] * 12))
    q = done.cluster.requests
    assert list(np.bincount(q.prefill_replica, minlength=5)) == [4, 4, 4, 0, 0]
    assert list(np.bincount(q.replica, minlength=5)) == [0, 0, 0, 6, 6]


def test_a_pool_of_both_decodes_what_it_prefills_if_chosen_twice() -> None:
    setup = scenario(
        timing=SECOND,
        pools=[{"role": "prefill"}, {"role": "both"}],
        router="round_robin",
        disaggregation={"decode_router": "round_robin"},
    )
    done = run(setup, requests=requests_of([0.0, 10.0], [100, 100], [2, 2]))
    assert list(done.cluster.requests.prefill_replica) == [0, 1]
    assert done.cluster.requests.landed_s[1] == -1.0


@pytest.mark.parametrize("policy", ["vllm_v1", "sglang", "trtllm"])
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_counted_twice(policy: str, seed: int) -> None:
    """Every request ends once, every byte of a prompt moves once, all memory is free in the end (`Guard.audit`)."""
    draw = np.random.default_rng(seed)
    prefill, decode, blocks = (int(draw.integers(*span)) for span in ((1, 4), (1, 4), (14, 60)))
    timeout_s, shares = float(draw.choice([0.5, 50.0])), bool(seed % 2)
    down_s = (1.0, 9.0) if seed % 3 == 0 else None
    moving = {"timeout_s": timeout_s, "bandwidth_gb_s": 1.0, "down_s": down_s}
    setup = apart(prefill, decode, blocks=blocks, policy=policy, **moving)
    lengths = {"distribution": "uniform", "prompt": [10, 200], "output": [1, 60]}
    workload: dict[str, Any] = {"num_requests": 40, "rate": 20.0, "lengths": lengths}
    if shares:
        workload["sessions"] = {"turns": 2, "shared_prefix_tokens": 64, "num_shared_prefixes": 3, "block_tokens": 32}
    setup = build(Scenario, {**setup.model_dump(exclude_unset=True), "seed": seed, "workload": workload})
    done = run(setup)
    q = done.cluster.requests
    assert set(q.status) <= {FINISHED, REJECTED}
    produced = int(done.cluster.replicas.num_produced.sum())
    assert q.output_tokens[q.status == FINISHED].sum() <= produced <= q.output_tokens.sum()
    moved = q.landed_s >= 0
    assert (q.prefilled_s[moved] <= q.moving_s[moved]).all() and (q.moving_s[moved] < q.landed_s[moved]).all()
    assert (q.landed_s[moved] <= q.first_token_s[moved]).all()
    assert done.transfers is not None
    sizes = done.transfers.flows.bytes[moved]
    assert (sizes <= q.prompt_tokens[moved] * KV).all()
    if not shares:
        np.testing.assert_allclose(sizes, q.prompt_tokens[moved] * KV)
    assert (done.transfers.flows.remaining == 0).all()


@pytest.mark.parametrize(
    ("model", "tensor_parallel", "expected"),
    [
        ("llama-3-70b", 8, 2 * 80 * 8 * 128 * 2),
        ("llama-3-70b", 2, 2 * 80 * 8 * 128 * 2),
        ("qwen3-235b-a22b", 8, 2 * 2 * 94 * 4 * 128 * 2),  # Four KV heads on eight GPUs: two copies.
        ("deepseek-v3", 8, 8 * 61 * 576 * 2),  # The latent, on each of eight GPUs.
    ],
)
def test_bytes_that_a_token_takes_in(model: str, tensor_parallel: int, expected: int) -> None:
    setup = build(
        Scenario,
        {
            "model": model,
            "device": "b300",
            "timing": {"kv_dtype": "bf16"},
            "pools": [{"role": "prefill", "replica": {"tensor_parallel": 8}},
                      {"role": "decode", "replica": {"tensor_parallel": tensor_parallel}}],
        },
    )  # fmt: skip
    kind = resolve(setup)[1]
    assert kv_bytes_per_token(catalog.model(model), kind) == pytest.approx(expected, rel=1e-6)


def test_a_transfer_is_a_slice_with_an_arrow() -> None:
    done = run(apart(), requests=requests_of([0.0], [100], [3]))
    named, moved, leaves, lands = transfer_events(done, 0.0, 10.0, 100)
    assert named["args"]["name"] == "KV transfers 1"
    assert (moved["name"], moved["pid"], moved["ts"], moved["dur"]) == ("KV to replica 1", 0, 1e6, 2.5e6)
    assert moved["args"]["MB"] == pytest.approx(100 * KV / 1e6, abs=1e-3)
    assert (leaves["ph"], leaves["pid"], lands["ph"], lands["pid"], lands["ts"]) == ("s", 0, "f", 1, 3.5e6)
    assert transfer_events(done, 5.0, 10.0, 100) == []


MOONCAKE: dict[tuple[str, float], dict[int, float]] = {
    ("qwen3-235b-a22b", 4 * 50.0): {128: 2.07, 32768: 76.78},
    ("qwen3-8b", 8 * 25.0): {
        128: 0.54, 256: 0.61, 512: 0.92, 1024: 1.50, 2048: 2.51, 4096: 4.75, 8192: 8.84, 16384: 16.43, 32768: 31.65,
    },
}  # fmt: skip
"""Published by Mooncake: milliseconds by prompt tokens of one request alone, TP 8 on both sides, over links of so many
GB/s (four 400 GbE NICs; eight of 200)."""
CHOSEN = {"qwen3-235b-a22b": (0.8, 1.7e-3), "qwen3-8b": (0.775, 0.42e-3)}
"""Share of the nominal bandwidth and seconds of a transfer, by the first and the last row of each table."""


@pytest.mark.parametrize(("model", "link_gb_s"), MOONCAKE)
def test_transfer_times_published_by_mooncake(model: str, link_gb_s: float) -> None:
    """Within 15 %; the rows between the ends were not looked at for the two numbers."""
    share, latency_s = CHOSEN[model]
    setup = build(
        Scenario,
        {
            "model": model,
            "device": "h200",
            "timing": TABLE,
            "pools": [{"role": role, "replica": {"tensor_parallel": 8}} for role in ("prefill", "decode")],
            "disaggregation": {"bandwidth_gb_s": share * link_gb_s / 8, "latency_s": latency_s},
        },
    )
    measured = MOONCAKE[model, link_gb_s]
    assert kv_bytes_per_token(catalog.model("qwen3-235b-a22b"), resolve(setup)[1]) * 32768 == pytest.approx(
        12.62e9, rel=0.01
    )
    alone = requests_of(np.arange(len(measured)) * 100.0, list(measured), [2] * len(measured))
    q = run(setup, requests=alone).cluster.requests
    assert (q.landed_s - q.moving_s) * 1e3 == pytest.approx(list(measured.values()), rel=0.15)


def test_links_of_a_node() -> None:
    kind = resolve(build(Scenario, {"model": "llama-3-70b", "device": "h100", "replica": {"tensor_parallel": 4}}))[0]
    network = link_bytes_s(DisaggregationConfig(), kind)
    assert network == 4 * catalog.default_node(kind.device).network.bandwidth_bytes_s
    assert link_bytes_s(DisaggregationConfig(link="nvlink"), kind) > network
    assert link_bytes_s(DisaggregationConfig(bandwidth_gb_s=10), kind) == 4e10


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pools": [{"role": "prefill"}]}, "none can decode"),
        ({"pools": [{"role": "decode"}]}, "none can prefill"),
        ({"disaggregation": {"hop_s": 1.0}}, "without roles"),
        ({"pools": [{"role": "prefill"}, {"role": "decode"}], "disaggregation": {"decider": "sometimes"}}, "sometimes"),
        ({"pools": [{"role": "prefill"}, {"role": "decode"}],
          "disaggregation": {"decider": {"name": "always", "options": {"tokens": 1}}}}, "tokens"),
        ({"pools": [{"role": "prefill"}, {"role": "decode"}], "batching": {"policy": "sglang"},
          "disaggregation": {"first_token": "decode"}}, "decodes by vllm_v1 alone"),
        ({"pools": [{"role": "prefil"}, {"role": "decode"}]}, "role"),
    ],
)  # fmt: skip
def test_mistakes_are_told(changes: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, GnomonError), match=said):
        run(scenario(**changes))


def test_lightllm_gives_up_requests_whose_kv_came_from_elsewhere_where_memory_runs_out() -> None:
    """It plans memory when it admits; what moves in was not planned for, and hold() was asked for blocks that were not
    there."""
    pools = [{"role": "decode", "batching": {"policy": "lightllm"}}, {}]
    done = run(scenario(pools=pools, replica={"num_kv_blocks": 300}, workload={"rate": 30.0}))
    check_invariants(done)
    assert done.cluster.replicas.num_preemptions[0] > 0
