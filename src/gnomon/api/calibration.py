"""Learning a real server: constants from its logs, and why a simulation of it differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon.api.result import Progress, Result
from gnomon.api.serving import ScenarioLike, scenario

if TYPE_CHECKING:
    import polars as pl

    from gnomon.calibration.calibrate import Calibrated
    from gnomon.report.blocks import Block

__all__ = ["Calibration", "calibrate"]

CALIBRATION_FILE = "calibration.yaml"


@dataclass(frozen=True, eq=False)
class Calibration(Result):
    """The constants of a server with their intervals, and how they do on every load."""

    found: Calibrated = field(repr=False)

    @property
    def summary(self) -> dict[str, Any]:
        """The constants, and where they come from."""
        return self.found.calibration.model_dump(mode="json")

    def to_dict(self) -> dict[str, Any]:
        """The calibration, and each load's errors."""
        from gnomon.report.calibration import check_row

        return self.summary | {"loads": [check_row(one) for one in self.found.checks]}

    def text(self) -> list[Block]:
        """Constants, loads, and what the logs cannot tell."""
        from gnomon.report.calibration import blocks

        return blocks(self.found)

    def _frames(self) -> Mapping[str, Callable[[], pl.DataFrame]]:
        import polars as pl

        from gnomon.report.calibration import check_row, constant_rows

        return {
            "constants": partial(pl.DataFrame, constant_rows(self.found.calibration)),
            "loads": partial(pl.DataFrame, [check_row(one) for one in self.found.checks]),
        }

    def save(self, folder: str | Path) -> Path:
        """Write calibration.yaml into `folder`; returns it."""
        return self.write(Path(folder) / CALIBRATION_FILE).parent

    def write(self, path: str | Path) -> Path:
        """Write the calibration as YAML, for `--calibration`."""
        from gnomon.core.config import save

        return save(self.found.calibration, path)


def calibrate(
    logs: Sequence[str | Path],
    given: ScenarioLike = None,
    *,
    hold_out: Sequence[str] = (),
    kernel_scale: bool = False,
    clock: bool = True,
    on_progress: Progress | None = None,
    **overrides: Any,
) -> Calibration:
    """Fit a server's constants to what it left behind; `logs` are files or folders, each one load.

    `given` is the scenario of that server. Logs named in `hold_out` are foretold, not fitted. `kernel_scale` fits a
    factor on all kernels too; `clock` a lower clock of the GPU.

        gnomon.calibrate(["steps-20.csv", "steps-60.csv"], "server.yaml").write("calibration.yaml")
    """
    from gnomon.calibration.calibrate import calibrate as fit
    from gnomon.calibration.read import read_log

    chosen = scenario(given, **overrides)
    return Calibration(
        fit(
            [read_log(path) for path in logs],
            chosen,
            hold_out=hold_out,
            with_scale=kernel_scale,
            with_clock=clock,
            on_progress=on_progress,
        )
    )
