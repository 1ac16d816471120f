"""Random scenarios, drawn from the models of the configuration and from the registries: what is added to either is
drawn without being named here.

A field is given or left out, a number lies near its default or in the range that its unit suggests, a name comes from
its registry. Only what would make a run long is bounded by name (`RANGES`), and only what a scenario cannot be drawn
with is left out by name (`LEFT_OUT`); a text that nobody knows the names of is an error, so that none is forgotten.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import random
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import gnomon.serving
from combinations.traces import draw_trace
from gnomon import catalog
from gnomon.core.config import Choice, submodels
from gnomon.core.registry import Registry
from gnomon.serving.autoscaling.controllers import CONTROLLERS
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.acceptance import acceptance_names
from gnomon.serving.scenario.engine_presets import engine_names
from gnomon.serving.scenario.lora import measured_curves
from gnomon.timing import SOURCES
from gnomon.workload.clients import clients
from gnomon.workload.lengths import Empirical

Data = dict[str, Any]
Random = random.Random

GIVEN = 0.3
"""How often a field that may be left out is given."""
OFTEN = {
    "Scenario.engine": 0.2, "Scenario.fleet": 0.3, "Scenario.pools": 0.3, "Scenario.disaggregation": 0.6,
    "Scenario.time_limit_s": 0.08, "Scenario.seed": 0.5, "Scenario.model": 0.5, "Scenario.device": 0.5,
    "Scenario.batching": 0.8, "Scenario.router": 0.6, "Scenario.timing": 1.0, "Scenario.workload": 1.0,
    "Scenario.replica": 1.0, "Scenario.num_replicas": 0.6, "ReplicaConfig.num_kv_blocks": 0.8,
    "ReplicaConfig.tensor_parallel": 0.1, "ReplicaConfig.max_request_tokens": 0.3, "BatchingConfig.policy": 0.9,
    "RouterConfig.name": 1.0, "AdmissionConfig.name": 1.0, "WorkloadConfig.num_requests": 1.0,
    "WorkloadConfig.client": 0.05, "WorkloadConfig.preset": 0.03, "WorkloadConfig.rate": 0.95,
    "WorkloadConfig.arrivals": 0.7, "WorkloadConfig.lengths": 1.0, "WorkloadConfig.trace": 0.15,
    "WorkloadConfig.agents": 0.2, "WorkloadConfig.sessions": 0.25, "WorkloadConfig.max_tokens": 0.1,
    "TimingConfig.source": 1.0, "TimingConfig.dtype": 0.05, "TimingConfig.kv_dtype": 0.05, "TimingConfig.free": 0.02,
    "TimingConfig.scale": 0.1, "FleetConfig.cold_start": 1.0, "FleetConfig.max_replicas": 0.7,
    "FleetConfig.failures": 0.5, "FleetConfig.events": 0.5, "FailureConfig.mtbf_s": 0.6, "StragglerConfig.mean_s": 0.8,
    "ControllerConfig.interval_s": 1.0, "ControllerConfig.steps": 0.1, "ColdStartConfig.weights_s": 1.0,
    "ColdStartConfig.compile_s": 1.0, "ColdStartConfig.warmup_s": 1.0, "PoolConfig.role": 0.6,
    "PoolConfig.timing": 0.15, "PoolConfig.batching": 0.3, "PoolConfig.device": 0.1,
    "ClientConfig.concurrency": 0.9, "ClientConfig.prompt": 1.0, "ClientConfig.output": 1.0,
    "Diurnal.period_s": 1.0, "DisaggregationConfig.timeout_s": 0.4, "AgentsConfig.shared_prefix_tokens": 1.0,
    "AgentsConfig.calls": 1.0, "AgentsConfig.tool_s": 1.0,
}  # fmt: skip

RANGES: dict[str, tuple[float, float]] = {
    "Scenario.num_replicas": (1, 4), "PoolConfig.num_replicas": (1, 2), "Scenario.seed": (0, 1000),
    "Scenario.time_limit_s": (0.05, 20), "WorkloadConfig.num_requests": (1, 50), "WorkloadConfig.rate": (0.3, 100),
    "WorkloadConfig.warmup_requests": (1, 6), "WorkloadConfig.max_tokens": (60, 400),
    "WorkloadConfig.prompt_scale": (0.5, 2), "WorkloadConfig.output_scale": (0.5, 2),
    "ReplicaConfig.tensor_parallel": (1, 2), "ReplicaConfig.pipeline_parallel": (1, 3),
    "ReplicaConfig.data_parallel": (1, 2), "ReplicaConfig.num_kv_blocks": (4, 800),
    "ReplicaConfig.max_request_tokens": (100, 2000), "ReplicaConfig.memory_utilization": (0.5, 0.95),
    "SpeculativeConfig.acceptance": (0, 1), "SpeculativeConfig.num_tokens": (1, 5),
    "SpeculativeConfig.draft_layers": (0, 2),
    "BatchingConfig.max_sequences": (1, 40), "BatchingConfig.max_batch_tokens": (8, 2048),
    "BatchingConfig.max_chunk_tokens": (4, 512), "BatchingConfig.block_size": (1, 64),
    "BatchingConfig.watermark": (0, 0.3), "ClosedLoop.concurrency": (1, 12), "ClientConfig.concurrency": (1, 8),
    "ClientConfig.prompt": (10, 200), "ClientConfig.output": (2, 30), "Diurnal.period_s": (2, 30),
    "Diurnal.peak_s": (0, 10), "Gamma.cv": (0.3, 4), "Diurnal.cv": (0.3, 4), "AgentsConfig.calls": (1, 5),
    "AgentsConfig.sub_agents": (0, 2), "AgentsConfig.sub_calls": (1, 3), "SessionsConfig.num_active": (1, 12),
    "SessionsConfig.turns": (1, 5), "AdaptersConfig.count": (1, 12), "LoraConfig.max_loaded": (1, 8),
    "LoraConfig.ranks": (1, 64), "FleetConfig.min_replicas": (0, 2), "FleetConfig.max_replicas": (1, 4),
    "EventConfig.replica": (0, 3), "EventConfig.factor": (0.5, 4), "StragglerConfig.factor": (1, 4),
    "FailureConfig.mtbf_s": (1, 40), "MigrationConfig.interval_s": (0.02, 1),
    "TimingConfig.scale": (0.5, 2), "TimingConfig.clock": (0.3, 1),
    "TimingConfig.expert_speed": (0.3, 1), "ClassConfig.priority": (0, 4), "PowerConfig.pue": (1, 2),
    "PowerConfig.cap_w": (250, 900), "Zipf.prompt_to_output": (0.5, 20), "Uniform.prompt_to_output": (0.5, 20),
    "LoraConfig.slowdown": (0, 1), "ControllerConfig.interval_s": (0.1, 10), "TimingConfig.graph_sizes": (1, 64),
    "TableConfig.per_iteration": (0.002, 0.05), "TableConfig.per_token": (0, 1e-4),
    "TableConfig.per_sequence": (0, 1e-3), "TableConfig.per_prefill_token": (0, 1e-4),
    "TableConfig.per_decode": (0, 1e-3), "TableConfig.per_decode_kv_token": (0, 1e-6),
    "FrontEndConfig.workers": (1, 4), "HostConfig.exposed_s": (0, 0.005),
}  # fmt: skip
"""Least and most, where a number would make a run long or is meaningless beyond."""

UNITS: tuple[tuple[str, float, float], ...] = (
    ("per_kwh", 0.01, 1.0), ("per_s", 1e9, 1e11), ("gb_s", 0.05, 200.0), ("gb", 0.002, 4.0), ("gpu_hour", 0.1, 10.0),
    ("_w", 50.0, 900.0), ("prompt", 1, 250), ("output", 1, 40), ("total", 2, 300), ("median", 2, 60), ("p90", 60, 120),
    ("tokens", 1, 120), ("s", 0.002, 6.0),
)  # fmt: skip
"""What a number without a default of its own is like, by the last words of its name."""
EACH = (1e-6, 2e-3)
"""Seconds of one of many things: of a token, a layer, a message (`per_..._s`)."""

LEFT_OUT = {
    "Scenario.calibration": "a file of a measured server",
    "Scenario.node": "how GPUs are linked changes seconds alone",
    "PoolConfig.node": "the same",
    "EngineConfig.version": "of measured kernels",
    "TimingConfig.path": "a folder of measurements",
    "TimingConfig.engine": "of measured kernels; the engine sets it",
    "TimingConfig.engine_version": "of measured kernels",
    "TimingConfig.expert_load": "of measured kernels",
    "TimingConfig.estimator": "between measured kernels",
    "TimingConfig.free": "of operators, which the drawn tables of seconds do not have",
    "BatchingConfig.file": "own code has its own tests",
    "BatchingConfig.parameters": "the same",
    "RouterConfig.file": "the same",
    "RouterConfig.checkpoint": "a trained network; the shipped one is drawn",
    "AdmissionConfig.file": "own code has its own tests",
    "DeciderConfig.file": "the same",
    "ControllerConfig.file": "the same",
    "MigrationConfig.file": "the same",
    "Empirical.file": "as a trace",
    "Empirical.format": "as a trace",
    "TraceConfig.format": "told from the file",
    "TraceConfig.columns": "told from the file",
}
"""Fields that are not drawn, and why."""

NEVER = (Empirical,)
"""Kinds of section that need a file."""

TABLE = {"per_iteration": 0.01, "per_token": 2e-5, "per_sequence": 3e-4, "per_prefill_token": 1e-5,
         "per_decode_kv_token": 1e-7}  # fmt: skip


def registries() -> dict[str, Registry[Any]]:
    """Every registry of things that a scenario names, by the key at which it names them."""
    for module in pkgutil.walk_packages(gnomon.serving.__path__, "gnomon.serving."):
        if module.ispkg:
            importlib.import_module(module.name)
    found = [*_registries_of(gnomon.serving), SOURCES]
    return {one.where: one for one in found if one.where}


def _registries_of(package: Any) -> list[Registry[Any]]:
    import sys

    modules = [module for name, module in sys.modules.items() if name.startswith(package.__name__)]
    every = {id(one): one for module in modules for one in vars(module).values() if isinstance(one, Registry)}
    return list(every.values())


@cache
def registry_of(model: type[BaseModel]) -> Registry[Any] | None:
    """The registry that a section names one thing of."""
    return _by_model().get(model)


@cache
def _by_model() -> dict[type[BaseModel], Registry[Any]]:
    known, found = registries(), {}

    def walk(model: type[BaseModel], path: str) -> None:
        for name, info in model.model_fields.items():
            for inner in submodels(info.annotation):
                here = f"{path}{name}"
                short = getattr(inner, "shorthand", None)
                for where in (here, f"{here}.{short}"):
                    if where in known:
                        found[inner] = known[where]
                walk(inner, f"{here}.")

    walk(Scenario, "")
    return found


@cache
def _small_models() -> list[str]:
    """Models that one GPU takes, and whose tables are quickly baked."""
    one = catalog.Parallelism()
    sizes = {name: catalog.model(name).weight_bytes_per_rank(one) for name in catalog.model_names()}
    return [name for name, size in sizes.items() if size < 35e9]


@cache
def _models_with_experts() -> list[str]:
    return [name for name in _small_models() if catalog.model(name).num_experts]


NAMES: dict[str, Callable[[], list[str]]] = {
    "Scenario.model": _small_models,
    "Scenario.device": lambda: ["h200", "h100", "a100-80gb", "b200", "l40s"],
    "PoolConfig.device": lambda: ["h200", "h100", "a100-80gb", "b200", "l40s"],
    "SpeculativeConfig.draft_model": lambda: ["qwen2.5-0.5b", "llama-3.2-1b"],
    "SpeculativeConfig.acceptance": acceptance_names,
    "EngineConfig.name": engine_names,
    "ClientConfig.name": lambda: list(clients()),
    "WorkloadConfig.preset": lambda: ["chat-1m", "azure-conv"],
    "LoraConfig.slowdown": lambda: ["none", *measured_curves()],
    "TimingConfig.source": lambda: ["roofline", *["table"] * 7],
    "TimingConfig.dtype": lambda: ["auto", "bf16", "fp8"],
    "ClassConfig.name": lambda: ["a class"],
    "Stages.classes": lambda: ["a class"],
}
"""Texts that are names of something, but of no registry."""


class Drawer:
    """Draws sections of a scenario."""

    def __init__(self, chance: Random, folder: str) -> None:
        self.chance, self.folder = chance, folder

    def scenario(self) -> Data:
        """A scenario as plain data; it may still be refused."""
        data = self.section(Scenario)
        self._tidy(data)
        return data

    def section(self, model: type[BaseModel]) -> Data:
        """The keys of a section."""
        data: Data = {}
        for name, info in model.model_fields.items():
            key = f"{model.__name__}.{name}"
            if key in LEFT_OUT or (issubclass(model, Choice) and name == "options"):
                continue
            is_tag = get_origin(info.annotation) is Literal and len(get_args(info.annotation)) == 1
            if info.is_required() or is_tag or self.chance.random() < OFTEN.get(key, GIVEN):
                data[name] = self.value(info.annotation, key, info)
        registry = registry_of(model)
        if registry is not None and issubclass(model, Choice):
            self._choose(model, registry, data)
        return data

    def _choose(self, model: type[Choice], registry: Registry[Any], data: Data) -> None:
        """Name something of the registry, with some of its options."""
        assert model.shorthand
        data[model.shorthand] = self.chance.choice(registry.names())
        spec = registry[data[model.shorthand]]
        options = {name: self._near(value) for name, value in spec.options.items() if self.chance.random() < GIVEN}
        if options:
            data["options"] = options

    def value(self, annotation: Any, key: str, info: FieldInfo) -> Any:
        """A value of a type."""
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is typing.Annotated:
            return self.value(args[0], key, _with_bounds(info, args[1:]))
        if origin in (Union, types.UnionType):
            members = [one for one in args if one is not type(None) and one not in NEVER]
            return self.value(self.chance.choice(members), key, info)
        if origin is Literal:
            return self.chance.choice(args)
        if origin is tuple:
            return self._several(args, key, info)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return self.section(annotation)
        if annotation is bool:
            return self.chance.random() < 0.5
        if annotation in (int, float):
            return self.number(key, info, whole=annotation is int)
        if annotation is str:
            return self._text(key)
        raise TypeError(f"nobody knows how to draw {key}: {annotation}")

    def _several(self, args: tuple[Any, ...], key: str, info: FieldInfo) -> list[Any]:
        if len(args) == 2 and args[1] is Ellipsis:
            items = [self.value(args[0], key, info) for _ in range(self.chance.randint(1, 3))]
            return sorted(items, key=_order) if not isinstance(items[0], str | dict) else items
        drawn = [self.value(one, key, info) for one in args]
        is_range = len(set(args)) == 1 and not isinstance(drawn[0], dict)
        return sorted(drawn) if is_range else drawn

    def _text(self, key: str) -> str:
        if key == "TraceConfig.file":
            return draw_trace(self.chance, self.folder)
        if key in NAMES:
            return self.chance.choice(NAMES[key]())
        model = next(one for one in models() if one.__name__ == key.split(".")[0])
        registry = registry_of(model)
        if registry is None:
            raise TypeError(f"nobody knows the names of {key}: give them in NAMES, or say why in LEFT_OUT")
        return self.chance.choice(registry.names())

    def number(self, key: str, info: FieldInfo, *, whole: bool) -> float:
        """A number within the bounds of its field."""
        lowest, highest = _bounds(info)
        low, high = self._likely(key, info, lowest, highest)
        low, high = max(low, lowest), max(min(high, highest), max(low, lowest))
        if self.chance.random() < 0.12:
            edge = lowest if lowest in (0.0, 1.0) and key not in RANGES else low
            return round(edge) if whole else edge
        if low > 0 and high / low > 20:
            drawn = math.exp(self.chance.uniform(math.log(low), math.log(high)))
        else:
            drawn = self.chance.uniform(low, high)
        return min(max(round(drawn), math.ceil(low)), math.floor(high)) if whole else float(f"{drawn:.4g}")

    def _likely(self, key: str, info: FieldInfo, lowest: float, highest: float) -> tuple[float, float]:
        if key in RANGES:
            return RANGES[key]
        name = key.split(".")[1]
        if "per_" in name and name.endswith("_s"):
            return EACH
        default = info.get_default() if not info.is_required() else None
        for word, low, high in UNITS:
            if name == word or name.endswith(f"_{word.lstrip('_')}"):
                return low, high
        if math.isfinite(lowest) and math.isfinite(highest) and highest - lowest <= 2:
            return lowest, highest
        if isinstance(default, int | float) and not isinstance(default, bool) and default:
            return 0.3 * default, 3.0 * default
        return (1, 8) if lowest != 0 else (0, 8)

    def _near(self, default: float) -> float:
        """An option near its default; a switch either way."""
        if default in (0.0, 1.0):
            return float(self.chance.choice([0, 1]))
        return (
            float(f"{default * self.chance.uniform(0.3, 3.0):.4g}")
            if default % 1
            else float(max(1, round(default * self.chance.uniform(0.2, 2.0))))
        )

    def _tidy(self, data: Data) -> None:
        """What belongs together: without it nearly every draw would be refused."""
        for timing in [data["timing"], *(pool["timing"] for pool in data.get("pools", []) if "timing" in pool)]:
            if timing["source"] == "table":
                timing["table"] = {**TABLE, **timing.get("table", {})}
                timing.pop("free", None)
            else:
                timing.pop("table", None)
        if "fleet" in data:
            self._tidy_roles(data, data["fleet"])
        if "pools" in data:
            data.pop("num_replicas", None)
        replicas = [data["replica"], *(pool.get("replica", {}) for pool in data.get("pools", []))]
        if any(one.get("data_parallel", 1) > 1 or one.get("expert_parallel") for one in replicas):
            data["model"] = self.chance.choice(_models_with_experts())
        has_roles = any(pool.get("role", "both") != "both" for pool in data.get("pools", []))
        if has_roles:
            data.get("fleet", {}).pop("migration", None)
        elif "migration" not in data.get("fleet", {}):
            data.pop("disaggregation", None)
        workload = data["workload"]
        if "client" in workload:
            _drop(workload, "preset", "trace", "rate", "arrivals", "lengths", "agents", "warmup_requests")
        elif "trace" in workload:
            self._tidy_trace(workload)
        elif "preset" in workload:
            workload.pop("lengths")
        else:
            workload["lengths"] = self._drawn_lengths(workload["lengths"])
        process = workload.get("arrivals", {}).get("process", "poisson")
        if process == "trace" and "trace" not in workload:
            workload.pop("arrivals")
        if process in ("batch", "closed_loop"):
            _drop(workload, "rate", "agents")
        if process != "closed_loop":
            workload.pop("warmup_requests", None)
        if "agents" in workload:
            workload.pop("sessions", None)
            calls = {"calls": 3, "sub_agents": 0, "sub_calls": 3} | workload["agents"]
            least = calls["calls"] + calls["sub_agents"] * calls["sub_calls"]
            workload["num_requests"] = max(workload["num_requests"], least)
        for number, one in enumerate(workload.get("classes", [])):
            one["name"] = f"class {number}"
            if "lengths" in one:
                one["lengths"] = self._drawn_lengths(one["lengths"])
        if "classes" in workload.get("arrivals", {}):
            names = [one["name"] for one in workload.get("classes", [])]
            stages = workload["arrivals"]["stages"]
            workload["arrivals"]["classes"] = [self.chance.choice(names) for _ in stages if names]

    def _tidy_roles(self, data: Data, fleet: Data) -> None:
        """Replicas that change roles need two pools alike, and nothing that starts by itself."""
        name = fleet.get("controller", {}).get("name")
        if CONTROLLERS[name].shares if name else "switch_s" in fleet and "pools" in data:
            one = {key: value for key, value in data.get("pools", [{}])[0].items() if key != "role"}
            data["pools"] = [{**one, "role": role} for role in ("prefill", "decode")]
            data["slo"] = {"ttft_s": 1.0, "tpot_s": 0.05, **data.get("slo", {})}
            fleet["switch_s"] = fleet.get("switch_s", 0.0)
            fleet["events"] = [event for event in fleet.get("events", []) if event["what"] != "start"]
        else:
            fleet.pop("switch_s", None)

    def _tidy_trace(self, workload: Data) -> None:
        """Arrivals, lengths or both come from the trace."""
        _drop(workload, "preset", "agents", "sessions")
        drawn = {"arrivals": {"process": "trace"}, "lengths": {"distribution": "trace"}}
        taken = self.chance.choice([["arrivals"], ["lengths"], list(drawn)])
        workload.update({key: drawn[key] for key in taken})
        workload.pop("num_requests")
        if "lengths" not in taken:
            workload["lengths"] = self._drawn_lengths(workload["lengths"])
        if "arrivals" in taken and self.chance.random() < 0.7:
            workload.pop("rate", None)
        elif "rate" in workload:
            workload["trace"].pop("time_scale", None)

    def _drawn_lengths(self, lengths: Data) -> Data:
        """Lengths that need no file, given in one way."""
        if lengths["distribution"] in ("preset", "trace"):
            return {"distribution": "uniform", "prompt": [1, 200], "output": [1, 40]}
        for part in lengths.get("parts", []):
            part["lengths"] = self._drawn_lengths(part["lengths"])
        if lengths["distribution"] != "uniform":
            return lengths
        if "total" in lengths and self.chance.random() < 0.5:
            ratio = lengths.get("prompt_to_output", 4.0)
            return {"distribution": "uniform", "total": lengths["total"], "prompt_to_output": ratio}
        return {
            "distribution": "uniform",
            "prompt": lengths.get("prompt", [1, 200]),
            "output": lengths.get("output", [1, 30]),
        }


def _drop(section: Data, *keys: str) -> None:
    for key in keys:
        section.pop(key, None)


def _order(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


@cache
def models() -> tuple[type[BaseModel], ...]:
    """Every section that is drawn."""
    found: dict[type[BaseModel], None] = {}

    def walk(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if annotation not in found:
                found[annotation] = None
                for name, info in annotation.model_fields.items():
                    if f"{annotation.__name__}.{name}" not in LEFT_OUT:
                        walk(info.annotation)
            return
        for inner in get_args(annotation):
            walk(inner)

    walk(Scenario)
    return tuple(found)


def unknown_texts() -> list[str]:
    """Texts of a scenario that nobody knows the names of; a new one must be told of in `NAMES` or `LEFT_OUT`."""
    known = {"Scenario.engine", "TraceConfig.file", *NAMES, *LEFT_OUT}
    texts = []
    for model in models():
        for name, info in model.model_fields.items():
            key = f"{model.__name__}.{name}"
            is_text = info.annotation is str or str in get_args(info.annotation)
            is_named = registry_of(model) is not None and issubclass(model, Choice)
            if is_text and key not in known and not is_named:
                texts.append(key)
    return texts


def _with_bounds(info: FieldInfo, metadata: tuple[Any, ...]) -> FieldInfo:
    """The field with the bounds of an annotation inside it."""
    inner = FieldInfo.from_annotated_attribute(typing.Annotated[int, *metadata], info.default)
    merged = FieldInfo.merge_field_infos(info)
    merged.metadata = [*info.metadata, *inner.metadata]
    return merged


def _bounds(info: FieldInfo) -> tuple[float, float]:
    low, high = -math.inf, math.inf
    for one in info.metadata:
        low = max(low, getattr(one, "ge", -math.inf))
        low = max(low, getattr(one, "gt", -math.inf) + (1e-9 if hasattr(one, "gt") else 0))
        high = min(high, getattr(one, "le", math.inf), getattr(one, "limit", math.inf))
        high = min(high, getattr(one, "lt", math.inf) - (1e-9 if hasattr(one, "lt") else 0))
    return low, high
