"""Measured vLLM servers of the ML.ENERGY leaderboard beside their simulation (docs/servers.md).

What was measured counts from when as many requests as the server takes had their first token to when no more than that
many were left. What a row does not say is taken alike for all of a task (`TASKS`).
"""

import math
import statistics
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from gnomon import catalog
from gnomon.core import units
from gnomon.core.config import load
from gnomon.core.errors import ConfigError
from gnomon.core.parallel import map_ordered
from gnomon.core.streams import stream
from gnomon.core.text import own_yaml
from gnomon.report.blocks import Block, Line, Table
from gnomon.serving.results.intervals import NUM_RUNS, T_95
from gnomon.serving.run.simulate import run
from gnomon.serving.scenario import Scenario
from gnomon.timing.sources.silicon import server_errors
from gnomon.verify.findings import Findings, Progress, proof, rows_of
from gnomon.workload import Requests, SessionsConfig, generate
from gnomon.workload.lengths import tokens
from gnomon.workload.sessions import hash_blocks, sum_before

SAMPLING = {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1}
"""What the client sent; top-k is the model's own."""


@dataclass(frozen=True)
class Task:
    """What the requests of a task were like. How many there were and the longest answer are from the client's
    configurations (`configs/vllm` of ml-energy/benchmark)."""

    num_requests: int
    repeats: tuple[tuple[int, int], ...]
    """How often they were sent all over for up to so many sequences at a time."""
    prompt: tuple[int, int]
    """Median and 90th percentile of prompt tokens: a guess, for rows do not say it."""
    most: int
    """Longest answer that was asked for."""
    max_model_len: int
    spread: float
    """Standard deviation of the logarithm of answers' lengths: a guess, too."""
    turns: float = 1.0
    """Turns of a conversation in the mean. Each is a request of its own behind all that was said before."""
    longest_prompt: int = 20_480
    """Longest turn of a user."""

    def requests(self, sequences: int) -> int:
        """How many a server for so many sequences at a time was sent."""
        return self.num_requests * next(times for most, times in self.repeats if sequences <= most)


DATA: dict[str, Any] = own_yaml(files("gnomon.verify") / "data" / "servers.yaml")
TASKS = {name: Task(**one) for name, one in DATA["tasks"].items()}
GOALS: dict[str, float] = DATA["goals"]
NOT_UNDERSTOOD = {(model, sequences) for model, sequences in DATA["not understood"]}
SLACK = 0.005  # How much a figure may differ from the recorded one without being called worse.
IS_ITERATION = 0.8
"""Where the median time between tokens is below this share of an iteration's time, messages held several tokens."""


@dataclass(frozen=True)
class Server:
    task: str
    model: str
    device: str
    tensor_parallel: int
    expert_parallel: bool
    data_parallel: int
    max_sequences: int
    output_tokens: float
    itl_s: float
    tokens_s: float
    iteration_s: float
    is_held_out: bool

    @property
    def has_itl(self) -> bool:
        """Whether its time between tokens is that of an iteration, and understood."""
        strange = self.device == "b200" and self.task == "gpqa" and (self.model, self.max_sequences) in NOT_UNDERSTOOD
        return not strange and self.itl_s >= IS_ITERATION * self.iteration_s

    @property
    def is_alone(self) -> bool:
        return self.tensor_parallel * self.data_parallel == 1

    @property
    def short(self) -> str:
        return self.model.rpartition("/")[2]

    @property
    def name(self) -> str:
        experts = " EP" if self.expert_parallel else ""
        groups = f" DP{self.data_parallel}" if self.data_parallel > 1 else ""
        where = f"{self.device} TP{self.tensor_parallel}{experts}{groups}"
        return f"{self.task} {self.short} {where} x{self.max_sequences}"


@dataclass(frozen=True)
class Scored:
    server: Server
    itl_s: float = math.nan
    tokens_s: float = math.nan
    problem: str = ""
    errors: dict[str, float] = field(init=False)
    """(predicted - measured) / measured, of what counts."""

    def __post_init__(self) -> None:
        s = self.server
        found = {"itl": self.itl_s / s.itl_s - 1} if s.has_itl else {}
        if s.task != "sourcegraph-fim":
            found["throughput"] = self.tokens_s / s.tokens_s - 1
        object.__setattr__(self, "errors", {} if self.problem else found)


def read_servers(path: str | Path) -> list[Server]:
    return rows_of(path, "server of a text task", "mlenergy/servers.csv", _server)


def _server(row: dict[str, str], line: str) -> Server | None:
    if row["task"] not in TASKS:
        return None
    return Server(
        row["task"], row["model_id"], row["gpu_model"].lower(), int(row["tensor_parallel"]),
        int(row["expert_parallel"]) > 1, int(row["data_parallel"]), int(row["max_num_seqs"]),
        float(row["avg_output_len"]), float(row["median_itl_ms"]) * 1e-3,
        float(row["output_throughput_tokens_per_sec"]), float(row["iteration_ms"]) * 1e-3,
        zlib.crc32(line.encode()) % 2 == 1,
    )  # fmt: skip


def settings_of(server: Server) -> dict[str, Any]:
    task = TASKS[server.task]
    ranks, median = server.data_parallel, median_answer(server.output_tokens, task)
    return {
        "model": server.model,
        "device": server.device,
        "engine": {"name": "vllm", "version": "0.11.1"},
        "sampling": SAMPLING,
        "replica": {
            "tensor_parallel": server.tensor_parallel, "data_parallel": ranks,
            "expert_parallel": server.expert_parallel, "max_request_tokens": task.max_model_len,
        },
        "batching": {"max_sequences": max(1, server.max_sequences // ranks), "max_batch_tokens": 8192, "overlap": True},
        "timing": _kernels(server),
        "workload": {
            "arrivals": {"process": "batch"}, "num_requests": task.requests(server.max_sequences),
            "max_tokens": task.max_model_len, "over_long": "truncate",
            "lengths": {
                "distribution": "lognormal", "prompt_median": task.prompt[0], "prompt_p90": task.prompt[1],
                "output_median": median, "output_p90": median * math.exp(1.2816 * task.spread),
            },
        },
    }  # fmt: skip


def median_answer(mean: float, task: Task) -> float:
    """The median of answers whose lengths are log-normal, with this mean once the longest are cut."""
    normal, low, high = statistics.NormalDist(), 1.0, float(task.most)

    def mean_of(median: float) -> float:
        at = math.log(task.most / median) / task.spread
        whole = median * math.exp(task.spread**2 / 2.0) * normal.cdf(at - task.spread)
        return whole + task.most * (1.0 - normal.cdf(at))

    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if mean_of(middle) < mean else (low, middle)
    return low


def _kernels(server: Server) -> dict[str, Any]:
    """Kernels of vLLM 0.11.1: Triton's for experts but for two models on B200, DeepGEMM's for those in block-wise FP8,
    and an all-reduce of its own but for gpt-oss on B200. Of H100's it had tuned tiles (`fused_moe/configs`) for all of
    128 experts on a GPU, or half of them; of B200's for none, while the tables were measured with tiles for all of 128
    (vLLM's pull request 31448)."""
    is_oss, is_b200 = "gpt-oss" in server.model, server.device == "b200"
    kernels: dict[str, Any] = {"all_reduce": "flashinfer" if is_oss and is_b200 else "", "expert_kernel": "triton"}
    if is_b200 and (is_oss or "DeepSeek" in server.model):
        kernels["expert_kernel"] = "trtllm"
    elif server.model.startswith("Qwen/") and server.model.endswith("-FP8"):
        kernels["expert_rows"] = 128
        if is_b200:
            kernels["expert_kernel"] = "deepgemm"
    elif (is_b200 and server.is_alone) or (not is_b200 and server.expert_parallel and server.tensor_parallel > 2):
        kernels["expert_tiles"] = "default"
    return kernels


def requests_of(server: Server, scenario: Scenario) -> Requests:
    """What the client sent: the turns of one conversation after another, each behind what was said before it in the
    data, then all of them again as often as they were repeated. Answers differ, prompts are found in the cache."""
    drawn, task = generate(scenario.workload, scenario.seed), TASKS[server.task]
    answers = np.minimum(drawn.output_tokens, task.most)
    prompts = np.minimum(drawn.prompt_tokens, task.longest_prompt)[: task.num_requests]
    is_first = stream(scenario.seed, "turns").random(task.num_requests) < 1.0 / task.turns
    conversation, again = np.cumsum(is_first, dtype=np.int64), np.arange(len(drawn)) % task.num_requests
    prompts = tokens(sum_before(conversation, (prompts + answers[: task.num_requests]).astype(np.int64)) + prompts)
    offsets, hashes = hash_blocks(conversation[again], prompts[again], SessionsConfig())
    return replace(
        drawn, prompt_tokens=prompts[again], output_tokens=answers, prefix_offsets=offsets, prefix_hashes=hashes
    )


def predict(server: Server) -> Scored:
    scenario = load(Scenario, None, settings_of(server))
    done = run(scenario, requests=requests_of(server, scenario))
    requests = done.cluster.requests
    begun = np.sort(requests["first_token_s"])[min(server.max_sequences, len(requests)) - 1]
    ended = np.sort(requests["finished_s"])[-server.max_sequences - 1]
    rows = done.log.iterations[: done.log.used[0]]
    inside = rows[(rows["start_s"] >= begun) & (rows["end_s"] <= ended) & (rows["decodes"] > 0)]
    if not inside.size:
        return Scored(server, problem="no steady state in the simulation")
    took = inside["end_s"] - inside["start_s"]
    order = np.argsort(took)
    weight = np.cumsum(inside["decodes"][order])
    median = took[order][np.searchsorted(weight, weight[-1] / 2)]
    tokens = inside["decodes"].sum() * done.log.used[3] / (ended - begun)
    return Scored(server, float(median), float(tokens))


def reach(server: Server) -> float:
    """How far the stated 90 % interval of its iterations goes to either side, on a logarithmic scale."""
    error, _ = server_errors("vllm", catalog.model(server.model).attention_family, drawn_on=server.device)
    return T_95[NUM_RUNS] * math.hypot(KERNELS_ERROR, error)


def figures(scored: Sequence[Scored]) -> dict[str, float]:
    """Absolute relative errors of the half that was held out."""
    held = [one for one in scored if one.server.is_held_out]
    found = {}
    for device in ("h100", "b200"):
        errors = [abs(s.errors["itl"]) for s in held if "itl" in s.errors and s.server.device == device]
        if errors:
            found[f"{device} itl median"] = statistics.median(errors)
            found[f"{device} itl mean"] = statistics.fmean(errors)
    errors = [abs(s.errors["throughput"]) for s in held if "throughput" in s.errors]
    return found | ({"throughput median": statistics.median(errors)} if errors else {})


def recorded() -> dict[str, float]:
    return DATA["held out"]


def score(
    servers: Sequence[Server], *, jobs: int | None = None, on_progress: Callable[[int, int], None] | None = None
) -> list[Scored]:
    order = sorted(range(len(servers)), key=lambda i: (servers[i].model, servers[i].device, servers[i].tensor_parallel))
    found: dict[int, Scored] = {}
    for outcome in map_ordered(predict, [servers[i] for i in order], jobs=jobs):
        at = order[outcome.index]
        failed = outcome.error.partition("\n")[0] if outcome.error else ""
        found[at] = Scored(servers[at], problem=failed) if failed else outcome.unwrap()
        if on_progress:
            on_progress(len(found), len(servers))
    return [found[i] for i in range(len(servers))]


@proof("servers")
def prove(
    file: str | Path, *, only: str = "", jobs: int | None = None, on_progress: Progress | None = None
) -> Findings:
    """Measured vLLM servers of the ML.ENERGY leaderboard beside their simulation; `only` those whose name has it."""
    known = read_servers(file)
    wanted = [one for one in known if only in one.name]
    if not wanted:
        raise ConfigError(f"no server is called like {only!r}.", where="--only", fix=f"One is {known[0].name!r}.")
    return findings(score(wanted, jobs=jobs, on_progress=on_progress), is_whole=not only)


KERNELS_ERROR = 0.037  # What kernels are off by themselves, in the median over the models.
FAR = 0.25  # Servers further off than this are listed one by one.


def findings(scored: Sequence[Scored], *, is_whole: bool) -> Findings:
    """Tables by GPU, model and size; what was recorded with the release is judged where all servers were simulated."""
    blocks: list[Block] = [
        Table(_groups(scored, _half), "By GPU and half"),
        Table(_groups(scored, lambda s: f"{s.server.device} {s.server.short}"), "By model"),
        Table(_groups(scored, _size), "By sequences at a time"),
    ]
    far = [s for s in scored if abs(s.errors.get("itl", 0.0)) > FAR]
    if far:
        rows = [
            {"server": s.server.name, "measured": units.seconds(s.server.itl_s), "simulated": units.seconds(s.itl_s),
             "error": f"{s.errors['itl']:+.0%}"}
            for s in far
        ]  # fmt: skip
        blocks.append(Table(rows, "Time between tokens, further off than 25 %"))
    blocks += [Line(f"{s.server.name}: {s.problem}") for s in scored if s.problem]
    found = figures(scored)
    for name, goal in GOALS.items():
        if name in found:
            verdict = "met" if found[name] <= goal else "not met"
            blocks.append(Line(f"Held out, {name}: {found[name]:.1%} (goal {goal:.0%}: {verdict})"))
    if held := [s for s in scored if s.server.is_held_out and "itl" in s.errors]:
        inside = statistics.fmean(abs(math.log1p(s.errors["itl"])) <= reach(s.server) for s in held)
        blocks.append(Line(f"Held out, inside the stated 90 % intervals: {inside:.0%}"))
    worse = [
        f"{name} {found[name]:.1%} (recorded {value:.1%})"
        for name, value in recorded().items()
        if is_whole and found.get(name, 1.0) > value + SLACK
    ]
    rows = [_row(s) for s in scored]
    return Findings(scored, rows, {"figures": found, "servers": rows}, blocks, worse)


def _row(one: Scored) -> dict[str, Any]:
    s = one.server
    return {
        "server": s.name, "is_held_out": s.is_held_out, "itl_s": s.itl_s, "simulated_itl_s": one.itl_s,
        "tokens_s": s.tokens_s, "simulated_tokens_s": one.tokens_s, **{f"{k}_error": v for k, v in one.errors.items()},
    }  # fmt: skip


def _half(one: Scored) -> str:
    """Servers of one B200 apart: their hosts were busy (docs/servers.md)."""
    s = one.server
    each = "one " if s.device == "b200" and s.is_alone else ""
    return f"{each}{s.device}, {'held out' if s.is_held_out else 'other half'}"


def _size(one: Scored) -> str:
    top = next((n for n in (16, 64, 256, 1024) if one.server.max_sequences <= n), 0)
    return f"{one.server.device} {f'up to {top:,}' if top else 'more than 1,024'}"


def _groups(scored: Iterable[Scored], key: Callable[[Scored], str]) -> list[dict[str, Any]]:
    groups: dict[str, list[Scored]] = {}
    for one in scored:
        groups.setdefault(key(one), []).append(one)
    return [{"": name, "servers": len(group), **_summary(group)} for name, group in sorted(groups.items())]


def _summary(group: Sequence[Scored]) -> dict[str, str | None]:
    cells: dict[str, str | None] = {}
    for metric, words in (("itl", "time between tokens"), ("throughput", "throughput")):
        errors = [s.errors[metric] for s in group if metric in s.errors]
        cells[words] = f"{statistics.median(map(abs, errors)):.1%}" if errors else None
        cells[f"{words}, mean"] = f"{statistics.fmean(map(abs, errors)):.1%}" if errors else None
        cells[f"{words}, bias"] = f"{statistics.median(errors):+.1%}" if errors else None
    return cells
