"""The source `auto`: the best of the others for a model and a device."""

import os

from gnomon.timing.sources import Context, Source, make_source, shipped_profile, timing_source
from gnomon.timing.sources.silicon import has_device


@timing_source(
    "auto",
    about="the measurements shipped with Gnomon (H200 in bf16), else silicon where installed, else the roofline",
)
def make(context: Context) -> Source:
    """The source that `automatic_source` names."""
    return make_source(context, automatic_source(context))


def automatic_source(context: Context) -> str:
    """What `auto` means: the shipped profile where it has the model's kind of attention; else the kernels of
    aiconfigurator-core where that is installed and has the device (unless GNOMON_SILICON=0); else the roofline."""
    if context.is_plain and shipped_profile(context.device, context.dtype):
        return "profile"
    if os.environ.get("GNOMON_SILICON") == "0":
        return "roofline"
    return "silicon" if has_device(context.device) else "roofline"
