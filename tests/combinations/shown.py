"""What users are shown of a run, and the same run by other ways: from its saved scenario, and request by request as
`gnomon serve` runs it."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from combinations.checks import ALIKE, Violation, check_same, digest, require
from gnomon.api.serving import Simulation
from gnomon.cli.printing import print_blocks
from gnomon.core.config import build, dump
from gnomon.core.errors import GnomonError
from gnomon.live.cluster import Call, LiveCluster
from gnomon.report.page import html_of
from gnomon.report.serving.exports import EXPORTS
from gnomon.report.serving.files import EXTRAS, spelled_out, write_run
from gnomon.serving.engine.state import FINISHED
from gnomon.serving.run.simulate import Run, run
from gnomon.serving.scenario import Scenario
from gnomon.workload import Requests

RARELY = 0.05
"""How often capacity and intervals are shown, too, which take dozens of runs."""


def check_saved(done: Run, said: dict[str, Any]) -> None:
    """The scenario in the folder of a run gives the same run."""
    saved = yaml.safe_load(dump(spelled_out(done.scenario)))
    check_same(said, digest(run(build(Scenario, saved))), "saved")


def check_shown(done: Run, chance: random.Random) -> None:
    """Tables, files and exports can be written, and what is JSON is JSON; now and then all that the command prints."""
    shown = Simulation(done, None, with_intervals=False)
    for name in shown.frames:
        require(shown.frames[name].width, "shown", f"{name} has no columns")
    extras = EXTRAS if chance.random() < 0.3 else ()
    with tempfile.TemporaryDirectory() as folder:
        write_run(done, shown.summary, folder, extras)
        for file in (*Path(folder).glob("*.json"), *Path(folder).glob("*.jsonl")):
            _check_json(file)
    name = chance.choice(list(EXPORTS))
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(GnomonError):  # Some formats cannot say all.
        for file in shown.export(name, folder):
            if file.suffix in (".json", ".jsonl"):
                _check_json(file)
    if chance.random() < RARELY:
        every = replace(shown, with_intervals=True)
        json.dumps(every.to_dict(), allow_nan=False, default=str)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            print_blocks(every.text())
        require(printed.getvalue() and html_of(every.text()), "shown", "nothing is printed")


def _check_json(file: Path) -> None:
    texts = [file.read_text()] if file.suffix == ".json" else file.read_text().splitlines()  # Blank lines are none.
    for text in texts:
        json.loads(text, parse_constant=lambda word: _not_json(file.name, word))


def _not_json(name: str, word: str) -> None:
    raise Violation("shown", f"{name} says {word}, which is no JSON")


def check_served(done: Run, chance: random.Random) -> bool:
    """Request by request all come out as together; and where clients leave, nothing is left behind. Returns whether
    that could be looked at: only requests that wait for nobody, and whose prompts nobody shares, are sent so. Those of
    one moment come one after another here; together they are queued before a batch is formed, and a router that sees
    that may send them to a replica that can never admit them."""
    scenario, requests = done.scenario, done.requests
    others = requests.concurrency or len(requests.parents) or requests.prefix_hashes.size or scenario.time_limit_s
    if others or scenario.workload.patience is not None:
        return False
    try:
        live = _opened(scenario, len(requests))
    except GnomonError:
        return False
    same = run(scenario, requests=requests, adjust=lambda _: live.times.tables).cluster.requests
    ids = _sent(live, requests, {})
    q = live.cluster.requests[ids]
    ended = same.status == FINISHED
    is_alike = np.array_equal(q.status == FINISHED, ended)
    if np.unique(requests.arrival_s).size < len(requests):
        is_alike |= live.cluster.replicas.size > 1
        ended = np.zeros(len(requests), bool)
    require(is_alike, "served", "other requests end")
    for stamp, reply in (("first_token_s", "first_reply_s"), ("finished_s", "last_reply_s")):
        off = np.abs(q[stamp] + q[reply] - same[stamp])[ended]
        worst = int(off.argmax()) if off.size else 0
        require(
            not off.size or off[worst] <= 10 * ALIKE,
            "served",
            f"{stamp} of request {worst} is off by {off.max(initial=0.0)} s",
        )
    _check_empty(live, ids)
    leaving = {number: chance.choice([0.0, 0.003, 0.05, 0.4]) for number in range(0, len(requests), 2)}
    other = _opened(scenario, len(requests))
    _check_empty(other, _sent(other, requests, leaving))
    return True


def _opened(scenario: Scenario, count: int) -> LiveCluster:
    return LiveCluster(scenario, slots=max(16, count), room=1 << 16)


def _sent(live: LiveCluster, requests: Requests, leaving: dict[int, float]) -> list[int]:
    """Send them at their moments and go on to the end; some leave so many seconds later."""
    ids: list[int] = []
    due = sorted((float(requests.arrival_s[number]) + after_s, number) for number, after_s in leaving.items())
    now_s = 0.0
    for _ in range(200_000):
        next_s = float(requests.arrival_s[len(ids)]) if len(ids) < len(requests) else math.inf
        now_s = max(now_s, min(next_s, due[0][0] if due else math.inf, live.next_s()))
        if now_s == math.inf:
            return ids
        live.advance(now_s)
        while len(ids) < len(requests) and requests.arrival_s[len(ids)] <= now_s:
            ids.append(live.send(now_s, _asked(requests, len(ids))))
        while due and due[0][0] <= now_s:
            live.leave(ids[due.pop(0)[1]], now_s)
        live.advance(now_s)
    raise Violation("served", "it does not end")


def _asked(requests: Requests, number: int) -> Call:
    """A request whose prompt nobody shares."""
    first, prompt = 1 + 1_000_000 * number, int(requests.prompt_tokens[number])
    tokens = range(first, first + prompt + int(requests.output_tokens[number]))
    adapter = int(requests.adapter[number]) if len(requests.adapter) else -1
    user_class = int(requests.user_class[number]) if len(requests.user_class) else 0
    return Call(tokens, prompt, adapter=adapter, user_class=user_class, session=int(requests.session[number]))


def _check_empty(live: LiveCluster, ids: list[int]) -> None:
    require(live.ended(np.array(ids)).all(), "served", "a request does not end")
    for one in list(live._held):
        live.leave(one, 1e9)
    replicas = live.cluster.replicas
    books = ("num_waiting", "num_running", "num_grouped", "num_in_flight", "num_holding", "num_outstanding",
             "num_held", "num_coming", "prefill_left", "decode_left", "waiting_tokens", "num_loose",
             "step_kv")  # fmt: skip
    for book in books:
        require(not replicas[book].any(), "served", f"{book} is {replicas[book]}")
    require(np.array_equal(replicas.free_blocks, replicas.num_blocks), "served", "blocks are not free")
    require(not live.cluster.growth.any() and live.num_live == 0, "served", "something is left behind")
