"""`gnomon posttrain`: a table of sub-commands, each imported only when it is called."""

from __future__ import annotations

import click

from gnomon.cli.lazy import LazyGroup

COMMANDS = {
    "run": "Simulate the steps of one policy and show where the time goes.",
    "compare": "Policies on the same lengths, with regret against the oracle.",
    "plan": "Split, mode, staleness and layouts for a GPU budget; flags for verl and RLinf.",
    "sweep": "Policies over cluster sizes.",
    "calibrate": "Fit efficiencies to measured stage times.",
    "decide": "Feed recorded snapshots through a policy, without the simulator.",
}


@click.group(cls=LazyGroup, table=COMMANDS, package="gnomon.cli.posttrain")
def command() -> None:
    """RL post-training: placements and elastic scheduling of actor, rollout and inference.

    \b
    Examples:
      gnomon posttrain run examples/posttrain/elastic.yaml --out runs/elastic
      gnomon posttrain compare examples/posttrain/elastic.yaml
      gnomon posttrain plan examples/posttrain/small.yaml --max-lag 1
    """
