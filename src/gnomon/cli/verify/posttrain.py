"""`gnomon verify posttrain`: published results of RL post-training."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from gnomon.cli.printing import json_option, print_json, print_rows
from gnomon.core.errors import ConfigError

if TYPE_CHECKING:
    from gnomon.verify.posttrain import Check

NOTES = {
    "A": "Nothing calibrated on A: efficiencies from B.",
    "B": "Calibrated: three efficiencies on 7B at one scale (--calibrate-on). Gates: 7B at the other two.",
    "C": "Efficiencies from B; C's own set-up is not published.",
    "D": "Calibrated: rollout on 1.5B's median decode time, training on each model's static throughput at 64 GPUs."
    " No ratio is calibrated.",
    "E": "The published rule with its published inputs.",
    "S": "Speed of the simulator itself.",
}


@click.command("posttrain")
@click.option("--only", default="ABCDES", metavar="LETTERS", help="Which sources, e.g. BE.  [default: ABCDES]")
@click.option(
    "--calibrate-on",
    type=click.Choice(["64", "128", "256"]),
    default="64",
    show_default=True,
    help="B: the scale whose 7B stage seconds set the efficiencies.",
)
@click.option("--seed", default=0, show_default=True, help="Of the response lengths.")
@json_option
def command(only: str, calibrate_on: str, seed: int, as_json: bool) -> None:
    """Hold the post-training simulator against published results A-E; exit code 1 outside the gates.

    \b
    Examples:
      gnomon verify posttrain
      gnomon verify posttrain --only BE --json
    """
    from gnomon.cli.progress import progress
    from gnomon.verify.posttrain import verify

    letters = only.upper()
    if not letters or set(letters) - set(NOTES):
        raise ConfigError(f"unknown source in {only!r}.", where="--only", fix=f"Known: {', '.join(NOTES)}.")
    with progress():
        checks = list(verify(letters, calibrated_on=int(calibrate_on), seed=seed))
    if as_json:
        print_json([_row(check) for check in checks])
    else:
        print_rows([_printed(check) for check in checks], title="Published results of RL post-training")
        for letter in letters:
            click.echo(f"{letter}: {NOTES[letter]}")
    failed = [check for check in checks if not check.ok]
    if failed:
        click.echo(f"outside the gates: {', '.join(f'{one.source} {one.what}' for one in failed)}", err=True)
        sys.exit(1)


def _row(check: Check) -> dict[str, object]:
    return {
        "source": check.source,
        "what": check.what,
        "published": check.published,
        "ours": check.ours,
        "error": None if check.is_bound else check.error,
        "role": check.role,
        "ok": check.ok,
    }


def _printed(check: Check) -> dict[str, object]:
    """Errors in per cent; gates say whether they hold."""
    row = _row(check)
    row["error"] = "" if check.is_bound else f"{100 * check.error:+.1f} %"
    row["ok"] = ("yes" if check.ok else "NO") if check.role == "gate" else ""
    return row
