"""The source `auto`: the best of the others for a model and a device."""

import os

from gnomon.timing.sources import Context, Source, make_source, shipped_profile, timing_source
from gnomon.timing.sources.silicon import has_device


@timing_source(
    "auto", about="the measurements shipped with Gnomon (H200 in bf16), else silicon where installed, else the roofline"
)
def make(context: Context) -> Source:
    """The last of the sources that are at hand: the best."""
    return make_source(context, sources_at_hand(context)[-1])


def sources_at_hand(context: Context) -> list[str]:
    """Sources that need nothing but what is installed and know the device: the roofline; the kernels of
    aiconfigurator-core (unless GNOMON_SILICON=0); the shipped profile where it has the model's kind of attention."""
    found = ["roofline"]
    if os.environ.get("GNOMON_SILICON") != "0" and has_device(context.device):
        found.append("silicon")
    if context.is_plain and shipped_profile(context.device, context.dtype):
        found.append("profile")
    return found
