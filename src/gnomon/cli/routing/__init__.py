"""`gnomon route`: a table of sub-commands, each imported only when it is called."""

from __future__ import annotations

import click

from gnomon.cli.lazy import LazyGroup

COMMANDS = {
    "demos": "Let teachers route in simulated clusters, and write down what they do.",
    "clone": "Clone the teacher from its demonstrations.",
    "train": "Improve the clone with PPO.",
    "tune": "Fit the weights of the rule `unselfish` to your own fleet, in about a minute.",
    "compare": "Routers on the same held-out traces, with 95 % intervals.",
    "all": "All of these, from nothing to a report.",
}


@click.group(cls=LazyGroup, table=COMMANDS, package="gnomon.cli.routing")
def command() -> None:
    """Train a router inside the simulator and compare it with the heuristics.

    \b
    Examples:
      gnomon route compare                                 the policy that comes with Gnomon against all heuristics
      gnomon route all --config quick                      train one in two minutes, and compare it
      gnomon route all --config full --out runs/route/mine
      gnomon route tune my_cluster.yaml                    no network: a rule with weights for this fleet
      gnomon route all --config quick --scenario my_cluster.yaml     train on your own fleet and load
      gnomon simulate --num-replicas 4 --router learned --router.checkpoint runs/route/quick/policy.npz
    """
