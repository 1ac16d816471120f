"""Norms, activations and copies, which the package lacks: those measured on an H200 for Gnomon.

Another width is scaled by the roofline, and so is another device: the ratio to its own roofline carries over.
"""

from dataclasses import replace
from functools import cache

import numpy as np

from gnomon.catalog.devices import device
from gnomon.catalog.nodes import default_node
from gnomon.timing.operators import Elementwise, Operator
from gnomon.timing.sources import shipped_profile
from gnomon.timing.sources.profile import native
from gnomon.timing.sources.profile.samples import Bundle, shape_keys
from gnomon.timing.sources.roofline import Roofline
from gnomon.timing.sources.silicon.kernels import Found, Query

MEASURED_ON = "h200"


def find_elementwise(query: Query, operator: Operator, work: Elementwise) -> Found | None:
    """The kernel at its own width or the nearest."""
    bundle = _shipped()
    for kind, width in ((key[0], int(key[1])) for key in shape_keys(operator)):
        widths = np.array([int(key[1]) for key in bundle.samples if key[0] == kind and len(key) == 2])
        if widths.size == 0 or width == 0:
            continue
        near = int(widths[np.argmin(np.abs(np.log(widths / width)))])
        samples = bundle.samples[(kind, near)]
        like = replace(operator, work=Elementwise(work.bytes_each * near / width), is_fused=False)
        there = _roofline().seconds(like, *samples.sizes.T)
        here = query.roofline.seconds(replace(operator, is_fused=False), *samples.sizes.T)
        is_same = near == width and query.roofline.device.name == MEASURED_ON
        words = "measured for Gnomon" + ("" if is_same else f", scaled from {near} wide on {MEASURED_ON}")
        return Found(replace(samples, seconds=samples.seconds * here / there, is_between=not is_same), words)
    return None


@cache
def _shipped() -> Bundle:
    gpu = device(MEASURED_ON)
    folder = shipped_profile(gpu, "bf16")
    assert folder is not None
    return native.read(folder, gpu, "bf16", "bf16")


@cache
def _roofline() -> Roofline:
    gpu = device(MEASURED_ON)
    return Roofline(gpu, default_node(gpu))
