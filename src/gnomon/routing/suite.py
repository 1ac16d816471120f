"""Eleven kinds of fleets at three loads (`suite.yaml`)."""

from functools import cache
from importlib import resources
from typing import Any

from gnomon.core.config import build
from gnomon.core.text import own_yaml
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.config import LengthsKnown, RouterConfig


@cache
def _file() -> dict[str, Any]:
    return own_yaml(resources.files("gnomon.routing") / "suite.yaml")


@cache
def cells() -> dict[str, Scenario]:
    """Every fleet at every load, as `documents-75`."""
    fleets = {name: (fleet["scenario"], fleet["rates"]) for name, fleet in _file()["fleets"].items()}
    return {
        f"{name}-{load}": build(Scenario, _file()["common"] | own | {"workload": own["workload"] | {"rate": rate}})
        for name, (own, rates) in fleets.items()
        for load, rate in zip(_file()["loads"], rates, strict=True)
    }


def tuned_routers(lengths: LengthsKnown) -> dict[str, RouterConfig]:
    """Routers of others with weights that suit these fleets better than their defaults."""
    return {name: RouterConfig(**router, lengths=lengths) for name, router in _file()["contenders"].items()}
