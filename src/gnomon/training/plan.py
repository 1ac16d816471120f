"""Which layout trains a model fastest on these GPUs: every division that fits is bounded, the best are timed.

What the question leaves open is searched: degrees of parallelism, virtual stages, micro-batch, sharding, recomputation.
A layout's bound is its busiest rank without any waiting; layouts are timed in the order of their bounds until no bound
is below what was found. So nothing that could win is left out, and little is timed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from statistics import NormalDist
from typing import Any

from gnomon import catalog
from gnomon.core.errors import DoesNotFitError, GnomonError
from gnomon.core.parallel import Map, shared_workers
from gnomon.core.units import GB
from gnomon.pipeline.zoo import SCHEDULES
from gnomon.training.config import TrainConfig
from gnomon.training.memory import memory_of
from gnomon.training.step import TrainStep, least_s, train_step

MOST_TENSOR = 8  # Tensor-parallel GPUs: more leave products too thin for any recipe that is published.
LEAST_TOKENS = 1024
"""Of a sequence on one context-parallel GPU: fewer leave attention nothing to hide the exchange behind."""
MICRO_BATCHES = [1, 2, 4, 8]
RECOMPUTE = ["none", "selective", "full"]  # From the fastest to the smallest.
SHOWN = 10  # Layouts of the answer, best first.
SAME = 1.005  # Layouts within this factor of the fastest are as good: the model is not more exact.


@dataclass(frozen=True)
class Bounded:
    """A layout that fits, and the least that it can take."""

    config: TrainConfig
    least_s: float
    memory_bytes: float


@dataclass(frozen=True)
class TrainPlan:
    """The answer."""

    asked: TrainConfig
    best: list[TrainStep]
    """Fastest first."""
    front: list[TrainStep]
    """No other takes less time with less memory; the fullest first."""
    schedules: list[TrainStep]
    """The best layout under every schedule that can run it, fastest first; empty without stages."""
    num_layouts: int
    num_fitting: int
    notes: list[str] = field(default_factory=list)

    @property
    def winner(self) -> TrainStep:
        return self.best[0]


def plan(
    asked: TrainConfig, *, jobs: int | None = None, shown: int = SHOWN,
    on_progress: Callable[[int, int], None] | None = None,
) -> TrainPlan:  # fmt: skip
    """Search what `asked` leaves open (fields that were not given); DoesNotFitError where no layout fits."""
    layouts = list(candidates(asked))
    with shared_workers(jobs=jobs if len(layouts) > 64 else 1) as workers:
        fitting = list(_fitting(layouts, workers, on_progress))
        if not fitting:
            raise _nothing_fits(asked, layouts)
        found = sorted(_timed(fitting, shown, workers), key=lambda step: step.step_s)
        in_detail = partial(train_step, check=False)
        best = [outcome.unwrap() for outcome in workers(in_detail, [one.config for one in found[:shown]])]
        schedules = _schedules(best[0].config, workers)
    front: list[TrainStep] = []
    for step in found:  # Those that need less memory than every faster one.
        if not front or step.memory.reserved_bytes < front[-1].memory.reserved_bytes:
            front.append(step)
    same = [step.memory.reserved_bytes for step in found if step.step_s <= SAME * found[0].step_s]
    notes = [f"{len(same)} layouts are within {SAME - 1:.1%} of the fastest"] if len(same) > 1 else []
    if notes:
        room = (same[0] - min(same)) / GB
        notes[0] += f"; the one with the most room has {room:.1f} GB more." if room > 0.1 else "."
    return TrainPlan(asked, best, front, schedules, len(layouts), len(fitting), notes)


def fastest(asked: TrainConfig, workers: Map) -> TrainStep:
    """The winner alone."""
    fitting = list(_fitting(list(candidates(asked)), workers, None))
    return min(_timed(fitting, 1, workers, with_front=False), key=lambda step: step.step_s)


def candidates(asked: TrainConfig) -> Iterator[TrainConfig]:
    """Every layout of these GPUs that divides them and the batch, with what was given kept; all do the same work."""
    asked = asked.model_copy(update={"batch": asked.batch_size})
    model, gpus = asked.shape, asked.gpus
    tensors = _given(asked, "tensor_parallel", _powers(min(MOST_TENSOR, asked.where.num_gpus, gpus)))
    pipelines = [d for d in range(1, min(gpus, model.num_layers) + 1) if gpus % d == 0]
    contexts = _given(asked, "context_parallel", _powers(max(1, asked.sequence // LEAST_TOKENS)))
    for tensor, pipeline, context in product(tensors, _given(asked, "pipeline_parallel", pipelines), contexts):
        experts = [one for one in _powers(gpus // pipeline) if model.num_experts % one == 0] if model.is_moe else [1]
        degrees = {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "context_parallel": context}
        for expert in _given(asked, "expert_parallel", experts):
            one = asked.model_copy(update=degrees | {"expert_parallel": expert})
            sharded = _given(asked, "sharding", ["optimizer", "parameters"] if pipeline == 1 else [])
            chunks = _given(asked, "virtual_stages", _chunks(one))
            micro_batches = _given(asked, "micro_batch", MICRO_BATCHES)
            for chunk, micro_batch, sharding in product(chunks, micro_batches, sharded):
                change = {"virtual_stages": chunk, "micro_batch": micro_batch, "sharding": sharding}
                tried = one.model_copy(update=change)
                try:
                    tried.check()
                except GnomonError:
                    continue
                # Interleaved 1F1B passes micro-batches on in groups of as many as there are ranks.
                if chunk == 1 or tried.num_microbatches % tried.pipeline_parallel == 0:
                    yield tried


def _given(asked: TrainConfig, name: str, otherwise: list[Any]) -> list[Any]:
    """The value that was asked for alone, or all that could be; the default where there is nothing to choose."""
    if name in asked.model_fields_set or not otherwise:
        return [getattr(asked, name)]
    return otherwise


def _powers(most: int) -> list[int]:
    return [2**k for k in range(max(1, most).bit_length())]


def _chunks(one: TrainConfig) -> list[int]:
    """Virtual stages that divide the layers evenly, embedding and loss counted as layers or not; and powers of two,
    whose stages differ by a layer."""
    layers, p = one.shape.num_layers, one.pipeline_parallel
    if p == 1:
        return [1]
    most = -(-layers // p)
    even = [v for v in range(1, most + 1) if layers % (p * v) == 0 or (layers + 2) % (p * v) == 0]
    return sorted({*even, *_powers(most)})


def _fitting(
    layouts: list[TrainConfig], workers: Map, on_progress: Callable[[int, int], None] | None
) -> Iterator[Bounded]:
    for done, outcome in enumerate(workers(bounded, layouts), start=1):
        found = outcome.unwrap()
        if found is not None:
            yield found
        if on_progress is not None:
            on_progress(done, len(layouts))


def bounded(layout: TrainConfig) -> Bounded | None:
    """The layout with the least recomputation with which it fits, and its bound; None if it does not fit at all."""
    tries = [layout.model_copy(update={"recompute": one}) for one in _given(layout, "recompute", RECOMPUTE)]
    if not memory_of(tries[-1]).fits:
        return None
    one = next(one for one in tries if memory_of(one).fits)
    return Bounded(one, least_s(one), memory_of(one).reserved_bytes)


def _timed(fitting: list[Bounded], count: int, workers: Map, *, with_front: bool = True) -> list[TrainStep]:
    """Steps of the layouts that can be among the `count` fastest, and of those on the front of memory and speed."""
    order = sorted(fitting, key=lambda one: one.least_s)
    front, least = [], float("inf")
    for one in order:
        if with_front and one.memory_bytes < 0.97 * least:
            front.append(one)
            least = one.memory_bytes
    time = partial(train_step, check=False, in_detail=False)
    steps = {
        id(one): outcome.unwrap() for one, outcome in zip(front, workers(time, [f.config for f in front]), strict=True)
    }
    waiting = [one for one in order if id(one) not in steps]
    while waiting:
        known = sorted(step.step_s for step in steps.values())
        limit = known[count - 1] if len(known) >= count else float("inf")
        now = [one for one in waiting[: 4 * count] if one.least_s < limit]
        if not now:
            break
        waiting = waiting[len(now) :]
        steps |= {
            id(one): outcome.unwrap() for one, outcome in zip(now, workers(time, [n.config for n in now]), strict=True)
        }
    return list(steps.values())


def _schedules(layout: TrainConfig, workers: Map) -> list[TrainStep]:
    """The layout under every schedule: those with their own number of stages per rank, and with the layout's."""
    if layout.pipeline_parallel == 1 or layout.schedule:
        return []
    tried = []
    for name in SCHEDULES:
        if name == "zb-auto" or (SCHEDULES[name].overlaps_exchange and not layout.shape.is_moe):
            continue  # zb-1p and zb-2p are zb-auto at two limits; there is nothing to hide without experts.
        stages = layout.virtual_stages if SCHEDULES[name].takes_chunks else 1
        if name != "interleaved" or stages > 1:
            tried.append(layout.model_copy(update={"schedule": name, "virtual_stages": stages}))
    outcomes = [outcome.unwrap() for outcome in workers(_if_possible, tried)]
    return sorted((one for one in outcomes if one is not None), key=lambda step: step.step_s)


def _if_possible(layout: TrainConfig) -> TrainStep | None:
    try:
        return train_step(layout, check=False)
    except GnomonError:
        return None


def _nothing_fits(asked: TrainConfig, layouts: list[TrainConfig]) -> GnomonError:
    if not layouts:
        return DoesNotFitError(
            f"no layout divides {asked.gpus} GPUs and a batch of {asked.batch_size} sequences as asked.",
            where="gpus",
            fix="Leave more open, or use a batch and GPUs with common divisors (powers of two, say).",
        )
    least = min(
        (memory_of(one.model_copy(update={"recompute": "full"})) for one in layouts), key=lambda m: m.peak_bytes
    )
    return DoesNotFitError(
        f"none of {len(layouts):,} layouts of {asked.shape.name} fits into {asked.gpus} x {asked.device}: the smallest"
        f" needs {least.reserved_bytes / GB:.1f} GB of {least.device_bytes / GB:.1f} GB on a GPU.",
        fix="Use more GPUs, GPUs with more memory, shorter sequences, or LoRA (--lora-rank 16).",
    )


@dataclass(frozen=True)
class Job:
    """So many tokens at this pace."""

    tokens: float
    days: float
    dollars: float
    p50_s: float
    """Of a step, with GPUs that vary."""
    p99_s: float


def job(step: TrainStep, tokens: float, jitter: float = 0.0) -> Job:
    """Days and dollars of training on `tokens`. Every step waits for its slowest GPU: with `jitter`, the standard
    deviation of a GPU's step time over its mean, for the largest of as many normal draws as there are GPUs."""
    num_gpus = step.config.gpus

    def slowest(quantile: float) -> float:
        if not jitter:
            return step.step_s
        return step.step_s * (1.0 + jitter * NormalDist().inv_cdf(quantile ** (1.0 / num_gpus)))

    p50 = slowest(0.5)
    hours = tokens / step.config.tokens_per_step * p50 / 3600
    price = catalog.device(step.config.device).price_per_hour
    return Job(tokens, hours / 24, hours * num_gpus * price, p50, slowest(0.99))
