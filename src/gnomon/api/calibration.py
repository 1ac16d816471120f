"""Learning a real server: constants from its logs, and why a simulation of it differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon.api.result import Progress, Result
from gnomon.api.serving import ScenarioLike, scenario
from gnomon.calibration.calibrate import Calibrated, with_facts
from gnomon.calibration.calibrate import calibrate as fit
from gnomon.calibration.gap import Gap, explain
from gnomon.calibration.read import read_log, read_logs
from gnomon.core.config import save
from gnomon.core.errors import DataError

__all__ = ["Calibration", "GapExplanation", "calibrate", "explain_gap"]

CALIBRATION_FILE = "calibration.yaml"


@dataclass(frozen=True, eq=False)
class Calibration(Result):
    """The constants of a server with their intervals, and how they do on every load."""

    view = "calibration"
    found: Calibrated = field(repr=False)

    @property
    def summary(self) -> dict[str, Any]:
        """The constants, and where they come from."""
        return self.found.calibration.model_dump(mode="json")

    def save(self, folder: str | Path) -> Path:
        """Write calibration.yaml into `folder`; returns it."""
        return self.write(Path(folder) / CALIBRATION_FILE).parent

    def write(self, path: str | Path) -> Path:
        """Write the calibration as YAML, for `--calibration`."""
        return save(self.found.calibration, path)


def calibrate(
    logs: Sequence[str | Path], given: ScenarioLike = None, *, hold_out: Sequence[str] = (),
    leave_out_slow: bool = True, kernel_scale: bool = False, clock: bool = True, on_progress: Progress | None = None,
    **overrides: Any,
) -> Calibration:  # fmt: skip
    """Fit a server's constants to what it left behind; `logs` are files or folders, each one load.

    `given` is the scenario of that server. Logs named in `hold_out` are predicted, not fitted. Rounds with a
    slow host are left out of both, unless `leave_out_slow` is False. `kernel_scale` fits a factor on all kernels too;
    `clock` a lower clock of the GPU.

        gnomon.calibrate(["steps-20.csv", "steps-60.csv"], "server.yaml").write("calibration.yaml")
    """
    chosen = scenario(given, **overrides)
    if "engine" not in chosen.model_fields_set:
        chosen = scenario(given, engine="none", **overrides)  # What is fitted takes the place of an engine's constants.
    found = fit(
        read_logs(logs), chosen, hold_out=hold_out, leave_out_slow=leave_out_slow, with_scale=kernel_scale,
        with_clock=clock, on_progress=on_progress,
    )  # fmt: skip
    return Calibration(found)


@dataclass(frozen=True, eq=False)
class GapExplanation(Result):
    """A recorded load beside its simulation, with likely causes of what differs."""

    view, file = "calibration:gap_view", "gap"
    gap: Gap = field(repr=False)

    @property
    def summary(self) -> list[dict[str, Any]]:
        """The causes, the largest first."""
        return [vars(one) for one in self.gap.causes]

    def save(self, folder: str | Path) -> Path:
        """Write gap.json and gap.html into `folder`; returns it."""
        super().save(folder)
        return self.write_page(Path(folder) / "gap.html").parent


def explain_gap(log: str | Path, given: ScenarioLike = None, **overrides: Any) -> GapExplanation:
    """Simulate a recorded load, request by request, and say what differs and why that may be."""
    read = read_log(log)
    if read.stamps is None:
        what = "has no requests with their stamps, so that nothing can be simulated beside it."
        raise DataError(what, where=str(log), fix="Give a client's file, or a folder with requests and iterations.")
    return GapExplanation(explain(with_facts(scenario(given, **overrides), [read]), read))
