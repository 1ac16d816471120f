"""Routed experts: grouped products by shape, slicing, number format and load."""

from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np
import polars as pl

from gnomon.timing.operators import Experts, Operator
from gnomon.timing.sources.profile.samples import Key, Samples
from gnomon.timing.sources.silicon.kernels import Found, Kernels, Query, read_kernels, scaled
from gnomon.timing.sources.silicon.tables import NAMES, Table
from gnomon.timing.sources.silicon.untuned import tuned

_SHAPE = ("num_experts", "num_local", "topk", "hidden_size", "ffn")
DTYPES: dict[str, list[str]] = NAMES["experts"]
_SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
_POINT = (*_SIZES, "distribution")
LOADS = ("balanced", "power_law_1.01", "power_law_1.2")


def find_experts(query: Query, operator: Operator, work: Experts) -> Found | None:
    """The shape and load themselves, in the engine's tables or the others'; else the nearest shape, scaled."""
    everything = query.tables("moe", "moe_perf")
    if work.load.endswith("_eplb") and (copied := _with_copies(query, work)):
        return copied
    chosen = [query.expert_kernel] if query.expert_kernel else []
    for dtype, kernel in product(DTYPES.get(work.format.name, ()), [*chosen, ""]):
        tables, excuse = tuned(everything, expert_points, dtype)
        for look in (_exact,) if kernel else (_exact, _nearest):
            for table in tables:
                found = look(table, dtype, kernel, operator, work, query)
                if found:
                    other = f", in {dtype}" if dtype != DTYPES[work.format.name][0] else ""
                    return replace(found, provenance=found.provenance + other + excuse)
    return None


def _with_copies(query: Query, work: Experts) -> Found | None:
    """Experts whose busiest are copied, as the engine itself was measured with expert parallelism over many GPUs."""
    key = ("experts", work.num_experts, work.num_local, work.per_token, work.hidden, work.ffn)
    for table in query.tables("moe", "wideep_moe_perf"):
        if table.engine != query.engine:
            continue
        kernels = copied_kernels(table, DTYPES.get(work.format.name, ("",))[0], work.load)
        if key in kernels.bundle.samples:
            return Found(kernels.bundle.samples[key], f"measured in {table.name}", kernels.left_out.get(key, ()))
    return None


@lru_cache(maxsize=64)
def copied_kernels(table: Table, dtype: str, load: str) -> Kernels:
    """With one spare slot for every eight experts, or none where that was not measured."""
    rows = table.rows(*_POINT, "num_slots", "moe_dtype", "latency")
    rows = rows.filter(pl.col("moe_dtype") == dtype, pl.col("distribution") == load).with_columns(
        ffn=pl.col("inter_size") // pl.col("moe_tp_size"), num_local=pl.col("num_experts") // pl.col("moe_ep_size")
    )
    most = rows.group_by(_SHAPE).agg(slots=pl.col("num_slots").max())
    rows = rows.join(most, on=_SHAPE).filter(pl.col("num_slots") == pl.col("slots"))
    return read_kernels(table, rows, "experts", _SHAPE, ("num_tokens",))


@lru_cache(maxsize=256)
def expert_points(table: Table, dtype: str) -> pl.DataFrame:
    """A few sizes of every shape under even load, the fastest kernel of each."""
    rows = table.rows(*_POINT, "moe_dtype", "distribution", "latency").filter(
        pl.col("moe_dtype") == dtype, pl.col("distribution") == "balanced", pl.col("num_tokens").is_in([1, 16, 256])
    )
    return rows.group_by(_POINT).agg(pl.col("latency").min())


def _exact(table: Table, dtype: str, kernel: str, operator: Operator, work: Experts, query: Query) -> Found | None:
    key = ("experts", work.num_experts, work.num_local, work.per_token, work.hidden, work.ffn)
    load = _measured_load(work.load)
    for wanted in dict.fromkeys((load, *LOADS)):
        kernels = expert_kernels(table, dtype, wanted, kernel)
        if key not in kernels.bundle.samples:
            continue
        samples, words = _at_most(kernels, key), f"measured in {table.name}"
        if wanted != work.load:
            samples = scaled(samples, operator, replace(work, load=wanted), query.roofline)
            words += f", scaled from load {wanted}"
        return Found(samples, words, kernels.left_out.get(key, ()))
    return None


def _at_most(kernels: Kernels, key: Key) -> Samples:
    """A rank takes no longer for as many tokens than one with more of the same experts does, as tables may say of one
    token or two (NVFP4 in TensorRT-LLM on a B200: 36 microseconds with 32 experts, 21 with 64)."""
    samples = kernels.bundle.samples[key]
    for other, more in kernels.bundle.samples.items():
        if int(other[2]) > int(key[2]) and (other[1], other[3:]) == (key[1], key[3:]):
            _, here, there = np.intersect1d(samples.sizes[:, 0], more.sizes[:, 0], return_indices=True)
            seconds = samples.seconds.copy()
            seconds[here] = np.minimum(seconds[here], more.seconds[there])
            samples = replace(samples, seconds=seconds)
    return samples


def _nearest(table: Table, dtype: str, kernel: str, operator: Operator, work: Experts, query: Query) -> Found | None:
    """Slices and shares of the same layer first, then other layers."""
    read = {one: expert_kernels(table, dtype, one, kernel) for one in (_measured_load(work.load), *LOADS)}
    load = next((one for one, kernels in read.items() if kernels.bundle.samples), None)
    if load is None:
        return None
    kernels, shapes = read[load], list(read[load].bundle.samples)
    wanted = np.array([work.num_experts, work.num_local, work.per_token, work.hidden, work.ffn], float)
    apart = np.abs(np.log2(np.array([key[1:] for key in shapes], float) / wanted))
    best = shapes[int(np.argmin(apart @ np.array([1.0, 1.0, 1.0, 2.0, 1.0])))]
    like = _shaped(work, best, load)
    samples = scaled(kernels.bundle.samples[best], operator, like, query.roofline)
    words = f"{best[2]} of {best[1]} experts, {best[3]} each, {best[4]} x {best[5]}"
    return Found(samples, f"measured in {table.name}, scaled from {words}", kernels.left_out.get(best, ()))


def _measured_load(load: str) -> str:
    return load if load in LOADS else "balanced"


def _shaped(work: Experts, key: Key, load: str) -> Experts:
    experts, local, per_token, hidden, ffn = (int(value) for value in key[1:])
    return Experts(experts, local, per_token, hidden, ffn, work.projections, work.format, load)


@lru_cache(maxsize=64)
def expert_kernels(table: Table, dtype: str, load: str, kernel: str = "") -> Kernels:
    """Samples by experts of the layer and of the rank, choices, width, and the rank's slice of each expert.

    The busiest rank was measured; tokens are those of the whole group. Under even load a table's tokens chose experts
    of this rank alone (over two ranks they take as long as over one): a group has as many times more tokens as ranks.
    """
    rows = table.rows(*_SIZES, "latency")
    ranks = pl.col("moe_ep_size") if load == "balanced" else 1
    rows = rows.filter((pl.col("moe_dtype") == dtype) & (pl.col("distribution") == load)).with_columns(
        num_tokens=pl.col("num_tokens") * ranks,
        ffn=pl.col("inter_size") // pl.col("moe_tp_size"),
        num_local=pl.col("num_experts") // pl.col("moe_ep_size"),
    )
    if kernel:
        rows = rows.filter(pl.col("kernel_source").str.contains("|".join(NAMES["expert_kernels"][kernel])))
    return read_kernels(table, rows, "experts", _SHAPE, ("num_tokens",))
