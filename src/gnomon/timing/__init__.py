"""From a model and a device to the seconds of one iteration."""

from gnomon.timing.baking import Baked, Timer, iteration_tables
from gnomon.timing.config import HostConfig, TableConfig, TimingConfig
from gnomon.timing.operators import Operator, stage_operators
from gnomon.timing.source import Context, Source, make_source, register_source, source_names

__all__ = [
    "Baked",
    "Context",
    "HostConfig",
    "Operator",
    "Source",
    "TableConfig",
    "Timer",
    "TimingConfig",
    "iteration_tables",
    "make_source",
    "register_source",
    "source_names",
    "stage_operators",
]
