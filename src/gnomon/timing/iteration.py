"""What a compiled engine reads: the seconds of one iteration as dense arrays (`gnomon.timing.lookup` reads them).

Every timing source is baked into an `IterationTables` once; the engine then needs plain indexing and linear
interpolation only. Pipeline stages may differ (the first embeds, the last has the head), hence the leading
`stage` axis. Attention is per stage too, i.e. already multiplied by the layers of that stage.

Speculative decoding is timed from the same tables (`with_draft`). One round with k drafted tokens: the draft model runs
over the tokens of the iteration and then k - 1 ordinary decode iterations; the target runs one iteration in which every
sequence has k + 1 tokens, each with logits, over one read of its KV cache.
"""

from typing import NamedTuple

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.timing.host import COLUMNS, PHASES


class IterationTables(NamedTuple):
    """The seconds of one iteration, by what is in the batch. All arrays are float64 and C-contiguous."""

    token_s: Floats
    """[stage, tokens]: everything that depends on the number of tokens: projections, norms, MLP, tensor-parallel
    communication, sending activations on. Index = tokens in the iteration, exact, 0..max_tokens."""
    expert_s: Floats
    """[stage, group tokens]: experts shared by a data-parallel group in lockstep; shape [stage, 0] when the experts
    are inside `token_s`."""
    prompt_s: Floats
    """[stage, prompt tokens]: what only tokens of prompts pass: latent expansion, linear attention in chunks; shape
    [stage, 0] for models without any."""
    sequence_s: Floats  # [stage, sequences]: head and sampler.
    prefill_s: Floats  # [stage, chunk axis, kv axis]: attention of prefill chunks.
    decode_s: Floats
    """[stage, sequences, kv axis]: attention of decodes, and what else only decodes pass; sequences exact, kv = mean KV
    length."""
    mixed_s: Floats
    """[stage, chunk, kv before the chunk, decodes, kv of decodes] on the axes below when the source measured mixed
    batches, else size 0 in the second axis: prefill and decode times then add."""
    chunk_axis: Floats  # Grid of chunk sizes: 0, then geometric from 1 with `POINTS_PER_OCTAVE` points per octave.
    kv_axis: Floats  # Grid of KV lengths, same form.
    decodes_axis: Floats  # Grid of decode counts for `mixed_s`, same form.
    skew: Floats
    """[stage, decodes axis, skew bin]: how far the time of a skewed batch lies from that at its mean KV length towards
    that at its maximum; size 0 in the second axis where not measured. `SKEW_BINS` equal bins of 1 - mean/max over
    [0, 1] for decodes alone, then as many for decodes beside a chunk of a prompt."""
    host_s: Floats
    """[stage, phase, 12]: host seconds of iterations of prompts, of decodes, and of both (`gnomon.timing.host`)."""
    measured: Floats
    """[stage, 5]: the largest tokens, chunk, mean KV length of decodes, decodes, and KV before a chunk that the source
    covers (inf for a formula). Beyond
    them the tables hold an extrapolation by the roofline's shape; engines count such iterations and say so."""
    work: Floats
    """[stage, 9]: of the whole replica (all stages and ranks), repeated for every stage: FLOPs per token, per query-key
    pair, per sequence (head); bytes of weights read in every iteration, KV bytes per token; peak FLOP/s, bytes/s; bytes
    of routed experts, and the share of them that one token chooses."""
    host_pace: Floats = np.zeros(0)
    """[window of `WINDOW_S`]: how many times longer the host takes then; empty: it is always the same."""


def blank(num_stages: int) -> IterationTables:
    """Tables in which nothing takes any time: where times are replayed, and as an example of the arrays' types."""
    ndim = {"prefill_s": 3, "decode_s": 3, "mixed_s": 5, "skew": 3, "host_s": 3}
    axes = {"chunk_axis", "kv_axis", "decodes_axis"}
    shapes = [
        (1,) if name in axes else (num_stages, *(1,) * (ndim.get(name, 2) - 1)) for name in IterationTables._fields
    ]
    tables = IterationTables(*(np.zeros(shape) for shape in shapes))
    return tables._replace(
        host_s=np.zeros((num_stages, len(PHASES), COLUMNS)), work=np.zeros((num_stages, 9)),
        host_pace=np.zeros(0), measured=np.full((num_stages, 5), np.inf),
    )  # fmt: skip


def stack(kinds: list[IterationTables]) -> IterationTables:
    """The tables of several kinds of replica one below the other: a kind's stages start at the sum of those before.

    All must have been baked with the same maxima, so that they share their axes. The arrays are writable, whatever
    they were: compiled code tells the two apart.
    """
    if len(kinds) == 1:
        return IterationTables(*(np.require(array, np.float64, ["C", "W"]) for array in kinds[0]))
    assert all(k.token_s.shape[1:] == kinds[0].token_s.shape[1:] for k in kinds), "baked with different maxima"
    has = {name for name in ("mixed_s", "skew", "prompt_s") if any(getattr(k, name).shape[1] for k in kinds)}
    widest = max(k.expert_s.shape[1] for k in kinds)
    alike = [_with_columns(k, has, widest) for k in kinds]
    axes = {"chunk_axis", "kv_axis", "decodes_axis", "host_pace"}
    columns = {
        name: getattr(kinds[0], name) if name in axes else np.concatenate([getattr(k, name) for k in alike])
        for name in IterationTables._fields
    }
    return IterationTables(**columns)


def _with_columns(tables: IterationTables, has: set[str], widest: int) -> IterationTables:
    """Tables beside those of a kind that has more: what is empty here and not there is spelled out.
    Prefill and decode times add where mixed batches were not measured. Experts are as wide as the largest data-parallel
    group needs; a smaller group never looks beyond its own tokens.
    """
    num_stages, more = tables.token_s.shape[0], {}
    missing = {name for name in has if not getattr(tables, name).shape[1]}
    if "mixed_s" in missing:
        counts = np.minimum(np.rint(tables.decodes_axis).astype(int), tables.decode_s.shape[1] - 1)
        both = tables.prefill_s[:, :, :, None, None] + tables.decode_s[:, counts][:, None, None, :, :]
        more["mixed_s"] = np.ascontiguousarray(both)
    if "skew" in missing:
        more["skew"] = np.zeros((num_stages, tables.decodes_axis.size, 2 * SKEW_BINS))
    if "prompt_s" in missing:
        more["prompt_s"] = np.zeros_like(tables.token_s)
    if widest:
        own = tables.expert_s if tables.expert_s.shape[1] else np.zeros((num_stages, 1))
        more["expert_s"] = np.pad(own, ((0, 0), (0, widest - own.shape[1])), mode="edge")
    return tables._replace(**more)


SCALED = ("token_s", "expert_s", "prompt_s", "sequence_s", "prefill_s", "decode_s", "mixed_s")


def scaled(tables: IterationTables, factor: float) -> IterationTables:
    """All seconds of the GPU times a factor; the host's stay."""
    return tables._replace(**{name: factor * getattr(tables, name) for name in SCALED})


POINTS_PER_OCTAVE = 2
SKEW_BINS = 8


def geometric_axis(maximum: float) -> Floats:
    """0, 1, then `POINTS_PER_OCTAVE` points per octave up to at least `maximum`."""
    steps = int(np.ceil(np.log2(max(maximum, 2.0)) * POINTS_PER_OCTAVE))
    return np.concatenate([[0.0], 2.0 ** (np.arange(steps + 1) / POINTS_PER_OCTAVE)])


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
        token_s=_plus(target.token_s, draft.token_s), expert_s=_plus(target.expert_s, draft.expert_s),
        prompt_s=_plus(target.prompt_s, draft.prompt_s), prefill_s=_plus(target.prefill_s, draft.prefill_s),
        decode_s=_plus(target.decode_s, decode_s), mixed_s=mixed_s, host_s=hosts,
    )  # fmt: skip


def _plus(target: Floats, draft: Floats) -> Floats:
    """All stages of the draft before the target's first; either may be empty in its second axis."""
    if not draft.shape[1]:
        return target
    total = target.copy() if target.shape[1] else np.zeros((len(target), *draft.shape[1:]))
    total[0] += draft.sum(axis=0)
    return total
