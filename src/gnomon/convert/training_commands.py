"""A training layout as flags of Megatron-LM and torchtitan, and Megatron-LM's flags as a layout."""

from collections.abc import Callable
from typing import Any

from gnomon import catalog
from gnomon.convert.options import DATA, value_of, words_of
from gnomon.core.config import build
from gnomon.core.errors import ConfigError
from gnomon.core.text import own_yaml, to_yaml
from gnomon.training.config import TrainConfig
from gnomon.training.stages import stages_of

MEGATRON: dict[str, dict[str, Any]] = own_yaml(DATA / "megatron.yaml")
SIZES, SHAPE, EXCHANGES, STRATEGIES = (MEGATRON[name] for name in ("sizes", "shape", "exchanges", "strategies"))
DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel",
           "virtual_stages")  # fmt: skip
STAGES = ("num_layers_per_virtual_pipeline_stage", "pipeline_model_parallel_layout")
"""Other ways to say how many virtual stages there are."""
WORDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sequence_parallel": lambda on: {"sequence_parallel": bool(on)},
    "use_distributed_optimizer": lambda on: {"sharding": "optimizer" if on else "none"},
    "data_parallel_sharding_strategy": lambda word: {"sharding": STRATEGIES[word]},
    "recompute_granularity": lambda word: {"recompute": word},
    "recompute_activations": lambda on: {"recompute": "selective"} if on else {},
    "cp_comm_type": lambda word: {"context_exchange": EXCHANGES[word]},
    "fp8_format": lambda word: {"precision": "fp8"},
    "fp8_recipe": lambda word: {"precision": "mxfp8" if word == "mxfp8" else "fp8"},
    "fp4_format": lambda word: {"precision": "nvfp4"},
    "tp_comm_overlap": lambda on: {"tensor_overlap": bool(on)},
    "cuda_graph_impl": lambda word: {"cuda_graphs": word != "none"},
    "enable_cuda_graph": lambda on: {"cuda_graphs": bool(on)},
}
"""Options with words of their own."""


def megatron_command(config: TrainConfig) -> str:
    """The flags of Megatron-LM that lay a step out like this."""
    c = config
    degrees = {name: getattr(c, field) for name, field in SIZES.items() if field in DEGREES}
    words = [f"--{name.replace('_', '-')} {size}" for name, size in degrees.items() if size > 1]
    if (c.shape.num_layers + 2) % c.num_stages and c.shape.num_layers % c.num_stages:
        stages = ["t" * stage.num_layers for stage in stages_of(c.shape, c.num_stages)]
        words.append(f'--pipeline-model-parallel-layout "E{"|".join(stages)}L"')
    elif c.shape.num_layers % c.num_stages:
        words += ["--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"]
    words += [
        f"--micro-batch-size {c.micro_batch}",
        f"--global-batch-size {c.batch_size}",
        f"--seq-length {c.sequence}",
    ]
    if c.tensor_parallel > 1 and c.sequence_parallel:
        words.append("--sequence-parallel" + (" --tp-comm-overlap" if c.tensor_overlap else ""))
    if c.context_parallel > 1:
        words.append(f"--cp-comm-type {next(k for k, v in EXCHANGES.items() if v == c.context_exchange)}")
    if c.sharding == "optimizer":
        words.append("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather")
    elif c.sharding != "none":
        strategy = next(k for k, v in STRATEGIES.items() if v == c.sharding)
        words.append(f"--use-megatron-fsdp --data-parallel-sharding-strategy {strategy}")
    if c.recompute != "none":
        words.append(f"--recompute-granularity {c.recompute}")
    if c.recompute == "full":
        layers = c.recompute_layers if c.recompute_layers is not None else -(-c.shape.num_layers // c.num_stages)
        words.append(f"--recompute-method block --recompute-num-layers {layers}")
    return " ".join([*words, "--bf16", *MEGATRON["formats"][c.precision]])


def torchtitan_command(config: TrainConfig) -> str:
    """The flags of torchtitan that lay a step out like this; what it has no word for is left out."""
    c = config
    sections: dict[str, Any] = {
        "parallelism.tensor_parallel_degree": c.tensor_parallel,
        "parallelism.pipeline_parallel_degree": c.pipeline_parallel,
        "parallelism.context_parallel_degree": c.context_parallel,
        "parallelism.expert_parallel_degree": c.expert_parallel,
        "parallelism.data_parallel_shard_degree": c.num_sharding // c.context_parallel,
        "parallelism.data_parallel_replicate_degree": c.data_parallel * c.context_parallel // c.num_sharding,
    }
    words = [f"--{name} {size}" for name, size in sections.items() if size > 1]
    words += [
        f"--training.local_batch_size {c.micro_batch * (c.num_microbatches if c.pipeline_parallel > 1 else 1)}",
        f"--training.global_batch_size {c.batch_size}",
        f"--training.seq_len {c.sequence}",
        f"--activation_checkpoint.mode {c.recompute}",
    ]
    if c.pipeline_parallel > 1:
        name = "Interleaved1F1B" if c.virtual_stages > 1 else "1F1B"
        words.append(f"--parallelism.pipeline_parallel_schedule {name}")
        words.append(f"--parallelism.pipeline_parallel_microbatch_size {c.micro_batch}")
    return " ".join(words)


def read_megatron(
    command: str, *, model: str | None = None, device: str = "h100", gpus: int | None = None
) -> tuple[TrainConfig, dict[str, str]]:
    """The step that a Megatron-LM command runs, and its options that say nothing about it."""
    given = _options(command)
    values: dict[str, Any] = {"model": model or _model(given), "device": device, **MEGATRON["unasked"]}
    without: dict[str, str] = {}
    for name, value in given.items():
        if name in SIZES:
            values[SIZES[name]] = value
        elif name in WORDS:
            try:
                values |= WORDS[name](value)
            except KeyError:
                what = f"--{name.replace('_', '-')} {value} is not known here."
                raise ConfigError(what, where="the command") from None
        elif name not in (*SHAPE, *STAGES):
            without[name] = "nothing that a step's time depends on, or not known here"
    if "pipeline_model_parallel_layout" in given:
        stages = 1 + str(given["pipeline_model_parallel_layout"]).count("|")
        values["virtual_stages"] = stages // values.get("pipeline_parallel", 1)
    if "num_layers_per_virtual_pipeline_stage" in given:
        layers = catalog.model(values["model"]).num_layers // values.get("pipeline_parallel", 1)
        values["virtual_stages"] = layers // int(given["num_layers_per_virtual_pipeline_stage"])
    if "recompute_layers" in values and values.get("recompute") != "full":
        del values["recompute_layers"]
    if gpus is not None:
        values["gpus"] = gpus
    elif "gpus" not in values:
        raise ConfigError("the command does not say how many GPUs there are.", where="--gpus", fix="Give --gpus N.")
    return build(TrainConfig, values), without


def as_train_yaml(command: str, *, model: str | None, device: str, gpus: int | None) -> str:
    """The step of a Megatron-LM command as YAML for `gnomon train step`, with what was not read as comments."""
    config, without = read_megatron(command, model=model, device=device, gpus=gpus)
    comments = "".join(f"#   --{name.replace('_', '-')}: {why}\n" for name, why in without.items())
    head = "# From a Megatron-LM command line.\n" + (f"# Without a counterpart:\n{comments}" if comments else "")
    return head + to_yaml(config.model_dump(mode="json", exclude_unset=True))


def _options(command: str) -> dict[str, Any]:
    """Every `--option value` of a command; True for those without a value."""
    words = words_of(command)
    found: dict[str, Any] = {}
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, has_value, value = word[2:].partition("=")
        following = words[at + 1] if at + 1 < len(words) else "--"
        if not has_value and not following.startswith("--"):
            value, has_value = following, "="
        found[name.replace("-", "_")] = value_of(value) if has_value else True
    return found


def _model(given: dict[str, Any]) -> str:
    """The model of the catalog whose shape the command spells out."""
    shape = {SHAPE[name]: given[name] for name in SHAPE if name in given}
    if "num_layers" not in shape or "hidden_size" not in shape:
        raise ConfigError("the command does not say which model it trains.", where="--model", fix="Give --model NAME.")
    models = ((name, catalog.model(name)) for name in catalog.model_names())
    found = [name for name, one in models if all(getattr(one, key) == size for key, size in shape.items())]
    if not found:
        comments = ", ".join(f"{name} {size}" for name, size in shape.items())
        what = f"no built-in model has {comments}."
        raise ConfigError(what, where="the command", fix="Give --model NAME or a config.json.")
    return found[0]
