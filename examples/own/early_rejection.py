"""Admission of one's own: a request that no replica could answer in time is turned away at once.

    gnomon simulate --num-replicas 2 --rate 40 --slo.ttft-s 1 --router prefix_aware \
        --admission.name early --admission.file examples/own/early_rejection.py

`tokens_per_s` is what a replica computes of prompts, and `ttft_s` the limit of the SLO.
"""

from __future__ import annotations

from gnomon.extend import Fleet, admission


@admission("early", options={"tokens_per_s": 25_000.0, "ttft_s": 1.0})
def early(fleet: Fleet, request_id: int) -> bool:
    """Let in where a replica could give the first token in time, by the prompts that it has yet to compute."""
    prompt = fleet.cluster.requests[request_id].prompt_tokens
    for i in range(fleet.candidates.size):
        ahead = fleet.cluster.replicas[fleet.candidates[i]].prefill_left
        if (ahead + prompt) / fleet.gate[0] <= fleet.gate[1]:
            return True
    return False
