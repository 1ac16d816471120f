"""FasterTransformer: request-level batching. A batch is run to its end before the next is admitted.

With the limits of Vidur's `faster_transformer` replica scheduler, whose runs it replays exactly, but for one fault that
is not copied: there, requests that finish early keep their blocks for ever.
"""

from gnomon.serving.engine.batch_operations import keep_running, place
from gnomon.serving.engine.decode_group import place_together
from gnomon.serving.engine.state import Replica
from gnomon.serving.policies import batching_policy
from gnomon.serving.policies.orca import admit_whole_prompts, is_never_outgrown

_BATCHES = 0  # in memory: how many were admitted so far


@batching_policy(
    "faster_transformer", max_sequences_of="batch", max_batch_tokens_of="nothing", chunks_prompts=False, mixes=False,
    reserves="longest", has_prefix_cache=False, has_chunk_cap=False,
    holds_back="admits nobody until the whole batch is done", memory=1,
)  # fmt: skip
def faster_transformer(replica: Replica) -> None:
    """Go on with the batch that has waited longest; admit a new one only when there is none.

    Finished requests drop out of later iterations. With pipeline stages, that many batches are under way at a time.
    """
    state, requests, running = replica.state, replica.requests, replica.running
    if place_together(replica) > 0:
        return
    if state.num_running > 0:
        cohort = requests[running[0]].cohort
        size = 0
        while size < state.num_running and requests[running[size]].cohort == cohort:
            place(replica, running[size], 1)
            size += 1
        keep_running(replica, size, state.num_running)
    else:
        admit_whole_prompts(replica)
        replica.memory[_BATCHES] += 1
        for i in range(state.batch_size):
            requests[replica.batch[i]].cohort = int(replica.memory[_BATCHES])
    state.steppable = 1 if is_never_outgrown(replica) else 0
