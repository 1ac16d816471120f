"""`gnomon search`: the best deployment for a model, a workload and an SLO."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon.cli.options import config_options
from gnomon.cli.printing import json_option, print_json, print_rows
from gnomon.search.config import SearchConfig

if TYPE_CHECKING:
    from gnomon.search.matrix import Matrix
    from gnomon.search.study import Found

NOTHING_QUALIFIES = 1
"""Exit code where no configuration meets the SLO."""
MAX_REASONS = 10


def worker_options(function: Any) -> Any:
    """Where to run."""
    for decorate in reversed(
        (
            click.option("--jobs", type=click.IntRange(min=1), help="Local processes.  [default: all cores]"),
            click.option("--on", "where", type=click.Choice(["local", "ray"]), default="local", help="Where to run."),
            click.option("--ray.address", "address", default="auto", help="Ray cluster: auto, local, or head:6379."),
        )
    ):
        function = decorate(function)
    return function


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@config_options(SearchConfig)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results.  [default: runs/search/FILE]")
@click.option("--fresh", is_flag=True, help="Forget what an earlier run left in the folder.")
@worker_options
@click.option("--top", type=click.IntRange(min=1), default=15, show_default=True, help="Rows of the table.")
@json_option
def command(
    file: str | None,
    overrides: dict[str, Any],
    out: Path | None,
    fresh: bool,
    jobs: int | None,
    where: str,
    address: str,
    top: int,
    as_json: bool,
) -> None:
    """Find the best configuration of the space that FILE (YAML) describes; flags override its fields.

    The folder gets a report, the ranking, the winner's scenario (best.yaml, for `gnomon simulate`) and every result as
    it comes: a search that was interrupted goes on where it stopped when it is run again. With several models or
    workloads, each is searched, and the choices are compared. Exit code 1: nothing meets the SLO.

    \b
    Examples:
      gnomon search examples/search/small.yaml
      gnomon search examples/search/llama2_70b_chat.yaml --strategy exhaustive --jobs 2
      gnomon search examples/search/small.yaml --on ray --ray.address head:6379
    """
    from gnomon.cli.progress import progress
    from gnomon.core.config import load

    question = load(SearchConfig, file, overrides)
    folder = out or Path("runs") / "search" / (Path(file).stem if file else Path(question.model).stem)
    if fresh:
        for results in (folder / "results.jsonl", *folder.glob("*/results.jsonl")):
            results.unlink(missing_ok=True)
    run = {"jobs": jobs, "ray": address if where == "ray" else None}
    try:
        with progress("searching") as on_progress:
            found = _search(question, folder, run | {"on_progress": on_progress})
    except KeyboardInterrupt:
        click.echo(f"Interrupted; what was found is in {folder}. The same command goes on from there.", err=True)
        raise
    _hand_over(found, folder, top, as_json)


def _search(question: SearchConfig, folder: Path, run: dict[str, Any]) -> Found | Matrix:
    from gnomon.search.matrix import search_matrix
    from gnomon.search.study import search

    if question.is_matrix:
        return search_matrix(question, folder=folder, **run)
    return search(question, results=folder / "results.jsonl", **run)


def _hand_over(found: Found | Matrix, folder: Path, top: int, as_json: bool) -> None:
    """Print and write the answer; the exit code says whether there is one."""
    from gnomon.report.search.files import answer, matrix_answer, write_matrix, write_search
    from gnomon.search.matrix import Matrix, cell_folder

    if isinstance(found, Matrix):
        for cell, one in found.cells.items():
            write_search(one, cell_folder(folder, *cell), deployment(one))
        write_matrix(found, folder)
        print_json(matrix_answer(found)) if as_json else print_matrix(found)
        qualified = any(one.best for one in found.cells.values())
    else:
        command = deployment(found)
        write_search(found, folder, command)
        print_json(answer(found, command)) if as_json else print_found(found, top, command)
        qualified = found.best is not None
    click.echo(f"Everything is in {folder}.", err=True)
    if not qualified:
        sys.exit(NOTHING_QUALIFIES)


def deployment(found: Found) -> str:
    """The winner as a `vllm serve` command; empty where there is none."""
    from gnomon.convert import vllm_flags
    from gnomon.search.winner import winning_scenario

    if found.best is None:
        return ""
    return shlex.join(vllm_flags(winning_scenario(found.search, found.best)))


def print_found(found: Found, top: int, command: str) -> None:
    """The ranking, the reasons, the winner."""
    from gnomon.report.search import text as words

    click.echo(words.question_words(found.search))
    rows = words.ranking_rows(found, top)
    if rows:
        text = ("configuration", "limited by", "front")
        print_rows(rows, right=[name for name in rows[0] if name not in text])
    reasons = words.reason_rows(found, MAX_REASONS)
    if reasons:
        print_rows(reasons, title="Not in the ranking")
    for line in words.account(found):
        click.echo(line)
    if found.best is None:
        click.echo(words.nothing_qualifies(found))
        return
    click.echo(f"Best: {found.best.label}")
    click.echo(f"With vLLM: {command}")
    policy = found.best.overrides["batching.policy"]
    if policy != "vllm_v1":
        click.echo(f"(vLLM has no {policy} scheduler any more: the command gives it the same limits.)")


def print_matrix(matrix: Matrix) -> None:
    """The best of every cell, then what each choice is worth elsewhere."""
    from gnomon.report.search import text as words

    rows = [{"model": m, "workload": w, **words.cell_row(found)} for (m, w), found in matrix.cells.items()]
    print_rows(rows, title="Best per workload")
    for model in matrix.models:
        shares = words.worth_rows(matrix, model)
        if len(shares) > 1:
            print_rows(shares, title=f"{model}: a choice's worth, relative to the best", right=list(shares[0])[1:])
