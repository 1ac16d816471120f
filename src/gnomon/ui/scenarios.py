"""Between the controls of the Serve page and a scenario, both ways, and a scenario as text to copy."""

import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml

from gnomon.api.serving import NO_ENGINE, Scenario
from gnomon.core.config import Field, fields, load
from gnomon.core.errors import DataError, GnomonError
from gnomon.core.text import parse_yaml, to_yaml
from gnomon.ui import uploads
from gnomon.ui.controls import ControlError
from gnomon.workload.presets import preset_names

LINKS = {"host": (50.0, 0.0005), "ssd": (7.0, 0.002), "remote": (40.0, 0.004)}
"""GB/s and seconds of latency of a tier whose size alone is given: those of the example in docs/kv-tiers.md."""


def kv_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the controls say of pools and tiers, as dotted keys of a scenario."""
    found: dict[str, Any] = {}
    if values.get("prefill"):
        degree = values.get("tp") or 1
        counts = {"prefill": values["prefill"], "decode": values.get("replicas") or 1}
        degrees = {"prefill": values.get("prefill_tp") or degree, "decode": degree}
        found["pools"] = [
            {"role": role, "num_replicas": count, "replica": {"tensor_parallel": degrees[role]}}
            for role, count in counts.items()
        ]
        found |= {"num_replicas": 1, "replica.tensor_parallel": 1}
        found["disaggregation.decider.name"] = values.get("decider") or "always"
        found["disaggregation.decode_router.name"] = values.get("decode_router") or "least_outstanding"
    for name, (bandwidth, latency) in LINKS.items():
        if values.get(f"{name}_gb"):
            tier = {"size_gb": values[f"{name}_gb"], "bandwidth_gb_s": bandwidth, "latency_s": latency}
            found |= {f"kv_tiers.{name}.{key}": value for key, value in tier.items()}
    return found


def kv_values(scenario: Scenario) -> dict[str, Any]:
    """The controls that come nearest to a scenario's pools and tiers."""
    tiers = {name: getattr(scenario.kv_tiers, name) for name in LINKS}
    values: dict[str, Any] = {f"{name}_gb": None if one is None else one.size_gb for name, one in tiers.items()}
    values |= {"prefill": 0, "prefill_tp": None, "decider": "always", "decode_router": "least_outstanding"}
    pools = scenario.all_pools()
    if [pool.role for pool in pools] == ["prefill", "decode"]:
        apart, degrees = scenario.disaggregation, [pool.replica.tensor_parallel for pool in pools]
        values |= {"prefill": pools[0].num_replicas, "replicas": pools[1].num_replicas, "tp": degrees[1]}
        values |= {"prefill_tp": degrees[0] if degrees[0] != degrees[1] else None}
        values |= {"decider": apart.decider.name, "decode_router": apart.decode_router.name}
    return values


KEYS = {
    "model": "model", "device": "device", "tp": "replica.tensor_parallel", "pp": "replica.pipeline_parallel",
    "replicas": "num_replicas", "policy": "batching.policy", "router": "router.name",
    "requests": "workload.num_requests", "rate": "workload.rate",
}  # fmt: skip
"""The field behind each control whose value it takes as it is."""
LIMITS = {"ttft": ("slo.ttft_s", 1e3), "tpot": ("slo.tpot_s", 1e3), "e2e": ("slo.e2e_s", 1.0)}
"""Limits: the field, and how many of the control's units a second has."""
OF_ENGINE = "engine"  # The batching policy of the engine; without one, a scenario's default.
OTHER = "other"  # The workload that the further settings describe.


def to_scenario(values: Mapping[str, Any]) -> Scenario:
    """The scenario that the controls describe; a mistake in the further settings is theirs."""
    flat = _as_given(values)
    flat |= {key: values[name] / unit for name, (key, unit) in LIMITS.items() if values.get(name) is not None}
    flat |= _workload(values) | kv_fields(values)
    further = further_settings(values.get("scenario") or "")
    uploads.check_is_data({**flat, **further})
    try:
        scenario = load(Scenario, None, {**flat, **further})
    except GnomonError as error:
        if any(key.replace("-", "_") in str(error) for key in further):
            raise ControlError("scenario", str(error)) from None
        raise
    uploads.check_size(scenario)
    return scenario


def _as_given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields whose controls hold their value as it is, and the engine."""
    flat = {key: values[name] for name, key in KEYS.items() if values.get(name) is not None}
    if flat.get("batching.policy") == OF_ENGINE:
        del flat["batching.policy"]
    return flat | ({"engine.name": values["engine"]} if values.get("engine") else {})


def _usual(scenario: Scenario) -> Scenario:
    """The default scenario, as the engine runs this model on this device."""
    name = scenario.engine.name if scenario.engine else NO_ENGINE
    return load(Scenario, None, {"model": scenario.model, "device": scenario.device, "engine.name": name})


def _workload(values: Mapping[str, Any]) -> dict[str, Any]:
    chosen = values["workload"]
    if chosen == OTHER:
        return {}
    if not uploads.is_trace(chosen):
        return {"workload.preset": chosen}
    trace = uploads.trace(chosen)
    arrivals = {} if trace.has_arrivals else {"workload.arrivals.process": "poisson"}
    columns = {f"workload.trace.columns.{role}": name for role, name in trace.columns.items()}
    return {"workload.trace.file": str(trace.path), **columns, **arrivals}


def further_settings(text: str) -> dict[str, Any]:
    """Further settings: a YAML mapping of dotted keys, with or without braces."""
    text = text.strip()
    if not text:
        return {}
    try:
        found = parse_yaml(text if text.startswith("{") else f"{{{text}}}")
    except DataError as error:
        raise ControlError("scenario", error.what) from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ControlError("scenario", "Write key: value, key: value, e.g. replica.data_parallel: 2.")
    return found


def to_values(scenario: Scenario) -> dict[str, Any]:
    """The controls that describe a scenario; what they cannot say goes into the further settings."""
    flat = dict(_leaves(scenario.model_dump(mode="json")))
    values: dict[str, Any] = {name: flat.get(key) for name, key in KEYS.items()}
    values["engine"] = scenario.engine.name if scenario.engine else NO_ENGINE
    if values["policy"] == _usual(scenario).batching.policy:
        values["policy"] = OF_ENGINE
    for name, (key, unit) in LIMITS.items():
        values[name] = None if flat[key] is None else float(f"{flat[key] * unit:.12g}")
    preset = flat.get("workload.preset")
    is_file = preset is not None and preset not in preset_names()
    named = preset or uploads.name_of(flat.get("workload.trace.file"))
    values["workload"] = OTHER if is_file or not named else named
    near = values | kv_values(scenario)
    values |= {name: near[name] for name in near if name not in values} | {"prefill": 0}
    if dict(_leaves(_as_far_as_said(near).model_dump(mode="json")))["pools"] == flat["pools"]:
        values = near
    usual = dict(_leaves(_as_far_as_said(values).model_dump(mode="json")))
    shown = {*KEYS.values(), "engine.name", *(key for key, _ in LIMITS.values())}
    shown |= set() if is_file else {"workload.preset"}
    further = {key: value for key, value in flat.items() if key not in shown and value != usual.get(key)}
    further |= _arrivals_of_trace(flat)
    values["scenario"] = yaml.safe_dump(further, default_flow_style=True, width=10**6).strip() if further else ""
    return {name: "" if value is None else value for name, value in values.items()}


def _as_far_as_said(values: Mapping[str, Any]) -> Scenario:
    """What the controls alone would give."""
    preset = {} if values["workload"] == OTHER else _workload(values)
    given = _as_given(values)
    given.pop("workload.rate", None)
    return load(Scenario, None, {**given, **preset, **kv_fields(values)})


def _arrivals_of_trace(flat: Mapping[str, Any]) -> dict[str, Any]:
    """How a trace's requests arrive is always said: the default of a scenario is not that of a trace."""
    key = "workload.arrivals.process"
    return {key: flat[key]} if flat.get("workload.trace.file") else {}


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every field that is not a section of its own."""
    for name, value in data.items():
        dotted = f"{prefix}{name}"
        field = _fields().get(dotted)  # A mapping is a section, for which `str` may be a shorthand, or router.options.
        if isinstance(value, dict) and (field is None or field.annotation is str):
            yield from _leaves(value, f"{dotted}.")
        else:
            yield dotted, value


@cache
def _fields() -> dict[str, Field]:
    return {one.dotted: one for one in fields(Scenario)}


ALWAYS = ("model", "device", "engine.name", "workload.preset", "workload.rate")
"""Fields that are written even where they have their default."""


def differences(scenario: Scenario) -> dict[str, Any]:
    """Dotted keys that make this scenario from the default one, as its engine runs it."""
    usual = dict(_leaves(_usual(scenario).model_dump(mode="json")))
    found = dict(_leaves(scenario.model_dump(mode="json")))
    chosen = {k: v for k, v in found.items() if v != usual.get(k) or (k in ALWAYS and v is not None)}
    short = dict(_leaves(scenario.model_dump(mode="json", exclude_defaults=True)))  # Pools are lists of sections.
    chosen = {key: short.get(key, value) for key, value in chosen.items()} | _arrivals_of_trace(found)
    if "workload.trace.file" in chosen:
        chosen["workload.trace.file"] = uploads.shown_name(chosen["workload.trace.file"])
    return {key: value for key, value in chosen.items() if value is not None}


def as_yaml(scenario: Scenario) -> str:
    """The scenario as a file for `gnomon simulate`; defaults are left out."""
    nested: dict[str, Any] = {}
    for dotted, value in differences(scenario).items():
        at, (*sections, last) = nested, dotted.split(".")
        for part in sections:
            at = at.setdefault(part, {})
        at[last] = value
    return to_yaml(nested)


def as_command(scenario: Scenario) -> str:
    words = ["gnomon", "simulate"]
    for dotted, value in differences(scenario).items():
        words += [_fields()[dotted].flag if dotted in _fields() else f"--{dotted}", _word(value)]
    return folded([shlex.quote(word) for word in words])


def as_server(scenario: Scenario) -> str:
    """The command that starts a server such as the one simulated; a comment with the reason where none does."""
    from gnomon.convert import server_command

    try:
        _, command = server_command(scenario)
    except GnomonError as error:
        return f"# No command: {error}"
    note, is_noted, line = command.partition("\n") if command.startswith("#") else ("", "", command)
    command = line if "\n" in line else folded([shlex.quote(word) for word in shlex.split(line)])
    return f"{note}{is_noted}{command}"


def _word(value: Any) -> str:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("\n...")


def folded(words: list[str]) -> str:
    """One flag per line, as people read it and a shell takes it."""
    lines, line = [], ""
    for word in words:
        if word.startswith("--") and line:
            lines.append(line)
            line = f"  {word}"
        else:
            line = f"{line} {word}" if line else word
    return " \\\n".join([*lines, line])
