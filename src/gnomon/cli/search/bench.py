"""`gnomon bench`: the workload suite x schedulers x models, as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gnomon.api.search import BenchConfig, bench
from gnomon.cli.options import SectionedCommand, config_options, worker_options
from gnomon.cli.printing import json_option, show
from gnomon.cli.progress import progress
from gnomon.core.files import write_text


@click.command(cls=SectionedCommand)
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@config_options(BenchConfig)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the table as JSON here.")
@worker_options
@json_option
def command(
    file: str | None,
    overrides: dict[str, Any],
    out: Path | None,
    jobs: int | None,
    ray: str | None,
    as_json: bool,
) -> None:
    """Capacity of every scheduler on every workload of the suite, for several models.

    Each model runs on the fewest GPUs of one server on which it fits. The same command gives the same table, to the
    last digit. FILE (YAML) or flags change the suite.

    \b
    Examples:
      gnomon bench
      gnomon bench --models llama-3-8b --workloads "[chat-1m, azure-code]" --policies "[vllm_v1, sglang]"
    """
    with progress("measuring") as on_progress:
        found = bench(file, jobs=jobs, ray=ray, on_progress=on_progress, **overrides)
    if out is not None:
        write_text(out, json.dumps(found.to_dict(), indent=1))
    show(found, as_json=as_json)
