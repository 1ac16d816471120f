"""What a vLLM command line implies beyond its single options, and the way back."""

from __future__ import annotations

from typing import Any

from gnomon import catalog
from gnomon.convert.options import option_map
from gnomon.core.errors import GnomonError
from gnomon.core.units import GIB
from gnomon.serving.scenario import Scenario


def finish_vllm(values: dict[str, Any]) -> list[str]:
    """Complete a converted scenario in place; return notes for the reader."""
    notes = []
    if "device" not in values:
        values["device"] = Scenario().device
        notes.append(f"the command does not say which GPU: {values['device']} is assumed (set device).")
    if "model" not in values:
        values["model"] = Scenario().model
        notes.append(f"the command names no model: {values['model']} is assumed (set model).")
    batching = values.setdefault("batching", {})
    for key, value in _batch_defaults(values["device"]).items():
        batching.setdefault(key, value)
    notes += _spread_data_parallel(values)
    notes += _known_draft(values.get("replica", {}).get("speculative", {}))
    notes.append("the command says nothing of the load: the default workload is used (set workload).")
    return notes


def _batch_defaults(device: str) -> dict[str, int]:
    """vLLM's defaults for an API server: larger on GPUs of 70 GiB and more, except the A100 (arg_utils.py, 0.19)."""
    known = catalog.device(device)
    if known.memory_bytes >= 70 * GIB and "a100" not in known.name:
        return {"max_sequences": 1024, "max_batch_tokens": 8192}
    return {"max_sequences": 256, "max_batch_tokens": 2048}


def _spread_data_parallel(values: dict[str, Any]) -> list[str]:
    """Data-parallel ranks of a dense model are independent copies, which a scenario calls replicas."""
    replica = values.get("replica", {})
    if replica.get("data_parallel", 1) > 1:
        values["router"] = {"name": "vllm_dp"}
    if catalog.model(values["model"]).is_moe:
        return []
    notes = []
    if replica.pop("expert_parallel", False):
        notes.append("the model has no experts: --enable-expert-parallel changes nothing.")
    if "data_parallel" in replica:
        values["num_replicas"] = replica.pop("data_parallel")
        notes.append("the data-parallel ranks of a dense model are replicas (num_replicas).")
    return notes


def _known_draft(speculative: dict[str, Any]) -> list[str]:
    """Forget a draft model that the catalog does not know (EAGLE heads, say)."""
    try:
        catalog.model(speculative.get("draft_model", Scenario().model))
    except GnomonError:
        return [
            f"the draft model {speculative.pop('draft_model')} is not in the catalog: drafting is taken to be free."
        ]
    return []


def vllm_flags(scenario: Scenario) -> list[str]:
    """The words of a `vllm serve` command that runs what `scenario` simulates, as far as vLLM has a word for it."""
    known = catalog.model(scenario.model)
    words = ["vllm", "serve", known.hf_id or scenario.model]
    kind = scenario.kinds()[0]
    resolved = {
        "replica": kind.replica,
        "batching": kind.batching.resolved(),
        "timing": kind.timing,
        "seed": scenario.seed,
    }
    for name, option in option_map("vllm").options.items():
        if len(option.targets) != 1 or option.read == "speculative" or option.targets[0] == "model":
            continue
        value = _at(resolved, option.targets[0].split("."))
        words += _flag(name, value, option.values, option.flag)
    if not known.is_moe and scenario.num_replicas > 1:
        words += ["--data-parallel-size", str(scenario.num_replicas)]
    speculative = kind.replica.speculative
    if speculative is not None:
        drafted = f'"model": "{speculative.draft_model}", ' if speculative.draft_model else '"method": "mtp", '
        words += ["--speculative-config", f'{{{drafted}"num_speculative_tokens": {speculative.num_tokens}}}']
    return words


def _flag(name: str, value: Any, values: dict[str, Any] | None, is_flag: bool) -> list[str]:
    if values is not None:
        value = list(value) if isinstance(value, tuple) else value
        value = next((theirs for theirs, ours in values.items() if ours == value), None)
        value = value == "true" if is_flag and value is not None else value
    spelled = "--" + name.replace("_", "-")
    if value is None or value == _UNSAID.get(name):
        return []
    if isinstance(value, bool):
        return [spelled if value else "--no-" + name.replace("_", "-")]
    return [spelled, str(value)]


# vLLM's own defaults, which need no word.
_UNSAID = {
    "enable_prefix_caching": True, "scheduler_reserve_full_isl": True, "enable_expert_parallel": False,
    "enforce_eager": False, "async_scheduling": False, "watermark": 0.0,
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1, "gpu_memory_utilization": 0.9,
    "block_size": 16, "seed": 0, "dtype": "bfloat16", "kv_cache_dtype": "bfloat16",
}  # fmt: skip


def _at(section: Any, path: list[str]) -> Any:
    for part in path:
        section = section.get(part) if isinstance(section, dict) else getattr(section, part, None)
    return section
