"""`gnomon verify timing`: estimators and roofline against measured operators."""

from __future__ import annotations

import click

from gnomon.cli.printing import json_option
from gnomon.cli.verify.verdict import check


@click.command()
@click.option("--data", type=click.Path(), envvar="GNOMON_REFERENCE", help="Folder of reference data.")
@click.option("--forests", is_flag=True, help="Train random forests too, on a sample of the tables (minutes).")
@click.option("--roofline", is_flag=True, help="The roofline alone against every measured table instead.")
@click.option("--tables", "each_table", is_flag=True, help="One line per measured table rather than per operator.")
@json_option
def command(data: str | None, forests: bool, roofline: bool, each_table: bool, as_json: bool) -> None:
    """Held-out error of the timing estimators on measured operators.

    Shuffled: five folds at random, the error between measured points. Unshuffled: ten folds of consecutive rows, the
    error across gaps and beyond the ends. Errors are absolute and relative, in %. Exit code 1 when the default
    estimator's mean shuffled error on any operator passes 5 %.

    \b
    Examples:
      gnomon verify timing --data reference/
      gnomon verify timing --data reference/ --forests
      gnomon verify timing --data reference/ --roofline --json
    """
    if roofline:
        check("roofline", data=data, as_json=as_json)
    else:
        check("timing", doing="cross-validating", data=data, forests=forests, each_table=each_table, as_json=as_json)
