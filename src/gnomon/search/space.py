"""The configurations of a search space, each as overrides of a scenario."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from gnomon import catalog
from gnomon.core.config import load
from gnomon.core.errors import ConfigError, UnknownNameError
from gnomon.search.config import BatchingSpace, DisaggregatedSpace, SearchConfig, SpaceConfig
from gnomon.serving.deciders import DECIDERS
from gnomon.serving.policies import POLICIES
from gnomon.serving.routers import ROUTERS
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario

_SHORT = {
    "replica.tensor_parallel": "TP", "replica.pipeline_parallel": "PP", "replica.data_parallel": "DP",
    "num_replicas": "x", "batching.max_sequences": "seqs=", "batching.max_batch_tokens": "tokens=",
    "batching.max_chunk_tokens": "chunk=",
}  # fmt: skip

_IN_THE_SPACE = {
    "replica.tensor_parallel": "space.tensor_parallel",
    "replica.pipeline_parallel": "space.pipeline_parallel",
    "router.name": "space.router",
}
"""Settings that the space would override without a word."""


@dataclass(frozen=True)
class Candidate:
    """One configuration of the space."""

    overrides: tuple[tuple[str, Any], ...]
    """Dotted fields of the scenario and their values, in the order of the space."""

    @property
    def key(self) -> str:
        """A name for this configuration, equal in every process."""
        return json.dumps(dict(self.overrides), sort_keys=True)

    @property
    def label(self) -> str:
        """In short, e.g. `h100 TP4 PP1 sarathi tokens=512`."""
        words = []
        for name, value in self.overrides:
            if name == "batching.policy" and self.engine:
                continue  # The engine's own.
            if name in _SHORT:
                words.append(f"{_SHORT[name]}{value}")
            elif value is True:
                words.append(name.rpartition(".")[2])
            elif value not in (None, False):
                words.append(str(value))
        return " ".join(words)

    @property
    def engine(self) -> str:
        """The engine whose preset it takes; empty where none is asked for."""
        return str(dict(self.overrides).get("engine.name", ""))

    def with_replicas(self, count: int) -> Candidate:
        """This candidate with another number of copies."""
        return Candidate((*((k, v) for k, v in self.overrides if k != "num_replicas"), ("num_replicas", count)))


def candidates(search: SearchConfig) -> list[Candidate]:
    """Every configuration of the space, once; those that only differ in what has no effect are one."""
    _check_names(search)
    found: dict[str, Candidate] = {}
    for one in chain(_combinations(search), _apart(search)):
        found.setdefault(one.key, one)
    return list(found.values())


_ROLES = {"P": "prefill", "D": "decode", "B": "both"}
_PART = re.compile(r"([1-9]\d*)([PDB])-TP([1-9]\d*)(?:@(\S+))?")


def pools_of(layout: str) -> list[dict[str, Any]]:
    """The pools of a layout like `2P-TP4 1D-TP8@h200`."""
    pools = []
    for part in layout.split():
        found = _PART.fullmatch(part)
        if found is None:
            fix = "Write replicas, P, D or B, and GPUs of each: 2P-TP4, or 2P-TP4@h200."
            raise ConfigError(f"{part!r} is no part of a fleet.", where="space.layouts", fix=fix)
        count, role, degree, device = found.groups()
        pool = {"role": _ROLES[role], "num_replicas": int(count), "replica": {"tensor_parallel": int(degree)}}
        pools.append(pool | ({"device": device} if device else {}))
    return pools


def _layouts(space: SpaceConfig) -> Iterator[tuple[str, str | None]]:
    """Every fleet of more than one pool, and who decides where its requests are prefilled."""
    deciders = space.disaggregated.decider if space.disaggregated is not None else ("always",)
    made = _combined(space.disaggregated) if space.disaggregated is not None else ()
    for layout in chain(made, space.layouts):
        apart = any(pool["role"] != "both" for pool in pools_of(layout))
        yield from product((layout,), deciders if apart else (None,))


def _combined(space: DisaggregatedSpace) -> Iterator[str]:
    for prefill, p_degree, decode, d_degree in product(
        space.prefill_replicas, space.prefill_tensor_parallel, space.decode_replicas, space.decode_tensor_parallel
    ):
        if not space.num_gpus or prefill * p_degree + decode * d_degree in space.num_gpus:
            yield f"{prefill}P-TP{p_degree} {decode}D-TP{d_degree}"


def scenario_of(search: SearchConfig, candidate: Candidate, seed: int | None = None) -> Scenario:
    """The scenario that a candidate means; arrivals are those of the search's workload."""
    fields: dict[str, Any] = {"model": search.model, "seed": search.seed if seed is None else seed}
    fields |= {"workload": search.workload.model_dump(mode="json")}
    fields |= {"calibration": search.calibration} if search.calibration else {}
    overrides = {k: v for k, v in candidate.overrides if v is not None}
    if (layout := overrides.pop("layout", None)) is not None:
        fields["pools"] = pools_of(layout)
    return load(Scenario, None, fields | search.settings | overrides)


def _combinations(search: SearchConfig) -> Iterator[Candidate]:
    space = search.space
    # With the objective cost, copies are counted out for each configuration, not combined.
    copies = (1,) if search.objective == "cost" else space.num_replicas or (1,)
    for device, node, tensor, pipeline, data, experts, dtype in product(
        space.device, space.node, space.tensor_parallel, space.pipeline_parallel, space.data_parallel,
        space.expert_parallel, space.dtype,
    ):  # fmt: skip
        placed = {
            "device": device, "node": node, "replica.tensor_parallel": tensor, "replica.pipeline_parallel": pipeline,
            "replica.data_parallel": data if len(space.data_parallel) > 1 or data > 1 else None,
            "replica.expert_parallel": experts or None,
            "timing.dtype": dtype if len(space.dtype) > 1 or dtype != "auto" else None,
        }  # fmt: skip
        for batching in space.batching:
            for parameters in _parameters(search, batching):
                for count, router in product(copies, space.router):
                    alone = count == 1 and data == 1 and search.objective != "cost"
                    spread = {"num_replicas": None if count == 1 else count, "router.name": None if alone else router}
                    yield _candidate(placed | parameters | spread)


def _apart(search: SearchConfig) -> Iterator[Candidate]:
    space = search.space
    for device, node, dtype, (layout, decider), batching in product(
        space.device, space.node, space.dtype, _layouts(space), space.batching
    ):
        placed = {
            "device": device,
            "node": node,
            "layout": layout,
            "disaggregation.decider.name": None if decider == "always" else decider,
            "timing.dtype": dtype if len(space.dtype) > 1 or dtype != "auto" else None,
        }
        for parameters in _parameters(search, batching):
            for router in space.router:
                yield _candidate(placed | parameters | {"router.name": router})


def _candidate(settings: dict[str, Any]) -> Candidate:
    return Candidate(tuple((name, value) for name, value in settings.items() if value is not None))


def scheduler_of(search: SearchConfig, batching: BatchingSpace) -> tuple[str | None, str]:
    """The engine and the policy of a part of the space: its own, or those that the settings mean."""
    if "policy" in batching.model_fields_set:
        return batching.engine, batching.policy
    meant = load(Scenario, None, search.settings)
    return meant.engine.name if meant.engine else None, meant.batching.policy


def _parameters(search: SearchConfig, batching: BatchingSpace) -> Iterator[dict[str, Any]]:
    engine, policy = scheduler_of(search, batching)
    names = ("max_sequences", "max_batch_tokens", "max_chunk_tokens")
    for values in product(*(getattr(batching, name) or (None,) for name in names)):
        chosen = {f"batching.{name}": value for name, value in zip(names, values, strict=True)}
        yield {"engine.name": engine, "batching.policy": policy} | chosen


def _check_names(search: SearchConfig) -> None:
    """Mistakes in names concern the whole search: better said at once than once per configuration."""
    catalog.model(search.model)
    for device in search.space.device:
        catalog.device(device)
    for node in search.space.node:
        if node is not None:
            catalog.node(node)
    own_files = any(key.endswith(".file") for key in search.settings)
    apart = search.space.disaggregated
    asked = (
        ("batching policy", [scheduler_of(search, one)[1] for one in search.space.batching], POLICIES, "batching"),
        ("router", search.space.router, ROUTERS, "router"),
        ("decider", apart.decider if apart is not None else (), DECIDERS, "disaggregated.decider"),
    )
    for kind, names, known, where in asked:
        for name in names if not own_files else ():
            if name not in known:
                raise UnknownNameError(kind, name, known, where=f"space.{where}")
    for layout in search.space.layouts:
        for pool in pools_of(layout):
            catalog.device(pool.get("device", search.space.device[0]))
    if (apart is not None or search.space.layouts) and search.objective == "cost":
        where, fix = "disaggregated" if apart is not None else "layouts", "Choose another objective, or leave it out."
        raise ConfigError("the objective cost counts copies of one kind of replica.", where=f"space.{where}", fix=fix)
    for setting, own in _IN_THE_SPACE.items():
        if setting in search.settings or _nested(search.settings, setting) is not None:
            raise ConfigError(f"{setting} has a key of its own in a search.", where="settings", fix=f"Set {own}.")
    taken = {"model", "workload", "seed", "device", "num_replicas"} & {key.split(".")[0] for key in search.settings}
    if taken:
        raise ConfigError(f"{taken.pop()} has a key of its own in a search.", where="settings", fix="Set it there.")
    policy = scheduler_of(search, search.space.batching[0])[1]
    load(Scenario, None, {**search.settings, "calibration": search.calibration, "batching.policy": policy})


def _nested(settings: dict[str, Any], dotted: str) -> Any:
    """What settings say in a section of their own (`replica: {tensor_parallel: 4}`, `router: random`)."""
    section, name = dotted.split(".")
    given = settings.get(section)
    return given.get(name) if isinstance(given, dict) else given


_SMALL = {
    "model": "llama-2-7b",
    "device": "a100",
    "timing": {"source": "table", "table": {"per_iteration": 0.01}},
    "workload": {"num_requests": 2, "lengths": {"distribution": "fixed", "prompt": 8, "output": 2}},
}


def compile_for(search: SearchConfig) -> None:
    """Run two requests under every policy and router of the space."""

    def own(section: str) -> dict[str, Any]:
        return {key: value for key, value in search.settings.items() if key == f"{section}.file"}

    for policy in {scheduler_of(search, one)[1] for one in search.space.batching}:
        run(load(Scenario, None, {**_SMALL, **own("batching"), "batching.policy": policy}))
    for router in search.space.router:
        run(load(Scenario, None, {**_SMALL, **own("router"), "router.name": router, "num_replicas": 2}))
