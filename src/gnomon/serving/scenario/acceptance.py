"""How many drafted tokens a model accepts: one chance for all, chances by position, or a measured curve by its name.

A measured curve gives the mean tokens of a round with 1, 2, 3, ... drafts. A draft counts only if those before it do,
so that the share of rounds which reach position j is the step from j - 1 to j. Drawn by these shares, a round yields
what was measured, whereas one chance for all does not: later positions are accepted less often.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.core.text import own_yaml

Acceptance = float | tuple[float, ...] | str


def acceptance_names() -> list[str]:
    return sorted(_curves())


def chances(acceptance: Acceptance, num_tokens: int) -> Floats:
    """The chance of each drafted token, given that those before it were accepted."""
    match acceptance:
        case str():
            shares = reached(_curve(acceptance, num_tokens))
            before = np.concatenate([[1.0], shares[:-1]])
            return np.divide(shares, before, out=np.zeros_like(shares), where=before > 0)
        case float() | int():
            given: Sequence[float] = (acceptance,)
        case _:
            given = acceptance
    if not given or not all(0.0 <= one <= 1.0 for one in given):
        fix = "Give one or more."
        raise ConfigError(f"chances lie in [0, 1], not {list(given)}.", where="replica.speculative.acceptance", fix=fix)
    return np.array([given[min(i, len(given) - 1)] for i in range(num_tokens)], dtype=np.float64)


def reached(tokens: Sequence[float]) -> Floats:
    """Share of the rounds that accept at least 1, 2, ... drafts, from the mean tokens of a round by drafts.

    Noise of the measurement is spread over neighbours where it would let a later position be accepted more often than
    an earlier one, or less than never; the mean tokens of the longest round stay.
    """
    pools: list[list[float]] = []  # [sum, count], means never rising
    for step in np.diff([1.0, *tokens]):
        pools.append([float(step), 1.0])
        while len(pools) > 1 and (pools[-2][0] / pools[-2][1] < pools[-1][0] / pools[-1][1] or pools[-1][0] < 0):
            last = pools.pop()
            pools[-1] = [pools[-1][0] + last[0], pools[-1][1] + last[1]]
    return np.concatenate([np.full(int(count), total / count) for total, count in pools])


def _curve(name: str, num_tokens: int) -> list[float]:
    if name not in _curves():
        raise UnknownNameError("acceptance curve", name, acceptance_names(), where="replica.speculative.acceptance")
    tokens: list[float] = _curves()[name]["tokens"]
    if num_tokens > len(tokens):
        what = f"{name} was measured with up to {len(tokens)} drafted tokens, not {num_tokens}."
        fix = "Draft fewer, or give the chances by position."
        raise ConfigError(what, where="replica.speculative.num_tokens", fix=fix)
    return tokens[:num_tokens]


@cache
def _curves() -> dict[str, Any]:
    return own_yaml(files("gnomon.serving.scenario") / "data" / "acceptance.yaml")
