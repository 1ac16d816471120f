"""How tokens spread over experts, and what the busiest rank gets.

`balanced` gives every expert the same. `power_law_A` draws the experts' loads from a density that falls with the
power A (the form in which the tables of aiconfigurator-core were measured: between 1 and 0.8 x tokens, then scaled to
the tokens' choices); `power_law_A_eplb` copies the busiest experts into one more slot per eight and deals the copies to
the least busy ranks. A layer waits for its busiest rank.
"""

import re
from functools import cache

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError

_FORM = re.compile(r"power_law_(\d+(?:\.\d+)?)(_eplb)?")
_LARGEST = 0.8 * 4096  # The largest load over the smallest, for a batch of 4,096 tokens.
_DRAWS = 32
_EXPERTS_PER_SPARE_SLOT = 8


def check_load(name: str) -> str:
    """The name, if it is one that is known."""
    if name != "balanced" and not _FORM.fullmatch(name):
        fix = "Use balanced, power_law_1.01, power_law_1.2 or power_law_1.01_eplb."
        raise ConfigError(f"{name!r} is no distribution of expert load.", where="timing.expert_load", fix=fix)
    return name


@cache
def busiest_rank(name: str, num_experts: int, num_ranks: int) -> float:
    """Tokens of the busiest of `num_ranks` ranks over those of the average one, in the mean over random placements."""
    form = _FORM.fullmatch(name)
    if form is None or num_ranks <= 1:
        return 1.0
    draw = np.random.default_rng(0)
    loads = [_loads(num_experts, float(form[1]), draw.random(num_experts)) for _ in range(_DRAWS)]
    place = _balanced_by_copies if form[2] else _in_order
    return float(np.mean([place(one, num_ranks) for one in loads]))


@cache
def relative_loads(name: str, num_experts: int) -> Floats:
    """Each expert's load over the mean, at even steps of the distribution."""
    form = _FORM.fullmatch(name)
    if form is None:
        return np.ones(num_experts)
    return _loads(num_experts, float(form[1]), (np.arange(num_experts) + 0.5) / num_experts)


def _loads(num_experts: int, power: float, at: Floats) -> Floats:
    """Loads drawn from the power law by its inverse, with mean one."""
    rest = 1.0 - power
    drawn = ((_LARGEST**rest - 1.0) * at + 1.0) ** (1.0 / rest) if rest else _LARGEST**at
    return drawn * (num_experts / drawn.sum())


def _in_order(loads: Floats, num_ranks: int) -> float:
    return float(loads.reshape(num_ranks, -1).sum(axis=1).max() * num_ranks / loads.sum())


def _balanced_by_copies(loads: Floats, num_ranks: int) -> float:
    """The busiest experts are split in two until the spare slots are used; the largest go to the least busy rank."""
    slots = list(loads)
    for _ in range(-(-loads.size // _EXPERTS_PER_SPARE_SLOT)):
        busiest = int(np.argmax(slots))
        slots[busiest] /= 2.0
        slots.append(slots[busiest])
    ranks, room = np.zeros(num_ranks), np.full(num_ranks, -(-len(slots) // num_ranks))
    for load in sorted(slots, reverse=True):
        least = int(np.argmin(np.where(room > 0, ranks, np.inf)))
        ranks[least] += load
        room[least] -= 1
    return float(ranks.max() * num_ranks / loads.sum())
