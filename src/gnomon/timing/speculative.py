"""Speculative decoding, timed from the same tables: a draft model proposes, the target verifies all at once.

One round with k drafted tokens: the draft model runs over the tokens of the iteration and then k - 1 ordinary decode
iterations; the target runs one iteration in which every sequence has k + 1 tokens, each with logits, over one read of
its KV cache.
"""

from __future__ import annotations

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.timing.iteration import IterationTables
from gnomon.timing.lookup import Shape, stage_s


def expected_tokens(acceptance: float, drafted: int) -> float:
    """Tokens that one round yields on average: accepted ones up to the first refusal, and one of the target's own.

    Leviathan et al. (2023), equation 1: (1 - a^(k+1)) / (1 - a), drafts being accepted independently.
    """
    if not 0.0 <= acceptance <= 1.0:
        raise ConfigError(f"an acceptance rate lies in [0, 1], not {acceptance}.", where="acceptance")
    if acceptance == 1.0:
        return drafted + 1.0
    return (1.0 - acceptance ** (drafted + 1)) / (1.0 - acceptance)


def decode_shape(decodes: int, decode_kv: float, decode_kv_max: float) -> Shape:
    """An iteration of decodes alone, as the draft model runs it."""
    return Shape(decodes, decodes, 0.0, 0.0, decodes, decode_kv, decode_kv_max)


def verification_shape(decodes: int, decode_kv: float, decode_kv_max: float, drafted: int) -> Shape:
    """The target's iteration: k + 1 tokens (and logits) per sequence, its KV read once."""
    tokens = decodes * (drafted + 1)
    return Shape(tokens, tokens, 0.0, 0.0, decodes, decode_kv, decode_kv_max)


def draft_s(draft: IterationTables, decodes: int, decode_kv: float, decode_kv_max: float, drafted: int) -> float:
    """Seconds in which the draft model proposes `drafted` tokens for every sequence."""
    shape = decode_shape(decodes, decode_kv, decode_kv_max)
    num_stages = draft.token_s.shape[0]
    return drafted * sum(stage_s(draft, stage, shape, decodes) for stage in range(num_stages))


def verification_s(
    target: IterationTables, decodes: int, decode_kv: float, decode_kv_max: float, drafted: int
) -> float:
    """Seconds in which the target checks `drafted` tokens of every sequence.

    The tables must reach decodes x (drafted + 1) tokens and sequences.
    """
    shape = verification_shape(decodes, decode_kv, decode_kv_max, drafted)
    num_stages = target.token_s.shape[0]
    return sum(stage_s(target, stage, shape, shape.tokens) for stage in range(num_stages))


def draft_head(target: IterationTables, share: float) -> IterationTables:
    """The tables of a head that drafts with some more layers like the model's own, `share` of as many, and the model's
    output head: multi-token prediction and EAGLE."""
    layers = ("token_s", "expert_s", "prompt_s", "prefill_s", "decode_s")
    return target._replace(**{name: share * getattr(target, name) for name in layers})


def with_draft(target: IterationTables, draft: IterationTables, drafted: int) -> IterationTables:
    """The target's tables with the draft model's time on top. Both must have been baked with the same maxima.

    The draft passes over all tokens of an iteration, prompts included, so that it has their KV; whenever requests
    decode, it goes on with `drafted` - 1 decode iterations.
    """
    counts = np.arange(target.decode_s.shape[1])
    more = draft.decode_s + draft.sequence_s[:, counts, None]
    decode_s = drafted * more + (drafted - 1) * draft.token_s[:, counts, None]
    decode_s[:, 0] = 0.0
    mixed_s = target.mixed_s
    if mixed_s.shape[1]:
        at = np.minimum(np.rint(target.decodes_axis).astype(int), counts[-1])
        mixed_s = _plus(mixed_s, draft.prefill_s[:, :, :, None, None] + decode_s[:, at][:, None, None])
    return target._replace(
        token_s=_plus(target.token_s, draft.token_s),
        expert_s=_plus(target.expert_s, draft.expert_s),
        prompt_s=_plus(target.prompt_s, draft.prompt_s),
        prefill_s=_plus(target.prefill_s, draft.prefill_s),
        decode_s=_plus(target.decode_s, decode_s),
        mixed_s=mixed_s,
    )


def _plus(target: Floats, draft: Floats) -> Floats:
    """All stages of the draft before the target's first; either may be empty in its second axis."""
    if not draft.shape[1]:
        return target
    total = target.copy() if target.shape[1] else np.zeros((len(target), *draft.shape[1:]))
    total[0] += draft.sum(axis=0)
    return total
