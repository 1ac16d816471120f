"""The `timing` section of a scenario."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, field_validator, model_validator

from gnomon.catalog.devices import Dtype
from gnomon.catalog.quantization import scheme_names
from gnomon.core.config import Config
from gnomon.core.errors import UnknownNameError
from gnomon.timing.estimators import ESTIMATORS
from gnomon.timing.host import HostConfig
from gnomon.timing.operators.load import check_load
from gnomon.timing.operators.sampling import SamplerConfig
from gnomon.timing.source_registry import SOURCES

Engine = Literal["vllm", "sglang", "trtllm"]
"""Engines whose kernels are known, and what they do when they are not told otherwise."""
CAPTURED: dict[str, tuple[int, ...]] = {
    "vllm": (1, 2, 4, *range(8, 256, 8), *range(256, 8193, 16)),
    "sglang": (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 513, 16), *range(544, 8193, 32)),
    "trtllm": (1, 2, 4, *range(8, 129, 8), *(2**power for power in range(8, 14))),
}
"""Batch sizes for which engines capture CUDA graphs (vllm/config/vllm.py, sglang/srt/server_args.py,
tensorrt_llm/llmapi/llm_args.py)."""
OVERLAP_TOKENS: dict[Engine, int] = {"vllm": 256, "sglang": 1024, "trtllm": 256}
"""Up to how many tokens each runs shared experts on a second stream: VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD,
DUAL_STREAM_TOKEN_THRESHOLD, and inside CUDA graphs."""


def captured_sizes(engine: str, largest: int) -> tuple[int, ...]:
    """The batch sizes for which an engine captures CUDA graphs when it is given the largest; none at 0."""
    return (*(size for size in CAPTURED[engine] if size < largest), largest) if largest > 0 else ()


CAPTURE_SIZES = captured_sizes("vllm", 512)  # The token counts for which vLLM captures CUDA graphs by default.


class TableConfig(Config):
    """Explicit seconds of one iteration in one pipeline stage, for the source `table`.

    `per_token` and `per_sequence` are one number (seconds each), [constant, slope], or a list of three or more: the
    seconds at 0, 1, 2, ... and on in a straight line.
    """

    per_iteration: NonNegativeFloat = 0.0
    """Seconds of every iteration that has tokens."""
    per_token: float | tuple[float, ...] = 0.0
    """Seconds by tokens in the iteration."""
    per_sequence: float | tuple[float, ...] = 0.0
    """Seconds by sequences in the iteration."""
    per_prefill_token: NonNegativeFloat = 0.0
    """Seconds per prompt token of the iteration. (Chunks of several requests in one iteration count as their
    root sum of squares, as attention does.)"""
    per_decode: NonNegativeFloat = 0.0
    """Seconds per decoding sequence."""
    per_decode_kv_token: NonNegativeFloat = 0.0
    """Seconds per KV token read by decodes."""


class TimingConfig(Config):
    """Where the seconds of an iteration come from."""

    source: str = "auto"
    """auto (shipped measurements of the device, else silicon where installed, else the roofline),
    {gnomon.timing.source_registry.SOURCES}, or your own."""
    path: str | None = None
    """Folder of the measurements, for the source profile; those that come with Gnomon if not given."""
    engine: Engine = "vllm"
    """Whose kernels the source silicon takes; those of the other two where it has none."""
    engine_version: str = ""
    """The engine's version, e.g. 0.24.0, where its own tables are wanted; else the newest."""
    expert_load: str = "power_law_1.01"
    """How tokens spread over experts: balanced, power_law_1.01, power_law_1.2, ..., or with the busiest experts copied,
    power_law_1.01_eplb. The busiest rank decides."""
    expert_kernel: Literal["", "trtllm", "cutlass", "deepgemm", "triton", "marlin"] = ""
    """Whose kernels run the experts, as engines let one choose; silicon: the fastest measured in the engine if not
    given."""
    expert_tiles: Literal["tuned", "default"] = "tuned"
    """default: Triton's kernel has no tiles that were tuned for a rank's experts in 16 bits on this GPU, as vLLM (up to
    0.11) says when it starts: "Using default MoE config"."""
    expert_rows: NonNegativeInt = 0
    """Rows that a kernel of the experts computes at least for every expert of a rank, whoever was chosen, in one padded
    array: 128 in DeepGEMM as vLLM calls it, for experts in block-wise FP8."""
    scale_conversion: bool = False
    """Whether products in block-wise FP8 convert the scales of their weights in every call: DeepGEMM on Blackwell,
    called with scales as 32-bit floats."""
    all_reduce: Literal["", "flashinfer"] = ""
    """Whose all-reduce runs beside the engine's own: FlashInfer's, which vLLM (fuse_allreduce_rms) and SGLang
    (--enable-flashinfer-allreduce-fusion) fuse with the norm behind it; silicon: its kernel is TensorRT-LLM's, and the
    faster of the two counts at each size."""
    expert_exchange: Literal["auto", "all_to_all", "all_gather"] = "auto"
    """How a data-parallel group brings tokens to their experts: each where it is needed (DeepEP, NVLink all-to-all), or
    all of them everywhere (vLLM's and SGLang's default); auto: all-to-all with expert parallelism."""
    estimator: str = "grid"
    """How to read between measured points: {gnomon.timing.estimators.interface.ESTIMATORS}. forest_cv finds the
    settings of its forest by cross-validation."""
    dtype: str = "auto"
    """Number format of the weights and multiplications: auto (the checkpoint's own), bf16, fp16, fp8, int8, int4, or a
    way of quantising: fp8_block, nvfp4, mxfp4, int4_experts, ... (`gnomon catalog quantization`)."""
    kv_dtype: Dtype | Literal["auto"] = "auto"
    """Number format of the KV cache; auto: what the checkpoint asks for, else bf16."""
    sampler: SamplerConfig = SamplerConfig()
    """How tokens are chosen: follows from the scenario's `sampling` and the engine."""
    separate_attention: bool = False
    """Prefill and decode attention always run as two kernels (SGLang, Vidur), even where vLLM's single one is timed."""
    host: HostConfig | None = None
    """Time of the engine's own code; if not given, that of the profile where it has some, else none."""
    graph_sizes: tuple[PositiveInt, ...] | Literal["vllm"] | None = None
    """Token counts to which small iterations are padded by CUDA graphs, e.g. [1, 2, 4, 8]; "vllm" for its defaults."""
    graph_attention: bool = False
    """Decode attention runs inside the CUDA graphs too: for the padded number of sequences, with the same KV in all."""
    prompt_graphs: bool = False
    """Iterations with prompts are CUDA graphs around attention, whatever their size (piecewise CUDA graphs of SGLang,
    TensorRT-LLM's enable_piecewise_cuda_graph): only what attention does is launched kernel by kernel."""
    scale: float = Field(1.0, gt=0, le=1e6)
    """Factor on all times of the GPU, e.g. to carry a source's uncertainty into a result."""
    clock: float = Field(1.0, gt=0, le=1)
    """The GPU's clock over that of the measurements, below 1 where a power cap lowers it. What a matrix product takes
    beyond that of one token, and prefill attention, take as much longer; what waits for memory does not. Kernels that
    were measured with prompts and decodes in one call, and the source table, stay as they are."""
    expert_speed: float = Field(1.0, gt=0, le=1)
    """How fast experts compute prompts beside the measurements, below 1 for an engine older than them. What they take
    beyond 256 tokens takes as much longer; decodes stay as they are."""
    free: tuple[Literal["compute", "memory", "network", "sampling"], ...] = ()
    """What costs no time, to see what limits a deployment: arithmetic, the GPU's memory bandwidth, or the network (a
    measured time shrinks by as much as the roofline's does; launching kernels and the host stay); or all that choosing
    tokens takes beyond the likeliest."""
    table: TableConfig | None = None
    """The seconds themselves, for the source table."""

    @property
    def captured_sizes(self) -> tuple[int, ...]:
        """Token counts that CUDA graphs are there for."""
        return CAPTURE_SIZES if self.graph_sizes == "vllm" else self.graph_sizes or ()

    @model_validator(mode="after")
    def _used(self) -> TimingConfig:
        if self.path is None and self.table is None and not self.free:
            return self
        if self.source not in SOURCES or self.source in SOURCES.own:  # One of the user's own may read anything.
            return self
        spec = SOURCES[self.source]
        if self.path is not None and not spec.reads_path:
            raise ValueError(f"path is not used: the source is {self.source}, not profile")
        if self.table is not None and not spec.gives_iterations:
            raise ValueError(f"table is not used: the source is {self.source}, not table")
        if self.free and spec.gives_iterations:
            raise ValueError(f"free is not used: the source {self.source} has no operators")
        return self

    @field_validator("dtype")
    @classmethod
    def _known_dtype(cls, name: str) -> str:
        if name != "auto" and name not in scheme_names():
            raise UnknownNameError("dtype", name, ["auto", *scheme_names()], where="timing.dtype")
        return name

    @field_validator("expert_load")
    @classmethod
    def _known_load(cls, name: str) -> str:
        return check_load(name)

    @field_validator("estimator")
    @classmethod
    def _known_estimator(cls, name: str) -> str:
        if name not in ESTIMATORS:
            raise UnknownNameError("estimator", name, ESTIMATORS, where="timing.estimator")
        return name
