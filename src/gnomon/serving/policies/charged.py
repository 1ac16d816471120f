"""What the policies that keep accounts of classes (vtc, drr, dlpm) share: settling them, and admission at a price."""

from __future__ import annotations

from gnomon.jit import inlined
from gnomon.serving.engine.state import Replica
from gnomon.serving.features.service_by_class import charge_outputs, charge_prompt, forget_idle_credit
from gnomon.serving.policies.vllm_v1 import admit_first


@inlined
def settle_credit(replica: Replica, prompt_price: float, output_price: float) -> None:
    """Charge for what was produced since, and forget the credit of classes that do not wait."""
    if replica.state.num_waiting > 0:
        charge_outputs(replica)
        forget_idle_credit(replica, prompt_price, output_price)


@inlined
def admit_charged(replica: Replica, budget: int, cached_are_free: bool) -> int:
    """`admit_first`, and its class pays for the prompt, or for what of it is computed; returns its tokens, or 0."""
    r = replica.state.first_waiting
    tokens = admit_first(replica, budget)
    if tokens > 0:
        request = replica.requests[r]
        charge_prompt(replica, r, request.prompt_tokens - (request.cached_tokens if cached_are_free else 0))
    return tokens
