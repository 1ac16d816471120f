"""Agents: sessions of model calls with tools in between, and sub-agents that the session waits for.

A session is a graph of calls. Its first call arrives by itself; every other one is sent when the calls it waits for
have ended and its tool is done. A call's prompt is the shared prefix, all that was said in its conversation so far
(prompts, answers, what tools returned), and the drawn prompt: what the last tool returned. A sub-agent is a
conversation of its own that starts after the session's first call; the second call waits for all of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gnomon.core.arrays import Ints
from gnomon.core.errors import ConfigError
from gnomon.core.streams import stream
from gnomon.workload.config import AgentsConfig, SessionsConfig
from gnomon.workload.lengths import tokens
from gnomon.workload.requests import Requests
from gnomon.workload.sessions import hash_blocks, sum_before


def num_sessions(config: AgentsConfig, num_requests: int) -> int:
    """Whole sessions among so many calls."""
    count = num_requests // config.calls_per_session
    if not count:
        raise ConfigError(
            f"a session has {config.calls_per_session} calls, the workload only {num_requests}.",
            where="workload.num_requests",
        )
    return count


def with_agents(requests: Requests, config: AgentsConfig, seed: int) -> Requests:
    """Deal the requests out to sessions: first the calls that start one, in order of arrival, then all others."""
    per_session = config.calls_per_session
    count = len(requests) // per_session
    call, session = np.divmod(np.arange(len(requests)), count)
    agent = np.where(call < config.calls, 0, 1 + (call - config.calls) // config.sub_calls)
    conversation = agent * count + session
    said = requests.total_tokens.astype(np.int64)
    prompt = tokens(config.shared_prefix_tokens + sum_before(conversation, said) + requests.prompt_tokens)
    shared = SessionsConfig(shared_prefix_tokens=config.shared_prefix_tokens, block_tokens=config.block_tokens)
    offsets, hashes = hash_blocks(conversation, tokens(prompt.astype(np.int64) + requests.output_tokens), shared)
    first, parents = _parents(config, count)
    note = f"{len(requests):,} calls: {count:,} whole sessions of {per_session}."
    pause_s = stream(seed, "tools").exponential(1.0, len(requests)) * config.tool_s
    return replace(
        requests, prompt_tokens=prompt, session=session.astype(np.int32), prefix_offsets=offsets, prefix_hashes=hashes,
        prefix_block_tokens=config.block_tokens, think_s=np.where(call == 0, 0.0, pause_s), parent_offsets=first,
        parents=parents, notes=(*requests.notes, note),
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
