"""Users' own policies and routers with one mistake each, and a script that runs them one after the other."""

from __future__ import annotations

HEADER = """# One mistake.
from gnomon.extend import (
    batching_policy, blocks_for, grow_for_decode, hold, keep_running, place, pop_waiting, preempt, prefill_left,
)


@batching_policy("{name}")
def {name}(replica):
    state = replica.state
"""
RUNNING = """    if state.num_running > 0:
        r = replica.running[0]
        grow_for_decode(replica, r)
        place(replica, r, 1)
        keep_running(replica, 1, state.num_running)
"""
WAITING = """    elif state.num_waiting > 0 and state.num_holding == 0:
        r = state.first_waiting
        blocks = blocks_for(replica, replica.requests[r].prefill_tokens)
        if blocks <= state.free_blocks:
            pop_waiting(replica)
            hold(replica, r, blocks)
            place(replica, r, prefill_left(replica, r))
"""
ONE_BY_ONE = RUNNING + WAITING
CAREFUL = ONE_BY_ONE.replace(
    """        grow_for_decode(replica, r)
        place(replica, r, 1)
""",
    """        if state.free_blocks == 0:
            preempt(replica, r)
        else:
            grow_for_decode(replica, r)
            place(replica, r, 1)
""",
)
"""One that gives up a request for which memory is too small."""
GREEDY = """    for i in range(state.num_running):
        grow_for_decode(replica, replica.running[i])
        place(replica, replica.running[i], 1)
    keep_running(replica, 0, 0)
    while state.num_waiting > 0:
        r = pop_waiting(replica)
        hold(replica, r, 1 + blocks_for(replica, replica.requests[r].prefill_tokens))
        place(replica, r, prefill_left(replica, r))
"""

POLICIES = {
    "no_keep_running": (
        ONE_BY_ONE.replace("        keep_running(replica, 1, state.num_running)\n", ""),
        "leaves request 0 in `running`",
    ),
    "forgets_the_running": (
        "    if False:\n        pass\n" + WAITING.replace("== 0:", "< 8:"),
        "leaves requests alone for ever",
    ),
    "misspelt": (
        ONE_BY_ONE.replace("state.num_waiting >", "state.num_waitng >"),
        "misspelt.py:15: misspelt cannot be compiled: there is no field 'num_waitng'",
    ),
    "no_hold": (ONE_BY_ONE.replace("            hold(replica, r, blocks)\n", ""), "more tokens than its KV blocks"),
    "no_cap": (GREEDY, "no_cap.py:7: the batching policy no_cap failed: place() found the batch full"),
    "no_memory": (
        GREEDY.replace("hold(replica, r, 1 +", "hold(replica, r, 1000 +"),
        "hold() was asked for more blocks than are free",
    ),
    "out_of_range": (
        "    place(replica, replica.running[10**8], 1)\n",
        "out_of_range.py:10: the batching policy out_of_range failed: IndexError",
    ),
    "below_zero": (
        "    place(replica, replica.running[state.num_running - 1], 1)\n",
        "below_zero.py:10: the batching policy below_zero failed: IndexError",
    ),
    "endless": (
        "    n = 0\n    while state.num_waiting > 0:\n        n += 1\n",
        "endless.py:11: the batching policy endless failed: the loop in line 11 does not end",
    ),
    "nearly_endless": (
        "    n = 0\n    for i in range(10**9):\n        for _ in range(i):\n            n += state.max_running\n"
        "    if n > 0:\n        state.steppable = 0\n",
        "nearly_endless.py:12: the batching policy nearly_endless failed: the loop in line 12 does not end",
    ),
    "batch_of_its_own": (ONE_BY_ONE + "    state.batch_size = 10**6\n", "writes numbers into its state"),
    "running_of_its_own": (ONE_BY_ONE + "    state.num_running = 10**6\n", "writes numbers into its state"),
    "stepping_of_its_own": (ONE_BY_ONE + "    state.num_grouped = 10**6\n", "writes numbers into its state"),
    "queue_of_its_own": (ONE_BY_ONE + "    state.first_waiting = 10**8\n", "writes numbers into its state"),
    "member_of_its_own": (
        ONE_BY_ONE + "    if state.batch_size > 0:\n        replica.batch[0] = 10**8\n",
        "writes numbers into its state",
    ),
    "twice": (
        ONE_BY_ONE.replace("place(replica, r, 1)", "place(replica, r, 1)\n        place(replica, r, 1)"),
        "place() was called for a request that waits, was placed already or has ended",
    ),
    "too_much": (ONE_BY_ONE.replace("prefill_left(replica, r))", "prefill_left(replica, r) + 1)"), "more tokens than"),
    "nothing_to_pop": ("    pop_waiting(replica)\n    pop_waiting(replica)\n", "although no request waits"),
    "loses": (
        ONE_BY_ONE.replace("keep_running(replica, 1, state.num_running)", "state.num_running = 0").replace(
            " and state.num_holding == 0", ""
        ).replace("    elif", "    if"),
        "loses a request or has one twice",
    ),
    "spins": (
        "    for i in range(state.num_running):\n        preempt(replica, replica.running[i])\n"
        "    keep_running(replica, 0, 0)\n"
        + WAITING.replace("elif", "if").replace("prefill_left(replica, r))", "1)"),
        "makes no progress",
    ),
    "one_beyond": (
        "    replica.running[0] = replica.requests.size\n    state.num_running = 1\n",
        "writes numbers into its state",
    ),
    "two_big": (ONE_BY_ONE.replace("grow_for_decode(replica, r)", "hold(replica, r, state.free_blocks)"), ""),
}  # fmt: skip

ROUTER = """from gnomon.serving.routers import router


@router("{name}", compiled={compiled})
def {name}(fleet, request_id):
    {body}
"""
ROUTERS = {
    "beyond": ("return 99", "answered 99 for request 0: there is no such replica"),
    "negative": ("return -1", "answered -1 for request 0: there is no such replica"),
    "late": ("return 0 if request_id < 5 else 3", "answered 3 for request 5"),
    "outside": ("return fleet.cluster.running[0, 10**9]", ".py:6: the router {name} failed: IndexError"),
    "for_ever": ("while request_id >= 0:\n        pass\n    return 0", "the loop in line 6 does not end"),
    "no_field": ("return fleet.cluster.replicas[0].num_waitng", ".py:6: "),
    "divides": ("return 5 // (request_id - request_id)", "the router {name} failed: ZeroDivisionError"),
    "writes": (
        "fleet.cluster.replicas[0].free_blocks -= 1\n    return 0",
        "the router {name} leaves the books wrong at the end of the run (free_blocks). Look at the replicas",
    ),
    "makes_longer": (
        "fleet.cluster.requests[request_id].prompt_tokens = 7\n    return 0",
        "the router {name} leaves the books wrong at the end of the run (prompt_tokens). Look at the replicas",
    ),
    "ends_them": (
        "if request_id < 9:\n        fleet.cluster.requests[request_id + 1].status = 4\n    return 0",
        "leaves the books wrong at the end of the run (num_finished). Look at the replicas",
    ),
    "nothing": ("return None", "{name}"),
    "half": ("return 0.5", "{name}"),
}

SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
from serving_kit import run, scenario
from gnomon.core.errors import GnomonError
for section, name, path in json.loads({cases!r}):
    own = {{"file": path, "name": name}}
    if section == "batching":
        own = {{"file": path, "policy": name, "max_sequences": 16, "max_batch_tokens": 100_000}}
    try:
        run(scenario(**{{section: own}}, num_replicas=1 if section == "batching" else 3, workload={{"rate": 2000.0}},
                     replica={{"num_kv_blocks": 3000}}))
        print(json.dumps([name, ""]), flush=True)
    except GnomonError as error:
        print(json.dumps([name, str(error)]), flush=True)
"""
