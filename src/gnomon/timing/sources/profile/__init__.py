"""The source `profile`: measured bundles in Gnomon's own format or in the layouts of Vidur and LLMServingSim."""

from dataclasses import replace
from pathlib import Path

from gnomon.core.errors import ConfigError, DataError
from gnomon.timing.operators import Operator
from gnomon.timing.sources import Context, shipped_profile, timing_source
from gnomon.timing.sources.profile import native, servingsim, vidur
from gnomon.timing.sources.profile.measured import Measured
from gnomon.timing.sources.profile.samples import Bundle
from gnomon.timing.sources.profile.skew import skew_between
from gnomon.timing.sources.roofline import Roofline

__all__ = ["Measured", "make", "read_bundle"]


def read_bundle(path: str | Path, context: Context) -> Bundle:
    """The measurements below `path` for one rank of the context's deployment; the layout is recognised."""
    path = Path(path)
    if not path.is_dir():
        raise DataError("no such folder.", where=str(path), fix="timing.path names a folder of measurements.")
    c = context
    degree = c.parallelism.tensor_parallel
    if root := native.find_root(path):
        return native.read(root, c.device, c.dtype, c.kv_dtype)
    if root := vidur.find_root(path):
        return vidur.read(root, c.model, c.device, c.node, degree)
    if root := servingsim.find_root(path):
        return servingsim.read(root, c.model, c.device, c.dtype, degree)
    fix = "It needs manifest.json (Gnomon), compute/ (Vidur) or <device>/<model>/<variant>/tp<N>/ (LLMServingSim)."
    raise DataError("is no folder of measurements.", where=str(path), fix=fix)


@timing_source(
    "profile",
    about="measured CSV/Parquet bundles (own format, Vidur's and LLMServingSim's layouts)",
    reads_path=True,
    # Recorded servers and the reference engine, simulated from kernels measured on their own GPU
    # (docs/h200-validation.md, docs/vllm-validation.md).
    server_error=0.03,
    first_token_error=0.03,
)
def make(context: Context) -> Measured:
    """The measurements in the folder that `timing.path` names, or those that come with the package."""
    path = context.config.path or shipped_profile(context.device, context.dtype)
    if path is None:
        what = f"no measurements of {context.device.name} in {context.dtype} come with Gnomon."
        raise ConfigError(what, where="timing.path", fix="Name a folder of measurements, or use the roofline.")
    roofline = Roofline(context.device, context.node)
    source = Measured("profile", read_bundle(path, context), roofline, context.config.estimator)
    if source.bundle.skew is None:
        source.bundle = replace(source.bundle, skew=skew_between(source.bundle, source, _decode(context)))
    return source


def _decode(context: Context) -> Operator:
    """The decode attention of one rank."""
    return next(one for one in context.operators() if one.kind == "attention_decode")
