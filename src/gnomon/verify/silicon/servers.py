"""The measured servers of `silicon_sample.csv`, one row each, as plain data.

The file comes with the package aiconfigurator-core (extra [silicon]). Seven things in it need care:

- the four degrees are written so that tp x dp = moe_tp x moe_ep. Where experts ran in parallel the file multiplies them
  (8 GPUs with TP 8 and EP 8 become 64 ranks): GPUs are read from the row's name, or as the root of that product.
- rows of vLLM with tp = dp > 1 ran tensor-parallel attention and expert-parallel experts, as other exports of the same
  measurements say.
- `batch_size` is the client's concurrency divided by the attention groups, `decode_batch_size` by those of all decode
  workers; the concurrency itself is in `silicon_data_source`, but for a few sweeps.
- rows of `...-gap-analysis.csv` have twins with the same layout, load and figures, whose day is theirs.
- some rows of GB200 called aggregated give all GPUs of a disaggregated deployment as `tp_size`; those of TensorRT-LLM
  that have a twin a month later take its workers.
- rows of gpt-oss on H100 in vLLM with 512 requests (December 2025) keep what their script told the client.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal
from zlib import crc32

import polars as pl

from gnomon.core.errors import DataError
from gnomon.timing.sources.silicon import data_folder

Family = Literal["inferencex", "sweeps"]

NODE_GPUS = 8  # More GPUs than this in one aggregated server are no tensor-parallel group.

TOLD_512 = ("openai/gpt-oss-120b", "h100", "vllm", 512)
FROM_DAY, TO_DAY = "2025-10-30", "2026-01-05"
"""Days of the scripts before and after the one that told its client 512 requests."""


@dataclass(frozen=True)
class Layout:
    """How one worker is spread over GPUs."""

    num_gpus: int
    attention_groups: int = 1
    """Data-parallel attention groups; the GPUs of each are tensor parallel."""
    expert_parallel: int = 1
    """Ranks over which whole experts are spread; 1 where every expert is sliced."""

    @property
    def tensor_parallel(self) -> int:
        """GPUs that share the heads of one attention group."""
        return self.num_gpus // self.attention_groups


@dataclass(frozen=True)
class Server:
    id: str
    family: Family
    model: str
    """Name on Hugging Face."""
    device: str
    engine: str
    version: str | None
    precision: str
    """fp8, fp4, int4, bf16, or "" where the file does not say: the checkpoint's own."""
    mode: Literal["agg", "disagg"]
    prompt_tokens: int
    """Nominal."""
    output_tokens: int
    concurrency: int
    date: str
    """Day of the measurement, or "" where the file does not say."""
    layout: Layout
    """Of the server, or of one decode worker."""
    prefill: Layout | None
    """Of one prefill worker."""
    num_prefill: int
    num_decode: int
    """Workers; 0 where the file does not say."""
    ttft_s: float
    tpot_s: float
    problem: str | None = None
    """Why it cannot be simulated."""
    is_drafting: bool = False
    """Whether it ran the script with drafted tokens where the file has servers of both under one name."""
    says_load: bool = True
    """Whether the file says how many requests were under way; else it is taken for the batch of each decode worker."""

    @property
    def num_gpus(self) -> int:
        prefill = self.prefill.num_gpus * self.num_prefill if self.prefill else 0
        return prefill + self.layout.num_gpus * max(self.num_decode, 1)

    @property
    def is_held_out(self) -> bool:
        """Whether it belongs to the half on which constants are scored, not fitted."""
        return crc32(self.id.encode()) % 2 == 1

    @property
    def key(self) -> tuple[object, ...]:
        """What decides the simulation: servers with the same key are repeats of one measurement."""
        return tuple(value for name, value in vars(self).items() if name not in ("id", "ttft_s", "tpot_s", "problem"))


def path() -> Path:
    """The file, as it lies in the installed package."""
    return data_folder().parent / "silicon_sample.csv"


@cache
def servers() -> tuple[Server, ...]:
    """Every measured server, in the order of the file."""
    file = path()
    if not file.is_file():
        raise DataError("is not there.", where=str(file), fix="Install aiconfigurator-core 0.12 or newer.")
    found = [_server(row) for row in pl.read_csv(file, infer_schema_length=None).iter_rows(named=True)]
    return tuple(_with_drafting(_with_days(_with_workers(found))))


def _with_workers(found: list[Server]) -> list[Server]:
    """Whole deployments that are called aggregated get the workers of their twin, the oldest if there are several."""
    fleets = (s for s in found if s.mode == "disagg" and s.problem is None)
    twins = {_deployment(s): s for s in sorted(fleets, key=lambda s: s.date, reverse=True)}
    return [
        replace(s, layout=t.layout, prefill=t.prefill, num_prefill=t.num_prefill, num_decode=t.num_decode, problem=None)
        if s.problem and s.mode == "agg" and s.engine == "trtllm" and (t := twins.get(_deployment(s)))
        else s
        for s in found
    ]


def _deployment(server: Server) -> tuple[object, ...]:
    place = (server.device, server.engine, server.precision, server.num_gpus)
    return (*place, server.prompt_tokens, server.output_tokens, server.concurrency)


def _with_days(found: list[Server]) -> list[Server]:
    days = {_figures(s): s.date for s in found if s.family == "inferencex" and s.date}
    return [s if s.date or s.family == "sweeps" else replace(s, date=days.get(_figures(s), "")) for s in found]


def _with_drafting(found: list[Server]) -> list[Server]:
    """DeepSeek-R1 on eight B200 in SGLang 0.5.9 was measured with and without drafting; the file does not say. Its
    exports as DeepSeek-V3 hold those without: the others drafted."""
    plain = {_figures(s)[1:] for s in found if s.model == "deepseek-ai/DeepSeek-V3"}
    place = ("deepseek-ai/DeepSeek-R1", "b200", "sglang", "0.5.9", "fp8", "agg", Layout(8))
    return [
        replace(s, is_drafting=True)
        if (s.model, s.device, s.engine, s.version, s.precision, s.mode, s.layout) == place
        and _figures(s)[1:] not in plain
        else s
        for s in found
    ]


def _figures(server: Server) -> tuple[object, ...]:
    place = (server.model, server.device, server.engine, server.precision, server.mode, server.layout)
    load = (server.prompt_tokens, server.output_tokens, server.concurrency)
    return (*place, *load, f"{server.ttft_s * 1e3:.2f}", f"{server.tpot_s * 1e3:.2f}")


def _server(row: dict[str, object]) -> Server:
    source = str(row["silicon_data_source"])
    is_inferencex = re.match(r"db-dump|source_file=(2026-|[\w.-]+-gap-analysis\.csv)", source) is not None
    mode: Literal["agg", "disagg"] = "agg" if row["mode"] == "agg" else "disagg"
    layout = _layout(row, "" if mode == "agg" else "decode_")
    stated = re.search(r"silicon_concurrency=(\d+)", source)
    date = re.search(r"measured=(\d{4}-\d{2}-\d{2})", source)
    server = Server(
        id=str(row["id"]), family="inferencex" if is_inferencex else "sweeps", model=str(row["model_path"]),
        device=str(row["system"]).removesuffix("_sxm"), engine=str(row["backend"]),
        version=str(row["backend_version"]) if row["backend_version"] else None, precision=str(row["precision"] or ""),
        mode=mode, prompt_tokens=_whole(row, "isl"), output_tokens=_whole(row, "osl"),
        concurrency=int(stated.group(1)) if stated else _concurrency(row, layout), date=date.group(1) if date else "",
        layout=layout, prefill=_layout(row, "prefill_") if mode == "disagg" else None,
        num_prefill=_whole(row, "prefill_num_workers"), num_decode=_whole(row, "decode_num_workers"),
        ttft_s=float(str(row["silicon_ttft_ms"])) / 1e3, tpot_s=float(str(row["silicon_tpot_ms"])) / 1e3,
        says_load=stated is not None,
    )  # fmt: skip
    return _with_problem(server)


def _whole(row: dict[str, object], column: str) -> int:
    value = row[column]
    return int(value) if isinstance(value, int | float) else 0


def _concurrency(row: dict[str, object], layout: Layout) -> int:
    """Requests under way, where the file gives them by attention group only."""
    if row["mode"] == "agg":
        return _whole(row, "batch_size") * layout.attention_groups
    return _whole(row, "decode_batch_size") * _whole(row, "decode_num_workers") * layout.attention_groups


def _layout(row: dict[str, object], side: str) -> Layout:
    """The GPUs of one worker, from four degrees of which the file keeps the products equal."""
    tp, dp, moe_tp, moe_ep = (
        max(_whole(row, f"{side}{name}"), 1) for name in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    named = re.search(r"_tp(\d+)(?:_0)?_ep(\d+|none)", str(row["id"]))
    if not side and named and named.group(2) != "none":  # InferenceX: TP is the number of GPUs, EP at most that.
        num_gpus, experts = int(named.group(1)), int(named.group(2))
    elif dp > 1 and tp > 1:
        num_gpus, experts = tp, tp
    elif moe_tp == moe_ep > 1:
        num_gpus, experts = moe_tp, moe_ep
    else:
        num_gpus, experts = tp * dp, moe_ep
    has_groups = dp > 1 and tp == 1
    return Layout(num_gpus, num_gpus if has_groups else 1, min(experts, num_gpus))


def _with_problem(server: Server) -> Server:
    problem = None
    place_and_load = (server.model, server.device, server.engine, server.concurrency)
    if server.mode == "agg" and server.layout.num_gpus > NODE_GPUS and server.layout.attention_groups == 1:
        problem = "called aggregated, but names all GPUs of a disaggregated deployment: its layout is not known"
    elif place_and_load == TOLD_512 and FROM_DAY < server.date < TO_DAY:
        problem = "its script told the client 512 requests whatever the run: how many the server admitted is not known"
    elif server.mode == "agg" and server.model == "nvidia/Qwen3-32B-NVFP4":
        problem = "names the GPUs of one server and the requests of several: 29 PFLOP/s a GPU would be needed"
    elif server.mode == "disagg" and not (server.num_prefill and server.num_decode):
        problem = "disaggregated, but the numbers of workers are not known"
    elif server.mode == "disagg" and not server.concurrency:
        problem = "disaggregated, but the number of requests under way is not known"
    return replace(server, problem=problem)
