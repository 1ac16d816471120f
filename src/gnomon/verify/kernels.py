"""Every table of the silicon source: its points held out, and the roofline beside them.

Every fifth point of a shape is left out, the estimator fitted to the others predicts it. Tables hold hundreds of
shapes; one in so many is taken, evenly over the table.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gnomon.catalog.devices import device
from gnomon.catalog.nodes import default_node
from gnomon.catalog.quantization import WeightFormat, weight_format
from gnomon.catalog.topology import Group
from gnomon.core.arrays import Floats
from gnomon.core.errors import DataError
from gnomon.report.blocks import Block, Table
from gnomon.timing import operators
from gnomon.timing.estimators.grid import Grid
from gnomon.timing.operators import Collective, Kind, Operator, Work
from gnomon.timing.sources.profile.measured import bound_of
from gnomon.timing.sources.profile.samples import Bundle, Key, Samples
from gnomon.timing.sources.roofline import Roofline
from gnomon.timing.sources.silicon import SYSTEMS
from gnomon.timing.sources.silicon.attention import attention_kernels
from gnomon.timing.sources.silicon.collectives import all_reduce_kernels, nccl_kernels
from gnomon.timing.sources.silicon.exchange import EXCHANGES, exchange_rows, node_ranks
from gnomon.timing.sources.silicon.experts import copied_kernels, expert_kernels, expert_points
from gnomon.timing.sources.silicon.kernels import Kernels
from gnomon.timing.sources.silicon.latent import BLOCKS_MODULE, COMPRESSED_MODULE, latent_kernels, module_type
from gnomon.timing.sources.silicon.linear import recurrence_kernels
from gnomon.timing.sources.silicon.products import absorbed_kernels, gemm_kernels, product_points
from gnomon.timing.sources.silicon.quantizing import quantize_kernels, quantize_points
from gnomon.timing.sources.silicon.streams import stream_kernels
from gnomon.timing.sources.silicon.tables import ENGINES, find_tables
from gnomon.timing.sources.silicon.tables import Table as KernelTable
from gnomon.timing.sources.silicon.untuned import tuned
from gnomon.verify.findings import Findings, Progress, each, proof

MIN_WIDTH = 512  # Matrix products narrower than this are no layers of any model.


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


_PRODUCTS = (("bfloat16", "bf16"), ("fp8", "fp8"), ("fp8_block", "fp8_block"), ("nvfp4", "nvfp4"))
_EXPERTS = (*_PRODUCTS, ("int4_wo", "int4"), ("w4a16_mxfp4", "mxfp4"))
"""Number formats as the tables call them, and as we do."""
SEVERAL = ("module", "moe_a2a", "deepep", "alltoall")
"""In the names of tables that hold more than one kernel, or waiting for other ranks."""


def tables_of(device_name: str, engines: tuple[str, ...] = ENGINES) -> Iterator[Measured]:
    system = SYSTEMS[device_name]
    for engine in engines:
        found = _newest(system, engine)
        untuned = _untuned(system, engine)
        for name, kind, kernels, shaped in _everything(found, system):
            is_one = not any(word in name for word in SEVERAL) and not name.startswith(untuned)
            yield Measured(device_name, engine, name, kind, kernels, shaped, is_one)
    for table in find_tables(system, "comm", "nccl_perf", "nccl")[:1]:
        collectives: tuple[Collective, ...] = ("all_gather", "reduce_scatter", "all_to_all")
        for collective in collectives:
            kernels, shaped = nccl_kernels(table, collective), _collective(collective)
            yield Measured(device_name, "nccl", collective, "communication", kernels, shaped)


def _untuned(system: str, engine: str) -> tuple[str, ...]:
    """How the names of tables begin that the source passes over: measured untuned, or waiting for launches."""
    asked: list[tuple[str, str, str, Callable[..., pl.DataFrame], tuple[str, ...]]] = [
        *((f"gemm {name}", "gemm", "gemm_perf", product_points, (dtype,)) for dtype, name in _PRODUCTS),
        *((f"moe {name} ", "moe", "moe_perf", expert_points, (dtype,)) for dtype, name in _EXPERTS),
        ("scale_matrix", "quantize", "scale_matrix_perf", quantize_points, ()),
    ]
    names = []
    for name, family, file, points, what in asked:
        tables = find_tables(system, family, file, engine)
        if tables and tables[0].engine == engine and tables[0] not in tuned(tables, points, *what)[0]:
            names.append(name)
    return tuple(names)


Found = Callable[[str, str], list[KernelTable]]  # The newest table of a family, if the engine has it.
Part = tuple[str, Kind, Kernels, Callable[[Key], Work | None]]


def _newest(system: str, engine: str) -> Found:
    def find(family: str, table: str) -> list[KernelTable]:
        return [one for one in find_tables(system, family, table, engine) if one.engine == engine][:1]

    return find


PHASES: tuple[tuple[Kind, str], ...] = (("attention_prefill", "context"), ("attention_decode", "generation"))


def _products(found: Found) -> Iterator[Part]:
    for table, (dtype, name) in product(found("gemm", "gemm_perf"), _PRODUCTS):
        yield f"gemm {name}", "token", gemm_kernels(table, dtype), partial(_gemm, form=weight_format(name))
    loads = ("balanced", "power_law_1.01")
    for table, (dtype, name), load in product(found("moe", "moe_perf"), _EXPERTS, loads):
        shaped = partial(_experts, form=weight_format(name), load=load)
        yield f"moe {name} {load}", "token", expert_kernels(table, dtype, load), shaped
    load = "power_law_1.01_eplb"
    for table in found("moe", "wideep_moe_perf"):
        shaped = partial(_experts, form=weight_format("nvfp4"), load=load)
        yield f"wideep_moe nvfp4 {load}", "token", copied_kernels(table, "nvfp4", load), shaped


def _gemm(key: Key, form: WeightFormat) -> Work | None:
    n, k = int(key[1]), int(key[2])
    return operators.Gemm(n, k, form) if min(n, k) >= MIN_WIDTH else None


def _experts(key: Key, form: WeightFormat, load: str) -> Work:
    experts, local, per_token, hidden, ffn = (int(value) for value in key[1:])
    return operators.Experts(experts, local, per_token, hidden, ffn, 3, form, load)


def _attention(found: Found) -> Iterator[Part]:
    for kind, name in PHASES:
        stored = (("bfloat16", 2.0), ("fp8", 1.0))
        for table, (kv, size), window in product(found("attention", f"{name}_attention_perf"), stored, (0, 128)):
            words = f"{name}_attention {kv} KV" + (f" window {window}" if window else "")
            shaped = partial(_heads, kind=kind, size=size, window=window)
            yield words, kind, attention_kernels(table, kind, kv, window), shaped


def _heads(key: Key, kind: Kind, size: float, window: int) -> Work:
    heads, kv_heads, dim = (int(value) for value in key[1:])
    shape = (heads, kv_heads, dim, dim, 2.0 * kv_heads * dim * size, window)
    return operators.Prefill(*shape) if kind == "attention_prefill" else operators.Decode(*shape)


_V4_PRO, _V4_FLASH = (f"{COMPRESSED_MODULE}/{name}" for name in ("Pro", "Flash"))
_LATENT: tuple[tuple[str, str, str, str, dict[str, int]], ...] = (
    ("mla", "{}_mla", "", "", {}),
    ("mla", "mla_{}_module", "", "", {}),
    ("sparse_attention", "dsa_{}_module", "DeepseekV32ForCausalLM", "", {"window": 2048}),
    ("sparse_attention", "dsa_{}_module", "GlmMoeDsaForCausalLM", "GLM-5", {"window": 2048}),
    ("msa", "msa_{}_module", BLOCKS_MODULE, "", {"window": 2048}),
    ("sparse_attention", "dsv4_csa_{}_module", _V4_PRO, "Pro", {"window": 1024, "ratio": 4, "near": 128}),
    ("sparse_attention", "dsv4_csa_{}_module", _V4_FLASH, "Flash", {"window": 512, "ratio": 4, "near": 128}),
    ("sparse_attention", "dsv4_hca_{}_module", _V4_PRO, "Pro", {"ratio": 128, "near": 128}),
    ("sparse_attention", "dsv4_hca_{}_module", _V4_FLASH, "Flash", {"ratio": 128, "near": 128}),
)
"""Family, table, whose module it holds, words on which, and what of the KV cache a query reads."""


def _latent(found: Found) -> Iterator[Part]:
    for (kind, phase), (family, file, architecture, which, reads) in product(PHASES, _LATENT):
        name, is_module = file.format(phase), file.endswith("module")
        for table in found(family, f"{name}_perf"):
            form = module_type(table, architecture) if is_module else ""
            for kv in ("bfloat16", "fp8"):
                kernels = latent_kernels(table, kind, is_module, kv, architecture, form)
                if kernels.bundle.samples:
                    shaped = partial(_heads_of, kind=kind, family=family, reads=reads)
                    yield f"{name} {which}".strip(), kind, kernels, shaped
                    break


def _heads_of(key: Key, kind: Kind, family: str, reads: dict[str, int]) -> Work:
    heads = int(key[1])
    if kind == "attention_prefill" and family == "mla":
        return operators.Prefill(heads, heads, 192, 128, 1152.0)
    widths = (512, 512, 1024.0) if "ratio" in reads else (128, 128, 512.0) if family == "msa" else (576, 512, 1152.0)
    made = operators.Prefill if kind == "attention_prefill" else operators.Decode
    return made(heads, 1, *widths, **reads)


def _others(found: Found) -> Iterator[Part]:
    phases: tuple[tuple[Kind, bool, str], ...] = (("prompt_token", False, "prompts"), ("decode", True, "steps"))
    for family, kernel in (("linear_attention", "gdn"), ("kda", "kda")):
        for table, (kind, is_step, words) in product(found(family, f"{kernel}_perf"), phases):
            shaped = partial(_recurrence, kernel=kernel, is_step=is_step)
            yield f"{kernel} {words}", kind, recurrence_kernels(table, kernel, is_step), shaped
    for table in found("comm", "custom_allreduce_perf"):
        yield "custom_allreduce", "communication", all_reduce_kernels(table), _collective("all_reduce")


def _recurrence(key: Key, kernel: str, is_step: bool) -> Work:
    k_heads, v_heads, k_dim, v_dim = (int(value) for value in key[1:])
    return operators.Recurrence(kernel, k_heads, v_heads, k_dim, v_dim, is_step=is_step)


def _collective(name: Collective) -> Callable[[Key], Work | None]:
    return lambda key: operators.Communication(name, Group(range(int(key[1]))), 1.0)


def _everything(found: Found, system: str) -> Iterator[Part]:
    for part in (_products, _attention, _latent, _others, _small):
        yield from part(found)
    yield from _exchanges(found, system)


def _small(found: Found) -> Iterator[Part]:
    """Products per head, quantising, and mixing of residual streams."""
    for table, (name, n, k) in product(found("mla_bmm", "mla_bmm_perf"), (("pre", 512, 128), ("post", 128, 512))):
        kernels = absorbed_kernels(table, f"mla_gen_{name}", "bfloat16", n, k)
        yield f"mla_bmm mla_gen_{name}", "decode", kernels, _per_head
    for table in found("quantize", "scale_matrix_perf"):
        yield "scale_matrix", "token", quantize_kernels(table), partial(_stream, per_token=3.0)
    for table, (part, streams) in product(found("mhc", "mhc_module_perf"), (("pre", 5), ("post", 9))):
        yield f"mhc_module {part}", "token", stream_kernels(table, part, 4), partial(_stream, per_token=2.0 * streams)


def _per_head(key: Key) -> Work:
    heads, n, k = (int(value) for value in key[1:])
    return operators.Gemm(n, k, weight_format("bf16"), batch=heads)


def _stream(key: Key, per_token: float) -> Work:
    return operators.Elementwise(per_token * int(key[1]))


def _exchanges(found: Found, system: str) -> Iterator[Part]:
    """Tokens to their experts and back, by the bytes of all tokens that a rank sends."""
    for name, phase in product(EXCHANGES, ("dispatch", "combine")):
        for table in found("comm", name):
            kernels = _exchanged(table, exchange_rows(table, phase, node_ranks(system)))
            yield f"{name.removesuffix('_perf')} {phase}", "communication", kernels, _collective("all_to_all")


def _exchanged(table: KernelTable, rows: pl.DataFrame) -> Kernels:
    kernels, shape = Kernels(Bundle(str(table.path))), ("ranks", "width", "choices")
    for key, one in rows.sort("tokens").group_by(shape, maintain_order=True):
        ranks, width, choices = (int(str(value)) for value in key)
        sizes = one["tokens"].to_numpy().astype(np.float64)[:, None] * width * choices
        samples = Samples(sizes, one["seconds"].to_numpy(), str(table.path))
        kernels.bundle.samples["exchange", ranks, width, choices] = samples
    return kernels


LIMIT = 0.05  # Largest median held-out error of all tables of a device that passes.
ROOFLINE_LIMIT = 0.20  # Largest median error of the roofline alone that passes.
MIN_POINTS = 8


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
    """Errors of every fifth point, predicted from the others."""
    out = every_fifth(samples.sizes)
    kept = replace(samples, sizes=samples.sizes[~out], seconds=samples.seconds[~out])
    fitted = Grid(bound_of(operator, roofline, kept)).fit(kept.sizes, kept.seconds)
    return np.abs(fitted.predict(samples.sizes[out]) / samples.seconds[out] - 1.0)


def every_fifth(sizes: Floats) -> NDArray[np.bool_]:
    """One in five of the points: from the third on, and never the last. Where sizes have two columns, along diagonals
    of the grid that they form, so that no row and no column of it is left out whole."""
    places = [np.unique(column, return_inverse=True)[1] for column in sizes.T]
    out = sum((step * place for step, place in zip((1, 2), places, strict=False)), start=np.zeros(len(sizes))) % 5 == 2
    out[np.lexsort(sizes.T[::-1])[-1]] = False
    return np.asarray(out)


def kernel_scores(device_name: str, one_in: int = 16) -> Iterator[TableScore]:
    gpu = device(device_name)
    if gpu.name not in SYSTEMS:
        raise DataError(f"has no kernels of {gpu.name}.", where="silicon", fix=f"It has: {', '.join(SYSTEMS)}.")
    roofline = Roofline(gpu, default_node(gpu), is_repeated=True)
    for measured in tables_of(gpu.name):
        found = score(measured, roofline, one_in)
        if found:
            yield found


@proof("kernels")
def prove(*devices: str, one_in: int = 16, on_progress: Progress | None = None) -> Findings:
    """Every table of the silicon source, its points held out, and the roofline beside it; one in so many shapes."""
    names = each(devices or ("h200", "b200"), on_progress)
    return findings([one for name in names for one in kernel_scores(name, one_in)])


_CAPTION = (
    "Every fifth point left out; the roofline on all points, where a table holds single kernels. Left out: points whose"
    " time falls when work grows. Over several tables every measured point counts the same."
)


def findings(scores: Sequence[TableScore]) -> Findings:
    """One row per table, and one per device over all of its tables."""
    tables = [_row(one.device, one.engine, one.name, [one]) for one in scores]
    devices = [
        _row(name, "all", "all", [one for one in scores if one.device == name])
        for name in dict.fromkeys(one.device for one in scores)
    ]
    failures = [f"{row['device']} held out" for row in devices if row["held out"] > 100 * LIMIT]
    failures += [f"{row['device']} roofline" for row in devices if (row["roofline"] or 0.0) > 100 * ROOFLINE_LIMIT]
    worst = sorted(tables, key=lambda row: -row["held out"])[:5]
    blocks: list[Block] = [Table(tables, "Median error of every table, %", _CAPTION)]
    blocks += [Table(devices, "Median error by device, %"), Table(worst, "Worst tables")]
    return Findings(scores, tables, {"tables": tables, "devices": devices}, blocks, failures)


def _row(device: str, engine: str, name: str, scores: list[TableScore]) -> dict[str, Any]:
    held, formula = ([getattr(one, kind) for one in scores] for kind in ("held_out", "roofline"))
    return {
        "device": device, "engine": engine, "table": name, "points": sum(len(one) for one in held),
        "held out": _percent(held, scores, 0.5), "90th": _percent(held, scores, 0.9),
        "roofline": _percent(formula, scores, 0.5), "left out": sum(one.left_out for one in scores),
    }  # fmt: skip


def _percent(errors: list[Floats], scores: list[TableScore], share: float) -> float | None:
    """A quantile in which every measured point counts the same, however many of its table were looked at."""
    together = np.concatenate(errors)
    if together.size == 0:
        return None
    weights = np.repeat([one.weight for one in scores], [len(one) for one in errors])
    return round(100 * float(np.quantile(together, share, weights=weights, method="inverted_cdf")), 1)
