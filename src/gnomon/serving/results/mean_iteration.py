"""What a run's iterations are like on the mean: where operators, their errors and other timing sources are asked."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnomon.core.arrays import Ints
from gnomon.serving.run.simulate import Run
from gnomon.serving.scenario.pools import other_timer
from gnomon.timing import Batch
from gnomon.timing.agreement import estimate, in_words
from gnomon.timing.sources.auto import sources_at_hand


@dataclass(frozen=True)
class MeanIteration:
    """The iterations of one sort: prefill, mixed or decode."""

    sort: str
    batch: Batch
    count: int
    some: list[Batch]
    """Iterations of this sort from the whole run, evenly."""


NUM_SOME = 64  # Iterations of each sort that stand for how their operators vary.


def first_stages(run: Run, pool: int) -> Any:
    """The iterations of one pool that were kept, each once."""
    log = run.log.iterations[: run.log.used[0]]
    return log[(log["stage"] == 0) & (run.pool_of_replica[log["replica"]] == pool)]


def mean_iterations(rows: Any) -> list[MeanIteration]:
    prefill, decodes, decode_kv = rows["prefill_tokens"], rows["decodes"], rows["decode_kv"]
    has_prefill, has_decodes = prefill > 0, decodes > 0
    sorts = {
        "prefill": has_prefill & ~has_decodes, "mixed": has_prefill & has_decodes, "decode": ~has_prefill & has_decodes,
    }  # fmt: skip
    found = []
    for sort, those in sorts.items():
        at = np.flatnonzero(those)
        if at.size:
            mean = _mean(prefill[at], decodes[at], decode_kv[at])
            even = at[np.unique(np.linspace(0, at.size - 1, NUM_SOME).round().astype(np.int64))]
            some = [_mean(prefill[i : i + 1], decodes[i : i + 1], decode_kv[i : i + 1]) for i in even]
            found.append(MeanIteration(sort, mean, at.size, some))
    return found


def _mean(prefill: Ints, decodes: Ints, decode_kv: Ints) -> Batch:
    mean_decodes, kv = float(decodes.mean()), float(decode_kv.sum() / max(decodes.sum(), 1))
    return Batch(
        prefill=_whole(float(prefill.mean())), decode=_whole(mean_decodes), kv=_whole(kv) if mean_decodes else 0
    )


def _whole(value: float) -> int:
    """The nearest whole number, at least one of what is there at all."""
    return max(1, int(np.rint(value))) if value > 0 else 0


@dataclass(frozen=True)
class Judgement:
    """What the timing sources say of a run."""

    warnings: list[str]
    """Where a source that claims to be more exact contradicts the one in use."""
    notes: list[str]
    """Where another source contradicts it."""
    sources: dict[str, float]
    """How many times as long the iterations take by every other source that is at hand."""


def judged(run: Run) -> Judgement:
    """Ask the source in use, and the others at hand, about the iterations of a run."""
    timers = enumerate(run.times.timers if run.times else ())
    known = [
        (number, timer, mean_iterations(first_stages(run, number))) for number, timer in timers if timer is not None
    ]
    each = [(number, timer, [(one.batch, one.count) for one in means]) for number, timer, means in known if means]
    warnings: dict[str, None] = {}
    notes: dict[str, None] = {}
    others: dict[str, float] = {}
    for number, timer, iterations in each:
        used = estimate(timer, iterations)
        for name in sources_at_hand(timer.context):
            if name == used.source:
                continue
            other = estimate(other_timer(run.scenario.model, run.pools[number], name), iterations)
            others[name] = others.get(name, 0.0) + other.seconds / used.seconds / len(each)
            if used.contradicts(other):
                (warnings if other.error < used.error else notes)[in_words(used, other)] = None
    return Judgement(list(warnings), list(notes), others)
