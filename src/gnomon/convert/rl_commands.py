"""A post-training set-up as options of verl and RLinf, and their options as a set-up."""

import math
from functools import reduce
from pathlib import Path
from typing import Any

from gnomon import catalog
from gnomon.convert.conversion import put
from gnomon.convert.options import DATA, words_of
from gnomon.core.config import build
from gnomon.core.errors import ConfigError, DataError
from gnomon.core.text import own_yaml, parse_yaml, read_text, to_yaml
from gnomon.posttrain.scenario.config import Posttrain
from gnomon.posttrain.scenario.placement import placement_of

MODEL, ACTOR, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout"))
OPTIONS: dict[str, Any] = own_yaml(DATA / "rl.yaml")
SAME, TOGETHER, DEFAULTS, RLINF = (OPTIONS[name] for name in ("verl", "together", "defaults", "rlinf"))
PROMPTS_PER_SERVER = 16
"""Generated at once by each engine of the fully asynchronous trainer (max_concurrent_samples of its rollouter)."""
MEAN_SHARE = 0.25  # Mean response over the longest, which no option says.


def read_verl(text: str, *, device: str = "h100", model: str | None = None) -> tuple[Posttrain, dict[str, str]]:
    """The set-up of a verl command, of its options, or of a YAML file; and options that say nothing about it."""
    options = _options(text)
    given = DEFAULTS | options | ({f"{MODEL}.path": model} if model else {})
    values: dict[str, Any] = {"device": device}
    without = {}
    for name, value in given.items():
        if name in SAME and value is not None:
            put(values, SAME[name], value)
        elif name not in (*SAME, *TOGETHER):
            without[name] = "not known here, or nothing that a step's time depends on"
    if not given.get(f"{MODEL}.path"):
        raise ConfigError(f"{MODEL}.path is not given.", where="the command", fix="Give it, or --model NAME.")
    _finish(values, given)
    return build(Posttrain, values), without


def read_rlinf(text: str, *, device: str = "h100", model: str | None = None) -> tuple[Posttrain, dict[str, str]]:
    """The set-up of RLinf's YAML for reasoning, and options that say nothing about it."""
    given = _options(text)
    given.setdefault("rollout.model_dir", given.pop("rollout.model.model_path", None))
    values: dict[str, Any] = {"device": device}
    placement: dict[str, Any] = {}
    without = {}
    for name, value in given.items():
        if name in RLINF and value is not None:
            put(values, RLINF[name], value)
        elif name.startswith("cluster.component_placement."):
            components = name.removeprefix("cluster.component_placement.").split(",")
            placement |= {one: value for one in map(str.strip, components) if one in ("actor", "rollout", "inference")}
        elif name != "runner.seq_length" and value is not None:
            without[name] = "not known here, or nothing that a step's time depends on"
    if not placement or "runner.seq_length" not in given:
        raise ConfigError("has no cluster.component_placement, or no runner.seq_length.", where="RLinf's YAML")
    values["model"] = model or Path(values.get("model", "")).name
    put(values, "cluster.component_placement", placement)
    if "inference" not in placement and values.setdefault("algorithm", {}).pop("recompute_logprobs", True):
        values["algorithm"] |= {"recompute_logprobs": False, "actor_passes": 1}  # The actor computes them itself.
    _lengths(values, given["runner.seq_length"] - values.setdefault("lengths", {}).get("max_prompt", 0))
    return build(Posttrain, values), without


def _lengths(values: dict[str, Any], longest: int) -> None:
    """What options say about lengths, and means that they do not say."""
    lengths = values["lengths"]
    lengths |= {"max_response": longest, "mean": MEAN_SHARE * longest}
    lengths["prompt_mean"] = max(1, lengths["max_prompt"] // 4)


def _finish(values: dict[str, Any], given: dict[str, Any]) -> None:
    """What follows from several options together."""
    a, actor, minibatch = values.setdefault("algorithm", {}), values.setdefault("actor", {}), given[TOGETHER[1]]
    is_apart = "rollout.nnodes" in given
    fetch, rounds = (int(given.get(f"async_training.{name}") or 1) for name in (
        "require_batches", "trigger_parameter_sync_step"))  # fmt: skip
    prompts = minibatch * fetch * rounds if is_apart else given["data.train_batch_size"]
    if prompts % minibatch:
        raise ConfigError(f"mini-batches of {minibatch} prompts do not divide {prompts}.", where=TOGETHER[1])
    a |= {"rollout_batch_size": prompts, "n_minibatches": prompts // minibatch}
    a["critic"] = given.get("algorithm.adv_estimator", "gae") == "gae"
    is_referred = bool(given.get(f"{ACTOR}.use_kl_loss") or given.get("algorithm.use_kl_in_reward"))
    a |= {"recompute_logprobs": False, "actor_passes": int(not is_apart) + int(is_referred)}
    is_fsdp = str(given.get(f"{ACTOR}.strategy", "fsdp")).startswith("fsdp")
    actor |= {"framework": "fsdp" if is_fsdp else "megatron", "deal": "sequences"}
    size = int(given.get(f"{ACTOR}.fsdp_config.fsdp_size") or -1)
    if is_fsdp and size > 0:
        actor["shard_gpus"] = size
    kind = "fsdp_config" if is_fsdp else "megatron"
    actor["offload"] = bool(given.get(f"{ACTOR}.{kind}.optimizer_offload"))
    if f"{MODEL}.enable_gradient_checkpointing" in given:
        actor["recompute"] = float(given[f"{MODEL}.enable_gradient_checkpointing"])
    if given.get(f"{ACTOR}.use_dynamic_bsz"):
        copies = actor.get("context_parallel", 1)
        actor["max_tokens"] = given[f"{ACTOR}.ppo_max_token_len_per_gpu"] * copies
        if f"{ROLLOUT}.log_prob_max_token_len_per_gpu" in given:
            actor["pass_tokens"] = given[f"{ROLLOUT}.log_prob_max_token_len_per_gpu"] * copies
    if given.get(f"{ROLLOUT}.expert_parallel_size", 1) > 1:
        values["rollout"]["expert_parallel"] = True
    _lengths(values, values["lengths"]["max_response"])
    if is_apart:
        _place(values, given)
        a |= {"fetch_minibatches": fetch, "mode": "async" if a.get("staleness") else "sync"}


def _place(values: dict[str, Any], given: dict[str, Any]) -> None:
    """The trainer's GPUs, then those of rollout, on nodes of one size."""
    trainer = given["trainer.nnodes"] * given["trainer.n_gpus_per_node"]
    rollout = given["rollout.nnodes"] * given.get("rollout.n_gpus_per_node", given["trainer.n_gpus_per_node"])
    per_node = min(given["trainer.n_gpus_per_node"] + given.get("rollout.n_gpus_per_node", 0), 8)
    while (trainer + rollout) % per_node:
        per_node -= 1
    placement = {"actor": f"0-{trainer - 1}", "rollout": f"{trainer}-{trainer + rollout - 1}"}
    values["cluster"] = {
        "num_nodes": (trainer + rollout) // per_node, "gpus_per_node": per_node, "component_placement": placement,
    }  # fmt: skip
    degrees = (values["rollout"].get(f"{kind}_parallel", 1) for kind in ("tensor", "pipeline", "data"))
    values["algorithm"]["in_flight"] = max(1, PROMPTS_PER_SERVER * rollout // math.prod(degrees))


def _options(text: str) -> dict[str, Any]:
    """Hydra's `key=value` words of a command, or the leaves of a YAML file."""
    if "=" not in text and Path(text.strip()).is_file():
        where = text.strip()
        data = parse_yaml(read_text(where), where)
        if not isinstance(data, dict):
            raise DataError("is no configuration.", where=where, fix="Give a YAML file, or key=value words.")
        return dict(_leaves(data))
    words = words_of(text)
    pairs = [word.lstrip("+").partition("=") for word in words if "=" in word and not word.startswith("-")]
    found = {name: parse_yaml(value, name) if value else None for name, _, value in pairs if "." in name}
    if not found:
        what = "is no file, and has no options." if len(words) == 1 else "has no options."
        raise ConfigError(what, where=text.strip(), fix="Give a file, or words as trainer.nnodes=2.")
    return found


def _field(config: Posttrain, dotted: str) -> Any:
    return reduce(getattr, dotted.split("."), config)


def _leaves(data: dict[str, Any], prefix: str = "") -> Any:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        elif not (isinstance(value, str) and "${" in value):
            yield f"{prefix}{name}", value


def as_posttrain_yaml(tool: str, text: str, *, device: str = "h100", model: str | None = None) -> str:
    """A set-up of verl or RLinf as YAML for `gnomon posttrain run`, with what was not read as comments."""
    config, without = (read_verl if tool == "verl" else read_rlinf)(text, device=device, model=model)
    comments = "".join(f"#   {name}: {why}\n" for name, why in without.items())
    head = f"# From {tool}. Its options do not say lengths: the mean is {MEAN_SHARE:g} of the longest; set your own.\n"
    head += f"# Without a counterpart:\n{comments}" if comments else ""
    return head + to_yaml(config.model_dump(mode="json", exclude_unset=True))


def verl_flags(config: Posttrain) -> list[str]:
    a, actor, sizes = config.algorithm, config.actor, placement_of(config)
    others = (f"{ACTOR}.megatron" if actor.framework == "fsdp" else f"{ACTOR}.ulysses", "trainer.", "async_training.")
    flags = {name: _field(config, field) for name, field in SAME.items() if not name.startswith(others)}
    flags = {name: value for name, value in flags.items() if value not in (None, "auto")}
    flags |= {
        f"{MODEL}.path": catalog.model(config.model).hf_id or config.model,
        f"{ACTOR}.ppo_mini_batch_size": a.rollout_batch_size // a.n_minibatches,
        f"{ACTOR}.strategy": actor.framework,
        "algorithm.adv_estimator": "gae" if a.critic else "grpo",
    }
    if config.rollout.expert_parallel:
        flags[f"{ROLLOUT}.expert_parallel_size"] = config.rollout.tensor_parallel * config.rollout.data_parallel
    if actor.max_tokens:
        each = actor.max_tokens // actor.context_parallel
        flags |= {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": each}
        if actor.pass_tokens:
            flags[f"{ROLLOUT}.log_prob_max_token_len_per_gpu"] = actor.pass_tokens // actor.context_parallel
    if sizes.is_shared:
        flags |= {"data.train_batch_size": a.rollout_batch_size, "trainer.nnodes": config.cluster.num_nodes}
        flags |= {"trainer.n_gpus_per_node": config.cluster.gpus_per_node}
    else:
        trainer, rollout, per_node = len(sizes.actor), len(sizes.rollout), config.cluster.gpus_per_node
        fetch = max(1, a.fetch_minibatches)
        flags |= {
            "actor_rollout_ref.hybrid_engine": False,
            "trainer.nnodes": max(1, trainer // per_node),
            "trainer.n_gpus_per_node": min(per_node, trainer),
            "rollout.nnodes": max(1, rollout // per_node),
            "rollout.n_gpus_per_node": min(per_node, rollout),
            "async_training.staleness_threshold": f"{1.0 if a.mode == 'one_step_off' else a.staleness:g}",
            "async_training.require_batches": fetch,
            "async_training.trigger_parameter_sync_step": a.n_minibatches // fetch,
            "async_training.partial_rollout": a.interrupt and a.is_async,
        }
    return [f"{name}={value}" for name, value in flags.items()]


def rlinf_yaml(config: Posttrain) -> str:
    sizes = placement_of(config).by_name().items()
    data: dict[str, Any] = {}
    for name, field in RLINF.items():
        value = _field(config, field)
        if value is not None and (config.algorithm.recompute_logprobs or not name.startswith("inference.")):
            put(data, name, value)
    data["cluster"]["component_placement"] = {name: f"{gpus[0]}-{gpus[-1]}" for name, gpus in sizes if gpus}
    data["runner"] = {"seq_length": config.lengths.max_prompt + config.lengths.max_response}
    comment = "# RLinf's pipeline trains on policy: how far generation may run ahead has no counterpart.\n"
    return (comment if config.algorithm.carries else "") + to_yaml(data)
