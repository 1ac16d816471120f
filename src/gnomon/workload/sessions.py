"""Conversations: prompts that repeat what was said before, and the block hashes that say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gnomon.core.streams import stream
from gnomon.workload.config import SessionsConfig
from gnomon.workload.lengths import tokens
from gnomon.workload.requests import Requests

# Requests hashed at a time: their blocks fit the processor's cache.
CHUNK = 512


def with_sessions(requests: Requests, config: SessionsConfig, seed: int) -> Requests:
    """Deal the requests out to conversations, in order of arrival.

    Every request goes to one of `num_active` open conversations at random. Its prompt becomes the shared prefix, all
    prompts and answers of the conversation so far, and the drawn prompt. Full blocks of prompt and answer are hashed.
    """
    count = len(requests)
    slot = stream(seed, "sessions").integers(0, config.num_active, count)
    turn_of_slot = _position_within(slot)
    session = turn_of_slot // config.turns * config.num_active + slot
    said = requests.total_tokens.astype(np.int64)
    prompt = tokens(config.shared_prefix_tokens + sum_before(session, said) + requests.prompt_tokens)
    offsets, hashes = hash_blocks(session, tokens(prompt.astype(np.int64) + requests.output_tokens), config)
    return replace(
        requests, prompt_tokens=prompt, session=session.astype(np.int32), prefix_offsets=offsets, prefix_hashes=hashes,
        prefix_block_tokens=config.block_tokens,
    )  # fmt: skip


def _position_within(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many earlier entries are of the same group."""
    return sum_before(group, np.ones(len(group), dtype=np.int64))


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
    x = owner.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + block.astype(np.uint64) * np.uint64(
        0xD1B54A32D192ED03
    )
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
