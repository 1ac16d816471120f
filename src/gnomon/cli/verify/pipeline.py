"""`gnomon verify pipeline`: recorded and published results of training pipelines."""

from __future__ import annotations

import sys

import click

from gnomon.cli.printing import json_option, print_json, print_rows
from gnomon.core.errors import DataError

MAX_ROWS = 200


@click.command("pipeline")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE...")
@click.option("--all", "show_all", is_flag=True, help=f"Print every row, even beyond {MAX_ROWS} per file.")
@json_option
def command(files: tuple[str, ...], show_all: bool, as_json: bool) -> None:
    """Hold the pipeline simulator against FILES; exit code 1 when a value is off.

    A file is a list of single runs (JSON), a sweep CSV (its configuration beside it), bubble tables (JSON), or a
    PyTorch schedule CSV.

    \b
    Example:
      gnomon verify pipeline single_runs.json config_1_step0.1.csv zero_bubble_tables.json
    """
    from gnomon.verify.pipeline import Check, is_sweep_config, verify

    def row(check: Check) -> dict[str, object]:
        return {
            "what": check.what,
            "expected": check.expected,
            "obtained": check.obtained,
            "difference": check.difference,
            "ok": check.ok,
        }

    checked: dict[str, list[Check]] = {}
    for path in files:
        if path.endswith(".json") and is_sweep_config(path):
            continue  # Read together with its CSV.
        checked[path] = verify(path)
    if not checked:
        raise DataError("there are only configurations here, and no results.", fix="Name the CSV of the sweep.")
    wrong = {path: sum(not check.ok for check in checks) for path, checks in checked.items()}
    if as_json:
        print_json({path: [row(check) for check in checks] for path, checks in checked.items()})
    else:
        for path, checks in checked.items():
            shown = checks if show_all or len(checks) <= MAX_ROWS else [c for c in checks if not c.ok][:MAX_ROWS]
            if shown:
                print_rows([_printed(row(check)) for check in shown], title=path)
            worst = max((abs(check.difference) for check in checks if check.difference is not None), default=0.0)
            verdict = "all agree" if not wrong[path] else f"{wrong[path]} OFF"
            click.echo(f"{path}: {len(checks)} values, {verdict}; largest difference {worst:.2g}")
    if any(wrong.values()):
        sys.exit(1)


def _printed(row: dict[str, object]) -> dict[str, object]:
    """Six decimals for times and bubbles; the differences in short."""
    texts = {key: f"{row[key]:.6f}" for key in ("expected", "obtained") if isinstance(row[key], float)}
    if isinstance(row["difference"], float):
        texts["difference"] = f"{row['difference']:+.1e}"
    return row | texts
