"""Modules that code of users may still import by the names they had in the release before: they work, with a note."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "gnomon.core.jit": "gnomon.extend",
    "gnomon.serving.accounts": "gnomon.serving.policies.service_by_class",
    "gnomon.serving.fleet": "gnomon.serving.autoscaling",
    "gnomon.serving.fleet.controllers": "gnomon.serving.autoscaling.controllers",
    "gnomon.serving.metrics": "gnomon.serving.results.metrics",
    "gnomon.serving.outside": "gnomon.serving.engine.context",
    "gnomon.serving.prefix_cache": "gnomon.serving.engine.prefix_cache",
    "gnomon.serving.routers.foretelling": "gnomon.serving.routers.prediction",
    "gnomon.serving.sections": "gnomon.serving.scenario.config",
    "gnomon.serving.simulate": "gnomon.serving.run.simulate",
    "gnomon.serving.state": "gnomon.serving.engine.state",
    "gnomon.serving.grouped": "gnomon.serving.engine.decode_group",
    "gnomon.serving.verbs": "gnomon.serving.engine.batch_operations",
}


class _Moved(MetaPathFinder, Loader):
    """Answers for the old names, after everybody else has said that there is no such module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        note = f"{spec.name} is now {MOVED[spec.name]}. Code of your own imports from gnomon.extend, which stays."
        warnings.warn(note, FutureWarning, stacklevel=2)

    def exec_module(self, module: ModuleType) -> None:
        here = import_module(MOVED[module.__name__])
        vars(module).update({name: value for name, value in vars(here).items() if not name.startswith("__")})


sys.meta_path.append(_Moved())
