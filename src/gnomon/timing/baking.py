"""Any source into the dense tables that the compiled engine reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gnomon.catalog.devices import Device
from gnomon.catalog.models import Model
from gnomon.catalog.nodes import Node, default_node
from gnomon.catalog.parallelism import Parallelism
from gnomon.core.arrays import Floats
from gnomon.core.errors import ConfigError
from gnomon.timing.breakdown import Batch, expected_error
from gnomon.timing.config import TimingConfig
from gnomon.timing.host import HostConfig
from gnomon.timing.iteration import SKEW_BINS, IterationTables, geometric_axis
from gnomon.timing.operators import Operator, Sampling, collective_waits, mixed_attention, num_kernels
from gnomon.timing.operators.sampling import COPY_S
from gnomon.timing.source_registry import SOURCES, traits_of
from gnomon.timing.sources import Context, Source, make_source
from gnomon.timing.sources.table import each_stage, given_tables
from gnomon.timing.timer import Timer, axis_of, message_bytes


@dataclass
class Known:
    """What is known of replicas that differ in the limits of their iterations alone; it grows."""

    seconds: dict[str, Floats] = field(default_factory=dict)
    """[stage, units]: of operators by the axis that they follow, as far as they were ever asked for."""
    replica: tuple[Context, list[list[Operator]], Floats, Floats] | None = None
    """What it is, its operators by stage, the seconds of its host, and its work (`IterationTables.work`)."""


@dataclass(frozen=True)
class Baked:
    """The tables of one replica, and what is to be said about them."""

    tables: IterationTables
    notes: list[str]
    """Operators taken from the roofline, shapes beyond the measured range."""
    timer: Timer | None = None
    """Where the times are from; nothing where they were given."""
    typical: Batch | None = None
    """An iteration that the tables hold."""

    @cached_property
    def uncertainty(self) -> float:
        """Relative error to expect of an iteration's time. It takes longer to tell than the times themselves."""
        return expected_error(self.timer, self.typical) if self.timer and self.typical else 0.0

    @property
    def spread(self) -> float:
        """Standard deviation to expect of a real server's iterations around it: the kernels' own error (a median) and
        the server's, together."""
        return math.hypot(self.uncertainty, self._errors[0])

    @property
    def first_token_spread(self) -> float:
        """Standard deviation to expect of a server's times to the first token, beside its iterations'."""
        return self._errors[1]

    @property
    def _errors(self) -> tuple[float, float]:
        return traits_of(self.timer.source.name).errors(self.timer.context) if self.timer else (0.0, 0.0)


def iteration_tables(
    model: Model, device: Device, parallelism: Parallelism, *, node: Node | None = None,
    config: TimingConfig | None = None, max_tokens: int, max_sequences: int, max_kv_tokens: int,
    tokens_per_decode: int = 1, source: Source | None = None, known: Known | None = None,
) -> Baked:  # fmt: skip
    """The seconds of every possible iteration of one replica.

    `max_tokens` and `max_sequences` bound one iteration, `max_kv_tokens` the KV length of one request. A decode
    computes `tokens_per_decode` tokens: its own, and drafts that are verified. `source` is one made before for all but
    these, `known` what its operators are known to take; it grows. Raises GnomonError where the parallelism does not
    suit the model or the source cannot be read.
    """
    config = config or TimingConfig()
    for name, value in (("max_tokens", max_tokens), ("max_sequences", max_sequences), ("max_kv_tokens", max_kv_tokens)):
        if value < 1:
            raise ConfigError(f"must be positive, not {value}.", where=name)
    parallelism.check(model)
    if SOURCES[config.source].gives_iterations:
        host_s = _host_s(config.host, model, parallelism, config, [0] * parallelism.pipeline_parallel)
        tables = given_tables(
            config.table, parallelism.pipeline_parallel, max_tokens=max_tokens, max_sequences=max_sequences,
            max_kv_tokens=max_kv_tokens, host_s=host_s, work=_work(model, device, parallelism, config),
        )  # fmt: skip
        scaled = ("token_s", "sequence_s", "prefill_s", "decode_s")
        return Baked(tables._replace(**{name: config.scale * getattr(tables, name) for name in scaled}), [])
    known = Known() if known is None else known
    if known.replica is None:
        context = Context(model, device, node or default_node(device), parallelism, config)
        source = source or make_source(context)
        known.replica = context, *_fixed(context, getattr(source, "host", None))
    context, stages, host_s, work = known.replica
    timer = Timer(context, source=source)
    oven = _Oven(timer, stages, max_tokens, max_sequences, max_kv_tokens, tokens_per_decode, known.seconds)
    host_s = host_s.copy()
    host_s[-1, :, 10:] = COPY_S * config.sampler.copied_tokens, _sampling_s(timer, stages[-1], max_sequences)
    tables = oven.bake(host_s, work)
    typical = Batch(prefill=min(512, max_tokens), decode=min(64, max_sequences), kv=min(1024, max_kv_tokens))
    return Baked(tables, timer.notes(), timer, typical)


def _fixed(context: Context, measured: HostConfig | None) -> tuple[list[list[Operator]], Floats, Floats]:
    """Operators of every stage, seconds of the host, and work: what does not depend on limits."""
    config, parallelism = context.config, context.parallelism
    stages = [context.operators(stage) for stage in range(parallelism.pipeline_parallel)]
    how = (config.engine, config.expert_kernel, config.prompt_graphs)
    launched, waits = [num_kernels(one, *how) for one in stages], [collective_waits(one) for one in stages]
    host_s = _host_s(config.host or measured, context.model, parallelism, config, launched, waits)
    return stages, host_s, _work(context.model, context.device, parallelism, config)


def _host_s(
    host: HostConfig | None, model: Model, parallelism: Parallelism, config: TimingConfig, launched: list[int],
    waits: Sequence[float] = (),
) -> Floats:  # fmt: skip
    stages = range(parallelism.pipeline_parallel)
    num_layers = [len(parallelism.layers_of_stage(model, stage)) for stage in stages]
    return (host or HostConfig()).of_stages(num_layers, launched, _largest_graphs(config), waits)


def _sampling_s(timer: Timer, last: list[Operator], sequences: int) -> float:
    """Seconds on the GPU in which one of so many sequences chooses its token."""
    steps = [one for one in last if isinstance(one.work, Sampling)]
    return sum(float(timer.seconds(one, np.full(1, float(sequences)))[0]) for one in steps) / sequences


def _largest_graphs(config: TimingConfig) -> tuple[int, int, int]:
    """The largest prefill, decode and mixed iteration that is a CUDA graph; with attention, it holds decodes only."""
    largest = max(config.captured_sizes, default=0)
    others = 0 if config.graph_attention else largest
    return others, largest, others


@dataclass
class _Oven:
    """Fills the tables; the seconds of one call are computed once and multiplied by each stage's count."""

    timer: Timer
    stages: list[list[Operator]]
    max_tokens: int
    max_sequences: int
    max_kv_tokens: int
    tokens_per_decode: int
    known: dict[str, Floats]
    _calls: dict[tuple[str, object, str], Floats] = field(default_factory=dict)

    def bake(self, host_s: Floats, work: Floats) -> IterationTables:
        parallelism, stages = self.timer.context.parallelism, self.stages
        self.chunk_axis, self.kv_axis = geometric_axis(self.max_tokens), geometric_axis(self.max_kv_tokens)
        self.decodes_axis = geometric_axis(self.max_sequences)
        group_tokens = self.max_tokens * parallelism.data_parallel
        has_shared = any(one.is_shared for operators in stages for one in operators)
        has_prompts = any(one.kind == "prompt_token" for operators in stages for one in operators)
        skew = self.timer.source.skew(self.decodes_axis)
        decodes = self._stack(stages, "decode", self.max_sequences)
        tokens, none = self._stack(stages, "token", self.max_tokens), np.zeros((len(stages), 0))
        # [stage, sequences, kv]. Inside a CUDA graph the kernel runs for the padded number of sequences; those added
        # have no KV, so that the mean falls as the number rises.
        rows, kv = np.meshgrid(np.arange(1.0, self.max_sequences + 1.0), self.kv_axis, indexing="ij")
        if self.timer.context.config.graph_attention:
            padded = np.broadcast_to(self._decode_tokens()[1:, None] / self.tokens_per_decode, rows.shape)
            kv, rows = kv * (rows / padded), padded
        return IterationTables(
            token_s=tokens.take(self._padding(self.max_tokens), axis=1),
            expert_s=self._stack(stages, "shared", group_tokens) if has_shared else none,
            prompt_s=self._stack(stages, "prompt_token", self.max_tokens) if has_prompts else none,
            sequence_s=self._stack(stages, "sequence", self.max_sequences),
            prefill_s=self._attention(
                stages, "attention_prefill", *np.meshgrid(self.chunk_axis[1:], self.kv_axis, indexing="ij")
            ),
            decode_s=decodes[:, self._decode_tokens(), None] + self._attention(stages, "attention_decode", rows, kv),
            mixed_s=self._mixed(stages),
            chunk_axis=self.chunk_axis,
            kv_axis=self.kv_axis,
            decodes_axis=self.decodes_axis,
            skew=each_stage(np.zeros((0, 2 * SKEW_BINS)) if skew is None else skew, len(stages)),
            host_s=host_s,
            measured=each_stage(self._measured(stages), len(stages)),
            work=each_stage(work, len(stages)),
        )

    def _stack(self, stages: list[list[Operator]], axis: str, maximum: int) -> Floats:
        """[stage, 0..maximum] of the operators on one axis; an empty iteration takes no time."""
        known = self.known.get(axis, np.zeros((len(stages), 1)))
        if known.shape[1] <= maximum:
            new = self._sum(stages, axis, np.arange(float(known.shape[1]), maximum + 1.0))
            known = self.known[axis] = np.concatenate([known, new], axis=1)
        else:
            for one in (one for operators in stages for one in operators if axis_of(one) == axis):
                self.timer.note(one, maximum * message_bytes(one))
        return np.ascontiguousarray(known[:, : maximum + 1])

    def _sum(self, stages: list[list[Operator]], axis: str, at: Floats) -> Floats:
        out = np.zeros((len(stages), at.size))
        for stage, operators in enumerate(stages):
            exposed = self.timer.exposed(operators, at) if axis == "token" else np.ones_like(at)
            for one in operators:
                if axis_of(one) == axis:
                    out[stage] += one.count * self._call(one, axis, at) * (exposed if one.is_beside else 1.0)
        return out

    def _call(self, operator: Operator, axis: str, at: Floats) -> Floats:
        key = (operator.name, operator.work, axis)
        if key not in self._calls:
            self._calls[key] = self.timer.seconds(operator, at * message_bytes(operator))
        return self._calls[key]

    def _attention(self, stages: list[list[Operator]], kind: str, rows: Floats, kv: Floats) -> Floats:
        """[stage, rows, kv], summed over the kinds of layers: `rows` and `kv` are planes. No rows, no time."""
        planes = np.zeros((len(stages), rows.shape[0] + 1, rows.shape[1]))
        for stage, operators in enumerate(stages):
            for one in operators:
                if one.kind != kind:
                    continue
                key = (one.name, one.work, kind)
                if key not in self._calls:
                    self._calls[key] = self.timer.seconds(one, rows, kv)
                planes[stage, 1:] += one.count * self._calls[key]
        return planes

    def _mixed(self, stages: list[list[Operator]]) -> Floats:
        """[stage, chunk, kv, decodes, kv] where the source measured both in one kernel."""
        operator = mixed_attention(stages[0])
        if operator is None or not self.timer.has_mixed_attention(operator):
            return each_stage(np.zeros((0, 0, 0, 0)), len(stages))
        axes = (self.chunk_axis, self.kv_axis, self.decodes_axis, self.kv_axis)
        grid = np.meshgrid(*axes, indexing="ij", copy=False)
        block = self.timer.seconds(operator, *grid)
        counts = [sum(one.count for one in operators if one.kind == "attention_prefill") for operators in stages]
        return np.stack([block * count for count in counts])

    def _decode_tokens(self) -> NDArray[np.int64]:
        """The tokens for which a CUDA graph runs each count of decodes. (More than fit are never asked for.)"""
        tokens = self.tokens_per_decode * np.arange(self.max_sequences + 1)
        return self._padding(self.max_sequences)[np.minimum(tokens, self.max_sequences)]

    def _padding(self, maximum: int) -> NDArray[np.int64]:
        """The count to which CUDA graphs pad each count of tokens (of decodes: sequences) up to `maximum`."""
        padded = np.arange(maximum + 1)
        captured = np.unique(np.array(self.timer.context.config.captured_sizes, int))
        captured = captured[captured <= maximum]
        if captured.size:
            inside = padded[1 : captured[-1] + 1]
            inside[:] = captured[np.searchsorted(captured, inside)]
        return padded

    def _measured(self, stages: list[list[Operator]]) -> Floats:
        """The largest sizes that every measured operator covers; see `IterationTables.measured`."""
        limits = np.full(5, np.inf)
        for one in {one.name: one for operators in stages for one in operators}.values():
            covered = self.timer.source.measured(one)
            if covered is None:
                continue
            highs = [high for _, high in covered]
            if one.kind == "attention_prefill":
                limits[[1, 4]] = np.minimum(limits[[1, 4]], highs)
            elif one.kind == "attention_decode":
                limits[[3, 2]] = np.minimum(limits[[3, 2]], highs)
            elif axis_of(one) in ("token", "prompt_token"):
                limits[0] = min(limits[0], highs[0] / message_bytes(one))
        return limits


def _work(model: Model, device: Device, parallelism: Parallelism, config: TimingConfig) -> Floats:
    """FLOPs and bytes from which an engine computes MFU and memory traffic; see `IterationTables.work`."""
    num_gpus = parallelism.tensor_parallel * parallelism.pipeline_parallel
    formats = model.precision(config.dtype)
    body = model.num_active_parameters - model.num_embedding_parameters - model.num_head_parameters
    stages = range(parallelism.pipeline_parallel)
    weights = sum(model.weight_bytes_of_stage(parallelism, s, config.dtype) for s in stages)
    if not model.tied_embeddings or parallelism.pipeline_parallel > 1:
        # Of the embedding an iteration reads only its tokens' rows; where the head shares it, the head reads it once.
        embedding = model.num_embedding_parameters * formats["embedding"].bytes_per_weight
        weights -= embedding / parallelism.tensor_parallel
    kv = model.kv_bytes_per_token(model.kv_precision(config.kv_dtype, config.dtype), parallelism.tensor_parallel)
    routed = sum(model.mlp_kind(layer) == "experts" for layer in range(model.num_layers)) * model.num_experts
    experts = routed * model.num_expert_parameters * formats["routed_experts"].bytes_per_weight
    experts *= parallelism.tensor_parallel / parallelism.num_expert_ranks
    return np.array(
        [
            2.0 * body, 2.0 * model.num_layers * model.num_heads * (model.qk_head_dim + model.v_head_dim),
            2.0 * model.vocab_size * model.hidden_size, weights * parallelism.tensor_parallel - experts,
            kv * parallelism.tensor_parallel, device.flops(formats.dtype) * num_gpus,
            device.bandwidth_bytes_s * num_gpus, experts,
            model.experts_per_token / model.num_experts if model.num_experts else 0.0,
        ]
    )  # fmt: skip
