"""Requests that belong together: conversations and agents, whose prompts repeat what was said before, the block hashes
that say so, and the LoRA adapters that they ask for.

A session of an agent is a graph of calls. Its first call arrives by itself; every other one is sent when the calls it
waits for have ended and its tool is done. A call's prompt is the shared prefix, all that was said in its conversation
so far (prompts, answers, what tools returned), and the drawn prompt: what the last tool returned. A sub-agent is a
conversation of its own that starts after the session's first call; the second call waits for all of them.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Ints
from gnomon.core.errors import ConfigError
from gnomon.core.streams import stream
from gnomon.workload.config import AdaptersConfig, AgentsConfig, SessionsConfig
from gnomon.workload.lengths import tokens
from gnomon.workload.requests import CHUNK, Requests


def with_sessions(requests: Requests, config: SessionsConfig, seed: int) -> Requests:
    """Deal the requests out to conversations, in order of arrival.

    Every request goes to one of `num_active` open conversations at random. Its prompt becomes the shared prefix, all
    prompts and answers of the conversation so far, and the drawn prompt. Full blocks of prompt and answer are hashed.
    """
    count = len(requests)
    slot = stream(seed, "sessions").integers(0, config.num_active, count)
    turn_of_slot = sum_before(slot, np.ones(len(slot), dtype=np.int64))
    return in_conversations(requests, turn_of_slot // config.turns * config.num_active + slot, config)


def in_conversations(requests: Requests, session: NDArray[np.int64], config: SessionsConfig) -> Requests:
    """The requests as turns of these conversations, each behind all that was said before."""
    turn_tokens = requests.total_tokens.astype(np.int64)
    prompt = tokens(config.shared_prefix_tokens + sum_before(session, turn_tokens) + requests.prompt_tokens)
    offsets, hashes = hash_blocks(session, tokens(prompt.astype(np.int64) + requests.output_tokens), config)
    return replace(
        requests, prompt_tokens=prompt, session=session.astype(np.int32), prefix_offsets=offsets, prefix_hashes=hashes,
        prefix_block_tokens=config.block_tokens,
    )  # fmt: skip


def sum_before(group: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For every entry, the sum of `values` over the earlier entries of its group."""
    order = np.argsort(group, kind="stable")
    running = np.cumsum(values[order]) - values[order]
    starts = np.flatnonzero(np.diff(group[order], prepend=group[order][:1] - 1))
    sizes = np.diff(starts, append=len(group))
    before = np.empty(len(group), dtype=np.int64)
    before[order] = running - np.repeat(running[starts], sizes)
    return before


def hash_blocks(
    session: NDArray[np.int64], total: NDArray[np.int32], config: SessionsConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hashes of the full blocks of requests: by shared prefix where a block lies inside it, else by conversation."""
    counts = (total // config.block_tokens).astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    hashes = np.empty(offsets[-1], dtype=np.int64)
    for first in range(0, len(total), CHUNK):
        some = slice(first, first + CHUNK)
        into = slice(offsets[first], offsets[min(first + CHUNK, len(total))])
        block = np.arange(into.stop - into.start) - np.repeat(offsets[:-1][some] - into.start, counts[some])
        owner = np.repeat(session[some], counts[some])
        shared = block < config.shared_prefix_tokens // config.block_tokens
        # Negative owners: the shared prefixes, apart from all conversations.
        owner[shared] = -1 - owner[shared] % config.num_shared_prefixes
        hashes[into] = mixed(owner, block)
    return offsets, hashes


def mixed(owner: NDArray[np.int64], block: NDArray[np.int64]) -> NDArray[np.int64]:
    """One non-negative number per (owner, block): SplitMix64's finaliser (Steele et al., OOPSLA 2014)."""
    x = owner.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = x + block.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def with_adapters(requests: Requests, config: AdaptersConfig, seed: int) -> Requests:
    """Deal adapters out by their popularity; all requests of one conversation have the same."""
    draws = stream(seed, "adapters")
    popularity = np.arange(1, config.count + 1, dtype=np.float64) ** -config.zipf
    edges = np.cumsum(popularity) / popularity.sum()
    sessions = int(requests.session.max()) + 1
    of_session = _drawn(draws.random((sessions, 2)), edges, config.share)
    of_request = _drawn(draws.random((len(requests), 2)), edges, config.share)
    inside = requests.session >= 0
    adapter = np.where(inside, of_session[requests.session] if sessions else -1, of_request).astype(np.int32)
    return apart_by_adapter(replace(requests, adapter=adapter))


def _drawn(draws: np.ndarray, edges: np.ndarray, share: float) -> np.ndarray:
    chosen = np.minimum(np.searchsorted(edges, draws[:, 1], side="right"), edges.size - 1)
    return np.where(draws[:, 0] < share, chosen, -1)


def apart_by_adapter(requests: Requests) -> Requests:
    """KV of equal prompts differs from adapter to adapter: so do the hashes."""
    if not len(requests.prefix_hashes):
        return requests
    adapter = np.repeat(requests.adapter.astype(np.int64), np.diff(requests.prefix_offsets))
    hashes = np.where(adapter >= 0, mixed(requests.prefix_hashes, adapter + 1), requests.prefix_hashes)
    return replace(requests, prefix_hashes=hashes)


def num_sessions(config: AgentsConfig, num_requests: int) -> int:
    """Whole sessions among so many calls."""
    count = num_requests // config.calls_per_session
    if not count:
        what = f"a session has {config.calls_per_session} calls, the workload only {num_requests}."
        raise ConfigError(what, where="workload.num_requests")
    return count


def with_agents(requests: Requests, config: AgentsConfig, seed: int) -> Requests:
    """Deal the requests out to sessions: first the calls that start one, in order of arrival, then all others."""
    per_session = config.calls_per_session
    count = len(requests) // per_session
    call, session = np.divmod(np.arange(len(requests)), count)
    agent = np.where(call < config.calls, 0, 1 + (call - config.calls) // config.sub_calls)
    shared = SessionsConfig(shared_prefix_tokens=config.shared_prefix_tokens, block_tokens=config.block_tokens)
    first, parents = _parents(config, count)
    note = f"{len(requests):,} calls: {count:,} whole sessions of {per_session}."
    pause_s = stream(seed, "tools").exponential(1.0, len(requests)) * config.tool_s
    return replace(
        in_conversations(requests, agent * count + session, shared), session=session.astype(np.int32),
        think_s=np.where(call == 0, 0.0, pause_s), parent_offsets=first, parents=parents, notes=(*requests.notes, note),
    )  # fmt: skip


def _parents(config: AgentsConfig, sessions: int) -> tuple[NDArray[np.int64], Ints]:
    """The calls that each call waits for, as offsets and numbers."""
    lists: list[list[int]] = []
    last_of_subs = [config.calls + (j + 1) * config.sub_calls - 1 for j in range(config.sub_agents)]
    for call in range(config.calls):
        lists.append([] if call == 0 else [0, *last_of_subs] if call == 1 else [call - 1])
    for _ in range(config.sub_agents):
        lists += [[0], *([len(lists) + k] for k in range(config.sub_calls - 1))]
    counts = np.repeat([len(one) for one in lists], sessions)
    numbers = [np.array(one, np.int64)[None, :] * sessions + np.arange(sessions)[:, None] for one in lists]
    return np.concatenate(([0], np.cumsum(counts))), np.concatenate([one.ravel() for one in numbers])
