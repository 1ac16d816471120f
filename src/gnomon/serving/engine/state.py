"""What the engine works on: requests, replicas and their in-flight batches, as plain arrays.

Everything here is a NumPy record array, so that `requests[r].processed` reads the same in compiled code and in a
debugger. A policy sees one `Replica`: a bundle of views on those arrays. Token counts follow one convention:

* `processed` counts prompt tokens computed plus tokens produced. It jumps by one extra when prefill completes,
  because that iteration also produces the first token. Hence `processed > prefill_tokens` means "decoding".
* `prefill_tokens` is what must be prefilled before decoding: the prompt, or after a pre-emption everything
  produced so far. `prompt_tokens` and `output_tokens` never change.
"""

from typing import Any, NamedTuple

import numpy as np

from gnomon.core.arrays import Floats, Ints
from gnomon.jit import borrow, inlined, macro

NONE = -1
NEIGHBOURS = 32  # replicas that share a `Cluster.soonest_s`
LOOKS = 8  # replicas that a router looks at in the time of an iteration

# Entries of `Cluster.control`.
BUDGET, FAULT, FAULT_REPLICA, FAULT_REQUEST, NUM_PARKED, NUM_SHED = range(6)
NO_LIMIT = 1 << 62

# Life of a request.
NOT_ARRIVED, WAITING, RUNNING, IN_FLIGHT, FINISHED, REJECTED, SHED, PARKED, MOVING, ABANDONED = range(10)
NUM_STATUS = 10
ENDED = (FINISHED, REJECTED, SHED, ABANDONED)  # abandoned by clients that gave up, as is said after the run

# Columns of `Cluster.classes`: what is known of a class of users.
WEIGHT, PRIORITY, TTFT_S, TPOT_S = range(4)  # The last two: its SLO, inf where none is given.
# Columns of `Cluster.service`: a replica's account of one class.
QUEUED, PROMPT_TOKENS, OUTPUT_TOKENS, CREDIT, WAS_QUEUED = range(5)
NUM_SERVICE = 5

# Whether a batch formed ahead computes a token of those that have just ended: never, always, or where others decode.
SURPLUS_NEVER, SURPLUS_ALWAYS, SURPLUS_AMONG_DECODES = range(3)
OVERLAPS_NEVER, OVERLAPS, LAUNCHES_FIRST = range(3)

# It decodes, and goes to another replica with the token that is being computed (`held_counts`).
LEAVES = 2

# Who gives a request's first token where prefill and decode are apart: the decode replica, which computes the last
# prompt token once more; the prefill replica, known once the KV has moved; or the prefill replica, at once.
FROM_DECODE, FROM_TRANSFER, FROM_PREFILL = range(3)

# Counts and ids are kept in 32 bits, because there are many requests; compiled code reads them as 64 bits
# (`gnomon.jit.borrowed_array.Wide`), plain Python does not, and widens a number before it multiplies it.
REQUEST = np.dtype(
    [
        # What every iteration looks at, in one cache line.
        ("processed", np.int32),
        ("prefill_tokens", np.int32),
        ("total_tokens", np.int32),  # prompt + output
        ("num_blocks", np.int32),  # KV blocks held
        ("last_token_s", np.float64),
        ("first_token_s", np.float64),
        ("joined", np.int32),  # the step at which it began to step with the other decodes
        ("admission", np.int32),  # position in the replica's order of admissions
        ("status", np.int8),
        ("never_fits", np.int8),  # all memory is not enough to prefill it again: it is rejected
        ("user_class", np.int8),
        # While its KV moves: whether it counts among those that run where it was prefilled; before, `LEAVES`.
        ("held_counts", np.int8),
        ("next_waiting", np.int32),  # the one behind it in the waiting queue, among those reported, or in the news
        ("arrival_s", np.float64),
        ("replica", np.int32),
        ("table", np.int32),  # row of the replica's block tables (prefix caching)
        # The rest.
        ("prompt_tokens", np.int32),
        ("output_tokens", np.int32),
        ("scheduled_s", np.float64),  # first time in a batch
        ("finished_s", np.float64),
        ("preempted_at_s", np.float64),
        ("preempted_s", np.float64),  # total time between pre-emptions and being scheduled again
        ("keyed_blocks", np.int32),  # leading blocks that others may find by their key
        ("cohort", np.int32),  # the batch it was admitted with (faster_transformer)
        ("num_restarts", np.int32),  # how often it lost what it had computed: pre-empted, or with a replica that failed
        ("num_preemptions", np.int32),
        ("cached_tokens", np.int32),  # prompt tokens found in the prefix cache at first admission
        ("foreseen", np.int32),  # while it waits: tokens that were cached when it came, which are no work left
        ("num_tries", np.int32),  # how often it came to the router
        ("charged", np.int32),  # output tokens that are on the account of its class already
        ("draw", np.int32),  # state of the request's own random sequence (speculative decoding)
        ("session", np.int32),
        ("adapter", np.int32),  # the LoRA adapter that it runs with, or NONE
        ("next_answered", np.int32),  # among those whose first token the last batch gave
        ("prefix_first", np.int64),  # where its prefix hashes start, and how many there are
        ("prefix_count", np.int32),
        # Of a request that prefills in one replica and decodes in another.
        ("prefill_replica", np.int32),  # where it is prefilled, or was
        ("decode_replica", np.int32),  # where it goes after that
        ("held_blocks", np.int32),  # blocks that the former holds until its KV has moved
        ("held_table", np.int32),
        ("loaded_from", np.int32),  # of one that waits for KV from another tier: the first block that is loaded
        ("prefilled_s", np.float64),
        ("moving_s", np.float64),  # there is room for it, and its KV starts to move
        ("landed_s", np.float64),  # its KV is there
        ("loaded_s", np.float64),  # KV from another tier is all there
        # The front end.
        ("front_s", np.float64),  # in the front end, before it arrives here
        ("first_reply_s", np.float64),  # from its first token, and its last, to the client
        ("last_reply_s", np.float64),
    ],
    align=True,
)

# A replica's record: what it is, ...
_LIMITS = [
    ("id", np.int64),
    ("row", np.int64),  # its first row (stage 0) in the iteration tables
    ("policy", np.int64),  # which of the cluster's policies
    ("checked", np.int64),  # the policy is a user's own: every batch it forms is checked
    ("num_stages", np.int64),
    ("group_first", np.int64),  # data-parallel ranks that step together are one group
    ("group_size", np.int64),
    ("block_size", np.int64),
    ("num_blocks", np.int64),
    ("watermark_blocks", np.int64),
    ("max_running", np.int64),
    ("max_in_batch", np.int64),
    ("max_batch_tokens", np.int64),
    ("max_request_tokens", np.int64),
    ("max_chunk_tokens", np.int64),  # of one prompt in one iteration
    ("longest_prompt", np.int64),  # that it can compute: those beyond are rejected, and others wait behind them
    ("prefix_cache", np.int64),
    ("blocks_per_hash", np.int64),  # blocks that one prefix hash of the workload covers
    ("num_speculative", np.int64),
    # A batch is formed while the one before it runs (`gnomon.serving.features.overlap`); LAUNCHES_FIRST: the results of
    # that one are taken in when it is launched.
    ("overlaps", np.int64),
    ("surplus", np.int64),  # and holds one token too many of those that end in that one: SURPLUS_...
    ("base_reply_s", np.float64),  # from a token to the client, before any message is written
    ("message_s", np.float64),  # to write one message
    ("stream_interval", np.int64),  # tokens in a message
    ("first_token_at", np.int64),  # who gives the first token: FROM_DECODE, FROM_TRANSFER or FROM_PREFILL
    ("max_moving", np.int64),
    ("reports", np.int64),  # whether requests that end here are listed for the loop outside
]
# ... how it is now: all of it is as new when the replica dies (`engine.allocation`), ...
_STATE = [
    ("forms_s", np.float64),  # when the batch after the one in flight is formed
    ("num_answered", np.int64),  # who had a first token in the batch that has ended; a list, where LAUNCHES_FIRST
    ("first_answered", np.int64),
    ("num_deferred", np.int64),  # what it hears of after that; a list
    ("first_deferred", np.int64),
    ("last_deferred", np.int64),
    ("frozen", np.int64),  # it has died or is off: no batch is formed, and the one in flight never ends
    ("slowdown", np.float64),  # how much longer iterations take, as a share: 0 for not at all
    ("straggling", np.float64),  # of that, because it is a straggler
    ("adapting", np.float64),  # and because of the adapters in use
    ("now_s", np.float64),
    ("free_blocks", np.int64),
    ("tracks_blocks", np.int64),  # blocks have an identity (`engine.prefix_cache`); else they are counted
    ("formed_waiting", np.int64),  # who waited when the last batch was formed
    ("reported_waiting", np.int64),  # who waited and what was free at the end of its last batch, as its metrics say
    ("reported_free", np.int64),
    ("num_waiting", np.int64),
    ("first_waiting", np.int64),
    # 1 + a waiting request that there are too few blocks for, while none has come back or been keyed since; or 0.
    ("lacks_blocks", np.int64),
    ("lacks_with_budget", np.int64),  # tokens that it might have computed then
    ("last_waiting", np.int64),
    ("num_running", np.int64),  # entries of `running`: hold blocks, are not in flight
    ("num_holding", np.int64),  # requests that hold blocks, in flight or not
    ("num_admitted", np.int64),
    ("num_in_flight", np.int64),  # batches
    ("oldest", np.int64),  # ring position of the oldest in-flight batch
    ("batch_size", np.int64),  # of the batch being formed
    # The policy would choose the same decodes again; 2: and do nothing else, as long as nothing waits.
    ("steppable", np.int64),
    ("answered", np.int64),  # the policy returned, and did not fail
    ("stalled", np.int64),  # iterations since a token was produced or a request came or went
    ("stall_limit", np.int64),  # more of them are a sign that it runs for ever
    # Decodes that step together.
    ("num_grouped", np.int64),
    ("steps", np.int64),
    ("in_step", np.int64),  # they are part of the batch being formed or in flight
    ("step_kv", np.int64),  # sum and maximum of their lengths
    ("step_kv_max", np.int64),
    ("next_finish", np.int64),  # the step after which the first of them is done
    ("last_step_s", np.float64),
    ("num_off_beat", np.int64),  # those whose last token came at another moment
    ("last_admitted_grouped", np.int64),  # at least the largest `admission` among them
    ("num_loose", np.int64),  # blocks taken for them that nobody's record counts yet
    # The rest.
    ("writer_free_s", np.float64),  # when all messages so far are written
    ("reply_s", np.float64),  # from the tokens of the batch that ended last to the client, in the mean
    ("woken", np.int64),  # the last instant it was woken at, by the number of arrivals so far
    ("next_end_s", np.float64),  # end of the oldest in-flight batch, inf if none
    ("waiting_tokens", np.int64),  # prefill tokens of the waiting requests
    ("prefill_left", np.int64),  # prefill tokens to compute, also of those that wait, but for what they will find
    ("decode_left", np.int64),  # output tokens not produced yet, waiting ones included
    # Side by side, because routers look at both of all replicas.
    ("num_outstanding", np.int64),  # waiting + running + in flight
    ("num_coming", np.int64),  # to decode here, and their KV is not there yet
    # Requests that prefill in one replica and decode in another.
    ("num_held", np.int64),  # prefilled here, and their blocks are held until their KV has moved
    ("num_moving", np.int64),  # of those, the ones that do not count as running: at most `max_moving`
    ("num_landing", np.int64),  # of those that come, the ones whose KV is on its way into blocks held for them
    ("num_ready", np.int64),  # and those that are prefilled and wait for blocks; a list, oldest first
    ("first_ready", np.int64),
    ("last_ready", np.int64),
    # Requests that ended here, for the loop outside; a list, oldest first.
    ("num_reported", np.int64),
    ("first_reported", np.int64),
    ("last_reported", np.int64),
]
# ... and its accounts, which add up whatever becomes of it.
_COUNTERS = [
    ("num_taken", np.int64),  # requests that came here so far
    ("num_produced", np.int64),  # output tokens so far
    ("num_iterations", np.int64),
    ("num_finished", np.int64),
    ("num_rejected", np.int64),
    ("num_preemptions", np.int64),
    ("num_beyond_measured", np.int64),
    ("busy_s", np.float64),  # of stage 0
    ("tokens_computed", np.int64),
    ("flops", np.float64),
    ("bytes", np.float64),
    ("kv_block_s", np.float64),  # integral of blocks in use over busy time
    ("peak_blocks", np.int64),
    ("cache_queries", np.int64),  # tokens looked up in the prefix cache, and found
    ("cache_hits", np.int64),
]
REPLICA = np.dtype([*_LIMITS, *_STATE, *_COUNTERS], align=True)
LIMITS, STATE = (tuple(name for name, _ in some) for some in (_LIMITS, _STATE))

# One in-flight batch of a replica.
FLIGHT = np.dtype(
    [
        ("number", np.int64),  # of the replica's batches, from 1
        ("num_requests", np.int64),
        ("num_grouped", np.int64),  # of them, those that step together: the first entries, not written out
        ("start_s", np.float64),
        ("end_s", np.float64),
        ("tokens", np.int64),
        ("prefill_tokens", np.int64),
        ("decodes", np.int64),
        ("decode_kv", np.float64),
        ("gpu_s", np.float64),  # of all its stages, as the tables say: without the host, or waiting for others
        ("host_s", np.float64),  # and what the host adds
        # What it adds to the replica's accounts, once it is through.
        ("flops", np.float64),
        ("bytes", np.float64),
        ("kv_block_s", np.float64),
        ("beyond_measured", np.int64),
    ],
    align=True,
)


class Replica(NamedTuple):
    """One replica, as a batching policy sees it. All fields are views: writing to them changes the simulation."""

    state: Any  # One `REPLICA` record.
    requests: Any  # All requests of the simulation (`REQUEST` records); policies index it with the ids below.
    running: Ints  # Requests that hold blocks and are not in flight; the first `state.num_running` entries count.
    grouped: Ints  # [member, column]: requests whose decodes step together (see `gnomon.serving.engine.decode_group`).
    growth: Ints  # How many of them need one more block at each step, modulo the block size.
    batch: Ints
    """The batch being formed: its first `state.batch_size` entries are request ids (but for those that step
    together, which are not written out)."""
    batch_tokens: Ints  # How many tokens each of them computes.
    parameters: Floats
    """Options of the policy, then free parameters (`batching.options` and `batching.parameters` in the scenario)."""
    memory: Floats  # The policy's own memory (`PolicySpec.memory`), zero at the start and after a failure.
    group_memory: Floats  # That of the first replica of its group.
    block_key: Ints  # Prefix cache: the hash of what each block holds, 0 for nothing.
    block_users: Ints  # Prefix cache: how many requests hold each block.
    newer: Ints  # Prefix cache: free blocks as a doubly linked list, oldest first; the last entry is the list's own.
    older: Ints
    slot_key: Ints  # Prefix cache: hash table from keys to blocks, linear probing.
    slot_block: Ints
    tables: Ints
    """Prefix cache: [row, position]: the blocks of each request that holds some; while blocks are only counted, the
    first entry is the request."""
    free_rows: Ints  # Prefix cache: rows of `tables` that nobody uses.
    loose_blocks: Ints  # Prefix cache: blocks taken for requests that step together and not listed in `tables` yet.
    prefix_hashes: Ints  # Hashes of the prompts' blocks that may be shared between requests.
    acceptance: Floats  # The chance of each drafted token, given that those before it were accepted.
    classes: Floats  # [class, column]: the weight and the priority of each class of users.
    service: Floats
    """[class, column]: this replica's accounts of the classes: requests that wait, tokens, and what a policy keeps."""
    ranks: Any  # The `REPLICA` records of all replicas: those of its group are the ranks that step together with it.


class Cluster(NamedTuple):
    """All replicas, as the engine sees them: the arrays that `Replica` views are cut from."""

    replicas: Any
    requests: Any
    flights: Any  # [replica, ring position] `FLIGHT` records.
    running: Ints
    grouped: Ints
    growth: Ints
    flight_requests: Ints  # [replica, ring position, place in the batch]
    flight_tokens: Ints
    next_end_s: Floats
    """[replica]: the records' `next_end_s` side by side, as arrivals look at all; only a group's first has one."""
    soonest_s: Floats
    """[a neighbourhood of replicas]: none of those whose ends concern others (`Calendar.reports`) ends before."""
    stage_free_s: Floats  # [replica, stage]: when the stage has done all batches given to it.
    stage_start_s: Floats  # [replica, ring position, stage]
    stage_end_s: Floats
    parameters: Floats
    policy_memory: Floats  # [replica, number]
    acceptance: Floats  # [replica, position]
    block_key: Ints
    block_users: Ints
    newer: Ints
    older: Ints
    slot_key: Ints
    slot_block: Ints
    tables: Ints
    free_rows: Ints
    loose_blocks: Ints
    prefix_hashes: Ints
    classes: Floats  # [class, column]
    service: Floats  # [replica, class, column]
    recorded_first: Ints  # [replica]: where its recorded stage times start; size 0 unless times are replayed.
    recorded_s: Floats  # [batch, stage]
    control: Ints
    """[6]: how many more iterations this slice may run (`BUDGET`), what went wrong, where (`FAULT` ...), how many
    requests wait for a replica to be up, and how many were turned away."""
    adapter_slots: Any
    """[replica, slot] `ADAPTER_SLOT` records: the LoRA adapters that are loaded; no slots where there are none."""
    # Where requests' time goes (`gnomon.serving.features.breakdown`); all of size 0 unless it is asked for.
    breakdown: Any  # `ENTRY` records, one of each request.
    parts_ns: Ints  # [request, before and after its first token, part]
    clocks: Ints
    """[replica, column]: what its waiting requests wait for, what its decodes spend their time on, and more."""
    flight_ns: Ints  # [replica, ring position, part]: the time of a batch in flight, divided.
    floor_ns: Ints  # [row of the tables, decodes]: an iteration of so many decodes with empty contexts.
    context_ns: Ints  # [row of the tables, length]: what contexts add to a decode alone, summed over all lengths below.


@inlined
def ring_position(cluster: Cluster, r: int, after: int) -> int:
    """Where the batch `after` the oldest in flight of replica `r` is, or will be. (A division would take longer.)"""
    position = cluster.replicas[r].oldest + after
    return position - cluster.flights.shape[1] if position >= cluster.flights.shape[1] else position


@macro
def replica_view(cluster: Cluster, r: int) -> Replica:
    """The views that belong to replica `r`, with the next free ring position as the batch to form."""
    state = cluster.replicas[r]
    position = ring_position(cluster, r, state.num_in_flight)
    view = Replica(
        state, cluster.requests, cluster.running[r], cluster.grouped[r], cluster.growth[r],
        cluster.flight_requests[r, position], cluster.flight_tokens[r, position], cluster.parameters[r],
        cluster.policy_memory[r], cluster.policy_memory[state.group_first], cluster.block_key[r],
        cluster.block_users[r], cluster.newer[r], cluster.older[r], cluster.slot_key[r], cluster.slot_block[r],
        cluster.tables[r], cluster.free_rows[r], cluster.loose_blocks[r], cluster.prefix_hashes,
        cluster.acceptance[r], cluster.classes, cluster.service[r], cluster.replicas,
    )  # fmt: skip
    return borrow(view)
