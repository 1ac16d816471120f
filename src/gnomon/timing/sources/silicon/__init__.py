"""The source `silicon`: kernels measured on data-centre GPUs, inside the package aiconfigurator-core (extra [silicon]).

`tables` finds a table by engine and version, the readers turn its rows into samples of our operators without points
that cannot be right, and `source` answers. Norms and activations are not in the tables and come from the roofline.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gnomon.catalog.devices import Device
from gnomon.core.errors import DataError, MissingExtraError
from gnomon.timing.sources import Context, timing_source
from gnomon.timing.sources.profile.samples import Bundle
from gnomon.timing.sources.silicon.tables import ENGINES, NAMES, SYSTEMS, data_folder, find_tables

if TYPE_CHECKING:
    from gnomon.timing.sources.silicon.source import Silicon

__all__ = ["ENGINES", "SYSTEMS", "data_folder", "has_device", "make", "read_bundle"]


def has_device(device: Device) -> bool:
    """Whether the package is installed and has kernels of the device."""
    try:
        return device.name in SYSTEMS and (data_folder() / SYSTEMS[device.name]).is_dir()
    except MissingExtraError:
        return False


MEASURED = {
    (engine, kind): tuple(errors) for engine, one in NAMES["server_errors"].items() for kind, errors in one.items()
}
"""Engine and family of attention -> what iterations are off by beside their kernels, and first tokens beside that."""
ELSEWHERE = (0.15, 0.40)
"""The same of engines and families that no constant was fitted to, from fits that left them out (docs/intervals.md)."""

DRAWING = (0.04, 0.31)
"""Beside that, where tokens are drawn, on Hopper GPUs (sampling was measured on one) and on others: all servers above
choose the likeliest. Such that 90 % of ML.ENERGY's servers with an even crc32 lie inside (docs/servers.md)."""


def server_errors(engine: str, attention: str, *, drawn_on: str = "") -> tuple[float, float]:
    """What a server and its first tokens may be off by, by what is known of such servers; `drawn_on`: the GPU, where
    tokens are drawn."""
    server, first = MEASURED.get((engine, attention), ELSEWHERE)
    drawing = DRAWING[not drawn_on.startswith(("h", "gh"))] if drawn_on else 0.0
    return math.hypot(server, drawing), first


def _errors_of(context: Context) -> tuple[float, float]:
    config = context.config
    drawn_on = context.device.name if config.sampler.is_random else ""
    return server_errors(config.engine, context.model.attention_family, drawn_on=drawn_on)


@timing_source(
    "silicon", about="kernels measured in the package aiconfigurator-core (extra [silicon])", errors_of=_errors_of
)
def make(context: Context) -> Silicon:
    """The measured kernels of the context's device, in `timing.engine` and `timing.engine_version`."""
    data_folder()
    if context.device.name not in SYSTEMS:
        fix = f"It has: {', '.join(SYSTEMS)}."
        raise DataError(f"has no kernels of {context.device.name}.", where="silicon", fix=fix)
    from gnomon.timing.sources.silicon.source import Silicon  # With Polars, which a run by a profile needs not.

    return Silicon(context)


def read_bundle(device: Device, engine: str = "vllm") -> Bundle:
    """The products and attention of one device in 16 bits, in the engine's newest version."""
    from gnomon.timing.sources.silicon.attention import attention_kernels
    from gnomon.timing.sources.silicon.products import gemm_kernels

    system = SYSTEMS[device.name]
    bundle = Bundle(str(data_folder() / system))
    for table in find_tables(system, "gemm", "gemm_perf", engine)[:1]:
        bundle.samples |= gemm_kernels(table, "bfloat16").bundle.samples
    for kind, name in (("prefill", "context"), ("decode", "generation")):
        for table in find_tables(system, "attention", f"{name}_attention_perf", engine)[:1]:
            bundle.samples |= attention_kernels(table, f"attention_{kind}", "bfloat16", 0).bundle.samples
    return bundle
