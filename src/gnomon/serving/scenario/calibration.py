"""A calibration: constants of one server, fitted to what it left behind (`gnomon calibrate`), as a small YAML file.

A scenario that names one (`calibration: FILE`) takes its constants where it gives none itself.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from gnomon.core.arrays import Floats
from gnomon.core.config import Config, load
from gnomon.core.errors import ConfigError
from gnomon.timing.host import PHASES

SECTIONS = ("timing", "front_end")


class Constant(Config):
    """One fitted constant."""

    value: float
    low: float
    """Lower end of its 90 % interval."""
    high: float
    """Upper end."""
    identified: bool = True
    """Whether the logs tell it apart from zero and from the others."""


class Load(Config):
    """One log, and how well the constants predict it."""

    name: str
    steps: int = 0
    requests: int = 0
    fitted: bool = True
    """False: it was left out of the fit, and predicted."""
    error: float
    """Of the mean (simulated over recorded, less one): steps where there are any, else time per output token."""


class Provenance(Config):
    """What the constants were fitted on."""

    gnomon: str
    model: str
    device: str
    source: str
    """Of the kernels' times."""
    loads: tuple[Load, ...]
    notes: tuple[str, ...] = ()
    """What the logs could not tell."""


class Calibration(Config):
    """Constants of a server, each with its interval, and where they come from."""

    format: Literal["gnomon-calibration"]
    version: Literal[1] = 1
    constants: dict[str, Constant]
    """By the dotted name of the scenario's field: timing.host.decode.per_iteration_s, timing.clock, ..."""
    names: tuple[str, ...] = ()
    """Constants in the order of `spread`."""
    spread: tuple[tuple[float, ...], ...] = ()
    """A matrix S with S Sᵀ their covariance: the constants err together."""
    error: Annotated[float, Field(ge=0)] = 0.0
    """Relative error of iterations that stays (standard deviation over loads)."""
    drift: Annotated[float, Field(ge=0)] = 0.0
    """The same of the host's time from one recording to the next."""
    provenance: Provenance

    @model_validator(mode="after")
    def _whole(self) -> Calibration:
        for name in self.constants:
            if name.partition(".")[0] not in SECTIONS:
                raise ConfigError(f"{name} is no constant of a server.", fix=f"Known: {', '.join(SECTIONS)}.")
        if len(self.spread) != len(self.names) or any(name not in self.constants for name in self.names):
            raise ConfigError("spread has no row for each of its names.", fix="Calibrate again.")
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """The constants as dotted settings of a scenario; those that could not be identified too, as they were used."""
        values: dict[str, Any] = {name: constant.value for name, constant in self.constants.items()}
        if any(name.startswith("timing.host.") for name in values):
            host = ("timing.host", *(f"timing.host.{phase}" for phase in PHASES))
            values |= {f"{place}.asynchronous": False for place in host}  # The constants are what was not hidden.
        return values

    def drawn(self, normals: Floats) -> dict[str, float]:
        """The constants moved within their common uncertainty by standard normal numbers, none below zero, and no share
        or clock beyond one."""
        if not self.names:
            return {}
        spread = np.array(self.spread)
        at = np.array([self.constants[name].value for name in self.names])
        most = [1.0 if name.endswith(("share", "clock")) else np.inf for name in self.names]
        moved = np.clip(at + spread @ np.resize(normals, spread.shape[1]), 0.0, most)
        return dict(zip(self.names, moved.tolist(), strict=True))


def read_calibration(path: str | Path) -> Calibration:
    """Read what `gnomon calibrate --out` wrote."""
    file = Path(path)
    return _read(str(file), file.stat().st_mtime_ns if file.is_file() else 0)


def foreign(path: str | None, model: str, device: str) -> list[str]:
    """Words on a calibration of another model or GPU than the scenario's."""
    about = read_calibration(path).provenance if path else None
    if about is None or (about.model, about.device) == (model, device):
        return []
    return [f"The calibration is of {about.model} on {about.device}, this is {model} on {device}: its constants are "
            "those of another server."]  # fmt: skip


@lru_cache(maxsize=16)
def _read(path: str, _changed: int) -> Calibration:
    return load(Calibration, path)
