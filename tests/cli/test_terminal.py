"""Every command at 80 and 120 columns, in a pseudo-terminal: each number of its `--json` headline appears whole."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click import unstyle

from gnomon.cli import printing
from gnomon.core import units
from gnomon.report.blocks import cell

ROOT = Path(__file__).parents[2]
SMALL = "--requests 60 --rate 20"
SEARCH = (
    "search --model llama-2-7b --gpu [a100,h100] --slo.ttft-s '{p90: 0.5}' --effort.min-requests 100"
    " --effort.max-requests 200 --effort.num-intervals 0 --jobs 1 --out OUT/search"
)
BETWEEN = "=== next ==="
RUN = """
import contextlib
import fcntl
import shlex
import struct
import sys
import termios
from gnomon.cli.main import main

def run(lines, more=""):
    for line in lines:
        try:
            main(shlex.split(line + more))
        except SystemExit as end:
            assert end.code in (0, None), (line, end.code)
        print({between!r}, flush=True)

with open(sys.argv[1], "w") as file, contextlib.redirect_stdout(file):
    run(sys.argv[2:], " --json")
for columns in {widths}:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    run(sys.argv[2:])
"""
"""All in one process: most of what it does is done once."""
WIDTHS = (80, 120)


def _latencies(found: dict[str, Any]) -> Iterator[str]:
    for spread in found["latency"].values():
        yield from (
            units.seconds(spread[name]) for name in ("mean", "p50", "p90", "p99") if spread.get(name) is not None
        )


def _simulate(found: dict[str, Any]) -> Iterator[str]:
    yield from _latencies(found)
    yield f"{found['throughput']['requests_per_s']:.4g}"


def _explain(found: dict[str, Any]) -> Iterator[str]:
    yield from (units.seconds(found[name]) for name in ("slow_s", "typical_s"))
    for part in found["parts"].values():
        yield from (units.seconds(value) for value in part.values() if value)


def _compare(found: dict[str, Any]) -> Iterator[str]:
    for one in found["summaries"].values():
        yield from (units.seconds(one["latency"]["e2e_s"][name]) for name in ("mean", "p99"))
        yield f"{one['throughput']['output_tokens_per_s']:,.0f}"
    for rows in found["differences"].values():
        yield from (units.seconds(abs(row["difference"])) for row in rows)


def _time(found: dict[str, Any]) -> Iterator[str]:
    for source, times in found.items():
        if source != "notes":
            yield from (units.seconds(row["seconds"]) for row in [*times["operators"], times["total"]])


def _search(found: dict[str, Any]) -> Iterator[str]:
    for one in found["ranked"]:
        yield from (f"{one['capacity_per_s']:.4g}", f"{one['cost_per_hour']:.2f}")


def _pipeline(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['total_time']:.6f}"
    for rank in found["ranks"]:
        yield from (cell(rank[name]) for name in ("busy", "warm_up", "communication", "peak_memory"))


def _posttrain(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['step_s']:.1f}"
    for step in found["steps"]:
        yield from (cell(step[name]) for name in ("seconds", "rollout ends", "training", "tokens/s"))


def _policies(found: dict[str, Any]) -> Iterator[str]:
    for row in found["policies"]:
        yield from (cell(row["step s"]), cell(row["tokens/s"]), cell(row["ratio"]), f"{row['busy']:.1%}")


def _routers(found: dict[str, Any]) -> Iterator[str]:
    for row in found["rows"]:
        del row["seed"], row["finished"]
    names = {row["router"] for row in found["rows"]}
    for name in names:
        rows = [row for row in found["rows"] if row["router"] == name]
        for figure in ("e2e_mean_s", "ttft_p99_s"):
            yield units.seconds(sum(row[figure] for row in rows) / len(rows))


def _checks(found: dict[str, Any]) -> Iterator[str]:
    for row in found["checks"]:
        yield from (cell(row["published"]), cell(row["ours"]))


def _devices(found: list[dict[str, Any]]) -> Iterator[str]:
    for row in found:
        yield from (row["name"], f"{row['price_per_hour']:.2f}", f"{row['bandwidth_bytes_s'] / 1e9:,.0f}")


def _workload(found: dict[str, Any]) -> Iterator[str]:
    for row in found["percentiles"]:
        yield from (cell(value) for value in row.values())


def _cells(*names: str) -> Callable[[Any], Iterator[str]]:
    """These values of every row, as a table shows them."""

    def numbers(found: list[dict[str, Any]]) -> Iterator[str]:
        for row in found:
            yield from (cell(row[name]) for name in names)

    return numbers


def _bench(found: dict[str, Any]) -> Iterator[str]:
    for row in found["rows"]:
        yield from (row["workload"], f"{row['capacity_per_s']:.4g}")


def _converted(found: dict[str, Any]) -> Iterator[str]:
    for one in found["mapped"]:
        yield one["keys"]


COMMANDS: dict[str, Callable[[Any], Iterator[str]]] = {
    f"simulate {SMALL}": _simulate,
    "explain examples/serving/queue_md1.yaml --no-advice": _explain,
    f"compare {SMALL} --vary replica.tensor_parallel=1,2": _compare,
    "time --gpu h100 --tp 2 --source roofline --source auto": _time,
    SEARCH: _search,
    "pipeline run --schedule zb-h1": _pipeline,
    "posttrain run examples/posttrain/small.yaml --num-steps 1": _posttrain,
    "posttrain compare examples/posttrain/small.yaml --num-steps 1 --no-oracle": _policies,
    "route compare chat --routers round_robin,least_outstanding --num-seeds 2 --num-requests 60 --jobs 1": _routers,
    "verify posttrain --only Y": _checks,
    "catalog devices": _devices,
    f"workload show {SMALL}": _workload,
    "workload presets": _cells("preset", "prompt mean", "prompt p90", "output mean"),
    "workload formats": _cells("format"),
    "workload clients": _cells("client"),
    "catalog nodes": _cells("name", "num_gpus"),
    "catalog models": _cells("name", "num_layers", "hidden_size", "max_context_tokens"),
    "catalog quantization": _cells("name"),
    "catalog sources": _cells("source"),
    "pipeline schedules": _cells("name"),
    "check-policy examples/own/shortest_first.py": _cells("test"),
    "bench --models llama-2-7b --workloads [chat-1m] --policies [vllm_v1] --effort.max-requests 1000 --jobs 1": _bench,
    "convert vllm 'vllm serve meta-llama/Llama-3.1-8B -tp 2'": _converted,
    "verify fetch": lambda found: _cells("data set", "here")(found["sets"]),
}
"""Not among them: what trains, measures on a GPU or takes minutes (`route` but compare, `profile`, `engine`, the other
checks of `verify`, `calibrate`, `explain-gap`), what only writes files (`workload export` and `fit`, `pipeline sweep`,
`plot`, `convert` and `all`), what prints no table (`ui`, `completion`, `posttrain decide` and
`calibrate`), and `posttrain plan`, which has its own test."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[int, list[str]]]:
    """What each command prints with `--json`, and on terminals of so many columns."""
    folder = tmp_path_factory.mktemp("terminal")
    lines = [command.replace("OUT", str(folder)) for command in COMMANDS]
    words = [sys.executable, "-c", RUN.format(between=BETWEEN, widths=WIDTHS), str(folder / "json"), *lines]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        read = bytearray()
        with contextlib.suppress(OSError):  # Linux says so where the last writer has gone.
            while some := os.read(ours, 65536):
                read += some
        os.close(ours)
        _, said = process.communicate()
    assert process.returncode == 0, said.decode()
    count = len(COMMANDS)
    found = (folder / "json").read_text(encoding="utf-8").split(BETWEEN)[:-1]
    shown = unstyle(read.decode()).replace("\r\n", "\n").split(BETWEEN)[:-1]
    assert (len(found), len(shown)) == (count, count * len(WIDTHS))
    return found, {columns: shown[i * count : (i + 1) * count] for i, columns in enumerate(WIDTHS)}


@pytest.mark.parametrize("columns", WIDTHS)
def test_every_number_of_the_headline_is_whole(printed: tuple[list[str], dict[int, list[str]]], columns: int) -> None:
    found, shown = printed
    for (command, headline), said, text in zip(COMMANDS.items(), found, shown[columns], strict=True):
        numbers = list(headline(json.loads(said)))
        assert numbers, command
        for number in numbers:
            assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d]|[.,]\d)", text), f"{number} in {command}:\n{text}"
        tables = [line for line in text.splitlines() if "─" in line]
        assert all(len(line) <= columns for line in tables), f"{command}:\n{text}"


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_command_is_continued_and_stays_the_same_command(width):
    drafts = """'{"method": "mtp", "n": 3}'"""
    text = f"vllm serve meta-llama/Llama-3.1-8B -tp 2 --speculative-config {drafts} --max-num-seqs 256"
    shown = printing.continued(text, width)
    assert shlex.split(shown.replace("\\\n", " ")) == shlex.split(text)
    assert max(map(len, shown.splitlines())) <= max(width, len(f"   {drafts} \\"))
    assert printing.continued("first\nsecond --flag", width) == "first\nsecond --flag"
