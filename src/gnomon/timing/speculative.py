"""Speculative decoding, timed from the same tables: a draft model proposes, the target verifies all at once.

One round with k drafted tokens: the draft model runs over the tokens of the iteration and then k - 1 ordinary decode
iterations; the target runs one iteration in which every sequence has k + 1 tokens, each with logits, over one read of
its KV cache.
"""

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.timing.iteration import IterationTables


def draft_head(target: IterationTables, share: float) -> IterationTables:
    """The tables of a head that drafts with some more layers like the model's own, `share` of as many, and the model's
    output head: multi-token prediction and EAGLE."""
    layers = ("token_s", "expert_s", "prompt_s", "prefill_s", "decode_s")
    return target._replace(**{name: share * getattr(target, name) for name in layers})


def with_draft(
    target: IterationTables, draft: IterationTables, drafted: int, *, num_groups: int = 1, sequence_s: float = 0.0
) -> IterationTables:
    """The target's tables with the draft model's time on top. Both must have been baked with the same maxima, those of
    the draft with one token for each decode.

    The draft passes over all tokens of an iteration, prompts included, so that it has their KV; whenever requests
    decode, it goes on with `drafted` - 1 decode iterations. Where `num_groups` data-parallel groups share experts, all
    of them are taken to decode as many in those. Every sequence that drafts takes `sequence_s` of the host.
    """
    counts = np.arange(target.decode_s.shape[1])
    more = draft.decode_s + draft.sequence_s[:, counts, None]
    later_s = draft.token_s[:, np.minimum(counts, draft.token_s.shape[1] - 1)]  # No iteration has more.
    if draft.expert_s.shape[1]:
        later_s = later_s + draft.expert_s[:, np.minimum(num_groups * counts, draft.expert_s.shape[1] - 1)]
    decode_s = drafted * more + (drafted - 1) * later_s[:, :, None]
    decode_s[:, 0] = 0.0
    hosts = target.host_s.copy()
    hosts[0, 1:, 1] += sequence_s / (1 + drafted)  # Of decodes, and of both: each counts as all its tokens.
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
        host_s=hosts,
    )


def _plus(target: Floats, draft: Floats) -> Floats:
    """All stages of the draft before the target's first; either may be empty in its second axis."""
    if not draft.shape[1]:
        return target
    total = target.copy() if target.shape[1] else np.zeros((len(target), *draft.shape[1:]))
    total[0] += draft.sum(axis=0)
    return total
