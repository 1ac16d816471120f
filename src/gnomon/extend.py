"""What code of your own imports: policies, routers, admission, deciders, controllers, migrations, and what they work
with.

The modules behind it may move; these names stay.
"""

from gnomon.core.errors import GnomonError
from gnomon.jit import inlined
from gnomon.pipeline.zoo.plan import pipeline_schedule
from gnomon.posttrain.policies import scheduling_policy
from gnomon.serving.admission import admission
from gnomon.serving.autoscaling.controllers import View, controller
from gnomon.serving.autoscaling.migrations import migration
from gnomon.serving.deciders import decider
from gnomon.serving.engine import prefix_cache
from gnomon.serving.engine.batch_operations import (
    blocks_for,
    blocks_missing,
    computed,
    finish,
    grow_for_decode,
    hold,
    hold_cached,
    hold_found,
    is_decoding,
    keep_running,
    let_go,
    place,
    pop_waiting,
    preempt,
    prefill_left,
    push_waiting,
    push_waiting_front,
    retract,
    sort_running_by_admission,
    sort_running_by_arrival,
    tokens_placed,
)  # fmt: skip
from gnomon.serving.engine.context import Fleet
from gnomon.serving.engine.decode_group import place_together
from gnomon.serving.engine.state import NONE, Replica
from gnomon.serving.policies import batching_policy
from gnomon.serving.routers import router
from gnomon.timing.sources import timing_source

inner = inlined  # The name of `inlined` in the release before.

__all__ = [
    "NONE", "Fleet", "GnomonError", "Replica", "View", "admission", "batching_policy", "blocks_for", "blocks_missing",
    "computed", "controller", "decider", "finish", "grow_for_decode", "hold", "hold_cached", "hold_found", "inlined",
    "inner", "is_decoding", "keep_running", "let_go", "migration", "pipeline_schedule", "place", "place_together",
    "pop_waiting", "preempt", "prefill_left", "prefix_cache", "push_waiting", "push_waiting_front", "retract",
    "router", "scheduling_policy", "sort_running_by_admission", "sort_running_by_arrival", "timing_source",
    "tokens_placed",
]  # fmt: skip
