"""From a model and a device to the seconds of one iteration."""

from gnomon.timing.baking import Baked, Known, iteration_tables
from gnomon.timing.breakdown import Batch, OperatorTime, breakdown
from gnomon.timing.config import TableConfig, TimingConfig
from gnomon.timing.host import HostConfig, HostPhase
from gnomon.timing.operators import Operator, stage_operators
from gnomon.timing.source_registry import SOURCES
from gnomon.timing.sources import Context, Source, make_source, timing_source
from gnomon.timing.timer import Timer
