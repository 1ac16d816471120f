"""The answer of a search as commands: the best configuration of each engine."""

from __future__ import annotations

from gnomon.convert.commands import ENGINES, engine_commands, server_command
from gnomon.core.errors import ConfigError
from gnomon.search.evaluate import Record
from gnomon.search.objective import UNITS, shown
from gnomon.search.study import Found
from gnomon.search.winner import winning_scenario
from gnomon.serving.policies import POLICIES


def winning_commands(found: Found) -> dict[str, str]:
    """A command for each engine, that of the winner first; none where no engine starts any configuration.

    Of an engine that was searched it is its own best configuration. Any other gets the layout and the limits of the
    first, under a comment that says so.
    """
    commands: dict[str, str] = {}
    for record in found.ranked:
        policy = str(record.overrides.get("batching.policy", ""))
        engine = POLICIES[policy].engine if policy in POLICIES else ""
        if not engine or engine in commands:
            continue
        try:
            _, command = server_command(winning_scenario(found.search, record))
        except ConfigError:
            continue
        commands[engine] = command if record is found.best else f"{_second(found, record, engine)}\n{command}"
        if len(commands) == 1:
            first = record
    if not commands:
        return {}
    scenario = winning_scenario(found.search, first)
    if not scenario.has_roles:
        alike = engine_commands(scenario.model_copy(update={"num_replicas": 1}))
        won = ENGINES[next(iter(commands))].name
        for engine in ENGINES:
            note = f"# Not simulated with {ENGINES[engine].name}: the layout and the limits that were best with {won}."
            commands.setdefault(engine, f"{note}\n{alike[engine]}")
    return commands


def _second(found: Found, record: Record, engine: str) -> str:
    """What the best of another engine than the winner's is worth."""
    assert found.best is not None and found.best.score is not None and record.score is not None
    objective = found.search.objective
    worth, winner = shown(objective, record.score), shown(objective, found.best.score)
    return (
        f"# The best with {ENGINES[engine].name}: {record.label}, {worth:.3g} {UNITS[objective]}"
        f" (the winner: {winner:.3g})."
    )
