"""Every table of the silicon source: its points held out, and the roofline beside them.

Every fifth point of a shape is left out, the estimator fitted to the others predicts it. Tables hold hundreds of
shapes; one in so many is taken, evenly over the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gnomon.catalog.devices import device
from gnomon.catalog.nodes import default_node
from gnomon.catalog.quantization import WeightFormat, weight_format
from gnomon.catalog.topology import Group
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.timing.estimators.grid import Grid
from gnomon.timing.operators import (
    Collective,
    Communication,
    Decode,
    Experts,
    Gemm,
    Kind,
    Operator,
    Prefill,
    Recurrence,
    Work,
)
from gnomon.timing.sources.profile.measured import bound_of
from gnomon.timing.sources.profile.samples import Key, Samples
from gnomon.timing.sources.roofline import Roofline
from gnomon.timing.sources.silicon import SYSTEMS
from gnomon.timing.sources.silicon.attention import attention_kernels
from gnomon.timing.sources.silicon.collectives import all_reduce_kernels, nccl_kernels
from gnomon.timing.sources.silicon.experts import expert_kernels
from gnomon.timing.sources.silicon.kernels import Kernels
from gnomon.timing.sources.silicon.latent import latent_kernels
from gnomon.timing.sources.silicon.linear import recurrence_kernels
from gnomon.timing.sources.silicon.products import gemm_kernels, tuned_products
from gnomon.timing.sources.silicon.tables import ENGINES, Table, find_tables

LIMIT = 0.05
"""Largest median held-out error of all tables of a device that passes."""
ROOFLINE_LIMIT = 0.20
"""The same of the roofline alone."""
MIN_POINTS = 8
MIN_WIDTH = 512
"""Matrix products narrower than this are no layers of any model."""


@dataclass(frozen=True)
class Measured:
    """What one table measured of one kind of operator."""

    device: str
    engine: str
    name: str
    """Family and variant, e.g. "gemm fp8_block"."""
    kind: Kind
    kernels: Kernels
    shaped: Callable[[Key], Work | None]
    is_one_kernel: bool = True
    """Rather than a module of several, or kernels that waited for launches: only then has the roofline a say."""


@dataclass(frozen=True)
class TableScore:
    """Absolute relative errors on one table."""

    device: str
    engine: str
    name: str
    held_out: Floats
    roofline: Floats
    left_out: int
    """Points that cannot be right."""
    weight: float
    """Measured points for each that was looked at."""


def score(measured: Measured, roofline: Roofline, one_in: int) -> TableScore | None:
    """Hold out every fifth point of one in so many shapes; None where nothing is large enough."""
    shapes = [
        (key, samples, work)
        for key, samples in measured.kernels.bundle.samples.items()
        if len(samples.seconds) >= MIN_POINTS and (work := measured.shaped(key)) is not None
    ]
    if not shapes:
        return None
    chosen = shapes[:: max(1, min(one_in, len(shapes) // 8))]
    held, formula, left_out = [], [np.zeros(0)], 0
    for key, samples, work in chosen:
        operator = Operator(measured.name, measured.kind, 1, work)
        left_out += len(measured.kernels.left_out.get(key, ()))
        held.append(_held_out(operator, samples, roofline))
        if measured.is_one_kernel:
            formula.append(np.abs(roofline.seconds(operator, *samples.sizes.T) / samples.seconds - 1.0))
    points = [sum(len(samples.seconds) for _, samples, _ in some) for some in (shapes, chosen)]
    return TableScore(
        measured.device, measured.engine, measured.name, np.concatenate(held), np.concatenate(formula), left_out,
        points[0] / points[1],
    )  # fmt: skip


def _held_out(operator: Operator, samples: Samples, roofline: Roofline) -> Floats:
    """Every fifth point, from the third on: the ends stay, so that it is always between others."""
    order = np.lexsort(samples.sizes.T[::-1])
    out = np.zeros(len(order), dtype=bool)
    out[order[2:-1:5]] = True
    kept = replace(samples, sizes=samples.sizes[~out], seconds=samples.seconds[~out])
    fitted = Grid(bound_of(operator, roofline, kept)).fit(kept.sizes, kept.seconds)
    return np.abs(fitted.predict(samples.sizes[out]) / samples.seconds[out] - 1.0)


def tables_of(device_name: str, engines: tuple[str, ...] = ENGINES) -> Iterator[Measured]:
    """Every table of a device in its newest version, engine by engine."""
    system = SYSTEMS[device_name]
    for engine in engines:
        found = _newest(system, engine)
        bound = {f"gemm {dtype}" for dtype in ("fp8", "fp8_block", "nvfp4") if _waits(system, engine, dtype)}
        for name, kind, kernels, shaped in (*_products(found), *_attention(found), *_latent(found), *_others(found)):
            is_one = "module" not in name and name not in bound
            yield Measured(device_name, engine, name, kind, kernels, shaped, is_one)
    for table in find_tables(system, "comm", "nccl_perf", "nccl")[:1]:
        collectives: tuple[Collective, ...] = ("all_gather", "reduce_scatter", "all_to_all")
        for collective in collectives:
            kernels, shaped = nccl_kernels(table, collective), _collective(collective)
            yield Measured(device_name, "nccl", collective, "communication", kernels, shaped)


def _waits(system: str, engine: str, dtype: str) -> bool:
    """Whether an engine's products of a format were measured untuned or waiting for launches."""
    tables = find_tables(system, "gemm", "gemm_perf", engine)
    kept, _ = tuned_products(tables, dtype)
    return any(table.engine == engine and table not in kept for table in tables)


Found = Callable[[str, str], Table | None]
Part = tuple[str, Kind, Kernels, Callable[[Key], Work | None]]


def _newest(system: str, engine: str) -> Found:
    def find(family: str, table: str) -> Table | None:
        return next((one for one in find_tables(system, family, table, engine) if one.engine == engine), None)

    return find


def _products(found: Found) -> Iterator[Part]:
    table = found("gemm", "gemm_perf")
    for dtype, name in (("bfloat16", "bf16"), ("fp8", "fp8"), ("fp8_block", "fp8_block"), ("nvfp4", "nvfp4")):
        if table:
            wide = weight_format(name)
            yield f"gemm {name}", "token", gemm_kernels(table, dtype), partial(_gemm, form=wide)
    table = found("moe", "moe_perf")
    for dtype, name in (("bfloat16", "bf16"), ("fp8", "fp8"), ("fp8_block", "fp8_block"), ("nvfp4", "nvfp4"),
                        ("int4_wo", "int4"), ("w4a16_mxfp4", "mxfp4")):  # fmt: skip
        for load in ("balanced", "power_law_1.01"):
            if table:
                wide = weight_format(name)
                kernels = expert_kernels(table, dtype, load)
                yield f"moe {name} {load}", "token", kernels, partial(_experts, form=wide, load=load)


def _gemm(key: Key, form: WeightFormat) -> Work | None:
    n, k = int(key[1]), int(key[2])
    return Gemm(n, k, form) if min(n, k) >= MIN_WIDTH else None


def _experts(key: Key, form: WeightFormat, load: str) -> Work:
    experts, local, per_token, hidden, ffn = (int(value) for value in key[1:])
    return Experts(experts, local, per_token, hidden, ffn, 3, form, load)


def _attention(found: Found) -> Iterator[Part]:
    kinds: tuple[tuple[Kind, str], ...] = (("attention_prefill", "context"), ("attention_decode", "generation"))
    for kind, name in kinds:
        table = found("attention", f"{name}_attention_perf")
        for kv, each in (("bfloat16", 2.0), ("fp8", 1.0)):
            for window in (0, 128):
                if table:
                    kernels = attention_kernels(table, kind, kv, window)
                    words = f"{name}_attention {kv} KV" + (f" window {window}" if window else "")
                    yield words, kind, kernels, partial(_heads, kind=kind, each=each, window=window)


def _heads(key: Key, kind: Kind, each: float, window: int) -> Work:
    heads, kv_heads, dim = (int(value) for value in key[1:])
    shape = (heads, kv_heads, dim, dim, 2.0 * kv_heads * dim * each, window)
    return Prefill(*shape) if kind == "attention_prefill" else Decode(*shape)


def _latent(found: Found) -> Iterator[Part]:
    kinds: tuple[tuple[Kind, str], ...] = (("attention_prefill", "context"), ("attention_decode", "generation"))
    for kind, name in kinds:
        for family, file, is_module, architecture in (
            ("mla", f"{name}_mla_perf", False, ""),
            ("mla", f"mla_{name}_module_perf", True, ""),
            ("sparse_attention", f"dsa_{name}_module_perf", True, "DeepseekV32ForCausalLM"),
        ):
            table = found(family, file)
            if table:
                kernels = latent_kernels(table, kind, is_module, "bfloat16", architecture, "bfloat16")
                yield file.removesuffix("_perf"), kind, kernels, partial(_mla, kind=kind, architecture=architecture)


def _mla(key: Key, kind: Kind, architecture: str) -> Work:
    heads, chosen = int(key[1]), 2048 if architecture else 0
    if kind == "attention_prefill" and not architecture:
        return Prefill(heads, heads, 192, 128, 1152.0)
    made = Prefill if kind == "attention_prefill" else Decode
    return made(heads, 1, 576, 512, 1152.0, chosen)


def _others(found: Found) -> Iterator[Part]:
    for family, file, kernel in (("linear_attention", "gdn_perf", "gdn"), ("kda", "kda_perf", "kda")):
        table = found(family, file)
        phases: tuple[tuple[Kind, bool, str], ...] = (("prompt_token", False, "prompts"), ("decode", True, "steps"))
        for kind, is_step, words in phases:
            if table:
                kernels = recurrence_kernels(table, kernel, is_step)
                yield f"{kernel} {words}", kind, kernels, partial(_recurrence, kernel=kernel, is_step=is_step)
    table = found("comm", "custom_allreduce_perf")
    if table:
        yield "custom_allreduce", "communication", all_reduce_kernels(table), _collective("all_reduce")


def _recurrence(key: Key, kernel: str, is_step: bool) -> Work:
    k_heads, v_heads, k_dim, v_dim = (int(value) for value in key[1:])
    return Recurrence(kernel, k_heads, v_heads, k_dim, v_dim, is_step=is_step)


def _collective(name: Collective) -> Callable[[Key], Work | None]:
    return lambda key: Communication(name, Group(range(int(key[1]))), 1.0)


def kernel_scores(device_name: str, one_in: int = 16) -> Iterator[TableScore]:
    """Every table of a device."""
    gpu = device(device_name)
    if gpu.name not in SYSTEMS:
        raise DataError(f"has no kernels of {gpu.name}.", where="silicon", fix=f"It has: {', '.join(SYSTEMS)}.")
    roofline = Roofline(gpu, default_node(gpu), is_repeated=True)
    for measured in tables_of(gpu.name):
        found = score(measured, roofline, one_in)
        if found:
            yield found
