"""A measured server as a scenario: the client, the launch script's settings, the layout. `ACCEPTANCE` is fitted."""

from typing import Any, Literal
from zlib import crc32

from gnomon.core.config import load
from gnomon.core.errors import ConfigError
from gnomon.serving.policies import POLICIES, PolicySpec
from gnomon.serving.scenario import Scenario
from gnomon.serving.scenario.engine_presets import engine
from gnomon.serving.scenario.engine_versions import is_known
from gnomon.timing.config import captured_sizes
from gnomon.verify.silicon.launch import Launch, data, launch_of
from gnomon.verify.silicon.servers import Layout, Server

WARM_UP_SINCE = "2026-01-27"
"""InferenceX's client sends warm-up requests from this day on: its pull request 480 of 17 January, which was to wait
ten days; servers of the 14th still waited for kernels to be compiled, one of the 28th did not."""

SRT_SINCE = "2026-01-01"
DYNAMO_ROUNDS, SRT_ROUNDS = (5, 5), (2, 10)
"""Prefill and decode apart: warm-up and measured requests for each in flight. SGLang's of 2025 were sent by Dynamo's
own scripts, the others by srt-slurm's; both warmed up."""

ACCEPTANCE = 0.65
"""Chance that a drafted token is accepted if those before it were, on InferenceX's random prompts. Fitted to drafting
servers with an even crc32(id), one figure for all models, engines and numbers of drafts."""

TRTLLM_2025, TRTLLM_2025_UNTIL = "1.1.0rc2.post2", "2026-01-01"
"""InferenceX's TensorRT-LLM in 2025, where a row does not say it or names Dynamo's version."""

ONE_NVLINK_DOMAIN = ("gb200", "gb300")  # Systems whose workers are linked by NVLink: 72 GPUs in one rack.


def scenario_of(server: Server) -> Scenario:
    return load(Scenario, None, settings_of(server))


def settings_of(server: Server) -> dict[str, Any]:
    """A server as the few keys that differ from the defaults."""
    if server.problem:
        raise ConfigError(server.problem, where=server.id)
    launch = launch_of(facts_of(server))
    common = {
        "model": model_of(server),
        "device": server.device,
        "engine": {"name": server.engine, "version": launch.version or _version(server)},
        "front_end": {"stream_interval": launch.stream_interval, "reply_s": _reply_s(server)},
        "workload": workload_of(server, launch),
        "sampling": {"temperature": 0},  # InferenceX's client asks for it; that of the sweeps is not known.
    }
    return common | (_roles(server) if server.prefill else _worker(server, server.layout, launch))


def _worker(server: Server, layout: Layout, launch: Launch) -> dict[str, Any]:
    """The sections of a scenario, or of one of its pools, that a launch script decides."""
    layout = as_launched(layout, launch)
    return {
        "replica": {**parallelism_of(layout), "memory_utilization": launch.memory, **_drafting(launch)},
        "batching": {
            "max_batch_tokens": launch.max_batch_tokens, "max_sequences": launch.max_sequences, "prefix_cache": False,
            **({} if launch.overlap is None else {"overlap": launch.overlap}),
            "options": _policy_options(server, layout, launch),
        },
        "timing": {
            "source": "silicon", "dtype": _scheme(server),
            **{name: getattr(launch, name) for name in ("kv_dtype", "expert_kernel", "all_reduce", "prompt_graphs")},
            **({} if launch.exchange == "auto" else {"expert_exchange": launch.exchange}),
            **({"expert_load": launch.expert_load} if launch.expert_load else {}),
            **({} if launch.expert_speed == 1.0 else {"expert_speed": launch.expert_speed}),
            "graph_sizes": [(1 + launch.draft_tokens) * n for n in captured_sizes(server.engine, launch.graph_batch)],
        },
    }  # fmt: skip


def _roles(server: Server) -> dict[str, Any]:
    """Prefill and decode workers apart, each with the settings of its side of the recipe."""
    assert server.prefill is not None
    prefill, decode = launch_of(facts_of(server, "prefill")), launch_of(facts_of(server, "decode"))
    sides = (
        ("prefill", server.num_prefill, server.prefill, prefill),
        ("decode", server.num_decode, server.layout, decode),
    )
    return {
        "pools": [
            {"role": role, "num_replicas": count, **_worker(server, layout, launch)}
            for role, count, layout, launch in sides
        ],
        "timing": {"dtype": _scheme(server)},
        "router": prefill.router,
        "disaggregation": {
            "decode_router": decode.router, "link": "nvlink" if server.device in ONE_NVLINK_DOMAIN else "network",
        },
        "front_end": {"stream_interval": decode.stream_interval, "reply_s": _reply_s(server)},
    }  # fmt: skip


def _drafting(launch: Launch) -> dict[str, Any]:
    if not launch.draft_tokens:
        return {}
    return {"speculative": {"num_tokens": launch.draft_tokens, "acceptance": ACCEPTANCE, "draft_layers": 1}}


def _policy(server: Server) -> PolicySpec:
    return POLICIES[engine(server.engine).settings["batching.policy"].value]


def _policy_options(server: Server, layout: Layout, launch: Launch) -> dict[str, float]:
    """What the engine's scheduler was told beyond its limits."""
    options, known = dict[str, float](), _policy(server).options
    if launch.receive_interval > 1:
        options["receive_interval"] = launch.receive_interval
    if "max_prefill_tokens" in known:  # The scripts give both limits alike where they are above the default.
        options["max_prefill_tokens"] = max(launch.max_batch_tokens, 16384)
    if launch.batch_wait_iterations:
        options |= {"wait_iterations": launch.batch_wait_iterations, "wait_tokens_ratio": launch.batch_wait_ratio}
    if "balance" in known and layout.attention_groups > 1:
        options["balance"] = 1
        if model_of(server) == "deepseek-r1":  # dsr1_*_trt.sh; gptoss_*_trt.sh leaves the rest of it at the defaults.
            options |= {"balance_wait_iterations": 0, "balance_timeout_iterations": 60}
    return options


def model_of(server: Server) -> str:
    return str(data("checkpoints")["models"].get(server.model, server.model))


def is_in_held_out_sweep(server: Server) -> bool:
    """Whether the whole sweep of this server (one model, system, engine and pair of lengths) is one that constants are
    not fitted on, so that no neighbour or repeat of it is among those that they are."""
    sweep = (model_of(server), server.device, server.engine, server.prompt_tokens, server.output_tokens)
    return crc32(" ".join(map(str, sweep)).encode()) % 2 == 1


def facts_of(server: Server, role: Literal["both", "prefill", "decode"] = "both") -> dict[str, Any]:
    """What the rules of `launch.yaml`, `launch_disagg.yaml` and `doubtful.yaml` may ask."""
    layout = server.layout
    workers = {"both": 1, "prefill": server.num_prefill, "decode": server.num_decode}[role]
    if role == "prefill":
        assert server.prefill is not None
        layout = server.prefill
    named = ("family", "mode", "engine", "device", "precision", "date", "concurrency")
    return {name: getattr(server, name) for name in named} | {
        "version": server.version or "", "model": model_of(server), "prompt": server.prompt_tokens,
        "output": server.output_tokens, "gpus": layout.num_gpus, "attention_groups": layout.attention_groups,
        "expert_parallel": layout.expert_parallel, "drafting": server.is_drafting, "role": role, "workers": workers,
        "each": server.concurrency // (workers * layout.attention_groups) if workers else 0,
    }  # fmt: skip


def _scheme(server: Server) -> str:
    """How the checkpoint of this precision is quantised."""
    named = data("checkpoints")["schemes"].get(model_of(server), {}).get(server.precision)
    return named or ("bf16" if server.precision == "bf16" else "auto")


def _version(server: Server) -> str:
    """The engine's version where it is one; nightly builds and images of another product are taken for the newest."""
    version = server.version or ""
    if server.engine == "trtllm" and server.family == "inferencex" and "" < server.date < TRTLLM_2025_UNTIL:
        version = version if version[:2] == "1." else TRTLLM_2025
    return version if is_known(version, engine(server.engine).versions) else ""


CLIENT_S = 0.007
"""InferenceX's own client, one Python process for all requests: what it takes from a message to its stamp. Fitted to
vLLM's servers with an even crc32(id) in even sweeps, whose reply alone is measured elsewhere; taken for all engines."""


def _reply_s(server: Server) -> float:
    """From a token to the stamp of the server's client."""
    own = float(engine(server.engine).settings["front_end.reply_s"].value)
    return own + (CLIENT_S if server.family == "inferencex" else 0.0)


SPREAD = 0.1
"""NVIDIA's sweeps: by how much of the nominal length answers are shorter or longer, but under SGLang, which keeps
requests in step (docs/accuracy.md)."""


def workload_of(server: Server, launch: Launch) -> dict[str, Any]:
    """The load generator of the server's family. NVIDIA's own sweeps are taken to send ten requests for each one in
    flight, as InferenceX does, after two rounds of warm-up."""
    users, output = server.concurrency, server.output_tokens
    prompt = round(launch.prompt_growth * server.prompt_tokens)
    if server.family == "sweeps":
        spread = int(SPREAD * output) if _policy(server).mixes else 0
        lengths = {"prompt": [prompt, prompt], "output": [output - spread, output + spread]}
        return {
            "arrivals": {"process": "closed_loop", "concurrency": users},
            "lengths": {"distribution": "uniform", **lengths}, "num_requests": 10 * users, "warmup_requests": 2 * users,
        }  # fmt: skip
    client = "inferencex" if server.date >= WARM_UP_SINCE else "inferencex_2025"
    workload = {"client": {"name": client, "concurrency": users, "prompt": prompt, "output": output}}
    if server.prefill is None:
        return workload
    rounds = DYNAMO_ROUNDS if server.engine == "sglang" and "" < server.date < SRT_SINCE else SRT_ROUNDS
    return workload | {"warmup_requests": rounds[0] * users, "num_requests": rounds[1] * users}


def as_launched(layout: Layout, launch: Launch) -> Layout:
    """How one worker is spread: as its row says, unless its script says otherwise."""
    groups = {"data": layout.num_gpus, "tensor": 1}.get(launch.attention, layout.attention_groups)
    experts = {"whole": layout.num_gpus, "sliced": 1}.get(launch.experts, layout.expert_parallel)
    return Layout(layout.num_gpus, groups, experts)


def parallelism_of(layout: Layout) -> dict[str, Any]:
    degrees: dict[str, Any] = {"tensor_parallel": layout.tensor_parallel}
    if layout.attention_groups > 1:
        degrees["data_parallel"] = layout.attention_groups
    if layout.expert_parallel > 1:
        degrees["expert_parallel"] = True
    return degrees
