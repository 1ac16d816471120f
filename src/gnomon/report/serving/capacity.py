"""How much load a deployment takes, in words."""

from gnomon.core import units
from gnomon.report.blocks import Block, Line, Table, lines
from gnomon.search.slo import WORDS
from gnomon.search.users import Loops


def rows(found: Loops) -> list[dict[str, str]]:
    loops = {"open: requests come at random": found.open_per_s}
    if found.users is not None:
        loops |= {f"closed: {found.users:,} users at once": found.closed_per_s}
    tokens = {"input": found.prompt_tokens, "output": found.output_tokens}
    tokens |= {"total": sum(tokens.values())}
    return [
        {"loop": name, "requests/s": f"{rate:.3g}"}
        | {f"$ per million {kind}": _dollars(found, rate * count) for kind, count in tokens.items()}
        for name, rate in loops.items()
    ]


def _dollars(found: Loops, tokens_per_s: float) -> str:
    return f"{found.price.per_hour / 3600 / tokens_per_s * 1e6:.3g}" if tokens_per_s else "–"


def blocks(found: Loops) -> list[Block]:
    limits = [f"{WORDS[name]} ≤ {units.seconds(limit)}" for name, limit in found.limits.items()]
    within = f"99 % of the requests within {', '.join(limits)}" if limits else "no limits"
    place = f"{found.model} on {found.price.num_gpus} x {found.device}, ${found.price.per_hour:,.2f} per hour"
    lengths = f"{found.prompt_tokens:,.0f} input and {found.output_tokens:,.0f} output tokens"
    caption = f"All dollars over the tokens of one kind, or of both; a request has {lengths} in the mean."
    return [Line(f"{place}; {within}"), Table(rows(found), caption=caption), *lines(_why(found))]


def _why(found: Loops) -> list[str]:
    full = f"Requests pile up beyond {found.saturation_per_s:.3g} per second, whatever the limits."
    if not found.open_per_s:
        return [f"No load meets the limits: {found.open_binding}. {full}"]
    lines = [f"Just above {found.open_per_s:.3g} per second: {found.open_binding}. {full}"]
    if found.users is None:
        return [*lines, "Without limits any number of users is served, only slower: give --slo.ttft-s or --slo.tpot-s."]
    because = (
        "requests that come at random come in bunches, which wait; users wait for their answers first"
        if found.closed_per_s > found.open_per_s
        else "requests that come at random leave gaps in which the rest is worked off; users are always there"
    )
    return [*lines, f"With more users: {found.closed_binding}. The loops differ: {because}."]
