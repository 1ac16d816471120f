"""A source backed by the roofline: every operator has a time, and what is not measured is said."""

from collections.abc import Collection
from typing import Any

import numpy as np

from gnomon.catalog.devices import Device, device
from gnomon.core.arrays import Floats
from gnomon.core.units import size
from gnomon.timing.config import OVERLAP_TOKENS
from gnomon.timing.deepgemm import conversion_s, padding_s
from gnomon.timing.operators import Communication, Experts, Gemm, Operator, Sampling
from gnomon.timing.operators.sampling import MEASURED_ON
from gnomon.timing.sources import Context, Range, Source, make_source
from gnomon.timing.sources.roofline import Roofline

NOT_WORTH_A_NOTE = 1.01
"""How far beyond the last measured point nobody needs to be told: 8,192 where 8,128 was measured."""

PROMPT_TOKENS = 256.0  # Products of more tokens than this are those of prompts: decodes rarely reach it.

FEW_UNTUNED, MANY_UNTUNED = 0.07, 0.55
"""By how much longer experts in 16 bits take with vLLM's default tiles than with tuned ones: up to as many tokens as
the rank has experts, and beyond, where the tiles are others. Medians over six shapes, 1 to 4,096 tokens, on an H200
(`benchmarks/untuned_experts.py`). These tiles wait for memory that is not busy, and so no less where it is slower."""


class Timer:
    """The configured source; the roofline for operators that it lacks, and for the shape beyond its range."""

    def __init__(self, context: Context, source_name: str | None = None, source: Source | None = None) -> None:
        self.context = context
        self.source: Source = source or make_source(context, source_name)
        self.roofline = Roofline(context.device, context.node)
        self._freed = Roofline(_without(context.device, context.config.free), context.node)
        self.fallbacks: dict[str, None] = {}
        self.beyond: dict[str, str] = {}

    def operators(self, stage: int) -> list[Operator]:
        return self.context.operators(stage)

    def seconds(self, operator: Operator, *sizes: Floats) -> Floats:
        """Seconds of one call at the configured clock, less what is free.

        Sizes outside the measured range take the roofline's shape from its edge on.
        """
        seconds, free = self._at_clock(operator, *sizes), self.context.config.free
        if not free:
            return seconds
        if isinstance(operator.work, Communication):
            return np.zeros_like(seconds) if "network" in free else seconds
        whole = self.roofline.seconds(operator, *sizes)
        return seconds * np.minimum(self._freed.seconds(operator, *sizes) / np.maximum(whole, 1e-12), 1.0)

    def _at_clock(self, operator: Operator, *sizes: Floats) -> Floats:
        seconds, clock = self._at_full_clock(operator, *sizes), self.context.config.clock
        if isinstance(operator.work, Experts):
            seconds = self._as_the_engine(operator, seconds)
            if self.context.config.expert_tiles == "default" and operator.work.format.name == "bf16":
                slower = self.context.device.bandwidth_bytes_s / device(MEASURED_ON).bandwidth_bytes_s
                is_few = sizes[0] <= operator.work.num_local
                seconds = seconds * (1.0 + slower * np.where(is_few, FEW_UNTUNED, MANY_UNTUNED))
        if isinstance(operator.work, Gemm | Experts):
            seconds = seconds + self._deepgemm_s(operator.work, *sizes)
        if clock < 1.0 and isinstance(operator.work, Gemm | Experts):
            one = self._at_full_clock(operator, np.ones(1))
            return one + (seconds - one) / clock
        return seconds / clock if operator.kind == "attention_prefill" else seconds

    def _as_the_engine(self, experts: Operator, seconds: Floats) -> Floats:
        """Experts of an engine older than the measurements: slower over prompts."""
        if self.context.config.expert_speed == 1.0:
            return seconds
        few = np.minimum(seconds, self._at_full_clock(experts, np.full(1, PROMPT_TOKENS)))
        return few + (seconds - few) / self.context.config.expert_speed

    def _deepgemm_s(self, work: Gemm | Experts, *sizes: Floats) -> Floats | float:
        """What DeepGEMM takes beyond the product, where the engine runs it."""
        config, gpu = self.context.config, self.context.device
        if work.format.name != "fp8_block":
            return 0.0
        converted = conversion_s(work, gpu) if config.scale_conversion else 0.0
        if isinstance(work, Gemm):
            return converted
        return padding_s(work, sizes[0], config.expert_rows, gpu) + converted if config.expert_rows else 0.0

    def _at_full_clock(self, operator: Operator, *sizes: Floats) -> Floats:
        measured = self.note(operator, *(size.max() for size in sizes))
        if measured is None:
            return self.context.config.scale * self.roofline.seconds(operator, *sizes)
        if all(size.min() >= low and size.max() <= high for size, (low, high) in zip(sizes, measured, strict=True)):
            return self.context.config.scale * self.source.seconds(operator, *sizes)
        if len(sizes) == 1 and (np.diff(sizes[0]) >= 0.0).all():
            return self.context.config.scale * self._along(operator, sizes[0], *measured[0])
        inside = [np.clip(size, low, high) for size, (low, high) in zip(sizes, measured, strict=True)]
        seconds = self.source.seconds(operator, *inside)
        is_outside = np.logical_or.reduce([a != b for a, b in zip(sizes, inside, strict=True)])
        at_edge = self.roofline.seconds(operator, *(size[is_outside] for size in inside))
        there = self.roofline.seconds(operator, *(size[is_outside] for size in sizes))
        seconds[is_outside] *= np.where(at_edge > 0, there / np.maximum(at_edge, 1e-12), 1.0)
        return self.context.config.scale * seconds

    def _along(self, operator: Operator, sizes: Floats, low: float, high: float) -> Floats:
        """At rising sizes of one axis, most of which may lie beyond the range: its edges are looked up once."""
        ends = np.searchsorted(sizes, low), np.searchsorted(sizes, high, "right")
        below, inside, above = np.split(sizes, ends)
        found = self.source.seconds(operator, inside) if inside.size else inside
        return np.concatenate([self._beyond(operator, below, low), found, self._beyond(operator, above, high)])

    def _beyond(self, operator: Operator, sizes: Floats, edge: float) -> Floats:
        """At sizes beyond an edge of the range: by the roofline's shape from there on."""
        if not sizes.size:
            return sizes
        (at_edge,) = self.roofline.seconds(operator, np.full(1, edge))
        shape = self.roofline.seconds(operator, sizes) / max(at_edge, 1e-12) if at_edge > 0 else np.ones_like(sizes)
        return shape * self.source.seconds(operator, np.full(1, edge))

    def note(self, operator: Operator, *largest: float) -> Range | None:
        """Remember what is to be said of sizes up to these; gives the range that is measured."""
        measured = self._measured(operator)
        if measured is None:
            if not operator.is_fused and not isinstance(operator.work, Sampling):
                self.fallbacks[operator.name] = None
        elif any(size > NOT_WORTH_A_NOTE * high for size, (_, high) in zip(largest, measured, strict=True)):
            self.beyond[operator.name] = _limits(operator, measured)
        return measured

    def _measured(self, operator: Operator) -> Range | None:
        """What the source covers of an operator; choosing tokens has measurements of its own."""
        return None if isinstance(operator.work, Sampling) else self.source.measured(operator)

    def has_mixed_attention(self, operator: Operator) -> bool:
        """Whether a chunk and decodes in one batch are timed as one kernel, rather than added."""
        return not self.context.config.separate_attention and self.source.measured(operator) is not None

    def uncertainty(self, operator: Operator) -> float:
        """Relative error to expect of this operator's time."""
        source = self.source if self._measured(operator) is not None else self.roofline
        return source.uncertainty(operator)

    def exposed(self, operators: list[Operator], tokens: Floats) -> Floats:
        """What share of the time of operators beside the experts is not hidden behind them, at each token count."""
        c = self.context
        side = [one for one in operators if one.is_beside]
        experts = next((one for one in operators if one.name == "experts"), None)
        if not side or experts is None:
            return np.ones_like(tokens)
        beside = sum(one.count * self.seconds(one, tokens) for one in side)
        group = tokens * (c.parallelism.data_parallel if experts.is_shared else 1)
        hidden = np.minimum(beside, experts.count * self.seconds(experts, group))
        return np.where(tokens <= OVERLAP_TOKENS[c.config.engine], 1.0 - hidden / np.maximum(beside, 1e-12), 1.0)

    def provenance(self, operator: Operator) -> str:
        """Where this operator's time comes from, in words."""
        if isinstance(operator.work, Sampling):
            here = self.context.device.name == MEASURED_ON
            return f"measured on {MEASURED_ON}" + ("" if here else ", scaled by bandwidth and SMs")
        if self.source.measured(operator) is None:
            return self.roofline.name
        describe = getattr(self.source, "provenance", None)  # A source of a user's own need not have it.
        return str(describe(operator)) if describe else self.source.name

    def notes(self) -> list[str]:
        """What a user should know about these times."""
        notes = [*self.context.model.notes, *self._precision_notes()]
        if self.fallbacks:
            notes.append(f"{self.source.name} has no {', '.join(self.fallbacks)}: taken from the roofline.")
        notes += getattr(self.source, "notes", list)()
        if self.beyond:
            listing = ", ".join(f"{name} (to {limits})" for name, limits in self.beyond.items())
            notes.append(f"{self.source.name} is extrapolated by the roofline's shape beyond its range: {listing}.")
        return notes

    def _precision_notes(self) -> list[str]:
        """Number formats that the user did not choose."""
        c, notes = self.context, []
        if c.config.dtype == "auto" and not c.precision.is_plain:
            notes.append(f"Weights are in {c.precision.name}, the checkpoint's own precision (timing.dtype: auto).")
        products = {one.product for one in c.precision.formats.values()}
        for dtype in sorted(products - set(c.device.peak_flops)):
            notes.append(f"{c.device.name} has no {dtype} arithmetic: {dtype} weights are multiplied in bf16.")
        return notes


_BOUNDLESS = 1e6  # How much faster than it is a resource must be to cost nothing.


def _without(device: Device, free: Collection[str]) -> Device:
    """A device whose arithmetic, memory or both cost nothing."""
    faster: dict[str, Any] = {}
    if "compute" in free:
        faster["peak_flops"] = {dtype: _BOUNDLESS * flops for dtype, flops in device.peak_flops.items()}
    if "memory" in free:
        faster["bandwidth_bytes_s"] = _BOUNDLESS * device.bandwidth_bytes_s
    return device.model_copy(update=faster) if faster else device


def _limits(operator: Operator, measured: Range) -> str:
    """The largest measured sizes in words."""
    if operator.kind == "communication":
        return size(measured[0][1])
    words = {
        "token": ("tokens",),
        "prompt_token": ("tokens",),
        "decode": ("decodes",),
        "sequence": ("sequences",),
        "attention_prefill": ("chunk", "KV"),
    }.get(operator.kind, ("decodes", "KV"))
    if operator.kind == "attention_mixed":
        words = ("chunk", "KV", "decodes", "their KV")
    return ", ".join(f"{high:,.0f} {word}" for (_, high), word in zip(measured, words, strict=True))


def axis_of(operator: Operator) -> str:
    """What an operator's time is tabulated by: token, shared (tokens of the group), sequence or attention."""
    if operator.is_shared:
        return "shared"
    if isinstance(operator.work, Communication):
        return operator.work.per
    return operator.kind


def message_bytes(operator: Operator) -> float:
    """What turns tokens (or sequences) into the size an operator is asked by: bytes for communication, else one."""
    return operator.work.bytes_each if isinstance(operator.work, Communication) else 1.0
