"""Options that several `gnomon pipeline` commands share, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gnomon.api.pipeline import TRANSFERS, read_costs
from gnomon.cli.options import together
from gnomon.core.errors import ConfigError

STEP = (
    "n", "stages", "fwd_len", "bwd_len", "prop_len", "sync_base_len", "fwd_impact", "bwd_impact", "sync_freq",
    "schedule", "dispatch", "ideal", "chunks", "weight_grad_len", "overlap_len", "latency", "jitter", "draws", "seed",
    "memory_limit", "what_if",
)  # fmt: skip
"""Options that are fields of a step."""

SPELLING = {"token_normalize_func": lambda token: token.replace("_", "-")}
"""Context settings under which `--num_groups` is `--num-groups`, as older scripts write it."""


def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option that shows its default."""
    return click.option(*names, show_default=settings.get("default") is not None, **settings)


study_options = together(
    option("-n", "--num-groups", "n", type=int, default=8, help="Micro-batches."),
    option("--stages", "--num-gpus", "--pp", "stages", type=int, default=4, help="Pipeline ranks."),
    option("--fwd-len", type=float, default=1.0, help="A forward on one GPU."),
    option("--bwd-len", type=float, default=2.0, help="A full backward on one GPU."),
    option("--prop-len", type=float, default=1.0, help="Sending activations over an idle link."),
    option("--sync-base-len", type=float, default=2.0, help="Synchronising one micro-batch's gradients."),
    option("--fwd-impact", type=float, default=None, help="Rate a forward loses to grad_sync.  [default: 0.2]"),
    option("--bwd-impact", type=float, default=None, help="Rate a backward loses to grad_sync.  [default: 0.2]"),
    option("--sync-freq", type=int, default=None, help="Synchronise every this many micro-batches.  [default: 1]"),
    option("--priority", "priorities", multiple=True, metavar="TYPE=WEIGHT", help="Link share, e.g. fwd_prop=0.5."),
    option("--tier", "tiers", multiple=True, metavar="TYPE=LETTER", help="Exclusive tier, e.g. grad_prop=a."),
    option("--sync-solo-w", hidden=True, default=None),
)
"""The parameters of the study, which every schedule understands."""


def step_of(given: dict[str, Any]) -> dict[str, Any]:
    """The step that the options describe: only what was given, so that what has no effect can be told."""
    step = {name: given[name] for name in STEP if _is_given(name)} | _priorities_of(given)
    if given.get("stragglers"):
        pairs = (pair(text, "--straggler") for text in given["stragglers"])
        step["stragglers"] = {int(number(rank, "--straggler")): number(by, "--straggler") for rank, by in pairs}
    if given.get("link_speed"):
        pairs = (pair(text, "--link") for text in given["link_speed"])
        step["link_speed"] = {name: number(speed, "--link") for name, speed in pairs}
    if given.get("model"):
        fix = f"Run: gnomon train step --model {given['model']} --pp {given['stages']}, or gnomon train plan."
        raise ConfigError("a model's step is timed by gnomon train.", where="--model", fix=fix)
    if given.get("costs"):
        step["costs"] = read_costs(given["costs"])
    return step


def _is_given(name: str) -> bool:
    context = click.get_current_context()
    return context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE


def _priorities_of(given: dict[str, Any]) -> dict[str, float | str]:
    """Weights and tier letters by type of transfer, as far as they are given."""
    weights = {
        name: number(value, "--priority") for name, value in (pair(t, "--priority") for t in given["priorities"])
    }
    letters = dict(pair(text, "--tier") for text in given["tiers"])
    for name in (*weights, *letters):
        if name not in TRANSFERS:
            raise ConfigError(f"there is no transfer {name!r}.", fix=f"Known: {', '.join(TRANSFERS)}.")
    return weights | letters


def warn_of_legacy(given: dict[str, Any]) -> None:
    """An option of older scripts that never had an effect."""
    if given["sync_solo_w"] is not None:
        click.echo("--sync-solo-w has no effect: a lone grad_sync always has the whole link.", err=True)


def pair(text: str, option: str) -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"{text!r} is not NAME=VALUE.", where=option, fix="For example: fwd_prop=0.5")
    return name.strip(), value.strip()


def number(text: str, option: str) -> float:
    """Read a number, or say which option has none."""
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a number.", where=option) from None
