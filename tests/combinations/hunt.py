"""Many cases one after another, in processes that are watched; what fails is made smaller."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from combinations.worker import FIRST_S, Worker

PLAIN_TOKENS = 200
COMPILED_S = 0.08
"""Cases up to this size are run in plain Python, too, where they take no longer than this as compiled: there is much
that tokens do not tell of, a controller that measures its replicas, say."""
PLAIN_S = 20.0
MOST_SHRUNK = 3
"""Cases of one kind of violation that are made smaller; the others are much like them."""


@dataclass
class Row:
    """What became of one case."""

    seed: int
    number: int
    status: str
    kind: str
    what: str
    mended: int
    """How often the draw was refused before it was not."""
    checks: list[str]
    scenario: str
    """As YAML, made as small as could be; empty where nothing is wrong."""


class Hunt:
    """Draws and examines cases."""

    def __init__(self, folder: Path, *, shrinks: bool = True, limit_s: float = 60.0) -> None:
        self.folder, self.shrinks = str(folder), shrinks
        self.compiled = Worker(warm_up, limit_s=limit_s)
        self.plain = Worker(warm_up, compiled=False, limit_s=limit_s)
        self.shrunk: dict[str, int] = {}

    def close(self) -> None:
        """End the processes."""
        self.compiled.close()
        self.plain.close()

    def case(self, seed: int, number: int) -> Row:
        """Draw one and see."""
        from combinations.cases import draw_and_examine

        try:
            try:
                data, refusals, ended = self.compiled.ask(draw_and_examine, seed, number, self.folder)
            except TimeoutError:  # It may have had to compile, which is on the disk now.
                data, refusals, ended = self.compiled.ask(draw_and_examine, seed, number, self.folder, limit_s=FIRST_S)
        except (TimeoutError, RuntimeError) as error:
            data, refusals = self._only_drawn(seed, number), []
            ended = {"status": "violation", "kind": _kind_of(error), "what": str(error), "done": ()}
        if ended["status"] == "ok" and ended["tokens"] <= PLAIN_TOKENS and ended["seconds"] <= COMPILED_S:
            ended = self._held_against_plain(data, ended)
        text = ""
        if ended["status"] == "violation":
            text = yaml.safe_dump(self._small(data, ended, number), sort_keys=False)
        return Row(
            seed, number, ended["status"], ended["kind"], ended["what"], len(refusals), list(ended["done"]), text
        )

    def _only_drawn(self, seed: int, number: int) -> Any:
        from combinations.cases import drawn_only

        return self.compiled.ask(drawn_only, seed, number, self.folder)

    def _held_against_plain(self, data: Any, ended: Any) -> Any:
        from combinations.cases import differs_from, only_digest

        try:
            said = self.plain.ask(only_digest, data, limit_s=PLAIN_S)
            told = self.compiled.ask(differs_from, data, said)
        except TimeoutError:
            return ended  # It is a hundred times slower: that says nothing.
        except RuntimeError as error:
            told = f"plain Python: {error}"
        if told:
            return {**ended, "status": "violation", "kind": "plain Python", "what": told}
        return {**ended, "done": (*ended["done"], "plain Python")}

    def _small(self, data: Any, ended: Any, number: int) -> Any:
        """The scenario made smaller, unless there are enough of its kind."""
        count = self.shrunk[ended["kind"]] = self.shrunk.get(ended["kind"], 0) + 1
        if not self.shrinks or count > MOST_SHRUNK:
            return data
        from combinations.shrink import shrunk

        is_hang = ended["kind"] == "never ends"
        return shrunk(data, self._fails_like(ended["kind"], number), most=40 if is_hang else 250)

    def _fails_like(self, kind: str, number: int) -> Callable[[Any], bool]:
        from combinations.cases import examine

        def fails(smaller: Any) -> bool:
            try:
                if kind == "plain Python":
                    return self._held_against_plain(smaller, {"status": "ok", "done": ()})["status"] == "violation"
                return self.compiled.ask(examine, smaller, number, limit_s=10.0)["kind"] == kind
            except (TimeoutError, RuntimeError) as error:
                return _kind_of(error) == kind

        return fails


def warm_up() -> None:
    """The simplest scenario there is."""
    from combinations.cases import only_digest

    only_digest({"workload": {"num_requests": 2}, "timing": {"source": "table", "table": {"per_iteration": 0.01}}})


def _kind_of(error: Exception) -> str:
    return "never ends" if isinstance(error, TimeoutError) else "process died"


def logged(path: Path) -> dict[tuple[int, int], Row]:
    """The cases that a log holds, by seed and number."""
    rows = [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return {(row.seed, row.number): row for row in rows}


def log(path: Path, row: Row) -> None:
    """Add a case to a log."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row)) + "\n")
