"""KV beyond the GPU: what is found where, when it is loaded, what is evicted, and that nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnomon.core.errors import GnomonError
from gnomon.report.serving.trace import transfer_events
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.features.tiers import HOST, PEERS, REMOTE, SSD
from gnomon.serving.results.metrics import summarize
from gnomon.serving.run.simulate import Run, run
from gnomon.timing.host import HostConfig
from gnomon.workload import Requests
from serving_kit import scenario

BLOCK = 16 * 2 * 32 * 32 * 128 * 2 / 1e9
"""GB of a block of Llama-2-7B."""
TABLE = {"source": "table", "table": {"per_token": 0.01}}


def prompts(*keys: list[int], gap_s: float = 100.0) -> Requests:
    """Requests one after another whose prompts consist of these blocks, and one token more."""
    count = len(keys)
    offsets = np.cumsum([0, *(len(one) for one in keys)])
    return Requests(
        arrival_s=np.arange(count) * gap_s,
        prompt_tokens=np.array([16 * len(one) + 1 for one in keys], np.int32),
        output_tokens=np.full(count, 1, np.int32),
        session=np.full(count, -1, np.int32),
        priority=np.zeros(count, np.int8),
        prefix_offsets=offsets.astype(np.int64),
        prefix_hashes=np.array([key for one in keys for key in one], np.int64),
        prefix_block_tokens=16,
    )


def tiered(blocks: int = 5, replicas: int = 1, **tiers: Any) -> Any:
    """A replica whose GPU holds few blocks; a block takes a tenth of a second to load from any tier."""
    full = {
        name: value if name == "load" else {"bandwidth_gb_s": 10 * BLOCK, "latency_s": 0.0, **value}
        for name, value in tiers.items()
    }
    for name, value in full.items():
        if name in ("host", "ssd", "remote"):
            value.setdefault("size_gb", 100 * BLOCK)
    return scenario(
        timing=TABLE, replica={"num_kv_blocks": blocks}, num_replicas=replicas, router="round_robin", kv_tiers=full
    )


def loaded(done: Run) -> list[int]:
    assert done.tiers is not None
    return [int(x) // 16 for x in done.tiers.loaded_tokens.sum(axis=0)]


A, B = [1, 2, 3, 4], [5, 6, 7, 8]


def ttft(done: Run) -> list[float]:
    return [round(float(x), 6) for x in done.cluster.requests.first_token_s - done.cluster.requests.arrival_s]


def test_what_the_gpu_has_evicted_comes_from_the_host() -> None:
    """65 tokens take 0.65 s; the third request finds A on the host and loads it in 0.4 s, leaving one token."""
    done = run(tiered(host={}), requests=prompts(A, B, A))
    assert ttft(done) == [0.65, 0.65, 0.41]
    assert loaded(done)[HOST] == 4
    hits = summarize(done).tiers
    assert hits is not None and hits.host == pytest.approx(64 / 195) and hits.gpu == 0.0


def test_what_is_still_on_the_gpu_is_not_loaded() -> None:
    done = run(tiered(blocks=12, host={}), requests=prompts(A, B, A))
    assert ttft(done) == [0.65, 0.65, 0.01]
    assert loaded(done)[HOST] == 0


def test_only_the_missing_end_is_loaded() -> None:
    """Six blocks: B leaves the first of A, whose other three are loaded in 0.3 s."""
    done = run(tiered(blocks=6, host={}), requests=prompts(A, B, A))
    assert loaded(done)[HOST] == 3 and ttft(done)[2] == 0.31
    hits = summarize(done).tiers
    assert hits is not None and hits.gpu == pytest.approx(16 / 195)


def test_computing_is_preferred_where_it_is_sooner() -> None:
    slow = {"bandwidth_gb_s": BLOCK}
    done = run(tiered(host=slow), requests=prompts(A, B, A))
    assert ttft(done)[2] == 0.65 and loaded(done) == [0, 0, 0, 0, 4]
    done = run(tiered(host=slow, load="always"), requests=prompts(A, B, A))
    assert ttft(done)[2] == 4.01 and loaded(done)[HOST] == 4


def test_a_full_tier_evicts_the_oldest_into_the_next() -> None:
    small = {"size_gb": 4.5 * BLOCK}
    done = run(tiered(host=small, ssd={"write": "back"}), requests=prompts(A, B, A, B))
    assert loaded(done)[:2] == [0, 8]
    done = run(tiered(host=small), requests=prompts(A, B, A, B))
    assert loaded(done)[HOST] == 0, "nothing is below it"
    done = run(tiered(host=small, ssd={"write": "through"}), requests=prompts(A, B, A))
    assert loaded(done)[SSD] == 4


@pytest.mark.parametrize(("eviction", "found"), [("lru", 4), ("fifo", 0)])
def test_what_was_used_is_evicted_later(eviction: str, found: int) -> None:
    """Two prompts fit the host. A is used again before C comes: with LRU B goes, first in first out A does."""
    host = {"size_gb": 8.5 * BLOCK, "eviction": eviction}
    done = run(tiered(host=host), requests=prompts(A, B, A, [9, 10, 11, 12], A))
    assert loaded(done)[HOST] - 4 == found


def test_the_remote_store_is_shared() -> None:
    done = run(tiered(replicas=2, remote={}), requests=prompts(A, A))
    assert list(done.cluster.requests.replica) == [0, 1]
    assert loaded(done)[REMOTE] == 4 and ttft(done)[1] == 0.41


def test_peers_give_what_their_gpus_hold() -> None:
    done = run(tiered(replicas=2, peers={}), requests=prompts(A, A))
    assert loaded(done)[PEERS] == 4 and ttft(done)[1] == 0.41


def test_loads_over_one_link_share_it() -> None:
    """Three replicas without A ask the store for it at once: each gets a third, and has A after 1.2 s."""
    wanted = prompts(A, A, A, A)
    wanted.arrival_s[1:] = 100.0
    done = run(tiered(replicas=4, remote={}, load="always"), requests=wanted)
    assert ttft(done)[1:] == [1.21, 1.21, 1.21]


@pytest.mark.parametrize(("later_s", "first_s", "second_s"), [(0.2, 0.61, 0.61), (0.1, 0.41, 0.65), (0.5, 0.41, 0.41)])
def test_a_second_load_slows_the_first_and_is_foretold(later_s: float, first_s: float, second_s: float) -> None:
    """0.2 s later half of the first is left: the two share until 0.6 s, then the second is alone until 0.8 s. Any
    sooner, the second would take longer than the 0.65 s of computing."""
    wanted = prompts(A, A, A)
    wanted.arrival_s[1:] = [100.0, 100.0 + later_s]
    done = run(tiered(replicas=3, remote={}), requests=wanted)
    assert ttft(done)[1:] == [first_s, second_s]
    assert loaded(done) == [0, 0, 8 if second_s != 0.65 else 4, 0, 0 if second_s != 0.65 else 4]


@pytest.mark.parametrize(("tier", "name"), [("host", "host memory"), ("ssd", "SSD"), ("remote", "shared store")])
def test_a_load_is_a_slice_that_names_its_tier(tier: str, name: str) -> None:
    done = run(tiered(**{tier: {}}), requests=prompts(A, B, A))
    named, load = transfer_events(done, 0.0, 1000.0, 100)
    assert named["args"]["name"] == "KV loads 1"
    assert (load["name"], load["pid"], load["ts"], load["dur"]) == (f"KV from {name}", 0, 200e6, 0.4e6)


def test_a_tier_that_is_down_is_computed_around() -> None:
    done = run(tiered(host={"down_s": [150.0, 250.0]}), requests=prompts(A, B, A, B))
    assert ttft(done)[2] == 0.65
    assert done.cluster.requests.status.tolist() == [FINISHED] * 4


@pytest.mark.parametrize("policy", ["vllm_v1", "sglang"])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_under_load(policy: str, seed: int) -> None:
    setup = scenario(
        replica={"num_kv_blocks": 60},
        num_replicas=2,
        seed=seed,
        batching={"policy": policy},
        kv_tiers={
            "host": {"size_gb": 50 * BLOCK, "bandwidth_gb_s": 20, "latency_s": 0.001},
            "ssd": {"size_gb": 200 * BLOCK, "bandwidth_gb_s": 5, "write": "back", "down_s": [1.0, 2.0]},
            "remote": {"size_gb": 1000 * BLOCK, "bandwidth_gb_s": 10},
            "peers": {"bandwidth_gb_s": 10},
            "load": "always",
        },
        workload={
            "num_requests": 150,
            "lengths": {"distribution": "uniform", "prompt": [10, 60], "output": [1, 40]},
            "sessions": {"turns": 4, "shared_prefix_tokens": 64, "num_shared_prefixes": 5},
        },
    )
    done = run(setup)
    hits = summarize(done).tiers
    assert hits is not None and sum(loaded(done)[:4]) > 0
    total = hits.gpu + hits.host + hits.ssd + hits.remote + hits.peers + hits.computed
    assert total == pytest.approx(1.0, abs=1e-6)
    assert done.tiers is not None and not done.tiers.num_loading.any()
    q = done.cluster.requests
    assert (q.scheduled_s >= q.loaded_s - 1e-9).all()


def test_computing_takes_the_host_its_time_too() -> None:
    """64 tokens take 0.64 s on the GPU and the host a second more: loading them in a second is sooner."""
    slow = {"bandwidth_gb_s": 4 * BLOCK, "latency_s": 0.0}
    setup = tiered(host=slow)
    assert loaded(run(setup, requests=prompts(A, B, A)))[HOST] == 0
    hosted = setup.model_copy(
        update={"timing": setup.timing.model_copy(update={"host": HostConfig(per_iteration_s=1.0)})}
    )
    assert loaded(run(hosted, requests=prompts(A, B, A)))[HOST] == 4


@pytest.mark.parametrize(
    ("own", "said"),
    [({"batching": {"block_size": 32}}, "block sizes differ"), ({"timing": {"kv_dtype": "fp8"}}, "data types of KV")],
)
def test_pools_that_cannot_read_each_others_blocks_share_no_store(own: dict[str, Any], said: str) -> None:
    setup = scenario(
        pools=[{"num_replicas": 1}, {"num_replicas": 1, **own}],
        kv_tiers={"remote": {"size_gb": 1.0, "bandwidth_gb_s": 10}},
    )
    with pytest.raises(GnomonError, match=said):
        run(setup)


def test_mistakes_are_told() -> None:
    with pytest.raises(GnomonError, match="size_gb"):
        scenario(kv_tiers={"host": {"bandwidth_gb_s": 1}})
