"""`gnomon train`: a training step, and the layout that is fastest."""

from typing import Any

from gnomon.api import train as api
from gnomon.cli.lazy import NearGroup
from gnomon.cli.options import SectionedCommand, about, answered, config_options, scenario_argument, verb

command = NearGroup("train", help=about("train"))


@command.command(cls=SectionedCommand)
@scenario_argument("[CONFIG]")
@verb("train step")
@answered("timing", out="Folder for the figures and the configuration.", message="wrote {}")
@config_options(api.TrainConfig)
def step(file: str | None, ignore_memory: bool, overrides: dict[str, Any], on_progress: Any) -> Any:
    return api.train(file, check=not ignore_memory, **overrides)


@command.command(cls=SectionedCommand)
@scenario_argument("[CONFIG]")
@verb("train plan")
@answered("bounding layouts", out="Folder for the report and the layouts.", message="wrote {}")
@config_options(api.TrainConfig)
def plan(file: str | None, overrides: dict[str, Any], **given: Any) -> Any:
    return api.train_plan(file, **given, **overrides)
