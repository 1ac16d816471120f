"""Values that need more than another name."""

import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gnomon import catalog
from gnomon.core.errors import ConfigError, GnomonError
from gnomon.serving.policies import POLICIES
from gnomon.serving.routers import ROUTERS
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.engine_presets import engine
from gnomon.timing.config import CAPTURED, captured_sizes
from gnomon.timing.source_registry import SOURCES


def whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{value!r} is not a whole number.", where="the command")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{value!r} is not a number.", where="the command")
    return value


def tokens(value: Any) -> int:
    """vLLM's short numbers: 32k is 32,000 and 32K is 32,768."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", str(value))
    if match is None:
        raise ConfigError(f"{value!r} is not a number of tokens.", where="the command")
    power = " kmg".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[2].isupper() else 1000) ** power)


def drafter(method: str, model: Any = None) -> dict[str, Any]:
    """What drafts, by an engine's name of the method: a head of one layer (multi-token prediction, EAGLE), a model, or
    something that costs nothing (n-grams of the text)."""
    if any(head in method.lower() for head in ("mtp", "nextn", "eagle")):
        return {"draft_layers": 1}
    if method.lower() in ("ngram", "ngram_gpu", "medusa", "suffix", "lookahead") or model in (None, "ngram"):
        return {}
    return {"draft_model": str(model)}


def trtllm_speculative(value: Any) -> dict[str, Any]:
    """TensorRT-LLM's `speculative_config`: how many tokens are drafted, and by what."""
    keys = ("num_nextn_predict_layers", "max_draft_len")
    drafted = next((value[key] for key in keys if isinstance(value, dict) and key in value), None)
    if drafted is None:
        raise ConfigError(f"speculative_config needs {' or '.join(keys)}.", where="the file")
    model = value.get("speculative_model", value.get("speculative_model_dir"))
    return {"num_tokens": drafted, **drafter(str(value.get("decoding_type", "")), model)}


def speculative(value: Any) -> dict[str, Any]:
    """vLLM's `--speculative-config`: how many tokens are drafted, and by what."""
    if not isinstance(value, dict) or "num_speculative_tokens" not in value:
        what = "--speculative-config needs num_speculative_tokens."
        raise ConfigError(what, where="the command", fix="Give it as JSON.")
    drafts = drafter(str(value.get("method", "")), value.get("model"))
    return {"num_tokens": value["num_speculative_tokens"], **drafts}


NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
"""What vLLM takes where it is told not to follow the model."""


def override_generation(value: Any) -> dict[str, Any]:
    """vLLM's `--override-generation-config`: what requests get that say nothing."""
    if not isinstance(value, dict):
        raise ConfigError("--override-generation-config needs a mapping.", where="the command", fix="Give it as JSON.")
    return {key: value[key] for key in NEUTRAL if key in value}


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _captured(engine: str, value: Any) -> list[int]:
    return list(captured_sizes(engine, whole_number(value)))


READERS: dict[str, Callable[[Any], Any]] = {
    "tokens": tokens,
    "listed": listed,
    "speculative": speculative,
    "trtllm_speculative": trtllm_speculative,
    "override_generation_config": override_generation,
    "word": str,
    "some": lambda value: whole_number(value) > 0,
    "above_one": lambda value: whole_number(value) > 1,  # A degree that a scenario only switches on.
    "zero_or_one": lambda value: int(bool(value)),
    "positive_or_none": lambda value: value if _number(value) > 0 else None,  # 0 or less means no limit.
    # Vidur gives the share of memory left free, a scenario the share used.
    "rest_of_one": lambda value: float(round(1 - float(value), 12)),
    # The folder of all measurements, of the path of one of its files.
    "profiling_folder": lambda value: re.split(r"/(?:compute|network|cpu_overhead)/", str(value))[0],
    "demonstrators": lambda value: [{"lor": "vidur_lor"}.get(str(name), str(name)) for name in listed(value)],
    # NONE is no graphs at all; which parts vLLM's other modes capture is not modelled.
    "graph_mode": lambda value: [] if str(value).upper() == "NONE" else None,
    # The model's own (auto), or none of its (vllm).
    "generation_config": lambda value: NEUTRAL if value == "vllm" else None,
    **{f"{name}_graph_sizes": partial(_captured, name) for name in CAPTURED},
}
"""What makes an option's value, by the name that the option maps have for it."""

Values = dict[str, Any]

MAX_PREFILL_TOKENS = 16384  # SGLang's own `max_prefill_tokens`.
VIDUR_NODE = "a100_pairwise_nvlink"
VIDUR_TRACES = {"splitwise_conv": "azure-conv", "splitwise_code": "azure-code", "arxiv_summarization": "arxiv-4k"}
"""Traces that Vidur ships, by how their names begin, and the presets made from their quantiles."""


def finish_vidur(values: Values, given: Values) -> list[str]:
    """Complete a converted scenario in place; return notes for the reader."""
    # Vidur's default network is that of its default device.
    if "node" not in values and catalog.device(values["device"]).name == catalog.device("a100").name:
        values["node"] = VIDUR_NODE
    notes = []
    if ROUTERS[values.setdefault("router", {"name": "round_robin"})["name"]].numbers is not None:
        notes.append("the router is the policy that comes with Gnomon until router.checkpoint names another.")
        notes.append("a router that learns while it simulates: gnomon route train --online --scenario SCENARIO.yaml.")
    if values["workload"].get("arrivals", {}).get("process") == "poisson":
        notes.append("Vidur caps Poisson gaps at 3 / qps, which sends about 5 % more load; Gnomon does not.")
    if not SOURCES[values["timing"].get("source", "auto")].reads_path:
        notes.append(
            "times are measured kernels where the extra [silicon] is installed, else the roofline's; for Vidur's own "
            "measurements set timing.source: profile and timing.path."
        )
    if values["timing"].get("estimator") == "forest" and not find_spec("sklearn"):  # It must run all the same.
        del values["timing"]["estimator"]
        notes.append("timing.estimator: forest needs the extra [forest]: the default estimator is used instead.")
    workload = values["workload"]
    if (name := workload.get("lengths", {}).get("file", "")) and not Path(name).exists():
        preset = next((preset for start, preset in VIDUR_TRACES.items() if Path(name).name.startswith(start)), None)
        if preset is None:
            notes.append(f"{name} is not here: set workload.lengths.file, or a preset (`gnomon workload presets`).")
        else:
            del workload["lengths"]
            workload["preset"] = preset
            what = f"the preset {preset}, made from that trace's quantiles, takes its place."
            notes.append(f"{name} is not here: {what}")
    return notes


def finish_vllm(values: Values, given: Values) -> list[str]:
    """A `vllm serve` command: data-parallel ranks share the experts, or are copies."""
    notes = _assumed(values)
    replica = values.get("replica", {})
    if replica.get("data_parallel", 1) > 1:
        values["router"] = {"name": "vllm_dp"}
    return [*notes, *_dense(values), *_finished(values)]


def finish_sglang(values: Values, given: Values) -> list[str]:
    """A `sglang.launch_server` command: with attention data parallelism, dp_size cuts tp_size; else it makes copies."""
    notes = _assumed(values)
    replica = values.setdefault("replica", {})
    tensor, data = replica.get("tensor_parallel", 1), replica.get("data_parallel", 1)
    if data > 1 and not given.get("enable_dp_attention"):
        values["num_replicas"] = replica.pop("data_parallel")
    elif data > 1:
        if tensor % data:
            raise ConfigError(f"dp_size {data} does not divide tp_size {tensor}.", where="the command")
        replica["tensor_parallel"] = tensor // data
    notes += _partial_experts(replica, given.get("ep_size", 1))
    if "max_total_tokens" in given:
        replica["num_kv_blocks"] = given["max_total_tokens"] // values.get("batching", {}).get("block_size", 1)
    drafted = given.get("speculative_num_draft_tokens", given.get("speculative_num_steps", 0) + 1) - 1
    if drafted > 0:
        drafts = drafter(given.get("speculative_algorithm", ""), given.get("speculative_draft_model_path"))
        replica["speculative"] = {"num_tokens": drafted, **drafts}
    if given.get("chunked_prefill_size", 1) <= 0:
        batching = values.setdefault("batching", {})
        batching["max_batch_tokens"] = batching.get("options", {}).get("max_prefill_tokens", MAX_PREFILL_TOKENS)
        notes.append("prompts are not chunked: max_prefill_tokens is what an iteration takes (longer ones are cut).")
    return [*notes, *_dense(values), *_finished(values)]


def finish_trtllm(values: Values, given: Values) -> list[str]:
    """A `trtllm-serve` command: with attention data parallelism, every GPU of tp_size has its own requests."""
    notes = _assumed(values)
    replica = values.setdefault("replica", {})
    if given.get("enable_attention_dp"):
        replica["data_parallel"] = replica.pop("tensor_parallel", 1)
    notes += _partial_experts(replica, given.get("ep_size", 1))
    if "kv_cache_config.max_tokens" in given:
        block_size = values.get("batching", {}).get("block_size", 32)
        replica["num_kv_blocks"] = given["kv_cache_config.max_tokens"] // block_size
    return [*notes, *_dense(values), *_finished(values)]


def _assumed(values: Values) -> list[str]:
    """The GPU and the model, where the command does not say them."""
    notes = []
    for key, what in (("device", "which GPU"), ("model", "which model")):
        if key not in values:
            values[key] = getattr(Scenario(), key)
            notes.append(f"the command does not say {what}: {values[key]} is assumed (set {key}).")
    return notes


def _partial_experts(replica: Values, degree: int) -> list[str]:
    ranks = replica.get("tensor_parallel", 1) * replica.get("data_parallel", 1)
    if not 1 < degree < ranks:
        return []
    return [f"ep_size {degree} is less than the {ranks} GPUs: experts are taken to be spread over all of them."]


def _dense(values: Values) -> list[str]:
    """Data-parallel ranks of a dense model are independent copies, which a scenario calls replicas."""
    replica = values.get("replica", {})
    if catalog.model(values["model"]).is_moe:
        return []
    notes = []
    if replica.pop("expert_parallel", False):
        notes.append("the model has no experts: expert parallelism changes nothing.")
    if replica.get("data_parallel", 1) > 1:
        values["num_replicas"] = replica["data_parallel"]
        notes.append("the data-parallel ranks of a dense model are replicas (num_replicas).")
    replica.pop("data_parallel", None)
    return notes


def _finished(values: Values) -> list[str]:
    """What holds for every engine: number formats, drafts, the load."""
    model, timing = catalog.model(values["model"]), values.get("timing", {})
    notes = []
    if not model.checkpoint.is_plain:
        timing.pop("dtype", None)  # Of activations, or how the checkpoint is quantised anyway.
    if timing.get("dtype", "auto") == "auto" and not model.checkpoint.is_plain:
        notes.append(f"weights are in {model.checkpoint.name}, the checkpoint's own precision.")
    replica = values.get("replica", {})
    policy = engine(values["engine"]).settings["batching.policy"].value
    if replica.get("speculative") and not POLICIES[policy].speculates:
        del replica["speculative"]
        notes.append(f"speculative decoding is not part of the policy {policy}: left out.")
    draft = replica.get("speculative", {}).get("draft_model")
    try:
        catalog.model(draft or Scenario().model)
    except GnomonError:  # EAGLE heads, say.
        del replica["speculative"]["draft_model"]
        notes.append(f"the draft model {draft} is not in the catalog: drafting is taken to be free.")
    notes.append("the command says nothing of the load: the default workload is used (set workload).")
    return notes
