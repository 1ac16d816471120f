"""`python -m gnomon.measure.profiling`: measure on this machine's GPU, with nothing of Gnomon but `gnomon.measure`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from gnomon.measure.profiling import bundle, collectives, operators, quality
from gnomon.measure.profiling.machine import facts
from gnomon.measure.profiling.session import Limits, Session
from gnomon.measure.profiling.shapes import Shapes

METHOD = (
    "cuda graph replays in bursts at full clocks, a small other kernel before each call and its time subtracted, "
    "median of up to 9, weights rotating past the L2 cache"
)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.what == "collectives":
        return collectives.main(options)
    given = {f.name: getattr(options, f.name) for f in fields(Limits) if getattr(options, f.name) is not None}
    try:
        measure(options.what, Shapes.read(options.shapes), options.out, options.device_name, Limits(**given))
    except RuntimeError as error:
        print(f"gnomon.measure.profiling: {error}", file=sys.stderr)
        return 2
    return 0


def check_gpu(gpu: int) -> None:
    """Refuse a GPU that this machine does not have."""
    import torch

    if gpu >= torch.cuda.device_count():
        raise RuntimeError(f"no CUDA device {gpu}: profiling needs a GPU (PyTorch sees {torch.cuda.device_count()})")


def session_on(gpu: int, what: str, shapes: Shapes, out: Path, limits: Limits) -> Session:
    """Measure `shapes` on one of this machine's GPUs into the journal of the folder `out`."""
    import torch

    from gnomon.measure.profiling.pool import Pool
    from gnomon.measure.profiling.timer import GraphTimer

    check_gpu(gpu)
    torch.cuda.set_device(gpu)
    session = Session(Pool(torch.device("cuda", gpu), shapes.dtype), GraphTimer(), bundle.Journal(out), limits)
    if what in ("compute", "all"):
        session.compute(shapes)
    if what in ("attention", "all"):
        session.attention(shapes)
    return session


def measure(what: str, shapes: Shapes, out: Path, device_name: str, limits: Limits) -> dict[str, object]:
    """Measure `shapes` (`what`: compute, attention, all) into the bundle `out`; returns the quality report."""
    from gnomon.measure.profiling.timer import sustained

    begun = time.monotonic()
    session = session_on(0, what, shapes, out, limits)
    machine = facts()  # Before the clock is driven down on purpose.
    took_s = round(time.monotonic() - begun, 1)
    slowdown = {}
    for m, normal in ((64, True), (2048, True), (2048, False)):
        call, _ = operators.gemm(session.pool, m, 28672, 4096, normal=normal)
        slowdown[f"gemm {m}x28672x4096, {'normal' if normal else 'sign'} weights"] = round(sustained(call), 3)
    about = {**machine, "took_s": took_s, "sustained_slowdown": slowdown}
    return finish(session.journal, session.held_out, shapes, out, device_name, about)


def finish(
    journal: bundle.Journal, held_out: list[Any], shapes: Shapes, out: Path, device_name: str, about: Mapping[str, Any]
) -> dict[str, object]:
    """Write CSV files, manifest and quality report from the journal; rows whose repeats disagree are left out."""
    everything = {
        "device": device_name, "dtype": shapes.dtype, "models": shapes.models,
        "tensor_parallel": shapes.tensor_parallel, "node": None, **facts(), "method": METHOD, **about,
    }  # fmt: skip
    bundle.write(out, quality.without_noise(journal.rows), everything)
    verdict = quality.report(journal.rows, held_out)
    (out / "quality.json").write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    return verdict


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("gnomon.measure.profiling", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for what in ("compute", "attention", "all"):
        command = commands.add_parser(what)
        command.add_argument("--shapes", type=Path, required=True, help="JSON from `gnomon profile shapes`")
        command.add_argument("--out", type=Path, required=True, help="folder of the bundle; an old one is resumed")
        command.add_argument("--device-name", required=True, help="the device's name in Gnomon's catalog, e.g. h200")
        for limit in fields(Limits):
            kind = float if "float" in str(limit.type) else int
            command.add_argument(f"--{limit.name.replace('_', '-')}", type=kind)
    collectives.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
