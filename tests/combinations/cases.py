"""One case: draw it, run it with everything that must hold, and say what became of it."""

from __future__ import annotations

import random
import re
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from combinations.checks import (
    Violation,
    check_accounts,
    check_easier,
    check_restarted,
    check_run,
    check_same,
    digest,
    easier,
    is_steady,
    simulated,
)
from combinations.draw import Data, Drawer
from combinations.shown import check_saved, check_served, check_shown
from gnomon.core.errors import GnomonError

TRIES = 40
"""Draws are mended so often before they count as refused."""
CHECKS = ("run", "explained", "again", "saved", "shown", "served", "restarted", "easier")


@dataclass
class Ended:
    """What became of a case."""

    status: str
    """ok, refused, violation."""
    kind: str = ""
    what: str = ""
    data: Data = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    """Why the draw had to be mended."""
    tokens: int = 0
    """Of all requests: what a run in plain Python costs."""
    seconds: float = 0.0
    """Of the processor, for one run by itself."""
    done: tuple[str, ...] = ()
    """Checks that were made."""


def drawn(seed: int, number: int, folder: str) -> tuple[Data, list[str]]:
    """The scenario of a number: drawn, and mended where it is refused before anything runs."""
    chance = random.Random(f"{seed}:{number}")
    data = Drawer(chance, folder).scenario()
    refusals: list[str] = []
    for _ in range(TRIES):
        try:
            with warnings.catch_warnings(action="error"):
                simulated(data)
            break
        except GnomonError as error:
            refusals.append(str(error))
            if not _mend(data, str(error), chance):
                break
        except Exception:
            break  # The checks will say.
    return data, refusals


KEPT = {("workload",), ("workload", "num_requests"), ("timing",), ("timing", "source"), ("timing", "table")}
"""What no scenario can be without."""
TAGS = ("num_requests", "source", "distribution", "process", "name", "policy")
"""Keys that are not taken out by themselves: the rest of their section hangs on them."""


def _mend(data: Data, text: str, chance: random.Random) -> bool:
    """Take out what the error names, or else something; returns whether there was anything."""
    if "no request to serve" in text:
        named = [path for path in _paths(data) if path[-1] in ("max_tokens", "max_request_tokens")]
    else:
        named = _paths_named(data, text)
    if named == [("workload", "num_requests")]:
        named = [("workload", "agents")] if "agents" in data["workload"] else []
    choices = named or [path for path in _paths(data) if path not in KEPT and len(path) <= 2]
    if not choices:
        return False
    path = chance.choice(choices)
    if path[:2] == ("workload", "trace") or path == ("workload", "arrivals") or path[:2] == ("workload", "lengths"):
        # What is left of a trace or of lengths is refused for that.
        for key in ("trace", "arrivals"):
            data["workload"].pop(key, None)
        data["workload"]["lengths"] = {"distribution": "uniform", "prompt": [1, 200], "output": [1, 40]}
        data["workload"].setdefault("num_requests", 20)
        return True
    at: Any = data
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return True


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += [(*path, key), *_paths(value, (*path, key))]
    return found


def _paths_named(data: Data, text: str) -> list[tuple[Any, ...]]:
    """What a refusal is about: the key that it starts with, wherever it is given (a pool has its own sections), or else
    the values that it names, or else the keys."""
    paths = [path for path in _paths(data) if path not in KEPT]
    dotted = {path: ".".join(key for key in path if isinstance(key, str)) for path in paths}
    about = text.split(":")[0] if ":" in text else ""
    if same := [path for path in paths if dotted[path] == about or dotted[path].endswith(f".{about}")]:
        return same[:1] if dotted[same[0]] == about else same
    words = set(re.findall(r"[\w-]+", text.split("(given:")[0]))
    named = [path for path in paths if _value(data, path) in words]
    keys = [path for path in paths if isinstance(path[-1], str) and path[-1] in words and path[-1] not in TAGS]
    longest = max((len(path) for path in keys), default=0)
    return [_section(data, path) for path in named] or [path for path in keys if len(path) == longest]


def _value(data: Any, path: tuple[Any, ...]) -> str | None:
    for key in path:
        data = data[key]
    return data if isinstance(data, str) else None


def _section(data: Data, path: tuple[Any, ...]) -> tuple[Any, ...]:
    """A name is taken out with its options."""
    return path[:-1] if path[-1] in TAGS and len(path) > 1 and path[:-1] not in KEPT else path


def examined(data: Data, checks: tuple[str, ...] = CHECKS, *, seed: int = 0) -> Ended:
    """Run a scenario with some checks; a warning is a violation, too."""
    with warnings.catch_warnings(action="error"):
        return _examined(data, checks, seed)


def _examined(data: Data, checks: tuple[str, ...], seed: int) -> Ended:
    ended = Ended("ok", data=data)
    done = []
    try:
        first = simulated(data)
        q = first.cluster.requests
        ended.tokens = int(
            (q.prompt_tokens.sum() / 20 + q.output_tokens.sum()) * max(1, first.cluster.replicas.size / 3)
        )
        check_run(first)
        said = digest(first)
        if "explained" in checks:
            explained = simulated(data, explained=True)
            check_same(said, digest(explained), "explained")
            check_accounts(explained)
        if "again" in checks:
            start = time.process_time()
            again = simulated(data)
            ended.seconds = time.process_time() - start
            check_same(said, digest(again), "same seed")
        if "saved" in checks:
            check_saved(first, said)
        if "shown" in checks:
            check_shown(first, random.Random(f"shown {seed}"))
        if "served" in checks and check_served(first, random.Random(f"served {seed}")):
            done.append("served")
        if "restarted" in checks and check_restarted(data, random.Random(seed).uniform(0.1, 0.9)):
            done.append("restarted")
        if "easier" in checks and is_steady(data):
            for what, other in easier(data):
                check_easier(first, simulated(other), what)
                done.append(what)
    except GnomonError as error:
        ended.status, ended.what = "refused", str(error)
    except Violation as error:
        ended.status, ended.kind, ended.what = "violation", error.kind, error.what
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)
        places = [f"{Path(one.filename).name}:{one.name}" for one in trace if "gnomon" in one.filename]
        ended.status, ended.kind = "violation", f"{type(error).__name__} in {places[-1] if places else '?'}"
        ended.what = f"{error} ({' < '.join(reversed(places[-4:]))})"
    ended.done = tuple(done)
    return ended


# What a process of its own is asked.


def draw_and_examine(seed: int, number: int, folder: str) -> tuple[Data, list[str], dict[str, Any]]:
    """A case from its number to its end."""
    data, refusals = drawn(seed, number, folder)
    return data, refusals, asdict(examined(data, seed=number))


def drawn_only(seed: int, number: int, folder: str) -> Data:
    """The scenario of a number before it is mended, which takes running it."""
    return Drawer(random.Random(f"{seed}:{number}"), folder).scenario()


def examine(data: Data, seed: int) -> dict[str, Any]:
    """What becomes of a scenario."""
    return asdict(examined(data, seed=seed))


def only_digest(data: Data) -> dict[str, Any]:
    """All that a run says."""
    return digest(simulated(data))


def differs_from(data: Data, said: dict[str, Any]) -> str:
    """In what a run differs from another one; empty where in nothing."""
    try:
        check_same(digest(simulated(data)), said, "plain Python")
    except Violation as error:
        return error.what
    return ""
