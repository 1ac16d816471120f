"""A serving scenario: everything that decides what happens, as one frozen model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat, ValidationError, model_validator

from gnomon import catalog
from gnomon.core.config import Config, build
from gnomon.core.errors import ConfigError, GnomonError, UnknownNameError
from gnomon.core.sizes import Replicas, Seed
from gnomon.serving.scenario.autoscaling import FleetConfig
from gnomon.serving.scenario.calibration import read_calibration
from gnomon.serving.scenario.config import (
    AdmissionConfig,
    BatchingConfig,
    DisaggregationConfig,
    FrontEndConfig,
    KvTiersConfig,
    ReplicaConfig,
    RouterConfig,
    SpeculativeConfig,
    ToolCacheConfig,
)
from gnomon.serving.scenario.engine_presets import (
    NO_ENGINE,
    Drafting,
    EngineConfig,
    Sections,
    engine,
    filled_in,
    nested,
)
from gnomon.serving.scenario.engine_versions import is_known
from gnomon.serving.scenario.lora import LoraConfig
from gnomon.serving.scenario.pool import Pool, PoolConfig
from gnomon.serving.scenario.power import PowerConfig
from gnomon.timing import TimingConfig
from gnomon.workload import WorkloadConfig
from gnomon.workload.clients import client_sampling
from gnomon.workload.lengths import SamplingConfig
from gnomon.workload.slo import SloConfig


class Scenario(Config):
    """A model on GPUs under a load."""

    model: str = "llama-3-8b"
    """Built-in model (`gnomon catalog models`), or the path of a Hugging Face config.json."""
    device: str = "h200"
    """GPU (`gnomon catalog devices`)."""
    node: str | None = None
    """How the GPUs are linked (`gnomon catalog nodes`); the usual one for the device if not given."""
    num_replicas: Replicas = 1
    """Copies of the model."""
    engine: EngineConfig | None = EngineConfig(name="vllm")
    """{gnomon.serving.scenario.engine_presets.engine_names}: sets what is not given of batching, replica, timing and
    front_end as that engine does; none: kernels only, without host time or front end. If not given, vllm; none where a
    calibration, a batching policy from a file or `timing.source: table` describes another server."""
    calibration: str | None = None
    """File of `gnomon calibrate`: constants of a real server for what is not given of timing and front_end."""
    replica: ReplicaConfig = ReplicaConfig()
    batching: BatchingConfig = BatchingConfig()
    router: RouterConfig = RouterConfig()
    admission: AdmissionConfig = AdmissionConfig()
    workload: WorkloadConfig = WorkloadConfig()
    sampling: SamplingConfig | None = None
    """What requests ask of the sampler; what is not given is as the benchmark client sends it, else as the engine does
    it for the model (its generation_config), and greedy without an engine."""
    timing: TimingConfig = TimingConfig()
    front_end: FrontEndConfig = FrontEndConfig()
    fleet: FleetConfig | None = None
    """Replicas that come, go and fail during the run, by a controller or at given times; without it all are there from
    the start to the end."""
    pools: tuple[PoolConfig, ...] = ()
    """Replicas that differ, instead of `num_replicas` equal ones; with roles, prefill and decode apart."""
    disaggregation: DisaggregationConfig = DisaggregationConfig()
    kv_tiers: KvTiersConfig = KvTiersConfig()
    tool_cache: ToolCacheConfig = ToolCacheConfig()
    lora: LoraConfig = LoraConfig()
    slo: SloConfig = SloConfig()
    power: PowerConfig = PowerConfig()
    price_per_gpu_hour: NonNegativeFloat | None = None
    """US dollars; the catalog's price if not given."""
    time_limit_s: PositiveFloat | None = None
    """Stop here, whatever is still running."""
    seed: Seed = 0
    """Every random draw follows from it."""

    @model_validator(mode="before")
    @classmethod
    def _engine_and_pools(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = _with_calibration(data)
        data = _with_client_sampling(_with_engine(given))
        if not isinstance(data.get("pools"), list | tuple):
            return data
        return {**data, "pools": [_inherited(pool, given, data) for pool in data["pools"]]}

    @classmethod
    def reopened(cls, data: dict[str, Any], changed: Iterable[str]) -> dict[str, Any]:
        """A scenario that spells out what its engine sets, without that, where another engine, GPU or model is wanted:
        it is set anew for those. What differs from the engine's own was given, and stays."""
        if not any(f"{key}.".startswith(_DECIDING) for key in changed):
            return data
        try:
            return _without_usual(data)
        except (GnomonError, ValidationError, TypeError):
            return data  # It is no saved one.

    @model_validator(mode="after")
    def _count_or_pools(self) -> Scenario:
        if self.pools and self.num_replicas != 1:
            raise ConfigError("num_replicas and pools both say how many replicas there are.", fix="Give one of them.")
        roles = {pool.role for pool in self.pools}
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            if role in roles and not roles & {other, "both"}:
                fix = f"Add one with role {other}."
                raise ConfigError(f"pools have the role {role}, but none can {other}.", where="pools", fix=fix)
        if self.has_roles and self.migrates:
            what = "requests that decode do not move where prefill and decode are apart."
            raise ConfigError(what, where="fleet.migration", fix="Leave it or the roles out.")
        if self.disaggregation != DisaggregationConfig() and not (self.has_roles or self.migrates):
            fix = "Give pools with role: prefill and role: decode, or fleet.migration, or leave it out."
            raise ConfigError("nothing moves between pools without roles.", where="disaggregation", fix=fix)
        return self

    @property
    def migrates(self) -> bool:
        """Whether requests move while they decode."""
        return self.fleet is not None and self.fleet.migration is not None

    @property
    def has_roles(self) -> bool:
        """Whether prefill and decode are apart, at least in part."""
        return any(pool.role != "both" for pool in self.pools)

    @property
    def has_features(self) -> bool:
        """Whether it asks for one of `gnomon.serving.features` but the front end."""
        return bool(self.fleet or self.has_roles or self.kv_tiers.is_used or self.tool_cache.is_used)

    @property
    def num_ranks(self) -> int:
        """Schedulers of all pools: replicas, or their data-parallel ranks."""
        return sum(pool.num_ranks for pool in self.all_pools())

    def all_pools(self) -> list[Pool]:
        """Every pool with all its sections; one where the scenario has equal replicas only."""
        return [
            Pool(
                self.model, pool.num_replicas, pool.role, pool.device or self.device,
                pool.node or (self.node if pool.device in (None, self.device) else None),
                pool.replica or self.replica, pool.batching or self.batching, pool.timing or self.timing,
            )
            for pool in self.pools or (PoolConfig(num_replicas=self.num_replicas),)
        ]  # fmt: skip


def _with_calibration(data: dict[str, Any]) -> dict[str, Any]:
    """The scenario with a calibration's constants where it gives none."""
    path = data.get("calibration")
    if not isinstance(path, str):
        return data
    return _completed(data, nested(read_calibration(path).settings))


def _completed(data: dict[str, Any], sections: Sections) -> dict[str, Any]:
    """The scenario with values for its sections where it gives none; what is no section is left for validation."""
    full = {}
    for name, values in sections.items():
        given = data.get(name)
        if given is None or isinstance(given, dict | Config) or _keys(_SECTIONS[name], given):
            full[name] = filled_in(_keys(_SECTIONS[name], given), values)
    return {**data, **full}


def _with_engine(data: dict[str, Any]) -> dict[str, Any]:
    """The scenario with its engine's settings where it gives none. Another batching policy than the engine's keeps its
    own defaults."""
    given = data["engine"] if "engine" in data else _usual_engine(data)
    named = {"name": _usual_engine(data)} | _keys(EngineConfig, given or NO_ENGINE)
    chosen = given if isinstance(given, EngineConfig) else build(EngineConfig, named)
    if chosen.name == NO_ENGINE:
        return {**data, "engine": None}
    preset = engine(chosen.name)
    if not is_known(chosen.version, preset.versions):
        known = [f"{one}.x" for one in preset.versions]
        raise UnknownNameError(f"version of {chosen.name}", chosen.version, known, where="engine.version")
    model, device = (
        given if isinstance(given := data.get(name), str) else str(Scenario.model_fields[name].default)
        for name in ("model", "device")
    )
    drafting = _drafting(_keys(ReplicaConfig, data.get("replica")))
    dtype = str(_keys(TimingConfig, data.get("timing")).get("dtype") or "auto")
    sections = preset.sections(model, device, chosen.version, drafting, dtype)
    sections["timing"] |= {"engine": chosen.name, "engine_version": chosen.version}
    batching = _keys(BatchingConfig, data.get("batching"))
    if batching.get("policy") not in (None, sections["batching"]["policy"]):
        del sections["batching"]
    return _completed({**data, "engine": chosen}, sections)


def _usual_engine(data: dict[str, Any]) -> str:
    """The engine that is meant where none is named: none where something else says what the server is like."""
    source = _keys(TimingConfig, data.get("timing")).get("source")
    is_other = data.get("calibration") or _keys(BatchingConfig, data.get("batching")).get("file") or source == "table"
    return NO_ENGINE if is_other else "vllm"


def _with_client_sampling(data: dict[str, Any]) -> dict[str, Any]:
    """The scenario with what its benchmark client asks of the sampler, where it says nothing itself."""
    workload = data.get("workload")
    given = workload.get("client") if isinstance(workload, dict) else None
    asked = client_sampling(given) if given is not None and data.get("sampling") is None else None
    return data if asked is None else {**data, "sampling": asked}


def _drafting(replica: dict[str, Any]) -> Drafting | None:
    if not (given := _keys(SpeculativeConfig, replica.get("speculative"))):
        return None
    return "model" if given.get("draft_model") else "head" if given.get("draft_layers") else "free"


_DECIDING = ("engine.", "device.", "model.", "calibration.", "batching.policy.", "replica.speculative.")
"""Fields that what an engine sets goes by."""


def _without_usual(data: dict[str, Any]) -> dict[str, Any]:
    """The scenario without what it would be anyway, if it spells out all that its engine sets."""
    deciding = {"replica": ("speculative",), "batching": ("policy", "file")}
    bare: dict[str, Any] = {key: data[key] for key in ("model", "device", "engine", "calibration") if key in data}
    for name, keys in deciding.items():
        bare[name] = {key: value for key, value in _keys(_SECTIONS[name], data.get(name)).items() if key in keys}
    usual = Scenario.model_validate(bare)
    set_by_engine = usual.model_dump(mode="json", exclude_unset=True)
    for name, model in _SECTIONS.items():
        needed = set_by_engine.get(name, {}) if usual.engine else model.model_fields
        if not _keys(model, data.get(name)).keys() >= needed.keys():
            return data
    devices = [PoolConfig.model_validate(one).device or usual.device for one in data.get("pools") or ()]
    pools = [_unusual(one, bare | {"device": d}) for one, d in zip(data.get("pools") or (), devices, strict=True)]
    left = _unusual(data, bare) | {"pools": pools}
    if data.get("node") == catalog.default_node(catalog.device(usual.device)).name:
        del left["node"]
    return left


def _unusual(data: dict[str, Any], bare: dict[str, Any]) -> dict[str, Any]:
    """A scenario or a pool without what a bare scenario has in its sections."""
    usual = Scenario.model_validate(bare)
    full = usual.model_dump(mode="json") | {"batching": usual.batching.resolved().model_dump(mode="json")}
    given = {name: _keys(model, data[name]) for name, model in _SECTIONS.items() if data.get(name)}
    if given.get("batching", {}).get("policy", usual.batching.policy) != usual.batching.policy:
        full["batching"] = {}  # Another policy's: all of it was given.
    return {key: one for key, one in data.items() if key not in given} | _differing(given, full)


def _differing(given: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    changed = {key: value for key, value in given.items() if value != usual.get(key)}
    sections = [key for key, value in changed.items() if value and isinstance(value, dict)]
    inner = {key: _differing(given[key], usual[key]) for key in sections if isinstance(usual.get(key), dict)}
    return {key: value for key, value in (changed | inner).items() if value != {}}


def _inherited(pool: Any, given_scenario: dict[str, Any], scenario: dict[str, Any]) -> Any:
    """A pool as given, with the keys that its sections leave open taken from the scenario's sections, as they are for
    the pool's GPU."""
    if not isinstance(pool, dict):
        return pool
    full, common_of = dict(pool), scenario
    if isinstance(pool.get("device"), str):
        common_of = _with_engine({**given_scenario, "device": pool["device"]})
    for name, model in (("replica", ReplicaConfig), ("batching", BatchingConfig), ("timing", TimingConfig)):
        given, common = _keys(model, pool.get(name)), _keys(model, common_of.get(name))
        usual = common.get("policy", BatchingConfig().policy) if name == "batching" else None
        is_other_policy = name == "batching" and given.get("policy", usual) != usual
        if name == "timing" and given.get("source", common.get("source")) != common.get("source"):
            common = {key: value for key, value in common.items() if key not in ("path", "table")}
        differs = pool.get(name) is not None or common != _keys(model, scenario.get(name))
        if common and differs and not is_other_policy:
            full[name] = filled_in(given, common) if name == "batching" else {**common, **given}
    return full


_SECTIONS: dict[str, type[Config]] = {
    "replica": ReplicaConfig, "batching": BatchingConfig, "timing": TimingConfig, "front_end": FrontEndConfig,
}  # fmt: skip


def _keys(model: type[Config], section: Any) -> dict[str, Any]:
    """The keys that a section gives; none where it is left out or is no section."""
    if isinstance(section, str) and model.shorthand:
        return {model.shorthand: section}
    if isinstance(section, Config):
        return section.model_dump(exclude_unset=True)
    return section if isinstance(section, dict) else {}
